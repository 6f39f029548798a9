// Rows of the residual stream on their way into prefill's matrix products, and the last one's way to the logits.
#include "shapes.metal.h"

constant constexpr uint ROW_SIMDGROUPS = 4;

struct RowsShape {
  uint cols;  // a multiple of 4
  float eps;  // of the RMSNorm
};

// The RMSNorm's factor of a row (arXiv:1910.07467), for a whole threadgroup.
inline float row_factor(device const float4* x, uint cols, float eps, uint tid, uint sg, uint lane,
                        threadgroup float* parts) {
  float squares = 0.0f;
  for (uint i = tid; i < cols / 4; i += ROW_SIMDGROUPS * 32) squares += dot(x[i], x[i]);
  squares = simd_sum(squares);
  if (lane == 0) parts[sg] = squares;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float total = 0.0f;
  for (uint i = 0; i < ROW_SIMDGROUPS; i++) total += parts[i];
  return precise::rsqrt(total / float(cols) + eps);
}

// y = rmsnorm(residual), as the matrix unit takes it: T is half or float.
//
// Replaces: the RMSNorm of a chunk and its conversion. Grid: (tokens); threadgroup 128: one row.
// residual [tokens, cols] f32; gain [cols] bfloat; y [tokens, cols] T.
template <typename T>
[[kernel, max_total_threads_per_threadgroup(ROW_SIMDGROUPS * 32)]] void norm_rows(
    device const float4* residual [[buffer(0)]], device const bfloat4* gain [[buffer(1)]],
    device vec<T, 4>* y [[buffer(2)]], device const PrefillChunk* chunk [[buffer(3)]],
    constant RowsShape& shape [[buffer(4)]], uint token [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]], uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float parts[ROW_SIMDGROUPS];
  if (token >= chunk->tokens) return;
  device const float4* x = residual + token * (shape.cols / 4);
  float factor = row_factor(x, shape.cols, shape.eps, tid, sg, lane, parts);
  for (uint i = tid; i < shape.cols / 4; i += ROW_SIMDGROUPS * 32)
    y[token * (shape.cols / 4) + i] = vec<T, 4>(fit4<T>(x[i] * factor * float4(gain[i])));
}
template [[host_name("norm_rows")]] [[kernel]] decltype(norm_rows<half>) norm_rows<half>;
template [[host_name("norm_rows_float")]] [[kernel]] decltype(norm_rows<float>) norm_rows<float>;

// As halves, and the unrounded rows for the router: exact [tokens, cols] f32.
[[kernel, max_total_threads_per_threadgroup(ROW_SIMDGROUPS * 32)]] void norm_rows_exact(
    device const float4* residual [[buffer(0)]], device const bfloat4* gain [[buffer(1)]],
    device half4* y [[buffer(2)]], device float4* exact [[buffer(3)]], device const PrefillChunk* chunk [[buffer(4)]],
    constant RowsShape& shape [[buffer(5)]], uint token [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]], uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float parts[ROW_SIMDGROUPS];
  if (token >= chunk->tokens) return;
  device const float4* x = residual + token * (shape.cols / 4);
  float factor = row_factor(x, shape.cols, shape.eps, tid, sg, lane, parts);
  for (uint i = tid; i < shape.cols / 4; i += ROW_SIMDGROUPS * 32) {
    float4 v = x[i] * factor * float4(gain[i]);
    y[token * (shape.cols / 4) + i] = half4(fit4<half>(v));
    exact[token * (shape.cols / 4) + i] = v;
  }
}

// The chunk's last row alone, where the decode kernels find it: y [cols] f32.
// Grid: (ceil(cols / 128)); threadgroup 32. eps is not used.
kernel void last_row(device const float4* residual [[buffer(0)]], device float4* y [[buffer(1)]],
                     device const PrefillChunk* chunk [[buffer(2)]], constant RowsShape& shape [[buffer(3)]],
                     uint tg [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]]) {
  uint i = tg * 32 + lane;
  if (i < shape.cols / 4) y[i] = residual[(chunk->tokens - 1) * (shape.cols / 4) + i];
}
