// Full attention of a chunk (attention_prefill.metal's `attention_prefill_8`) on Hopper's warpgroup instructions.
//
// A block has 128 rows: the 8 query heads of a KV head for 16 tokens. One warpgroup brings keys and values, 64 positions
// at a time, to a ring of two places each; each of the others has 64 rows, their softmax (a row's scores lie in four
// lanes) and their 64 x 256 result in registers. While one of the two weighs its scores, the tensor cores work for the
// other. Rows are 512 bytes in the caches: four tiles of 64 values side by side in shared memory.
#define FLASH_POSITIONS 64
#define FLASH_TOKENS 16
#define FLASH_TILE (FLASH_POSITIONS * HEAD_DIM * 2)
#define FLASH_QUERIES (128 * HEAD_DIM * 2)
#define FLASH_HEAD 1024
#define FLASH_SHARED (FLASH_HEAD + FLASH_QUERIES + 4 * FLASH_TILE)
struct FlashLaunch {
  Step step;
};

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
  u64* barriers = (u64*)shared;
  u64 *keys_full = barriers, *keys_empty = barriers + 2, *values_full = barriers + 4, *values_empty = barriers + 6;
  u64* queries_full = barriers + 8;
  u8 *queries = shared + FLASH_HEAD, *keys = queries + FLASH_QUERIES, *values = keys + 2 * FLASH_TILE;
  grid_enter(l.step);
  const Chunk* chunk = (const Chunk*)a.chunk;
  u32 tokens = loadu(&chunk->tokens), start = loadu(&chunk->position), slot = loadu(&chunk->slot);
  u32 tiles = (tokens + FLASH_TOKENS - 1) / FLASH_TOKENS, index = blockIdx.x / a.shape.kv_heads;
  if (index >= tiles) return;
  u32 first = (tiles - 1 - index) * FLASH_TOKENS, kv_head = blockIdx.x % a.shape.kv_heads;
  u32 end = start + min(first + FLASH_TOKENS, tokens), steps = (end + FLASH_POSITIONS - 1) / FLASH_POSITIONS;
  if (threadIdx.x == 0) {
    for (u32 i = 0; i < 2; i++) {
      barrier_init(keys_full + i, 128);
      barrier_init(values_full + i, 128);
      barrier_init(keys_empty + i, 8);
      barrier_init(values_empty + i, 8);
    }
    barrier_init(queries_full, 128);
    barrier_fence();
  }
  __syncthreads();

  if (threadIdx.x >= 256) {
    registers_less<40>();
    u32 tid = threadIdx.x - 256, piece = tid % 32, row = tid / 32;
    u64 row0 = (u64)(slot * a.shape.kv_heads + kv_head) * a.shape.capacity;
    const u8 *k = (const u8*)a.keys + row0 * ROW_BYTES, *v = (const u8*)a.values + row0 * ROW_BYTES;
#pragma unroll 8
    for (u32 i = 0; i < 32; i++) {
      u32 r = i * 4 + row, token = min(first + r / 8, tokens - 1);
      copy16(queries + piece / 8 * (128 * 128) + r * 128 + ((piece ^ r) & 7) * 16,
             (const u8*)a.queries + ((u64)token * a.shape.heads + kv_head * 8 + r % 8) * ROW_BYTES + piece * 16);
    }
    copies_arrive(queries_full);
    for (u32 s = 0; s < steps; s++) {
      u32 place = s % 2, round = s / 2 % 2 ^ 1;
      barrier_wait(keys_empty + place, round);
      bring_positions(keys + place * FLASH_TILE, k, s * FLASH_POSITIONS, end, tid);
      copies_arrive(keys_full + place);
      barrier_wait(values_empty + place, round);
      bring_positions(values + place * FLASH_TILE, v, s * FLASH_POSITIONS, end, tid);
      copies_arrive(values_full + place);
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
  u64 k_at = tile_at(shared_address(keys), 16), v_at = tile_at(shared_address(values), FLASH_POSITIONS * 128);

  auto start_scores = [&](u32 s) {
    barrier_wait(keys_full + s % 2, s / 2 % 2);
    async_fence();
    u64 at = k_at + s % 2 * (FLASH_TILE / 16);
    warpgroup_enter();
#pragma unroll
    for (u32 i = 0; i < HEAD_DIM / 16; i++)
      warpgroup_multiply(scores, q_at + i / 4 * (128 * 128 / 16) + i % 4 * 2, at + i / 4 * (FLASH_POSITIONS * 128 / 16) + i % 4 * 2,
                         i != 0);
    warpgroup_commit();
  };
  auto start_values = [&](u32 s) {
    barrier_wait(values_full + s % 2, s / 2 % 2);
    async_fence();
    u64 at = v_at + s % 2 * (FLASH_TILE / 16);
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
    float sum[2] = {0.0f, 0.0f};
#pragma unroll
    for (u32 i = 0; i < FLASH_POSITIONS / 16; i++)
#pragma unroll
      for (u32 j = 0; j < 4; j++) {
        u32 at = 8 * i + j / 2 * 4 + j % 2 * 2;
        u32 pair = pack_bfloats(exp2_fast(scores[at] - largest[j % 2]), exp2_fast(scores[at + 1] - largest[j % 2]));
        sum[j % 2] += bfloat_low(pair) + bfloat_high(pair);
        scores[at] = __uint_as_float(pair);
      }
#pragma unroll
    for (u32 h = 0; h < 2; h++) total[h] = total[h] * shrink[h] + sum[h];
  };
  auto take_weights = [&] {
#pragma unroll
    for (u32 i = 0; i < FLASH_POSITIONS / 16; i++)
#pragma unroll
      for (u32 j = 0; j < 4; j++) weights[4 * i + j] = __float_as_uint(scores[8 * i + j / 2 * 4 + j % 2 * 2]);
  };

  barrier_wait(queries_full, 0);
  start_scores(0);
  warpgroup_wait<0>();
  settle(scores);
  if (lane == 0) barrier_arrive(keys_empty);
  weigh(0);
  pack();
  take_weights();
  for (u32 s = 1; s < steps; s++) {
    start_values(s - 1);
    warpgroup_wait<0>();
    settle(sums);
    if (lane == 0) barrier_arrive(values_empty + (s - 1) % 2);
    start_scores(s);
    warpgroup_wait<0>();
    settle(scores);
    if (lane == 0) barrier_arrive(keys_empty + s % 2);
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
    u16* y = (u16*)a.y + ((u64)(token + h) * a.shape.heads + head) * HEAD_DIM + 2 * t;
#pragma unroll
    for (u32 i = 0; i < HEAD_DIM / 8; i++) {
      float2 open = __ldcg((const float2*)(gate + 8 * i));
      *(u32*)(y + 8 * i) = pack_bfloats(sums[4 * i + 2 * h] * part * sigmoid(open.x), sums[4 * i + 2 * h + 1] * part * sigmoid(open.y));
    }
  }
}
