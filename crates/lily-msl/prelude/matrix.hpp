// The 8 x 8 matrix a simdgroup holds: every lane has two neighbouring elements of one row. Which lane has which is
// nobody's business but the device's.
namespace metal {

#if defined(LILY_TENSOR_CORES)
// As the tensor cores have their accumulators.
LILY_FN uint matrix_row(uint lane) { return lane / 4; }
LILY_FN uint matrix_column(uint lane) { return lane % 4 * 2; }
#else
LILY_FN uint matrix_row(uint lane) { return (lane / 4 & 4) + lane / 2 % 4; }
LILY_FN uint matrix_column(uint lane) { return (lane / 4 & 2) * 2 + lane % 2 * 2; }
#endif

template <class T, int R, int C> struct simdgroup_matrix {
  static_assert(R == 8 && C == 8, "simdgroup matrices are 8 x 8");
  vec<T, 2> e;
  simdgroup_matrix() = default;
  // A diagonal matrix, as in Metal.
  LILY_FN explicit simdgroup_matrix(T v) {
    uint r = matrix_row(lane_index()), c = matrix_column(lane_index());
    e.v[0] = r == c ? v : T(0);
    e.v[1] = r == c + 1 ? v : T(0);
  }
  LILY_FN vec<T, 2>& thread_elements() { return e; }
  LILY_FN const vec<T, 2>& thread_elements() const { return e; }
  LILY_FN static ulong at(int k, ulong stride, ulong2 origin, bool transpose) {
    uint r = matrix_row(lane_index()), c = matrix_column(lane_index()) + k;
    return (origin.y + (transpose ? c : r)) * stride + origin.x + (transpose ? r : c);
  }
  LILY_FN void load(const T* p, ulong stride, ulong2 origin, bool transpose) {
    for (int k = 0; k < 2; k++) e.v[k] = p[at(k, stride, origin, transpose)];
  }
  LILY_FN void store(T* p, ulong stride, ulong2 origin, bool transpose) const {
    for (int k = 0; k < 2; k++) p[at(k, stride, origin, transpose)] = e.v[k];
  }
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;
template <class T, int R, int C = R> LILY_FN simdgroup_matrix<T, R, C> make_filled_simdgroup_matrix(T v) {
  simdgroup_matrix<T, R, C> m;
  m.e = vec<T, 2>(v);
  return m;
}

} // namespace metal
