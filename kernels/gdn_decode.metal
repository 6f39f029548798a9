// Gated DeltaNet, one token (arXiv:2412.06464): convolution, norms, gates, state step and gated norm in one dispatch.
#include "shapes.metal.h"

constant constexpr uint GDN_SIMDGROUPS = 16;
constant constexpr uint GDN_ROWS = GDN_DIM / GDN_SIMDGROUPS;  // state rows a simdgroup holds

// For value head h with key head h / (value_heads / key_heads):
//   u = silu(conv(qkv)); q = l2norm(u_q) / sqrt(GDN_DIM); k = l2norm(u_k)
//   S = exp(-exp(a_log) softplus(a + dt_bias)) S;  S += sigmoid(b) (v - S k) k^T;  o = S q
//   y = rmsnorm(o) gain silu(z)
//
// Replaces: convolution, SiLU, two L2 norms, two gates, state step, gated norm: 9 dispatches.
// Grid: (value_heads, tokens of different sequences); threadgroup 512.
// projected [tokens, stride] f32: q, k, v of all heads, then z, b, a, as the input projection leaves them.
// conv_weight [channels, GDN_TAPS] bfloat, oldest tap first; a_log, dt_bias [value_heads] f32; gain [GDN_DIM] bfloat.
// positions, slots [tokens]: the token's position, and which sequence's state it belongs to.
// ring [slots, GDN_TAPS, channels] f32: the convolution's inputs, that of position p in place p % GDN_TAPS, zeros at first.
// The place written is none of the three that are read, so the heads of a key head need no order.
// state [slots, value_heads, GDN_DIM values, GDN_DIM keys] f32: read once, written once, in registers between.
// y [tokens, value_heads * GDN_DIM] f32.
[[kernel, max_total_threads_per_threadgroup(GDN_SIMDGROUPS * 32)]] void gdn_step(
    device const float* projected [[buffer(0)]], device const bfloat4* conv_weight [[buffer(1)]],
    device const float* a_log [[buffer(2)]], device const float* dt_bias [[buffer(3)]],
    device const bfloat4* gain [[buffer(4)]], device const uint* positions [[buffer(5)]],
    device const uint* slots [[buffer(6)]], device float* ring [[buffer(7)]], device float4* state [[buffer(8)]],
    device float4* y [[buffer(9)]], constant GdnShape& shape [[buffer(10)]],
    uint2 tg [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float4 qkv4[3 * GDN_DIM / 4];
  threadgroup float4 outputs4[GDN_DIM / 4];
  threadgroup float* qkv = (threadgroup float*)qkv4;
  threadgroup float* outputs = (threadgroup float*)outputs4;
  uint head = tg.x, token = tg.y, shared = shape.value_heads / shape.key_heads, key_head = head / shared;
  uint key_width = shape.key_heads * GDN_DIM, value_width = shape.value_heads * GDN_DIM;
  uint channels = 2 * key_width + value_width;
  device const float* in = projected + token * shape.stride;
  uint position = positions[token], slot = slots[token];

  // A thread convolves one channel of this head's q, k or v.
  if (tid < 3 * GDN_DIM) {
    uint part = tid / GDN_DIM, i = tid % GDN_DIM;
    uint channel = part == 0 ? key_head * GDN_DIM + i : part == 1 ? key_width + key_head * GDN_DIM + i : 2 * key_width + head * GDN_DIM + i;
    device float* taps = ring + slot * (GDN_TAPS * channels) + channel;
    float4 w = float4(conv_weight[channel]);
    float now = in[channel];
    float sum = w.x * taps[(position + 1) % GDN_TAPS * channels];
    sum += w.y * taps[(position + 2) % GDN_TAPS * channels];
    sum += w.z * taps[(position + 3) % GDN_TAPS * channels];
    sum += w.w * now;
    qkv[tid] = silu(sum);
    // Heads that share a key head compute its channels alike; the first of them keeps the input.
    if (part == 2 || head % shared == 0) taps[position % GDN_TAPS * channels] = now;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  // Every simdgroup normalises q and k for itself: a lane holds four neighbours of each.
  float4 q = qkv4[lane], k = qkv4[GDN_DIM / 4 + lane];
  q *= precise::rsqrt(simd_sum(dot(q, q)) + 1e-6f) * precise::rsqrt(float(GDN_DIM));
  k *= precise::rsqrt(simd_sum(dot(k, k)) + 1e-6f);
  float b = in[channels + value_width + head], a = in[channels + value_width + shape.value_heads + head];
  float decay = exp(-exp(a_log[head]) * softplus(a + dt_bias[head])), beta = sigmoid(b);

  device float4* s = state + ((slot * shape.value_heads + head) * GDN_DIM + sg * GDN_ROWS) * (GDN_DIM / 4) + lane;
  float4 row[GDN_ROWS];
  for (uint r = 0; r < GDN_ROWS; r++) row[r] = s[r * (GDN_DIM / 4)] * decay;
  for (uint r = 0; r < GDN_ROWS; r++) {
    float delta = beta * (qkv[2 * GDN_DIM + sg * GDN_ROWS + r] - simd_sum(dot(row[r], k)));
    row[r] += delta * k;
    s[r * (GDN_DIM / 4)] = row[r];
    float o = simd_sum(dot(row[r], q));
    if (lane == 0) outputs[sg * GDN_ROWS + r] = o;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  if (sg == 0) {
    float4 o = outputs4[lane];
    float factor = precise::rsqrt(simd_sum(dot(o, o)) / float(GDN_DIM) + shape.eps);
    device const float* z = in + channels + head * GDN_DIM + lane * 4;
    float4 open = float4(silu(z[0]), silu(z[1]), silu(z[2]), silu(z[3]));
    y[(token * value_width + head * GDN_DIM) / 4 + lane] = o * factor * float4(gain[lane]) * open;
  }
}
