// Matrix times matrix for prefill: 4 or 8-bit weights dequantised inside the tile (see gemm.metal.h).
//
// Tiles are float where the matrix unit takes floats at full rate (Apple's), half where it wants 16 bits (tensor
// cores): lily_gpu's routes::products says which. The router's products are float always.
#include "gemm.metal.h"
#include "shapes.metal.h"

// y = x W^T, or y += x W^T.
//
// Replaces: dequantisation to memory and up to four products (and the residual addition): up to 9 dispatches.
// Grid: (sum over matrices of ceil(rows / 64), ceil(tokens / ROWS)); threadgroup 128.
// x [tokens, cols] T; y [tokens, stride] f32; w0..b3 the matrices: an absent one is bound to any matrix and not read.
// Rows of W past a matrix's end and tokens past the chunk's repeat the last one and are not stored.
template <typename T, uint ROWS, bool ADD>
[[kernel, max_total_threads_per_threadgroup(TILE_THREADS)]] void gemm(
    device const T* x [[buffer(0)]], device float* y [[buffer(1)]], device const PrefillChunk* chunk [[buffer(2)]],
    constant ProjectShape& shape [[buffer(3)]], device const uint4* w0 [[buffer(4)]],
    device const bfloat* s0 [[buffer(5)]], device const bfloat* b0 [[buffer(6)]], device const uint4* w1 [[buffer(7)]],
    device const bfloat* s1 [[buffer(8)]], device const bfloat* b1 [[buffer(9)]],
    device const uint4* w2 [[buffer(10)]], device const bfloat* s2 [[buffer(11)]],
    device const bfloat* b2 [[buffer(12)]], device const uint4* w3 [[buffer(13)]],
    device const bfloat* s3 [[buffer(14)]], device const bfloat* b3 [[buffer(15)]],
    uint2 tg [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  threadgroup vec<T, 4> input_tile[ROWS * TILE_PITCH / 4];
  threadgroup vec<T, 4> weight_tile[TILE_COLS * TILE_PITCH / 4];
  threadgroup T* inputs = (threadgroup T*)input_tile;
  threadgroup T* weights = (threadgroup T*)weight_tile;
  uint tokens = chunk->tokens, token0 = tg.y * ROWS;
  if (token0 >= tokens) return;
  TilePlace place = tile_place(shape, tg.x);
  uint m = place.matrix, row0 = place.row0, offset = place.offset;
  device const uint4* w = m == 0 ? w0 : m == 1 ? w1 : m == 2 ? w2 : w3;
  device const bfloat* scales = m == 0 ? s0 : m == 1 ? s1 : m == 2 ? s2 : s3;
  device const bfloat* biases = m == 0 ? b0 : m == 1 ? b1 : m == 2 ? b2 : b3;
  uint rows = shape.rows[m], cols = shape.cols;
  bool wide = shape.bits[m] == 8;

  uint token = min(token0 + input_row<ROWS>(tid), tokens - 1), token_column = input_column<ROWS>(tid);
  uint row = min(row0 + tid / 2, rows - 1), row_column = tid % 2 * 16;
  Sums sums[ROWS / 16][4];
  clear_sums<ROWS / 16>(sums);
  TileInputs<T, ROWS> next_inputs = fetch_inputs<T, ROWS>(x, token, cols, token_column);
  TileWeights next_weights = fetch_weights(w, scales, biases, row, cols, row_column, wide);
  for (uint k = 0; k < cols; k += TILE_DEPTH) {
    put_inputs<T, ROWS>(inputs, tid, next_inputs);
    put_weights<T>(weights, tid / 2, row_column, next_weights, wide);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (k + TILE_DEPTH < cols) {
      next_inputs = fetch_inputs<T, ROWS>(x, token, cols, k + TILE_DEPTH + token_column);
      next_weights = fetch_weights(w, scales, biases, row, cols, k + TILE_DEPTH + row_column, wide);
    }
    multiply_step<T, ROWS / 16>(inputs, weights, sums, sg);
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }

  threadgroup float* mine = results_of<T>(weight_tile, sg);
  uint out_row = row0 + sg % 2 * 32 + lane;
  for (uint i = 0; i < ROWS / 16; i++) {
    for (uint j = 0; j < 4; j++) simdgroup_store(sums[i][j], mine + 8 * j, RESULT_PITCH);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    for (uint r = 0; r < 8; r++) {
      uint out_token = token0 + sg / 2 * (ROWS / 2) + 8 * i + r;
      if (out_token < tokens && out_row < rows) {
        uint at = out_token * shape.stride + offset + out_row;
        float v = mine[r * RESULT_PITCH + lane] * (1.0f / weight_unit<T>());
        y[at] = ADD ? y[at] + v : v;
      }
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
  }
}
#define GEMM(name, in, rows, add) \
  template [[host_name(name #rows)]] [[kernel]] decltype(gemm<in, rows, add>) gemm<in, rows, add>;
GEMM("gemm_", half, 32, false)
GEMM("gemm_", half, 64, false)
GEMM("gemm_add_", half, 32, true)
GEMM("gemm_add_", half, 64, true)
GEMM("gemm_float_", float, 32, false)
GEMM("gemm_float_", float, 64, false)
GEMM("gemm_float_add_", float, 32, true)
GEMM("gemm_float_add_", float, 64, true)
