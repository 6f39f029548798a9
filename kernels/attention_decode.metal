// Full attention of one token over its cache, split over the positions, with GQA packing: the HEADS query heads of a
// KV head share every row of K and V that is read.
#include "attention.metal.h"

constant constexpr uint ATTENTION_SIMDGROUPS = 4;

// Sums N values over the simdgroup with 31 + N shuffles less the N reductions' 5 each: lanes trade halves of the
// list until each holds one value. Lane l ends with the sum of value reverse_index<N>(l % N).
template <uint N> inline float sum_to_lanes(thread float (&v)[N], uint lane) {
  uint bit = 1;
  for (uint n = N / 2; n >= 1; n /= 2) {
    bool upper = (lane & bit) != 0;
    for (uint i = 0; i < n; i++) {
      float keep = upper ? v[i + n] : v[i], give = upper ? v[i] : v[i + n];
      v[i] = keep + simd_shuffle_xor(give, ushort(bit));
    }
    bit *= 2;
  }
  float sum = v[0];
  for (; bit < 32; bit *= 2) sum += simd_shuffle_xor(sum, ushort(bit));
  return sum;
}
// The lane (below N) that holds value i: i with its log2(N) bits in reverse order. Its own inverse.
template <uint N> inline uint reverse_index(uint i) {
  uint r = 0;
  for (uint n = 1; n < N; n *= 2) r = r * 2 + (i / n) % 2;
  return r;
}

// Running softmax of HEADS heads (arXiv:1805.02867), base 2: the lane's own head's largest score and sum, and all
// heads' weighted values at the lane's eight dimensions.
template <uint HEADS> struct Running {
  float largest;
  float sum;
  float values[HEADS][PER_LANE];
};

// Takes one position in: k and v are the lane's dimensions of its rows.
template <uint HEADS>
inline void attend(thread Running<HEADS>& t, thread const float (&q)[HEADS][PER_LANE], thread const float (&k)[PER_LANE],
                   thread const float (&v)[PER_LANE], uint lane) {
  float part[HEADS];
  for (uint h = 0; h < HEADS; h++) {
    part[h] = 0.0f;
    for (uint j = 0; j < PER_LANE; j++) part[h] += q[h][j] * k[j];
  }
  float score = sum_to_lanes<HEADS>(part, lane), largest = max(t.largest, score);
  if (simd_any(largest > t.largest)) {
    float shrink = exp2(t.largest - largest);
    t.sum *= shrink;
    for (uint h = 0; h < HEADS; h++) {
      float f = simd_shuffle(shrink, ushort(reverse_index<HEADS>(h)));
      for (uint j = 0; j < PER_LANE; j++) t.values[h][j] *= f;
    }
    t.largest = largest;
  }
  float weight = exp2(score - largest);
  t.sum += weight;
  for (uint h = 0; h < HEADS; h++) {
    float f = simd_shuffle(weight, ushort(reverse_index<HEADS>(h)));
    for (uint j = 0; j < PER_LANE; j++) t.values[h][j] += f * v[j];
  }
}

// Eight neighbouring bfloats as floats.
inline void widen(uint4 row, thread float (&v)[PER_LANE]) {
  for (uint j = 0; j < 4; j++) {
    float2 pair = bfloats(row[j]);
    v[2 * j] = pair.x;
    v[2 * j + 1] = pair.y;
  }
}

// The positions of one split: a fixed number, or (BLOCKS) an equal share of all positions for each of `splits`
// blocks. The number of blocks then does not depend on the context, and none waits for a shorter one: for contexts of
// 32K and more, where 64 to 128 blocks keep a whole GPU busy.
template <bool BLOCKS> inline uint split_span(constant AttentionShape& shape, uint position) {
  return BLOCKS ? (position / shape.splits / 8 + 1) * 8 : shape.span;
}

// Replaces: norms of q and k, rotation, cache write, and the first half of attention: 6 dispatches.
// attention_split: for short contexts. attention_blocks: for long ones, see split_span; shape.span is not used.
// Grid: (splits, kv_heads, tokens of different sequences); threadgroup 128. A split past the token ends at once.
// projected [tokens, stride] f32: per head 256 query values then 256 gate values; then k, then v of all KV heads.
// q_gain, k_gain [256] bfloat; rates [32] uint2, see half_turns; positions, slots [tokens].
// keys, values [slots, kv_heads, capacity, 256] bfloat: the token's own rows are written by its split.
// partial [tokens, heads, splits, 256] f32: weighted sums of values, not yet divided;
// weights [tokens, heads, splits, 2] f32: largest score (base 2) and sum of weights.
template <uint HEADS, bool BLOCKS>
[[kernel, max_total_threads_per_threadgroup(ATTENTION_SIMDGROUPS * 32)]] void attention_split(
    device const float* projected [[buffer(0)]], device const bfloat* q_gain [[buffer(1)]],
    device const bfloat* k_gain [[buffer(2)]], device const uint2* rates [[buffer(3)]],
    device const uint* positions [[buffer(4)]], device const uint* slots [[buffer(5)]],
    device bfloat* keys [[buffer(6)]], device bfloat* values [[buffer(7)]], device float* partial [[buffer(8)]],
    device float* weights [[buffer(9)]], constant AttentionShape& shape [[buffer(10)]],
    uint3 tg [[threadgroup_position_in_grid]], uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float queries[HEADS * HEAD_DIM];
  threadgroup float own[2 * HEAD_DIM];  // the token's key and value, as the cache holds them
  threadgroup float others[2 * HEADS * HEAD_DIM];
  threadgroup float others_softmax[2 * 64];
  uint split = tg.x, kv_head = tg.y, token = tg.z;
  uint position = positions[token], span = split_span<BLOCKS>(shape, position), first = split * span;
  if (first > position) return;
  uint end = min(first + span, position + 1);
  bool newest = end == position + 1;
  device const float* in = projected + token * shape.stride;
  uint row0 = (slots[token] * shape.kv_heads + kv_head) * shape.capacity;

  // Queries, scaled by 1/sqrt(256) and log2(e), so that exp2 gives the softmax.
  for (uint h = sg; h < HEADS; h += ATTENTION_SIMDGROUPS) {
    float v[PER_LANE];
    for (uint j = 0; j < PER_LANE; j++) v[j] = in[(kv_head * HEADS + h) * 2 * HEAD_DIM + j * 32 + lane];
    norm_and_rotate(v, q_gain, rates, position, shape.eps, lane);
    for (uint j = 0; j < PER_LANE; j++) queries[h * HEAD_DIM + j * 32 + lane] = v[j] * (M_LOG2E_F / 16.0f);
  }
  if (newest && sg == ATTENTION_SIMDGROUPS - 1) {
    device const float* k = in + shape.heads * 2 * HEAD_DIM + kv_head * HEAD_DIM;
    device const float* v = k + shape.kv_heads * HEAD_DIM;
    float x[PER_LANE];
    for (uint j = 0; j < PER_LANE; j++) x[j] = k[j * 32 + lane];
    norm_and_rotate(x, k_gain, rates, position, shape.eps, lane);
    for (uint j = 0; j < PER_LANE; j++) {
      uint i = j * 32 + lane;
      bfloat kr = bfloat(x[j]), vr = bfloat(v[i]);
      keys[(row0 + position) * HEAD_DIM + i] = kr;
      values[(row0 + position) * HEAD_DIM + i] = vr;
      own[i] = float(kr);
      own[HEAD_DIM + i] = float(vr);
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  // From here on a lane holds eight neighbouring dimensions.
  float q[HEADS][PER_LANE];
  Running<HEADS> t;
  t.largest = -INFINITY;
  t.sum = 0.0f;
  for (uint h = 0; h < HEADS; h++)
    for (uint j = 0; j < PER_LANE; j++) {
      q[h][j] = queries[h * HEAD_DIM + lane * PER_LANE + j];
      t.values[h][j] = 0.0f;
    }
  device const uint4* k_rows = (device const uint4*)(keys + row0 * HEAD_DIM) + lane;
  device const uint4* v_rows = (device const uint4*)(values + row0 * HEAD_DIM) + lane;
  uint cached = newest ? end - 1 : end;
  for (uint p = first + sg; p < cached; p += ATTENTION_SIMDGROUPS) {
    float k[PER_LANE], v[PER_LANE];
    widen(k_rows[p * 32], k);
    widen(v_rows[p * 32], v);
    attend<HEADS>(t, q, k, v, lane);
  }
  if (newest && sg == 0) {
    float k[PER_LANE], v[PER_LANE];
    for (uint j = 0; j < PER_LANE; j++) {
      k[j] = own[lane * PER_LANE + j];
      v[j] = own[HEAD_DIM + lane * PER_LANE + j];
    }
    attend<HEADS>(t, q, k, v, lane);
  }

  // The simdgroups' results become one: 2 and 3 hand theirs to 0 and 1, then 1 to 0.
  for (uint left = ATTENTION_SIMDGROUPS / 2; left >= 1; left /= 2) {
    if (sg >= left && sg < 2 * left) {
      uint to = sg - left;
      for (uint h = 0; h < HEADS; h++)
        for (uint j = 0; j < PER_LANE; j++) others[(to * HEADS + h) * HEAD_DIM + j * 32 + lane] = t.values[h][j];
      others_softmax[to * 64 + lane] = t.largest;
      others_softmax[to * 64 + 32 + lane] = t.sum;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (sg < left) {
      float theirs = others_softmax[sg * 64 + lane], largest = max(t.largest, theirs);
      // A simdgroup that saw no position has -inf, which must not meet itself.
      float mine = t.largest == -INFINITY ? 0.0f : exp2(t.largest - largest);
      float other = theirs == -INFINITY ? 0.0f : exp2(theirs - largest);
      t.sum = t.sum * mine + others_softmax[sg * 64 + 32 + lane] * other;
      t.largest = largest;
      for (uint h = 0; h < HEADS; h++) {
        ushort from = ushort(reverse_index<HEADS>(h));
        float a = simd_shuffle(mine, from), b = simd_shuffle(other, from);
        for (uint j = 0; j < PER_LANE; j++)
          t.values[h][j] = t.values[h][j] * a + others[(sg * HEADS + h) * HEAD_DIM + j * 32 + lane] * b;
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  if (sg == 0) {
    for (uint h = 0; h < HEADS; h++) {
      uint at = (token * shape.heads + kv_head * HEADS + h) * shape.splits + split;
      for (uint j = 0; j < PER_LANE; j++) partial[at * HEAD_DIM + lane * PER_LANE + j] = t.values[h][j];
    }
    if (lane < HEADS) {
      uint at = (token * shape.heads + kv_head * HEADS + reverse_index<HEADS>(lane)) * shape.splits + split;
      weights[at * 2] = t.largest;
      weights[at * 2 + 1] = t.sum;
    }
  }
}
#define SPLIT(name, heads, blocks)                          \
  template [[host_name("attention_" name #heads)]] [[kernel]] \
  decltype(attention_split<heads, blocks>) attention_split<heads, blocks>;
SPLIT("split_", 1, false)
SPLIT("split_", 2, false)
SPLIT("split_", 4, false)
SPLIT("split_", 8, false)
SPLIT("blocks_", 1, true)
SPLIT("blocks_", 2, true)
SPLIT("blocks_", 4, true)
SPLIT("blocks_", 8, true)

// Joins the splits, divides, and applies the output gate.
// Grid: (heads, tokens); threadgroup 256: a thread has one dimension. y [tokens, heads * 256] f32.
[[kernel, max_total_threads_per_threadgroup(HEAD_DIM)]] void attention_combine(
    device const float* projected [[buffer(0)]], device const uint* positions [[buffer(1)]],
    device const float* partial [[buffer(2)]], device const float2* weights [[buffer(3)]],
    device float* y [[buffer(4)]], constant AttentionShape& shape [[buffer(5)]],
    uint2 tg [[threadgroup_position_in_grid]], uint i [[thread_index_in_threadgroup]]) {
  uint head = tg.x, token = tg.y, at = (token * shape.heads + head) * shape.splits;
  uint used = positions[token] / shape.span + 1;
  float largest = -INFINITY;
  for (uint s = 0; s < used; s++) largest = max(largest, weights[at + s].x);
  float sum = 0.0f, value = 0.0f;
  for (uint s = 0; s < used; s++) {
    float2 w = weights[at + s];
    float f = exp2(w.x - largest);
    sum += w.y * f;
    value += partial[(at + s) * HEAD_DIM + i] * f;
  }
  float gate = projected[token * shape.stride + head * 2 * HEAD_DIM + HEAD_DIM + i];
  y[(token * shape.heads + head) * HEAD_DIM + i] = value / sum * sigmoid(gate);
}

constant constexpr uint COMBINE_SIMDGROUPS = 8;

// The same for attention_blocks: simdgroups share the blocks, a lane has eight dimensions.
// Grid: (heads, tokens); threadgroup 256. y [tokens, heads * 256] f32.
[[kernel, max_total_threads_per_threadgroup(COMBINE_SIMDGROUPS * 32)]] void attention_blocks_combine(
    device const float* projected [[buffer(0)]], device const uint* positions [[buffer(1)]],
    device const float4* partial [[buffer(2)]], device const float2* weights [[buffer(3)]],
    device float* y [[buffer(4)]], constant AttentionShape& shape [[buffer(5)]],
    uint2 tg [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float4 parts[COMBINE_SIMDGROUPS * HEAD_DIM / 4];
  uint head = tg.x, token = tg.y, at = (token * shape.heads + head) * shape.splits, position = positions[token];
  uint used = position / split_span<true>(shape, position) + 1;
  float largest = -INFINITY, sum = 0.0f;
  for (uint s = lane; s < used; s += 32) largest = max(largest, weights[at + s].x);
  largest = simd_max(largest);
  for (uint s = lane; s < used; s += 32) sum += weights[at + s].y * exp2(weights[at + s].x - largest);
  sum = simd_sum(sum);
  float4 a = float4(0.0f), b = float4(0.0f);
  for (uint s = sg; s < used; s += COMBINE_SIMDGROUPS) {
    float f = exp2(weights[at + s].x - largest);
    device const float4* row = partial + (at + s) * (HEAD_DIM / 4);
    a += row[lane] * f;
    b += row[32 + lane] * f;
  }
  parts[sg * (HEAD_DIM / 4) + lane] = a;
  parts[sg * (HEAD_DIM / 4) + 32 + lane] = b;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float value = 0.0f;
  for (uint i = 0; i < COMBINE_SIMDGROUPS; i++) value += ((threadgroup const float*)parts)[i * HEAD_DIM + tid];
  float gate = projected[token * shape.stride + head * 2 * HEAD_DIM + HEAD_DIM + tid];
  y[(token * shape.heads + head) * HEAD_DIM + tid] = value / sum * sigmoid(gate);
}
