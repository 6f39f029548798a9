// Matrix times vector for decoding: y = W rmsnorm(x), or y += W x (gemv.metal's `project_norm_*`, `project_add_*`).
//
// The rows of all matrices are cut into tiles of 16; a block takes neighbouring tiles, which bulk copies bring to a ring
// of `stages` in shared memory. The first ones start before the step's previous kernel is done: weights depend on nothing.
// A warp of their own brings what does not fit at once. A computing warp has a slice of 256 columns for all tiles, and its
// activations in registers; the slices' sums meet in shared memory, once for each round of the ring.
//
// Grid: (blocks, ceil(tokens / most_tokens)); a block takes a tile from memory once for all its tokens. Shared memory:
// barriers, staged activations, partial sums, stages (see `project` in native.rs).
struct ProjectLaunch {
  // Of the block with number i: `each` tiles, one more if i < `more`.
  u32 each, more, stages, stage_bytes, tokens, most_tokens;
  Step step;
};
#define PROJECT_WARPS 16
#define MOST_STAGES 12
#define MOST_TOKENS 8
#define TILE_ROWS 16

struct Tile {
  u32 matrix, row, rows, before;  // before: outputs of the matrices before this one
};
DEVICE u32 pick(uint4 v, u32 i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }
DEVICE Tile find_tile(const ProjectArgs& a, u32 i) {
  Tile t = {0, 0, 0, 0};
  for (;;) {
    u32 rows = pick(a.shape.rows, t.matrix), tiles = (rows + TILE_ROWS - 1) / TILE_ROWS;
    if (i < tiles || t.matrix + 1 >= a.shape.matrices) {
      t.row = i * TILE_ROWS;
      t.rows = min(TILE_ROWS, rows - t.row);
      return t;
    }
    i -= tiles;
    t.before += rows;
    t.matrix++;
  }
}

// Starts to bring tile `i` to a stage: scales, biases, weights. One thread calls it.
template <u32 COLS> DEVICE void bring_tile(const ProjectArgs& a, u32 i, u8* to, u64* barrier) {
  constexpr u32 group_bytes = COLS / GROUP * 2;
  Tile t = find_tile(a, i);
  u32 row_bytes = COLS / 8 * pick(a.shape.bits, t.matrix);
  const u8* w = (const u8*)(t.matrix == 0 ? a.w0 : t.matrix == 1 ? a.w1 : t.matrix == 2 ? a.w2 : a.w3);
  const u8* s = (const u8*)(t.matrix == 0 ? a.s0 : t.matrix == 1 ? a.s1 : t.matrix == 2 ? a.s2 : a.s3);
  const u8* b = (const u8*)(t.matrix == 0 ? a.b0 : t.matrix == 1 ? a.b1 : t.matrix == 2 ? a.b2 : a.b3);
  barrier_expect(barrier, t.rows * (row_bytes + 2 * group_bytes));
  bulk_load(to + 2 * TILE_ROWS * group_bytes, w + (u64)t.row * row_bytes, t.rows * row_bytes, barrier);
  bulk_load(to, s + (u64)t.row * group_bytes, t.rows * group_bytes, barrier);
  bulk_load(to + TILE_ROWS * group_bytes, b + (u64)t.row * group_bytes, t.rows * group_bytes, barrier);
}

// MIXED: there are matrices of 8 bits too. The rest runs faster with less code: a kernel's instructions come from memory.
template <u32 SLICES, bool NORM, bool ADD, bool MIXED>
DEVICE void project(const ProjectArgs& a, const ProjectLaunch& l, u8* shared) {
  constexpr u32 cols = SLICES * SLICE, threads = PROJECT_WARPS * 32, sets = PROJECT_WARPS / SLICES;
  constexpr u32 group_bytes = cols / GROUP * 2, tile_sums = SLICES * TILE_ROWS;
  u64 *full = (u64*)shared, *empty = full + MOST_STAGES;
  float* factors = (float*)(empty + MOST_STAGES);  // [MOST_TOKENS]
  float* parts = factors + MOST_TOKENS;            // [MOST_TOKENS][PROJECT_WARPS]
  u8* activations = shared + 1024;
  float* sums = (float*)(activations + (l.most_tokens * STAGED_BYTES(cols) + 127) / 128 * 128);
  u8* ring = (u8*)(sums + 2 * l.stages * tile_sums);
  u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  u32 first = l.each * blockIdx.x + min(blockIdx.x, l.more), count = l.each + (blockIdx.x < l.more ? 1 : 0);
  u32 token0 = blockIdx.y * l.most_tokens, tokens = min(l.most_tokens, l.tokens - token0);
  if (threadIdx.x < l.stages) {
    barrier_init(full + threadIdx.x, 1);
    barrier_init(empty + threadIdx.x, SLICES);
    barrier_fence();
  }
  __syncthreads();

  // A stage is filled again when the warps that read it have handed it back.
  if (warp == PROJECT_WARPS) {
    if (lane) return;
    for (u32 i = l.stages; i < count; i++) {
      u32 k = i % l.stages;
      barrier_wait(empty + k, (i / l.stages - 1) & 1);
      bring_tile<cols>(a, first + i, ring + k * l.stage_bytes, full + k);
    }
    return;
  }
  // A thread needs some time for a copy, so every warp starts one.
  if (lane == 0 && warp < min(l.stages, count)) bring_tile<cols>(a, first + warp, ring + warp * l.stage_bytes, full + warp);
  __syncwarp();

  constexpr u32 PER_THREAD = cols / 4 / threads;
  uint2 gain[PER_THREAD];
  if (NORM) {
#pragma unroll
    for (u32 j = 0; j < PER_THREAD; j++) gain[j] = ((const uint2*)a.gain)[j * threads + threadIdx.x];
  }
  grid_enter(l.step);
  // A token's values are loaded while the one before is staged.
  const float4* x_at = (const float4*)a.x + (u64)token0 * (cols / 4) + threadIdx.x;
  float4 next[PER_THREAD];
#pragma unroll
  for (u32 j = 0; j < PER_THREAD; j++) next[j] = load4(x_at + j * threads);
  for (u32 t = 0; t < tokens; t++) {
    Staged s = staged_at(activations + t * STAGED_BYTES(cols), cols);
    float4 v[PER_THREAD];
#pragma unroll
    for (u32 j = 0; j < PER_THREAD; j++) v[j] = next[j];
    if (t + 1 < tokens) {
      x_at += cols / 4;
#pragma unroll
      for (u32 j = 0; j < PER_THREAD; j++) next[j] = load4(x_at + j * threads);
    }
    float squares = 0.0f;
#pragma unroll
    for (u32 j = 0; j < PER_THREAD; j++) {
      if (NORM) {
        squares += dot(v[j], v[j]);
        float4 g = bfloats4(gain[j]);
        v[j] = make_float4(v[j].x * g.x, v[j].y * g.y, v[j].z * g.z, v[j].w * g.w);
      }
      stage(s, j * threads + threadIdx.x, v[j]);
    }
    if (NORM) {
      squares = warp_sum(squares);
      if (lane == 0) parts[t * PROJECT_WARPS + warp] = squares;
    }
  }
  sync_some(1, threads);
  // The norm's factor does not depend on the column, so it is applied to the sums. A barrier lies before its readers.
  if (NORM && threadIdx.x < tokens) {
    float total = 0.0f;
#pragma unroll
    for (u32 i = 0; i < PROJECT_WARPS; i++) total += parts[threadIdx.x * PROJECT_WARPS + i];
    factors[threadIdx.x] = rsqrtf(total / (float)cols + a.shape.eps);
  }

  u32 slice = warp % SLICES, set = warp / SLICES;
  Slice x;
  u32 loaded = ALL;  // whose and for which codes `x` is: 2 * token + wide
  u32 turn = 0;      // sums of one turn are written while those of the one before are read
  for (u32 base = 0, round = 0; base < count; base += l.stages, round++) {
    u32 n = min(l.stages, count - base);
    for (u32 t = 0; t < tokens; t++) {
      float* turn_sums = sums + turn * l.stages * tile_sums;
      turn ^= 1;
      for (u32 k = set; k < n; k += sets) {
        Tile tile = find_tile(a, first + base + k);
        u32 wide = MIXED ? pick(a.shape.bits, tile.matrix) == 8 : 0;
        if (loaded != 2 * t + wide) {
          Staged staged = staged_at(activations + t * STAGED_BYTES(cols), cols);
          x = wide ? load_slice<true>(staged, slice, lane) : load_slice<false>(staged, slice, lane);
          loaded = 2 * t + wide;
        }
        if (t == 0) barrier_wait(full + k, round & 1);
        const u8* stage = ring + k * l.stage_bytes;
        const u16* scales = (const u16*)stage;
        const u16* biases = scales + TILE_ROWS * (cols / GROUP);
        const u8* rows = stage + 2 * TILE_ROWS * group_bytes;
        float v = wide ? slice_product<true>(rows, cols, scales, biases, cols / GROUP, slice, x, lane)
                       : slice_product<false>(rows, cols / 2, scales, biases, cols / GROUP, slice, x, lane);
        if (lane % 4 < 2) turn_sums[k * tile_sums + slice * TILE_ROWS + lane % 4 * 8 + lane / 4] = v;
        if (t + 1 == tokens && base + l.stages + k < count) {
          copy_fence();
          __syncwarp();
          if (lane == 0) barrier_arrive(empty + k);
        }
      }
      // A thread for each row of the round.
      u32 row = threadIdx.x % TILE_ROWS, k = threadIdx.x / TILE_ROWS;
      float* y = 0;
      float old = 0.0f;
      if (k < n) {
        Tile tile = find_tile(a, first + base + k);
        if (row < tile.rows) {
          y = (float*)a.y + (u64)(token0 + t) * a.shape.stride + tile.before + tile.row + row;
          if (ADD) old = load1(y);
        }
      }
      sync_some(1, threads);
      if (y) {
        float v = 0.0f;
#pragma unroll
        for (u32 s = 0; s < SLICES; s++) v += turn_sums[k * tile_sums + s * TILE_ROWS + row];
        *y = ADD ? old + v : v * (NORM ? factors[t] : 1.0f);
      }
    }
  }
}

#define PROJECT(name, slices, norm, add, mixed)                                                                \
  extern "C" __global__ void __launch_bounds__(PROJECT_WARPS * 32 + 32, 1)                                     \
      name(const __grid_constant__ ProjectArgs a, const __grid_constant__ ProjectLaunch l) {                   \
    extern __shared__ __align__(128) u8 shared[];                                                              \
    project<slices, norm, add, mixed>(a, l, shared);                                                           \
  }
PROJECT(native_project_norm, 8, true, false, false)
PROJECT(native_project_norm_mixed, 8, true, false, true)
PROJECT(native_project_add, 16, false, true, false)
