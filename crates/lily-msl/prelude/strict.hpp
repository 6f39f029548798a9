// Declarations of Metal's library for type checking as C++ for OpenCL (clang-19, x86-64 for its __bf16). Nothing is
// defined that runs. Address spaces, conversions and the overloads that exist are as strict as Metal's: no bfloat
// in simd functions, no implicit float to bfloat, no double.
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
namespace metal {

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long int64_t;
typedef unsigned long uint64_t;
typedef unsigned long size_t;
typedef long ptrdiff_t;
typedef __bf16 bfloat;
#define LILY_VECTORS(T)                                                                        \
  typedef T T##2 __attribute__((ext_vector_type(2)));                                          \
  typedef T T##3 __attribute__((ext_vector_type(3)));                                          \
  typedef T T##4 __attribute__((ext_vector_type(4)));                                          \
  struct packed_##T##2 { T v[2]; operator T##2() const; packed_##T##2(T##2); };                \
  struct packed_##T##3 { T v[3]; operator T##3() const; packed_##T##3(T##3); };                \
  struct packed_##T##4 { T v[4]; operator T##4() const; packed_##T##4(T##4); };
LILY_VECTORS(float) LILY_VECTORS(half) LILY_VECTORS(bfloat) LILY_VECTORS(char) LILY_VECTORS(uchar)
LILY_VECTORS(short) LILY_VECTORS(ushort) LILY_VECTORS(int) LILY_VECTORS(uint) LILY_VECTORS(long) LILY_VECTORS(ulong)
// Comparisons of float and int vectors give int vectors here; of 16-bit vectors, 16-bit ones, which these are not.
typedef int2 bool2;
typedef int3 bool3;
typedef int4 bool4;
template <class T, int N> using vec = T __attribute__((ext_vector_type(N)));

template <class T, T V> struct integral_constant { static constexpr T value = V; };
template <bool B> struct bool_constant { static constexpr bool value = B; };
template <class A, class B> struct is_same : bool_constant<false> {};
template <class A> struct is_same<A, A> : bool_constant<true> {};
template <class A, class B> inline constexpr bool is_same_v = is_same<A, B>::value;
template <bool B, class X, class Y> struct conditional { typedef X type; };
template <class X, class Y> struct conditional<false, X, Y> { typedef Y type; };
template <bool B, class X, class Y> using conditional_t = typename conditional<B, X, Y>::type;

// A vector's constructor: its parts fill it exactly, or one scalar fills it all.
template <class T> struct parts { static constexpr int n = 1; };
#define LILY_PARTS(T)                                                                          \
  template <> struct parts<T##2> { static constexpr int n = 2; };                              \
  template <> struct parts<T##3> { static constexpr int n = 3; };                              \
  template <> struct parts<T##4> { static constexpr int n = 4; };
LILY_PARTS(float) LILY_PARTS(half) LILY_PARTS(bfloat) LILY_PARTS(char) LILY_PARTS(uchar) LILY_PARTS(short)
LILY_PARTS(ushort) LILY_PARTS(int) LILY_PARTS(uint) LILY_PARTS(long) LILY_PARTS(ulong)
template <class V, class... A> struct vector_of {
  static constexpr int total = (0 + ... + parts<A>::n);
  static_assert(total == parts<V>::n || (sizeof...(A) == 1 && total == 1), "a vector's parts must fill it exactly");
  typedef V type;
};
template <class V, class... A> typename vector_of<V, A...>::type lily_vector(A...);

template <class T, class U> struct same_size {
  static_assert(sizeof(T) == sizeof(U), "as_type needs types of one size");
  typedef T type;
};
template <class T, class U> typename same_size<T, U>::type as_type(U);

template <class T> struct numeric_limits {
  static constexpr T max();
  static constexpr T min();
  static constexpr T lowest();
  static constexpr T infinity();
  static constexpr T epsilon();
};

#define LILY_MATH1(n)                                                                          \
  float n(float);                                                                              \
  half n(half);                                                                                \
  float2 n(float2);                                                                            \
  float3 n(float3);                                                                            \
  float4 n(float4);                                                                            \
  half2 n(half2);                                                                              \
  half4 n(half4);
#define LILY_MATH2(n)                                                                          \
  float n(float, float);                                                                       \
  half n(half, half);                                                                          \
  float2 n(float2, float2);                                                                    \
  float3 n(float3, float3);                                                                    \
  float4 n(float4, float4);                                                                    \
  half2 n(half2, half2);                                                                       \
  half4 n(half4, half4);
#define LILY_FUNCTIONS                                                                         \
  LILY_MATH1(exp) LILY_MATH1(exp2) LILY_MATH1(exp10) LILY_MATH1(log) LILY_MATH1(log2) LILY_MATH1(log10) \
  LILY_MATH1(sqrt) LILY_MATH1(rsqrt) LILY_MATH1(sin) LILY_MATH1(cos) LILY_MATH1(tan) LILY_MATH1(tanh) \
  LILY_MATH1(sinh) LILY_MATH1(cosh) LILY_MATH1(asin) LILY_MATH1(acos) LILY_MATH1(atan) LILY_MATH1(floor) \
  LILY_MATH1(ceil) LILY_MATH1(trunc) LILY_MATH1(round) LILY_MATH1(rint) LILY_MATH1(fabs) LILY_MATH1(fract) \
  LILY_MATH2(pow) LILY_MATH2(powr) LILY_MATH2(fmod) LILY_MATH2(atan2) LILY_MATH2(copysign) LILY_MATH2(fmax) \
  LILY_MATH2(fmin) LILY_MATH2(divide) LILY_MATH2(step)
LILY_FUNCTIONS
namespace precise {
LILY_FUNCTIONS
}
namespace fast {
LILY_FUNCTIONS
}
LILY_MATH1(sign)
#define LILY_EACH(F) F(float) F(half) F(int) F(uint) F(short) F(ushort) F(char) F(uchar) F(long) F(ulong)
#define LILY_COMPARED(T)                                                                       \
  T max(T, T);                                                                                 \
  T min(T, T);                                                                                 \
  T clamp(T, T, T);                                                                            \
  T abs(T);                                                                                    \
  T select(T, T, bool);                                                                        \
  T##2 max(T##2, T##2);                                                                        \
  T##4 max(T##4, T##4);                                                                        \
  T##2 min(T##2, T##2);                                                                        \
  T##4 min(T##4, T##4);                                                                        \
  T##4 clamp(T##4, T##4, T##4);                                                                \
  T##4 abs(T##4);                                                                              \
  T##2 select(T##2, T##2, bool2);                                                              \
  T##4 select(T##4, T##4, bool4);
LILY_EACH(LILY_COMPARED)
#define LILY_DOT(T)                                                                            \
  T dot(T##2, T##2);                                                                           \
  T dot(T##3, T##3);                                                                           \
  T dot(T##4, T##4);                                                                           \
  T length(T##2);                                                                              \
  T length(T##3);                                                                              \
  T length(T##4);                                                                              \
  T fma(T, T, T);                                                                              \
  T##2 fma(T##2, T##2, T##2);                                                                  \
  T##4 fma(T##4, T##4, T##4);                                                                  \
  T mix(T, T, T);                                                                              \
  T saturate(T);                                                                               \
  T ldexp(T, int);                                                                             \
  bool isnan(T);                                                                               \
  bool isinf(T);                                                                               \
  bool isfinite(T);                                                                            \
  bool signbit(T);
LILY_DOT(float) LILY_DOT(half)
bool all(bool2);
bool all(bool3);
bool all(bool4);
bool any(bool2);
bool any(bool3);
bool any(bool4);
uint popcount(uint);
int popcount(int);
uint clz(uint);
uint ctz(uint);
uint reverse_bits(uint);
uint mulhi(uint, uint);
int mulhi(int, int);
uint extract_bits(uint, uint, uint);
uint insert_bits(uint, uint, uint, uint);
uint rotate(uint, uint);
constexpr __constant const float INFINITY = __builtin_inff(), NAN = __builtin_nanf("");
constexpr __constant const float FLT_MAX = 3.40282347e38f, MAXFLOAT = 3.40282347e38f, FLT_MIN = 1.17549435e-38f;
constexpr __constant const float M_PI_F = 3.14159265358979323846f, M_LOG2E_F = 1.44269504088896340736f;
constexpr __constant const float M_LN2_F = 0.693147180559945309417f, M_SQRT2_F = 1.41421356237309504880f;
constexpr __constant const int INT_MAX = 2147483647;
constexpr __constant const uint UINT_MAX = 0xffffffffu;

// Simdgroups: Metal has these for integers, half and float and their vectors, not for bfloat.
#define LILY_SIMD_VALUE(T)                                                                     \
  T simd_shuffle(T, ushort);                                                                   \
  T simd_shuffle_xor(T, ushort);                                                               \
  T simd_shuffle_up(T, ushort);                                                                \
  T simd_shuffle_down(T, ushort);                                                              \
  T simd_shuffle_rotate_up(T, ushort);                                                         \
  T simd_shuffle_rotate_down(T, ushort);                                                       \
  T simd_shuffle_and_fill_up(T, T, ushort);                                                    \
  T simd_shuffle_and_fill_down(T, T, ushort);                                                  \
  T simd_broadcast(T, ushort);                                                                 \
  T simd_broadcast_first(T);                                                                   \
  T simd_sum(T);                                                                               \
  T simd_product(T);                                                                           \
  T simd_max(T);                                                                               \
  T simd_min(T);                                                                               \
  T simd_prefix_inclusive_sum(T);                                                              \
  T simd_prefix_exclusive_sum(T);                                                              \
  T simd_prefix_inclusive_product(T);                                                          \
  T simd_prefix_exclusive_product(T);                                                          \
  T quad_sum(T);                                                                               \
  T quad_max(T);                                                                               \
  T quad_min(T);                                                                               \
  T quad_shuffle_xor(T, ushort);                                                               \
  T quad_broadcast(T, ushort);
#define LILY_SIMD(T) LILY_SIMD_VALUE(T) LILY_SIMD_VALUE(T##2) LILY_SIMD_VALUE(T##3) LILY_SIMD_VALUE(T##4)
LILY_SIMD(float) LILY_SIMD(half) LILY_SIMD(int) LILY_SIMD(uint) LILY_SIMD(short) LILY_SIMD(ushort) LILY_SIMD(char)
LILY_SIMD(uchar)
#define LILY_SIMD_BITS(T)                                                                      \
  T simd_and(T);                                                                               \
  T simd_or(T);                                                                                \
  T simd_xor(T);
LILY_SIMD_BITS(int) LILY_SIMD_BITS(uint) LILY_SIMD_BITS(short) LILY_SIMD_BITS(ushort)
struct simd_vote {
  bool all() const;
  bool any() const;
  explicit operator ulong() const;
};
simd_vote simd_ballot(bool);
bool simd_all(bool);
bool simd_any(bool);
bool simd_is_first();
enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4 };
constexpr mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(int(a) | int(b)); }
void threadgroup_barrier(mem_flags);
void simdgroup_barrier(mem_flags);

template <class T, int R, int C> struct simdgroup_matrix {
  static_assert(R == 8 && C == 8, "simdgroup matrices are 8 x 8");
  T e[2];
  simdgroup_matrix() = default;
  explicit simdgroup_matrix(T);
  __private vec<T, 2>& thread_elements() __private;
  simdgroup_matrix(const __private simdgroup_matrix&) = default;
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;
template <class T, int R, int C = R> simdgroup_matrix<T, R, C> make_filled_simdgroup_matrix(T);
#define LILY_MATRIX_MEMORY(space)                                                              \
  template <class T>                                                                           \
  void simdgroup_load(__private simdgroup_matrix<T, 8, 8>&, const space T*, ulong = 8, ulong2 = (ulong2)(0), bool = false); \
  template <class T>                                                                           \
  void simdgroup_store(simdgroup_matrix<T, 8, 8>, space T*, ulong = 8, ulong2 = (ulong2)(0), bool = false);
LILY_MATRIX_MEMORY(__global) LILY_MATRIX_MEMORY(__local)
template <class D, class A, class B, class C>
void simdgroup_multiply_accumulate(__private simdgroup_matrix<D, 8, 8>&, simdgroup_matrix<A, 8, 8>,
                                   simdgroup_matrix<B, 8, 8>, simdgroup_matrix<C, 8, 8>);
template <class D, class A, class B>
void simdgroup_multiply(__private simdgroup_matrix<D, 8, 8>&, simdgroup_matrix<A, 8, 8>, simdgroup_matrix<B, 8, 8>);

enum memory_order { memory_order_relaxed };
template <class T> struct atomic {
  static_assert(sizeof(T) == 4, "atomics are 32 bits wide");
  T v;
};
typedef atomic<int> atomic_int;
typedef atomic<uint> atomic_uint;
typedef atomic<float> atomic_float;
template <class T> struct plain { typedef T type; };
#define LILY_ATOMIC_IN(n, space)                                                               \
  template <class T> T n(volatile space atomic<T>*, typename plain<T>::type, memory_order);
#define LILY_ATOMIC(n) LILY_ATOMIC_IN(n, __global) LILY_ATOMIC_IN(n, __local)
LILY_ATOMIC(atomic_fetch_add_explicit) LILY_ATOMIC(atomic_fetch_sub_explicit) LILY_ATOMIC(atomic_fetch_max_explicit)
LILY_ATOMIC(atomic_fetch_min_explicit) LILY_ATOMIC(atomic_fetch_or_explicit) LILY_ATOMIC(atomic_fetch_and_explicit)
LILY_ATOMIC(atomic_fetch_xor_explicit) LILY_ATOMIC(atomic_exchange_explicit)
#define LILY_ATOMIC_OTHER(space)                                                               \
  template <class T> T atomic_load_explicit(const volatile space atomic<T>*, memory_order);    \
  template <class T> void atomic_store_explicit(volatile space atomic<T>*, typename plain<T>::type, memory_order); \
  template <class T>                                                                           \
  bool atomic_compare_exchange_weak_explicit(volatile space atomic<T>*, __private T*, typename plain<T>::type, \
                                             memory_order, memory_order);
LILY_ATOMIC_OTHER(__global) LILY_ATOMIC_OTHER(__local)

} // namespace metal
