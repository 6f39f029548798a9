// Prefill's products on Metal 4's tensor operations, which the GPUs of M5 and later run on matrix units of their own.
//
// The same products as gemm's and the experts' on simdgroup matrices, with the same grids and arguments; lily_gpu's
// routes::tensor_tiles says which run. Inputs come as f32 and become halves in threadgroup memory, as weights do
// (weight_unit); sums are f32. The operands are tensors over threadgroup memory: no kernel takes a tensor as an argument, and
// no result depends on how a cooperative tensor is laid out.
//
// Not part of a library for Metal 3: its compiler has no tensors.
#if __METAL_VERSION__ >= 400
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
#include "gemm.metal.h"

// Floats between two rows of results: neighbouring rows begin in different banks.
constant constexpr uint TENSOR_PITCH = TILE_COLS + 4;

typedef tensor<threadgroup half, dextents<int32_t, 2>, tensor_inline> TileOperand;
typedef tensor<threadgroup float, dextents<int32_t, 2>, tensor_inline> TileResults;

// Rows of TILE_DEPTH halves. A tensor's first dimension is the one whose elements are neighbours.
inline TileOperand tile_operand(threadgroup half* rows, uint count) {
  return TileOperand(rows, dextents<int32_t, 2>(int(TILE_DEPTH), int(count)), array<int32_t, 2>{1, int(TILE_PITCH)});
}

// A cooperative tensor holds anything when it is made. Not every element that a thread has need be one of the tile.
template <typename S> inline void clear_tensor(thread S& sums) {
#pragma unroll
  for (ushort i = 0; i < sums.get_capacity(); i++)
    if (sums.is_valid_element(i)) sums[i] = 0.0f;
}

template <uint ROWS> inline void put_halves(threadgroup half* tile, uint tid, thread const TileInputs<float, ROWS>& t) {
  threadgroup half4* to = (threadgroup half4*)(tile + input_row<ROWS>(tid) * TILE_PITCH + input_column<ROWS>(tid));
  for (uint j = 0; j < ROWS / 16; j++) to[j] = half4(fit4<half>(t.v[j]));
}

// All columns of a tile. `source` is the thread's row of x, `row` its row of the matrix's tensor (two threads have one, 16
// columns each). Leaves weight_unit times the results in `tile`, TENSOR_PITCH floats a row, ready to be read; before that the
// operands stand there.
template <uint ROWS>
inline void multiply_tile(device const float* x, uint source, uint cols, TileMatrix m, uint row, bool wide,
                          threadgroup float4* tile, uint tid) {
  static_assert(ROWS * TENSOR_PITCH * sizeof(float) >= (ROWS + TILE_COLS) * TILE_PITCH * sizeof(half),
                "the operands need the results' room");
  threadgroup half* inputs = (threadgroup half*)tile;
  threadgroup half* weights = inputs + ROWS * TILE_PITCH;
  TileOperand left = tile_operand(inputs, ROWS), right = tile_operand(weights, TILE_COLS);
  // ROWS inputs times TILE_COLS weight rows, TILE_DEPTH columns of both, added to the sums by all four simdgroups together.
  constexpr auto descriptor = mpp::tensor_ops::matmul2d_descriptor(
      ROWS, TILE_COLS, TILE_DEPTH, false, true, false, mpp::tensor_ops::matmul2d_descriptor::mode::multiply_accumulate);
  mpp::tensor_ops::matmul2d<descriptor, execution_simdgroups<TILE_SIMDGROUPS>> product;
  auto sums = product.template get_destination_cooperative_tensor<TileOperand, TileOperand, float>();
  clear_tensor(sums);

  uint source_column = input_column<ROWS>(tid), row_column = tid % 2 * 16;
  TileInputs<float, ROWS> next_inputs = fetch_inputs<float, ROWS>(x, source, cols, source_column);
  TileWeights next_weights = fetch_weights(m.w, m.scales, m.biases, row, cols, row_column, wide);
  for (uint k = 0; k < cols; k += TILE_DEPTH) {
    put_halves<ROWS>(inputs, tid, next_inputs);
    put_weights<half>(weights, tid / 2, row_column, next_weights, wide);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (k + TILE_DEPTH < cols) {
      next_inputs = fetch_inputs<float, ROWS>(x, source, cols, k + TILE_DEPTH + source_column);
      next_weights = fetch_weights(m.w, m.scales, m.biases, row, cols, k + TILE_DEPTH + row_column, wide);
    }
    product.run(left, right, sums);
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }

  TileResults results = TileResults((threadgroup float*)tile, dextents<int32_t, 2>(int(TILE_COLS), int(ROWS)),
                                    array<int32_t, 2>{1, int(TENSOR_PITCH)});
  sums.store(results);
  threadgroup_barrier(mem_flags::mem_threadgroup);
}

// gemm (gemm.metal) for x in f32. y = x W^T, or y += x W^T.
//
// Grid: (sum over matrices of ceil(rows / 64), ceil(tokens / ROWS)); threadgroup 128.
// x [tokens, cols] f32; y [tokens, stride] f32; w0..b3 the matrices: an absent one is bound to any matrix and not read.
template <uint ROWS, bool ADD>
[[kernel, max_total_threads_per_threadgroup(TILE_THREADS)]] void gemm_tensor(
    device const float* x [[buffer(0)]], device float* y [[buffer(1)]], device const PrefillChunk* chunk [[buffer(2)]],
    constant ProjectShape& shape [[buffer(3)]], device const uint4* w0 [[buffer(4)]],
    device const bfloat* s0 [[buffer(5)]], device const bfloat* b0 [[buffer(6)]], device const uint4* w1 [[buffer(7)]],
    device const bfloat* s1 [[buffer(8)]], device const bfloat* b1 [[buffer(9)]],
    device const uint4* w2 [[buffer(10)]], device const bfloat* s2 [[buffer(11)]],
    device const bfloat* b2 [[buffer(12)]], device const uint4* w3 [[buffer(13)]],
    device const bfloat* s3 [[buffer(14)]], device const bfloat* b3 [[buffer(15)]],
    uint2 tg [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]]) {
  threadgroup float4 tile[ROWS * TENSOR_PITCH / 4];
  uint tokens = chunk->tokens, token0 = tg.y * ROWS;
  if (token0 >= tokens) return;
  TilePlace place = tile_place(shape, tg.x);
  uint m = place.matrix;
  TileMatrix matrix = {m == 0 ? w0 : m == 1 ? w1 : m == 2 ? w2 : w3, m == 0 ? s0 : m == 1 ? s1 : m == 2 ? s2 : s3,
                       m == 0 ? b0 : m == 1 ? b1 : m == 2 ? b2 : b3, 0u};
  uint rows = shape.rows[m], token = min(token0 + input_row<ROWS>(tid), tokens - 1);
  multiply_tile<ROWS>(x, token, shape.cols, matrix, min(place.row0 + tid / 2, rows - 1), shape.bits[m] == 8, tile, tid);

  threadgroup const float* results = (threadgroup const float*)tile;
  uint column = tid % TILE_COLS, out_row = place.row0 + column;
  for (uint r = tid / TILE_COLS; r < ROWS; r += TILE_THREADS / TILE_COLS) {
    if (token0 + r < tokens && out_row < rows) {
      uint at = (token0 + r) * shape.stride + place.offset + out_row;
      float v = results[r * TENSOR_PITCH + column] * (1.0f / weight_unit<half>());
      y[at] = ADD ? y[at] + v : v;
    }
  }
}
#define GEMM_TENSOR(name, rows, add) \
  template [[host_name(name #rows)]] [[kernel]] decltype(gemm_tensor<rows, add>) gemm_tensor<rows, add>;
GEMM_TENSOR("gemm_tensor_", 32, false)
GEMM_TENSOR("gemm_tensor_", 64, false)
GEMM_TENSOR("gemm_tensor_add_", 32, true)
GEMM_TENSOR("gemm_tensor_add_", 64, true)

// silu(gate x) up x of EXPERT_ROWS rows of x, 32 of h's columns, times factors[r]: the weight rows of the tile are 32 of
// gate, then 32 of up. Row r goes to h + r * width where r < count.
inline void gate_up_tensor(device const float* x, uint source, uint cols, TileMatrix gate, TileMatrix up, uint width,
                           uint column0, device float* h, uint count, threadgroup const float* factors,
                           threadgroup float4* tile, uint tid) {
  uint weight_row = tid / 2;
  bool second = weight_row >= 32;
  TileMatrix m = {second ? up.w : gate.w, second ? up.scales : gate.scales, second ? up.biases : gate.biases,
                  second ? up.first : gate.first};
  uint row = m.first + min(column0 + weight_row % 32, width - 1);
  multiply_tile<EXPERT_ROWS>(x, source, cols, m, row, false, tile, tid);

  threadgroup const float* results = (threadgroup const float*)tile;
  float unit = 1.0f / weight_unit<half>();
  uint column = tid % 32;
  for (uint r = tid / 32; r < EXPERT_ROWS; r += TILE_THREADS / 32) {
    if (r < count && column0 + column < width) {
      float open = results[r * TENSOR_PITCH + column] * unit, value = results[r * TENSOR_PITCH + 32 + column] * unit;
      h[r * width + column0 + column] = silu(open) * value * factors[r];
    }
  }
}

// experts_gate_up (moe_prefill.metal) for x and h in f32. h = score silu(gate_e x) up_e x for every pair, in order of expert.
//
// Grid: (ceil(width / 32), capacity of blocks); threadgroup 128. x [tokens, hidden] f32; scores [tokens * chosen] f32;
// pairs, blocks as moe_sort and moe_blocks leave them; matrices [experts, width, hidden], 4 bits;
// h [tokens * chosen, width] f32.
[[kernel, max_total_threads_per_threadgroup(TILE_THREADS)]] void experts_gate_up_tensor(
    device const float* x [[buffer(0)]], device const float* scores [[buffer(1)]], device const uint* pairs [[buffer(2)]],
    device const uint4* blocks [[buffer(3)]], device const uint4* gate_w [[buffer(4)]],
    device const bfloat* gate_s [[buffer(5)]], device const bfloat* gate_b [[buffer(6)]],
    device const uint4* up_w [[buffer(7)]], device const bfloat* up_s [[buffer(8)]],
    device const bfloat* up_b [[buffer(9)]], device float* h [[buffer(10)]], constant MoeShape& shape [[buffer(11)]],
    uint2 tg [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]]) {
  threadgroup float4 tile[EXPERT_ROWS * TENSOR_PITCH / 4];
  threadgroup float factors[EXPERT_ROWS];
  uint4 block = blocks[tg.y];
  uint expert = block.x, first = block.y, count = block.z;
  if (count == 0) return;
  // Ready before anyone reads them: barriers of the product lie between.
  if (tid < count) factors[tid] = scores[pairs[first + tid]];
  uint source = pairs[first + min(input_row<EXPERT_ROWS>(tid), count - 1)] / shape.chosen;
  TileMatrix gate = {gate_w, gate_s, gate_b, expert * shape.width};
  TileMatrix up = {up_w, up_s, up_b, expert * shape.width};
  gate_up_tensor(x, source, shape.hidden, gate, up, shape.width, tg.x * 32, h + first * shape.width, count, factors, tile,
                 tid);
}

// shared_gate_up (moe_prefill.metal) for x and h in f32. h = sigmoid(shared gate) silu(gate x) up x of every token.
//
// Grid: (ceil(shared width / 32), ceil(tokens / 32)); threadgroup 128. logits [tokens, stride] f32: the shared gate's
// stands behind those of the experts. matrices [shared width, hidden], 4 bits; h [tokens, shared width] f32.
[[kernel, max_total_threads_per_threadgroup(TILE_THREADS)]] void shared_gate_up_tensor(
    device const float* x [[buffer(0)]], device const float* logits [[buffer(1)]],
    device const PrefillChunk* chunk [[buffer(2)]], device const uint4* gate_w [[buffer(3)]],
    device const bfloat* gate_s [[buffer(4)]], device const bfloat* gate_b [[buffer(5)]],
    device const uint4* up_w [[buffer(6)]], device const bfloat* up_s [[buffer(7)]],
    device const bfloat* up_b [[buffer(8)]], device float* h [[buffer(9)]], constant MoeShape& shape [[buffer(10)]],
    uint2 tg [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]]) {
  threadgroup float4 tile[EXPERT_ROWS * TENSOR_PITCH / 4];
  threadgroup float factors[EXPERT_ROWS];
  uint tokens = chunk->tokens, first = tg.y * EXPERT_ROWS;
  if (first >= tokens) return;
  uint count = min(tokens - first, EXPERT_ROWS);
  if (tid < count) factors[tid] = sigmoid(logits[(first + tid) * shape.stride + shape.experts]);
  uint source = first + min(input_row<EXPERT_ROWS>(tid), count - 1);
  TileMatrix gate = {gate_w, gate_s, gate_b, 0u};
  TileMatrix up = {up_w, up_s, up_b, 0u};
  gate_up_tensor(x, source, shape.hidden, gate, up, shape.shared_width, tg.x * 32, h + first * shape.shared_width, count,
                 factors, tile, tid);
}

// experts_down (moe_prefill.metal) for h in f32. y[pair] = down_e h[pair], back in order of pair.
//
// Grid: (ceil(hidden / 64), capacity of blocks); threadgroup 128. h [tokens * chosen, width] f32 in order of expert;
// down [experts, hidden, width], 4 bits; y [tokens * chosen, hidden] f32.
[[kernel, max_total_threads_per_threadgroup(TILE_THREADS)]] void experts_down_tensor(
    device const float* h [[buffer(0)]], device const uint* pairs [[buffer(1)]], device const uint4* blocks [[buffer(2)]],
    device const uint4* down_w [[buffer(3)]], device const bfloat* down_s [[buffer(4)]],
    device const bfloat* down_b [[buffer(5)]], device float* y [[buffer(6)]], constant MoeShape& shape [[buffer(7)]],
    uint2 tg [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]]) {
  threadgroup float4 tile[EXPERT_ROWS * TENSOR_PITCH / 4];
  threadgroup uint pair_of[EXPERT_ROWS];
  uint4 block = blocks[tg.y];
  uint expert = block.x, first = block.y, count = block.z;
  if (count == 0) return;
  if (tid < count) pair_of[tid] = pairs[first + tid];
  uint source = first + min(input_row<EXPERT_ROWS>(tid), count - 1);
  TileMatrix down = {down_w, down_s, down_b, expert * shape.hidden};
  uint row = down.first + min(tg.x * TILE_COLS + tid / 2, shape.hidden - 1);
  multiply_tile<EXPERT_ROWS>(h, source, shape.width, down, row, false, tile, tid);

  threadgroup const float* results = (threadgroup const float*)tile;
  uint column = tid % TILE_COLS, out_column = tg.x * TILE_COLS + column;
  for (uint r = tid / TILE_COLS; r < EXPERT_ROWS; r += TILE_THREADS / TILE_COLS) {
    if (r < count && out_column < shape.hidden)
      y[pair_of[r] * shape.hidden + out_column] = results[r * TENSOR_PITCH + column] * (1.0f / weight_unit<half>());
  }
}
#endif
