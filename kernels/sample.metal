// The next token from the logits, on the GPU, into the slot that the next step's embedding reads.
#include "common.metal.h"

constant constexpr uint SAMPLE_THREADS = 256;
constant constexpr uint SAMPLE_SIMDGROUPS = SAMPLE_THREADS / 32;

struct ArgmaxShape {
  uint vocab;   // floats between two tokens' logits
  uint valid;   // ids below this may be chosen
  uint block;   // logits of one threadgroup
  uint blocks;  // threadgroups a token
};

// A logit and its id; the larger logit is better, the lower id among equals.
struct Candidate {
  float logit;
  uint id;
};
inline bool better(float a, uint a_id, float b, uint b_id) { return a > b || (a == b && a_id < b_id); }

// The best of the threadgroup's candidates, known to every thread of simdgroup 0. NaN is never better, so a row of
// NaN gives id UINT_MAX, which the host reports.
inline Candidate best_of_group(float logit, uint id, uint sg, uint lane, threadgroup float* logits, threadgroup uint* ids) {
  float top = simd_max(logit);
  uint at = simd_min(logit == top ? id : UINT_MAX);
  if (lane == 0) {
    logits[sg] = top;
    ids[sg] = at;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  logit = lane < SAMPLE_SIMDGROUPS ? logits[lane] : -INFINITY;
  id = lane < SAMPLE_SIMDGROUPS ? ids[lane] : UINT_MAX;
  Candidate c;
  c.logit = simd_max(logit);
  c.id = simd_min(logit == c.logit ? id : UINT_MAX);
  return c;
}

// Best of each block of logits. Grid: (blocks, tokens); threadgroup 256.
// logits [tokens, vocab] f32; best_logits, best_ids [tokens, blocks].
[[kernel, max_total_threads_per_threadgroup(SAMPLE_THREADS)]] void argmax_blocks(
    device const float* logits [[buffer(0)]], device float* best_logits [[buffer(1)]],
    device uint* best_ids [[buffer(2)]], constant ArgmaxShape& shape [[buffer(3)]],
    uint2 tg [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float group_logits[SAMPLE_SIMDGROUPS];
  threadgroup uint group_ids[SAMPLE_SIMDGROUPS];
  uint end = min((tg.x + 1) * shape.block, shape.valid), id = UINT_MAX;
  float logit = -INFINITY;
  for (uint i = tg.x * shape.block + tid; i < end; i += SAMPLE_THREADS) {
    float v = logits[tg.y * shape.vocab + i];
    if (better(v, i, logit, id)) {
      logit = v;
      id = i;
    }
  }
  Candidate c = best_of_group(logit, id, sg, lane, group_logits, group_ids);
  if (tid == 0) {
    best_logits[tg.y * shape.blocks + tg.x] = c.logit;
    best_ids[tg.y * shape.blocks + tg.x] = c.id;
  }
}

// Best of the blocks, into the token slot. Grid: (1, tokens); threadgroup 256. ids [tokens].
[[kernel, max_total_threads_per_threadgroup(SAMPLE_THREADS)]] void argmax_final(
    device const float* best_logits [[buffer(0)]], device const uint* best_ids [[buffer(1)]],
    device uint* ids [[buffer(2)]], constant ArgmaxShape& shape [[buffer(3)]],
    uint2 tg [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float group_logits[SAMPLE_SIMDGROUPS];
  threadgroup uint group_ids[SAMPLE_SIMDGROUPS];
  uint id = UINT_MAX;
  float logit = -INFINITY;
  for (uint i = tid; i < shape.blocks; i += SAMPLE_THREADS) {
    float v = best_logits[tg.y * shape.blocks + i];
    uint at = best_ids[tg.y * shape.blocks + i];
    if (better(v, at, logit, id)) {
      logit = v;
      id = at;
    }
  }
  Candidate c = best_of_group(logit, id, sg, lane, group_logits, group_ids);
  if (tid == 0) ids[tg.y] = c.id;
}
