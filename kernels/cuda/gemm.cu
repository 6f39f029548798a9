// Matrix times matrix for prefill on the tensor cores, 4-bit weights dequantised on their way into shared memory
// (gemm.metal's `gemm_*` and moe_prefill.metal's `experts_gate_up`, `shared_gate_up` and `experts_down`).
//
// A block of 8 warps computes ROWS inputs x 128 weight rows, 64 columns (a group) at a time. Inputs come by asynchronous
// copies, two steps ahead; weights through registers, one step ahead: a thread has half a group of one row. One barrier a
// step. Expanded weights exist in 18 KB of shared memory only.
#define DEPTH 64
#define PITCH (DEPTH + 8)  // rows of 144 bytes: eight in different banks
#define WEIGHT_ROWS 128
#define GEMM_THREADS 256
struct GemmLaunch {
  Step step;
};

DEVICE void copy16(void* to, const void* from) { fetch16(shared_address(to), from); }

// One row of a quantised matrix.
struct WeightRow {
  const uint4* codes;
  const u16* scales;
  const u16* biases;
};
DEVICE WeightRow weight_row(const void* w, const void* s, const void* b, u64 row, u32 cols) {
  WeightRow r;
  r.codes = (const uint4*)((const u8*)w + row * (cols / 2));
  r.scales = (const u16*)s + row * (cols / GROUP);
  r.biases = (const u16*)b + row * (cols / GROUP);
  return r;
}
// Half a group: 32 codes, scale and bias times WEIGHT_UNIT.
struct HalfGroup {
  uint4 codes;
  float scale, bias;
};
DEVICE HalfGroup fetch(const WeightRow& r, u32 step, u32 half) {
  HalfGroup h;
  h.codes = __ldg(r.codes + step * 2 + half);
  h.scale = bfloat(__ldg(r.scales + step)) * WEIGHT_UNIT;
  h.bias = bfloat(__ldg(r.biases + step)) * WEIGHT_UNIT;
  return h;
}
// As halves. 128 + code is a float with the code in the bits from 16 on.
DEVICE void put(u16* to, const HalfGroup& h) {
  float less = fmaf(-128.0f, h.scale, h.bias);
  u32 words[4] = {h.codes.x, h.codes.y, h.codes.z, h.codes.w};
#pragma unroll
  for (int i = 0; i < 4; i++) {
    u32 out[4];
#pragma unroll
    for (int j = 0; j < 4; j++) {
      u32 low = j < 2 ? words[i] << (16 - 8 * j) : words[i] >> (8 * j - 16);
      u32 high = j < 2 ? words[i] << (12 - 8 * j) : words[i] >> (8 * j - 12);
      float a = __uint_as_float((low & 0x000f0000u) | 0x43000000u), b = __uint_as_float((high & 0x000f0000u) | 0x43000000u);
      out[j] = pack_limited(fmaf(a, h.scale, less), fmaf(b, h.scale, less));
    }
    ((uint4*)to)[i] = make_uint4(out[0], out[1], out[2], out[3]);
  }
}

// The sums of a block. ROWS = 128: warps two by four, 64 x 32 each; ROWS = 32: a row of eight, 32 x 16 each.
template <u32 ROWS> struct Sums {
  static constexpr u32 warps_n = ROWS == 128 ? 4 : 8;
  static constexpr u32 M = ROWS == 128 ? 4 : 2;             // mma tiles of 16 inputs
  static constexpr u32 N = WEIGHT_ROWS / warps_n / 8;       // of 8 weight rows
  float v[M][N][4];
};
#define GEMM_SHARED(rows) (3 * (rows) * PITCH * 2 + 2 * WEIGHT_ROWS * PITCH * 2)

// `inputs[i]`: the row of x of this thread's copies: row i * 32 + thread / 8 of the tile.
template <u32 ROWS>
DEVICE void multiply(Sums<ROWS>& sums, const u16* const (&inputs)[ROWS / 32], const WeightRow& weights, u32 cols, u8* shared) {
  typedef Sums<ROWS> S;
  u16* a_tiles = (u16*)shared;
  u16* b_tiles = a_tiles + 3 * ROWS * PITCH;
  u32 tid = threadIdx.x, warp = tid / 32, lane = tid % 32, steps = cols / DEPTH;
  u32 m0 = warp / S::warps_n * (S::M * 16), n0 = warp % S::warps_n * (S::N * 8);
#pragma unroll
  for (u32 i = 0; i < S::M; i++)
#pragma unroll
    for (u32 j = 0; j < S::N; j++)
#pragma unroll
      for (u32 k = 0; k < 4; k++) sums.v[i][j][k] = 0.0f;
  auto bring = [&](u32 step) {
    if (step < steps) {
      u16* to = a_tiles + step % 3 * (ROWS * PITCH) + tid / 8 * PITCH + tid % 8 * 8;
#pragma unroll
      for (u32 i = 0; i < ROWS / 32; i++) copy16(to + i * 32 * PITCH, inputs[i] + step * DEPTH + tid % 8 * 8);
    }
    fetches_end();
  };
  bring(0);
  bring(1);
  HalfGroup next = fetch(weights, 0, tid % 2);
  // Where this lane's rows of 8 x 8 matrices lie.
  u32 a_at = shared_address(a_tiles) + ((m0 + lane % 16) * PITCH + lane / 16 * 8) * 2;
  u32 b_at = shared_address(b_tiles) + ((n0 + lane / 16 * 8 + lane % 8) * PITCH + lane / 8 % 2 * 8) * 2;
  for (u32 step = 0; step < steps; step++) {
    put(b_tiles + step % 2 * (WEIGHT_ROWS * PITCH) + tid / 2 * PITCH + tid % 2 * 32, next);
    if (step + 1 < steps) next = fetch(weights, step + 1, tid % 2);
    fetches_wait<1>();
    __syncthreads();
    bring(step + 2);
    u32 a = a_at + step % 3 * (ROWS * PITCH * 2), b = b_at + step % 2 * (WEIGHT_ROWS * PITCH * 2);
#pragma unroll
    for (u32 k = 0; k < DEPTH; k += 16) {
      uint4 x[S::M], w[S::N / 2];
#pragma unroll
      for (u32 i = 0; i < S::M; i++) x[i] = load_matrices(a + (i * 16 * PITCH + k) * 2);
#pragma unroll
      for (u32 j = 0; j < S::N / 2; j++) w[j] = load_matrices(b + (j * 16 * PITCH + k) * 2);
#pragma unroll
      for (u32 i = 0; i < S::M; i++)
#pragma unroll
        for (u32 j = 0; j < S::N / 2; j++) {
          mma_half(sums.v[i][2 * j], x[i], w[j].x, w[j].y);
          mma_half(sums.v[i][2 * j + 1], x[i], w[j].z, w[j].w);
        }
    }
  }
#pragma unroll
  for (u32 i = 0; i < S::M; i++)
#pragma unroll
    for (u32 j = 0; j < S::N; j++)
#pragma unroll
      for (u32 k = 0; k < 4; k++) sums.v[i][j][k] *= WEIGHT_UNDO;
}
// Calls f(row of the tile, weight row of the tile, two sums: of this weight row and the next one).
template <u32 ROWS, class F> DEVICE void for_each_pair(const Sums<ROWS>& sums, F f) {
  typedef Sums<ROWS> S;
  u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  u32 m = warp / S::warps_n * (S::M * 16) + lane / 4, n = warp % S::warps_n * (S::N * 8) + lane % 4 * 2;
#pragma unroll
  for (u32 i = 0; i < S::M; i++)
#pragma unroll
    for (u32 j = 0; j < S::N; j++) {
      f(m + i * 16, n + j * 8, sums.v[i][j][0], sums.v[i][j][1]);
      f(m + i * 16 + 8, n + j * 8, sums.v[i][j][2], sums.v[i][j][3]);
    }
}

struct Chunk {
  u32 position, tokens, slot;
};

// y = x W^T, or y += x W^T, in f32. Grid: (sum over matrices of ceil(rows / 128), ceil(tokens / 128)).
template <bool ADD> DEVICE void gemm(const GemmArgs& a, const GemmLaunch& l, u8* shared) {
  grid_enter(l.step);
  u32 tokens = loadu(&((const Chunk*)a.chunk)->tokens), token0 = blockIdx.y * 128, cols = a.shape.cols;
  if (token0 >= tokens) return;
  u32 m = 0, block = blockIdx.x, offset = 0;
  while (m + 1 < a.shape.matrices) {
    u32 rows = pick(a.shape.rows, m), blocks = (rows + WEIGHT_ROWS - 1) / WEIGHT_ROWS;
    if (block < blocks) break;
    block -= blocks;
    offset += rows;
    m++;
  }
  u32 rows = pick(a.shape.rows, m), row0 = block * WEIGHT_ROWS;
  WeightRow w = weight_row(m == 0 ? a.w0 : m == 1 ? a.w1 : m == 2 ? a.w2 : a.w3, m == 0 ? a.s0 : m == 1 ? a.s1 : m == 2 ? a.s2 : a.s3,
                           m == 0 ? a.b0 : m == 1 ? a.b1 : m == 2 ? a.b2 : a.b3, min(row0 + threadIdx.x / 2, rows - 1), cols);
  const u16* inputs[4];
#pragma unroll
  for (u32 i = 0; i < 4; i++) inputs[i] = (const u16*)a.x + (u64)min(token0 + i * 32 + threadIdx.x / 8, tokens - 1) * cols;
  Sums<128> sums;
  multiply<128>(sums, inputs, w, cols, shared);
  for_each_pair<128>(sums, [&](u32 row, u32 column, float v0, float v1) {
    u32 token = token0 + row, out = row0 + column;
    u64 at = (u64)token * a.shape.stride + offset + out;
    if (token >= tokens || out >= rows) return;
    bool both = out + 1 < rows;
    float* y = (float*)a.y + at;
    if (both && at % 2 == 0) {
      float2 old = ADD ? *(const float2*)y : make_float2(0.0f, 0.0f);
      *(float2*)y = make_float2(old.x + v0, old.y + v1);
    } else {
      y[0] = ADD ? y[0] + v0 : v0;
      if (both) y[1] = ADD ? y[1] + v1 : v1;
    }
  });
}
#define GEMM(name, add)                                                                                        \
  extern "C" __global__ void __launch_bounds__(GEMM_THREADS, 2)                                                \
      name(const __grid_constant__ GemmArgs a, const __grid_constant__ GemmLaunch l) {                         \
    extern __shared__ __align__(128) u8 shared[];                                                              \
    gemm<add>(a, l, shared);                                                                                   \
  }
GEMM(native_gemm, false)
GEMM(native_gemm_add, true)

// The weight row of gate (or, for odd eights of the tile, of up) behind weight row r of a joint tile from column0 on: so a
// lane has both for the same column.
DEVICE u32 joint_row(u32 column0, u32 r) { return column0 + r / 16 * 8 + r % 8; }

// h = score silu(gate_e x) up_e x for every pair, in order of expert. Grid: (ceil(width / 64), blocks).
extern "C" __global__ void __launch_bounds__(GEMM_THREADS, 2)
    native_experts_gate_up(const __grid_constant__ ExpertsGateUpArgs a, const __grid_constant__ GemmLaunch l) {
  extern __shared__ __align__(128) u8 shared[];
  __shared__ float factors[32];
  grid_enter(l.step);
  uint4 block = __ldcg((const uint4*)a.blocks + blockIdx.y);
  u32 expert = block.x, first = block.y, count = block.z, cols = a.shape.hidden, width = a.shape.width;
  if (count == 0) return;
  const u32* pairs = (const u32*)a.pairs + first;
  u32 tid = threadIdx.x, column0 = blockIdx.x * 64, r = tid / 2;
  // Barriers of the product lie between this and its readers.
  if (tid < count) factors[tid] = load1((const float*)a.scores + loadu(pairs + tid));
  bool up = r / 8 % 2;
  u64 row = (u64)expert * width + min(joint_row(column0, r), width - 1);
  WeightRow w = up ? weight_row(a.up_w, a.up_s, a.up_b, row, cols) : weight_row(a.gate_w, a.gate_s, a.gate_b, row, cols);
  const u16* inputs[1] = {(const u16*)a.x + (u64)(loadu(pairs + min(tid / 8, count - 1)) / a.shape.chosen) * cols};
  Sums<32> sums;
  multiply<32>(sums, inputs, w, cols, shared);
  u32 warp = tid / 32, lane = tid % 32, column = column0 + warp * 8 + lane % 4 * 2;
#pragma unroll
  for (u32 i = 0; i < 2; i++)
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
      u32 m = i * 16 + half * 8 + lane / 4;
      if (m < count && column < width) {
        float f = factors[m];
        float v0 = silu(sums.v[i][0][2 * half]) * sums.v[i][1][2 * half] * f;
        float v1 = silu(sums.v[i][0][2 * half + 1]) * sums.v[i][1][2 * half + 1] * f;
        *(u32*)((u16*)a.h + (u64)(first + m) * width + column) = pack_results(v0, v1);
      }
    }
}

// y[pair] = down_e h[pair], back in order of pair. Grid: (ceil(hidden / 128), blocks).
extern "C" __global__ void __launch_bounds__(GEMM_THREADS, 2)
    native_experts_down(const __grid_constant__ ExpertsDownArgs a, const __grid_constant__ GemmLaunch l) {
  extern __shared__ __align__(128) u8 shared[];
  __shared__ u32 pair_of[32];
  grid_enter(l.step);
  uint4 block = __ldcg((const uint4*)a.blocks + blockIdx.y);
  u32 expert = block.x, first = block.y, count = block.z, cols = a.shape.width, hidden = a.shape.hidden;
  if (count == 0) return;
  u32 tid = threadIdx.x, column0 = blockIdx.x * WEIGHT_ROWS;
  if (tid < count) pair_of[tid] = loadu((const u32*)a.pairs + first + tid);
  WeightRow w = weight_row(a.down_w, a.down_s, a.down_b, (u64)expert * hidden + min(column0 + tid / 2, hidden - 1), cols);
  const u16* inputs[1] = {(const u16*)a.h + (u64)(first + min(tid / 8, count - 1)) * cols};
  Sums<32> sums;
  multiply<32>(sums, inputs, w, cols, shared);
  for_each_pair<32>(sums, [&](u32 row, u32 column, float v0, float v1) {
    if (row >= count || column0 + column >= hidden) return;
    *(float2*)((float*)a.y + (u64)pair_of[row] * hidden + column0 + column) = make_float2(v0, v1);
  });
}

// h = sigmoid(shared gate) silu(gate x) up x: the shared expert of every token. Grid: (ceil(width / 64), ceil(tokens / 128)).
extern "C" __global__ void __launch_bounds__(GEMM_THREADS, 2)
    native_shared_gate_up(const __grid_constant__ SharedGateUpArgs a, const __grid_constant__ GemmLaunch l) {
  extern __shared__ __align__(128) u8 shared[];
  __shared__ float factors[128];
  grid_enter(l.step);
  u32 tokens = loadu(&((const Chunk*)a.chunk)->tokens), token0 = blockIdx.y * 128, cols = a.shape.hidden;
  u32 width = a.shape.shared_width, tid = threadIdx.x, column0 = blockIdx.x * 64, r = tid / 2;
  if (token0 >= tokens) return;
  // Barriers of the product lie between this and its readers.
  if (tid < min(128, tokens - token0))
    factors[tid] = sigmoid(load1((const float*)a.logits + (u64)(token0 + tid) * a.shape.stride + a.shape.experts));
  u64 row = min(joint_row(column0, r), width - 1);
  WeightRow w = r / 8 % 2 ? weight_row(a.up_w, a.up_s, a.up_b, row, cols) : weight_row(a.gate_w, a.gate_s, a.gate_b, row, cols);
  const u16* inputs[4];
#pragma unroll
  for (u32 i = 0; i < 4; i++) inputs[i] = (const u16*)a.x + (u64)min(token0 + i * 32 + tid / 8, tokens - 1) * cols;
  Sums<128> sums;
  multiply<128>(sums, inputs, w, cols, shared);
  u32 warp = tid / 32, lane = tid % 32;
#pragma unroll
  for (u32 i = 0; i < 4; i++)
#pragma unroll
    for (u32 half = 0; half < 2; half++)
#pragma unroll
      for (u32 p = 0; p < 2; p++) {
        u32 m = warp / 4 * 64 + i * 16 + half * 8 + lane / 4, column = column0 + (warp % 4 * 2 + p) * 8 + lane % 4 * 2;
        if (token0 + m < tokens && column < width) {
          float f = factors[m];
          float v0 = silu(sums.v[i][2 * p][2 * half]) * sums.v[i][2 * p + 1][2 * half] * f;
          float v1 = silu(sums.v[i][2 * p][2 * half + 1]) * sums.v[i][2 * p + 1][2 * half + 1] * f;
          *(u32*)((u16*)a.h + (u64)(token0 + m) * width + column) = pack_results(v0, v1);
        }
      }
}
