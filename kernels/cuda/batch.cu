// Products of a step of several sequences: every weight is read once for up to 16 tokens.
//
// An mma multiplies 16 rows x 32 columns of codes with 32 x 8 activation bytes, and the eight are tokens here: one mma for
// the high bytes, one for the low. Weights go from memory to registers, the next chunk's while one is multiplied; the first
// ones before the step's previous kernel is done. Activations of all tokens lie in shared memory in the order in which lanes
// take them.
#define BATCH_TOKENS 16
#define BATCH_WARPS 16
#define BATCH_THREADS (BATCH_WARPS * 32)
// Bytes of a staged vector; the 64 more put neighbours in different banks.
#define BATCH_ROW(cols) ((cols) * 2 + 64)
// Floats of a tile's sums for one token: 16 rows, and what keeps tokens in different banks.
#define BATCH_SUMS 20

struct BatchLaunch {
  // Projections, of the block with number i: `each` tiles, one more if i < `more`. The experts' kernels count for themselves.
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
#define AHEAD 4  // vectors' parts that are loaded and staged together

// ---- 16 rows x 256 columns of a matrix in registers
//
// What limits these loads is the number of rows that one of them touches, each in a line of its own: so a lane takes 16 bytes,
// half a group of 64 columns, and gives half of that to the lane that has the other group. Then all four lanes of a row have
// 16 columns of both groups, those of quarter 0, 2, 1 and 3.

DEVICE uint2 load_weights8(const void* p) {
  uint2 v;
  asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
  return v;
}
DEVICE uint4 load_weights16(const void* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}
// Where a lane's two rows, g and g + 8, start: codes, scales, biases.
struct RowPair {
  const u8* codes[2];
  const u8 *scales[2], *biases[2];
};
// Scales and biases of four groups of two rows.
struct Scales {
  uint2 s[2], b[2];
};
DEVICE void load_scales(Scales& c, const RowPair& rows, u32 slice) {
#pragma unroll
  for (u32 r = 0; r < 2; r++) {
    c.s[r] = load_weights8(rows.scales[r] + slice * 8);
    c.b[r] = load_weights8(rows.biases[r] + slice * 8);
  }
}
DEVICE float fourth(uint2 v, u32 q) {
  u32 w = q < 2 ? v.x : v.y;
  return q % 2 ? bfloat_high(w) : bfloat_low(w);
}
// A lane's codes. ANY: they may have 8 bits; then a lane takes columns 16 t to + 15 of each group, without an exchange.
template <bool ANY> struct Codes;
template <> struct Codes<false> {
  uint4 w[2][2];
};
template <> struct Codes<true> {
  uint4 w[2][4];
};
DEVICE void load_codes(Codes<false>& c, const RowPair& rows, u32 slice, bool, u32 lane) {
#pragma unroll
  for (u32 r = 0; r < 2; r++)
#pragma unroll
    for (u32 j = 0; j < 2; j++) c.w[r][j] = load_weights16(rows.codes[r] + slice * (SLICE / 2) + j * GROUP + lane % 4 * 16);
}
DEVICE void load_codes(Codes<true>& c, const RowPair& rows, u32 slice, bool wide, u32 lane) {
  u32 t = lane % 4;
#pragma unroll
  for (u32 r = 0; r < 2; r++)
#pragma unroll
    for (u32 q = 0; q < 4; q++) {
      if (wide) {
        c.w[r][q] = load_weights16(rows.codes[r] + slice * SLICE + q * GROUP + t * 16);
      } else {
        uint2 w = load_weights8(rows.codes[r] + slice * (SLICE / 2) + q * (GROUP / 2) + t * 8);
        c.w[r][q] = make_uint4(w.x, w.y, 0, 0);
      }
    }
}

// Adds one group's products: `d` of the high bytes, `e` of the low ones; rows g and g + 8, vectors 2 t and 2 t + 1.
DEVICE void add_group(float (&sum)[4], const int (&d)[4], const int (&e)[4], const Scales& c, u32 q, float2 x0, float2 x1) {
  float s0 = fourth(c.s[0], q), s1 = fourth(c.s[1], q), b0 = fourth(c.b[0], q), b1 = fourth(c.b[1], q);
  sum[0] = fmaf(s0, x0.x * (float)(d[0] * 256 + e[0]), fmaf(b0, x0.y, sum[0]));
  sum[1] = fmaf(s0, x1.x * (float)(d[1] * 256 + e[1]), fmaf(b0, x1.y, sum[1]));
  sum[2] = fmaf(s1, x0.x * (float)(d[2] * 256 + e[2]), fmaf(b1, x0.y, sum[2]));
  sum[3] = fmaf(s1, x1.x * (float)(d[3] * 256 + e[3]), fmaf(b1, x1.y, sum[3]));
}
// A group's products of 4-bit codes: the words of rows g and g + 8, the staged bytes of this lane's columns.
DEVICE void multiply_group(float (&sum)[4], uint2 p, uint2 q, uint4 high, uint4 low, const Scales& c, u32 group, float2 x0,
                           float2 x1) {
  const u32 m = 0x0f0f0f0fu;
  int d[4] = {0, 0, 0, 0}, e[4] = {0, 0, 0, 0};
  u32 a0 = p.x & m, a1 = q.x & m, a2 = p.x >> 4 & m, a3 = q.x >> 4 & m;
  mma_bytes(d, a0, a1, a2, a3, high.x, high.y);
  mma_bytes(e, a0, a1, a2, a3, low.x, low.y);
  a0 = p.y & m, a1 = q.y & m, a2 = p.y >> 4 & m, a3 = q.y >> 4 & m;
  mma_bytes(d, a0, a1, a2, a3, high.z, high.w);
  mma_bytes(e, a0, a1, a2, a3, low.z, low.w);
  add_group(sum, d, e, c, group, x0, x1);
}
// Of the 16 bytes that this lane and its partner have loaded: what it multiplies of the first group, and of the second.
DEVICE void exchange(Codes<false>& c, u32 lane) {
  bool upper = lane & 2;
#pragma unroll
  for (u32 r = 0; r < 2; r++)
#pragma unroll
    for (u32 j = 0; j < 2; j++) {
      uint4 v = c.w[r][j];
      u32 x = __shfl_xor_sync(ALL, upper ? v.x : v.z, 2), y = __shfl_xor_sync(ALL, upper ? v.y : v.w, 2);
      c.w[r][j] = upper ? make_uint4(x, y, v.z, v.w) : make_uint4(v.x, v.y, x, y);
    }
}
DEVICE void exchange(Codes<true>&, u32) {}

// Adds the products of a chunk (exchanged) with eight vectors: rows g and g + 8, vectors 2 t and 2 t + 1. `bytes`: the staged vector of
// this lane's column (g) at the chunk's first group; `f0`, `f1`: scales and sums of vectors 2 t and 2 t + 1 there.
DEVICE void multiply(float (&sum)[4], const Codes<false>& codes, const Scales& scales, const u8* bytes, const float2* f0,
                     const float2* f1, u32 vectors, bool, u32 lane) {
  // Lanes 1 and 2 have each other's quarter.
  bytes += (lane % 2 * 2 + lane / 2 % 2) * 16;
#pragma unroll
  for (u32 j = 0; j < 2; j++) {
    uint4 v = codes.w[0][j], w = codes.w[1][j];
    uint2 p[2] = {make_uint2(v.x, v.y), make_uint2(v.z, v.w)}, q[2] = {make_uint2(w.x, w.y), make_uint2(w.z, w.w)};
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
      u32 group = 2 * j + i;
      uint4 high = *(const uint4*)(bytes + group * 128), low = *(const uint4*)(bytes + group * 128 + 64);
      multiply_group(sum, p[i], q[i], high, low, scales, group, f0[group * vectors], f1[group * vectors]);
    }
  }
}
DEVICE void multiply(float (&sum)[4], const Codes<true>& codes, const Scales& scales, const u8* bytes, const float2* f0,
                     const float2* f1, u32 vectors, bool wide, u32 lane) {
  bytes += lane % 4 * 16;
#pragma unroll
  for (u32 group = 0; group < 4; group++) {
    uint4 high = *(const uint4*)(bytes + group * 128), low = *(const uint4*)(bytes + group * 128 + 64);
    float2 x0 = f0[group * vectors], x1 = f1[group * vectors];
    uint4 a = codes.w[0][group], b = codes.w[1][group];
    if (wide) {
      // Codes of neighbouring columns lie together, so the bytes must too.
      int d[4] = {0, 0, 0, 0}, e[4] = {0, 0, 0, 0};
      mma_bytes(d, a.x, b.x, a.y, b.y, __byte_perm(high.x, high.y, 0x5140), __byte_perm(high.x, high.y, 0x7362));
      mma_bytes(e, a.x, b.x, a.y, b.y, __byte_perm(low.x, low.y, 0x5140), __byte_perm(low.x, low.y, 0x7362));
      mma_bytes(d, a.z, b.z, a.w, b.w, __byte_perm(high.z, high.w, 0x5140), __byte_perm(high.z, high.w, 0x7362));
      mma_bytes(e, a.z, b.z, a.w, b.w, __byte_perm(low.z, low.w, 0x5140), __byte_perm(low.z, low.w, 0x7362));
      add_group(sum, d, e, scales, group, x0, x1);
    } else {
      multiply_group(sum, make_uint2(a.x, a.y), make_uint2(b.x, b.y), high, low, scales, group, x0, x1);
    }
  }
}
// Puts a lane's sums of eight vectors to [vector][BATCH_SUMS].
DEVICE void put_sums(float* to, const float (&sum)[4], u32 lane) {
  float* p = to + lane % 4 * (2 * BATCH_SUMS) + lane / 4;
  p[0] = sum[0];
  p[BATCH_SUMS] = sum[1];
  p[8] = sum[2];
  p[BATCH_SUMS + 8] = sum[3];
}

// ---- projections: y = W rmsnorm(x), or y += W x, of up to 8 (TILES = 1) or 16 (2) tokens a block
//
// As in project.cu: tiles of 16 rows, a warp has a slice of 256 columns. Grid: (blocks, ceil(tokens / 16)).
template <u32 SLICES, bool NORM, bool ADD, bool ANY, u32 TILES>
DEVICE void project_batch(const ProjectArgs& a, const BatchLaunch& l, u8* shared) {
  constexpr u32 cols = SLICES * SLICE, sets = BATCH_WARPS / SLICES, most = 8 * TILES;
  constexpr u32 group_bytes = cols / GROUP * 2, tile_sums = SLICES * most * BATCH_SUMS;
  constexpr u32 turn_tiles = SLICES == 16 ? 1 : 4;  // `turn_tiles` of native.rs
  float* factors = (float*)shared;                // [16]
  float* parts = factors + BATCH_TOKENS;          // [16][BATCH_WARPS]
  float2* groups = (float2*)(shared + 2048);      // [cols / GROUP][16]
  u8* vectors = shared + 2048 + cols / GROUP * BATCH_TOKENS * 8;
  float* sums = (float*)(vectors + most * BATCH_ROW(cols));  // [2][turn_tiles][SLICES][most][BATCH_SUMS]
  u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, slice = warp % SLICES, set = warp / SLICES;
  u32 first = l.each * blockIdx.x + min(blockIdx.x, l.more), count = l.each + (blockIdx.x < l.more ? 1 : 0);
  u32 token0 = blockIdx.y * most, tokens = min(most, l.tokens - token0);

  auto rows_of = [&](u32 k, bool& wide) {
    Tile t = find_tile(a, first + k);
    const u8* w = (const u8*)(t.matrix == 0 ? a.w0 : t.matrix == 1 ? a.w1 : t.matrix == 2 ? a.w2 : a.w3);
    const u8* s = (const u8*)(t.matrix == 0 ? a.s0 : t.matrix == 1 ? a.s1 : t.matrix == 2 ? a.s2 : a.s3);
    const u8* b = (const u8*)(t.matrix == 0 ? a.b0 : t.matrix == 1 ? a.b1 : t.matrix == 2 ? a.b2 : a.b3);
    wide = ANY && pick(a.shape.bits, t.matrix) == 8;
    RowPair r;
#pragma unroll
    for (u32 j = 0; j < 2; j++) {
      // A row too many repeats the last.
      u64 row = t.row + min(lane / 4 + 8 * j, t.rows - 1);
      r.codes[j] = w + row * (wide ? cols : cols / 2);
      r.scales[j] = s + row * group_bytes;
      r.biases[j] = b + row * group_bytes;
    }
    return r;
  };
  Codes<ANY> next;
  Scales next_scales;
  bool next_wide = false;
  if (set < count) {
    RowPair r = rows_of(set, next_wide);
    load_codes(next, r, slice, next_wide, lane);
    load_scales(next_scales, r, slice);
  }
  constexpr u32 PASSES = cols / 4 / BATCH_THREADS;
  static_assert(!NORM || PASSES == 1, "a warp's sum is a token's");
  uint2 gain[PASSES];
  if (NORM) {
#pragma unroll
    for (u32 j = 0; j < PASSES; j++) gain[j] = ((const uint2*)a.gain)[j * BATCH_THREADS + threadIdx.x];
  }
  grid_enter(l.step);
  const float4* x = (const float4*)a.x + (u64)token0 * (cols / 4) + threadIdx.x;
  u32 all = tokens * PASSES;
  for (u32 n0 = 0; n0 < all; n0 += AHEAD) {
    float4 v[AHEAD];
    u8* rows[AHEAD];
    float2* places[AHEAD];
    u32 at[AHEAD];
#pragma unroll
    for (u32 i = 0; i < AHEAD; i++) v[i] = load4(x + min(n0 + i, all - 1) * BATCH_THREADS);
    float squares[AHEAD];
#pragma unroll
    for (u32 i = 0; i < AHEAD; i++) {
      // One too many is the last once more.
      u32 n = min(n0 + i, all - 1), token = n / PASSES, pass = n % PASSES;
      rows[i] = vectors + token * BATCH_ROW(cols);
      places[i] = groups + token;
      at[i] = pass * BATCH_THREADS + threadIdx.x;
      if (NORM) {
        squares[i] = dot(v[i], v[i]);
        float4 g = bfloats4(gain[PASSES == 1 ? 0 : pass]);
        v[i] = make_float4(v[i].x * g.x, v[i].y * g.y, v[i].z * g.z, v[i].w * g.w);
      }
    }
    if (NORM) {
      static_assert(AHEAD == 4, "warp_sum4");
      // Lanes 8 i to 8 i + 7 get the sum of vector n0 + i.
      float part = warp_sum4(squares[0], squares[1], squares[2], squares[3], lane);
      u32 token = min(n0 + lane / 8, tokens - 1);
      if (lane % 8 == 0) parts[token * BATCH_WARPS + warp] = part;
    }
    stage_vectors<AHEAD>(rows, places, BATCH_TOKENS, at, v);
  }
  __syncthreads();
  if (NORM && threadIdx.x < tokens) {
    float total = 0.0f;
#pragma unroll
    for (u32 i = 0; i < BATCH_WARPS; i++) total += parts[threadIdx.x * BATCH_WARPS + i];
    factors[threadIdx.x] = rsqrtf(total / (float)cols + a.shape.eps);
  }

  // A column without a token repeats the last one's; nobody reads its sums.
  const u8* bytes[TILES];
  const float2 *f0[TILES], *f1[TILES];
#pragma unroll
  for (u32 j = 0; j < TILES; j++) {
    bytes[j] = vectors + min(8 * j + lane / 4, tokens - 1) * BATCH_ROW(cols) + slice * 512;
    f0[j] = groups + slice * 4 * BATCH_TOKENS + min(8 * j + lane % 4 * 2, tokens - 1);
    f1[j] = groups + slice * 4 * BATCH_TOKENS + min(8 * j + lane % 4 * 2 + 1, tokens - 1);
  }
  u32 turn = 0;
  for (u32 base = 0; base < count; base += turn_tiles) {
    u32 n = min(turn_tiles, count - base);
    float* turn_sums = sums + turn * turn_tiles * tile_sums;
    turn ^= 1;
    for (u32 k = set; k < n; k += sets) {
      Codes<ANY> now = next;
      Scales scales = next_scales;
      bool wide = next_wide;
      // Turns hold a multiple of the sets, so this is the warp's next tile in the next turn too.
      if (base + k + sets < count) {
        RowPair r = rows_of(base + k + sets, next_wide);
        load_codes(next, r, slice, next_wide, lane);
        load_scales(next_scales, r, slice);
      }
      exchange(now, lane);
#pragma unroll
      for (u32 j = 0; j < TILES; j++) {
        float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        multiply(sum, now, scales, bytes[j], f0[j], f1[j], BATCH_TOKENS, wide, lane);
        put_sums(turn_sums + k * tile_sums + (slice * most + 8 * j) * BATCH_SUMS, sum, lane);
      }
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < n * tokens * TILE_ROWS; i += BATCH_THREADS) {
      u32 row = i % TILE_ROWS, token = i / TILE_ROWS % tokens, k = i / TILE_ROWS / tokens;
      Tile tile = find_tile(a, first + base + k);
      if (row >= tile.rows) continue;
      const float* p = turn_sums + k * tile_sums + token * BATCH_SUMS + row;
      float v = 0.0f;
#pragma unroll
      for (u32 s = 0; s < SLICES; s++) v += p[s * most * BATCH_SUMS];
      float* y = (float*)a.y + (u64)(token0 + token) * a.shape.stride + tile.before + tile.row + row;
      *y = ADD ? load1(y) + v : v * (NORM ? factors[token] : 1.0f);
    }
  }
}
#define PROJECT_BATCH(name, slices, norm, add, any, tiles)                                   \
  extern "C" __global__ void __launch_bounds__(BATCH_THREADS, 1)                             \
      name(const __grid_constant__ ProjectArgs a, const __grid_constant__ BatchLaunch l) {   \
    extern __shared__ __align__(128) u8 shared[];                                            \
    project_batch<slices, norm, add, any, tiles>(a, l, shared);                              \
  }
PROJECT_BATCH(native_batch_norm_8, 8, true, false, false, 1)
PROJECT_BATCH(native_batch_norm_16, 8, true, false, false, 2)
PROJECT_BATCH(native_batch_norm_mixed_8, 8, true, false, true, 1)
PROJECT_BATCH(native_batch_norm_mixed_16, 8, true, false, true, 2)
PROJECT_BATCH(native_batch_add_8, 16, false, true, false, 1)
PROJECT_BATCH(native_batch_add_16, 16, false, true, false, 2)
