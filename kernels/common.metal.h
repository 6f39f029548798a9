// What every kernel shares: dequantisation, norms, activations, the choice of experts.
//
// Quantised matrices have the MLX affine layout: row r of [rows, cols] holds cols codes of 4 (or 8) bits, lowest
// first, in 32-bit words; a scale and a bias (bfloat) for every GROUP columns; w = scale * code + bias.
#pragma once
#include <metal_stdlib>
using namespace metal;

// Columns that share a scale and a bias.
constant constexpr uint GROUP = 64;
// Columns a lane takes at once: 32 codes are one 16-byte load at 4 bits and two at 8.
constant constexpr uint CHUNK = 32;

inline float sigmoid(float x) { return 1.0f / (1.0f + exp(-x)); }
inline float silu(float x) { return x / (1.0f + exp(-x)); }
// ln(1 + exp(x)); for large x that is x, where exp would overflow. For small results log(1 + e) loses bits, so
// the first terms of the series take over.
inline float softplus(float x) {
  float e = exp(x);
  return x > 20.0f ? x : e < 1e-4f ? e - 0.5f * e * e : log(1.0f + e);
}

// An integer below 2^23 as a float. NVIDIA converts slowly, so there it is built from bits and a subtraction.
inline float code(uint q) {
#if defined(LILY_CUDA)
  return as_type<float>(0x4B000000u | q) - 8388608.0f;
#else
  return float(q);
#endif
}

// 32 activations of a lane, and their sum. `scaled` holds them divided by 1, 16, 256 and 4096 in turn (exact), so
// that 4-bit codes need masking only: (word & 0xf0) is 16 times the second code.
struct Chunk {
  float4 x[8];
  float4 scaled[8];
  float sum;
};

inline void finish(thread Chunk& c) {
  float4 s = c.x[0];
  for (int i = 0; i < 8; i++) c.scaled[i] = c.x[i] * float4(1.0f, 1.0f / 16.0f, 1.0f / 256.0f, 1.0f / 4096.0f);
  for (int i = 1; i < 8; i++) s += c.x[i];
  c.sum = (s.x + s.y) + (s.z + s.w);
}

// Four 4-bit codes in the low 16 bits of `half_word`, times four scaled activations.
inline float dot_codes(uint half_word, float4 scaled) {
  return dot(float4(code(half_word & 0xfu), code(half_word & 0xf0u), code(half_word & 0xf00u), code(half_word & 0xf000u)), scaled);
}

// sum over the chunk of w x for 32 4-bit codes.
inline float dot4(uint4 q, float scale, float bias, thread const Chunk& c) {
  float d = dot_codes(q.x & 0xffffu, c.scaled[0]) + dot_codes(q.x >> 16, c.scaled[1]) +
            dot_codes(q.y & 0xffffu, c.scaled[2]) + dot_codes(q.y >> 16, c.scaled[3]) +
            dot_codes(q.z & 0xffffu, c.scaled[4]) + dot_codes(q.z >> 16, c.scaled[5]) +
            dot_codes(q.w & 0xffffu, c.scaled[6]) + dot_codes(q.w >> 16, c.scaled[7]);
  return scale * d + bias * c.sum;
}

// Four 8-bit codes times four activations.
inline float dot_bytes(uint word, float4 x) {
  return dot(float4(code(word & 0xffu), code(word >> 8 & 0xffu), code(word >> 16 & 0xffu), code(word >> 24)), x);
}

// sum over the chunk of w x for 32 8-bit codes.
inline float dot8(uint4 lo, uint4 hi, float scale, float bias, thread const Chunk& c) {
  float d = dot_bytes(lo.x, c.x[0]) + dot_bytes(lo.y, c.x[1]) + dot_bytes(lo.z, c.x[2]) + dot_bytes(lo.w, c.x[3]) +
            dot_bytes(hi.x, c.x[4]) + dot_bytes(hi.y, c.x[5]) + dot_bytes(hi.z, c.x[6]) + dot_bytes(hi.w, c.x[7]);
  return scale * d + bias * c.sum;
}

// The two bfloats of a word as floats, low half first.
inline float2 bfloats(uint word) { return float2(as_type<float>(word << 16), as_type<float>(word & 0xffff0000u)); }

// The most experts a kernel can route to, and the most it can choose.
constant constexpr uint MAX_EXPERTS = 256;
constant constexpr uint MAX_CHOSEN = 16;

// The experts with the `chosen` largest logits, best first, lowest id first among equals; their scores are the
// softmax over those logits, which equals the softmax over all, renormalised. One simdgroup computes them; the
// results are for others to read behind a barrier.
inline void choose_experts(device const float* logits, uint experts, uint chosen, uint lane,
                           threadgroup uint* ids, threadgroup float* scores) {
  float v[MAX_EXPERTS / 32];
  uint taken = 0;
  for (uint i = 0; i < MAX_EXPERTS / 32; i++) v[i] = i * 32 + lane < experts ? logits[i * 32 + lane] : -INFINITY;
  float first = 0.0f, sum = 0.0f, mine = 0.0f;
  uint my_id = 0;
  for (uint n = 0; n < chosen; n++) {
    float best = -INFINITY;
    uint at = experts;
    for (uint i = 0; i < MAX_EXPERTS / 32; i++) {
      bool free = i * 32 + lane < experts && (taken >> i & 1u) == 0;
      if (free && (v[i] > best || at == experts)) {
        best = v[i];
        at = i * 32 + lane;
      }
    }
    float top = simd_max(best);
    uint id = simd_min(best == top ? at : experts);
    // A NaN equals nothing: some expert is chosen all the same, and the NaN reaches the result through its score.
    id = min(id, experts - 1);
    if (id % 32 == lane) taken |= 1u << (id / 32);
    if (n == 0) first = top;
    float e = exp(top - first);
    sum += e;
    if (lane == n) {
      mine = e;
      my_id = id;
    }
  }
  if (lane < chosen) {
    ids[lane] = my_id;
    scores[lane] = mine / sum;
  }
}
