// Full attention of a chunk (arXiv:2205.14135), causal, over the cached prefix and the chunk itself, with GQA packing:
// a tile's 32 rows are the HEADS query heads of one KV head for 32 / HEADS tokens, so that they share every key and
// value that is read.
#include "attention.metal.h"

constant constexpr uint PREFILL_ROWS = 32;        // queries of a tile
constant constexpr uint PREFILL_POSITIONS = 64;   // positions taken at once
constant constexpr uint PREFILL_SIMDGROUPS = 4;
constant constexpr uint PREFILL_DIMS = HEAD_DIM / PREFILL_SIMDGROUPS;  // dimensions of the result a simdgroup has
constant constexpr uint HALVES_POSITIONS = 64;    // positions of a threadgroup of attention_halves
constant constexpr uint QUERY_PITCH = HEAD_DIM + 8;
constant constexpr uint SCORE_PITCH = PREFILL_POSITIONS + 4;

// What the matrix unit takes, M, is half or float. For floats, keys and values, C, are the cache's bfloats and become floats in
// registers; for halves, attention_halves has made halves of them before. Queries are halves in either case: of 32 rows of
// 256 floats there is no room for anything else in threadgroup memory, and halves (11 bits) add an eighth of the rounding
// that the cache's keys (8 bits) have already. Queries are normed and divided by 16, so that they are far from the ends of
// half's range.
template <typename C, typename M>
inline void load_cached(thread simdgroup_matrix<M, 8, 8>& m, device const C* p, bool transpose) {
  simdgroup_matrix<C, 8, 8> n;
  simdgroup_load(n, p, HEAD_DIM, ulong2(0, 0), transpose);
  for (uint e = 0; e < 2; e++) m.thread_elements()[e] = M(float(n.thread_elements()[e]));
}
// An element of type Q in threadgroup memory as one of type M.
template <typename M, typename Q>
inline void load_staged(thread simdgroup_matrix<M, 8, 8>& m, threadgroup const Q* p, uint pitch) {
  simdgroup_matrix<Q, 8, 8> n;
  simdgroup_load(n, p, pitch);
  for (uint e = 0; e < 2; e++) m.thread_elements()[e] = M(float(n.thread_elements()[e]));
}
// Softmax weights are at most 2 to this power: as halves they then have all their bits down to 2^-29 of the largest, where
// a long context may have most of its positions. The sum they are divided by has the same factor.
template <typename M> inline float weight_exponent() { return sizeof(M) == sizeof(half) ? 15.0f : 0.0f; }

// Norms and rotation of q and k; k and v to the cache.
//
// Replaces: two norms, two rotations, two cache writes, conversions: 8 dispatches.
// Grid: (heads + 2 kv_heads, ceil((tokens + 7) / 4)); threadgroup 128: a simdgroup has one head of one token.
// projected [tokens, stride] f32: per head 256 query values then 256 gate values; then k, then v of all KV heads.
// queries [tokens, heads, 256] half, times log2(e) / 16, so that exp2 of a product with a key is the softmax's.
// keys, values [slots, kv_heads, capacity, 256] bfloat; capacity is a multiple of 8. The values of the positions that
// fill up the last 8 are set to zero: attention_prefill takes 8 at a time, and zero weights must not meet a NaN.
[[kernel, max_total_threads_per_threadgroup(PREFILL_SIMDGROUPS * 32)]] void attention_prepare(
    device const float* projected [[buffer(0)]], device const bfloat* q_gain [[buffer(1)]],
    device const bfloat* k_gain [[buffer(2)]], device const uint2* rates [[buffer(3)]],
    device const PrefillChunk* chunk [[buffer(4)]], device half* queries [[buffer(5)]],
    device bfloat* keys [[buffer(6)]], device bfloat* values [[buffer(7)]], constant AttentionShape& shape [[buffer(8)]],
    uint2 tg [[threadgroup_position_in_grid]], uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  uint token = tg.y * PREFILL_SIMDGROUPS + sg, tokens = chunk->tokens, position = chunk->position + token;
  device const float* in = projected + token * shape.stride;
  if (tg.x < shape.heads) {
    if (token < tokens) {
      float v[PER_LANE];
      for (uint j = 0; j < PER_LANE; j++) v[j] = in[tg.x * 2 * HEAD_DIM + j * 32 + lane];
      norm_and_rotate(v, q_gain, rates, position, shape.eps, lane);
      device half* out = queries + (token * shape.heads + tg.x) * HEAD_DIM;
      for (uint j = 0; j < PER_LANE; j++) out[j * 32 + lane] = half(fit<half>(v[j] * (M_LOG2E_F / 16.0f)));
    }
    return;
  }
  uint i = tg.x - shape.heads, kv_head = i % shape.kv_heads;
  uint at = ((chunk->slot * shape.kv_heads + kv_head) * shape.capacity + position) * HEAD_DIM;
  device const float* source = in + shape.heads * 2 * HEAD_DIM + i * HEAD_DIM;
  if (i < shape.kv_heads) {
    if (token < tokens) {
      float v[PER_LANE];
      for (uint j = 0; j < PER_LANE; j++) v[j] = source[j * 32 + lane];
      norm_and_rotate(v, k_gain, rates, position, shape.eps, lane);
      for (uint j = 0; j < PER_LANE; j++) keys[at + j * 32 + lane] = bfloat(v[j]);
    }
  } else if (token < tokens) {
    for (uint j = 0; j < PER_LANE; j++) values[at + j * 32 + lane] = bfloat(source[j * 32 + lane]);
  } else if (position < (chunk->position + tokens + 7) / 8 * 8) {
    for (uint j = 0; j < PER_LANE; j++) values[at + j * 32 + lane] = bfloat(0.0f);
  }
}

// A sequence's keys and values up to the chunk's end as halves, which bfloats are exact in from 2^-17 to 65,504; positions up to
// a multiple of 8, as attention_prefill takes them. Once for all tiles: a tile that does it for itself takes half as long again.
//
// Grid: (ceil(capacity / 64), kv_heads); threadgroup 128. half_keys, half_values [kv_heads, capacity, 256].
[[kernel, max_total_threads_per_threadgroup(PREFILL_SIMDGROUPS * 32)]] void attention_halves(
    device const bfloat4* keys [[buffer(0)]], device const bfloat4* values [[buffer(1)]],
    device half4* half_keys [[buffer(2)]], device half4* half_values [[buffer(3)]],
    device const PrefillChunk* chunk [[buffer(4)]], constant AttentionShape& shape [[buffer(5)]],
    uint2 tg [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]]) {
  uint first = tg.x * HALVES_POSITIONS, end = min((chunk->position + chunk->tokens + 7) / 8 * 8, shape.capacity);
  if (first >= end) return;
  uint count = min(end - first, HALVES_POSITIONS) * (HEAD_DIM / 4);
  uint to = (tg.y * shape.capacity + first) * (HEAD_DIM / 4);
  uint from = to + chunk->slot * shape.kv_heads * shape.capacity * (HEAD_DIM / 4);
  for (uint i = tid; i < count; i += PREFILL_SIMDGROUPS * 32) {
    half_keys[to + i] = half4(fit4<half>(float4(keys[from + i])));
    half_values[to + i] = half4(fit4<half>(float4(values[from + i])));
  }
}

// softmax(q k^T) v, times the sigmoid of the output gate.
//
// Replaces: scores, mask, softmax, product with the values, gate, conversion: 6 dispatches.
// Grid: (ceil(tokens HEADS / 32), kv_heads); threadgroup 128. The last tiles, which see the most positions, go first.
// queries as attention_prepare leaves them; keys, values as that or, for halves, attention_halves; projected for the gates;
// y [tokens, heads * 256] M.
// Per 64 positions: each simdgroup scores 16 of them for all rows; then it has 8 rows' softmax; then it adds all
// positions to 64 of the dimensions, in registers. Keys and values go from device memory to registers once a tile.
// Weights take the scores' places.
template <uint HEADS, typename C, typename M>
[[kernel, max_total_threads_per_threadgroup(PREFILL_SIMDGROUPS * 32)]] void attention_prefill(
    device const half* queries [[buffer(0)]], device const C* keys [[buffer(1)]],
    device const C* values [[buffer(2)]], device const float* projected [[buffer(3)]],
    device M* y [[buffer(4)]], device const PrefillChunk* chunk [[buffer(5)]],
    constant AttentionShape& shape [[buffer(6)]], uint2 tg [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]], uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup uint4 query_tile[PREFILL_ROWS * QUERY_PITCH / 8];  // eight queries' values each
  threadgroup float scores[PREFILL_ROWS * SCORE_PITCH];
  threadgroup float shrink[PREFILL_SIMDGROUPS * 64];  // a diagonal matrix for each 8 rows
  threadgroup uint shrunk[PREFILL_SIMDGROUPS];        // whether it is not the identity
  threadgroup float divisors[PREFILL_ROWS];
  constexpr uint TOKENS = PREFILL_ROWS / HEADS;
  uint tokens = chunk->tokens, tiles = (tokens + TOKENS - 1) / TOKENS;
  if (tg.x >= tiles) return;
  uint first = (tiles - 1 - tg.x) * TOKENS, kv_head = tg.y, start = chunk->position;
  uint end = start + min(first + TOKENS, tokens);  // positions the tile sees
  // Halves are this sequence's alone.
  uint slot = sizeof(M) == sizeof(half) ? 0u : chunk->slot;
  uint row0 = (slot * shape.kv_heads + kv_head) * shape.capacity;
  device const C* k = keys + row0 * HEAD_DIM;
  device const C* v = values + row0 * HEAD_DIM + sg * PREFILL_DIMS;

  threadgroup const half* q = (threadgroup const half*)query_tile;
  // The tile's queries; zeros for tokens past the chunk, whose rows nobody stores.
  for (uint i = tid; i < PREFILL_ROWS * HEAD_DIM / 8; i += PREFILL_SIMDGROUPS * 32) {
    uint row = i / (HEAD_DIM / 8), part = i % (HEAD_DIM / 8), token = first + row / HEADS;
    uint4 eight = uint4(0u, 0u, 0u, 0u);
    if (token < tokens)
      eight = ((device const uint4*)queries)[(token * shape.heads + kv_head * HEADS + row % HEADS) * (HEAD_DIM / 8) + part];
    query_tile[row * (QUERY_PITCH / 8) + part] = eight;
  }
  for (uint i = tid; i < PREFILL_SIMDGROUPS * 64; i += PREFILL_SIMDGROUPS * 32) shrink[i] = 0.0f;
  threadgroup_barrier(mem_flags::mem_threadgroup);

  // Of the simdgroup's 8 rows, known to all its lanes: largest score (base 2) and sum of weights.
  float largest[8], sum[8];
  for (uint r = 0; r < 8; r++) {
    largest[r] = -INFINITY;
    sum[r] = 0.0f;
  }
  simdgroup_matrix<float, 8, 8> out[4][8];
  for (uint i = 0; i < 4; i++)
    for (uint j = 0; j < 8; j++) out[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);

  for (uint p0 = 0; p0 < end; p0 += PREFILL_POSITIONS) {
    uint p = p0 + sg * 16;
    simdgroup_matrix<float, 8, 8> s[4][2];
    for (uint i = 0; i < 4; i++)
      for (uint j = 0; j < 2; j++) s[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    for (uint d = 0; d < HEAD_DIM; d += 8) {
      simdgroup_matrix<M, 8, 8> mq[4], mk;
      for (uint i = 0; i < 4; i++) load_staged(mq[i], q + 8 * i * QUERY_PITCH + d, QUERY_PITCH);
      for (uint j = 0; j < 2; j++) {
        if (p + 8 * j >= end) continue;
        load_cached(mk, k + (p + 8 * j) * HEAD_DIM + d, true);
        for (uint i = 0; i < 4; i++) simdgroup_multiply_accumulate(s[i][j], mq[i], mk, s[i][j]);
      }
    }
    for (uint i = 0; i < 4; i++)
      for (uint j = 0; j < 2; j++) simdgroup_store(s[i][j], scores + 8 * i * SCORE_PITCH + sg * 16 + 8 * j, SCORE_PITCH);
    threadgroup_barrier(mem_flags::mem_threadgroup);

    bool any_shrunk = false;
    for (uint r = 0; r < 8; r++) {
      uint row = sg * 8 + r;
      // The last position the row sees. Rows past the chunk keep to what exists, so that they stay finite: times the
      // zeros of a diagonal matrix they must not become NaN in other rows.
      uint limit = min(start + first + row / HEADS, end - 1);
      float a = p0 + lane <= limit ? scores[row * SCORE_PITCH + lane] : -INFINITY;
      float b = p0 + 32 + lane <= limit ? scores[row * SCORE_PITCH + 32 + lane] : -INFINITY;
      // Every row sees position 0, so the largest is finite from the first step on.
      float top = max(largest[r], simd_max(max(a, b))), f = exp2(largest[r] - top);
      // As the matrix unit takes them; the sum is of the rounded weights, so that they add up to one exactly.
      float most = top - weight_exponent<M>();
      float wa = float(M(exp2(a - most))), wb = float(M(exp2(b - most)));
      sum[r] = sum[r] * f + simd_sum(wa + wb);
      scores[row * SCORE_PITCH + lane] = wa;
      scores[row * SCORE_PITCH + 32 + lane] = wb;
      any_shrunk = any_shrunk || top > largest[r];
      largest[r] = top;
      if (lane == 0) shrink[sg * 64 + r * 9] = f;
    }
    if (lane == 0) shrunk[sg] = any_shrunk && p0 > 0 ? 1u : 0u;
    threadgroup_barrier(mem_flags::mem_threadgroup);

    for (uint i = 0; i < 4; i++) {
      if (shrunk[i] != 0) {
        simdgroup_matrix<float, 8, 8> diagonal;
        simdgroup_load(diagonal, shrink + 64 * i, 8);
        for (uint j = 0; j < 8; j++) simdgroup_multiply(out[i][j], diagonal, out[i][j]);
      }
    }
    for (uint n = 0; n < PREFILL_POSITIONS && p0 + n < end; n += 8) {
      simdgroup_matrix<M, 8, 8> mw[4], mv;
      threadgroup const float* weights = scores + n;
      for (uint i = 0; i < 4; i++) load_staged(mw[i], weights + 8 * i * SCORE_PITCH, SCORE_PITCH);
      for (uint j = 0; j < 8; j++) {
        load_cached(mv, v + (p0 + n) * HEAD_DIM + 8 * j, false);
        for (uint i = 0; i < 4; i++) simdgroup_multiply_accumulate(out[i][j], mw[i], mv, out[i][j]);
      }
    }
    // The next scores take the weights' places.
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }

  if (lane == 0)
    for (uint r = 0; r < 8; r++) divisors[sg * 8 + r] = sum[r];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  threadgroup float* mine = scores + sg * 8 * SCORE_PITCH;
  for (uint i = 0; i < 4; i++) {
    for (uint j = 0; j < 8; j++) simdgroup_store(out[i][j], mine + 8 * j, SCORE_PITCH);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    for (uint r = 0; r < 8; r++) {
      uint row = 8 * i + r, token = first + row / HEADS, head = kv_head * HEADS + row % HEADS;
      if (token >= tokens) continue;
      for (uint c = lane; c < PREFILL_DIMS; c += 32) {
        uint dim = sg * PREFILL_DIMS + c;
        float gate = projected[token * shape.stride + head * 2 * HEAD_DIM + HEAD_DIM + dim];
        y[(token * shape.heads + head) * HEAD_DIM + dim] = M(fit<M>(mine[r * SCORE_PITCH + c] / divisors[row] * sigmoid(gate)));
      }
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
  }
}
#define FLASH(name, heads, cached, matrix) \
  template [[host_name(name #heads)]] [[kernel]] \
  decltype(attention_prefill<heads, cached, matrix>) attention_prefill<heads, cached, matrix>;
FLASH("attention_prefill_", 1, half, half)
FLASH("attention_prefill_", 2, half, half)
FLASH("attention_prefill_", 4, half, half)
FLASH("attention_prefill_", 8, half, half)
FLASH("attention_prefill_float_", 1, bfloat, float)
FLASH("attention_prefill_float_", 2, bfloat, float)
FLASH("attention_prefill_float_", 4, bfloat, float)
FLASH("attention_prefill_float_", 8, bfloat, float)
