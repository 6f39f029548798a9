// Gated DeltaNet over a chunk of tokens (gdn_prefill.metal, which has the formulas), 64 tokens a step, on the tensor cores.
//
// Every operand is two halves, what a float is rounded to and what that lacks, 22 bits in all, and of a product of two such
// all but the product of the two rests is taken (2^-24); sums and state are f32. So outputs and state are as good as with f32
// operands, to some 1e-6. What keeps both halves in their range (below 6e-5 a half has an absolute error of 3e-8):
//   queries, keys     of length 1 (queries are divided by sqrt(GDN_DIM) where outputs are stored), times GDN_LENGTH
//   (I + A)^-1        1 on the diagonal, elsewhere not above 1: what comes of one write in the delta rule only shrinks
//   P                 times GDN_LENGTH, not above that
//   state, values     times a power of two that each warp of the scan chooses for itself, from what it holds and step by
//                     step, so they may be of any size; outputs are normed behind the scan, and heads of small values count
// `u` and `factors` have a layout of their own, so the three kernels that know it run together or not at all. Chunks have
// room for a multiple of 64 tokens.
#define GDN_STEP 64
#define GDN_LENGTH 16.0f
#define GDN_ROW (GDN_DIM * 2)                   // bytes of a half of a query or key
#define GDN_TILE (GDN_STEP * GDN_ROW)           // a step's queries or keys of one head, one of the halves
#define GDN_PART (GDN_STEP * GDN_VALUES * 4)    // a step's values of a quarter of a head
// `factors`: of a step and value head four triangles of ten blocks of 16 x 16 on and below the diagonal: (I + A)^-1, what it
// lacks, P, what it lacks. A block is four matrices of 8 x 8, of which the second is zero on the diagonal: the first two
// triangles have the tables below in these places instead, because the buffer, as large as gdn_prefill.metal's for two steps
// of 32, has no other room.
#define GDN_BLOCKS 10
#define GDN_TRIANGLE (GDN_BLOCKS * 512)
#define GDN_FACTOR_BYTES (4 * GDN_TRIANGLE)
#define GDN_TABLE_OLD 0    // exp G: what is left of the old state
#define GDN_TABLE_SEEN 1   // beta exp G / GDN_LENGTH
#define GDN_TABLE_BETA 2   // beta
#define GDN_TABLE_KEPT 3   // exp(G_last - G) / GDN_LENGTH
// Where in a step's factors the values of a table for tokens 32 `half` to 32 `half` + 31 are.
DEVICE u32 gdn_table(u32 table, u32 half) {
  u32 diagonal = (2 * table + half) % 4;
  return table / 2 * GDN_TRIANGLE + diagonal * (diagonal + 3) / 2 * 512 + 128;
}

// `u`: per step, of each key head queries, what they lack, and so of each the keys: [64 tokens, 128] halves, piece p
// (16 bytes) of token r at p ^ (r % 8); then of each value head and quarter [32 values, 64 tokens] f32, tokens 2 p and
// 2 p + 1 of value v at p ^ (4 (v % 8)). Together channels * 4 bytes a token, as much as there is.
struct GdnTiles {
  u8* start;
  u32 key_heads;
  __device__ __forceinline__ u8* queries(u32 head) const { return start + head * (2 * GDN_TILE); }
  __device__ __forceinline__ u8* keys(u32 head) const { return start + (key_heads + head) * (2 * GDN_TILE); }
  __device__ __forceinline__ u8* values(u32 head, u32 part) const {
    return start + 4 * key_heads * GDN_TILE + (head * GDN_PARTS + part) * GDN_PART;
  }
};
DEVICE GdnTiles gdn_tiles(void* u, u32 step, u32 key_heads, u32 channels) {
  GdnTiles t = {(u8*)u + (u64)step * GDN_STEP * channels * 4, key_heads};
  return t;
}

// Arrives at a barrier of some of the block's warps, at which others wait (`sync_some`), and goes on.
DEVICE void gdn_arrive(u32 id, u32 threads) { asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
// What earlier kernels stored is seen by the copy engine.
DEVICE void copy_engine_fence() { asm volatile("fence.proxy.async;" ::: "memory"); }

// Convolution, SiLU, norms. Grid: (2 key_heads + value_heads, ceil(tokens / 32)); 128 threads: 128 channels, eight tokens a warp.
extern "C" __global__ void __launch_bounds__(128)
    native_gdn_convolve(const __grid_constant__ GdnConvolveArgs a, const __grid_constant__ GdnLaunch l) {
  grid_enter(l.step);
  const Chunk* chunk = (const Chunk*)a.chunk;
  u32 tokens = loadu(&chunk->tokens), position = loadu(&chunk->position), slot = loadu(&chunk->slot);
  if (blockIdx.y * 32 >= (tokens + GDN_STEP - 1) / GDN_STEP * GDN_STEP) return;
  u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, key_heads = a.shape.key_heads;
  u32 channels = (2 * key_heads + a.shape.value_heads) * GDN_DIM, first = blockIdx.y * 32 + warp * 8;
  u32 quad = blockIdx.x * (GDN_DIM / 4) + lane;
  const float4* in = (const float4*)a.projected + quad;
  const float4* past = (const float4*)a.ring + (u64)slot * (GDN_TAPS * channels / 4) + quad;
  const uint2* weight = (const uint2*)a.conv_weight + 4 * quad;
  float4 w0 = bfloats4(weight[0]), w1 = bfloats4(weight[1]), w2 = bfloats4(weight[2]), w3 = bfloats4(weight[3]);
  float4 x[11];
#pragma unroll
  for (u32 j = 0; j < 11; j++) {
    u32 token = first + j - 3;
    if (first + j >= 3)
      x[j] = token < tokens ? load4(in + (u64)token * (a.shape.stride / 4)) : make_float4(0, 0, 0, 0);
    else
      x[j] = load4(past + (position + token) % GDN_TAPS * (channels / 4));
  }
  float4 y[8];
#pragma unroll
  for (u32 i = 0; i < 8; i++) {
    float4 s;
    s.x = fmaf(w0.w, x[i + 3].x, fmaf(w0.z, x[i + 2].x, fmaf(w0.y, x[i + 1].x, w0.x * x[i].x)));
    s.y = fmaf(w1.w, x[i + 3].y, fmaf(w1.z, x[i + 2].y, fmaf(w1.y, x[i + 1].y, w1.x * x[i].y)));
    s.z = fmaf(w2.w, x[i + 3].z, fmaf(w2.z, x[i + 2].z, fmaf(w2.y, x[i + 1].z, w2.x * x[i].z)));
    s.w = fmaf(w3.w, x[i + 3].w, fmaf(w3.z, x[i + 2].w, fmaf(w3.y, x[i + 1].w, w3.x * x[i].w)));
    y[i] = first + i < tokens ? make_float4(silu(s.x), silu(s.y), silu(s.z), silu(s.w)) : make_float4(0, 0, 0, 0);
  }
  GdnTiles tiles = gdn_tiles(a.u, blockIdx.y / 2, key_heads, channels);
  u32 row0 = blockIdx.y % 2 * 32 + warp * 8;
  if (blockIdx.x < 2 * key_heads) {
    u8* tile = blockIdx.x < key_heads ? tiles.queries(blockIdx.x) : tiles.keys(blockIdx.x - key_heads);
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
      float f = rsqrtf(warp_sum(dot(y[i], y[i])) + 1e-6f) * GDN_LENGTH;
      float4 v = make_float4(y[i].x * f, y[i].y * f, y[i].z * f, y[i].w * f);
      uint2 high = make_uint2(pack_halves(v.x, v.y), pack_halves(v.z, v.w));
      // A tile's row r has r % 8 = i: row0 is a multiple of 8.
      u8* to = tile + (row0 + i) * GDN_ROW + (lane / 2 ^ i) * 16 + lane % 2 * 8;
      *(uint2*)to = high;
      *(uint2*)(to + GDN_TILE) = make_uint2(pack_rest_halves(v.x, v.y, high.x), pack_rest_halves(v.z, v.w, high.y));
    }
  } else {
    u8* tile = tiles.values(blockIdx.x - 2 * key_heads, lane / 8);
#pragma unroll
    for (u32 c = 0; c < 4; c++) {
      u32 value = lane % 8 * 4 + c;
      float4* to = (float4*)(tile + value * (GDN_STEP * 4) + ((row0 / 2) ^ (value % 8 * 4)) * 8);
      float v[8];
#pragma unroll
      for (u32 i = 0; i < 8; i++) v[i] = c == 0 ? y[i].x : c == 1 ? y[i].y : c == 2 ? y[i].z : y[i].w;
      to[0] = make_float4(v[0], v[1], v[2], v[3]);
      to[1] = make_float4(v[4], v[5], v[6], v[7]);
    }
  }
}

// Where a lane finds its row of an operand in a tile of queries or keys, for load_matrices: the first operand's 16 rows from
// `row` on, or the second one's (two of eight columns), 16 values from 16-byte piece `piece` on.
DEVICE u32 gdn_rows(u32 tile, u32 row, u32 piece, u32 lane) {
  u32 r = row + lane % 16;
  return tile + r * GDN_ROW + ((piece + lane / 16) ^ (r & 7)) * 16;
}
DEVICE u32 gdn_columns(u32 tile, u32 row, u32 piece, u32 lane) {
  u32 r = row + lane / 16 * 8 + lane % 8;
  return tile + r * GDN_ROW + ((piece + lane / 8 % 2) ^ (r & 7)) * 16;
}

#define GDN_PITCH 68  // floats
// Decays, A and products take the place of queries and keys.
#define GDN_FACTORS_SHARED (4 * GDN_TILE + 2 * GDN_STEP * 4 + 16)

// Everything of a step that does not need the state; and the last inputs into the ring. Grid: (steps, value_heads); 128 threads.
extern "C" __global__ void __launch_bounds__(128)
    native_gdn_factors(const __grid_constant__ GdnFactorsArgs a, const __grid_constant__ GdnLaunch l) {
  extern __shared__ __align__(128) u8 shared[];
  u8 *queries = shared, *keys = shared + 2 * GDN_TILE;
  float* decays = (float*)shared;                    // [64][68]; in the end the inverse
  float* lower = decays + GDN_STEP * GDN_PITCH;      // A
  float* products = lower + GDN_STEP * GDN_PITCH;    // [4 warps][16][20]
  float* logs = (float*)(shared + 4 * GDN_TILE);     // log decays
  float* betas = logs + GDN_STEP;
  u64* full = (u64*)(betas + GDN_STEP);
  grid_enter(l.step);
  const Chunk* chunk = (const Chunk*)a.chunk;
  u32 tokens = loadu(&chunk->tokens), first = blockIdx.x * GDN_STEP, head = blockIdx.y;
  if (first >= tokens) return;
  u32 tid = threadIdx.x, warp = tid / 32, lane = tid % 32, g = lane / 4, t = lane % 4;
  u32 key_heads = a.shape.key_heads, value_heads = a.shape.value_heads, together = value_heads / key_heads, key_head = head / together;
  u32 key_width = key_heads * GDN_DIM, value_width = value_heads * GDN_DIM, channels = 2 * key_width + value_width;
  GdnTiles tiles = gdn_tiles(a.u, blockIdx.x, key_heads, channels);
  if (tid == 0) {
    barrier_init(full, 1);
    barrier_fence();
    copy_engine_fence();
    barrier_expect(full, 4 * GDN_TILE);
    bulk_load(queries, tiles.queries(key_head), 2 * GDN_TILE, full);
    bulk_load(keys, tiles.keys(key_head), 2 * GDN_TILE, full);
  }
  if (tid < GDN_STEP) {
    float decay = 0.0f, beta = 0.0f;
    if (first + tid < tokens) {
      const float* gates = (const float*)a.projected + (u64)(first + tid) * a.shape.stride + channels + value_width + head;
      beta = sigmoid(load1(gates));
      decay = -expf(((const float*)a.a_log)[head]) * softplus(load1(gates + value_heads) + ((const float*)a.dt_bias)[head]);
    }
    logs[tid] = decay;
    betas[tid] = beta;
  }
  __syncthreads();
  u8* out = (u8*)a.factors + ((u64)blockIdx.x * value_heads + head) * GDN_FACTOR_BYTES;
  // k k^T and q k^T on and below the diagonal, 16 rows a warp, each product in three parts.
  barrier_wait(full, 0);
  u32 q_at = shared_address(queries), k_at = shared_address(keys);
  float kk[8][4], qk[8][4];
#pragma unroll
  for (u32 n = 0; n < 8; n++)
#pragma unroll
    for (u32 e = 0; e < 4; e++) kk[n][e] = qk[n][e] = 0.0f;
#pragma unroll
  for (u32 k = 0; k < GDN_DIM / 16; k++) {
    u32 at = gdn_rows(0, 16 * warp, 2 * k, lane);
    uint4 rows_k = load_matrices(k_at + at), rest_k = load_matrices(k_at + GDN_TILE + at);
    uint4 rows_q = load_matrices(q_at + at), rest_q = load_matrices(q_at + GDN_TILE + at);
#pragma unroll
    for (u32 j = 0; j < 4; j++) {
      if (j > warp) continue;
      u32 columns = gdn_columns(k_at, 16 * j, 2 * k, lane);
      uint4 b = load_matrices(columns), rest = load_matrices(columns + GDN_TILE);
      auto multiply = [&](const uint4& k, const uint4& q, const uint4& columns) {
        mma_half(kk[2 * j], k, columns.x, columns.y);
        mma_half(kk[2 * j + 1], k, columns.z, columns.w);
        mma_half(qk[2 * j], q, columns.x, columns.y);
        mma_half(qk[2 * j + 1], q, columns.z, columns.w);
      };
      multiply(rows_k, rows_q, b);
      multiply(rest_k, rest_q, b);
      multiply(rows_k, rows_q, rest);
    }
  }
  __syncthreads();
  {
    // exp of the sum of log decays behind token j up to token i. Not as the difference of two sums from the start: behind a
    // token that forgets almost everything those are large, and their difference has lost its digits.
    u32 j = tid % GDN_STEP, from = tid / GDN_STEP * (GDN_STEP / 2);
    float sum = 0.0f;
    for (u32 i = 0; i < from; i++) sum += i > j ? logs[i] : 0.0f;
    for (u32 i = from; i < from + GDN_STEP / 2; i++) {
      sum += i > j ? logs[i] : 0.0f;
      decays[i * GDN_PITCH + j] = i >= j ? expf(sum) : 0.0f;
    }
    auto table = [&](u32 which) -> float& { return *(float*)(out + gdn_table(which, j / 32) + j % 32 * 4); };
    if (from) {
      table(GDN_TABLE_KEPT) = expf(sum) * (1.0f / GDN_LENGTH);
    } else {
      sum = 0.0f;
      for (u32 i = 0; i <= j; i++) sum += logs[i];
      float old = expf(sum), beta = betas[j];
      table(GDN_TABLE_OLD) = old;
      table(GDN_TABLE_SEEN) = beta * old * (1.0f / GDN_LENGTH);
      table(GDN_TABLE_BETA) = beta;
    }
  }
  __syncthreads();
#pragma unroll
  for (u32 n = 0; n < 8; n++) {
    if (n / 2 > warp) continue;
#pragma unroll
    for (u32 h = 0; h < 2; h++) {
      u32 i = 16 * warp + 8 * h + g, j = 8 * n + 2 * t;
      float2 decay = *(const float2*)(decays + i * GDN_PITCH + j);
      float f = betas[i] * (1.0f / (GDN_LENGTH * GDN_LENGTH));
      float2 v = make_float2(j < i ? f * decay.x * kk[n][2 * h] : 0.0f, j + 1 < i ? f * decay.y * kk[n][2 * h + 1] : 0.0f);
      *(float2*)(lower + i * GDN_PITCH + j) = v;
      u8* to = out + 2 * GDN_TRIANGLE + (warp * (warp + 1) / 2 + n / 2) * 512 + (2 * h + n % 2) * 128 + lane * 4;
      float p0 = decay.x * qk[n][2 * h] * (1.0f / GDN_LENGTH), p1 = decay.y * qk[n][2 * h + 1] * (1.0f / GDN_LENGTH);
      u32 high = pack_halves(p0, p1);
      *(u32*)to = high;
      *(u32*)(to + GDN_TRIANGLE) = pack_rest_halves(p0, p1, high);
    }
  }
  __syncthreads();
  // (I + A)^-1, over the decays: blocks of 16 on the diagonal by substitution, a column a lane; those below by products.
  float* inverse = decays;
  {
    u32 c = lane % 16;
    const float* block = lower + 16 * warp * (GDN_PITCH + 1);
    float x[16];
#pragma unroll
    for (u32 i = 0; i < 16; i++) {
      x[i] = i == c ? 1.0f : 0.0f;
#pragma unroll
      for (u32 m = 0; m < i; m++) x[i] -= block[i * GDN_PITCH + m] * x[m];
      inverse[16 * warp * (GDN_PITCH + 1) + i * GDN_PITCH + c] = x[i];
    }
  }
  u32 r = lane / 2, c0 = lane % 2 * 8;
  // sum += A B of 16 x 16, `a` the lane's row.
  auto product = [&](float (&sum)[8], const float* row, const float* b, u32 pitch) {
#pragma unroll
    for (u32 k = 0; k < 16; k++) {
      float f = row[k];
      float4 u = *(const float4*)(b + k * pitch + c0), v = *(const float4*)(b + k * pitch + c0 + 4);
      sum[0] += f * u.x;
      sum[1] += f * u.y;
      sum[2] += f * u.z;
      sum[3] += f * u.w;
      sum[4] += f * v.x;
      sum[5] += f * v.y;
      sum[6] += f * v.z;
      sum[7] += f * v.w;
    }
  };
  for (u32 down = 1; down < 4; down++) {
    __syncthreads();
    if (warp >= down) {
      u32 i = warp, j = warp - down;
      float sum[8] = {0, 0, 0, 0, 0, 0, 0, 0}, all[8] = {0, 0, 0, 0, 0, 0, 0, 0};
      for (u32 m = j; m < i; m++)
        product(sum, lower + (16 * i + r) * GDN_PITCH + 16 * m, inverse + 16 * m * GDN_PITCH + 16 * j, GDN_PITCH);
      float* mine = products + warp * 320;
#pragma unroll
      for (u32 e = 0; e < 8; e++) mine[r * 20 + c0 + e] = sum[e];
      __syncwarp();
      product(all, inverse + (16 * i + r) * GDN_PITCH + 16 * i, mine, 20);
#pragma unroll
      for (u32 e = 0; e < 8; e++) inverse[(16 * i + r) * GDN_PITCH + 16 * j + c0 + e] = -all[e];
    }
  }
  __syncthreads();
#pragma unroll
  for (u32 n = 0; n < GDN_BLOCKS; n++) {
    u32 ib = n < 1 ? 0 : n < 3 ? 1 : n < 6 ? 2 : 3, jb = n - ib * (ib + 1) / 2, matrix = tid / 32;
    if (ib == jb && matrix == 1) continue;
    u32 i = 16 * ib + matrix / 2 * 8 + g, j = 16 * jb + matrix % 2 * 8 + 2 * t;
    float v0 = inverse[i * GDN_PITCH + j], v1 = inverse[i * GDN_PITCH + j + 1];
    u32 high = pack_halves(v0, v1);
    ((u32*)out)[n * 128 + tid] = high;
    ((u32*)(out + GDN_TRIANGLE))[n * 128 + tid] = pack_rest_halves(v0, v1, high);
  }
  // The last inputs of this head's channels; heads that share a key head leave its channels to the first of them.
  if (first + GDN_STEP >= tokens) {
    u32 position = loadu(&chunk->position), slot = loadu(&chunk->slot);
    for (u32 token = tokens - min(tokens, GDN_TAPS); token < tokens; token++) {
      const float* in = (const float*)a.projected + (u64)token * a.shape.stride;
      float* place = (float*)a.ring + ((u64)slot * GDN_TAPS + (position + token) % GDN_TAPS) * channels;
      u32 value = 2 * key_width + head * GDN_DIM + tid, query = key_head * GDN_DIM + tid, key = key_width + query;
      place[value] = load1(in + value);
      if (head % together == 0) {
        place[query] = load1(in + query);
        place[key] = load1(in + key);
      }
    }
  }
}

// The state through all steps, and the outputs.
//
// A block has 32 of a head's values: four warps with 16 values and half of the keys each, in registers, and one warp that
// brings what a step needs, a step ahead. All products are transposed: values down, tokens across, so that sums become
// first operands without leaving their lane. Warps of the same values add up their halves once a step.
// Grid: (4, value_heads); 160 threads.
#define GDN_STAGE (4 * GDN_TILE + GDN_FACTOR_BYTES + GDN_PART)
#define GDN_EXCHANGE (48 * 32 * 4 + 16)  // of a warp: sums, and the power of two they are times
#define GDN_SCAN_SHARED (1024 + 2 * GDN_STAGE + 4 * GDN_EXCHANGE)
// Two neighbouring tiles of sums as a first operand, and what it lacks.
DEVICE uint4 pack_tiles(const float (&p)[4], const float (&q)[4]) {
  return make_uint4(pack_halves(p[0], p[1]), pack_halves(p[2], p[3]), pack_halves(q[0], q[1]), pack_halves(q[2], q[3]));
}
DEVICE uint4 pack_rest_tiles(const float (&p)[4], const float (&q)[4], const uint4& high) {
  return make_uint4(pack_rest_halves(p[0], p[1], high.x), pack_rest_halves(p[2], p[3], high.y),
                    pack_rest_halves(q[0], q[1], high.z), pack_rest_halves(q[2], q[3], high.w));
}
// 16 rows of N pairs of neighbouring tiles of eight columns of sums: first operand high + low, second operands b + rest. All
// sums in turn, because a product waits for the one before that has the same sum.
template <u32 N>
DEVICE void gdn_mma(float (*sums)[4], const uint4& high, const uint4& low, const uint4 (&b)[N], const uint4 (&rest)[N]) {
#pragma unroll
  for (u32 part = 0; part < 3; part++)
#pragma unroll
    for (u32 n = 0; n < N; n++) {
      const uint4 &first = part == 1 ? low : high, &second = part == 2 ? rest[n] : b[n];
      mma_half(sums[2 * n], first, second.x, second.y);
      mma_half(sums[2 * n + 1], first, second.z, second.w);
    }
}
// d += of a triangle, at this lane's place in it, times y, from column of blocks J on.
template <u32 J> DEVICE void gdn_triangle(float (&d)[8][4], const uint4 (&high)[4], const uint4 (&low)[4], u32 at) {
  uint4 b[4 - J], rest[4 - J];
#pragma unroll
  for (u32 i = J; i < 4; i++) {
    b[i - J] = load_matrices(at + (i * (i + 1) / 2 + J) * 512);
    rest[i - J] = load_matrices(at + (i * (i + 1) / 2 + J) * 512 + GDN_TRIANGLE);
  }
  b[0].y = rest[0].y = 0;  // a table is there
  gdn_mma(d + 2 * J, high[J], low[J], b, rest);
  if constexpr (J < 3) gdn_triangle<J + 1>(d, high, low, at);
}
template <u32 N> DEVICE void gdn_scale(float (&v)[N][4], float f) {
#pragma unroll
  for (u32 n = 0; n < N; n++)
#pragma unroll
    for (u32 e = 0; e < 4; e++) v[n][e] *= f;
}
// The largest magnitude that a warp has.
DEVICE float gdn_largest(const float (&v)[8][4]) {
  float most[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
  for (u32 n = 0; n < 8; n++)
#pragma unroll
    for (u32 e = 0; e < 4; e++) most[e] = fmaxf(most[e], fabsf(v[n][e]));
  // Floats without a sign are in the order of their bits.
  return __uint_as_float(__reduce_max_sync(ALL, __float_as_uint(fmaxf(fmaxf(most[0], most[1]), fmaxf(most[2], most[3])))));
}
// What is multiplied is at least GDN_LEAST, which leaves the largest 24 bits, and below GDN_MOST: what the delta rule writes
// in a step is at most 65 times the largest of what it wants to, and a half ends at 65,504.
#define GDN_LEAST 1.0f
#define GDN_MOST 512.0f
// The power of two, not beyond 2^60, that brings a magnitude to 128 to 256; and the inverse of a power of two.
DEVICE float gdn_power(float most) { return __uint_as_float(min(261 - min(__float_as_uint(most) >> 23, 194u), 187u) << 23); }
DEVICE float gdn_inverse(float power) { return __uint_as_float((254u << 23) - __float_as_uint(power)); }

extern "C" __global__ void __launch_bounds__(160, 1)
    native_gdn_scan(const __grid_constant__ GdnScanArgs a, const __grid_constant__ GdnLaunch l) {
  extern __shared__ __align__(128) u8 shared[];
  u64 *full = (u64*)shared, *empty = full + 2;
  u8 *ring = shared + 1024, *exchange = ring + 2 * GDN_STAGE;
  if (threadIdx.x == 0) {
    for (u32 i = 0; i < 2; i++) {
      barrier_init(full + i, 1);
      barrier_init(empty + i, 4);
    }
    barrier_fence();
  }
  __syncthreads();
  grid_enter(l.step);
  const Chunk* chunk = (const Chunk*)a.chunk;
  u32 tokens = loadu(&chunk->tokens), slot = loadu(&chunk->slot), steps = (tokens + GDN_STEP - 1) / GDN_STEP;
  u32 part = blockIdx.x, head = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  u32 key_heads = a.shape.key_heads, value_heads = a.shape.value_heads, key_head = head / (value_heads / key_heads);
  u32 value_width = value_heads * GDN_DIM, channels = 2 * key_heads * GDN_DIM + value_width;
  if (warp == 4) {
    if (lane) return;
    copy_engine_fence();
    for (u32 s = 0; s < steps; s++) {
      u64* b = full + s % 2;
      u8* to = ring + s % 2 * GDN_STAGE;
      GdnTiles tiles = gdn_tiles(a.u, s, key_heads, channels);
      barrier_wait(empty + s % 2, s / 2 % 2 ^ 1);
      barrier_expect(b, GDN_STAGE);
      bulk_load(to, tiles.keys(key_head), 2 * GDN_TILE, b);
      bulk_load(to + 2 * GDN_TILE, tiles.queries(key_head), 2 * GDN_TILE, b);
      bulk_load(to + 4 * GDN_TILE, (const u8*)a.factors + ((u64)s * value_heads + head) * GDN_FACTOR_BYTES, GDN_FACTOR_BYTES, b);
      bulk_load(to + 4 * GDN_TILE + GDN_FACTOR_BYTES, tiles.values(head, part), GDN_PART, b);
    }
    return;
  }
  u32 half = warp % 2, row = warp / 2 * 16 + g;  // half of the keys; the first of the thread's two values of the part
  float* own = (float*)a.state + (((u64)slot * value_heads + head) * GDN_DIM + part * GDN_VALUES + row) * GDN_DIM + half * 64 + 2 * t;
  float s[8][4];
#pragma unroll
  for (u32 n = 0; n < 8; n++)
#pragma unroll
    for (u32 h = 0; h < 2; h++) {
      float2 v = __ldcg((const float2*)(own + 8 * h * GDN_DIM + 8 * n));
      s[n][2 * h] = v.x;
      s[n][2 * h + 1] = v.y;
    }
  float unit = 1.0f;  // what this warp's state is times
  for (u32 step = 0; step < steps; step++) {
    u8* stage = ring + step % 2 * GDN_STAGE;
    u32 k_at = shared_address(stage), q_at = k_at + 2 * GDN_TILE, t_at = k_at + 4 * GDN_TILE, p_at = t_at + 2 * GDN_TRIANGLE;
    const u8 *factors = stage + 4 * GDN_TILE, *values = factors + GDN_FACTOR_BYTES;
    auto table = [&](u32 which, u32 n) { return *(const float2*)(factors + gdn_table(which, n / 4) + n % 4 * 32 + t * 8); };
    float most = gdn_largest(s);
    if (!(most >= GDN_LEAST && most < GDN_MOST)) {
      float to = gdn_power(most * gdn_inverse(unit)), f = to * gdn_inverse(unit);
      unit = to;
      gdn_scale(s, f);
    }
    barrier_wait(full + step % 2, step / 2 % 2);
    // x = S K^T and o = S Q^T over this warp's keys.
    float x[8][4] = {}, o[8][4] = {};
#pragma unroll
    for (u32 j = 0; j < 4; j++) {
      uint4 high = pack_tiles(s[2 * j], s[2 * j + 1]), low = pack_rest_tiles(s[2 * j], s[2 * j + 1], high);
      uint4 b[4], rest[4];
#pragma unroll
      for (u32 n = 0; n < 4; n++) {
        u32 at = gdn_columns(k_at, 16 * n, half * 8 + 2 * j, lane);
        b[n] = load_matrices(at);
        rest[n] = load_matrices(at + GDN_TILE);
      }
      gdn_mma(x, high, low, b, rest);
#pragma unroll
      for (u32 n = 0; n < 4; n++) {
        u32 at = gdn_columns(q_at, 16 * n, half * 8 + 2 * j, lane);
        b[n] = load_matrices(at);
        rest[n] = load_matrices(at + GDN_TILE);
      }
      gdn_mma(o, high, low, b, rest);
    }
    // The other half's: of x all; of o, each warp takes 32 tokens, the first and last sixteen or those between, for which P d
    // is as much work. A warp writes when the other one has read what it wrote in the step before.
    u8 *from = exchange + (warp ^ 1) * GDN_EXCHANGE, *to = exchange + warp * GDN_EXCHANGE;
    float4* give = (float4*)to + lane;
    const float4* take = (const float4*)from + lane;
    if (step) sync_some(3 + warp, 64);
    float mine[4][4];
#pragma unroll
    for (u32 n = 0; n < 8; n++) give[32 * n] = make_float4(x[n][0], x[n][1], x[n][2], x[n][3]);
#pragma unroll
    for (u32 n = 0; n < 4; n++) {
      float other[4];
#pragma unroll
      for (u32 e = 0; e < 4; e++) {
        mine[n][e] = half ? o[2 + n][e] : o[n / 2 * 4 + n][e];
        other[e] = half ? o[n / 2 * 4 + n][e] : o[2 + n][e];
      }
      give[32 * (8 + n)] = make_float4(other[0], other[1], other[2], other[3]);
    }
    if (lane == 0) *(float*)(to + 48 * 32 * 4) = unit;
    __syncwarp();
    sync_some(1 + warp / 2, 64);
    float ratio = unit * gdn_inverse(*(const float*)(from + 48 * 32 * 4));
    // y = diag(beta) (V - diag(exp G) K S^T).
#pragma unroll
    for (u32 n = 0; n < 8; n++) {
      float4 v = take[32 * n];
      float2 f = table(GDN_TABLE_SEEN, n), beta = table(GDN_TABLE_BETA, n);
      beta.x *= unit;
      beta.y *= unit;
      const u8* at = values + row * (GDN_STEP * 4) + ((4 * n + t) ^ (4 * g)) * 8;
      float2 v0 = *(const float2*)at, v1 = *(const float2*)(at + 8 * GDN_STEP * 4);
      x[n][0] = beta.x * v0.x - f.x * fmaf(v.x, ratio, x[n][0]);
      x[n][1] = beta.y * v0.y - f.y * fmaf(v.y, ratio, x[n][1]);
      x[n][2] = beta.x * v1.x - f.x * fmaf(v.z, ratio, x[n][2]);
      x[n][3] = beta.y * v1.y - f.y * fmaf(v.w, ratio, x[n][3]);
    }
#pragma unroll
    for (u32 n = 0; n < 4; n++) {
      float4 v = take[32 * (8 + n)];
      u32 block = half ? 1 + n / 2 : 3 * (n / 2);
      float2 f = *(const float2*)(factors + gdn_table(GDN_TABLE_OLD, block / 2) + (block % 2 * 2 + n % 2) * 32 + t * 8);
      mine[n][0] = f.x * fmaf(v.x, ratio, mine[n][0]);
      mine[n][1] = f.y * fmaf(v.y, ratio, mine[n][1]);
      mine[n][2] = f.x * fmaf(v.z, ratio, mine[n][2]);
      mine[n][3] = f.y * fmaf(v.w, ratio, mine[n][3]);
    }
    if (step + 1 < steps) gdn_arrive(3 + (warp ^ 1), 64);
    float last = *(const float*)(factors + gdn_table(GDN_TABLE_OLD, 1) + 31 * 4);
    // What is written may be far smaller than the state: where that is forgotten within the step, outputs are made of it.
    most = gdn_largest(x);
    if (!(most >= GDN_LEAST && most < GDN_MOST)) {
      float to = gdn_power(most * gdn_inverse(unit)), f = to * gdn_inverse(unit);
      unit = to;
      last *= f;
      gdn_scale(x, f);
      gdn_scale(mine, f);
    }
    // d = (I + A)^-1 y.
    float d[8][4] = {};
    uint4 high[4], low[4];
#pragma unroll
    for (u32 j = 0; j < 4; j++) {
      high[j] = pack_tiles(x[2 * j], x[2 * j + 1]);
      low[j] = pack_rest_tiles(x[2 * j], x[2 * j + 1], high[j]);
    }
    gdn_triangle<0>(d, high, low, t_at + lane * 16);
    // o += P d, of this warp's tokens.
#pragma unroll
    for (u32 j = 0; j < 4; j++) {
      high[j] = pack_tiles(d[2 * j], d[2 * j + 1]);
      low[j] = pack_rest_tiles(d[2 * j], d[2 * j + 1], high[j]);
    }
#pragma unroll
    for (u32 j = 0; j < 4; j++) {
      u32 upper = half ? 1 : 0, below = half ? 2 : 3, at = p_at + j * 512 + lane * 16;
      u32 at0 = at + upper * (upper + 1) / 2 * 512, at1 = at + below * (below + 1) / 2 * 512;
      if (j <= upper) {
        uint4 b[2] = {load_matrices(at0), load_matrices(at1)};
        uint4 rest[2] = {load_matrices(at0 + GDN_TRIANGLE), load_matrices(at1 + GDN_TRIANGLE)};
        gdn_mma(mine, high[j], low[j], b, rest);
      } else if (j <= below) {
        uint4 b[1] = {load_matrices(at1)}, rest[1] = {load_matrices(at1 + GDN_TRIANGLE)};
        gdn_mma(mine + 2, high[j], low[j], b, rest);
      }
    }
    float* out = (float*)a.o + (u64)(step * GDN_STEP + 2 * t) * value_width + head * GDN_DIM + part * GDN_VALUES + row;
    float undo = gdn_inverse(unit) * (rsqrtf((float)GDN_DIM) / GDN_LENGTH);
#pragma unroll
    for (u32 n = 0; n < 4; n++) {
      u32 token = 16 * (half ? 1 + n / 2 : 3 * (n / 2)) + 8 * (n % 2);
#pragma unroll
      for (u32 e = 0; e < 4; e++) out[(u64)(token + e % 2) * value_width + e / 2 * 8] = mine[n][e] * undo;
    }
    // S <- exp(G_last) S + sum over tokens of exp(G_last - G) d k^T.
#pragma unroll
    for (u32 j = 0; j < 4; j++) {
#pragma unroll
      for (u32 n = 2 * j; n < 2 * j + 2; n++) {
        float2 f = table(GDN_TABLE_KEPT, n);
        d[n][0] *= f.x;
        d[n][1] *= f.y;
        d[n][2] *= f.x;
        d[n][3] *= f.y;
      }
      high[j] = pack_tiles(d[2 * j], d[2 * j + 1]);
      low[j] = pack_rest_tiles(d[2 * j], d[2 * j + 1], high[j]);
    }
    // Sums of their own: the tensor cores cut off what a sum of a large and small numbers has beyond 24 bits, and always
    // towards zero, which over many steps would not average out in the state.
    float added[8][4] = {};
#pragma unroll
    for (u32 j = 0; j < 4; j++) {
      // Rows of the tile are the product's depth here, so both operands' halves change places.
      uint4 b[4], rest[4];
#pragma unroll
      for (u32 n = 0; n < 4; n++) {
        u32 at = gdn_rows(k_at, 16 * j, half * 8 + 2 * n, lane);
        b[n] = load_transposed(at);
        rest[n] = load_transposed(at + GDN_TILE);
      }
      gdn_mma(added, high[j], low[j], b, rest);
    }
#pragma unroll
    for (u32 n = 0; n < 8; n++)
#pragma unroll
      for (u32 e = 0; e < 4; e++) s[n][e] = fmaf(s[n][e], last, added[n][e]);
    copy_fence();
    __syncwarp();
    if (lane == 0) barrier_arrive(empty + step % 2);
  }
  float undo = gdn_inverse(unit);
#pragma unroll
  for (u32 n = 0; n < 8; n++)
#pragma unroll
    for (u32 h = 0; h < 2; h++)
      *(float2*)(own + 8 * h * GDN_DIM + 8 * n) = make_float2(s[n][2 * h] * undo, s[n][2 * h + 1] * undo);
}
