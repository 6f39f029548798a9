// Metal's threads, collectives, matrices and atomics on CUDA. For NVRTC with -default-device; a simdgroup is a
// warp, and every collective has the full mask: all 32 lanes must come.
#define LILY_FN __forceinline__
#define LILY_TO_HALF(f) (__builtin_is_constant_evaluated() ? float_to_half_bits(f) : lily_to_half(f))
#define LILY_FROM_HALF(b) (__builtin_is_constant_evaluated() ? half_bits_to_float(b) : lily_from_half(b))
#define LILY_TO_BFLOAT(f) (__builtin_is_constant_evaluated() ? float_to_bfloat_bits(f) : lily_to_bfloat(f))
#define LILY_FROM_BFLOAT(b) bfloat_bits_to_float(b)
#define LILY_MATH(name) ::name##f
#define LILY_COPY(to, from, n) memcpy((void*)(to), (const void*)(from), n)
#define LILY_POPCOUNT(x) __popc(x)
#define LILY_CLZ(x) __clz(x)
#define LILY_CTZ(x) (__ffs(x) - 1)
// With LILY_PDL a kernel may have been launched before the one in front of it is complete: it waits, then lets the next
// one be launched (programmatic dependent launch, sm_90 and later).
#if defined(LILY_PDL)
#define LILY_ENTER                                                                                 \
  asm volatile("griddepcontrol.wait;" ::: "memory");                                               \
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#else
#define LILY_ENTER
#endif
static __forceinline__ unsigned short lily_to_half(float f) {
  unsigned short b;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(b) : "f"(f));
  return b;
}
static __forceinline__ float lily_from_half(unsigned short b) {
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(b));
  return f;
}
static __forceinline__ unsigned short lily_to_bfloat(float f) {
  unsigned short b;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(b) : "f"(f));
  return b;
}
extern __shared__ __attribute__((aligned(16))) unsigned char lily_shared[];
#include "swizzles.hpp"
#include "core.hpp"
#include "vector.hpp"
#include "math.hpp"
namespace metal {

LILY_FN uint thread_index() { return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z); }
LILY_FN uint lane_index() {
  uint l;
  asm("mov.u32 %0, %%laneid;" : "=r"(l));
  return l;
}

LILY_FN void threadgroup_barrier(mem_flags) { __syncthreads(); }
LILY_FN void simdgroup_barrier(mem_flags) { __syncwarp(); }

// The value of another lane, for any type.
template <class T> LILY_FN T from_lane(T v, int lane) {
  constexpr int words = (sizeof(T) + 3) / 4;
  uint u[words] = {};
  memcpy(u, &v, sizeof(T));
  for (int i = 0; i < words; i++) u[i] = __shfl_sync(~0u, u[i], lane);
  memcpy(&v, u, sizeof(T));
  return v;
}
#define LILY_REDUCE(name, width, expression)                                                   \
  template <class T> LILY_FN T name(T x) {                                                     \
    for (int o = width / 2; o; o >>= 1) {                                                      \
      T y = from_lane(x, int(lane_index()) ^ o);                                               \
      x = T(expression);                                                                       \
    }                                                                                          \
    return x;                                                                                  \
  }
LILY_REDUCE(simd_sum, 32, x + y)
LILY_REDUCE(simd_product, 32, x * y)
LILY_REDUCE(simd_max, 32, max(x, y))
LILY_REDUCE(simd_min, 32, min(x, y))
LILY_REDUCE(simd_and, 32, x & y)
LILY_REDUCE(simd_or, 32, x | y)
LILY_REDUCE(simd_xor, 32, x ^ y)
LILY_REDUCE(quad_sum, 4, x + y)
LILY_REDUCE(quad_max, 4, max(x, y))
LILY_REDUCE(quad_min, 4, min(x, y))

template <class T> LILY_FN T simd_shuffle(T x, ushort a) { return from_lane(x, a); }
template <class T> LILY_FN T simd_broadcast(T x, ushort a) { return from_lane(x, a); }
template <class T> LILY_FN T simd_broadcast_first(T x) { return from_lane(x, 0); }
template <class T> LILY_FN T simd_shuffle_xor(T x, ushort a) { return from_lane(x, int(lane_index()) ^ int(a)); }
template <class T> LILY_FN T simd_shuffle_up(T x, ushort a) {
  int l = int(lane_index());
  return from_lane(x, l < int(a) ? l : l - int(a));
}
template <class T> LILY_FN T simd_shuffle_down(T x, ushort a) {
  int l = int(lane_index());
  return from_lane(x, l + int(a) > 31 ? l : l + int(a));
}
template <class T> LILY_FN T simd_shuffle_rotate_up(T x, ushort a) {
  return from_lane(x, (int(lane_index()) - int(a)) & 31);
}
template <class T> LILY_FN T simd_shuffle_rotate_down(T x, ushort a) {
  return from_lane(x, (int(lane_index()) + int(a)) & 31);
}
template <class T> LILY_FN T simd_shuffle_and_fill_up(T x, T fill, ushort a) {
  int l = int(lane_index()), j = (l - int(a)) & 31;
  T v = from_lane(x, j), f = from_lane(fill, j);
  return l < int(a) ? f : v;
}
template <class T> LILY_FN T simd_shuffle_and_fill_down(T x, T fill, ushort a) {
  int l = int(lane_index()), j = (l + int(a)) & 31;
  T v = from_lane(x, j), f = from_lane(fill, j);
  return l + int(a) > 31 ? f : v;
}
template <class T> LILY_FN T quad_shuffle_xor(T x, ushort a) { return simd_shuffle_xor(x, a); }
template <class T> LILY_FN T quad_broadcast(T x, ushort a) {
  return from_lane(x, (int(lane_index()) & ~3) + (int(a) & 3));
}
#define LILY_SCAN(name, expression, start)                                                     \
  template <class T> LILY_FN T simd_prefix_inclusive_##name(T x) {                             \
    int l = int(lane_index());                                                                 \
    for (int o = 1; o < 32; o <<= 1) {                                                         \
      T y = from_lane(x, l < o ? l : l - o);                                                   \
      if (l >= o) x = T(expression);                                                           \
    }                                                                                          \
    return x;                                                                                  \
  }                                                                                            \
  template <class T> LILY_FN T simd_prefix_exclusive_##name(T x) {                             \
    T y = simd_shuffle_up(simd_prefix_inclusive_##name(x), 1);                                 \
    return lane_index() == 0 ? T(start) : y;                                                   \
  }
LILY_SCAN(sum, y + x, 0)
LILY_SCAN(product, y * x, 1)

struct simd_vote {
  ulong v;
  LILY_FN explicit simd_vote(ulong x) : v(x) {}
  LILY_FN bool all() const { return v == 0xffffffffu; }
  LILY_FN bool any() const { return v != 0; }
  LILY_FN explicit operator ulong() const { return v; }
};
LILY_FN simd_vote simd_ballot(bool p) { return simd_vote(__ballot_sync(~0u, p)); }
LILY_FN bool simd_all(bool p) { return __all_sync(~0u, p); }
LILY_FN bool simd_any(bool p) { return __any_sync(~0u, p); }
LILY_FN bool simd_is_first() { return lane_index() == 0; }

} // namespace metal
#define LILY_TENSOR_CORES
#include "matrix.hpp"
namespace metal {

template <class T>
LILY_FN void simdgroup_load(simdgroup_matrix<T, 8, 8>& d, const T* p, ulong stride = 8, ulong2 origin = ulong2(0, 0),
                            bool transpose = false) {
  d.load(p, stride, origin, transpose);
}
template <class T>
LILY_FN void simdgroup_store(const simdgroup_matrix<T, 8, 8>& d, T* p, ulong stride = 8, ulong2 origin = ulong2(0, 0),
                             bool transpose = false) {
  d.store(p, stride, origin, transpose);
}
// Matrix products on the tensor cores (PTX ISA, "Warp-level matrix instructions"), shape m16n8k8 with its upper eight
// rows zero. Of the first factor a lane has two neighbours of a row, as in memory; of the second it needs two
// neighbours of a column, so that factor is transposed first, which movmatrix does for 16-bit elements.
LILY_FN uint transposed(uint pair) {
  uint t;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(t) : "r"(pair));
  return t;
}
template <class T> LILY_FN uint packed(const vec<T, 2>& e) {
  ushort x, y;
  memcpy(&x, &e.v[0], 2);
  memcpy(&y, &e.v[1], 2);
  return uint(x) | uint(y) << 16;
}
LILY_FN void tensor_product(float& d0, float& d1, const vec<bfloat, 2>& a, const vec<bfloat, 2>& b) {
  float u0, u1;
  asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %8, %9, %9};"
      : "=f"(d0), "=f"(d1), "=f"(u0), "=f"(u1)
      : "r"(packed(a)), "r"(0), "r"(transposed(packed(b))), "f"(d0), "f"(d1), "f"(0.0f));
}
LILY_FN void tensor_product(float& d0, float& d1, const vec<half, 2>& a, const vec<half, 2>& b) {
  float u0, u1;
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %8, %9, %9};"
      : "=f"(d0), "=f"(d1), "=f"(u0), "=f"(u1)
      : "r"(packed(a)), "r"(0), "r"(transposed(packed(b))), "f"(d0), "f"(d1), "f"(0.0f));
}
// Of an f32 the tensor cores take 11 significant bits, so each is split in two and three of the four products are
// summed, the smallest first: 22 bits, as good as f32 sums are. The order of k is the pairs': any order sums the same.
LILY_FN uint to_tf32(float x) {
  uint t;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(t) : "f"(x));
  return t;
}
LILY_FN void tensor_step(float& d0, float& d1, uint a0, uint a1, uint b0, uint b1) {
  float u0, u1;
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %6, %5, %6}, {%7, %8}, {%9, %10, %11, %11};"
      : "=f"(d0), "=f"(d1), "=f"(u0), "=f"(u1)
      : "r"(a0), "r"(a1), "r"(0), "r"(b0), "r"(b1), "f"(d0), "f"(d1), "f"(0.0f));
}
LILY_FN void tensor_product(float& d0, float& d1, const vec<float, 2>& a, const vec<float, 2>& b) {
  // The transposed second factor: high and low halves of its words each make a matrix of 16-bit elements.
  uint x = __float_as_uint(b.v[0]), y = __float_as_uint(b.v[1]);
  uint low = transposed(__byte_perm(x, y, 0x5410)), high = transposed(__byte_perm(x, y, 0x7632));
  float b0 = __uint_as_float(__byte_perm(low, high, 0x5410)), b1 = __uint_as_float(__byte_perm(low, high, 0x7632));
  uint a0 = to_tf32(a.v[0]), a1 = to_tf32(a.v[1]), c0 = to_tf32(b0), c1 = to_tf32(b1);
  uint a0_rest = to_tf32(a.v[0] - __uint_as_float(a0)), a1_rest = to_tf32(a.v[1] - __uint_as_float(a1));
  uint c0_rest = to_tf32(b0 - __uint_as_float(c0)), c1_rest = to_tf32(b1 - __uint_as_float(c1));
  tensor_step(d0, d1, a0_rest, a1_rest, c0, c1);
  tensor_step(d0, d1, a0, a1, c0_rest, c1_rest);
  tensor_step(d0, d1, a0, a1, c0, c1);
}
template <class D, class A, class C>
LILY_FN void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a,
                                           const simdgroup_matrix<A, 8, 8>& b, const simdgroup_matrix<C, 8, 8>& c) {
  float d0 = float(c.e.v[0]), d1 = float(c.e.v[1]);
  tensor_product(d0, d1, a.e, b.e);
  d.e.v[0] = convert<D>(d0);
  d.e.v[1] = convert<D>(d1);
}
template <class D, class A>
LILY_FN void simdgroup_multiply(simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a,
                                const simdgroup_matrix<A, 8, 8>& b) {
  simdgroup_multiply_accumulate(d, a, b, make_filled_simdgroup_matrix<float, 8, 8>(0.0f));
}

#define LILY_ATOMIC(name, function)                                                            \
  template <class T, class U> LILY_FN T name(volatile atomic<T>* p, U x, memory_order) {       \
    static_assert(sizeof(T) == 4, "atomics are 32 bits wide");                                 \
    return ::function((T*)&p->v, T(x));                                                        \
  }
LILY_ATOMIC(atomic_fetch_add_explicit, atomicAdd)
LILY_ATOMIC(atomic_fetch_or_explicit, atomicOr)
LILY_ATOMIC(atomic_fetch_and_explicit, atomicAnd)
LILY_ATOMIC(atomic_fetch_xor_explicit, atomicXor)
LILY_ATOMIC(atomic_fetch_max_explicit, atomicMax)
LILY_ATOMIC(atomic_fetch_min_explicit, atomicMin)
LILY_ATOMIC(atomic_exchange_explicit, atomicExch)
#undef LILY_ATOMIC
template <class T, class U> LILY_FN T atomic_fetch_sub_explicit(volatile atomic<T>* p, U x, memory_order) {
  return ::atomicAdd((T*)&p->v, T(-T(x)));
}
template <class T> LILY_FN T atomic_load_explicit(const volatile atomic<T>* p, memory_order) { return p->v; }
template <class T, class U> LILY_FN void atomic_store_explicit(volatile atomic<T>* p, U x, memory_order) {
  p->v = T(x);
}
template <class T, class U>
LILY_FN bool atomic_compare_exchange_weak_explicit(volatile atomic<T>* p, T* expected, U desired, memory_order,
                                                   memory_order) {
  T before = ::atomicCAS((T*)&p->v, *expected, T(desired));
  bool same = before == *expected;
  *expected = before;
  return same;
}

struct Pointer {
  void* p;
  template <class T> LILY_FN operator T*() const { return (T*)p; }
};
struct Reference {
  void* p;
  template <class T> LILY_FN operator T&() const { return *(T*)p; }
};
template <class A> LILY_FN A position(uint x, uint y, uint z) {
  if constexpr (is_integral_v<A>)
    return A(x);
  else if constexpr (vec_info<A>::n == 2)
    return A(x, y);
  else
    return A(x, y, z);
}

} // namespace metal
