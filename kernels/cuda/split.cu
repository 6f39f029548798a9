// The operands of Hopper's products, in halves. First the inputs: rows of f32 as two halves a value, which keeps 22 bits or more.
//
// A row is multiplied by the power of two that brings its largest value between 2^8 and 2^9: what 22 bits below that is
// lost, and sums of 64 values stay finite. x = hi + lo, hi = half(x), lo = half(x - hi). The row's factor, which sums of
// products are multiplied by at the end, undoes that and WEIGHT_UNIT; of a row with a value that is not finite it is NaN.
//
// As the products' rings want them, so that inputs side by side come in one copy. Rows lie in blocks of 128; a block has
// for every 64 columns a place of hi and one of lo: 128 rows of 64 halves, swizzled as wgmma.cu says. `sums` has for every
// block and 512 columns 8,192 bytes: 128 rows of 16 halves, hi and lo of the sums over eight groups of 64 columns (piece p
// of row r, 16 bytes, at p ^ r / 4 % 2), and behind them, of the first 512 columns, the block's 128 factors.
// That is, with rows rounded up to 128, 4 bytes and 1/8 byte a value.
#define SPLIT_ROWS 128
#define SPLIT_COLUMNS 512
#define SPLIT_PLACE (SPLIT_ROWS * 128)
#define SPLIT_SUMS (SPLIT_ROWS * 32)  // bytes of a block's sums of 512 columns; the factors lie behind
// Places of 512 columns' values.
#define SPLIT_PLACES (SPLIT_COLUMNS / GROUP * 2)
#define SPLIT_THREADS 256

struct SplitArgs {
  const void* x;      // [rows, cols] f32
  void* split;        // as above
  void* sums;
  const void* chunk;  // null: all rows; otherwise as many as the chunk has tokens, `rows` at most
  u32 rows, cols;     // cols % 512 == 0
};
struct SplitLaunch {
  Step step;
};

DEVICE u32 largest_bits(u32 most, const float4& v) {
  const u32 no_sign = 0x7fffffffu;
  most = max(max(most, __float_as_uint(v.x) & no_sign), __float_as_uint(v.y) & no_sign);
  return max(max(most, __float_as_uint(v.z) & no_sign), __float_as_uint(v.w) & no_sign);
}

// A warp has 512 columns of a row at a time. Grid: (ceil(rows / max(1, 4096 / cols))): 8 rows of 512 columns a block, 2 of
// 2,048, one of 4,096 and more.
extern "C" __global__ void __launch_bounds__(SPLIT_THREADS)
    hopper_split_rows(const __grid_constant__ SplitArgs a, const __grid_constant__ SplitLaunch l) {
  __shared__ u32 largest[SPLIT_THREADS / 32];
  grid_enter(l.step);
  u32 rows = a.chunk ? min(a.rows, loadu(&((const Chunk*)a.chunk)->tokens)) : a.rows;
  u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, pieces = a.cols / SPLIT_COLUMNS;
  u32 warps = min(pieces, SPLIT_THREADS / 32), each = SPLIT_THREADS / 32 / warps;
  u32 first = warp % warps, row = blockIdx.x * each + warp / warps;
  bool mine = warp / warps < each && row < rows;
  // Lane l has columns 4 l + 128 i to 4 l + 128 i + 3.
  const float4* x = (const float4*)a.x + (u64)row * (a.cols / 4) + lane;
  float4 v[4];
  auto load = [&](u32 piece) {
#pragma unroll
    for (u32 i = 0; i < 4; i++) v[i] = __ldcg(x + piece * (SPLIT_COLUMNS / 4) + 32 * i);
  };
  u32 most = 0;
  if (mine)
    // Its first 512 columns last, which stay in the registers.
    for (u32 piece = first + (pieces - 1 - first) / warps * warps;; piece -= warps) {
      load(piece);
#pragma unroll
      for (u32 i = 0; i < 4; i++) most = largest_bits(most, v[i]);
      if (piece == first) break;
    }
  most = __reduce_max_sync(ALL, most);
  if (lane == 0) largest[warp] = most;
  __syncthreads();
  if (!mine) return;
  for (u32 i = 0; i < warps; i++) most = max(most, largest[warp / warps * warps + i]);
  // Below 2^-95 rows are zeros; powers of two by their exponents.
  u32 exponent = max(most >> 23, 32u);
  float unit = __uint_as_float((127 + 127 + 8 - exponent) << 23);
  u32 r = row % SPLIT_ROWS;
  u64 block = (u64)(row / SPLIT_ROWS) * pieces;
  for (u32 piece = first;; load(piece)) {
    u8* to = (u8*)a.split + ((block + piece) * SPLIT_PLACES + lane / 16 * 2) * SPLIT_PLACE + r * 128;
    to += (lane % 16 / 2 ^ r % 8) * 16 + lane % 2 * 8;
    u8* sums = (u8*)a.sums + (block + piece) * (2 * SPLIT_SUMS);
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
      float4 w = make_float4(v[i].x * unit, v[i].y * unit, v[i].z * unit, v[i].w * unit);
      uint2 hi = make_uint2(pack_halves(w.x, w.y), pack_halves(w.z, w.w));
      *(uint2*)(to + i * 4 * SPLIT_PLACE) = hi;
      *(uint2*)(to + i * 4 * SPLIT_PLACE + SPLIT_PLACE) = make_uint2(pack_rest_halves(w.x, w.y, hi.x), pack_rest_halves(w.z, w.w, hi.y));
      float sum = w.x + w.y + w.z + w.w;
#pragma unroll
      for (int o = 8; o; o >>= 1) sum += __shfl_xor_sync(ALL, sum, o);
      if (lane % 16 == i) {
        u32 high = pack_halves(sum, 0.0f);
        u8* place = sums + r * 32 + r / 4 % 2 * 16 + (2 * i + lane / 16) * 2;
        *(u16*)place = (u16)high;
        *(u16*)(r / 4 % 2 ? place - 16 : place + 16) = (u16)pack_rest_halves(sum, 0.0f, high);
      }
    }
    if (piece == 0 && lane == 0)
      ((float*)(sums + SPLIT_SUMS))[r] = __uint_as_float(exponent == 255 ? 0x7fc00000u : (exponent - 8 - 8) << 23);
    if ((piece += warps) >= pieces) break;
  }
}
static_assert(WEIGHT_UNIT == 256.0f, "the factors undo 2^8 of the weights and 2^8 of the inputs");

// ---- weights
//
// A place of the weights' ring has 512 columns of 128 rows: codes, then scales, then biases.
#define HOPPER_ROWS 128
#define HOPPER_PIECE SPLIT_COLUMNS               // columns of a place of the weights' ring
#define HOPPER_PITCH (HOPPER_PIECE / 2)          // bytes of a row of codes; 16-byte piece p of row r at p ^ (r % 8)
#define HOPPER_GROUPS (HOPPER_PIECE / GROUP * 2) // bytes of a row's scales, and of its biases
#define HOPPER_WEIGHTS (HOPPER_ROWS * (HOPPER_PITCH + 2 * HOPPER_GROUPS))

// Two codes less 8 times a scale, as halves: of byte t of a word the low one, then the high one, which is left where it is,
// sixteen times as large; `scales` makes up for that. 1,024 + what is left of a byte is exact in a half, and so is all that
// follows.
DEVICE u32 expand(u32 word, u32 select, u32 scales) {
  u32 v = __byte_perm(word, 0, select);
  // v & mask | 1,024 twice, which is one instruction; of its constants one is in a register.
  asm("lop3.b32 %0, %0, %1, %2, 0xea;" : "+r"(v) : "n"(0x00f0000fu), "r"(0x64006400u));
  // Less 1,024 + 8 and 1,024 + 8 * 16.
  asm("sub.rn.f16x2 %0, %0, %1;" : "+r"(v) : "r"(0x64806408u));
  // In its place, while the instructions before it run.
  asm volatile("mul.rn.f16x2 %0, %0, %1;" : "+r"(v) : "r"(scales));
  return v;
}
// A thread's rows in a place of the weights' ring: codes, then the scales of all rows, then the biases.
DEVICE const u8* factors_at(const u8* piece, u32 row) { return piece + HOPPER_ROWS * HOPPER_PITCH + row * HOPPER_GROUPS; }
// The first operands of the four instructions of a group. `row`: the thread's first; the other is row + 8.
DEVICE void expand_group(u32 (&a)[16], const u8* piece, u32 row, u32 t, u32 group) {
  u32 select = t | t << 8, place = (2 * group ^ row % 8) * 16;
#pragma unroll
  for (u32 h = 0; h < 2; h++) {
    const u8* codes = piece + (row + 8 * h) * HOPPER_PITCH;
    uint4 p = *(const uint4*)(codes + place), q = *(const uint4*)(codes + (place ^ 16));
    float scale = bfloat(*(const u16*)(factors_at(piece, row + 8 * h) + group * 2));
    // And a 16th. Eight of them are no more than the largest half: 8 * 8,188 = 65,504.
    u32 scales = limit_halves(pack_halves(scale * WEIGHT_UNIT, scale * (WEIGHT_UNIT / 16)), 0x5fff6fffu);
    a[h] = expand(p.x, select, scales);
    a[2 + h] = expand(p.y, select, scales);
    a[4 + h] = expand(p.z, select, scales);
    a[6 + h] = expand(p.w, select, scales);
    a[8 + h] = expand(q.x, select, scales);
    a[10 + h] = expand(q.y, select, scales);
    a[12 + h] = expand(q.z, select, scales);
    a[14 + h] = expand(q.w, select, scales);
  }
}
// What meets the sums: bias + 8 scale of groups 2 t and 2 t + 1 of the thread's rows, as two halves each. The instructions'
// second operand has hi of the eight sums in columns 0 to 7 and lo in columns 8 to 15, so the first operands are hi, hi
// (hi[0], hi[1], hi[0], hi[1]) and lo, nothing.
struct Offsets {
  u32 hi[2], lo[2];
};
DEVICE void load_offsets(Offsets& o, const u8* piece, u32 row, u32 t) {
#pragma unroll
  for (u32 h = 0; h < 2; h++) {
    const u8* at = factors_at(piece, row + 8 * h) + 4 * t;
    u32 scales = *(const u32*)at, biases = *(const u32*)(at + HOPPER_ROWS * HOPPER_GROUPS);
    float a = fmaf(bfloat_low(scales), 8 * WEIGHT_UNIT, bfloat_low(biases) * WEIGHT_UNIT);
    float b = fmaf(bfloat_high(scales), 8 * WEIGHT_UNIT, bfloat_high(biases) * WEIGHT_UNIT);
    o.hi[h] = pack_limited(a, b);
    o.lo[h] = limit_halves(pack_rest_halves(a, b, o.hi[h]), 0x7bff7bffu);
  }
}
