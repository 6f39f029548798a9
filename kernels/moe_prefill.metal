// Mixture of experts for a chunk, routed on the GPU: nothing of it is known to the CPU. Dispatch sizes are upper
// bounds; threadgroups past the real end read that from memory and end at once.
//
//   router logits --moe_route--> ids, scores of every pair (token, choice); pair = token * chosen + choice
//   ids --moe_sort--> pairs in order of expert, and where each expert's begin
//   --moe_blocks--> blocks of at most EXPERT_ROWS pairs of one expert
//   --experts_gate_up--> h, in order of expert  --experts_down--> y, in order of pair  --experts_combine--> residual
//   shared expert: shared_gate_up, then gemm_add
#include "gemm.metal.h"
#include "shapes.metal.h"

constant constexpr uint ROUTE_SIMDGROUPS = 4;

// Scores and ids of each token's experts.
//
// Replaces: softmax, top-k, gather and renormalisation: 4 dispatches. Grid: (ceil(tokens / 4)); threadgroup 128: a
// simdgroup has a token. logits [tokens, stride] f32, the first `experts` of a row; ids, scores [tokens, chosen].
[[kernel, max_total_threads_per_threadgroup(ROUTE_SIMDGROUPS * 32)]] void moe_route(
    device const float* logits [[buffer(0)]], device uint* ids [[buffer(1)]], device float* scores [[buffer(2)]],
    device const PrefillChunk* chunk [[buffer(3)]], constant MoeShape& shape [[buffer(4)]],
    uint tg [[threadgroup_position_in_grid]], uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup uint best_ids[ROUTE_SIMDGROUPS * MAX_CHOSEN];
  threadgroup float best_scores[ROUTE_SIMDGROUPS * MAX_CHOSEN];
  uint token = tg * ROUTE_SIMDGROUPS + sg;
  if (token < chunk->tokens) {
    threadgroup uint* mine = best_ids + sg * MAX_CHOSEN;
    threadgroup float* my_scores = best_scores + sg * MAX_CHOSEN;
    choose_experts(logits + token * shape.stride, shape.experts, shape.chosen, lane, mine, my_scores);
    // A lane takes back what it wrote itself.
    if (lane < shape.chosen) {
      ids[token * shape.chosen + lane] = mine[lane];
      scores[token * shape.chosen + lane] = my_scores[lane];
    }
  }
}

// Counting sort of the pairs by expert: histogram, scan and scatter in one dispatch with no atomics, so that the
// order is always the same. A threadgroup counts the pairs of smaller experts, which is where its own begin, then
// writes its own in order.
//
// Grid: (experts); threadgroup 128. ids [tokens * chosen]; pairs [tokens * chosen]; starts [experts + 1].
[[kernel, max_total_threads_per_threadgroup(ROUTE_SIMDGROUPS * 32)]] void moe_sort(
    device const uint* ids [[buffer(0)]], device uint* pairs [[buffer(1)]], device uint* starts [[buffer(2)]],
    device const PrefillChunk* chunk [[buffer(3)]], constant MoeShape& shape [[buffer(4)]],
    uint expert [[threadgroup_position_in_grid]], uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup uint smaller_of[ROUTE_SIMDGROUPS];
  threadgroup uint own_of[ROUTE_SIMDGROUPS];
  // A simdgroup has a stretch of the pairs, in steps of 32.
  uint n = chunk->tokens * shape.chosen, steps = (n + 32 * ROUTE_SIMDGROUPS - 1) / (32 * ROUTE_SIMDGROUPS);
  uint first = sg * steps * 32;
  uint smaller = 0, own = 0;
  for (uint s = 0; s < steps; s++) {
    uint i = first + s * 32 + lane;
    if (i < n) {
      uint id = ids[i];
      smaller += id < expert ? 1u : 0u;
      own += id == expert ? 1u : 0u;
    }
  }
  smaller = simd_sum(smaller);
  own = simd_sum(own);
  if (lane == 0) {
    smaller_of[sg] = smaller;
    own_of[sg] = own;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  uint start = 0, at = 0;
  for (uint i = 0; i < ROUTE_SIMDGROUPS; i++) {
    start += smaller_of[i];
    at += i < sg ? own_of[i] : 0u;
  }
  at += start;
  if (sg == 0 && lane == 0) {
    starts[expert] = start;
    if (expert == 0) starts[shape.experts] = n;
  }
  for (uint s = 0; s < steps; s++) {
    uint i = first + s * 32 + lane;
    bool mine = i < n ? ids[i] == expert : false;
    uint before = simd_prefix_exclusive_sum(mine ? 1u : 0u);
    if (mine) pairs[at + before] = i;
    at += simd_sum(mine ? 1u : 0u);
  }
}

// The blocks of all experts: {expert, first of the sorted pairs, pairs, 0}; behind the last, blocks of no pairs up to
// `capacity`, which is at least tokens * chosen / EXPERT_ROWS + experts.
//
// Grid: (1); threadgroup MAX_EXPERTS: a thread has an expert. starts [experts + 1]; blocks [capacity].
[[kernel, max_total_threads_per_threadgroup(MAX_EXPERTS)]] void moe_blocks(
    device const uint* starts [[buffer(0)]], device uint4* blocks [[buffer(1)]], constant MoeShape& shape [[buffer(2)]],
    constant uint& capacity [[buffer(3)]], uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  threadgroup uint totals[MAX_EXPERTS / 32];
  uint first = 0, count = 0;
  if (tid < shape.experts) {
    first = starts[tid];
    count = starts[tid + 1] - first;
  }
  uint own = (count + EXPERT_ROWS - 1) / EXPERT_ROWS;
  uint at = simd_prefix_exclusive_sum(own), total = simd_sum(own);
  if (lane == 0) totals[sg] = total;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  uint used = 0;
  for (uint i = 0; i < MAX_EXPERTS / 32; i++) {
    at += i < sg ? totals[i] : 0u;
    used += totals[i];
  }
  for (uint b = 0; b < own; b++)
    blocks[at + b] = uint4(tid, first + b * EXPERT_ROWS, min(count - b * EXPERT_ROWS, EXPERT_ROWS), 0u);
  for (uint b = used + tid; b < capacity; b += MAX_EXPERTS) blocks[b] = uint4(0u, 0u, 0u, 0u);
}

// silu(gate x) up x of one tile: ROWS rows of x, 32 of h's columns. The weight rows of the tile are 16 of gate, 16 of
// up, 16 of gate, 16 of up, so that a simdgroup has both for its 16 columns in the same lanes.
// T is what the matrix unit takes, float or half. `source` is the thread's row of x; row r of the tile goes to
// h + r * width where r < count, times factors[r].
template <typename T, uint ROWS>
inline void gate_up_tile(device const T* x, uint source, uint cols, TileMatrix gate, TileMatrix up, uint width,
                         uint column0, device T* h, uint count, threadgroup const float* factors,
                         threadgroup vec<T, 4>* input_tile, threadgroup vec<T, 4>* weight_tile, uint tid, uint sg, uint lane) {
  threadgroup T* inputs = (threadgroup T*)input_tile;
  threadgroup T* weights = (threadgroup T*)weight_tile;
  uint weight_row = tid / 2, row_column = tid % 2 * 16, source_column = input_column<ROWS>(tid);
  bool second = weight_row / 16 % 2 == 1;
  device const uint4* w = second ? up.w : gate.w;
  device const bfloat* scales = second ? up.scales : gate.scales;
  device const bfloat* biases = second ? up.biases : gate.biases;
  uint row = (second ? up.first : gate.first) + min(column0 + weight_row / 32 * 16 + weight_row % 16, width - 1);

  Sums sums[ROWS / 16][4];
  clear_sums<ROWS / 16>(sums);
  TileInputs<T, ROWS> next_inputs = fetch_inputs<T, ROWS>(x, source, cols, source_column);
  TileWeights next_weights = fetch_weights(w, scales, biases, row, cols, row_column, false);
  for (uint k = 0; k < cols; k += TILE_DEPTH) {
    put_inputs<T, ROWS>(inputs, tid, next_inputs);
    put_weights<T>(weights, weight_row, row_column, next_weights, false);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (k + TILE_DEPTH < cols) {
      next_inputs = fetch_inputs<T, ROWS>(x, source, cols, k + TILE_DEPTH + source_column);
      next_weights = fetch_weights(w, scales, biases, row, cols, k + TILE_DEPTH + row_column, false);
    }
    multiply_step<T, ROWS / 16>(inputs, weights, sums, sg);
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }

  float unit = 1.0f / weight_unit<T>();
  threadgroup float* mine = results_of<T>(weight_tile, sg);
  uint column = column0 + sg % 2 * 16 + lane % 16;
  for (uint i = 0; i < ROWS / 16; i++) {
    for (uint j = 0; j < 2; j++) {
      Sums g = sums[i][j], u = sums[i][j + 2];
      // Both matrices have the same element in the same place, whatever that is.
      for (uint e = 0; e < 2; e++) {
        float open = g.thread_elements()[e] * unit, value = u.thread_elements()[e] * unit;
        g.thread_elements()[e] = silu(open) * value;
      }
      simdgroup_store(g, mine + 8 * j, RESULT_PITCH);
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    for (uint half_row = 0; half_row < 4; half_row++) {
      uint r = half_row * 2 + lane / 16, row_of_tile = sg / 2 * (ROWS / 2) + 8 * i + r;
      if (row_of_tile < count && column < width)
        h[row_of_tile * width + column] = T(fit<T>(mine[r * RESULT_PITCH + lane % 16] * factors[row_of_tile]));
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
  }
}

// h = score silu(gate_e x) up_e x for every pair, in order of expert.
//
// Replaces: gather, dequantisation of two expert tensors, two grouped products, SwiGLU: 6 dispatches.
// Grid: (ceil(width / 32), capacity of blocks); threadgroup 128. x [tokens, hidden] T; scores [tokens * chosen]
// f32; pairs, blocks as moe_sort and moe_blocks leave them; matrices [experts, width, hidden], 4 bits;
// h [tokens * chosen, width] T.
template <typename T>
[[kernel, max_total_threads_per_threadgroup(TILE_THREADS)]] void experts_gate_up(
    device const T* x [[buffer(0)]], device const float* scores [[buffer(1)]], device const uint* pairs [[buffer(2)]],
    device const uint4* blocks [[buffer(3)]], device const uint4* gate_w [[buffer(4)]],
    device const bfloat* gate_s [[buffer(5)]], device const bfloat* gate_b [[buffer(6)]],
    device const uint4* up_w [[buffer(7)]], device const bfloat* up_s [[buffer(8)]],
    device const bfloat* up_b [[buffer(9)]], device T* h [[buffer(10)]], constant MoeShape& shape [[buffer(11)]],
    uint2 tg [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  threadgroup vec<T, 4> input_tile[EXPERT_ROWS * TILE_PITCH / 4];
  threadgroup vec<T, 4> weight_tile[TILE_COLS * TILE_PITCH / 4];
  threadgroup float factors[EXPERT_ROWS];
  uint4 block = blocks[tg.y];
  uint expert = block.x, first = block.y, count = block.z;
  if (count == 0) return;
  // Ready before anyone reads them: barriers of the product lie between.
  if (tid < count) factors[tid] = scores[pairs[first + tid]];
  uint source = pairs[first + min(input_row<EXPERT_ROWS>(tid), count - 1)] / shape.chosen;
  TileMatrix gate = {gate_w, gate_s, gate_b, expert * shape.width};
  TileMatrix up = {up_w, up_s, up_b, expert * shape.width};
  gate_up_tile<T, EXPERT_ROWS>(x, source, shape.hidden, gate, up, shape.width, tg.x * 32, h + first * shape.width, count,
                               factors, input_tile, weight_tile, tid, sg, lane);
}
template [[host_name("experts_gate_up")]] [[kernel]] decltype(experts_gate_up<half>) experts_gate_up<half>;
template [[host_name("experts_gate_up_float")]] [[kernel]] decltype(experts_gate_up<float>) experts_gate_up<float>;

// h = sigmoid(shared gate) silu(gate x) up x: the shared expert of every token.
//
// Replaces: dequantisation, two products, SwiGLU, gate: 7 dispatches.
// Grid: (ceil(shared width / 32), ceil(tokens / 32)); threadgroup 128. logits [tokens, stride] f32: the shared gate's
// stands behind those of the experts. matrices [shared width, hidden], 4 bits; h [tokens, shared width] T.
template <typename T>
[[kernel, max_total_threads_per_threadgroup(TILE_THREADS)]] void shared_gate_up(
    device const T* x [[buffer(0)]], device const float* logits [[buffer(1)]],
    device const PrefillChunk* chunk [[buffer(2)]], device const uint4* gate_w [[buffer(3)]],
    device const bfloat* gate_s [[buffer(4)]], device const bfloat* gate_b [[buffer(5)]],
    device const uint4* up_w [[buffer(6)]], device const bfloat* up_s [[buffer(7)]],
    device const bfloat* up_b [[buffer(8)]], device T* h [[buffer(9)]], constant MoeShape& shape [[buffer(10)]],
    uint2 tg [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  threadgroup vec<T, 4> input_tile[EXPERT_ROWS * TILE_PITCH / 4];
  threadgroup vec<T, 4> weight_tile[TILE_COLS * TILE_PITCH / 4];
  threadgroup float factors[EXPERT_ROWS];
  uint tokens = chunk->tokens, first = tg.y * EXPERT_ROWS;
  if (first >= tokens) return;
  uint count = min(tokens - first, EXPERT_ROWS);
  if (tid < count) factors[tid] = sigmoid(logits[(first + tid) * shape.stride + shape.experts]);
  uint source = first + min(input_row<EXPERT_ROWS>(tid), count - 1);
  TileMatrix gate = {gate_w, gate_s, gate_b, 0u};
  TileMatrix up = {up_w, up_s, up_b, 0u};
  gate_up_tile<T, EXPERT_ROWS>(x, source, shape.hidden, gate, up, shape.shared_width, tg.x * 32,
                               h + first * shape.shared_width, count, factors, input_tile, weight_tile, tid, sg, lane);
}
template [[host_name("shared_gate_up")]] [[kernel]] decltype(shared_gate_up<half>) shared_gate_up<half>;
template [[host_name("shared_gate_up_float")]] [[kernel]] decltype(shared_gate_up<float>) shared_gate_up<float>;

// y[pair] = down_e h[pair], back in order of pair.
//
// Replaces: dequantisation of an expert tensor, grouped product, scatter: 3 dispatches.
// Grid: (ceil(hidden / 64), capacity of blocks); threadgroup 128. h [tokens * chosen, width] T in order of
// expert; down [experts, hidden, width], 4 bits; y [tokens * chosen, hidden] f32.
template <typename T>
[[kernel, max_total_threads_per_threadgroup(TILE_THREADS)]] void experts_down(
    device const T* h [[buffer(0)]], device const uint* pairs [[buffer(1)]], device const uint4* blocks [[buffer(2)]],
    device const uint4* down_w [[buffer(3)]], device const bfloat* down_s [[buffer(4)]],
    device const bfloat* down_b [[buffer(5)]], device float* y [[buffer(6)]], constant MoeShape& shape [[buffer(7)]],
    uint2 tg [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  threadgroup vec<T, 4> input_tile[EXPERT_ROWS * TILE_PITCH / 4];
  threadgroup vec<T, 4> weight_tile[TILE_COLS * TILE_PITCH / 4];
  threadgroup uint pair_of[EXPERT_ROWS];
  uint4 block = blocks[tg.y];
  threadgroup T* inputs = (threadgroup T*)input_tile;
  threadgroup T* weights = (threadgroup T*)weight_tile;
  uint expert = block.x, first = block.y, count = block.z, cols = shape.width;
  if (count == 0) return;
  if (tid < count) pair_of[tid] = pairs[first + tid];
  uint source = first + min(input_row<EXPERT_ROWS>(tid), count - 1), source_column = input_column<EXPERT_ROWS>(tid);
  uint row = expert * shape.hidden + min(tg.x * TILE_COLS + tid / 2, shape.hidden - 1), row_column = tid % 2 * 16;

  Sums sums[EXPERT_ROWS / 16][4];
  clear_sums<EXPERT_ROWS / 16>(sums);
  TileInputs<T, EXPERT_ROWS> next_inputs = fetch_inputs<T, EXPERT_ROWS>(h, source, cols, source_column);
  TileWeights next_weights = fetch_weights(down_w, down_s, down_b, row, cols, row_column, false);
  for (uint k = 0; k < cols; k += TILE_DEPTH) {
    put_inputs<T, EXPERT_ROWS>(inputs, tid, next_inputs);
    put_weights<T>(weights, tid / 2, row_column, next_weights, false);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (k + TILE_DEPTH < cols) {
      next_inputs = fetch_inputs<T, EXPERT_ROWS>(h, source, cols, k + TILE_DEPTH + source_column);
      next_weights = fetch_weights(down_w, down_s, down_b, row, cols, k + TILE_DEPTH + row_column, false);
    }
    multiply_step<T, EXPERT_ROWS / 16>(inputs, weights, sums, sg);
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }

  threadgroup float* mine = results_of<T>(weight_tile, sg);
  uint column = tg.x * TILE_COLS + sg % 2 * 32 + lane;
  for (uint i = 0; i < EXPERT_ROWS / 16; i++) {
    for (uint j = 0; j < 4; j++) simdgroup_store(sums[i][j], mine + 8 * j, RESULT_PITCH);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    for (uint r = 0; r < 8; r++) {
      uint row_of_tile = sg / 2 * (EXPERT_ROWS / 2) + 8 * i + r;
      if (row_of_tile < count && column < shape.hidden)
        y[pair_of[row_of_tile] * shape.hidden + column] = mine[r * RESULT_PITCH + lane] * (1.0f / weight_unit<T>());
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
  }
}
template [[host_name("experts_down")]] [[kernel]] decltype(experts_down<half>) experts_down<half>;
template [[host_name("experts_down_float")]] [[kernel]] decltype(experts_down<float>) experts_down<float>;

// residual += sum over a token's pairs of y, in order of choice. Scores are in h already.
//
// Replaces: weighted sum and residual addition: 2 dispatches. Grid: (ceil(hidden / 512), tokens); threadgroup 128.
// y [tokens * chosen, hidden] f32; residual [tokens, hidden] f32.
[[kernel, max_total_threads_per_threadgroup(128)]] void experts_combine(
    device const float4* y [[buffer(0)]], device float4* residual [[buffer(1)]],
    device const PrefillChunk* chunk [[buffer(2)]], constant MoeShape& shape [[buffer(3)]],
    uint2 tg [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]]) {
  uint quads = shape.hidden / 4, i = tg.x * 128 + tid, token = tg.y;
  if (token >= chunk->tokens || i >= quads) return;
  float4 sum = float4(0.0f);
  for (uint c = 0; c < shape.chosen; c++) sum += y[(token * shape.chosen + c) * quads + i];
  residual[token * quads + i] += sum;
}
