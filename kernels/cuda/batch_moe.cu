// Mixture of experts for several sequences (see batch.cu): the tokens of each expert together, its weights read once.
//
// An expert has one or two tokens, so the columns of an mma are used as for one token (see slice_product): the high and low
// bytes of four groups. A warp keeps 16 rows x 512 columns of codes in registers and takes the expert's tokens in turn.
struct Unit {
  uint4 w[2][4];        // rows g and g + 8; bytes 16 t of every 64
  u16 s[2][2], b[2][2];  // of group t of both halves
};
DEVICE u16 load_weight2(const void* p) {
  u16 v;
  asm volatile("ld.global.nc.L1::no_allocate.u16 %0, [%1];" : "=h"(v) : "l"(p));
  return v;
}
// Columns from 512 part.
DEVICE void load_unit(Unit& u, const RowPair& rows, u32 part, u32 lane) {
  u32 t = lane % 4;
#pragma unroll
  for (u32 r = 0; r < 2; r++) {
#pragma unroll
    for (u32 j = 0; j < 4; j++) u.w[r][j] = load_weights16(rows.codes[r] + part * SLICE + j * GROUP + t * 16);
#pragma unroll
    for (u32 c = 0; c < 2; c++) {
      u.s[r][c] = load_weight2(rows.scales[r] + part * 16 + c * 8 + t * 2);
      u.b[r][c] = load_weight2(rows.biases[r] + part * 16 + c * 8 + t * 2);
    }
  }
}
// The products with one vector: the lanes with t = 0 return row g, those with t = 1 row g + 8; the rest repeats them. `bytes`
// and `f`: the staged vector, and its column of scales and sums, at the unit's first group.
DEVICE float unit_product(const Unit& u, const u8* bytes, const float2* f, u32 vectors, u32 lane) {
  const u32 m = 0x0f0f0f0fu;
  u32 t = lane % 4, column = lane / 4, group = column / 2;
  // Columns 32 t of each pair of groups; the other group of the pair gets zeros.
  bool mine = group % 2 == t / 2;
  bytes += group * 128 + column % 2 * 64 + t % 2 * 32;
  float v0 = 0.0f, v1 = 0.0f;
#pragma unroll
  for (u32 c = 0; c < 2; c++) {
    uint4 x = make_uint4(0, 0, 0, 0), y = x;
    if (mine) {
      x = *(const uint4*)(bytes + c * 512);
      y = *(const uint4*)(bytes + c * 512 + 16);
    }
    float2 scale = f[(4 * c + t) * vectors];
    int d[2][4] = {{0, 0, 0, 0}, {0, 0, 0, 0}};
#pragma unroll
    for (u32 j = 0; j < 2; j++) {
      uint4 a = u.w[0][2 * c + j], b = u.w[1][2 * c + j];
      mma_bytes(d[j], a.x & m, b.x & m, a.x >> 4 & m, b.x >> 4 & m, x.x, x.y);
      mma_bytes(d[j], a.y & m, b.y & m, a.y >> 4 & m, b.y >> 4 & m, x.z, x.w);
      mma_bytes(d[j], a.z & m, b.z & m, a.z >> 4 & m, b.z >> 4 & m, y.x, y.y);
      mma_bytes(d[j], a.w & m, b.w & m, a.w >> 4 & m, b.w >> 4 & m, y.z, y.w);
    }
    // Column 2 t + 1 of group t, which lies in the pair t / 2.
    bool second = t / 2;
    int i0 = second ? d[1][0] * 256 + d[1][1] : d[0][0] * 256 + d[0][1];
    int i1 = second ? d[1][2] * 256 + d[1][3] : d[0][2] * 256 + d[0][3];
    v0 = fmaf(bfloat(u.s[0][c]), scale.x * (float)i0, fmaf(bfloat(u.b[0][c]), scale.y, v0));
    v1 = fmaf(bfloat(u.s[1][c]), scale.x * (float)i1, fmaf(bfloat(u.b[1][c]), scale.y, v1));
  }
  bool upper = t & 1;
  float v = (upper ? v1 : v0) + __shfl_xor_sync(ALL, upper ? v0 : v1, 1);
  return v + __shfl_xor_sync(ALL, v, 2);
}

// A group is an expert with up to eight of its tokens. An expert with more has several.
#define BATCH_CHOSEN 8
#define BATCH_PAIRS (BATCH_TOKENS * BATCH_CHOSEN)
#define NO_PAIR 0xffu
struct Grouped {
  Choice choice[BATCH_WARPS];  // first: read sixteen bytes at once
  u32 ids[BATCH_PAIRS];       // of pair 8 token + n: the token's n-th expert
  float scores[BATCH_PAIRS];
  u32 mask[256];              // of an expert: its tokens
  u32 begin[256];             // its first group
  u32 expert[BATCH_PAIRS];    // of a group
  u8 pairs[BATCH_PAIRS][8];   // of a group: its pairs, NO_PAIR where there are none
  u32 warp_groups[8];
  u32 count;
};
// Chooses and groups the experts of `tokens` tokens. All threads of the block, at least 512, call it. Ends with a barrier.
DEVICE void group_experts(const float* routed, u32 stride, u32 experts, u32 tokens, Grouped& g) {
  u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, pair = threadIdx.x;
  if (threadIdx.x < 256) g.mask[threadIdx.x] = 0;
  if (threadIdx.x < BATCH_PAIRS) ((uint2*)g.pairs)[threadIdx.x] = make_uint2(ALL, ALL);
  if (warp < tokens)
    choose_experts(routed + warp * stride, experts, BATCH_CHOSEN, lane, g.choice[warp], g.ids + warp * BATCH_CHOSEN,
                   g.scores + warp * BATCH_CHOSEN);
  __syncthreads();
  if (pair < tokens * BATCH_CHOSEN) atomicOr(g.mask + g.ids[pair], 1u << pair / BATCH_CHOSEN);
  __syncthreads();
  u32 groups = 0, before = 0;
  if (threadIdx.x < 256) {
    groups = (__popc(g.mask[threadIdx.x]) + 7) / 8;  // at most two
    u32 one = __ballot_sync(ALL, groups >= 1), two = __ballot_sync(ALL, groups >= 2), below = (1u << lane) - 1;
    before = __popc(one & below) + __popc(two & below);
    if (lane == 0) g.warp_groups[warp] = __popc(one) + __popc(two);
  }
  __syncthreads();
  if (threadIdx.x < 256) {
    for (u32 w = 0; w < warp; w++) before += g.warp_groups[w];
    g.begin[threadIdx.x] = before;
    for (u32 i = 0; i < groups; i++) g.expert[before + i] = threadIdx.x;
    if (threadIdx.x == 255) g.count = before + groups;
  }
  __syncthreads();
  if (pair < tokens * BATCH_CHOSEN) {
    u32 e = g.ids[pair], rank = __popc(g.mask[e] & ((1u << pair / BATCH_CHOSEN) - 1));
    g.pairs[g.begin[e] + rank / 8][rank % 8] = (u8)pair;
  }
  __syncthreads();
}

// h[pair] = silu(gate_e x) up_e x, x = rmsnorm(residual) of the pair's token (see native_moe_gate_up).
//
// A unit is 8 rows of gate and 8 of up of a group's expert; a block takes neighbouring units. Grid: (blocks, 1, ceil(tokens
// / 16)).
#define BATCH_TURN_UNITS 4
extern "C" __global__ void __launch_bounds__(BATCH_THREADS, 1)
    native_batch_gate_up(const __grid_constant__ MoeGateUpArgs a, const __grid_constant__ BatchLaunch l) {
  extern __shared__ __align__(128) u8 shared[];
  // A warp has two neighbouring slices.
  constexpr u32 parts_of = HIDDEN / SLICE / 2, sets = BATCH_WARPS / parts_of, per_expert = EXPERT_WIDTH / 8;
  constexpr u32 row_bytes = HIDDEN / 2, group_bytes = HIDDEN / GROUP * 2, unit_sums = parts_of * 8 * BATCH_SUMS;
  static_assert(BATCH_TURN_UNITS % sets == 0, "a warp's next unit is the same within and across turns");
  Grouped& grouped = *(Grouped*)shared;
  float* factors = (float*)(shared + (sizeof(Grouped) + 127) / 128 * 128);
  float* parts = factors + BATCH_TOKENS;
  float2* groups = (float2*)(parts + BATCH_TOKENS * BATCH_WARPS);
  u8* vectors = (u8*)(groups + HIDDEN / GROUP * BATCH_TOKENS);
  float* sums = (float*)(vectors + BATCH_TOKENS * BATCH_ROW(HIDDEN));
  u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, part = warp % parts_of, set = warp / parts_of;
  u32 token0 = blockIdx.z * BATCH_TOKENS, tokens = min(BATCH_TOKENS, l.tokens - token0);

  // The residual is complete: what wrote it stands two kernels back, before the router.
  static_assert(HIDDEN / 4 == BATCH_THREADS, "a thread stages four columns of a token");
  float4 gain = bfloats4(((const uint2*)a.gain)[threadIdx.x]);
  const float4* x = (const float4*)a.residual + (u64)token0 * (HIDDEN / 4) + threadIdx.x;
  for (u32 n0 = 0; n0 < tokens; n0 += AHEAD) {
    float4 v[AHEAD];
    u8* rows[AHEAD];
    float2* places[AHEAD];
    u32 at[AHEAD];
    float squares[AHEAD];
#pragma unroll
    for (u32 i = 0; i < AHEAD; i++) v[i] = load4(x + min(n0 + i, tokens - 1) * BATCH_THREADS);
#pragma unroll
    for (u32 i = 0; i < AHEAD; i++) {
      u32 token = min(n0 + i, tokens - 1);
      rows[i] = vectors + token * BATCH_ROW(HIDDEN);
      places[i] = groups + token;
      at[i] = threadIdx.x;
      squares[i] = dot(v[i], v[i]);
      v[i] = make_float4(v[i].x * gain.x, v[i].y * gain.y, v[i].z * gain.z, v[i].w * gain.w);
    }
    float sum = warp_sum4(squares[0], squares[1], squares[2], squares[3], lane);
    if (lane % 8 == 0) parts[min(n0 + lane / 8, tokens - 1) * BATCH_WARPS + warp] = sum;
    stage_vectors<AHEAD>(rows, places, BATCH_TOKENS, at, v);
  }
  __syncthreads();
  if (threadIdx.x < tokens) {
    float total = 0.0f;
#pragma unroll
    for (u32 i = 0; i < BATCH_WARPS; i++) total += parts[threadIdx.x * BATCH_WARPS + i];
    factors[threadIdx.x] = rsqrtf(total / (float)HIDDEN + a.shape.eps);
  }
  grid_enter(l.step);
  group_experts((const float*)a.routed + token0 * a.shape.stride, a.shape.stride, a.shape.experts, tokens, grouped);
  u32 units = grouped.count * per_expert, each = units / gridDim.x, more = units % gridDim.x;
  u32 first = each * blockIdx.x + min(blockIdx.x, more), count = each + (blockIdx.x < more ? 1 : 0);

  auto rows_of = [&](u32 k) {
    u32 unit = first + k;
    u64 row = (u64)grouped.expert[unit / per_expert] * EXPERT_WIDTH + unit % per_expert * 8 + lane / 4;
    RowPair r;
    r.codes[0] = (const u8*)a.gate_w + row * row_bytes;
    r.codes[1] = (const u8*)a.up_w + row * row_bytes;
    r.scales[0] = (const u8*)a.gate_s + row * group_bytes;
    r.scales[1] = (const u8*)a.up_s + row * group_bytes;
    r.biases[0] = (const u8*)a.gate_b + row * group_bytes;
    r.biases[1] = (const u8*)a.up_b + row * group_bytes;
    return r;
  };
  Unit next;
  if (set < count) load_unit(next, rows_of(set), part, lane);
  u32 turn = 0;
  for (u32 base = 0; base < count; base += BATCH_TURN_UNITS) {
    u32 n = min(BATCH_TURN_UNITS, count - base);
    float* turn_sums = sums + turn * BATCH_TURN_UNITS * unit_sums;
    turn ^= 1;
    for (u32 k = set; k < n; k += sets) {
      Unit now = next;
      if (base + k + sets < count) load_unit(next, rows_of(base + k + sets), part, lane);
      const u8* pairs = grouped.pairs[(first + base + k) / per_expert];
      for (u32 column = 0; column < 8; column++) {
        u32 pair = pairs[column];
        if (pair == NO_PAIR) break;
        u32 token = pair / BATCH_CHOSEN;
        float v = unit_product(now, vectors + token * BATCH_ROW(HIDDEN) + part * 1024,
                               groups + part * 8 * BATCH_TOKENS + token, BATCH_TOKENS, lane);
        if (lane % 4 < 2) turn_sums[k * unit_sums + (part * 8 + column) * BATCH_SUMS + lane % 4 * 8 + lane / 4] = v;
      }
    }
    __syncthreads();
    u32 row = threadIdx.x % 8, column = threadIdx.x / 8 % 8, k = threadIdx.x / 64;
    if (k < n) {
      u32 unit = first + base + k, pair = grouped.pairs[unit / per_expert][column];
      if (pair != NO_PAIR) {
        const float* p = turn_sums + k * unit_sums + column * BATCH_SUMS + row;
        float gate = 0.0f, up = 0.0f;
#pragma unroll
        for (u32 s = 0; s < parts_of; s++) {
          gate += p[s * 8 * BATCH_SUMS];
          up += p[s * 8 * BATCH_SUMS + 8];
        }
        float factor = factors[pair / BATCH_CHOSEN];
        ((float*)a.h)[(u64)(token0 * BATCH_CHOSEN + pair) * EXPERT_WIDTH + unit % per_expert * 8 + row] =
            silu(gate * factor) * (up * factor);
      }
    }
  }
}

// residual += sum_e score_e down_e h_e + sigmoid(shared gate) shared_down (silu(shared gate proj) shared up) (see
// native_moe_down).
//
// A block computes 16 rows of the residual of all its tokens, a warp every 16th group. Grid: (hidden / 16, 1, ceil(tokens /
// 16)).
#define BATCH_VECTORS (BATCH_PAIRS + BATCH_TOKENS)
extern "C" __global__ void __launch_bounds__(BATCH_THREADS, 1)
    native_batch_down(const __grid_constant__ MoeDownArgs a, const __grid_constant__ BatchLaunch l) {
  extern __shared__ __align__(128) u8 shared[];
  constexpr u32 width = EXPERT_WIDTH, row_bytes = width / 2, group_bytes = width / GROUP * 2;
  Grouped& grouped = *(Grouped*)shared;
  float2* groups = (float2*)(shared + (sizeof(Grouped) + 127) / 128 * 128);  // [8][BATCH_VECTORS]
  float* results = (float*)(groups + width / GROUP * BATCH_VECTORS);         // [BATCH_VECTORS][BATCH_SUMS]
  u8* vectors = (u8*)(results + BATCH_VECTORS * BATCH_SUMS);                  // pairs, then tokens of the shared expert
  u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, row0 = blockIdx.x * TILE_ROWS;
  u32 token0 = blockIdx.z * BATCH_TOKENS, tokens = min(BATCH_TOKENS, l.tokens - token0);
  const float* routed = (const float*)a.routed + token0 * a.shape.stride;

  // The router is two kernels back: choice and first weights come before the experts' h is there.
  group_experts(routed, a.shape.stride, a.shape.experts, tokens, grouped);
  // Few tokens of the shared expert together, so that no warp has much more to do than another.
  constexpr u32 common_together = 2;
  u32 count = grouped.count, all = count + (tokens + common_together - 1) / common_together;
  auto rows_of = [&](u32 group) {
    bool common = group >= count;
    u64 row = common ? row0 : (u64)grouped.expert[group] * a.shape.hidden + row0;
    const u8* w = (const u8*)(common ? a.shared_w : a.down_w);
    const u8* s = (const u8*)(common ? a.shared_s : a.down_s);
    const u8* b = (const u8*)(common ? a.shared_b : a.down_b);
    RowPair r;
#pragma unroll
    for (u32 j = 0; j < 2; j++) {
      u64 at = row + lane / 4 + 8 * j;
      r.codes[j] = w + at * row_bytes;
      r.scales[j] = s + at * group_bytes;
      r.biases[j] = b + at * group_bytes;
    }
    return r;
  };
  Unit next;
  if (warp < all) load_unit(next, rows_of(warp), 0, lane);
  // The shared expert's activations: its projections came with the router's. A warp has 128 columns of a token.
  for (u32 n = warp; n < tokens * 4; n += BATCH_WARPS) {
    const float* mine = routed + n / 4 * a.shape.stride + a.shape.experts;
    u32 i = n % 4 * 32 + lane;
    const float *gate = mine + 1 + 4 * i, *up = gate + width;
    float open = sigmoid(load1(mine));
    float4 h;
    h.x = silu(load1(gate)) * load1(up) * open;
    h.y = silu(load1(gate + 1)) * load1(up + 1) * open;
    h.z = silu(load1(gate + 2)) * load1(up + 2) * open;
    h.w = silu(load1(gate + 3)) * load1(up + 3) * open;
    u32 vector = BATCH_PAIRS + n / 4;
    u8* const row[1] = {vectors + vector * BATCH_ROW(width)};
    float2* const place[1] = {groups + vector};
    const u32 at[1] = {i};
    const float4 v[1] = {h};
    stage_vectors<1>(row, place, BATCH_VECTORS, at, v);
  }
  // Written by the kernel before the router: complete.
  float* y = (float*)a.residual + (u64)(token0 + threadIdx.x / TILE_ROWS) * a.shape.hidden + row0 + threadIdx.x % TILE_ROWS;
  float old = threadIdx.x < tokens * TILE_ROWS ? load1(y) : 0.0f;
  grid_enter(l.step);
  const float4* h = (const float4*)a.h + (u64)token0 * (BATCH_CHOSEN * width / 4);
  u32 parts = tokens * BATCH_CHOSEN * 4;  // of 128 columns
  for (u32 n0 = warp; n0 < parts; n0 += AHEAD * BATCH_WARPS) {
    float4 v[AHEAD];
    u8* rows[AHEAD];
    float2* places[AHEAD];
    u32 at[AHEAD];
#pragma unroll
    for (u32 i = 0; i < AHEAD; i++) {
      u32 n = n0 + i * BATCH_WARPS;
      // Beyond the end: this warp's first one once more.
      n = n < parts ? n : n0;
      v[i] = load4(h + n * 32 + lane);
      rows[i] = vectors + n / 4 * BATCH_ROW(width);
      places[i] = groups + n / 4;
      at[i] = n % 4 * 32 + lane;
    }
    stage_vectors<AHEAD>(rows, places, BATCH_VECTORS, at, v);
  }
  __syncthreads();
  for (u32 group = warp; group < all; group += BATCH_WARPS) {
    Unit now = next;
    if (group + BATCH_WARPS < all) load_unit(next, rows_of(group + BATCH_WARPS), 0, lane);
    for (u32 column = 0; column < 8; column++) {
      u32 vector;
      if (group >= count) {
        u32 token = (group - count) * common_together + column;
        if (column == common_together || token >= tokens) break;
        vector = BATCH_PAIRS + token;
      } else {
        vector = grouped.pairs[group][column];
        if (vector == NO_PAIR) break;
      }
      float v = unit_product(now, vectors + vector * BATCH_ROW(width), groups + vector, BATCH_VECTORS, lane);
      if (lane % 4 < 2) results[vector * BATCH_SUMS + lane % 4 * 8 + lane / 4] = v;
    }
  }
  __syncthreads();
  if (threadIdx.x < tokens * TILE_ROWS) {
    u32 token = threadIdx.x / TILE_ROWS, row = threadIdx.x % TILE_ROWS;
    float sum = 0.0f;
#pragma unroll
    for (u32 n = 0; n < BATCH_CHOSEN; n++) {
      u32 pair = token * BATCH_CHOSEN + n;
      sum = fmaf(grouped.scores[pair], results[pair * BATCH_SUMS + row], sum);
    }
    *y = old + (sum + results[(BATCH_PAIRS + token) * BATCH_SUMS + row]);
  }
}
