// Gated DeltaNet over a chunk of tokens, 32 at a time in the WY form (arXiv:2412.06464, section 3.3), with the state
// in registers from the first token to the last.
//
// With G_i the sum of log decays up to token i of the 32, K, Q, V their rows and S the state [values, keys] before:
//   A_ij = beta_i exp(G_i - G_j) k_i.k_j for j < i, else 0           (no exponent is above 0)
//   D    = (I + A)^-1 diag(beta) (V - diag(exp G) K S^T)             what the delta rule writes
//   O    = diag(exp G) Q S^T + P D,  P_ij = exp(G_i - G_j) q_i.k_j for j <= i
//   S   <- exp(G_last) S + sum_j exp(G_last - G_j) d_j k_j^T
// Everything that does not depend on S is computed for all groups of 32 at once (gdn_factors); only products of small
// matrices remain in sequence (gdn_scan). All of it is f32: the state is never rounded.
//
//   projections --gdn_convolve--> u: q, k, v --gdn_factors--> factors --gdn_scan--> o, state --gdn_gate--> y
#include "shapes.metal.h"

constant constexpr uint GDN_TOKENS = 32;                  // tokens of a step
constant constexpr uint GDN_PITCH = GDN_TOKENS + 4;
constant constexpr uint GDN_SQUARE = GDN_TOKENS * GDN_TOKENS;
// Floats of `factors` a step and value head: (I + A)^-1 diag(beta) and P, both [32, 32]; exp G and exp(G_last - G)
// as the 8 x 8 diagonal blocks of two diagonal matrices.
constant constexpr uint GDN_FACTORS = 2 * GDN_SQUARE + 2 * 4 * 64;
constant constexpr uint GDN_PREFILL_SIMDGROUPS = 4;
constant constexpr uint GDN_SCAN_VALUES = 64;             // rows of a state a threadgroup of gdn_scan has

// Convolution, SiLU, and the L2 norms of queries and keys; queries also times 1/sqrt(GDN_DIM).
//
// Replaces: convolution, SiLU, two norms, two reshapes: 6 dispatches.
// Grid: (2 key_heads + value_heads, ceil(tokens / 32)); threadgroup 128: 128 channels of 32 tokens, a simdgroup has 8.
// projected [tokens, stride] f32: q, k, v of all heads, then z, b, a; stride is a multiple of 4.
// conv_weight [channels, GDN_TAPS] bfloat, oldest tap first; ring [slots, GDN_TAPS, channels] f32 as in gdn_decode.
// u [tokens, up to a multiple of 32, channels] f32: rows past the last token are set to zero.
[[kernel, max_total_threads_per_threadgroup(GDN_PREFILL_SIMDGROUPS * 32)]] void gdn_convolve(
    device const float* projected [[buffer(0)]], device const bfloat4* conv_weight [[buffer(1)]],
    device const float* ring [[buffer(2)]], device float4* u [[buffer(3)]], device const PrefillChunk* chunk [[buffer(4)]],
    constant GdnShape& shape [[buffer(5)]], uint2 tg [[threadgroup_position_in_grid]],
    uint sg [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  uint channels = (2 * shape.key_heads + shape.value_heads) * GDN_DIM, tokens = chunk->tokens;
  uint first = tg.y * GDN_TOKENS + sg * 8;
  if (tg.y * GDN_TOKENS >= tokens) return;
  uint quad = tg.x * (GDN_DIM / 4) + lane;  // the lane's four channels
  device const float4* in = (device const float4*)projected + quad;
  device const float4* past = (device const float4*)ring + chunk->slot * (GDN_TAPS * channels / 4) + quad;
  bfloat4 w[4];
  for (uint c = 0; c < 4; c++) w[c] = conv_weight[4 * quad + c];
  float4 tap[GDN_TAPS];
  for (uint j = 0; j < GDN_TAPS; j++) tap[j] = float4(float(w[0][j]), float(w[1][j]), float(w[2][j]), float(w[3][j]));
  // The three inputs before the first: of the chunk, or kept from the last one.
  float4 x[3];
  for (uint j = 0; j < 3; j++) {
    uint back = 3 - j;
    if (first >= back && first - back < tokens)
      x[j] = in[(first - back) * (shape.stride / 4)];
    else
      x[j] = past[(chunk->position + first - back) % GDN_TAPS * (channels / 4)];
  }
  for (uint i = 0; i < 8; i++) {
    uint token = first + i;
    float4 y = float4(0.0f);
    if (token < tokens) {
      float4 now = in[token * (shape.stride / 4)];
      float4 s = tap[0] * x[0];
      s += tap[1] * x[1];
      s += tap[2] * x[2];
      s += tap[3] * now;
      y = float4(silu(s.x), silu(s.y), silu(s.z), silu(s.w));
      x[0] = x[1];
      x[1] = x[2];
      x[2] = now;
    }
    if (tg.x < 2 * shape.key_heads) {
      y *= precise::rsqrt(simd_sum(dot(y, y)) + 1e-6f);
      if (tg.x < shape.key_heads) y *= precise::rsqrt(float(GDN_DIM));
    }
    u[token * (channels / 4) + quad] = y;
  }
}

// What a step of 32 tokens needs besides the state; and the last inputs into the ring.
//
// Replaces: gates, products of keys and queries, masks, triangular solve, ring update: 9 dispatches.
// Grid: (ceil(tokens / 32), value_heads); threadgroup 128. u as gdn_convolve leaves it; a_log, dt_bias [value_heads];
// factors [steps, value_heads, GDN_FACTORS] f32. Tokens past the chunk's get beta 0 and decay 1: they change nothing.
[[kernel, max_total_threads_per_threadgroup(GDN_PREFILL_SIMDGROUPS * 32)]] void gdn_factors(
    device const float* projected [[buffer(0)]], device const float* u [[buffer(1)]],
    device const float* a_log [[buffer(2)]], device const float* dt_bias [[buffer(3)]], device float* ring [[buffer(4)]],
    device float* factors [[buffer(5)]], device const PrefillChunk* chunk [[buffer(6)]],
    constant GdnShape& shape [[buffer(7)]], uint2 tg [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]], uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float kk[GDN_TOKENS * GDN_PITCH];
  threadgroup float qk[GDN_TOKENS * GDN_PITCH];
  threadgroup float inverse[GDN_TOKENS * GDN_PITCH];
  threadgroup float log_decays[GDN_TOKENS];
  threadgroup float betas[GDN_TOKENS];
  threadgroup float exponents[2 * GDN_TOKENS];  // of all tokens up to one, and of all behind it
  uint tokens = chunk->tokens, first = tg.x * GDN_TOKENS, head = tg.y;
  if (first >= tokens) return;
  uint shared = shape.value_heads / shape.key_heads, key_head = head / shared;
  uint key_width = shape.key_heads * GDN_DIM, value_width = shape.value_heads * GDN_DIM;
  uint channels = 2 * key_width + value_width;

  if (sg == 0) {
    float g = 0.0f, beta = 0.0f;
    if (first + lane < tokens) {
      device const float* gates = projected + (first + lane) * shape.stride + channels + value_width;
      beta = sigmoid(gates[head]);
      g = -exp(a_log[head]) * softplus(gates[shape.value_heads + head] + dt_bias[head]);
    }
    log_decays[lane] = g;
    betas[lane] = beta;
    exponents[lane] = simd_prefix_inclusive_sum(g);
  }
  // k k^T and q k^T up to the diagonal, eight rows a simdgroup.
  device const float* q = u + first * channels + key_head * GDN_DIM;
  device const float* k = q + key_width;
  simdgroup_matrix<float, 8, 8> key_sums[4], query_sums[4];
  for (uint j = 0; j < 4; j++) {
    key_sums[j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    query_sums[j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  }
  for (uint d = 0; d < GDN_DIM; d += 8) {
    simdgroup_matrix<float, 8, 8> rows_k, rows_q, columns;
    simdgroup_load(rows_k, k + 8 * sg * channels + d, channels);
    simdgroup_load(rows_q, q + 8 * sg * channels + d, channels);
    for (uint j = 0; j < 4; j++) {
      if (j > sg) continue;
      simdgroup_load(columns, k + 8 * j * channels + d, channels, ulong2(0, 0), true);
      simdgroup_multiply_accumulate(key_sums[j], rows_k, columns, key_sums[j]);
      simdgroup_multiply_accumulate(query_sums[j], rows_q, columns, query_sums[j]);
    }
  }
  for (uint j = 0; j < 4; j++) {
    simdgroup_store(key_sums[j], kk + 8 * sg * GDN_PITCH + 8 * j, GDN_PITCH);
    simdgroup_store(query_sums[j], qk + 8 * sg * GDN_PITCH + 8 * j, GDN_PITCH);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  device float* solve = factors + (tg.x * shape.value_heads + head) * GDN_FACTORS;
  device float* within = solve + GDN_SQUARE;
  device float* diagonals = within + GDN_SQUARE;
  // The sum of log decays behind the lane's token up to token i. Not as the difference of two sums from the start:
  // behind a token that forgets almost everything those are large, and their difference has lost its digits.
  float sum = 0.0f;
  for (uint i = 0; i < GDN_TOKENS; i++) {
    sum += lane < i ? log_decays[i] : 0.0f;
    if (i % GDN_PREFILL_SIMDGROUPS == sg) {
      float decay = lane <= i ? exp(sum) : 0.0f;
      within[i * GDN_TOKENS + lane] = decay * qk[i * GDN_PITCH + lane];
      kk[i * GDN_PITCH + lane] = lane < i ? betas[i] * decay * kk[i * GDN_PITCH + lane] : 0.0f;
    }
  }
  if (sg == 0) exponents[GDN_TOKENS + lane] = sum;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = tid; i < 2 * 4 * 64; i += GDN_PREFILL_SIMDGROUPS * 32)
    diagonals[i] = i / 8 % 8 == i % 8 ? exp(exponents[i / 64 * 8 + i % 8]) : 0.0f;

  // Forward substitution: a lane has a column of (I + A)^-1, and reads of it only what it wrote itself.
  if (sg == 0) {
    for (uint i = 0; i < GDN_TOKENS; i++) {
      float x = i == lane ? 1.0f : 0.0f;
      for (uint m = 0; m < i; m++) x -= kk[i * GDN_PITCH + m] * inverse[m * GDN_PITCH + lane];
      inverse[i * GDN_PITCH + lane] = x;
      solve[i * GDN_TOKENS + lane] = x * betas[lane];
    }
  }
  // The last inputs of this head's channels; heads that share a key head leave its channels to the first of them.
  if (first + GDN_TOKENS >= tokens) {
    for (uint token = tokens - min(tokens, GDN_TAPS); token < tokens; token++) {
      device const float* in = projected + token * shape.stride;
      device float* place = ring + (chunk->slot * GDN_TAPS + (chunk->position + token) % GDN_TAPS) * channels;
      uint value = 2 * key_width + head * GDN_DIM + tid, query = key_head * GDN_DIM + tid, key = key_width + query;
      place[value] = in[value];
      if (head % shared == 0) {
        place[query] = in[query];
        place[key] = in[key];
      }
    }
  }
}

// The state through all steps, and the outputs.
//
// Replaces: the recurrence, one dispatch a token. Grid: (GDN_DIM / 64, value_heads); threadgroup 128: a simdgroup has
// 16 values' rows of the state in registers, and needs nobody else. state [slots, value_heads, GDN_DIM values,
// GDN_DIM keys] f32: read once, written once. o [tokens, up to a multiple of 32, value_heads * GDN_DIM] f32.
[[kernel, max_total_threads_per_threadgroup(GDN_PREFILL_SIMDGROUPS * 32)]] void gdn_scan(
    device const float* u [[buffer(0)]], device const float* factors [[buffer(1)]], device float* state [[buffer(2)]],
    device float* o [[buffer(3)]], device const PrefillChunk* chunk [[buffer(4)]], constant GdnShape& shape [[buffer(5)]],
    uint2 tg [[threadgroup_position_in_grid]], uint sg [[simdgroup_index_in_threadgroup]]) {
  uint head = tg.y, key_head = head / (shape.value_heads / shape.key_heads), row0 = tg.x * GDN_SCAN_VALUES + sg * 16;
  uint key_width = shape.key_heads * GDN_DIM, value_width = shape.value_heads * GDN_DIM;
  uint channels = 2 * key_width + value_width;
  device float* own = state + ((chunk->slot * shape.value_heads + head) * GDN_DIM + row0) * GDN_DIM;
  simdgroup_matrix<float, 8, 8> s[2][16];
  for (uint r = 0; r < 2; r++)
    for (uint d = 0; d < 16; d++) simdgroup_load(s[r][d], own + 8 * r * GDN_DIM + 8 * d, GDN_DIM);

  uint steps = (chunk->tokens + GDN_TOKENS - 1) / GDN_TOKENS;
  for (uint step = 0; step < steps; step++) {
    device const float* q = u + step * GDN_TOKENS * channels + key_head * GDN_DIM;
    device const float* k = q + key_width;
    device const float* v = u + step * GDN_TOKENS * channels + 2 * key_width + head * GDN_DIM + row0;
    device const float* solve = factors + (step * shape.value_heads + head) * GDN_FACTORS;
    device const float* within = solve + GDN_SQUARE;
    device const float* decay = within + GDN_SQUARE;
    device const float* rest = decay + 4 * 64;
    // All products are transposed: values down, tokens across.
    simdgroup_matrix<float, 8, 8> x[2][4], out[2][4], m, n;
    for (uint r = 0; r < 2; r++)
      for (uint t = 0; t < 4; t++) {
        x[r][t] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
        out[r][t] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
      }
    for (uint d = 0; d < 16; d++)
      for (uint t = 0; t < 4; t++) {
        simdgroup_load(m, k + 8 * t * channels + 8 * d, channels, ulong2(0, 0), true);
        simdgroup_load(n, q + 8 * t * channels + 8 * d, channels, ulong2(0, 0), true);
        for (uint r = 0; r < 2; r++) {
          simdgroup_multiply_accumulate(x[r][t], s[r][d], m, x[r][t]);
          simdgroup_multiply_accumulate(out[r][t], s[r][d], n, out[r][t]);
        }
      }
    // x = V - diag(exp G) K S^T, out = diag(exp G) Q S^T
    for (uint t = 0; t < 4; t++) {
      simdgroup_load(m, decay + 64 * t, 8);
      for (uint r = 0; r < 2; r++) {
        simdgroup_multiply(out[r][t], out[r][t], m);
        simdgroup_multiply(x[r][t], x[r][t], m);
        simdgroup_load(n, v + 8 * t * channels + 8 * r, channels, ulong2(0, 0), true);
        for (uint e = 0; e < 2; e++) x[r][t].thread_elements()[e] = n.thread_elements()[e] - x[r][t].thread_elements()[e];
      }
    }
    // D^T = x^T solve^T; both triangular matrices have nothing above their diagonal. From the last tokens on, so that
    // D can take x's place.
#pragma unroll
    for (uint down = 0; down < 4; down++) {
      uint t = 3 - down;
      simdgroup_matrix<float, 8, 8> sum[2];
      for (uint r = 0; r < 2; r++) sum[r] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
      for (uint j = 0; j < 4; j++) {
        if (j > t) continue;
        simdgroup_load(m, solve + 8 * t * GDN_TOKENS + 8 * j, GDN_TOKENS, ulong2(0, 0), true);
        for (uint r = 0; r < 2; r++) simdgroup_multiply_accumulate(sum[r], x[r][j], m, sum[r]);
      }
      for (uint r = 0; r < 2; r++) x[r][t] = sum[r];
    }
#pragma unroll
    for (uint t = 0; t < 4; t++) {
      for (uint j = 0; j < 4; j++) {
        if (j > t) continue;
        simdgroup_load(m, within + 8 * t * GDN_TOKENS + 8 * j, GDN_TOKENS, ulong2(0, 0), true);
        for (uint r = 0; r < 2; r++) simdgroup_multiply_accumulate(out[r][t], x[r][j], m, out[r][t]);
      }
      device float* y = o + (step * GDN_TOKENS + 8 * t) * value_width + head * GDN_DIM + row0;
      for (uint r = 0; r < 2; r++) simdgroup_store(out[r][t], y + 8 * r, value_width, ulong2(0, 0), true);
    }
    for (uint t = 0; t < 4; t++) {
      simdgroup_load(m, rest + 64 * t, 8);
      for (uint r = 0; r < 2; r++) simdgroup_multiply(x[r][t], x[r][t], m);
    }
    float all = decay[4 * 64 - 1];  // the last element of the last block: exp(G_last)
    for (uint d = 0; d < 16; d++) {
      for (uint r = 0; r < 2; r++)
        for (uint e = 0; e < 2; e++) s[r][d].thread_elements()[e] *= all;
      for (uint t = 0; t < 4; t++) {
        simdgroup_load(m, k + 8 * t * channels + 8 * d, channels);
        for (uint r = 0; r < 2; r++) simdgroup_multiply_accumulate(s[r][d], x[r][t], m, s[r][d]);
      }
    }
  }
  for (uint r = 0; r < 2; r++)
    for (uint d = 0; d < 16; d++) simdgroup_store(s[r][d], own + 8 * r * GDN_DIM + 8 * d, GDN_DIM);
}

// y = rmsnorm(o) gain silu(z), as the output projection's matrix unit takes it: T is half or float.
//
// Replaces: norm, SiLU, product, conversion: 4 dispatches. Grid: (value_heads, ceil(tokens / 4)); threadgroup 128: a
// simdgroup has one head of one token. projected, o as above; gain [GDN_DIM]; y [tokens, value_heads * GDN_DIM] T.
template <typename T>
[[kernel, max_total_threads_per_threadgroup(GDN_PREFILL_SIMDGROUPS * 32)]] void gdn_gate(
    device const float* projected [[buffer(0)]], device const float4* o [[buffer(1)]],
    device const bfloat4* gain [[buffer(2)]], device vec<T, 4>* y [[buffer(3)]], device const PrefillChunk* chunk [[buffer(4)]],
    constant GdnShape& shape [[buffer(5)]], uint2 tg [[threadgroup_position_in_grid]],
    uint sg [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  uint token = tg.y * GDN_PREFILL_SIMDGROUPS + sg, head = tg.x;
  uint channels = (2 * shape.key_heads + shape.value_heads) * GDN_DIM;
  if (token < chunk->tokens) {
    uint at = (token * shape.value_heads + head) * (GDN_DIM / 4) + lane;
    float4 v = o[at];
    float factor = precise::rsqrt(simd_sum(dot(v, v)) / float(GDN_DIM) + shape.eps);
    float4 z = ((device const float4*)(projected + token * shape.stride + channels + head * GDN_DIM))[lane];
    float4 open = float4(silu(z.x), silu(z.y), silu(z.z), silu(z.w));
    y[at] = vec<T, 4>(fit4<T>(v * factor * float4(gain[lane]) * open));
  }
}
template [[host_name("gdn_gate")]] [[kernel]] decltype(gdn_gate<half>) gdn_gate<half>;
template [[host_name("gdn_gate_float")]] [[kernel]] decltype(gdn_gate<float>) gdn_gate<float>;
