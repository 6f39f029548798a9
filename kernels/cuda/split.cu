// The inputs of Hopper's products: rows of f32 as two halves a value, which keeps 22 bits or more.
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
    u8* to = (u8*)a.split + ((block + piece) * SPLIT_PLACES + lane / 16 * 2) * SPLIT_PLACE + r * 128 + (lane % 16 / 2 ^ r % 8) * 16 + lane % 2 * 8;
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
