// Metal 4's tensor operations on the soft device: the part that kernels here use. Operands are rows in memory whose elements
// are neighbours, the left one not transposed, the right one transposed; sums are a cooperative tensor over all simdgroups of
// the threadgroup. Behind soft.hpp, in units for Metal 4 only.
//
// Harsher than a GPU need be: a cooperative tensor is NaN when it is made, and every thread has an element that is none of the
// tile's; an operand smaller than the tile is a fault; all threads must come to an operation, and none of its accesses are
// ordered before or behind it but by the kernel's own barriers.
namespace metal {

template <class I, size_t R> struct dextents {
  I sizes[R];
  template <class... A> LILY_FN explicit dextents(A... a) : sizes{I(a)...} {
    static_assert(sizeof...(A) == R, "a size for each dimension");
  }
};
struct tensor_inline {};
template <int N> struct execution_simdgroups {};

// Element (i, j) stands at data[i * strides[0] + j * strides[1]].
template <class T, class Extents, class Descriptor> struct tensor;
template <class T> struct tensor<T, dextents<int, 2>, tensor_inline> {
  T* data;
  int sizes[2], strides[2];
  LILY_FN tensor(T* p, const dextents<int, 2>& e, const array<int, 2>& s)
      : data(p), sizes{e.sizes[0], e.sizes[1]}, strides{s[0], s[1]} {}
};

// An M x N tile over S simdgroups: fragments of 16 x 16 go to the simdgroups in turn, 8 elements of each to a lane.
template <class T, int M, int N, int S> struct cooperative_tensor {
  static_assert(M % 16 == 0 && N % 16 == 0, "the soft device has tiles of whole 16 x 16 fragments");
  static constexpr int ACROSS = N / 16, FRAGMENTS = M / 16 * ACROSS, OWN = (FRAGMENTS + S - 1) / S;
  // The last element is never valid.
  T elements[OWN * 8 + 1];

  LILY_FN static ushort get_capacity() { return OWN * 8 + 1; }
  LILY_FN static bool valid(uint simdgroup, int i) { return i < OWN * 8 && int(simdgroup) + i / 8 * S < FRAGMENTS; }
  LILY_FN bool is_valid_element(int i) const { return valid(lily_thread()->simdgroup, i); }
  // Row and column of a lane's element in the tile.
  LILY_FN static int row(uint simdgroup, uint lane, int i) {
    return (int(simdgroup) + i / 8 * S) / ACROSS * 16 + int((lane >> 2 & 4) | (lane >> 1 & 3)) + (i % 8 >> 2) * 8;
  }
  LILY_FN static int column(uint simdgroup, uint lane, int i) {
    return (int(simdgroup) + i / 8 * S) % ACROSS * 16 + int((lane >> 2 & 2) | (lane & 1)) * 4 + i % 4;
  }
  // Column, then row; of an element that is not valid a place outside every tile.
  LILY_FN array<int, 2> get_multidimensional_index(int i) const {
    const LilyThread* t = lily_thread();
    bool v = valid(t->simdgroup, i);
    return array<int, 2>{v ? column(t->simdgroup, t->lane, i) : -1, v ? row(t->simdgroup, t->lane, i) : -1};
  }
  LILY_FN T& operator[](int i) { return elements[i]; }
  LILY_FN const T& operator[](int i) const { return elements[i]; }

  // What lies outside the tensor is not stored.
  template <class U> LILY_FN void store_at(Site site, const tensor<U, dextents<int, 2>, tensor_inline>& to) const {
    static_assert(is_same_v<T, U>, "a cooperative tensor is stored as what it holds");
    lily_scope(S, site.id);
    for (int i = 0; i < OWN * 8; i++) {
      if (!is_valid_element(i)) continue;
      array<int, 2> at = get_multidimensional_index(i);
      if (at[0] < to.sizes[0] && at[1] < to.sizes[1]) to.data[at[0] * to.strides[0] + at[1] * to.strides[1]] = elements[i];
    }
  }
};

} // namespace metal
namespace mpp {
namespace tensor_ops {
using metal::array;
using metal::dextents;
using metal::half;
using metal::Site;
using metal::tensor;
using metal::tensor_inline;
using metal::uint;

// A template argument: in C++17 an integer stands for the structure that Metal takes as it is.
struct matmul2d_descriptor {
  enum class mode { multiply, multiply_accumulate };
  int m, n, k;
  bool transpose_left, transpose_right, relaxed_precision;
  mode matmul_mode;
  constexpr matmul2d_descriptor(int m_, int n_, int k_, bool left = false, bool right = false, bool relaxed = false,
                                mode mode_ = mode::multiply)
      : m(m_), n(n_), k(k_), transpose_left(left), transpose_right(right), relaxed_precision(relaxed), matmul_mode(mode_) {}
  constexpr operator long() const {
    return long(m) | long(n) << 16 | long(k) << 32 | long(transpose_left) << 48 | long(transpose_right) << 49 |
           long(relaxed_precision) << 50 | long(matmul_mode == mode::multiply_accumulate) << 51;
  }
};

template <class A, class B, class C> struct operands {
  const A* a;
  const B* b;
  C* c;
};

// A simdgroup's part of the product, added to its sums in order of k. Reads what announce() has told of.
template <int M, int N, int K, bool ADD, class A, class B, class C> LILY_NOINLINE void multiply(void** slots, uint mask) {
  typedef float floats __attribute__((vector_size(32)));
  typedef operands<A, B, C> Operands;
  // All lanes are here: the threadgroup's barrier has opened.
  (void)mask;
  const A& a = *((Operands*)slots[0])->a;
  const B& b = *((Operands*)slots[0])->b;
  float left[M][K];
  floats right[K][N / 8];
  for (int r = 0; r < M; r++)
    for (int k = 0; k < K; k++) left[r][k] = float(a.data[k + r * a.strides[1]]);
  for (int c = 0; c < N; c++)
    for (int k = 0; k < K; k++) right[k][c / 8][c % 8] = float(b.data[k + c * b.strides[1]]);
  uint simdgroup = lily_thread()->simdgroup;
  for (int f = 0; f < C::OWN; f++) {
    if (!C::valid(simdgroup, f * 8)) continue;
    float sums[16][16];
    int row0 = C::row(simdgroup, 0, f * 8), column0 = C::column(simdgroup, 0, f * 8);
    auto own = [&](uint l, int i) -> float& {
      return sums[C::row(simdgroup, l, i) - row0][C::column(simdgroup, l, i) - column0];
    };
    for (uint l = 0; l < 32; l++)
      for (int i = f * 8; i < f * 8 + 8; i++) own(l, i) = ADD ? (*((Operands*)slots[l])->c)[i] : 0.0f;
    for (int r = 0; r < 16; r++)
      for (int c = 0; c < 16; c += 8) {
        floats sum;
        __builtin_memcpy(&sum, &sums[r][c], sizeof sum);
        for (int k = 0; k < K; k++) sum += left[row0 + r][k] * right[k][(column0 + c) / 8];
        __builtin_memcpy(&sums[r][c], &sum, sizeof sum);
      }
    for (uint l = 0; l < 32; l++)
      for (int i = f * 8; i < f * 8 + 8; i++) (*((Operands*)slots[l])->c)[i] = own(l, i);
  }
}

// Any thread may read any element, so every row is read by two threads of different simdgroups: whoever writes it without a
// barrier collides with one of them.
template <class T> LILY_FN void announce(const tensor<T, dextents<int, 2>, tensor_inline>& t, int first, int rows, int k, int threads) {
  for (int r = 0; r < rows; r++) {
    int of = (first + r) % threads, me = int(lily_thread()->index);
    if (me == of || me == (of + threads / 2) % threads) lily_read(t.data + r * t.strides[1], uint(k * sizeof(T)));
  }
}

template <long DESCRIPTOR, class Scope> struct matmul2d;
template <long DESCRIPTOR, int S> struct matmul2d<DESCRIPTOR, metal::execution_simdgroups<S>> {
  static constexpr int M = DESCRIPTOR & 0xffff, N = DESCRIPTOR >> 16 & 0xffff, K = DESCRIPTOR >> 32 & 0xffff;
  static constexpr bool ADD = DESCRIPTOR >> 51 & 1;
  static_assert((DESCRIPTOR >> 48 & 3) == 2, "the soft device multiplies by the transposed right operand only");
  static_assert(K > 0, "the soft device needs the tile's depth in the descriptor");

  template <class A, class B, class T> LILY_FN metal::cooperative_tensor<T, M, N, S> get_destination_cooperative_tensor() const {
    metal::cooperative_tensor<T, M, N, S> c;
    __builtin_memset((void*)&c, 0xff, sizeof c);
    return c;
  }

  template <class A, class B, class T> LILY_FN void run_at(Site site, A& left, B& right, metal::cooperative_tensor<T, M, N, S>& c) const {
    if (left.sizes[0] < K || left.sizes[1] < M || left.strides[0] != 1)
      lily_bad_operand("left", left.sizes, left.strides, K, M, site.id);
    if (right.sizes[0] < K || right.sizes[1] < N || right.strides[0] != 1)
      lily_bad_operand("right", right.sizes, right.strides, K, N, site.id);
    lily_scope(S, site.id);
    announce(left, 0, M, K, S * 32);
    announce(right, M, N, K, S * 32);
    lily_scope(S, site.id);
    operands<A, B, metal::cooperative_tensor<T, M, N, S>> slot{&left, &right, &c};
    lily_collective(multiply<M, N, K, ADD, A, B, metal::cooperative_tensor<T, M, N, S>>, &slot, site.id);
  }
};

} // namespace tensor_ops
} // namespace mpp
