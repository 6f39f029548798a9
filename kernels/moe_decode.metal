// Mixture of experts for one token: two dispatches behind the router's projection.
//
// `routed` [tokens, stride] f32 is what `project_norm` leaves of the router (8-bit), the shared expert's gate
// (8-bit), and the shared expert's gate and up projections: [experts | 1 | shared width | shared width].
#include "common.metal.h"

constant constexpr uint SIMDGROUPS = 4;

struct MoeShape {
  uint hidden;
  uint experts;
  uint chosen;        // experts a token
  uint width;         // of a routed expert
  uint shared_width;  // of the shared expert
  uint stride;        // floats between two tokens in `routed`
  float eps;          // of the RMSNorm
};

// h[e] = silu(gate_e x) up_e x for the chosen experts, x = rmsnorm(residual).
//
// Replaces: RMSNorm, top-k, gather, two expert projections and SwiGLU: 6 dispatches.
// Grid: (ceil(width / (ROWS * SIMDGROUPS)), chosen, tokens); threadgroup 128. A simdgroup computes ROWS rows of gate and up.
// residual [tokens, hidden] f32; gain [hidden] bfloat; matrices [experts, width, hidden]; h [tokens, chosen, width] f32.
template <uint ROWS>
[[kernel, max_total_threads_per_threadgroup(SIMDGROUPS * 32)]] void moe_gate_up(
    device const float4* residual [[buffer(0)]], device const bfloat4* gain [[buffer(1)]],
    device const float* routed [[buffer(2)]], device const uint4* gate_w [[buffer(3)]],
    device const bfloat* gate_s [[buffer(4)]], device const bfloat* gate_b [[buffer(5)]],
    device const uint4* up_w [[buffer(6)]], device const bfloat* up_s [[buffer(7)]],
    device const bfloat* up_b [[buffer(8)]], device float* h [[buffer(9)]], constant MoeShape& shape [[buffer(10)]],
    uint3 tg [[threadgroup_position_in_grid]], uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup uint ids[MAX_CHOSEN];
  threadgroup float scores[MAX_CHOSEN];
  uint token = tg.z;
  if (sg == 0) choose_experts(routed + token * shape.stride, shape.experts, shape.chosen, lane, ids, scores);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  uint expert = ids[tg.y], chunks = shape.hidden / CHUNK, groups = shape.hidden / GROUP;
  uint row0 = (tg.x * SIMDGROUPS + sg) * ROWS;
  device const float4* x = residual + token * (shape.hidden / 4);

  float gates[ROWS], ups[ROWS], squares = 0.0f;
  for (uint r = 0; r < ROWS; r++) {
    gates[r] = 0.0f;
    ups[r] = 0.0f;
  }
  for (uint i = lane; i < chunks; i += 32) {
    Chunk c;
    for (uint j = 0; j < 8; j++) {
      float4 v = x[i * 8 + j];
      squares += dot(v, v);
      c.x[j] = v * float4(gain[i * 8 + j]);
    }
    finish(c);
    for (uint r = 0; r < ROWS; r++) {
      uint row = expert * shape.width + min(row0 + r, shape.width - 1);
      uint g = row * groups + i / (GROUP / CHUNK);
      gates[r] += dot4(gate_w[row * chunks + i], float(gate_s[g]), float(gate_b[g]), c);
      ups[r] += dot4(up_w[row * chunks + i], float(up_s[g]), float(up_b[g]), c);
    }
  }
  float factor = precise::rsqrt(simd_sum(squares) / float(shape.hidden) + shape.eps);
  for (uint r = 0; r < ROWS; r++) {
    float g = simd_sum(gates[r]) * factor, u = simd_sum(ups[r]) * factor;
    if (lane == 0 && row0 + r < shape.width)
      h[(token * shape.chosen + tg.y) * shape.width + row0 + r] = silu(g) * u;
  }
}
template [[host_name("moe_gate_up_1")]] [[kernel]] decltype(moe_gate_up<1>) moe_gate_up<1>;
template [[host_name("moe_gate_up_2")]] [[kernel]] decltype(moe_gate_up<2>) moe_gate_up<2>;

// residual += sum_e score_e down_e h_e + sigmoid(shared gate) shared_down (silu(shared gate proj) shared up).
//
// Replaces: expert down projections, their weighted sum, the shared expert's SwiGLU, down projection and gate, and the
// residual addition: 7 dispatches.
// Grid: (ceil(hidden / (ROWS * SIMDGROUPS)), 1, tokens); threadgroup 128. The lanes of a simdgroup share the chunks of
// all experts' rows. Matrices: down [experts, hidden, width], shared [hidden, shared width].
template <uint ROWS>
[[kernel, max_total_threads_per_threadgroup(SIMDGROUPS * 32)]] void moe_down(
    device const float* routed [[buffer(0)]], device const float4* h [[buffer(1)]],
    device const uint4* down_w [[buffer(2)]], device const bfloat* down_s [[buffer(3)]],
    device const bfloat* down_b [[buffer(4)]], device const uint4* shared_w [[buffer(5)]],
    device const bfloat* shared_s [[buffer(6)]], device const bfloat* shared_b [[buffer(7)]],
    device float* residual [[buffer(8)]], constant MoeShape& shape [[buffer(9)]],
    uint3 tg [[threadgroup_position_in_grid]], uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup uint ids[MAX_CHOSEN];
  threadgroup float scores[MAX_CHOSEN];
  uint token = tg.z;
  device const float* mine = routed + token * shape.stride;
  if (sg == 0) choose_experts(mine, shape.experts, shape.chosen, lane, ids, scores);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  uint row0 = (tg.x * SIMDGROUPS + sg) * ROWS;
  uint chunks = shape.width / CHUNK, shared_chunks = shape.shared_width / CHUNK, routed_chunks = shape.chosen * chunks;
  device const float* shared_gate = mine + shape.experts + 1;
  device const float* shared_up = shared_gate + shape.shared_width;
  float open = sigmoid(mine[shape.experts]);

  float sums[ROWS];
  for (uint r = 0; r < ROWS; r++) sums[r] = 0.0f;
  for (uint i = lane; i < routed_chunks + shared_chunks; i += 32) {
    Chunk c;
    if (i < routed_chunks) {
      uint e = i / chunks, at = i % chunks, expert = ids[e];
      float score = scores[e];
      for (uint j = 0; j < 8; j++) c.x[j] = h[(token * shape.chosen + e) * (shape.width / 4) + at * 8 + j] * score;
      finish(c);
      for (uint r = 0; r < ROWS; r++) {
        uint row = expert * shape.hidden + min(row0 + r, shape.hidden - 1);
        uint g = row * (shape.width / GROUP) + at / (GROUP / CHUNK);
        sums[r] += dot4(down_w[row * chunks + at], float(down_s[g]), float(down_b[g]), c);
      }
    } else {
      uint at = i - routed_chunks;
      for (uint j = 0; j < 8; j++) {
        float v[4];
        for (uint l = 0; l < 4; l++) {
          uint n = at * CHUNK + j * 4 + l;
          v[l] = silu(shared_gate[n]) * shared_up[n] * open;
        }
        c.x[j] = float4(v[0], v[1], v[2], v[3]);
      }
      finish(c);
      for (uint r = 0; r < ROWS; r++) {
        uint row = min(row0 + r, shape.hidden - 1);
        uint g = row * (shape.shared_width / GROUP) + at / (GROUP / CHUNK);
        sums[r] += dot4(shared_w[row * shared_chunks + at], float(shared_s[g]), float(shared_b[g]), c);
      }
    }
  }
  for (uint r = 0; r < ROWS; r++) {
    float v = simd_sum(sums[r]);
    if (lane == 0 && row0 + r < shape.hidden) residual[token * shape.hidden + row0 + r] += v;
  }
}
template [[host_name("moe_down_1")]] [[kernel]] decltype(moe_down<1>) moe_down<1>;
template [[host_name("moe_down_2")]] [[kernel]] decltype(moe_down<2>) moe_down<2>;
