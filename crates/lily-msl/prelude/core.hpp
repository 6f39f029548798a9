// Types and traits of Metal that both translations share. Everything of ours and of the kernels stands in
// namespace metal, where names like float4 or exp hide the target's own.
namespace metal {

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long uint64_t;
typedef unsigned long size_t;
typedef long ptrdiff_t;

// ---- traits

template <class T, T V> struct integral_constant {
  static constexpr T value = V;
  typedef T value_type;
  constexpr operator T() const { return V; }
};
template <bool B> using bool_constant = integral_constant<bool, B>;
typedef bool_constant<true> true_type;
typedef bool_constant<false> false_type;

template <class A, class B> struct is_same : false_type {};
template <class A> struct is_same<A, A> : true_type {};
template <class A, class B> inline constexpr bool is_same_v = is_same<A, B>::value;
template <bool B, class T = void> struct enable_if {};
template <class T> struct enable_if<true, T> { typedef T type; };
template <bool B, class T = void> using enable_if_t = typename enable_if<B, T>::type;
template <bool B, class X, class Y> struct conditional { typedef X type; };
template <class X, class Y> struct conditional<false, X, Y> { typedef Y type; };
template <bool B, class X, class Y> using conditional_t = typename conditional<B, X, Y>::type;
template <class T> struct remove_cv { typedef T type; };
template <class T> struct remove_cv<const T> { typedef T type; };
template <class T> struct remove_cv<volatile T> { typedef T type; };
template <class T> struct remove_cv<const volatile T> { typedef T type; };
template <class T> using remove_cv_t = typename remove_cv<T>::type;
template <class T> struct remove_reference { typedef T type; };
template <class T> struct remove_reference<T&> { typedef T type; };
template <class T> struct remove_reference<T&&> { typedef T type; };
template <class T> using remove_reference_t = typename remove_reference<T>::type;

struct half;
struct bfloat;

template <class T> struct is_integral : false_type {};
template <class T> struct is_floating_point : false_type {};
#define LILY_INTEGRAL(T) \
  template <> struct is_integral<T> : true_type {};
LILY_INTEGRAL(bool) LILY_INTEGRAL(char) LILY_INTEGRAL(signed char) LILY_INTEGRAL(uchar) LILY_INTEGRAL(short)
LILY_INTEGRAL(ushort) LILY_INTEGRAL(int) LILY_INTEGRAL(uint) LILY_INTEGRAL(long) LILY_INTEGRAL(ulong)
LILY_INTEGRAL(long long) LILY_INTEGRAL(unsigned long long)
#undef LILY_INTEGRAL
template <> struct is_floating_point<float> : true_type {};
template <> struct is_floating_point<half> : true_type {};
template <> struct is_floating_point<bfloat> : true_type {};
template <class T> inline constexpr bool is_integral_v = is_integral<T>::value;
template <class T> inline constexpr bool is_floating_point_v = is_floating_point<T>::value;
template <class T> struct is_arithmetic : bool_constant<is_integral_v<T> || is_floating_point_v<T>> {};
template <class T> inline constexpr bool is_arithmetic_v = is_arithmetic<T>::value;
// The numbers C++ itself knows.
template <class T> inline constexpr bool is_native_v = is_integral_v<T> || is_same_v<T, float> || is_same_v<T, double>;

// ---- 16-bit floats: storage of 16 bits, every operation in float and rounded (nearest, ties to even)

constexpr ushort float_to_bfloat_bits(float f) {
  uint x = __builtin_bit_cast(uint, f);
  if ((x & 0x7fffffffu) > 0x7f800000u) return ushort((x >> 16) | 0x40u);
  return ushort((x + 0x7fffu + ((x >> 16) & 1u)) >> 16);
}
constexpr float bfloat_bits_to_float(ushort b) { return __builtin_bit_cast(float, uint(b) << 16); }

constexpr ushort float_to_half_bits(float f) {
  uint x = __builtin_bit_cast(uint, f), s = (x >> 16) & 0x8000u, a = x & 0x7fffffffu;
  if (a >= 0x47800000u) return ushort(s | (a > 0x7f800000u ? 0x7e00u : 0x7c00u)); // too large, infinite or NaN
  if (a < 0x38800000u) {                                                          // subnormal: a multiple of 2^-24
    float t = __builtin_bit_cast(float, a) * 16777216.0f;
    uint r = uint(t);
    float d = t - float(r);
    if (d > 0.5f || (d == 0.5f && (r & 1u))) r++;
    return ushort(s | r);
  }
  a += 0xc8000fffu + ((a >> 13) & 1u);
  return ushort(s | (a >> 13));
}
constexpr float half_bits_to_float(ushort h) {
  uint s = uint(h & 0x8000u) << 16, e = (h >> 10) & 31u, m = h & 1023u;
  if (e == 0) {
    float f = float(m) / 16777216.0f;
    return s ? -f : f;
  }
  if (e == 31) return __builtin_bit_cast(float, s | 0x7f800000u | (m << 13));
  return __builtin_bit_cast(float, s | ((e + 112u) << 23) | (m << 13));
}

struct half {
  ushort bits;
  half() = default;
  // From float and integers implicitly, as in Metal.
  template <class U, class = enable_if_t<is_native_v<U>>>
  LILY_FN constexpr half(U u) : bits(LILY_TO_HALF(float(u))) {}
  explicit constexpr half(bfloat b);
  LILY_FN constexpr operator float() const { return LILY_FROM_HALF(bits); }
};
struct bfloat {
  ushort bits;
  bfloat() = default;
  // Only explicitly, as in Metal.
  template <class U, class = enable_if_t<is_native_v<U>>>
  LILY_FN explicit constexpr bfloat(U u) : bits(LILY_TO_BFLOAT(float(u))) {}
  LILY_FN explicit constexpr bfloat(half h) : bits(LILY_TO_BFLOAT(float(h))) {}
  LILY_FN constexpr operator float() const { return LILY_FROM_BFLOAT(bits); }
};
constexpr half::half(bfloat b) : bits(LILY_TO_HALF(float(b))) {}

// T op T stays T; with any other number the result is a float.
#define LILY_OP16(T, op)                                                                       \
  template <class A, class B, class = enable_if_t<is_same_v<A, T> && is_same_v<B, T>>>         \
  LILY_FN constexpr T operator op(A a, B b) {                                                  \
    return T(float(a) op float(b));                                                            \
  }                                                                                            \
  LILY_FN T& operator op##=(T& a, T b) { return a = T(float(a) op float(b)); }
#define LILY_OPS16(T)                                                                          \
  LILY_OP16(T, +) LILY_OP16(T, -) LILY_OP16(T, *) LILY_OP16(T, /)                              \
  template <class A, class = enable_if_t<is_same_v<A, T>>> LILY_FN constexpr T operator-(A a) { \
    return T(-float(a));                                                                       \
  }
LILY_OPS16(half)
LILY_OPS16(bfloat)
#undef LILY_OPS16
#undef LILY_OP16

template <class T, class U> LILY_FN T as_type(const U& u) {
  static_assert(sizeof(T) == sizeof(U), "as_type needs types of one size");
  T t;
  LILY_COPY(&t, &u, sizeof(T));
  return t;
}

// ---- limits

template <class T> struct numeric_limits;
#define LILY_LIMITS_INT(T, lo, hi)                                                             \
  template <> struct numeric_limits<T> {                                                       \
    static constexpr T max() { return hi; }                                                    \
    static constexpr T min() { return lo; }                                                    \
    static constexpr T lowest() { return lo; }                                                 \
  };
LILY_LIMITS_INT(char, -128, 127)
LILY_LIMITS_INT(signed char, -128, 127)
LILY_LIMITS_INT(uchar, 0, 255)
LILY_LIMITS_INT(short, -32768, 32767)
LILY_LIMITS_INT(ushort, 0, 65535)
LILY_LIMITS_INT(int, -2147483647 - 1, 2147483647)
LILY_LIMITS_INT(uint, 0, 0xffffffffu)
LILY_LIMITS_INT(long, -0x7fffffffffffffffL - 1, 0x7fffffffffffffffL)
LILY_LIMITS_INT(ulong, 0, ~0ul)
#define LILY_LIMITS_FLOAT(T, lo, hi, eps)                                                      \
  template <> struct numeric_limits<T> {                                                       \
    static constexpr T max() { return T(hi); }                                                 \
    static constexpr T min() { return T(lo); }                                                 \
    static constexpr T lowest() { return T(-hi); }                                             \
    static constexpr T infinity() { return T(__builtin_bit_cast(float, 0x7f800000u)); }        \
    static constexpr T quiet_NaN() { return T(__builtin_bit_cast(float, 0x7fc00000u)); }       \
    static constexpr T epsilon() { return T(eps); }                                            \
  };
LILY_LIMITS_FLOAT(float, 1.17549435e-38f, 3.40282347e38f, 1.1920929e-7f)
LILY_LIMITS_FLOAT(half, 6.103515625e-5f, 65504.0f, 9.765625e-4f)
LILY_LIMITS_FLOAT(bfloat, 1.17549435e-38f, 3.38953139e38f, 7.8125e-3f)

} // namespace metal
