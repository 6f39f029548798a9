// Mixture of experts for one token: two dispatches behind the router's projection.
//
// `routed` [tokens, stride] f32 is what `project_norm` leaves of the router (8-bit), the shared expert's gate
// (8-bit), and the shared expert's gate and up projections: [experts | 1 | shared width | shared width].
#include "shapes.metal.h"

constant constexpr uint MOE_SIMDGROUPS = 4;

// h[e] = silu(gate_e x) up_e x for the chosen experts, x = rmsnorm(residual).
//
// Replaces: RMSNorm, top-k, gather, two expert projections and SwiGLU: 6 dispatches.
// Grid: (ceil(width / (ROWS * MOE_SIMDGROUPS)), chosen, tokens); threadgroup 128. A simdgroup computes ROWS rows of gate and up.
// residual [tokens, hidden] f32; gain [hidden] bfloat; matrices [experts, width, hidden]; h [tokens, chosen, width] f32.
// Threadgroup memory: 128 * (hidden / 32 + 1) bytes.
template <uint ROWS>
[[kernel, max_total_threads_per_threadgroup(MOE_SIMDGROUPS * 32)]] void moe_gate_up(
    device const float4* residual [[buffer(0)]], device const bfloat4* gain [[buffer(1)]],
    device const float* routed [[buffer(2)]], device const uint4* gate_w [[buffer(3)]],
    device const bfloat* gate_s [[buffer(4)]], device const bfloat* gate_b [[buffer(5)]],
    device const uint4* up_w [[buffer(6)]], device const bfloat* up_s [[buffer(7)]],
    device const bfloat* up_b [[buffer(8)]], device float* h [[buffer(9)]], constant MoeShape& shape [[buffer(10)]],
    threadgroup float4* staged [[threadgroup(0)]], uint3 tg [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]], uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup uint ids[MAX_CHOSEN];
  threadgroup float scores[MAX_CHOSEN];
  threadgroup float parts[MOE_SIMDGROUPS];
  uint token = tg.z, chunks = shape.hidden / CHUNK, groups = shape.hidden / GROUP, pitch = pitch_of(chunks);
  device const float4* x = residual + token * (shape.hidden / 4);
  float squares = 0.0f;
  for (uint i = tid; i < shape.hidden / 4; i += MOE_SIMDGROUPS * 32) {
    float4 v = x[i];
    squares += dot(v, v);
    stage(staged, pitch, i, v * float4(gain[i]) * narrow());
  }
  squares = simd_sum(squares);
  if (lane == 0) parts[sg] = squares;
  if (sg == 0) choose_experts(routed + token * shape.stride, shape.experts, shape.chosen, lane, ids, scores);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  uint expert = ids[tg.y], row0 = (tg.x * MOE_SIMDGROUPS + sg) * ROWS;

  float gates[ROWS], ups[ROWS];
  for (uint r = 0; r < ROWS; r++) {
    gates[r] = 0.0f;
    ups[r] = 0.0f;
  }
  for (uint i = lane; i < chunks; i += 32) {
    Chunk c = load_chunk(staged, pitch, i, narrow_back());
    for (uint r = 0; r < ROWS; r++) {
      uint row = expert * shape.width + min(row0 + r, shape.width - 1);
      uint g = row * groups + i / (GROUP / CHUNK);
      gates[r] += dot4(gate_w[row * chunks + i], float(gate_s[g]), float(gate_b[g]), c);
      ups[r] += dot4(up_w[row * chunks + i], float(up_s[g]), float(up_b[g]), c);
    }
  }
  float total = 0.0f;
  for (uint i = 0; i < MOE_SIMDGROUPS; i++) total += parts[i];
  float factor = precise::rsqrt(total / float(shape.hidden) + shape.eps);
  for (uint r = 0; r < ROWS; r++) {
    float g = simd_sum(gates[r]) * factor, u = simd_sum(ups[r]) * factor;
    if (lane == 0 && row0 + r < shape.width)
      h[(token * shape.chosen + tg.y) * shape.width + row0 + r] = silu(g) * u;
  }
}
template [[host_name("moe_gate_up_1")]] [[kernel]] decltype(moe_gate_up<1>) moe_gate_up<1>;
template [[host_name("moe_gate_up_2")]] [[kernel]] decltype(moe_gate_up<2>) moe_gate_up<2>;
template [[host_name("moe_gate_up_4")]] [[kernel]] decltype(moe_gate_up<4>) moe_gate_up<4>;

// residual += sum_e score_e down_e h_e + sigmoid(shared gate) shared_down (silu(shared gate proj) shared up).
//
// Replaces: expert down projections, their weighted sum, the shared expert's SwiGLU, down projection and gate, and the
// residual addition: 7 dispatches.
// Grid: (ceil(hidden / (ROWS * MOE_SIMDGROUPS)), 1, tokens); threadgroup 128. The lanes of a simdgroup share the chunks of
// all experts' rows, so the experts' h lie one after the other in threadgroup memory, times their scores, the shared
// expert's last. Matrices: down [experts, hidden, width], shared [hidden, shared width].
// Threadgroup memory: 128 * ((chosen * width + shared width) / 32 + 1) bytes.
template <uint ROWS>
[[kernel, max_total_threads_per_threadgroup(MOE_SIMDGROUPS * 32)]] void moe_down(
    device const float* routed [[buffer(0)]], device const float4* h [[buffer(1)]],
    device const uint4* down_w [[buffer(2)]], device const bfloat* down_s [[buffer(3)]],
    device const bfloat* down_b [[buffer(4)]], device const uint4* shared_w [[buffer(5)]],
    device const bfloat* shared_s [[buffer(6)]], device const bfloat* shared_b [[buffer(7)]],
    device float* residual [[buffer(8)]], constant MoeShape& shape [[buffer(9)]],
    threadgroup float4* staged [[threadgroup(0)]], uint3 tg [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]], uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup uint ids[MAX_CHOSEN];
  threadgroup float scores[MAX_CHOSEN];
  uint token = tg.z;
  device const float* mine = routed + token * shape.stride;
  if (sg == 0) choose_experts(mine, shape.experts, shape.chosen, lane, ids, scores);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  uint row0 = (tg.x * MOE_SIMDGROUPS + sg) * ROWS;
  uint chunks = shape.width / CHUNK, shared_chunks = shape.shared_width / CHUNK, routed_chunks = shape.chosen * chunks;
  uint pitch = pitch_of(routed_chunks + shared_chunks);
  for (uint i = tid; i < routed_chunks * 8; i += MOE_SIMDGROUPS * 32)
    stage(staged, pitch, i, h[token * (routed_chunks * 8) + i] * scores[i / (chunks * 8)] * narrow());
  device const float* gate = mine + shape.experts + 1;
  device const float* up = gate + shape.shared_width;
  float open = sigmoid(mine[shape.experts]);
  for (uint i = tid; i < shared_chunks * 8; i += MOE_SIMDGROUPS * 32) {
    // Behind the router's logits and a single value nothing is aligned to a float4.
    float4 g = float4(gate[4 * i], gate[4 * i + 1], gate[4 * i + 2], gate[4 * i + 3]);
    float4 u = float4(up[4 * i], up[4 * i + 1], up[4 * i + 2], up[4 * i + 3]);
    float4 s = float4(silu(g.x), silu(g.y), silu(g.z), silu(g.w));
    stage(staged, pitch, routed_chunks * 8 + i, s * u * open * narrow());
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  float sums[ROWS];
  for (uint r = 0; r < ROWS; r++) sums[r] = 0.0f;
  for (uint i = lane; i < routed_chunks + shared_chunks; i += 32) {
    Chunk c = load_chunk(staged, pitch, i, narrow_back());
    bool routed_here = i < routed_chunks;
    uint per_row = routed_here ? chunks : shared_chunks, at = routed_here ? i % chunks : i - routed_chunks;
    uint first = routed_here ? ids[i / chunks] * shape.hidden : 0;
    device const uint4* w = routed_here ? down_w : shared_w;
    device const bfloat* scales = routed_here ? down_s : shared_s;
    device const bfloat* biases = routed_here ? down_b : shared_b;
    for (uint r = 0; r < ROWS; r++) {
      uint row = first + min(row0 + r, shape.hidden - 1), g = row * (per_row / (GROUP / CHUNK)) + at / (GROUP / CHUNK);
      sums[r] += dot4(w[row * per_row + at], float(scales[g]), float(biases[g]), c);
    }
  }
  for (uint r = 0; r < ROWS; r++) {
    float v = simd_sum(sums[r]);
    if (lane == 0 && row0 + r < shape.hidden) residual[token * shape.hidden + row0 + r] += v;
  }
}
template [[host_name("moe_down_1")]] [[kernel]] decltype(moe_down<1>) moe_down<1>;
template [[host_name("moe_down_2")]] [[kernel]] decltype(moe_down<2>) moe_down<2>;
template [[host_name("moe_down_4")]] [[kernel]] decltype(moe_down<4>) moe_down<4>;
