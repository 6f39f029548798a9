// The router of a chunk's mixture of experts: logits (gemm.metal's `gemm_float_32` and `gemm_float_64`), sorting of the pairs, blocks
// (moe_prefill.metal's `moe_sort` and `moe_blocks`).

// ---- logits: f32 rows times 8-bit matrices
//
// Codes are exact in half precision, and a row is split into two halves, which keeps 22 bits of its 24. The sum over a
// group of 64 columns is scaled and gets its bias times the sum of the row's values, all in f32. A block has 32 tokens and
// 96 weight rows; of eight warps four have eight tokens each and the first or the last three tiles of 16 rows. Columns of a group are
// multiplied in an order that suits the loads: lane t of four has 16 t to 16 t + 15.
#define ROUTER_TOKENS 32
#define ROUTER_ROWS 96
#define ROUTER_TILES 3            // of 16 rows, a warp
#define ROUTER_INPUT_PITCH 272    // bytes of 64 floats: rows in different banks
#define ROUTER_CODES 80           // bytes of a row of codes
#define ROUTER_STAGE (ROUTER_TOKENS * ROUTER_INPUT_PITCH + ROUTER_ROWS * ROUTER_CODES)
#define ROUTER_STAGES 4
// Behind the stages: scales, then biases of all rows, 16 bytes more a row than they take.
#define ROUTER_SHARED(cols) (ROUTER_STAGES * ROUTER_STAGE + 2 * ROUTER_ROWS * ((cols) / GROUP * 2 + 16))

// Two of a word's bytes as halves: 1,024 + code is exact.
DEVICE u32 byte_halves(u32 word, u32 select) {
  u32 v = __byte_perm(word, 0x64646464u, select);
  asm("sub.rn.f16x2 %0, %0, %1;" : "+r"(v) : "r"(0x64006400u));
  return v;
}

// Grid: (ceil(rows / 96), ceil(tokens / 32)); 256 threads.
extern "C" __global__ void __launch_bounds__(256, 2)
    native_router(const __grid_constant__ GemmArgs a, const __grid_constant__ GemmLaunch l) {
  extern __shared__ __align__(128) u8 shared[];
  grid_enter(l.step);
  u32 tokens = loadu(&((const Chunk*)a.chunk)->tokens), token0 = blockIdx.y * ROUTER_TOKENS, row0 = blockIdx.x * ROUTER_ROWS;
  if (token0 >= tokens) return;
  u32 cols = a.shape.cols, groups = cols / GROUP, all = 0;
  for (u32 m = 0; m < a.shape.matrices; m++) all += pick(a.shape.rows, m);
  u32 tid = threadIdx.x, warp = tid / 32, lane = tid % 32, g = lane / 4, t = lane % 4;
  // Which matrix row lies behind a row of all; rows past the end repeat the last.
  auto locate = [&](u32 row, u32& m) {
    row = min(row, all - 1);
    for (m = 0; m + 1 < a.shape.matrices && row >= pick(a.shape.rows, m); m++) row -= pick(a.shape.rows, m);
    return row;
  };
  auto codes_of = [&](u32 row) {
    u32 m, r = locate(row, m);
    return (const u8*)(m == 0 ? a.w0 : m == 1 ? a.w1 : m == 2 ? a.w2 : a.w3) + (u64)r * cols;
  };
  // 384 pieces of 16 bytes of codes: a thread has one, or two.
  const u8* from[2];
#pragma unroll
  for (u32 i = 0; i < 2; i++) from[i] = codes_of(row0 + min(tid / 4 + 64 * i, ROUTER_ROWS - 1)) + tid % 4 * 16;
  const float* x = (const float*)a.x + (u64)min(token0 + tid / 16, tokens - 1) * cols + tid % 16 * 4;
  u64 second_row = (u64)(min(token0 + tid / 16 + 16, tokens - 1) - min(token0 + tid / 16, tokens - 1)) * cols;
  u32 column = warp % 4 * 8, tile0 = warp / 4 * ROUTER_TILES;
  u32 factor_pitch = groups * 2 + 16;
  u8* factors = shared + ROUTER_STAGES * ROUTER_STAGE;
  for (u32 i = tid; i < ROUTER_ROWS * (groups / 8); i += 256) {
    u32 row = i / (groups / 8), part = i % (groups / 8), m, r = locate(row0 + row, m);
    copy16(factors + row * factor_pitch + part * 16, (const u16*)(m == 0 ? a.s0 : m == 1 ? a.s1 : m == 2 ? a.s2 : a.s3) + r * groups + part * 8);
    copy16(factors + (ROUTER_ROWS + row) * factor_pitch + part * 16,
           (const u16*)(m == 0 ? a.b0 : m == 1 ? a.b1 : m == 2 ? a.b2 : a.b3) + r * groups + part * 8);
  }
  float sums[ROUTER_TILES][4];
#pragma unroll
  for (u32 i = 0; i < ROUTER_TILES; i++)
#pragma unroll
    for (u32 e = 0; e < 4; e++) sums[i][e] = 0.0f;

  auto bring = [&](u32 step) {
    u8 *inputs = shared + step % ROUTER_STAGES * ROUTER_STAGE, *codes = inputs + ROUTER_TOKENS * ROUTER_INPUT_PITCH;
    if (step < groups) {
#pragma unroll
      for (u32 i = 0; i < 2; i++)
        copy16(inputs + (tid / 16 + 16 * i) * ROUTER_INPUT_PITCH + tid % 16 * 16, x + (i ? second_row : 0) + step * GROUP);
#pragma unroll
      for (u32 i = 0; i < 2; i++)
        if (tid / 4 + 64 * i < ROUTER_ROWS) copy16(codes + (tid / 4 + 64 * i) * ROUTER_CODES + tid % 4 * 16, from[i] + step * GROUP);
    }
    fetches_end();
  };
  for (u32 i = 0; i + 1 < ROUTER_STAGES; i++) bring(i);
  for (u32 step = 0; step < groups; step++) {
    const u8* inputs = shared + step % ROUTER_STAGES * ROUTER_STAGE;
    const u8* codes = inputs + ROUTER_TOKENS * ROUTER_INPUT_PITCH;
    fetches_wait<ROUTER_STAGES - 2>();
    __syncthreads();
    bring(step + ROUTER_STAGES - 1);
    // The lane's 16 columns of token `column + g`, as halves and what they lack; the sums of tokens 2 t and 2 t + 1.
    const float4* mine = (const float4*)(inputs + (column + g) * ROUTER_INPUT_PITCH + t * 64);
    float4 v[4] = {mine[0], mine[1], mine[2], mine[3]};
    uint4 h0 = make_uint4(pack_halves(v[0].x, v[0].y), pack_halves(v[0].z, v[0].w), pack_halves(v[1].x, v[1].y), pack_halves(v[1].z, v[1].w));
    uint4 h1 = make_uint4(pack_halves(v[2].x, v[2].y), pack_halves(v[2].z, v[2].w), pack_halves(v[3].x, v[3].y), pack_halves(v[3].z, v[3].w));
    uint4 l0 = make_uint4(pack_rest_halves(v[0].x, v[0].y, h0.x), pack_rest_halves(v[0].z, v[0].w, h0.y),
                          pack_rest_halves(v[1].x, v[1].y, h0.z), pack_rest_halves(v[1].z, v[1].w, h0.w));
    uint4 l1 = make_uint4(pack_rest_halves(v[2].x, v[2].y, h1.x), pack_rest_halves(v[2].z, v[2].w, h1.y),
                          pack_rest_halves(v[3].x, v[3].y, h1.z), pack_rest_halves(v[3].z, v[3].w, h1.w));
    float own = 0.0f;
#pragma unroll
    for (u32 i = 0; i < 4; i++) own += v[i].x + v[i].y + v[i].z + v[i].w;
    own += __shfl_xor_sync(ALL, own, 1);
    own += __shfl_xor_sync(ALL, own, 2);
    float2 sum = make_float2(__shfl_sync(ALL, own, 8 * t), __shfl_sync(ALL, own, 8 * t + 4));
    // Tiles one after the other for each 16 columns, so that no instruction waits for the one before.
    uint4 c[2 * ROUTER_TILES];
    float d[ROUTER_TILES][4];
#pragma unroll
    for (u32 i = 0; i < 2 * ROUTER_TILES; i++) {
      u32 r = (tile0 + i / 2) * 16 + i % 2 * 8 + g;
      c[i] = *(const uint4*)(codes + r * ROUTER_CODES + t * 16);
#pragma unroll
      for (u32 e = 0; e < 2; e++) d[i / 2][i % 2 * 2 + e] = 0.0f;
    }
#pragma unroll
    for (u32 k = 0; k < 4; k++) {
      u32 low[2 * ROUTER_TILES], high[2 * ROUTER_TILES];
#pragma unroll
      for (u32 i = 0; i < 2 * ROUTER_TILES; i++) {
        u32 word = k == 0 ? c[i].x : k == 1 ? c[i].y : k == 2 ? c[i].z : c[i].w;
        low[i] = byte_halves(word, 0x4140);
        high[i] = byte_halves(word, 0x4342);
      }
      u32 x0 = k == 0 ? h0.x : k == 1 ? h0.z : k == 2 ? h1.x : h1.z, x1 = k == 0 ? h0.y : k == 1 ? h0.w : k == 2 ? h1.y : h1.w;
      u32 y0 = k == 0 ? l0.x : k == 1 ? l0.z : k == 2 ? l1.x : l1.z, y1 = k == 0 ? l0.y : k == 1 ? l0.w : k == 2 ? l1.y : l1.w;
#pragma unroll
      for (u32 i = 0; i < ROUTER_TILES; i++) mma_half(d[i], low[2 * i], low[2 * i + 1], high[2 * i], high[2 * i + 1], x0, x1);
#pragma unroll
      for (u32 i = 0; i < ROUTER_TILES; i++) mma_half(d[i], low[2 * i], low[2 * i + 1], high[2 * i], high[2 * i + 1], y0, y1);
    }
#pragma unroll
    for (u32 i = 0; i < ROUTER_TILES; i++) {
      const u8* at = factors + ((tile0 + i) * 16 + g) * factor_pitch + step * 2;
      float s0 = bfloat(*(const u16*)at), s1 = bfloat(*(const u16*)(at + 8 * factor_pitch));
      at += ROUTER_ROWS * factor_pitch;
      float b0 = bfloat(*(const u16*)at), b1 = bfloat(*(const u16*)(at + 8 * factor_pitch));
      sums[i][0] += fmaf(s0, d[i][0], b0 * sum.x);
      sums[i][1] += fmaf(s0, d[i][1], b0 * sum.y);
      sums[i][2] += fmaf(s1, d[i][2], b1 * sum.x);
      sums[i][3] += fmaf(s1, d[i][3], b1 * sum.y);
    }
  }
#pragma unroll
  for (u32 i = 0; i < ROUTER_TILES; i++) {
#pragma unroll
    for (u32 e = 0; e < 4; e++) {
      u32 row = row0 + (tile0 + i) * 16 + e / 2 * 8 + g, token = token0 + column + 2 * t + e % 2;
      if (row < all && token < tokens) ((float*)a.y)[(u64)token * a.shape.stride + row] = sums[i][e];
    }
  }
}

// ---- the pairs in order of expert

#define SORT_THREADS 512

// Counting sort. A block has an expert: it counts the pairs of smaller ones, which is where its own begin, then writes its
// own in order. A warp has a stretch of the pairs, 128 at a time. Grid: (experts); ids [tokens * chosen], a multiple of four.
extern "C" __global__ void __launch_bounds__(SORT_THREADS)
    native_moe_sort(const __grid_constant__ MoeSortArgs a, const __grid_constant__ GemmLaunch l) {
  constexpr u32 WARPS = SORT_THREADS / 32;
  __shared__ u32 smaller_of[WARPS], own_of[WARPS];
  grid_enter(l.step);
  u32 n = loadu(&((const Chunk*)a.chunk)->tokens) * a.shape.chosen, expert = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  u32 quads = n / 4, each = (quads + 32 * WARPS - 1) / (32 * WARPS) * 32, from = min(warp * each, quads), to = min(from + each, quads);
  const uint4* ids = (const uint4*)a.ids;
  u32 smaller = 0, own = 0;
#pragma unroll 8
  for (u32 i = from + lane; i < to; i += 32) {
    uint4 v = __ldcg(ids + i);
    smaller += (v.x < expert) + (v.y < expert) + (v.z < expert) + (v.w < expert);
    own += (v.x == expert) + (v.y == expert) + (v.z == expert) + (v.w == expert);
  }
  smaller = __reduce_add_sync(ALL, smaller);
  own = __reduce_add_sync(ALL, own);
  if (lane == 0) {
    own_of[warp] = own;
    smaller_of[warp] = smaller;
  }
  __syncthreads();
  u32 start = 0, at = 0;
  for (u32 i = 0; i < WARPS; i++) {
    start += smaller_of[i];
    at += i < warp ? own_of[i] : 0;
  }
  at += start;
  u32* pairs = (u32*)a.pairs;
  if (own)
#pragma unroll 4
    for (u32 i0 = from; i0 < to; i0 += 32) {
      u32 i = i0 + lane;
      uint4 v = i < to ? __ldcg(ids + i) : make_uint4(ALL, ALL, ALL, ALL);
      u32 mine = (v.x == expert) + (v.y == expert) + (v.z == expert) + (v.w == expert);
      if (!__any_sync(ALL, mine)) continue;
      u32 upto = mine;
      for (u32 o = 1; o < 32; o *= 2) {
        u32 w = __shfl_up_sync(ALL, upto, o);
        if (lane >= o) upto += w;
      }
      u32 place = at + upto - mine;
      if (v.x == expert) pairs[place++] = 4 * i;
      if (v.y == expert) pairs[place++] = 4 * i + 1;
      if (v.z == expert) pairs[place++] = 4 * i + 2;
      if (v.w == expert) pairs[place++] = 4 * i + 3;
      at += __shfl_sync(ALL, upto, 31);
    }
  if (threadIdx.x == 0) {
    ((u32*)a.starts)[expert] = start;
    if (expert == 0) ((u32*)a.starts)[a.shape.experts] = n;
  }
}

// Blocks of at most `most` pairs of one expert, as moe_blocks makes them of 32. Grid: (1); 256 threads: one has an expert.
struct BlocksLaunch {
  u32 most, unused;
  Step step;
};
extern "C" __global__ void __launch_bounds__(256)
    native_moe_blocks(const __grid_constant__ MoeBlocksArgs a, const __grid_constant__ BlocksLaunch l) {
  __shared__ u32 totals[8];
  grid_enter(l.step);
  u32 tid = threadIdx.x, lane = tid % 32, first = 0, count = 0;
  if (tid < a.shape.experts) {
    first = loadu((const u32*)a.starts + tid);
    count = loadu((const u32*)a.starts + tid + 1) - first;
  }
  u32 own = (count + l.most - 1) / l.most, at = own, used = 0;
  for (u32 o = 1; o < 32; o *= 2) {
    u32 v = __shfl_up_sync(ALL, at, o);
    if (lane >= o) at += v;
  }
  if (lane == 31) totals[tid / 32] = at;
  __syncthreads();
  at -= own;
  for (u32 i = 0; i < 8; i++) {
    at += i < tid / 32 ? totals[i] : 0;
    used += totals[i];
  }
  uint4* blocks = (uint4*)a.blocks;
  for (u32 b = 0; b < own; b++) blocks[at + b] = make_uint4(tid, first + b * l.most, min(count - b * l.most, l.most), 0);
  for (u32 b = used + tid; b < a.capacity; b += 256) blocks[b] = make_uint4(0, 0, 0, 0);
}
