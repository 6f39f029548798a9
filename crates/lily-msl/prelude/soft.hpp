// Metal's threads, collectives, matrices and atomics on the soft device. Collectives end in _at and take the place
// in the source first: the front end writes both.
#include "soft_abi.h"
#define LILY_FN inline __attribute__((always_inline))
#define LILY_TO_HALF(f) float_to_half_bits(f)
#define LILY_FROM_HALF(b) half_bits_to_float(b)
#define LILY_TO_BFLOAT(f) float_to_bfloat_bits(f)
#define LILY_FROM_BFLOAT(b) bfloat_bits_to_float(b)
#define LILY_MATH(name) __builtin_##name##f
#define LILY_COPY(to, from, n) __builtin_memcpy((void*)(to), (const void*)(from), n)
#define LILY_POPCOUNT(x) __builtin_popcount(x)
#define LILY_CLZ(x) __builtin_clz(x)
#define LILY_CTZ(x) __builtin_ctz(x)
#include "swizzles.hpp"
#include "core.hpp"
#include "vector.hpp"
#include "math.hpp"
// Not inlined, so that the instrumentation leaves what happens inside alone.
#define LILY_NOINLINE __attribute__((noinline, no_sanitize("thread"))) inline
namespace metal {

struct Site { unsigned id; };

LILY_FN void threadgroup_barrier_at(Site s, mem_flags f) { lily_barrier(unsigned(f), s.id); }
LILY_FN void simdgroup_barrier_at(Site s, mem_flags f) { lily_simd_barrier(unsigned(f), s.id); }

// A lane's argument and result.
template <class T> struct lane_slot {
  T in, out;
  uint a;
};
// What a lane reads from one that takes no part: NaN for floats.
template <class T> LILY_FN T poison() {
  T t;
  __builtin_memset((void*)&t, 0xff, sizeof t);
  return t;
}

struct op_add {
  template <class T> static T f(T a, T b) { return T(a + b); }
};
struct op_mul {
  template <class T> static T f(T a, T b) { return T(a * b); }
};
struct op_max {
  template <class T> static T f(T a, T b) { return max(a, b); }
};
struct op_min {
  template <class T> static T f(T a, T b) { return min(a, b); }
};
struct op_and {
  template <class T> static T f(T a, T b) { return T(a & b); }
};
struct op_or {
  template <class T> static T f(T a, T b) { return T(a | b); }
};
struct op_xor {
  template <class T> static T f(T a, T b) { return T(a ^ b); }
};

// Reduces over groups of `width` lanes as a butterfly does: lane i with lane i + width/2 first. Absent lanes are
// left out.
template <class T, class F, int width> LILY_NOINLINE void reduce(void** s, uint mask) {
  T v[32];
  bool has[32];
  for (int i = 0; i < 32; i++)
    if ((has[i] = mask >> i & 1)) v[i] = ((lane_slot<T>*)s[i])->in;
  for (int o = width / 2; o; o >>= 1)
    for (int i = 0; i < 32; i++)
      if (i % width < o && has[i + o]) {
        v[i] = has[i] ? F::f(v[i], v[i + o]) : v[i + o];
        has[i] = true;
      }
  for (int i = 0; i < 32; i++)
    if (mask >> i & 1) ((lane_slot<T>*)s[i])->out = v[i / width * width];
}
#define LILY_REDUCE(name, F, width)                                                            \
  template <class T> LILY_FN T name##_at(Site site, T x) {                               \
    lane_slot<T> s;                                                                            \
    s.in = x;                                                                                  \
    lily_collective(reduce<T, F, width>, &s, site.id);                                         \
    return s.out;                                                                              \
  }
LILY_REDUCE(simd_sum, op_add, 32)
LILY_REDUCE(simd_product, op_mul, 32)
LILY_REDUCE(simd_max, op_max, 32)
LILY_REDUCE(simd_min, op_min, 32)
LILY_REDUCE(simd_and, op_and, 32)
LILY_REDUCE(simd_or, op_or, 32)
LILY_REDUCE(simd_xor, op_xor, 32)
LILY_REDUCE(quad_sum, op_add, 4)
LILY_REDUCE(quad_max, op_max, 4)
LILY_REDUCE(quad_min, op_min, 4)

template <class T, class F, bool inclusive> LILY_NOINLINE void scan(void** s, uint mask) {
  T sum = T(is_same_v<F, op_mul> ? 1 : 0);
  for (int i = 0; i < 32; i++)
    if (mask >> i & 1) {
      lane_slot<T>* p = (lane_slot<T>*)s[i];
      if (!inclusive) p->out = sum;
      sum = F::f(sum, p->in);
      if (inclusive) p->out = sum;
    }
}
#define LILY_SCAN(name, F, inclusive)                                                          \
  template <class T> LILY_FN T name##_at(Site site, T x) {                               \
    lane_slot<T> s;                                                                            \
    s.in = x;                                                                                  \
    lily_collective(scan<T, F, inclusive>, &s, site.id);                                       \
    return s.out;                                                                              \
  }
LILY_SCAN(simd_prefix_inclusive_sum, op_add, true)
LILY_SCAN(simd_prefix_exclusive_sum, op_add, false)
LILY_SCAN(simd_prefix_inclusive_product, op_mul, true)
LILY_SCAN(simd_prefix_exclusive_product, op_mul, false)

// The lane that lane i reads from.
enum Shuffle { FROM, XOR, UP, DOWN, ROTATE_UP, ROTATE_DOWN, FIRST, QUAD };
template <class T, int kind> LILY_NOINLINE void shuffle(void** s, uint mask) {
  int first = __builtin_ctz(mask);
  for (int i = 0; i < 32; i++) {
    if (!(mask >> i & 1)) continue;
    lane_slot<T>* p = (lane_slot<T>*)s[i];
    int a = int(p->a);
    int j = kind == FROM          ? a
            : kind == XOR         ? i ^ a
            : kind == UP          ? i - a
            : kind == DOWN        ? i + a
            : kind == ROTATE_UP   ? (i - a) & 31
            : kind == ROTATE_DOWN ? (i + a) & 31
            : kind == QUAD        ? (i & ~3) + (a & 3)
                                  : first;
    bool there = j >= 0 && j < 32 && (mask >> j & 1);
    // Up and down past the end give the lane's own value; reading an absent lane gives poison.
    p->out = there ? ((lane_slot<T>*)s[j])->in : (kind == UP || kind == DOWN) && (j < 0 || j > 31) ? p->in : poison<T>();
  }
}
#define LILY_SHUFFLE(name, kind)                                                               \
  template <class T> LILY_FN T name##_at(Site site, T x, ushort a) {                     \
    lane_slot<T> s;                                                                            \
    s.in = x;                                                                                  \
    s.a = a;                                                                                   \
    lily_collective(shuffle<T, kind>, &s, site.id);                                            \
    return s.out;                                                                              \
  }
LILY_SHUFFLE(simd_shuffle, FROM)
LILY_SHUFFLE(simd_broadcast, FROM)
LILY_SHUFFLE(simd_shuffle_xor, XOR)
LILY_SHUFFLE(simd_shuffle_up, UP)
LILY_SHUFFLE(simd_shuffle_down, DOWN)
LILY_SHUFFLE(simd_shuffle_rotate_up, ROTATE_UP)
LILY_SHUFFLE(simd_shuffle_rotate_down, ROTATE_DOWN)
LILY_SHUFFLE(quad_shuffle_xor, XOR)
LILY_SHUFFLE(quad_broadcast, QUAD)
template <class T> LILY_FN T simd_broadcast_first_at(Site site, T x) {
  lane_slot<T> s;
  s.in = x;
  s.a = 0;
  lily_collective(shuffle<T, FIRST>, &s, site.id);
  return s.out;
}

template <class T> struct fill_slot {
  T in, fill, out;
  int a;
};
template <class T, bool up> LILY_NOINLINE void shuffle_fill(void** s, uint mask) {
  for (int i = 0; i < 32; i++) {
    if (!(mask >> i & 1)) continue;
    fill_slot<T>* p = (fill_slot<T>*)s[i];
    int j = up ? i - p->a : i + p->a, k = j & 31;
    p->out = !(mask >> k & 1) ? poison<T>() : j == k ? ((fill_slot<T>*)s[k])->in : ((fill_slot<T>*)s[k])->fill;
  }
}
template <class T> LILY_FN T simd_shuffle_and_fill_up_at(Site site, T x, T fill, ushort a) {
  fill_slot<T> s;
  s.in = x;
  s.fill = fill;
  s.a = a;
  lily_collective(shuffle_fill<T, true>, &s, site.id);
  return s.out;
}
template <class T> LILY_FN T simd_shuffle_and_fill_down_at(Site site, T x, T fill, ushort a) {
  fill_slot<T> s;
  s.in = x;
  s.fill = fill;
  s.a = a;
  lily_collective(shuffle_fill<T, false>, &s, site.id);
  return s.out;
}

LILY_NOINLINE void ballot(void** s, uint mask) {
  uint b = 0;
  for (int i = 0; i < 32; i++)
    if (mask >> i & 1 && ((lane_slot<uint>*)s[i])->in) b |= 1u << i;
  for (int i = 0; i < 32; i++)
    if (mask >> i & 1) {
      ((lane_slot<uint>*)s[i])->out = b;
      ((lane_slot<uint>*)s[i])->a = mask;
    }
}
LILY_FN lane_slot<uint> vote(Site site, bool p) {
  lane_slot<uint> s;
  s.in = p;
  lily_collective(ballot, &s, site.id);
  return s;
}
struct simd_vote {
  ulong v;
  explicit simd_vote(ulong x) : v(x) {}
  bool all() const { return v == 0xffffffffu; }
  bool any() const { return v != 0; }
  explicit operator ulong() const { return v; }
};
LILY_FN simd_vote simd_ballot_at(Site site, bool p) { return simd_vote(vote(site, p).out); }
LILY_FN bool simd_any_at(Site site, bool p) { return vote(site, p).out != 0; }
LILY_FN bool simd_all_at(Site site, bool p) {
  lane_slot<uint> s = vote(site, p);
  return s.out == s.a;
}
LILY_FN bool simd_is_first_at(Site site) { return lily_thread()->lane == uint(__builtin_ctz(vote(site, true).a)); }

LILY_FN uint lane_index() { return lily_thread()->lane; }

} // namespace metal
#include "matrix.hpp"
namespace metal {

// D = A B + C over the simdgroup, float accumulation in order of k.
template <class D, class A, class B, class C> struct product_slot {
  vec<D, 2>* d;
  const vec<A, 2>* a;
  const vec<B, 2>* b;
  const vec<C, 2>* c;
};
template <class D, class A, class B, class C> LILY_NOINLINE void product(void** s, uint mask) {
  float a[8][8], b[8][8], d[8][8];
  for (uint l = 0; l < 32; l++) {
    uint r = matrix_row(l), q = matrix_column(l);
    for (int k = 0; k < 2; k++) {
      product_slot<D, A, B, C>* m = (product_slot<D, A, B, C>*)s[l];
      bool there = mask >> l & 1;
      a[r][q + k] = there ? float(m->a->v[k]) : poison<float>();
      b[r][q + k] = there ? float(m->b->v[k]) : poison<float>();
      d[r][q + k] = !there ? poison<float>() : m->c ? float(m->c->v[k]) : 0.0f;
    }
  }
  for (int i = 0; i < 8; i++)
    for (int k = 0; k < 8; k++)
      for (int j = 0; j < 8; j++) d[i][j] += a[i][k] * b[k][j];
  for (uint l = 0; l < 32; l++)
    if (mask >> l & 1)
      for (int k = 0; k < 2; k++)
        ((product_slot<D, A, B, C>*)s[l])->d->v[k] = convert<D>(d[matrix_row(l)][matrix_column(l) + k]);
}
template <class D, class A, class B, class C>
LILY_FN void simdgroup_multiply_accumulate_at(Site site, simdgroup_matrix<D, 8, 8>& d,
                                                    const simdgroup_matrix<A, 8, 8>& a,
                                                    const simdgroup_matrix<B, 8, 8>& b,
                                                    const simdgroup_matrix<C, 8, 8>& c) {
  vec<D, 2> out;
  product_slot<D, A, B, C> m{&out, &a.e, &b.e, &c.e};
  lily_collective(product<D, A, B, C>, &m, site.id);
  d.e = out;
}
template <class D, class A, class B>
LILY_FN void simdgroup_multiply_at(Site site, simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a,
                                         const simdgroup_matrix<B, 8, 8>& b) {
  vec<D, 2> out;
  product_slot<D, A, B, D> m{&out, &a.e, &b.e, 0};
  lily_collective(product<D, A, B, D>, &m, site.id);
  d.e = out;
}
// Loading and storing need all lanes, but order no memory: that is the barriers' business.
LILY_NOINLINE void together(void**, uint) {}
template <class T>
LILY_FN void simdgroup_load_at(Site site, simdgroup_matrix<T, 8, 8>& d, const T* p, ulong stride = 8,
                               ulong2 origin = ulong2(0, 0), bool transpose = false) {
  lily_collective(together, 0, site.id);
  d.load(p, stride, origin, transpose);
}
template <class T>
LILY_FN void simdgroup_store_at(Site site, const simdgroup_matrix<T, 8, 8>& d, T* p, ulong stride = 8,
                                ulong2 origin = ulong2(0, 0), bool transpose = false) {
  lily_collective(together, 0, site.id);
  d.store(p, stride, origin, transpose);
}

// ---- atomics: fibers change only at collectives, so plain operations are atomic

#define LILY_ATOMIC(name, expression)                                                          \
  template <class T, class U> LILY_NOINLINE T name(volatile atomic<T>* p, U operand, memory_order) { \
    static_assert(sizeof(T) == 4, "atomics are 32 bits wide");                                 \
    lily_atomic(p, 4, true);                                                                   \
    T old = p->v, x = T(operand);                                                              \
    p->v = T(expression);                                                                      \
    return old;                                                                                \
  }
LILY_ATOMIC(atomic_fetch_add_explicit, old + x)
LILY_ATOMIC(atomic_fetch_sub_explicit, old - x)
LILY_ATOMIC(atomic_fetch_or_explicit, old | x)
LILY_ATOMIC(atomic_fetch_and_explicit, old & x)
LILY_ATOMIC(atomic_fetch_xor_explicit, old ^ x)
LILY_ATOMIC(atomic_fetch_max_explicit, old < x ? x : old)
LILY_ATOMIC(atomic_fetch_min_explicit, x < old ? x : old)
LILY_ATOMIC(atomic_exchange_explicit, x)
template <class T> LILY_NOINLINE T atomic_load_explicit(const volatile atomic<T>* p, memory_order) {
  lily_atomic(p, 4, false);
  return p->v;
}
template <class T, class U> LILY_NOINLINE void atomic_store_explicit(volatile atomic<T>* p, U x, memory_order) {
  lily_atomic(p, 4, true);
  p->v = T(x);
}
template <class T, class U>
LILY_NOINLINE bool atomic_compare_exchange_weak_explicit(volatile atomic<T>* p, T* expected, U desired, memory_order,
                                                         memory_order) {
  lily_atomic(p, 4, true);
  if (p->v == *expected) {
    p->v = T(desired);
    return true;
  }
  *expected = p->v;
  return false;
}

// ---- arguments

// A pointer argument, and a reference to inline bytes, of whatever type the parameter has.
struct Pointer {
  void* p;
  template <class T> operator T*() const { return (T*)p; }
};
struct Reference {
  void* p;
  template <class T> operator T&() const { return *(T*)p; }
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
