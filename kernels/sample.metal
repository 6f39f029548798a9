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

// The best of the threadgroup's candidates, known to every thread of simdgroup 0.
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
// logits [tokens, vocab] f32; best_logits, best_ids [tokens, blocks]. A block with a logit that is not finite gives
// infinity and the id UINT_MAX, which is better than all others and which the host reports.
[[kernel, max_total_threads_per_threadgroup(SAMPLE_THREADS)]] void argmax_blocks(
    device const float* logits [[buffer(0)]], device float* best_logits [[buffer(1)]],
    device uint* best_ids [[buffer(2)]], constant ArgmaxShape& shape [[buffer(3)]],
    uint2 tg [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float group_logits[SAMPLE_SIMDGROUPS];
  threadgroup uint group_ids[SAMPLE_SIMDGROUPS];
  uint end = min((tg.x + 1) * shape.block, shape.valid), id = UINT_MAX;
  float logit = -INFINITY;
  bool finite = true;
  for (uint i = tg.x * shape.block + tid; i < end; i += SAMPLE_THREADS) {
    float v = logits[tg.y * shape.vocab + i];
    finite = finite && abs(v) <= FLT_MAX;
    if (better(v, i, logit, id)) {
      logit = v;
      id = i;
    }
  }
  if (!finite) {
    logit = INFINITY;
    id = UINT_MAX;
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

// ---- drawing a token: temperature, top-k, top-p, min-p -----------------------------------------------------------

constant constexpr uint DRAW_THREADS = 512;
constant constexpr uint DRAW_SIMDGROUPS = DRAW_THREADS / 32;
constant constexpr uint DIGITS = 16;

// How a sequence's tokens are drawn. Logit bias and penalties are the host's business: they need the history.
struct DrawParams {
  float temperature;  // 0: the most likely token
  float top_p;        // 1 and above: no limit
  float min_p;        // of the most likely token's probability; 0: no limit
  uint top_k;         // 0: no limit
  uint seed_low;
  uint seed_high;
};

// Philox4x32-10: a counter's random words (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3",
// SC 2011). Nothing is stored between tokens, and no thread needs another's.
inline uint4 philox(uint4 c, uint2 key) {
  for (uint round = 0; round < 10; round++) {
    uint high0 = mulhi(0xD2511F53u, c.x), low0 = 0xD2511F53u * c.x;
    uint high1 = mulhi(0xCD9E8D57u, c.z), low1 = 0xCD9E8D57u * c.z;
    c = uint4(high1 ^ c.y ^ key.x, low1, high0 ^ c.w ^ key.y, low0);
    key += uint2(0x9E3779B9u, 0xBB67AE85u);
  }
  return c;
}

// A standard Gumbel variate from a random word: -log of the exponential variate -log(1 - v), v = (word + 1/2) / 2^32.
// For small v the first terms of the series, since 1 - v would lose v's bits.
inline float gumbel(uint word) {
  float v = (float(word) + 0.5f) * (1.0f / 4294967296.0f);
  float e = v < 1e-3f ? v * (1.0f + v * (0.5f + v * (1.0f / 3.0f))) : -log(max(1.0f - v, 1.0f / 4294967296.0f));
  return -log(e);
}

// A logit's bits so that larger logits are larger integers; NaN is the smallest.
inline uint rank_of(float x) {
  uint bits = as_type<uint>(x);
  return x != x ? 0u : (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}
inline float logit_of(uint rank) { return as_type<float>((rank >> 31) != 0 ? rank & 0x7fffffffu : ~rank); }

// The logits of a token, and which blocks of them need looking at.
struct DrawRow {
  device const float* logits;
  device const float* best;  // of each block
  uint valid;
  uint block;
  uint blocks;
  uint floor;   // blocks whose best ranks below have no part in any set
  float top;    // the largest logit
  float scale;  // 1 / temperature
};

// The logits that rank above `rank`, and those of that rank with ids up to `id`. Sets of the most likely tokens all
// have this form, ties included.
struct TopSet {
  uint rank;
  uint id;
};
inline bool contains(TopSet set, uint rank, uint id) { return rank > set.rank || (rank == set.rank && id <= set.id); }

// What a search by digits sums up, and by which digits.
constant constexpr uint COUNT_RANKS = 0;
constant constexpr uint WEIGH_RANKS = 1;
constant constexpr uint COUNT_IDS = 2;  // of the logits at the set's rank; the lowest id is the largest number

// totals[sg][d] = measure of the set's logits whose number has `prefix` above the digit at `shift`, and there d.
// Sums are of a thread's logits in order, then over lanes, then (in reach) over simdgroups: always the same.
inline void digit_totals(DrawRow row, TopSet set, uint measure, uint prefix, uint shift, uint tid, uint sg, uint lane,
                         threadgroup float* totals) {
  float sums[DIGITS];
  for (uint d = 0; d < DIGITS; d++) sums[d] = 0.0f;
  for (uint b = 0; b < row.blocks; b++) {
    if (rank_of(row.best[b]) < row.floor) continue;
    uint end = min((b + 1) * row.block, row.valid);
    for (uint i = b * row.block + tid; i < end; i += DRAW_THREADS) {
      float x = row.logits[i];
      uint rank = rank_of(x), number = measure == COUNT_IDS ? ~i : rank;
      bool in = contains(set, rank, i) && (measure != COUNT_IDS || rank == set.rank);
      in = in && (shift == 28 || number >> (shift + 4) == prefix);
      float m = !in ? 0.0f : measure == WEIGH_RANKS ? exp((x - row.top) * row.scale) : 1.0f;
      for (uint d = 0; d < DIGITS; d++) sums[d] += (number >> shift & 15u) == d ? m : 0.0f;
    }
  }
  for (uint d = 0; d < DIGITS; d++) {
    float s = simd_sum(sums[d]);
    if (lane == 0) totals[sg * DIGITS + d] = s;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
}

// Where the measure, summed from the largest number down, reaches `target`. For weights the target is a share of all.
struct Reached {
  uint number;
  float above;   // measure of the larger numbers
  float size;    // measure of this number
  float target;  // as a measure
};
inline Reached reach(DrawRow row, TopSet set, uint measure, float target, uint tid, uint sg, uint lane,
                     threadgroup float* totals) {
  threadgroup float* found = totals + DRAW_SIMDGROUPS * DIGITS;
  Reached r = {0u, 0.0f, 0.0f, target};
  for (uint n = 0; n < 8; n++) {
    uint shift = 28 - 4 * n;
    digit_totals(row, set, measure, r.number, shift, tid, sg, lane, totals);
    if (sg == 0) {
      // A lane has a digit, the largest first.
      float total = 0.0f;
      if (lane < DIGITS)
        for (uint g = 0; g < DRAW_SIMDGROUPS; g++) total += totals[g * DIGITS + DIGITS - 1 - lane];
      float above = r.above + simd_prefix_exclusive_sum(total), goal = r.target;
      if (n == 0 && measure == WEIGH_RANKS) goal *= simd_sum(total);
      uint first = simd_min(total > 0.0f && above + total >= goal ? lane : DIGITS);
      // If rounding leaves the sum short of the target, the smallest number there is stands.
      uint last = simd_max(total > 0.0f && lane < DIGITS ? lane : 0u);
      if (lane == (first < DIGITS ? first : last)) {
        found[0] = float(DIGITS - 1 - lane);
        found[1] = above;
        found[2] = total;
        found[3] = goal;
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    r.number = r.number * 16 + uint(found[0]);
    r.above = found[1];
    r.size = found[2];
    r.target = found[3];
  }
  return r;
}

// The smallest set of the most likely tokens within `set` whose measure reaches `target`.
inline TopSet cut(DrawRow row, TopSet set, uint measure, float target, uint tid, uint sg, uint lane,
                  threadgroup float* totals) {
  Reached r = reach(row, set, measure, target, tid, sg, lane, totals);
  float each = measure == WEIGH_RANKS ? exp((logit_of(r.number) - row.top) * row.scale) : 1.0f;
  float ties = rint(r.size / each), needed = max(1.0f, ceil((r.target - r.above) / each));
  TopSet smaller = {r.number, r.number == set.rank ? set.id : UINT_MAX};
  if (needed < ties) smaller.id = ~reach(row, smaller, COUNT_IDS, needed, tid, sg, lane, totals).number;
  return smaller;
}

// Draws a token into the token slot: temperature, then top-k, top-p, min-p as lily-engine's sampler orders and
// defines them, sets exact with ties to the lower id. The draw is the arg-max of logit / temperature + Gumbel noise,
// which has the softmax's distribution; the noise of an id is word 0 of philox((id, position, 0, 0), seed), so a
// token depends on logits, parameters and position alone. An id of UINT_MAX says that a logit is not finite.
//
// Behind argmax_blocks, in argmax_final's place. Grid: (1, tokens); threadgroup 512.
// logits [tokens, vocab] f32; best_logits, best_ids [tokens, blocks]; params [tokens]; positions [tokens]: of the
// token that the logits follow; ids [tokens]. With top-k of at most `blocks` only those blocks are read whose best
// is among the k best of all blocks.
[[kernel, max_total_threads_per_threadgroup(DRAW_THREADS)]] void draw(
    device const float* logits [[buffer(0)]], device const float* best_logits [[buffer(1)]],
    device const uint* best_ids [[buffer(2)]], device const DrawParams* params [[buffer(3)]],
    device const uint* positions [[buffer(4)]], device uint* ids [[buffer(5)]], constant ArgmaxShape& shape [[buffer(6)]],
    uint2 tg [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float totals[DRAW_SIMDGROUPS * DIGITS + 4];
  threadgroup float marks[2];  // the largest logit, and the k-th best block's
  threadgroup uint best_id[1];
  threadgroup float group_scores[DRAW_SIMDGROUPS];
  threadgroup uint group_ids[DRAW_SIMDGROUPS];
  uint token = tg.y;
  device const float* best = best_logits + token * shape.blocks;
  float score = -INFINITY;
  uint id = UINT_MAX;
  if (sg == 0) {
    for (uint b = lane; b < shape.blocks; b += 32) {
      uint of_block = best_ids[token * shape.blocks + b];
      if (better(best[b], of_block, score, id)) {
        score = best[b];
        id = of_block;
      }
    }
    float top = simd_max(score);
    id = simd_min(score == top ? id : UINT_MAX);
    if (lane == 0) {
      marks[0] = top;
      best_id[0] = id;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float most = marks[0];
  DrawParams p = params[token];
  // An infinite logit leaves nothing to draw from.
  if (p.temperature <= 0.0f || most > FLT_MAX || most < -FLT_MAX) {
    if (tid == 0) ids[token] = best_id[0];
    return;
  }

  DrawRow row = {logits + token * shape.vocab, best, shape.valid, shape.block, shape.blocks, 0u, most, 1.0f / p.temperature};
  TopSet set = {1u, UINT_MAX};  // all but NaN
  if (p.top_k > 0 && p.top_k < shape.valid) {
    if (p.top_k <= shape.blocks) {
      // Each of the k best blocks has a logit of at least the k-th block's best: no smaller one is among the k.
      for (uint b = tid; b < shape.blocks; b += DRAW_THREADS) {
        uint ahead = 0;
        for (uint i = 0; i < shape.blocks; i++) ahead += better(best[i], i, best[b], b) ? 1u : 0u;
        if (ahead == p.top_k - 1) marks[1] = best[b];
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
      row.floor = rank_of(marks[1]);
    }
    set = cut(row, set, COUNT_RANKS, float(p.top_k), tid, sg, lane, totals);
  }
  if (p.top_p < 1.0f) set = cut(row, set, WEIGH_RANKS, p.top_p, tid, sg, lane, totals);

  score = -INFINITY;
  id = UINT_MAX;
  uint position = positions[token];
  for (uint b = 0; b < row.blocks; b++) {
    if (rank_of(best[b]) < row.floor) continue;
    uint end = min((b + 1) * row.block, row.valid);
    for (uint i = b * row.block + tid; i < end; i += DRAW_THREADS) {
      float x = row.logits[i], z = (x - most) * row.scale;
      if (contains(set, rank_of(x), i) && exp(z) >= p.min_p) {
        float s = z + gumbel(philox(uint4(i, position, 0u, 0u), uint2(p.seed_low, p.seed_high)).x);
        if (better(s, i, score, id)) {
          score = s;
          id = i;
        }
      }
    }
  }
  float group_best = simd_max(score);
  id = simd_min(score == group_best ? id : UINT_MAX);
  if (lane == 0) {
    group_scores[sg] = group_best;
    group_ids[sg] = id;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  score = lane < DRAW_SIMDGROUPS ? group_scores[lane] : -INFINITY;
  id = lane < DRAW_SIMDGROUPS ? group_ids[lane] : UINT_MAX;
  group_best = simd_max(score);
  id = simd_min(score == group_best ? id : UINT_MAX);
  if (tid == 0) ids[token] = id;
}
