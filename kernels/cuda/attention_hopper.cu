// Full attention of a chunk (attention_prefill.metal's `attention_prefill_float_8`) on Hopper's warpgroup instructions.
//
// A block has 128 rows: the 8 query heads of a KV head for 16 tokens. One warpgroup brings keys and values, 64 positions
// at a time, to a ring where they take turns; each of the others has 64 rows, their softmax (a row's scores lie in four
// lanes) and their 64 x 256 result in registers. While one of the two weighs its scores, the tensor cores work for the
// other. Rows are 512 bytes in memory: four tiles of 64 values side by side in shared memory.
//
// Everything is halves but the result; hopper_attention_halves has made them of the caches' bfloats, in memory of its own.
// (Rewriting tiles in shared memory, by the warpgroup that brings them, cost 60 % more time: copies, rewriting and the matrix
// instructions share its bandwidth.) A softmax weight is at most 2^15, so it has all its bits down to 2^-29 of the largest;
// the sum that it is divided by has the same factor.
#define FLASH_POSITIONS 64
#define FLASH_TOKENS 16
#define FLASH_TILE (FLASH_POSITIONS * HEAD_DIM * 2)
#define FLASH_QUERIES (128 * HEAD_DIM * 2)
#define FLASH_HEAD 1024
#define FLASH_PLACES 5
#define FLASH_SHARED (FLASH_HEAD + FLASH_QUERIES + FLASH_PLACES * FLASH_TILE)
#define FLASH_LARGEST 15.0f  // exponent of the largest weight
struct FlashLaunch {
  // The sequence's keys and values as halves: [kv_heads, capacity, 256].
  void *keys, *values;
  Step step;
};

// Keys and values of the sequence, up to the chunk's end, as halves: exact but for what is smaller than 6e-5, and beyond the
// largest half. Grid: (ceil(capacity / 64), kv_heads); 256 threads, eight values of a position each.
extern "C" __global__ void __launch_bounds__(256)
    hopper_attention_halves(const __grid_constant__ AttentionPrefillArgs a, const __grid_constant__ FlashLaunch l) {
  grid_enter(l.step);
  const Chunk* chunk = (const Chunk*)a.chunk;
  u32 end = loadu(&chunk->position) + loadu(&chunk->tokens), piece = threadIdx.x % 32;
  u64 from = ((u64)loadu(&chunk->slot) * a.shape.kv_heads + blockIdx.y) * a.shape.capacity, to = (u64)blockIdx.y * a.shape.capacity;
  u32 stop = min(end, blockIdx.x * 64 + 64);
  for (u32 p = blockIdx.x * 64 + threadIdx.x / 32; p < stop; p += 8) {
    uint4 k = __ldcg((const uint4*)a.keys + (from + p) * (ROW_BYTES / 16) + piece);
    uint4 v = __ldcg((const uint4*)a.values + (from + p) * (ROW_BYTES / 16) + piece);
    auto halves = [](u32 w) { return pack_results(bfloat_low(w), bfloat_high(w)); };
    ((uint4*)l.keys)[(to + p) * (ROW_BYTES / 16) + piece] = make_uint4(halves(k.x), halves(k.y), halves(k.z), halves(k.w));
    ((uint4*)l.values)[(to + p) * (ROW_BYTES / 16) + piece] = make_uint4(halves(v.x), halves(v.y), halves(v.z), halves(v.w));
  }
}

// Copies 16 bytes, or writes zeros.
DEVICE void copy16_or_zero(void* to, const void* from, bool copy) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(copy ? 16 : 0)
               : "memory");
}
DEVICE float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Keys or values of 64 positions from p0 on: piece c of a row goes to tile c / 8. Rows from `end` on become zeros: no
// weight of theirs is used, but zero times what memory holds there need not be zero.
DEVICE void bring_positions(u8* to, const u8* rows, u32 p0, u32 end, u32 tid) {
  u32 piece = tid % 32, row = tid / 32;
  u8* tile = to + piece / 8 * (FLASH_POSITIONS * 128);
#pragma unroll
  for (u32 i = 0; i < FLASH_POSITIONS / 4; i++) {
    u32 r = i * 4 + row, p = p0 + r;
    copy16_or_zero(tile + r * 128 + ((piece ^ r) & 7) * 16, rows + (u64)min(p, end - 1) * ROW_BYTES + piece * 16, p < end);
  }
}

// Grid: (ceil(tokens / 16) * kv_heads); the tokens that see the most positions go first.
extern "C" __global__ void __launch_bounds__(HOPPER_THREADS, 1)
    hopper_attention_prefill(const __grid_constant__ AttentionPrefillArgs a, const __grid_constant__ FlashLaunch l) {
  extern __shared__ __align__(128) u8 shared[];
  u64 *full = (u64*)shared, *empty = full + FLASH_PLACES, *queries_full = empty + FLASH_PLACES;
  u8 *queries = shared + FLASH_HEAD, *ring = queries + FLASH_QUERIES;
  grid_enter(l.step);
  const Chunk* chunk = (const Chunk*)a.chunk;
  u32 tokens = loadu(&chunk->tokens), start = loadu(&chunk->position);
  u32 tiles = (tokens + FLASH_TOKENS - 1) / FLASH_TOKENS, index = blockIdx.x / a.shape.kv_heads;
  if (index >= tiles) return;
  u32 first = (tiles - 1 - index) * FLASH_TOKENS, kv_head = blockIdx.x % a.shape.kv_heads;
  u32 end = start + min(first + FLASH_TOKENS, tokens), steps = (end + FLASH_POSITIONS - 1) / FLASH_POSITIONS;
  if (threadIdx.x == 0) {
    for (u32 i = 0; i < FLASH_PLACES; i++) {
      barrier_init(full + i, 128);
      barrier_init(empty + i, 8);
    }
    barrier_init(queries_full, 128);
    barrier_fence();
  }
  __syncthreads();

  if (threadIdx.x >= 256) {
    registers_less<40>();
    u32 tid = threadIdx.x - 256, piece = tid % 32, row = tid / 32;
    u64 row0 = (u64)kv_head * a.shape.capacity;
    const u8 *k = (const u8*)l.keys + row0 * ROW_BYTES, *v = (const u8*)l.values + row0 * ROW_BYTES;
#pragma unroll 8
    for (u32 i = 0; i < 32; i++) {
      u32 r = i * 4 + row, token = min(first + r / 8, tokens - 1);
      copy16(queries + piece / 8 * (128 * 128) + r * 128 + ((piece ^ r) & 7) * 16,
             (const u8*)a.queries + ((u64)token * a.shape.heads + kv_head * 8 + r % 8) * ROW_BYTES + piece * 16);
    }
    copies_arrive(queries_full);
    // Keys, then values of every step.
    Place<FLASH_PLACES> to = {0, 1};
    for (u32 i = 0; i < 2 * steps; i++) {
      barrier_wait(empty + to.at, to.round);
      bring_positions(ring + to.at * FLASH_TILE, i % 2 ? v : k, i / 2 * FLASH_POSITIONS, end, tid);
      copies_arrive(full + to.at);
      to.next();
    }
    return;
  }

  registers_more<232>();
  u32 group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  float sums[HEAD_DIM / 2], scores[FLASH_POSITIONS / 2];
  u32 weights[16];
  // Of the thread's two rows, head g of two tokens: largest score (base 2), this lane's sum of weights, last position seen.
  u32 token = first + group * 8 + warp * 2;
  float largest[2], total[2] = {0.0f, 0.0f}, shrink[2];
  u32 limit[2] = {min(start + token, end - 1), min(start + token + 1, end - 1)};
  u64 q_at = tile_at(shared_address(queries) + group * (64 * 128), 16);
  u64 k_at = tile_at(shared_address(ring), 16), v_at = tile_at(shared_address(ring), FLASH_POSITIONS * 128);
  // Where the next keys or values lie.
  Place<FLASH_PLACES> next = {0, 0};

  auto start_scores = [&] {
    barrier_wait(full + next.at, next.round);
    async_fence();
    u64 at = k_at + next.at * (FLASH_TILE / 16);
    warpgroup_enter();
#pragma unroll
    for (u32 i = 0; i < HEAD_DIM / 16; i++)
      warpgroup_multiply(scores, q_at + i / 4 * (128 * 128 / 16) + i % 4 * 2, at + i / 4 * (FLASH_POSITIONS * 128 / 16) + i % 4 * 2,
                         i != 0);
    warpgroup_commit();
  };
  auto start_values = [&](u32 s) {
    barrier_wait(full + next.at, next.round);
    async_fence();
    u64 at = v_at + next.at * (FLASH_TILE / 16);
    warpgroup_enter();
#pragma unroll
    for (u32 i = 0; i < FLASH_POSITIONS / 16; i++)
      warpgroup_multiply_transposed(sums, weights + 4 * i, at + i * (16 * 128 / 16), i != 0 || s != 0);
    warpgroup_commit();
  };
  // Scores to weights; `shrink` is what earlier sums are worth now.
  auto weigh = [&](u32 s) {
    u32 p0 = s * FLASH_POSITIONS;
    if (p0 + FLASH_POSITIONS - 1 > limit[0]) {
#pragma unroll
      for (u32 i = 0; i < FLASH_POSITIONS / 2; i++)
        if (p0 + i / 4 * 8 + 2 * t + i % 2 > limit[i / 2 % 2]) scores[i] = -INFINITY;
    }
#pragma unroll
    for (u32 h = 0; h < 2; h++) {
      // Every row sees position 0, so this is finite from the first step on.
      float top = s ? largest[h] : -INFINITY;
#pragma unroll
      for (u32 i = 0; i < FLASH_POSITIONS / 8; i++) top = fmaxf(top, fmaxf(scores[4 * i + 2 * h], scores[4 * i + 2 * h + 1]));
      top = fmaxf(top, __shfl_xor_sync(ALL, top, 1));
      top = fmaxf(top, __shfl_xor_sync(ALL, top, 2));
      shrink[h] = s ? exp2_fast(largest[h] - top) : 0.0f;
      largest[h] = top;
    }
  };
  // Rounded for the matrix unit; the sums are of the rounded weights, so that they add up to one exactly.
  auto pack = [&] {
    float sum[2] = {0.0f, 0.0f}, most[2] = {largest[0] - FLASH_LARGEST, largest[1] - FLASH_LARGEST};
#pragma unroll
    for (u32 i = 0; i < FLASH_POSITIONS / 16; i++)
#pragma unroll
      for (u32 j = 0; j < 4; j++) {
        u32 at = 8 * i + j / 2 * 4 + j % 2 * 2;
        u32 pair = pack_halves(exp2_fast(scores[at] - most[j % 2]), exp2_fast(scores[at + 1] - most[j % 2]));
        sum[j % 2] += half_low(pair) + half_high(pair);
        scores[at] = __uint_as_float(pair);
      }
#pragma unroll
    for (u32 h = 0; h < 2; h++) total[h] = total[h] * shrink[h] + sum[h];
  };
  auto give_back = [&] {
    if (lane == 0) barrier_arrive(empty + next.at);
    next.next();
  };
  auto take_weights = [&] {
#pragma unroll
    for (u32 i = 0; i < FLASH_POSITIONS / 16; i++)
#pragma unroll
      for (u32 j = 0; j < 4; j++) weights[4 * i + j] = __float_as_uint(scores[8 * i + j / 2 * 4 + j % 2 * 2]);
  };

  barrier_wait(queries_full, 0);
  start_scores();
  warpgroup_wait<0>();
  settle(scores);
  give_back();
  weigh(0);
  pack();
  take_weights();
  for (u32 s = 1; s < steps; s++) {
    start_values(s - 1);
    warpgroup_wait<0>();
    settle(sums);
    give_back();
    start_scores();
    warpgroup_wait<0>();
    settle(scores);
    give_back();
    weigh(s);
    pack();
    take_weights();
    if (shrink[0] != 1.0f || shrink[1] != 1.0f) {
#pragma unroll
      for (u32 i = 0; i < HEAD_DIM / 2; i++) sums[i] *= shrink[i / 2 % 2];
    }
  }
  start_values(steps - 1);
  warpgroup_wait<0>();
  settle(sums);

#pragma unroll
  for (u32 h = 0; h < 2; h++) {
    total[h] += __shfl_xor_sync(ALL, total[h], 1);
    total[h] += __shfl_xor_sync(ALL, total[h], 2);
    if (token + h >= tokens) continue;
    float part = 1.0f / total[h];
    u32 head = kv_head * 8 + g;
    const float* gate = (const float*)a.projected + (u64)(token + h) * a.shape.stride + head * (2 * HEAD_DIM) + HEAD_DIM + 2 * t;
    float* y = (float*)a.y + ((u64)(token + h) * a.shape.heads + head) * HEAD_DIM + 2 * t;
#pragma unroll
    for (u32 i = 0; i < HEAD_DIM / 8; i++) {
      float2 open = __ldcg((const float2*)(gate + 8 * i));
      *(float2*)(y + 8 * i) =
          make_float2(sums[4 * i + 2 * h] * part * sigmoid(open.x), sums[4 * i + 2 * h + 1] * part * sigmoid(open.y));
    }
  }
}
