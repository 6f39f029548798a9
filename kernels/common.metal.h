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

// A value on its way into an element of type T, float or half. A half ends at 65,504: what is larger but finite becomes that,
// so one value out of range is a bounded error and no infinity; what is not finite stays so and is found in the results.
template <typename T> inline float fit(float x) {
  bool beyond = sizeof(T) == sizeof(half) && abs(x) > 65504.0f && abs(x) < INFINITY;
  return beyond ? copysign(65504.0f, x) : x;
}
template <typename T> inline float4 fit4(float4 v) {
  return float4(fit<T>(v.x), fit<T>(v.y), fit<T>(v.z), fit<T>(v.w));
}

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

// Activations in threadgroup memory, for all simdgroups of the threadgroup: float4 j of chunk i at [j * pitch + i],
// so that neighbouring lanes, which take neighbouring chunks, read neighbouring addresses; the odd pitch keeps the
// writes apart too. Read from device memory directly, a lane's 128 bytes would be 128 bytes from the next lane's:
// that was 4 times slower than all the rest (H200, 248,320 rows of 2,048 columns).
inline uint pitch_of(uint chunks) { return chunks + 1; }
// Puts the four activations from column 4 i.
inline void stage(threadgroup float4* staged, uint pitch, uint i, float4 v) { staged[i % 8 * pitch + i / 8] = v; }

// For 4-bit codes activations are staged divided by 1, 16, 256 and 4096 in turn (exact), so that codes need masking
// only: (word & 0xf0) is 16 times the second code.
inline float4 narrow() { return float4(1.0f, 1.0f / 16.0f, 1.0f / 256.0f, 1.0f / 4096.0f); }
inline float4 narrow_back() { return float4(1.0f, 16.0f, 256.0f, 4096.0f); }

// 32 activations of a lane as staged, and the sum of the activations themselves.
struct Chunk {
  float4 x[8];
  float sum;
};
inline Chunk load_chunk(threadgroup const float4* staged, uint pitch, uint i, float4 back) {
  Chunk c;
  float4 s = float4(0.0f);
  for (uint j = 0; j < 8; j++) {
    c.x[j] = staged[j * pitch + i];
    s += c.x[j];
  }
  c.sum = dot(s, back);
  return c;
}

inline float across(float4 v) { return (v.x + v.y) + (v.z + v.w); }

// Four 4-bit codes in the low 16 bits, each times a power of 16.
inline float4 codes4(uint q) {
  return float4(code(q & 0xfu), code(q & 0xf0u), code(q & 0xf00u), code(q & 0xf000u));
}
// sum over the chunk of w x for 32 4-bit codes.
inline float dot4(uint4 q, float scale, float bias, thread const Chunk& c) {
  float4 d = codes4(q.x) * c.x[0];
  d = fma(codes4(q.x >> 16), c.x[1], d);
  d = fma(codes4(q.y), c.x[2], d);
  d = fma(codes4(q.y >> 16), c.x[3], d);
  d = fma(codes4(q.z), c.x[4], d);
  d = fma(codes4(q.z >> 16), c.x[5], d);
  d = fma(codes4(q.w), c.x[6], d);
  d = fma(codes4(q.w >> 16), c.x[7], d);
  return fma(scale, across(d), bias * c.sum);
}

// Four 8-bit codes.
inline float4 codes8(uint q) {
  return float4(code(q & 0xffu), code(q >> 8 & 0xffu), code(q >> 16 & 0xffu), code(q >> 24));
}
// sum over the chunk of w x for 32 8-bit codes.
inline float dot8(uint4 lo, uint4 hi, float scale, float bias, thread const Chunk& c) {
  float4 d = codes8(lo.x) * c.x[0];
  d = fma(codes8(lo.y), c.x[1], d);
  d = fma(codes8(lo.z), c.x[2], d);
  d = fma(codes8(lo.w), c.x[3], d);
  d = fma(codes8(hi.x), c.x[4], d);
  d = fma(codes8(hi.y), c.x[5], d);
  d = fma(codes8(hi.z), c.x[6], d);
  d = fma(codes8(hi.w), c.x[7], d);
  return fma(scale, across(d), bias * c.sum);
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
