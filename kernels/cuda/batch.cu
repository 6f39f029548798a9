// Products of a step of several sequences: every weight is read once for up to 16 tokens.
//
// An mma multiplies 16 rows x 32 columns of codes with 32 x 8 activation bytes, and the eight are tokens here: one mma for
// the high bytes, one for the low.
//
// Making bytes of 16 tokens' activations takes a block several microseconds, so no block makes those of all columns: eight
// blocks are a cluster, each has an eighth of the columns, for all of the cluster's rows, and the sums meet in the memory of
// the block that writes the row.
#define BATCH_TOKENS 16
// Bytes of a staged vector; the 64 more put neighbours in different banks.
#define BATCH_ROW(cols) ((cols) * 2 + 64)

// Blocks of a cluster.
#define BATCH_CLUSTER 8

struct BatchLaunch {
  // Projections, of the cluster with number i: `each` tiles, one more if i < `more`. The experts' kernels count for themselves.
  u32 each, more, tokens, unused;
  Step step;
};

// ---- activations of several tokens
//
// A vector's group of 64 columns takes 128 bytes: 64 high ones, 64 low ones. Eight columns lie as 0 2 4 6 1 3 5 7: that is how
// the low and the high nibbles of a word of codes come. Scales and sums: [group][vectors].

// Puts four columns, from column 4 i, of N vectors; see `stage`. All steps are taken for all N, since each waits for the one
// before. `groups`: the vectors' places in a table of `vectors` columns.
template <u32 N>
DEVICE void stage_vectors(u8* const (&rows)[N], float2* const (&groups)[N], u32 vectors, const u32 (&i)[N],
                          const float4 (&v)[N]) {
  u32 largest[N];
#pragma unroll
  for (u32 k = 0; k < N; k++) {
    // Of floats without a sign the bits are in their order, infinities and NaN last.
    const u32 m = 0x7fffffffu;
    u32 x = __float_as_uint(v[k].x) & m, y = __float_as_uint(v[k].y) & m;
    u32 z = __float_as_uint(v[k].z) & m, w = __float_as_uint(v[k].w) & m;
    largest[k] = __reduce_max_sync(ALL, max(max(x, y), max(z, w)));
  }
  u32 low[N], high[N];
  int sum[N];
#pragma unroll
  for (u32 k = 0; k < N; k++) {
    float most = __uint_as_float(largest[k]), inverse = most > 1e-30f ? __fdividef(32600.0f, most) : 0.0f;
    int a = __float2int_rn(v[k].x * inverse), b = __float2int_rn(v[k].y * inverse);
    int c = __float2int_rn(v[k].z * inverse), d = __float2int_rn(v[k].w * inverse);
    u32 ac = __byte_perm((u32)a, (u32)c, 0x5410), bd = __byte_perm((u32)b, (u32)d, 0x5410);
    low[k] = __byte_perm(ac, bd, 0x6420);  // a c b d
    ac = __byte_perm((u32)(a + 128), (u32)(c + 128), 0x5410);
    bd = __byte_perm((u32)(b + 128), (u32)(d + 128), 0x5410);
    high[k] = __byte_perm(ac, bd, 0x7531);
    sum[k] = a + b + c + d;
  }
  // Of eight columns the first of two lanes writes the even ones, the second the odd ones.
  bool odd = threadIdx.x & 1, upper = threadIdx.x & 16;
#pragma unroll
  for (u32 k = 0; k < N; k++) {
    u32 low2 = __shfl_xor_sync(ALL, low[k], 1), high2 = __shfl_xor_sync(ALL, high[k], 1);
    u32* to = (u32*)(rows[k] + i[k] / 16 * 128) + i[k] % 16;
    to[0] = odd ? __byte_perm(high2, high[k], 0x7632) : __byte_perm(high[k], high2, 0x5410);
    to[16] = odd ? __byte_perm(low2, low[k], 0x7632) : __byte_perm(low[k], low2, 0x5410);
  }
#pragma unroll
  for (u32 k = 0; k < N; k++) {
    int first = __reduce_add_sync(ALL, upper ? 0 : sum[k]), second = __reduce_add_sync(ALL, upper ? sum[k] : 0);
    if ((threadIdx.x & 15) == 0) {
      // What is not finite is lost in the integers and must reach the result.
      float scale = largest[k] < 0x7f800000u ? __uint_as_float(largest[k]) * (1.0f / 32600.0f) : __int_as_float(0x7fc00000);
      groups[k][i[k] / 16 * vectors] = make_float2(scale, scale * (float)(upper ? second : first));
    }
  }
}

// ---- products of codes and bytes, scaled without conversions
//
// The sums start at the bits of 12,582,912 = 3 * 2^22: as long as a sum stays below 2^22, which 64 products of bytes do, the
// result read as a float is that number plus the sum. scale * (256 high + low) is then two multiply-adds, whose constant takes
// the offset off again: it has few enough bits to be exact.
#define SUM_START 0x4b400000
#define SUM_OFFSET 12582912.0f

DEVICE void mma_bytes_first(int (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm(
      "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "r"(SUM_START));
}
// A group's scale for sums that start there.
struct Factor {
  float low, high, offset;
};
DEVICE Factor factor_of(float scale) { return {scale, scale * 256.0f, scale * (-257.0f * SUM_OFFSET)}; }
// scale * (256 high + low)
DEVICE float scaled(const Factor& f, int high, int low) {
  return fmaf(f.low, __int_as_float(low), fmaf(f.high, __int_as_float(high), f.offset));
}
// d += A B, 16 rows x 8 columns x 8 vectors, the factors cut to 11 bits.
DEVICE void mma_tf32(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// ---- memory of other blocks of the cluster

DEVICE u32 shared_address_in(const void* p, u32 block) {
  u32 to;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"(shared_address(p)), "r"(block));
  return to;
}
DEVICE void put(u32 address, float v) { asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(address), "f"(v) : "memory"); }
DEVICE void put2(u32 address, float v, float w) {
  asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(v), "f"(w) : "memory");
}

// ---- projections: y = W rmsnorm(x), or y += W x, of up to 8 (TILES = 1) or 16 (2) tokens a cluster
//
// Tiles of 16 rows as in project.cu. A warp has a slice of 256 columns, of which its block has one or two, and every turn
// another tile or two (ROWS), for which it reads the activations once, and whose codes it copies to places of its own, the
// first ones before the step's previous kernel is done.
//
// Codes of a tile's slice: 16 rows of 128 bytes (256 of 8-bit codes), in which blocks of 16 bytes lie such that lanes that
// read together meet other banks; scales behind them, then biases, 8 bytes a row.
//
// Grid: (8 * clusters, ceil(tokens / most)).
template <bool ANY> DEVICE void bring_slice(const ProjectArgs& a, u32 tile, u32 cols, u32 slice, u32 to, u32 lane) {
  Tile t = find_tile(a, tile);
  const u8* w = (const u8*)(t.matrix == 0 ? a.w0 : t.matrix == 1 ? a.w1 : t.matrix == 2 ? a.w2 : a.w3);
  const u8* s = (const u8*)(t.matrix == 0 ? a.s0 : t.matrix == 1 ? a.s1 : t.matrix == 2 ? a.s2 : a.s3);
  const u8* b = (const u8*)(t.matrix == 0 ? a.b0 : t.matrix == 1 ? a.b1 : t.matrix == 2 ? a.b2 : a.b3);
  // A row too many repeats the last.
  u32 last = t.rows - 1;
  if (ANY && pick(a.shape.bits, t.matrix) == 8) {
    u32 row = lane / 16, chunk = lane % 16, place = to + row * 256 + (chunk ^ row % 2 * 4) * 16;
    w += (u64)t.row * cols + slice * 256 + chunk * 16;
#pragma unroll
    for (u32 i = 0; i < 8; i++) fetch16(place + i * 512, w + min(2 * i + row, last) * cols);
  } else {
    u32 row = lane / 8, chunk = lane % 8, place = to + row * 128 + (chunk ^ row * 2) * 16;
    w += (u64)t.row * (cols / 2) + slice * 128 + chunk * 16;
#pragma unroll
    for (u32 i = 0; i < 4; i++) fetch16(place + i * 512, w + min(4 * i + row, last) * (cols / 2));
  }
  const u8* groups = (lane < 16 ? s : b) + (u64)(t.row + min(lane % 16, last)) * (cols / GROUP * 2) + slice * 8;
  fetch8(to + (ANY ? 4096 : 2048) + lane * 8, groups);
}

// Adds a slice's products with ROWS tiles of 16 rows, whose codes, scales and biases lie at `place` and `place_bytes` further (see
// bring_slice): sums of rows g (0, 1) and g + 8 (2, 3) for the columns 8 j + 2 t and the next. `bytes`: of column 8 j + g;
// `scale`: of two halves and two columns; the sums that multiply the biases: of group t and column 8 j + g.
template <bool ANY, u32 TILES, u32 ROWS>
DEVICE void multiply_slice(float (&sum)[ROWS][TILES][4], const u8* place, bool wide, const u8* const (&bytes)[TILES],
                           const float (&scale)[TILES][2][2], const u32 (&sum_high)[TILES], const u32 (&sum_low)[TILES], u32 lane) {
  const u32 m = 0x0f0f0f0fu, g = lane / 4, t = lane % 4, codes_bytes = ANY ? 4096 : 2048, place_bytes = codes_bytes + 256;
  uint2 s0[ROWS], s1[ROWS];
#pragma unroll
  for (u32 r = 0; r < ROWS; r++) {
    const u8* group_rows = place + r * place_bytes + codes_bytes + g * 8;
    s0[r] = *(const uint2*)group_rows;
    s1[r] = *(const uint2*)(group_rows + 64);
    u32 b0 = (u32)*(const u16*)(group_rows + 128 + t * 2) << 16, b1 = (u32)*(const u16*)(group_rows + 192 + t * 2) << 16;
#pragma unroll
    for (u32 j = 0; j < TILES; j++) mma_tf32(sum[r][j], b0, b1, b0, b1, sum_high[j], sum_low[j]);
  }
#pragma unroll
  for (u32 q = 0; q < 4; q++) {
    Factor f0[ROWS], f1[ROWS];
    uint4 c0[ROWS], c1[ROWS];
#pragma unroll
    for (u32 r = 0; r < ROWS; r++) {
      u32 w0 = q < 2 ? s0[r].x : s0[r].y, w1 = q < 2 ? s1[r].x : s1[r].y;
      f0[r] = factor_of(q % 2 ? bfloat_high(w0) : bfloat_low(w0));
      f1[r] = factor_of(q % 2 ? bfloat_high(w1) : bfloat_low(w1));
      if (wide) {
        const u8* p = place + r * place_bytes + g * 256 + ((4 * q + t) ^ g % 2 * 4) * 16;
        c0[r] = *(const uint4*)p;
        c1[r] = *(const uint4*)(p + 8 * 256);
      } else {
        const u8* p = place + r * place_bytes + g * 128 + (q ^ g % 4) * 32 + t * 8;
        uint2 v = *(const uint2*)p, w = *(const uint2*)(p + 8 * 128);
        c0[r] = make_uint4(v.x & m, v.x >> 4 & m, v.y & m, v.y >> 4 & m);
        c1[r] = make_uint4(w.x & m, w.x >> 4 & m, w.y & m, w.y >> 4 & m);
      }
    }
#pragma unroll
    for (u32 j = 0; j < TILES; j++) {
      uint4 high = *(const uint4*)(bytes[j] + q * 128), low = *(const uint4*)(bytes[j] + q * 128 + 64);
      if (wide) {
        // Codes of neighbouring columns lie together, so the bytes must too.
        high = make_uint4(__byte_perm(high.x, high.y, 0x5140), __byte_perm(high.x, high.y, 0x7362),
                          __byte_perm(high.z, high.w, 0x5140), __byte_perm(high.z, high.w, 0x7362));
        low = make_uint4(__byte_perm(low.x, low.y, 0x5140), __byte_perm(low.x, low.y, 0x7362),
                         __byte_perm(low.z, low.w, 0x5140), __byte_perm(low.z, low.w, 0x7362));
      }
#pragma unroll
      for (u32 r = 0; r < ROWS; r++) {
        int d[4], e[4];
        mma_bytes_first(d, c0[r].x, c1[r].x, c0[r].y, c1[r].y, high.x, high.y);
        mma_bytes_first(e, c0[r].x, c1[r].x, c0[r].y, c1[r].y, low.x, low.y);
        mma_bytes(d, c0[r].z, c1[r].z, c0[r].w, c1[r].w, high.z, high.w);
        mma_bytes(e, c0[r].z, c1[r].z, c0[r].w, c1[r].w, low.z, low.w);
        sum[r][j][0] = fmaf(scale[j][q / 2][0], scaled(f0[r], d[0], e[0]), sum[r][j][0]);
        sum[r][j][1] = fmaf(scale[j][q / 2][1], scaled(f0[r], d[1], e[1]), sum[r][j][1]);
        sum[r][j][2] = fmaf(scale[j][q / 2][0], scaled(f1[r], d[2], e[2]), sum[r][j][2]);
        sum[r][j][3] = fmaf(scale[j][q / 2][1], scaled(f1[r], d[3], e[3]), sum[r][j][3]);
      }
    }
  }
}

template <u32 WARPS, u32 SLICES, bool NORM, bool ADD, bool ANY, u32 TILES, u32 DEPTH, u32 ROWS>
DEVICE void project_batch(const ProjectArgs& a, const BatchLaunch& l, u8* shared) {
  constexpr u32 cols = SLICES * SLICE, own_slices = SLICES / BATCH_CLUSTER, own_cols = own_slices * SLICE, most = 8 * TILES;
  // A turn: ROWS tiles for each warp, or for two of them; so many for each block to write, for which its threads pass so often.
  constexpr u32 turn_tiles = WARPS / own_slices * ROWS, own_tiles = turn_tiles / BATCH_CLUSTER;
  constexpr u32 pass_tiles = WARPS * 2 / most, passes = (own_tiles + pass_tiles - 1) / pass_tiles;
  constexpr u32 tile_sums = 16 * most, codes_bytes = ANY ? 4096 : 2048, place_bytes = codes_bytes + 256;
  constexpr u32 own_parts = own_cols / 128;
  static_assert(!NORM || own_parts * BATCH_CLUSTER == 16, "parts");
  float* parts = (float*)shared;                        // [16 tokens][16]: sums of squares of 128 columns
  float2* groups = (float2*)(shared + 1024);            // [own_cols / GROUP][16]
  u8* vectors = shared + 1024 + own_cols / GROUP * BATCH_TOKENS * 8;
  float* sums = (float*)(vectors + most * BATCH_ROW(own_cols));  // [2][own_tiles][SLICES][16][most]
  u8* places = (u8*)(sums + 2 * own_tiles * SLICES * tile_sums);  // [WARPS][DEPTH][ROWS]
  u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  u32 rank = blockIdx.x % BATCH_CLUSTER, cluster = blockIdx.x / BATCH_CLUSTER;
  u32 first = l.each * cluster + min(cluster, l.more), count = l.each + (cluster < l.more ? 1 : 0);
  u32 token0 = blockIdx.y * most, tokens = min(most, l.tokens - token0);
  u32 own_slice = warp % own_slices, slice = rank * own_slices + own_slice, turn_tile = warp / own_slices * ROWS;
  // Memory of another block may be written once that block has started.
  cluster_begin();

  u8* mine = places + warp * (DEPTH * ROWS * place_bytes);
  auto bring = [&](u32 k, u8* place) {
#pragma unroll
    for (u32 i = 0; i < ROWS; i++) {
      if (k + i < count) bring_slice<ANY>(a, first + k + i, cols, slice, shared_address(place + i * place_bytes), lane);
    }
    fetches_end();
  };
#pragma unroll
  for (u32 i = 0; i < DEPTH; i++) bring(i * turn_tiles + turn_tile, mine + i * (ROWS * place_bytes));
  uint2 gain;
  if (NORM) gain = ((const uint2*)a.gain)[rank * (own_cols / 4) + warp % own_parts * 32 + lane];
  grid_enter(l.step);
  cluster_wait();
  // A warp makes bytes of 128 columns of N tokens at once; `side` warps have the same columns.
  constexpr u32 side = WARPS / own_parts, N = BATCH_TOKENS / side;
  static_assert(N == 1 || N == 2, "sums of squares");
  u32 part = warp % own_parts;
  const float4* x = (const float4*)a.x + (u64)token0 * (cols / 4) + rank * (own_cols / 4) + part * 32 + lane;
  for (u32 n0 = warp / own_parts; n0 < tokens; n0 += side * N) {
    float4 v[N];
    u8* rows[N];
    float2* scales[N];
    u32 at[N], token[N];
    float squares[N];
#pragma unroll
    for (u32 i = 0; i < N; i++) {
      // One too many is the first once more.
      token[i] = n0 + i * side < tokens ? n0 + i * side : n0;
      v[i] = load4(x + token[i] * (cols / 4));
    }
#pragma unroll
    for (u32 i = 0; i < N; i++) {
      rows[i] = vectors + token[i] * BATCH_ROW(own_cols);
      scales[i] = groups + token[i];
      at[i] = part * 32 + lane;
      if (NORM) {
        squares[i] = dot(v[i], v[i]);
        float4 f = bfloats4(gain);
        v[i] = make_float4(v[i].x * f.x, v[i].y * f.y, v[i].z * f.z, v[i].w * f.w);
      }
    }
    stage_vectors<N>(rows, scales, BATCH_TOKENS, at, v);
    if (NORM) {
      // With two tokens the upper lanes have the second one's.
      float sum = N == 1 ? warp_sum(squares[0]) : warp_sum2(squares[0], squares[N - 1], lane);
      u32 which = lane < 16 ? token[0] : token[N - 1];
      // To all blocks.
      if (lane % 16 < BATCH_CLUSTER) put(shared_address_in(parts + which * 16 + rank * own_parts + part, lane % 16), sum);
    }
  }
  __syncthreads();

  // What does not change with the tile: scales of the activations, and their sums as two numbers of 11 bits. A column without
  // a token has whatever lies there; nobody reads its sums.
  const u8* bytes[TILES];
  float scale[TILES][2][2];
  u32 sum_high[TILES], sum_low[TILES];
#pragma unroll
  for (u32 j = 0; j < TILES; j++) {
    bytes[j] = vectors + min(8 * j + g, tokens - 1) * BATCH_ROW(own_cols) + own_slice * 512 + t * 16;
    const float2* f = groups + own_slice * 4 * BATCH_TOKENS;
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
      scale[j][0][i] = f[min(8 * j + 2 * t + i, tokens - 1)].x;
      scale[j][1][i] = f[2 * BATCH_TOKENS + min(8 * j + 2 * t + i, tokens - 1)].x;
    }
    float sum = f[t * BATCH_TOKENS + min(8 * j + g, tokens - 1)].y;
    sum_high[j] = __float_as_uint(sum) & 0xffffe000u;
    sum_low[j] = __float_as_uint(sum - __uint_as_float(sum_high[j]));
  }

  // Sums of a tile's slice: [row][token], a row's pairs of tokens in an order of its own, for the banks.
  auto place_in = [](u32 row, u32 token) { return row * most + (token ^ row / (32 / most) % (most / 2) * 2); };
  // A thread writes a row of a token, of one or two tiles.
  u32 row = threadIdx.x % 16, token = threadIdx.x / 16 % most;
  float norm = 1.0f;
  auto place_of = [&](u32 base, u32 pass) -> float* {
    u32 own_tile = threadIdx.x / (16 * most) + pass * pass_tiles, k = base + own_tile * BATCH_CLUSTER + rank;
    if (own_tile >= own_tiles || token >= tokens || k >= count) return 0;
    Tile tile = find_tile(a, first + k);
    if (row >= tile.rows) return 0;
    return (float*)a.y + (u64)(token0 + token) * a.shape.stride + tile.before + tile.row + row;
  };
  auto finish = [&](float* y, float old, u32 turn, u32 pass) {
    u32 own_tile = threadIdx.x / (16 * most) + pass * pass_tiles;
    if (NORM && turn == 0 && pass == 0) {
      float total = 0.0f;
#pragma unroll
      for (u32 i = 0; i < 16; i++) total += parts[token * 16 + i];
      norm = rsqrtf(total / (float)cols + a.shape.eps);
    }
    if (!y) return;
    const float* p = sums + (turn % 2 * own_tiles + own_tile) * SLICES * tile_sums + place_in(row, token);
    float v = 0.0f;
#pragma unroll
    for (u32 s = 0; s < SLICES; s++) v += p[s * tile_sums];
    *y = ADD ? old + v : v * norm;
  };
  u32 owner[ROWS];
#pragma unroll
  for (u32 i = 0; i < ROWS; i++)
    owner[i] = shared_address_in(sums, (turn_tile + i) % BATCH_CLUSTER) +
               4 * ((turn_tile + i) / BATCH_CLUSTER * SLICES + slice) * tile_sums;
  // Sums of two turns have places of their own: with no more turns than that, the blocks meet once, at the end.
  bool once = count <= 2 * turn_tiles;
  float* y[passes];
  float old[passes];
  auto next_places = [&](u32 base) {
#pragma unroll
    for (u32 i = 0; i < passes; i++) {
      y[i] = place_of(base, i);
      old[i] = ADD && y[i] ? load1(y[i]) : 0.0f;
    }
  };
  auto finish_all = [&](u32 turn) {
#pragma unroll
    for (u32 i = 0; i < passes; i++) finish(y[i], old[i], turn, i);
  };
  u32 turn = 0;
  for (u32 base = 0; base < count; base += turn_tiles, turn++) {
    u32 k = base + turn_tile;
    float sum[ROWS][TILES][4];
#pragma unroll
    for (u32 i = 0; i < ROWS; i++) {
#pragma unroll
      for (u32 j = 0; j < TILES; j++) sum[i][j][0] = sum[i][j][1] = sum[i][j][2] = sum[i][j][3] = 0.0f;
    }
    fetches_wait<DEPTH - 1>();
    __syncwarp();
    u8* place = mine + turn % DEPTH * (ROWS * place_bytes);
    // Of a last tile without a neighbour: the other sums are of whatever lies there, and stay here.
    if (k < count) {
      bool wide = ANY && pick(a.shape.bits, find_tile(a, first + k).matrix) == 8;
      multiply_slice<ANY, TILES, ROWS>(sum, place, wide, bytes, scale, sum_high, sum_low, lane);
    }
    __syncwarp();
    bring(k + DEPTH * turn_tiles, place);
    // The turn before: its sums arrived while this one was computed.
    if (!once && turn > 0) {
      cluster_wait();
      finish_all(turn - 1);
    }
#pragma unroll
    for (u32 i = 0; i < ROWS; i++) {
      u32 to = owner[i] + turn % 2 * (own_tiles * SLICES * tile_sums * 4);
      if (k + i >= count) break;
#pragma unroll
      for (u32 j = 0; j < TILES; j++) {
        put2(to + 4 * place_in(g, 8 * j + 2 * t), sum[i][j][0], sum[i][j][1]);
        put2(to + 4 * place_in(g + 8, 8 * j + 2 * t), sum[i][j][2], sum[i][j][3]);
      }
    }
    if (!once) {
      cluster_arrive();
      next_places(base);
    }
  }
  if (once) {
    cluster_arrive();
    float* y0[passes];
    float old0[passes];
    next_places(0);
#pragma unroll
    for (u32 i = 0; i < passes; i++) {
      y0[i] = y[i];
      old0[i] = old[i];
    }
    next_places(turn_tiles);
    cluster_wait();
#pragma unroll
    for (u32 i = 0; i < passes; i++) finish(y0[i], old0[i], 0, i);
    finish_all(1);
  } else {
    cluster_wait();
    finish_all(turn - 1);
  }
}
#define PROJECT_BATCH(name, warps, slices, norm, add, any, tiles, depth, rows)                    \
  extern "C" __global__ void __cluster_dims__(BATCH_CLUSTER, 1, 1) __launch_bounds__(warps * 32, 1) \
      name(const __grid_constant__ ProjectArgs a, const __grid_constant__ BatchLaunch l) {        \
    extern __shared__ __align__(128) u8 shared[];                                                 \
    project_batch<warps, slices, norm, add, any, tiles, depth, rows>(a, l, shared);               \
  }
PROJECT_BATCH(native_batch_norm_8, 16, 8, true, false, false, 1, 2, 2)
PROJECT_BATCH(native_batch_norm_16, 16, 8, true, false, false, 2, 2, 2)
PROJECT_BATCH(native_batch_norm_mixed_8, 16, 8, true, false, true, 1, 1, 1)
PROJECT_BATCH(native_batch_norm_mixed_16, 16, 8, true, false, true, 2, 1, 1)
PROJECT_BATCH(native_batch_add_8, 32, 16, false, true, false, 1, 1, 1)
PROJECT_BATCH(native_batch_add_16, 32, 16, false, true, false, 2, 1, 1)
