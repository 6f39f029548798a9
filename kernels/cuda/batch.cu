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

// ---- mixture of experts: the tokens of each expert together
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
