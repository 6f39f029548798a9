// Products of a step of several sequences (see batch.cu) with so many rows that a block has time to make bytes of all columns:
// y = W rmsnorm(x), W of 4-bit codes, 2,048 columns, a multiple of 16 ROWS rows.
//
// A warp has ROWS neighbouring tiles to itself, slice after slice, and meets nobody. Grid: (blocks, ceil(tokens / most)); the
// block with number i has `each` times ROWS tiles, ROWS more if i < `more`.
#define LONG_COLS 2048
#define LONG_PLACE 2304
template <u32 WARPS, u32 TILES, u32 ROWS> DEVICE void project_long(const ProjectArgs& a, const BatchLaunch& l, u8* shared) {
  constexpr u32 DEPTH = 2, STEP_PLACE = ROWS * LONG_PLACE, SIDE = WARPS / 16;
  constexpr u32 cols = LONG_COLS, slices = cols / SLICE, most = 8 * TILES, row_bytes = cols / 2, group_bytes = cols / GROUP * 2;
  float* factors = (float*)shared;            // [16]
  float* parts = factors + 16;                // [16 tokens][16]: sums of squares of 128 columns
  float2* groups = (float2*)(parts + 16 * 16);  // [cols / GROUP][16]
  u8* vectors = (u8*)(groups + cols / GROUP * BATCH_TOKENS);
  u8* places = vectors + most * BATCH_ROW(cols);  // [WARPS][DEPTH][ROWS]
  u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  u32 first = l.each * blockIdx.x + min(blockIdx.x, l.more), count = l.each + (blockIdx.x < l.more ? 1 : 0);
  u32 token0 = blockIdx.y * most, tokens = min(most, l.tokens - token0);
  u32 steps = count > warp ? ((count - warp - 1) / WARPS + 1) * slices : 0;

  // What this lane copies of the next slice (see bring_slice).
  u64 row = (u64)(first + warp) * (ROWS * TILE_ROWS);
  const u8* codes = (const u8*)a.w0 + (row + lane / 8) * row_bytes + lane % 8 * 16;
  const u8* numbers = (const u8*)(lane < 16 ? a.s0 : a.b0) + (row + lane % 16) * group_bytes;
  u8* mine = places + warp * (DEPTH * STEP_PLACE);
  u32 to_codes = shared_address(mine) + lane / 8 * 128 + (lane % 8 ^ lane / 8 * 2) * 16, to_numbers = shared_address(mine) + 2048 + lane * 8;
  u32 brought = 0, place_at = 0;
  auto bring = [&] {
    if (brought < steps) {
#pragma unroll
      for (u32 r = 0; r < ROWS; r++) {
#pragma unroll
        for (u32 i = 0; i < 4; i++)
          fetch16(to_codes + place_at + r * LONG_PLACE + i * 512, codes + (r * TILE_ROWS + i * 4) * row_bytes);
        fetch8(to_numbers + place_at + r * LONG_PLACE, numbers + r * TILE_ROWS * group_bytes);
      }
      brought++;
      bool over = brought % slices == 0;
      codes += over ? WARPS * ROWS * TILE_ROWS * row_bytes - (slices - 1) * 128 : 128;
      numbers += over ? WARPS * ROWS * TILE_ROWS * group_bytes - (slices - 1) * 8 : 8;
      place_at = place_at + STEP_PLACE == DEPTH * STEP_PLACE ? 0 : place_at + STEP_PLACE;
    }
    fetches_end();
  };
  bring();
  uint2 gain = ((const uint2*)a.gain)[warp % 16 * 32 + lane];
  grid_enter(l.step);
  // A warp makes bytes of 128 columns of four tokens at once.
  constexpr u32 N = 4;
  u32 part = warp % 16;
  const float4* x = (const float4*)a.x + (u64)token0 * (cols / 4) + part * 32 + lane;
#pragma unroll
  for (u32 n0 = 0; n0 < most; n0 += SIDE * N) {
    if (n0 >= tokens) break;
    float4 v[N];
    u8* rows[N];
    float2* scales[N];
    u32 at[N], token[N];
#pragma unroll
    for (u32 i = 0; i < N; i++) {
      // One too many is this warp's first once more.
      token[i] = n0 + SIDE * i + warp / 16;
      token[i] = token[i] < tokens ? token[i] : min(warp / 16, tokens - 1);
      v[i] = load4(x + token[i] * (cols / 4));
    }
    if (n0 == 0) {
#pragma unroll
      for (u32 i = 1; i < DEPTH; i++) bring();
    }
    float4 f = bfloats4(gain);
#pragma unroll
    for (u32 i = 0; i < N; i++) {
      rows[i] = vectors + token[i] * BATCH_ROW(cols);
      scales[i] = groups + token[i];
      at[i] = part * 32 + lane;
      float sum = warp_sum(dot(v[i], v[i]));
      if (lane == 0) parts[token[i] * 16 + part] = sum;
      v[i] = make_float4(v[i].x * f.x, v[i].y * f.y, v[i].z * f.z, v[i].w * f.w);
    }
    stage_vectors<N>(rows, scales, BATCH_TOKENS, at, v);
  }
  __syncthreads();
  if (threadIdx.x < tokens) {
    float total = 0.0f;
#pragma unroll
    for (u32 i = 0; i < 16; i++) total += parts[threadIdx.x * 16 + i];
    factors[threadIdx.x] = rsqrtf(total / (float)cols + a.shape.eps);
  }
  __syncthreads();

  // A column without a token takes the last one's bytes; nobody reads its sums.
  const u8* own_bytes[TILES];
  const float2 *own_scales[TILES][2], *own_sums[TILES];
#pragma unroll
  for (u32 j = 0; j < TILES; j++) {
    u32 column = min(8 * j + g, tokens - 1);
    own_bytes[j] = vectors + column * BATCH_ROW(cols) + t * 16;
    own_sums[j] = groups + t * BATCH_TOKENS + column;
#pragma unroll
    for (u32 i = 0; i < 2; i++) own_scales[j][i] = groups + min(8 * j + 2 * t + i, tokens - 1);
  }
  float sum[ROWS][TILES][4];
  const u8* place = mine;
  float* y = (float*)a.y + (u64)token0 * a.shape.stride + row + g;
  for (u32 n = 0; n < steps; n++) {
    u32 slice = n % slices;
    if (slice == 0) {
#pragma unroll
      for (u32 r = 0; r < ROWS; r++) {
#pragma unroll
        for (u32 j = 0; j < TILES; j++) sum[r][j][0] = sum[r][j][1] = sum[r][j][2] = sum[r][j][3] = 0.0f;
      }
    }
    const u8* bytes[TILES];
    float scale[TILES][2][2];
    u32 sum_high[TILES], sum_low[TILES];
#pragma unroll
    for (u32 j = 0; j < TILES; j++) {
      bytes[j] = own_bytes[j] + slice * (2 * SLICE);
#pragma unroll
      for (u32 i = 0; i < 2; i++) {
        scale[j][0][i] = own_scales[j][i][slice * (4 * BATCH_TOKENS)].x;
        scale[j][1][i] = own_scales[j][i][slice * (4 * BATCH_TOKENS) + 2 * BATCH_TOKENS].x;
      }
      float all = own_sums[j][slice * (4 * BATCH_TOKENS)].y;
      sum_high[j] = __float_as_uint(all) & 0xffffe000u;
      sum_low[j] = __float_as_uint(all - __uint_as_float(sum_high[j]));
    }
    fetches_wait<DEPTH - 1>();
    __syncwarp();
    multiply_slice<false, TILES, ROWS>(sum, place, false, bytes, scale, sum_high, sum_low, lane);
    __syncwarp();
    bring();
    place = place + STEP_PLACE == mine + DEPTH * STEP_PLACE ? mine : place + STEP_PLACE;
    if (slice == slices - 1) {
#pragma unroll
      for (u32 j = 0; j < TILES; j++) {
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
          u32 token = 8 * j + 2 * t + i;
          if (token < tokens) {
#pragma unroll
            for (u32 r = 0; r < ROWS; r++) {
              y[(u64)token * a.shape.stride + r * TILE_ROWS] = sum[r][j][i] * factors[token];
              y[(u64)token * a.shape.stride + r * TILE_ROWS + 8] = sum[r][j][2 + i] * factors[token];
            }
          }
        }
      }
      y += WARPS * ROWS * TILE_ROWS;
    }
  }
}
#define PROJECT_LONG(name, warps, tiles, rows)                                                    \
  extern "C" __global__ void __launch_bounds__(warps * 32, 1)                                     \
      name(const __grid_constant__ ProjectArgs a, const __grid_constant__ BatchLaunch l) {        \
    extern __shared__ __align__(128) u8 shared[];                                                 \
    project_long<warps, tiles, rows>(a, l, shared);                                               \
  }
PROJECT_LONG(native_batch_long_8, 16, 1, 2)
PROJECT_LONG(native_batch_long_16, 16, 2, 2)
