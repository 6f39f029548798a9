// Functions on numbers and vectors. LILY_MATH(exp) is the target's expf; half and bfloat are computed in float and
// rounded.
namespace metal {

#define LILY_MATH1(name, f)                                                                    \
  LILY_FN float name(float x) { return f(x); }                                                 \
  LILY_FN half name(half x) { return half(f(float(x))); }                                      \
  LILY_FN bfloat name(bfloat x) { return bfloat(f(float(x))); }                                \
  template <class A, class = is_vector<A>> LILY_FN auto name(const A& a) {                     \
    vec<typename vec_info<A>::element, vec_info<A>::n> r;                                      \
    auto&& x = as_vec(a);                                                                      \
    for (int i = 0; i < vec_info<A>::n; i++) r.v[i] = name(x.v[i]);                            \
    return r;                                                                                  \
  }
#define LILY_MATH2(name, f)                                                                    \
  LILY_FN float name(float x, float y) { return f(x, y); }                                     \
  LILY_FN half name(half x, half y) { return half(f(float(x), float(y))); }                    \
  LILY_FN bfloat name(bfloat x, bfloat y) { return bfloat(f(float(x), float(y))); }            \
  template <class T, int N> LILY_FN vec<T, N> name(const vec<T, N>& a, const vec<T, N>& b) {   \
    vec<T, N> r;                                                                               \
    for (int i = 0; i < N; i++) r.v[i] = name(a.v[i], b.v[i]);                                 \
    return r;                                                                                  \
  }                                                                                            \
  template <class T, int N, class S, class = enable_if_t<is_arithmetic_v<S>>>                  \
  LILY_FN vec<T, N> name(const vec<T, N>& a, S s) {                                            \
    return name(a, vec<T, N>(convert<T>(s)));                                                  \
  }

LILY_FN float rsqrt_float(float x) { return 1.0f / LILY_MATH(sqrt)(x); }
LILY_FN float exp10_float(float x) { return LILY_MATH(pow)(10.0f, x); }
LILY_FN float fract_float(float x) { return x - LILY_MATH(floor)(x); }
LILY_FN float sign_float(float x) { return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : 0.0f; }
LILY_FN float divide_float(float x, float y) { return x / y; }
LILY_FN float step_float(float edge, float x) { return x < edge ? 0.0f : 1.0f; }

#define LILY_FUNCTIONS                                                                         \
  LILY_MATH1(exp, LILY_MATH(exp)) LILY_MATH1(exp2, LILY_MATH(exp2)) LILY_MATH1(exp10, exp10_float) \
  LILY_MATH1(log, LILY_MATH(log)) LILY_MATH1(log2, LILY_MATH(log2)) LILY_MATH1(log10, LILY_MATH(log10)) \
  LILY_MATH1(sqrt, LILY_MATH(sqrt)) LILY_MATH1(rsqrt, rsqrt_float) LILY_MATH1(sin, LILY_MATH(sin)) \
  LILY_MATH1(cos, LILY_MATH(cos)) LILY_MATH1(tan, LILY_MATH(tan)) LILY_MATH1(asin, LILY_MATH(asin)) \
  LILY_MATH1(acos, LILY_MATH(acos)) LILY_MATH1(atan, LILY_MATH(atan)) LILY_MATH1(sinh, LILY_MATH(sinh)) \
  LILY_MATH1(cosh, LILY_MATH(cosh)) LILY_MATH1(tanh, LILY_MATH(tanh)) LILY_MATH1(floor, LILY_MATH(floor)) \
  LILY_MATH1(ceil, LILY_MATH(ceil)) LILY_MATH1(trunc, LILY_MATH(trunc)) LILY_MATH1(round, LILY_MATH(round)) \
  LILY_MATH1(rint, LILY_MATH(rint)) LILY_MATH1(fabs, LILY_MATH(fabs)) LILY_MATH1(fract, fract_float) \
  LILY_MATH2(pow, LILY_MATH(pow)) LILY_MATH2(powr, LILY_MATH(pow)) LILY_MATH2(fmod, LILY_MATH(fmod)) \
  LILY_MATH2(atan2, LILY_MATH(atan2)) LILY_MATH2(copysign, LILY_MATH(copysign)) LILY_MATH2(fmax, LILY_MATH(fmax)) \
  LILY_MATH2(fmin, LILY_MATH(fmin)) LILY_MATH2(fdim, LILY_MATH(fdim)) LILY_MATH2(divide, divide_float) \
  LILY_MATH2(step, step_float)
LILY_FUNCTIONS
namespace precise {
LILY_FUNCTIONS
}
namespace fast {
LILY_FUNCTIONS
}
LILY_MATH1(sign, sign_float)
#undef LILY_FUNCTIONS
#undef LILY_MATH1
#undef LILY_MATH2

LILY_FN float fma(float a, float b, float c) { return LILY_MATH(fma)(a, b, c); }
LILY_FN half fma(half a, half b, half c) { return half(LILY_MATH(fma)(float(a), float(b), float(c))); }
LILY_FN bfloat fma(bfloat a, bfloat b, bfloat c) { return bfloat(LILY_MATH(fma)(float(a), float(b), float(c))); }
template <class T, int N> LILY_FN vec<T, N> fma(const vec<T, N>& a, const vec<T, N>& b, const vec<T, N>& c) {
  vec<T, N> r;
  for (int i = 0; i < N; i++) r.v[i] = fma(a.v[i], b.v[i], c.v[i]);
  return r;
}
LILY_FN float mad(float a, float b, float c) { return a * b + c; }

#define LILY_COMPARED(T)                                                                       \
  LILY_FN T max(T a, T b) { return a < b ? b : a; }                                            \
  LILY_FN T min(T a, T b) { return b < a ? b : a; }                                            \
  LILY_FN T clamp(T x, T lo, T hi) { return x < lo ? lo : hi < x ? hi : x; }                   \
  LILY_FN T abs(T x) { return x < T(0) ? T(-x) : x; }                                          \
  LILY_FN T select(T a, T b, bool c) { return c ? b : a; }
// fmax and fmin of Metal's max: a NaN operand gives the other one.
#define LILY_COMPARED_FLOAT(T)                                                                 \
  LILY_FN T max(T a, T b) { return T(LILY_MATH(fmax)(float(a), float(b))); }                   \
  LILY_FN T min(T a, T b) { return T(LILY_MATH(fmin)(float(a), float(b))); }                   \
  LILY_FN T clamp(T x, T lo, T hi) { return min(max(x, lo), hi); }                             \
  LILY_FN T abs(T x) { return T(LILY_MATH(fabs)(float(x))); }                                  \
  LILY_FN T select(T a, T b, bool c) { return c ? b : a; }
LILY_COMPARED_FLOAT(float) LILY_COMPARED_FLOAT(half) LILY_COMPARED_FLOAT(bfloat)
LILY_COMPARED(char) LILY_COMPARED(int8_t) LILY_COMPARED(uchar) LILY_COMPARED(short) LILY_COMPARED(ushort)
LILY_COMPARED(int) LILY_COMPARED(uint) LILY_COMPARED(long) LILY_COMPARED(ulong)
#undef LILY_COMPARED
#undef LILY_COMPARED_FLOAT
LILY_FN bool select(bool a, bool b, bool c) { return c ? b : a; }

template <class T, int N> LILY_FN vec<T, N> max(const vec<T, N>& a, const vec<T, N>& b) {
  vec<T, N> r;
  for (int i = 0; i < N; i++) r.v[i] = max(a.v[i], b.v[i]);
  return r;
}
template <class T, int N> LILY_FN vec<T, N> min(const vec<T, N>& a, const vec<T, N>& b) {
  vec<T, N> r;
  for (int i = 0; i < N; i++) r.v[i] = min(a.v[i], b.v[i]);
  return r;
}
template <class T, int N, class S, class = enable_if_t<is_arithmetic_v<S>>>
LILY_FN vec<T, N> max(const vec<T, N>& a, S s) {
  return max(a, vec<T, N>(convert<T>(s)));
}
template <class T, int N, class S, class = enable_if_t<is_arithmetic_v<S>>>
LILY_FN vec<T, N> min(const vec<T, N>& a, S s) {
  return min(a, vec<T, N>(convert<T>(s)));
}
template <class T, int N> LILY_FN vec<T, N> clamp(const vec<T, N>& a, const vec<T, N>& lo, const vec<T, N>& hi) {
  return min(max(a, lo), hi);
}
template <class T, int N, class S, class = enable_if_t<is_arithmetic_v<S>>>
LILY_FN vec<T, N> clamp(const vec<T, N>& a, S lo, S hi) {
  return min(max(a, lo), hi);
}
template <class T, int N> LILY_FN vec<T, N> abs(const vec<T, N>& a) {
  vec<T, N> r;
  for (int i = 0; i < N; i++) r.v[i] = abs(a.v[i]);
  return r;
}
template <class T, int N>
LILY_FN vec<T, N> select(const vec<T, N>& a, const vec<T, N>& b, const vec<bool, N>& c) {
  vec<T, N> r;
  for (int i = 0; i < N; i++) r.v[i] = c.v[i] ? b.v[i] : a.v[i];
  return r;
}
template <class A, class B, class = same_length<A, B>> LILY_FN auto dot(const A& a, const B& b) {
  typedef typename vec_info<A>::element T;
  static_assert(is_same_v<T, typename vec_info<B>::element>, "dot needs vectors of one element type");
  auto&& x = as_vec(a);
  auto&& y = as_vec(b);
  T r = T(x.v[0] * y.v[0]);
  for (int i = 1; i < vec_info<A>::n; i++) r = T(r + x.v[i] * y.v[i]);
  return r;
}
template <class T, int N> LILY_FN T length(const vec<T, N>& a) { return sqrt(dot(a, a)); }
template <class T, int N> LILY_FN vec<T, N> normalize(const vec<T, N>& a) { return a * rsqrt(dot(a, a)); }
LILY_FN float mix(float a, float b, float t) { return a + (b - a) * t; }
LILY_FN float saturate(float x) { return clamp(x, 0.0f, 1.0f); }
LILY_FN float ldexp(float x, int e) { return LILY_MATH(ldexp)(x, e); }

LILY_FN bool isnan(float x) { return x != x; }
LILY_FN bool isinf(float x) { return (__builtin_bit_cast(uint, x) & 0x7fffffffu) == 0x7f800000u; }
LILY_FN bool isfinite(float x) { return (__builtin_bit_cast(uint, x) & 0x7f800000u) != 0x7f800000u; }
LILY_FN bool signbit(float x) { return __builtin_bit_cast(uint, x) >> 31; }

LILY_FN uint popcount(uint x) { return uint(LILY_POPCOUNT(x)); }
LILY_FN int popcount(int x) { return int(LILY_POPCOUNT(uint(x))); }
LILY_FN uint clz(uint x) { return x ? uint(LILY_CLZ(x)) : 32u; }
LILY_FN int clz(int x) { return int(clz(uint(x))); }
LILY_FN uint ctz(uint x) { return x ? uint(LILY_CTZ(x)) : 32u; }
LILY_FN int ctz(int x) { return int(ctz(uint(x))); }
LILY_FN uint reverse_bits(uint x) {
  uint r = 0;
  for (int i = 0; i < 32; i++) r |= ((x >> i) & 1u) << (31 - i);
  return r;
}
LILY_FN uint mulhi(uint a, uint b) { return uint((ulong(a) * b) >> 32); }
LILY_FN int mulhi(int a, int b) { return int((long(a) * b) >> 32); }
LILY_FN uint extract_bits(uint x, uint offset, uint n) {
  return n == 0 ? 0u : (x >> offset) & (n >= 32 ? ~0u : (1u << n) - 1u);
}
LILY_FN uint insert_bits(uint base, uint insert, uint offset, uint n) {
  uint m = (n >= 32 ? ~0u : (1u << n) - 1u) << offset;
  return (base & ~m) | ((insert << offset) & m);
}
LILY_FN uint rotate(uint x, uint n) {
  n &= 31u;
  return n ? (x << n) | (x >> (32u - n)) : x;
}

#undef INFINITY
#undef NAN
#undef FLT_MAX
#undef FLT_MIN
#undef M_PI_F
#undef M_LOG2E_F
#undef M_LN2_F
#undef INT_MAX
#undef UINT_MAX
inline constexpr float INFINITY = __builtin_bit_cast(float, 0x7f800000u);
inline constexpr float NAN = __builtin_bit_cast(float, 0x7fc00000u);
inline constexpr float FLT_MAX = 3.40282347e38f, MAXFLOAT = FLT_MAX, FLT_MIN = 1.17549435e-38f;
inline constexpr half HALF_MAX = half(65504.0f);
inline constexpr float M_PI_F = 3.14159265358979323846f, M_LOG2E_F = 1.44269504088896340736f,
                       M_LN2_F = 0.693147180559945309417f, M_SQRT2_F = 1.41421356237309504880f;
inline constexpr int INT_MAX = 2147483647;
inline constexpr uint UINT_MAX = 0xffffffffu;

enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4 };
LILY_FN constexpr mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(int(a) | int(b)); }
enum memory_order { memory_order_relaxed };
template <class T> struct atomic { T v; };
typedef atomic<int> atomic_int;
typedef atomic<uint> atomic_uint;
typedef atomic<bool> atomic_bool;
typedef atomic<float> atomic_float;

} // namespace metal
