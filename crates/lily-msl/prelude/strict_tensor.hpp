// Declarations of Metal 4's tensors for type checking: what kernels here use, with the signatures of <metal_tensor> and of
// MetalPerformancePrimitives' MPPTensorOpsMatMul2d.h. Behind strict.hpp, in units for Metal 4 only.
namespace metal {

template <class T, size_t N> struct array {
  T elements[N];
  T operator[](size_t) const;
};
template <class T> struct own_type { typedef T type; };
template <class T> struct own_type<__global T> { typedef T type; };
template <class T> struct own_type<__local T> { typedef T type; };

// One size of type I for each dimension, innermost first.
template <class I, size_t R> struct dextents;
template <class I> struct dextents<I, 2> {
  explicit dextents(I, I);
  template <class A, class B> dextents(A, B) = delete; // sizes are of the index type itself
};
struct tensor_inline {};
template <int N> struct execution_simdgroups {};

template <class Element, class Extents, class Descriptor> struct tensor;
template <class Element, class I> struct tensor<Element, dextents<I, 2>, tensor_inline> {
  tensor(Element*, const __private dextents<I, 2>&, const __private array<I, 2>&);
};

template <class T, class Coord, int M, int N> struct cooperative_tensor {
  uint16_t get_capacity() const;
  bool is_valid_element(uint16_t) const;
  array<Coord, 2> get_multidimensional_index(uint16_t) const;
  __private T& operator[](uint16_t);
  // Only as what it holds, to device or threadgroup memory.
  void store(const __private tensor<__global T, dextents<Coord, 2>, tensor_inline>&) const;
  void store(const __private tensor<__local T, dextents<Coord, 2>, tensor_inline>&) const;
  // Arrays of them cannot be made, and they are not copied.
  cooperative_tensor(const __private cooperative_tensor&) = default;
  void operator=(const __private cooperative_tensor&) = delete;
};

} // namespace metal
namespace mpp {
namespace tensor_ops {

// What an operation takes and gives, of the rows of the header's table that have no integers.
template <class A, class B, class C> struct supported : metal::bool_constant<false> {};
#define LILY_SUPPORTED(A, B, C) \
  template <> struct supported<A, B, C> : metal::bool_constant<true> {};
LILY_SUPPORTED(half, half, half) LILY_SUPPORTED(half, half, float) LILY_SUPPORTED(half, float, float)
LILY_SUPPORTED(float, half, float) LILY_SUPPORTED(float, float, float) LILY_SUPPORTED(metal::bfloat, metal::bfloat, metal::bfloat)
LILY_SUPPORTED(metal::bfloat, metal::bfloat, float) LILY_SUPPORTED(metal::bfloat, float, float)
LILY_SUPPORTED(float, metal::bfloat, float)
#undef LILY_SUPPORTED

// A template argument: in C++17 an integer stands for the structure that Metal takes as it is.
struct matmul2d_descriptor {
  enum class mode { multiply, multiply_accumulate };
  int m, n, k;
  bool transpose_left, transpose_right, relaxed_precision;
  mode matmul_mode;
  constexpr matmul2d_descriptor(int m_, int n_, int k_ = -1, bool left = false, bool right = false, bool relaxed = false,
                                mode mode_ = mode::multiply)
      : m(m_), n(n_), k(k_), transpose_left(left), transpose_right(right), relaxed_precision(relaxed), matmul_mode(mode_) {}
  constexpr operator long() const { return long(m) | long(n) << 16; }
};

template <long DESCRIPTOR, class Scope> struct matmul2d;
template <long DESCRIPTOR, int S> struct matmul2d<DESCRIPTOR, metal::execution_simdgroups<S>> {
  static constexpr int M = DESCRIPTOR & 0xffff, N = DESCRIPTOR >> 16 & 0xffff;
  static_assert(M % 16 == 0 || N % 16 == 0, "one of a tile's outer dimensions must be a multiple of 16");

  template <class Left, class Right, class T, class Coord = int> metal::cooperative_tensor<T, Coord, M, N> get_destination_cooperative_tensor() const;

  // All three by reference to the thread's own objects: no temporaries. Elements of operands are not const.
  template <class A, class B, class I, class T, class Coord>
  void run(__private metal::tensor<A, metal::dextents<I, 2>, metal::tensor_inline>&,
           __private metal::tensor<B, metal::dextents<I, 2>, metal::tensor_inline>&,
           __private metal::cooperative_tensor<T, Coord, M, N>&) const {
    static_assert(supported<typename metal::own_type<A>::type, typename metal::own_type<B>::type, T>::value,
                  "no operation takes and gives these types");
  }
};

} // namespace tensor_ops
} // namespace mpp
