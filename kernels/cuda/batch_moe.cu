// Mixture of experts for several sequences (see batch.cu): the tokens of each expert together, its weights read once for
// two of them. Of more, the others read them at nearly the same time, from the second-level cache.
//
// An expert has one or two tokens, so the eight columns of an mma are the high and low bytes of two groups of 64 columns of
// two tokens. A lane takes 16 bytes of codes at 16 t of every 64, which is half of one of two groups; the columns of the other
// group are zeros there. Sums of the same token and group end in one lane, which scales them.
//
// Rows lie a multiple of 128 bytes apart in shared memory. So that lanes that read together meet other banks, even rows of an
// mma come from one matrix or half, odd ones from another one that lies 64 bytes off.

// What a lane (g, t) multiplies: of token g / 4 the high (even g) or low bytes of group g / 2 % 2, where that is the lane's
// group t / 2, else zeros.
struct Lanes {
  u32 slot, parity, byte, half;  // of its column of bytes: token, group, byte; half of the group
  bool mine;
  MEMBER Lanes(u32 lane)
      : slot(lane / 16), parity(lane / 8 % 2), byte(lane / 4 % 2), half(lane % 2), mine(lane / 8 % 2 == lane % 4 / 2) {}
  MEMBER u32 offset() const { return parity * 128 + byte * 64 + half * 32; }
};

// Adds the products of 16 rows with 512 columns of two tokens: sums of rows g and g + 8. `codes`: of row g; rows g + 8 lie
// `CODES_BELOW` bytes behind. `scales`: of row g; biases and rows g + 8 lie so many bytes behind. `x`: this lane's bytes, every
// 128 columns `x_step` further; `f`: scales and sums of token t / 2 in group t % 2, two groups `F_STEP` further.
template <u32 CODES_BELOW, u32 SCALES_BELOW, u32 BIASES, u32 F_STEP>
DEVICE void multiply_unit(float (&sum)[2], const u8* codes, const u8* scales, const u8* x, u32 x_step, const float2* f, u32 lane) {
  const u32 m = 0x0f0f0f0fu;
  // Scales and biases of eight groups: a word has those of two, of which odd lanes take the upper.
  uint4 s0 = *(const uint4*)scales, s1 = *(const uint4*)(scales + SCALES_BELOW);
  uint4 b0 = *(const uint4*)(scales + BIASES), b1 = *(const uint4*)(scales + BIASES + SCALES_BELOW);
  u32 half = lane % 2 ? 0x3244 : 0x1044;
  auto number = [&](u32 word) { return __uint_as_float(__byte_perm(word, 0, half)); };
#pragma unroll
  for (u32 i = 0; i < 4; i++) {
    uint4 a = *(const uint4*)(codes + i * 64), b = *(const uint4*)(codes + CODES_BELOW + i * 64);
    uint4 v = *(const uint4*)(x + i * x_step), w = *(const uint4*)(x + i * x_step + 16);
    int d[4];
    mma_bytes_first(d, a.x & m, b.x & m, a.x >> 4 & m, b.x >> 4 & m, v.x, v.y);
    mma_bytes(d, a.y & m, b.y & m, a.y >> 4 & m, b.y >> 4 & m, v.z, v.w);
    mma_bytes(d, a.z & m, b.z & m, a.z >> 4 & m, b.z >> 4 & m, w.x, w.y);
    mma_bytes(d, a.w & m, b.w & m, a.w >> 4 & m, b.w >> 4 & m, w.z, w.w);
    float2 scale = f[i * F_STEP];
    Factor f0 = factor_of(number(pick(s0, i))), f1 = factor_of(number(pick(s1, i)));
    sum[0] = fmaf(scale.x, scaled(f0, d[0], d[1]), fmaf(number(pick(b0, i)), scale.y, sum[0]));
    sum[1] = fmaf(scale.x, scaled(f1, d[2], d[3]), fmaf(number(pick(b1, i)), scale.y, sum[1]));
  }
}
// Adds both groups' sums: lanes with even t return row g, the others row g + 8.
DEVICE float row_sum(const float (&sum)[2], u32 lane) {
  float v0 = sum[0] + __shfl_xor_sync(ALL, sum[0], 1), v1 = sum[1] + __shfl_xor_sync(ALL, sum[1], 1);
  return lane % 2 ? v1 : v0;
}

// A stage is read by another set each time it is filled, and a barrier's parity cannot tell that set a filling that has not
// started from one that is done. So the number of what is on its way to the stage is kept beside the barrier.
DEVICE void mark_filling(u32* stage, u32 number) {
  asm volatile("st.release.cta.shared.u32 [%0], %1;" ::"r"(shared_address(stage)), "r"(number) : "memory");
}
DEVICE void wait_filled(const u32* stage, u32 number, u64* full, u32 parity) {
  u32 found;
  do asm volatile("ld.acquire.cta.shared.u32 %0, [%1];" : "=r"(found) : "r"(shared_address(stage)) : "memory");
  while (found != number);
  barrier_wait(full, parity);
}

// A job is an expert with one or two of its tokens. An expert with more has several, next to each other.
#define BATCH_CHOSEN 8
#define BATCH_PAIRS (BATCH_TOKENS * BATCH_CHOSEN)
#define JOB_TOKENS 2
#define NO_PAIR 0xffu
struct Grouped {
  Choice choice[BATCH_TOKENS];  // first: read sixteen bytes at once
  u32 ids[BATCH_PAIRS];        // of pair 8 token + n: the token's n-th expert
  float scores[BATCH_PAIRS];
  u32 mask[256];               // of an expert: its tokens
  u32 begin[256];              // its first job
  u32 expert[BATCH_PAIRS];     // of a job
  u8 pairs[BATCH_PAIRS][JOB_TOKENS];  // of a job: its pairs, NO_PAIR where there are none
  u32 warp_jobs[8];
  u32 count;
};
#define GROUPED_BYTES ((sizeof(Grouped) + 127) / 128 * 128)
// A job's pairs: the first, and where there is none the first again.
DEVICE u32 first_of(const Grouped& g, u32 job) { return g.pairs[job][0]; }
DEVICE u32 second_of(const Grouped& g, u32 job) {
  u32 pair = g.pairs[job][1];
  return pair == NO_PAIR ? g.pairs[job][0] : pair;
}
// Chooses and groups the experts of `tokens` tokens, with their scores if SCORES. All threads of the block, at least 512, call
// it. Ends with a barrier.
template <bool SCORES> DEVICE void group_experts(const float* routed, u32 stride, u32 experts, u32 tokens, Grouped& g) {
  u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, pair = threadIdx.x;
  if (threadIdx.x < 256) g.mask[threadIdx.x] = 0;
  if (threadIdx.x < BATCH_PAIRS) ((u16*)g.pairs)[threadIdx.x] = 0xffff;
  if (warp < tokens)
    choose_experts(routed + warp * stride, experts, BATCH_CHOSEN, lane, g.choice[warp], g.ids + warp * BATCH_CHOSEN,
                   SCORES ? g.scores + warp * BATCH_CHOSEN : 0);
  __syncthreads();
  if (pair < tokens * BATCH_CHOSEN) atomicOr(g.mask + g.ids[pair], 1u << pair / BATCH_CHOSEN);
  __syncthreads();
  u32 jobs = 0, before = 0;
  if (threadIdx.x < 256) {
    jobs = (__popc(g.mask[threadIdx.x]) + JOB_TOKENS - 1) / JOB_TOKENS;
    u32 below = (1u << lane) - 1, all = 0;
#pragma unroll
    for (u32 i = 0; i < BATCH_TOKENS / JOB_TOKENS; i++) {
      u32 more = __ballot_sync(ALL, jobs > i);
      before += __popc(more & below);
      all += __popc(more);
    }
    if (lane == 0) g.warp_jobs[warp] = all;
  }
  __syncthreads();
  if (threadIdx.x < 256) {
    for (u32 w = 0; w < warp; w++) before += g.warp_jobs[w];
    g.begin[threadIdx.x] = before;
    for (u32 i = 0; i < jobs; i++) g.expert[before + i] = threadIdx.x;
    if (threadIdx.x == 255) g.count = before + jobs;
  }
  __syncthreads();
  if (pair < tokens * BATCH_CHOSEN) {
    u32 e = g.ids[pair], rank = __popc(g.mask[e] & ((1u << pair / BATCH_CHOSEN) - 1));
    g.pairs[g.begin[e] + rank / JOB_TOKENS][rank % JOB_TOKENS] = (u8)pair;
  }
  __syncthreads();
}

// h[pair] = silu(gate_e x) up_e x, x = rmsnorm(residual) of the pair's token (see native_moe_gate_up).
//
// A unit is 8 rows of gate and 8 of up of a job; a block takes neighbouring units, of two jobs at most, so it needs the
// activations of four tokens. Eight sets of four warps, a quarter of the columns each, take turns with the units, which bulk
// copies bring to a ring of ten stages. Grid: (blocks, 1, ceil(tokens / 16)).
#define UNIT_SETS 8
#define UNIT_WARPS 4  // of a set
#define UNIT_STAGES 10
#define UNIT_EARLY 5  // stages that are brought before the activations' bytes are made
#define UNIT_TOKENS 4
#define UNIT_GROUP_BYTES (HIDDEN / GROUP * 2)
// Stage: gate's codes, up's; scales of both, biases of both.
#define UNIT_UP (8 * HIDDEN / 2 + 64)
#define UNIT_SCALES (2 * UNIT_UP)
#define UNIT_SCALES_PART (8 * UNIT_GROUP_BYTES + 32)
#define UNIT_STAGE ((UNIT_SCALES + 4 * UNIT_SCALES_PART + 127) / 128 * 128)
extern "C" __global__ void __launch_bounds__(UNIT_SETS * UNIT_WARPS * 32, 1)
    native_batch_gate_up(const __grid_constant__ MoeGateUpArgs a, const __grid_constant__ BatchLaunch l) {
  extern __shared__ __align__(128) u8 shared[];
  constexpr u32 per_expert = EXPERT_WIDTH / 8, row_bytes = HIDDEN / 2, set_threads = UNIT_WARPS * 32;
  static_assert(HIDDEN / UNIT_WARPS == 512, "columns of a warp");
  Grouped& grouped = *(Grouped*)shared;
  u64* full = (u64*)(shared + GROUPED_BYTES);  // [UNIT_STAGES]
  u32* filling = (u32*)(full + UNIT_STAGES);   // [UNIT_STAGES]; 128 bytes with the barriers
  u8* zeros = (u8*)(full + 16);                // 48 in 64 bytes
  float* factors = (float*)(zeros + 64);       // [UNIT_TOKENS], 64 bytes
  float* parts = factors + 16;                 // [UNIT_TOKENS][16]: sums of squares of 128 columns
  float* quarters = parts + UNIT_TOKENS * 16;  // [2][UNIT_SETS][UNIT_WARPS][32]: sums of a warp's columns
  float2* groups = (float2*)(quarters + 2 * UNIT_SETS * set_threads);  // [HIDDEN / GROUP][UNIT_TOKENS]
  u8* vectors = (u8*)(groups + HIDDEN / GROUP * UNIT_TOKENS);
  u8* stages = vectors + UNIT_TOKENS * BATCH_ROW(HIDDEN);
  u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, set = warp / UNIT_WARPS, side = warp % UNIT_WARPS;
  u32 token0 = blockIdx.z * BATCH_TOKENS, tokens = min(BATCH_TOKENS, l.tokens - token0);
  if (threadIdx.x < UNIT_STAGES) {
    barrier_init(full + threadIdx.x, 1);
    filling[threadIdx.x] = threadIdx.x;
    barrier_fence();
  }
  if (threadIdx.x < 12) ((u32*)zeros)[threadIdx.x] = 0;
  uint2 gain = ((const uint2*)a.gain)[threadIdx.x % (HIDDEN / 4)];
  grid_enter(l.step);
  group_experts<false>((const float*)a.routed + (u64)token0 * a.shape.stride, a.shape.stride, a.shape.experts, tokens, grouped);
  u32 units = grouped.count * per_expert, each = units / gridDim.x, more = units % gridDim.x;
  u32 first = each * blockIdx.x + min(blockIdx.x, more), count = each + (blockIdx.x < more ? 1 : 0);

  auto bring_unit = [&](u32 u) {
    u32 unit = first + u, k = u % UNIT_STAGES;
    u64 row = (u64)grouped.expert[unit / per_expert] * EXPERT_WIDTH + unit % per_expert * 8;
    u8* to = stages + k * UNIT_STAGE;
    barrier_expect(full + k, 16 * (row_bytes + 2 * UNIT_GROUP_BYTES));
    bulk_load(to, (const u8*)a.gate_w + row * row_bytes, 8 * row_bytes, full + k);
    bulk_load(to + UNIT_UP, (const u8*)a.up_w + row * row_bytes, 8 * row_bytes, full + k);
    to += UNIT_SCALES;
    bulk_load(to, (const u8*)a.gate_s + row * UNIT_GROUP_BYTES, 8 * UNIT_GROUP_BYTES, full + k);
    bulk_load(to + UNIT_SCALES_PART, (const u8*)a.up_s + row * UNIT_GROUP_BYTES, 8 * UNIT_GROUP_BYTES, full + k);
    to += 2 * UNIT_SCALES_PART;
    bulk_load(to, (const u8*)a.gate_b + row * UNIT_GROUP_BYTES, 8 * UNIT_GROUP_BYTES, full + k);
    bulk_load(to + UNIT_SCALES_PART, (const u8*)a.up_b + row * UNIT_GROUP_BYTES, 8 * UNIT_GROUP_BYTES, full + k);
    mark_filling(filling + k, u);
  };
  // Bytes of the tokens of this block's two jobs: the places 0 and 1 are the first one's, 2 and 3 the second one's. A warp has
  // 128 columns of two places.
  u32 job0 = first / per_expert, jobs = count ? (first + count - 1) / per_expert - job0 + 1 : 0;
  float4 v[2];
  if (warp / 16 < jobs) {
    u32 job = job0 + warp / 16, pair[2] = {first_of(grouped, job), second_of(grouped, job)};
    const float4* x = (const float4*)a.residual + (u64)token0 * (HIDDEN / 4) + warp % 16 * 32 + lane;
#pragma unroll
    for (u32 i = 0; i < 2; i++) v[i] = load4(x + pair[i] / BATCH_CHOSEN * (HIDDEN / 4));
  }
  // Behind those loads: they would wait for microseconds behind all blocks' first weights.
  if (warp < min(UNIT_EARLY, count) && lane == 0) bring_unit(warp);
  __syncwarp();
  if (warp / 16 < jobs) {
    float4 g = bfloats4(gain);
    u8* rows[2];
    float2* places[2];
    u32 part = warp % 16, at[2];
    float squares[2];
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
      u32 place = warp / 16 * 2 + i;
      rows[i] = vectors + place * BATCH_ROW(HIDDEN);
      places[i] = groups + place;
      at[i] = part * 32 + lane;
      squares[i] = dot(v[i], v[i]);
      v[i] = make_float4(v[i].x * g.x, v[i].y * g.y, v[i].z * g.z, v[i].w * g.w);
    }
    float sum = warp_sum2(squares[0], squares[1], lane);
    if (lane % 16 == 0) parts[(warp / 16 * 2 + lane / 16) * 16 + part] = sum;
    stage_vectors<2>(rows, places, UNIT_TOKENS, at, v);
  }
  if (warp >= UNIT_EARLY && warp < min(UNIT_STAGES, count) && lane == 0) bring_unit(warp);
  __syncwarp();
  __syncthreads();
  if (threadIdx.x < UNIT_TOKENS) {
    // Of a place without a token: whatever lies there, and nobody reads the result.
    float total = 0.0f;
#pragma unroll
    for (u32 i = 0; i < 16; i++) total += parts[threadIdx.x * 16 + i];
    factors[threadIdx.x] = rsqrtf(total / (float)HIDDEN + a.shape.eps);
  }
  __syncthreads();

  const Lanes who(lane);
  u32 g = lane / 4, t = lane % 4, stage = set, parity = 0;
  // Even rows of an mma are gate's, odd ones up's.
  u32 codes_at = (g % 2) * UNIT_UP + g / 2 * row_bytes + side * (row_bytes / UNIT_WARPS) + t * 16;
  u32 scales_at = UNIT_SCALES + (g % 2) * UNIT_SCALES_PART + g / 2 * UNIT_GROUP_BYTES + side * (UNIT_GROUP_BYTES / UNIT_WARPS);
  const u8* own_bytes = vectors + who.slot * BATCH_ROW(HIDDEN) + side * (2 * HIDDEN / UNIT_WARPS) + who.offset();
  const float2* own_groups = groups + (side * (HIDDEN / GROUP / UNIT_WARPS) + t % 2) * UNIT_TOKENS + t / 2;
  float* quarter = quarters + set * set_threads + lane;
  u32 turn = 0;
  for (u32 u = set; u < count; u += UNIT_SETS) {
    u32 unit = first + u, second_job = unit / per_expert - job0;
    const u8* x = who.mine ? own_bytes + second_job * (2 * BATCH_ROW(HIDDEN)) : zeros + 16;  // in other banks
    const u8* at = stages + stage * UNIT_STAGE;
    wait_filled(filling + stage, u, full + stage, parity);
    float sum[2] = {0.0f, 0.0f};
    multiply_unit<4 * row_bytes, 4 * UNIT_GROUP_BYTES, 2 * UNIT_SCALES_PART, 2 * UNIT_TOKENS>(
        sum, at + codes_at, at + scales_at, x, who.mine ? 256 : 0, own_groups + second_job * 2, lane);
    quarter[turn + side * 32] = row_sum(sum, lane);
    // The stage is read, and the quarters are there.
    sync_some(1 + set, set_threads);
    if (side == 0) {
      float v = 0.0f;
#pragma unroll
      for (u32 i = 0; i < UNIT_WARPS; i++) v += quarter[turn + i * 32];
      float up = __shfl_xor_sync(ALL, v, 4);
      u32 job = job0 + second_job, pair = t / 2 ? grouped.pairs[job][1] : grouped.pairs[job][0];
      // Lanes with even t have the unit's first four rows, the others the last four.
      if (g % 2 == 0 && pair != NO_PAIR) {
        float factor = factors[second_job * 2 + t / 2];
        ((float*)a.h)[(u64)(token0 * BATCH_CHOSEN + pair) * EXPERT_WIDTH + unit % per_expert * 8 + t % 2 * 4 + g / 2] =
            silu(v * factor) * (up * factor);
      }
    }
    if (side == 1) {
      if (u + UNIT_STAGES < count && lane == 0) bring_unit(u + UNIT_STAGES);
      __syncwarp();
    }
    turn ^= UNIT_SETS * set_threads;
    stage += UNIT_SETS;
    if (stage >= UNIT_STAGES) {
      stage -= UNIT_STAGES;
      parity ^= 1;
    }
  }
}

// residual += sum_e score_e down_e h_e + sigmoid(shared gate) shared_down (silu(shared gate proj) shared up) (see
// native_moe_down).
//
// A cluster computes eight or nine tiles of 16 rows of the residual of all its tokens; the jobs are dealt out to its blocks, so
// that a block makes bytes of its own jobs' activations only. Every tile is written by one block of the cluster: the others
// send their sums there. Of the shared expert every block has two tokens. Three sets of nine warps, a tile each, take turns with
// the jobs, which bulk copies bring to a ring of four stages.
//
// Grid: (8 * clusters, 1, ceil(tokens / 16)); the cluster with number i has `each` tiles, one more if i < `more`.
// Vectors of a block: at most 15 of its jobs have two, as 128 pairs are all and the other blocks' jobs are as many.
#define DOWN_SLOTS 30
#define DOWN_VECTORS (DOWN_SLOTS + 2)
#define DOWN_TILES 9
#define DOWN_SETS 3
#define DOWN_STAGES 4
#define DOWN_EARLY 1  // stages that are brought before the experts' h is there
#define DOWN_BATCH_WARPS (DOWN_TILES * DOWN_SETS)
// Stage: codes of two halves of the rows; scales of both, biases of both.
#define DOWN_HALF (DOWN_TILES * 8 * EXPERT_WIDTH / 2 + 64)
#define DOWN_SCALES (2 * DOWN_HALF)
#define DOWN_SCALES_PART (DOWN_TILES * 8 * DOWN_GROUPS * 2 + 64)
#define DOWN_BATCH_STAGE ((DOWN_SCALES + 4 * DOWN_SCALES_PART + 127) / 128 * 128)
struct DownJobs {
  u8 slot[BATCH_PAIRS / BATCH_CLUSTER];  // of a job: its first vector
  u8 pair[DOWN_SLOTS];                   // of a vector
  u32 slots;
};
extern "C" __global__ void __cluster_dims__(BATCH_CLUSTER, 1, 1) __launch_bounds__(DOWN_BATCH_WARPS * 32, 1)
    native_batch_down(const __grid_constant__ MoeDownArgs a, const __grid_constant__ BatchLaunch l) {
  extern __shared__ __align__(128) u8 shared[];
  constexpr u32 width = EXPERT_WIDTH, row_bytes = width / 2, group_bytes = width / GROUP * 2, set_threads = DOWN_TILES * 32;
  constexpr u32 tile_results = (BATCH_PAIRS + BATCH_TOKENS) * TILE_ROWS;
  Grouped& grouped = *(Grouped*)shared;
  u64* full = (u64*)(shared + GROUPED_BYTES);  // [DOWN_STAGES]
  u32* filling = (u32*)(full + DOWN_STAGES);   // [DOWN_STAGES]
  u8* zeros = (u8*)(filling + DOWN_STAGES);    // 32
  DownJobs& jobs = *(DownJobs*)(zeros + 32);
  float2* common_groups = (float2*)(shared + GROUPED_BYTES + 192);  // [width / GROUP][2]: of the shared expert's vectors
  // Where the choice was: [width / GROUP][DOWN_VECTORS].
  float2* groups = (float2*)grouped.choice;
  static_assert(sizeof(grouped.choice) >= width / GROUP * DOWN_VECTORS * sizeof(float2), "room");
  float* results = (float*)(common_groups + 2 * width / GROUP);  // of two tiles: [BATCH_PAIRS + BATCH_TOKENS][16]
  u8* vectors = (u8*)(results + 2 * tile_results);
  u8* stages = vectors + DOWN_VECTORS * BATCH_ROW(width);
  static_assert(sizeof(DownJobs) <= 64, "room");
  u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, set = warp / DOWN_TILES;
  u32 rank = blockIdx.x % BATCH_CLUSTER, cluster = blockIdx.x / BATCH_CLUSTER;
  u32 tiles = l.each + (cluster < l.more ? 1 : 0), row0 = (l.each * cluster + min(cluster, l.more)) * TILE_ROWS;
  u32 token0 = blockIdx.z * BATCH_TOKENS, tokens = min(BATCH_TOKENS, l.tokens - token0);
  const float* routed = (const float*)a.routed + (u64)token0 * a.shape.stride;
  // Memory of another block may be written once that block has started.
  cluster_begin();
  if (threadIdx.x < DOWN_STAGES) {
    barrier_init(full + threadIdx.x, 1);
    filling[threadIdx.x] = threadIdx.x;
    barrier_fence();
  }
  if (threadIdx.x < 8) ((u32*)zeros)[threadIdx.x] = 0;

  // The router is two kernels back: its results are complete before the experts' h is.
  u32 common0 = rank * 2, commons = common0 < tokens ? min(2, tokens - common0) : 0;
  // The shared expert's activations: its projections came with the router's. A warp has 128 columns of a token, and none
  // of those warps chooses experts.
  if (warp >= BATCH_TOKENS && warp - BATCH_TOKENS < commons * 4) {
    u32 n = (warp - BATCH_TOKENS) / 4, token = common0 + n, i = warp % 4 * 32 + lane;
    const float* mine = routed + token * a.shape.stride + a.shape.experts;
    const float *gate = mine + 1 + 4 * i, *up = gate + width;
    float open = sigmoid(load1(mine));
    float4 h;
    h.x = silu(load1(gate)) * load1(up) * open;
    h.y = silu(load1(gate + 1)) * load1(up + 1) * open;
    h.z = silu(load1(gate + 2)) * load1(up + 2) * open;
    h.w = silu(load1(gate + 3)) * load1(up + 3) * open;
    u8* const row[1] = {vectors + (DOWN_SLOTS + n) * BATCH_ROW(width)};
    float2* const place[1] = {common_groups + n};
    const u32 at[1] = {i};
    const float4 v[1] = {h};
    stage_vectors<1>(row, place, 2, at, v);
  }
  group_experts<true>(routed, a.shape.stride, a.shape.experts, tokens, grouped);
  u32 own = grouped.count > rank ? (grouped.count - rank - 1) / BATCH_CLUSTER + 1 : 0;
  u32 count = own + (commons ? 1 : 0);
  if (threadIdx.x < 2 * width / GROUP)
    groups[threadIdx.x / 2 * DOWN_VECTORS + DOWN_SLOTS + threadIdx.x % 2] = common_groups[threadIdx.x];
  auto bring_job = [&](u32 u) {
    bool common = u >= own;
    u64 row = (common ? 0 : (u64)grouped.expert[rank + u * BATCH_CLUSTER] * a.shape.hidden) + row0;
    const u8* w = (const u8*)(common ? a.shared_w : a.down_w) + row * row_bytes;
    const u8* s = (const u8*)(common ? a.shared_s : a.down_s) + row * group_bytes;
    const u8* b = (const u8*)(common ? a.shared_b : a.down_b) + row * group_bytes;
    u32 half = tiles * 8, k = u % DOWN_STAGES;
    u8* to = stages + k * DOWN_BATCH_STAGE;
    barrier_expect(full + k, 2 * half * (row_bytes + 2 * group_bytes));
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
      bulk_load(to + i * DOWN_HALF, w + i * half * row_bytes, half * row_bytes, full + k);
      bulk_load(to + DOWN_SCALES + i * DOWN_SCALES_PART, s + i * half * group_bytes, half * group_bytes, full + k);
      bulk_load(to + DOWN_SCALES + (2 + i) * DOWN_SCALES_PART, b + i * half * group_bytes, half * group_bytes, full + k);
    }
    mark_filling(filling + k, u);
  };
  if (warp < min(DOWN_EARLY, count) && lane == 0) bring_job(warp);
  __syncwarp();
  // Where the vectors of this block's jobs lie.
  if (warp == DOWN_BATCH_WARPS - 1) {
    u32 job = rank + lane * BATCH_CLUSTER, first = lane < own ? grouped.pairs[job][0] : NO_PAIR;
    u32 second = lane < own ? grouped.pairs[job][1] : NO_PAIR, below = (1u << lane) - 1;
    u32 ones = __ballot_sync(ALL, first != NO_PAIR), twos = __ballot_sync(ALL, second != NO_PAIR);
    u32 at = __popc(ones & below) + __popc(twos & below);
    if (lane == 0) jobs.slots = __popc(ones) + __popc(twos);
    if (first != NO_PAIR) {
      jobs.slot[lane] = (u8)at;
      jobs.pair[at] = (u8)first;
    }
    if (second != NO_PAIR) jobs.pair[at + 1] = (u8)second;
  }
  __syncthreads();
  grid_enter(l.step);
  const float4* h = (const float4*)a.h + (u64)token0 * (BATCH_CHOSEN * width / 4);
  u32 parts = jobs.slots * 4;  // of 128 columns
  constexpr u32 N = 3;
  for (u32 n0 = warp;; n0 += N * DOWN_BATCH_WARPS) {
    float4 v[N];
    u8* rows[N];
    float2* places[N];
    u32 at[N];
    if (n0 < parts) {
#pragma unroll
      for (u32 i = 0; i < N; i++) {
        u32 n = n0 + i * DOWN_BATCH_WARPS;
        // Beyond the end: this warp's first one once more.
        n = n < parts ? n : n0;
        at[i] = n % 4 * 32 + lane;
        v[i] = load4(h + jobs.pair[n / 4] * (width / 4) + at[i]);
        rows[i] = vectors + n / 4 * BATCH_ROW(width);
        places[i] = groups + n / 4;
      }
    }
    // The rest of the first weights behind those loads, which would wait for microseconds behind so many bytes.
    if (n0 == warp && warp >= DOWN_EARLY && warp < min(DOWN_STAGES, count) && lane == 0) bring_job(warp);
    __syncwarp();
    if (n0 >= parts) break;
    stage_vectors<N>(rows, places, DOWN_VECTORS, at, v);
  }
  __syncthreads();
  cluster_wait();

  const Lanes who(lane);
  u32 g = lane / 4, t = lane % 4, warp_tile = warp % DOWN_TILES;
  u32 owner = shared_address_in(results, warp_tile % BATCH_CLUSTER) +
              4 * (warp_tile / BATCH_CLUSTER * tile_results + g + t % 2 * 8);
  // Even rows of an mma are of the first half, odd ones of the second.
  u32 half_row = warp_tile * 8 + g / 2, stage = set, parity = 0;
  u32 codes_at = (g % 2) * DOWN_HALF + half_row * row_bytes + t * 16;
  u32 scales_at = DOWN_SCALES + (g % 2) * DOWN_SCALES_PART + half_row * group_bytes;
  for (u32 u = set; u < count; u += DOWN_SETS) {
    bool common = u >= own;
    u32 job = rank + u * BATCH_CLUSTER, slot = common ? DOWN_SLOTS : jobs.slot[u];
    u32 first = common ? BATCH_PAIRS + common0 : grouped.pairs[job][0];
    u32 second = common ? (commons > 1 ? first + 1 : NO_PAIR) : grouped.pairs[job][1];
    bool two = second != NO_PAIR;
    wait_filled(filling + stage, u, full + stage, parity);
    if (warp_tile < tiles) {
      // Without a second vector the first one takes its place.
      const u8* x = who.mine ? vectors + (slot + (two ? who.slot : 0)) * BATCH_ROW(width) + who.offset() : zeros;
      const float2* scale = groups + t % 2 * DOWN_VECTORS + slot + (two ? t / 2 : 0);
      const u8* at = stages + stage * DOWN_BATCH_STAGE;
      float sum[2] = {0.0f, 0.0f};
      multiply_unit<4 * row_bytes, 4 * group_bytes, 2 * DOWN_SCALES_PART, 2 * DOWN_VECTORS>(
          sum, at + codes_at, at + scales_at, x, who.mine ? 256 : 0, scale, lane);
      float v = row_sum(sum, lane);
      if (two || t < 2) put(owner + (t / 2 ? second : first) * (TILE_ROWS * 4), v);
    }
    if (u + DOWN_STAGES < count) {
      sync_some(1 + set, set_threads);
      if (warp_tile == 0 && lane == 0) bring_job(u + DOWN_STAGES);
      __syncwarp();
    }
    stage += DOWN_SETS;
    if (stage >= DOWN_STAGES) {
      stage -= DOWN_STAGES;
      parity ^= 1;
    }
  }
  // A thread's value of the residual. Row f of an mma is row f / 2 % 4 of the tile's first (f < 8) or last four rows of a half.
  u32 f = threadIdx.x % TILE_ROWS, token = threadIdx.x / TILE_ROWS % BATCH_TOKENS;
  u32 own_tile = threadIdx.x / (TILE_ROWS * BATCH_TOKENS), tile = own_tile * BATCH_CLUSTER + rank;
  bool writes = own_tile < 2 && tile < tiles && token < tokens;
  u32 row = row0 + f % 2 * (tiles * 8) + tile * 8 + f / 8 * 4 + f % 8 / 2;
  float* y = (float*)a.residual + (u64)(token0 + token) * a.shape.hidden + row;
  cluster_arrive();
  float old = writes ? load1(y) : 0.0f;
  cluster_wait();
  if (writes) {
    const float* mine = results + own_tile * tile_results + f;
    float sum = 0.0f;
#pragma unroll
    for (u32 n = 0; n < BATCH_CHOSEN; n++) {
      u32 pair = token * BATCH_CHOSEN + n;
      sum = fmaf(grouped.scores[pair], mine[pair * TILE_ROWS], sum);
    }
    *y = old + (sum + mine[(BATCH_PAIRS + token) * TILE_ROWS]);
  }
}
