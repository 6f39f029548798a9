// Attention of one token over its cache (attention_decode.metal's `attention_split_8`, `attention_blocks_8` and their
// combining kernels), on the
// tensor cores: 8 query heads share a KV head, and 8 is the width of an mma, so nothing is padded.
//
// Scores: 16 positions x 8 heads = K (16 x 256) Q^T (256 x 8). Values: 256 x 8 += V^T (256 x 16) P (16 x 8). A warp brings its
// next 16 rows of K while it works on V, and the other way round; the first ones before the step's previous kernel is
// done. Queries and weights are f32 values: each is split into two bfloats, which keeps 16 bits; K and V are bfloats
// already; sums are f32.
#define HEAD_DIM 256
#define SPLIT_WARPS 8
#define TILE 16                          // positions of an mma
#define ROW_BYTES (HEAD_DIM * 2)
#define ROW_STRIDE (ROW_BYTES + 16)      // in shared memory: eight rows in different banks
#define TILE_BYTES (TILE * ROW_STRIDE)
#define VALUE_STRIDE (HEAD_DIM + 4)
#define MOST_SPLITS 256
struct AttentionLaunch {
  // Of a split: warps of a block that have positions: at most 8, and as many as a span has tiles.
  u32 warps;
  // Blocks that do the same: 1, or, to measure what packing the query heads of a KV head saves, as many as there are heads.
  u32 copies;
  Step step;
};

// D += A B: 16 x 16 times 16 x 8 bfloats, f32 sums.
DEVICE void mma(float (&d)[4], const uint4& a, u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}
// Four 8 x 8 matrices of 16-bit values from shared memory; every lane gives the address of one row.
DEVICE uint4 load_matrices(u32 address) {
  uint4 r;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
               : "r"(address)
               : "memory");
  return r;
}
DEVICE uint4 load_transposed(u32 address) {
  uint4 r;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
               : "r"(address)
               : "memory");
  return r;
}
// An 8 x 8 matrix of 16-bit values, two neighbours of a row a lane, transposed.
DEVICE u32 transpose(u32 v) {
  u32 r;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(v));
  return r;
}
// Two floats as bfloats, the first in the low half.
DEVICE u32 pack_bfloats(float low, float high) {
  u32 r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
// What the bfloats lack.
DEVICE u32 pack_rest(float low, float high, u32 packed) {
  return pack_bfloats(low - bfloat_low(packed), high - bfloat_high(packed));
}

// RMSNorm and rotary positions of one head by a warp; lane l holds values l, l + 32, ... The angle of rotation l, in half
// turns, is an integer product that wraps as turns do (see attention_decode.metal).
DEVICE void norm_and_rotate(float (&v)[8], const u16* gain, uint2 rate, u32 position, float eps, u32 lane) {
  float squares = 0.0f;
#pragma unroll
  for (int j = 0; j < 8; j++) squares += v[j] * v[j];
  float factor = rsqrtf(warp_sum(squares) / (float)HEAD_DIM + eps);
#pragma unroll
  for (int j = 0; j < 8; j++) v[j] *= factor * bfloat(gain[j * 32 + lane]);
  u32 turns = position * rate.x + __umulhi(position, rate.y);
  float s, c;
  sincospif((float)(int)turns * (1.0f / 2147483648.0f), &s, &c);
  float a = v[0], b = v[1];
  v[0] = a * c - b * s;
  v[1] = b * c + a * s;
}

// Starts to bring `rows` rows (at most 16) of a cache.
DEVICE void bring(u8* to, const u8* from, u32 rows, u64* barrier, u32 lane) {
  if (lane == 0) barrier_expect(barrier, rows * ROW_BYTES);
  __syncwarp();
  if (lane < rows) bulk_load(to + lane * ROW_STRIDE, from + lane * ROW_BYTES, ROW_BYTES, barrier);
}

// Positions of a split: a fixed number, or, where that is 0, an equal share of all.
DEVICE u32 split_span(u32 span, u32 splits, u32 position) { return span ? span : (position / splits / 8 + 1) * 8; }

// Grid: (splits, kv_heads, tokens of different sequences); 256 threads.
extern "C" __global__ void __launch_bounds__(SPLIT_WARPS * 32, 1)
    native_attention_split(const __grid_constant__ AttentionSplitArgs a, const __grid_constant__ AttentionLaunch l) {
  extern __shared__ __align__(128) u8 shared[];
  __shared__ float largest_of[SPLIT_WARPS][8], sum_of[SPLIT_WARPS][8];
  __shared__ u64 barriers[2 * SPLIT_WARPS];
  u8* queries = shared;                          // [8 heads] rows
  u8* queries_rest = queries + 8 * ROW_STRIDE;   // what the bfloats lack
  u16* own = (u16*)(queries_rest + 8 * ROW_STRIDE);  // the token's key and value
  u8* ring = (u8*)own + 2 * ROW_BYTES;
  float* values = (float*)ring;                  // in the end, [warps][8][VALUE_STRIDE]
  u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  u32 split = blockIdx.x, kv_head = blockIdx.y / l.copies, token = blockIdx.z;
  u32 position = loadu((const u32*)a.positions + token), slot = loadu((const u32*)a.slots + token);
  u32 span = split_span(a.shape.span, a.shape.splits, position), first = split * span;
  if (first > position) return;
  u32 end = min(first + span, position + 1);
  bool newest = end == position + 1;
  const float* in = (const float*)a.projected + (u64)token * a.shape.stride;
  u64 row0 = (u64)(slot * a.shape.kv_heads + kv_head) * a.shape.capacity;
  u8* keys = (u8*)a.keys + row0 * ROW_BYTES;
  u8* vals = (u8*)a.values + row0 * ROW_BYTES;
  uint2 rate = ((const uint2*)a.rates)[lane];
  u64* k_full = barriers + 2 * warp;
  u64* v_full = k_full + 1;
  u8* k_tile = ring + warp * (2 * TILE_BYTES);
  u8* v_tile = k_tile + TILE_BYTES;
  if (lane == 0) {
    barrier_init(k_full, 1);
    barrier_init(v_full, 1);
    barrier_fence();
  }
  __syncwarp();
  // Rows of earlier steps: all but the newest.
  u32 cached = newest ? end - 1 : end, step = l.warps * TILE, p = first + warp * TILE;
  bool busy = warp < l.warps && p < end;
  if (busy) {
    u32 rows = min(p + TILE, cached) - min(p, cached);
    bring(k_tile, keys + (u64)p * ROW_BYTES, rows, k_full, lane);
    bring(v_tile, vals + (u64)p * ROW_BYTES, rows, v_full, lane);
  }
  grid_enter(l.step);

  {
    float v[8];
    const float* q = in + (kv_head * 8 + warp) * (2 * HEAD_DIM);
#pragma unroll
    for (int j = 0; j < 8; j++) v[j] = load1(q + j * 32 + lane);
    norm_and_rotate(v, (const u16*)a.q_gain, rate, position, a.shape.eps, lane);
#pragma unroll
    for (int j = 0; j < 8; j++) {
      // Scaled by 1/sqrt(256) and log2(e), so that exp2 gives the softmax.
      float x = v[j] * (1.44269504088896f / 16.0f);
      u32 high = pack_bfloats(x, 0.0f), rest = pack_rest(x, 0.0f, high);
      ((u16*)(queries + warp * ROW_STRIDE))[j * 32 + lane] = (u16)high;
      ((u16*)(queries_rest + warp * ROW_STRIDE))[j * 32 + lane] = (u16)rest;
    }
  }
  if (newest && warp == SPLIT_WARPS - 1) {
    const float* k = in + a.shape.heads * 2 * HEAD_DIM + kv_head * HEAD_DIM;
    const float* v = k + a.shape.kv_heads * HEAD_DIM;
    float x[8], y[8];
#pragma unroll
    for (int j = 0; j < 8; j++) {
      x[j] = load1(k + j * 32 + lane);
      y[j] = load1(v + j * 32 + lane);
    }
    norm_and_rotate(x, (const u16*)a.k_gain, rate, position, a.shape.eps, lane);
    u16* key = (u16*)(keys + (u64)position * ROW_BYTES);
    u16* value = (u16*)(vals + (u64)position * ROW_BYTES);
#pragma unroll
    for (int j = 0; j < 8; j++) {
      u32 i = j * 32 + lane;
      key[i] = own[i] = (u16)pack_bfloats(x[j], 0.0f);
      value[i] = own[HEAD_DIM + i] = (u16)pack_bfloats(y[j], 0.0f);
    }
  }
  __syncthreads();

  float out[16][4];
#pragma unroll
  for (int i = 0; i < 16; i++)
#pragma unroll
    for (int j = 0; j < 4; j++) out[i][j] = 0.0f;
  // Of heads 2 t and 2 t + 1; the sums are the lane's own share until the end.
  float m0 = -INFINITY, m1 = -INFINITY, l0 = 0.0f, l1 = 0.0f;
  // Where this lane's row of each 8 x 8 matrix lies: of K and of V transposed, of the queries.
  u32 k_at = shared_address(k_tile) + lane % 16 * ROW_STRIDE + lane / 16 * 16;
  u32 v_at = shared_address(v_tile) + (lane / 16 * 8 + lane % 8) * ROW_STRIDE + lane / 8 % 2 * 16;
  u32 q_at = shared_address(queries) + lane % 8 * ROW_STRIDE + lane / 8 * 16;
  u32 parity = 0;
  for (; busy && p < end; p += step) {
    u32 next = p + step, coming = next < end ? min(next + TILE, cached) - min(next, cached) : 0;
    bool last = p + TILE >= end, has_own = newest && last;
    barrier_wait(k_full, parity);
    if (has_own) {
      ((uint4*)(k_tile + (position - p) * ROW_STRIDE))[lane] = ((const uint4*)own)[lane];
      __syncwarp();
    }
    float s[4] = {0.0f, 0.0f, 0.0f, 0.0f}, r[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (u32 j = 0; j < 8; j++) {
      uint4 q = load_matrices(q_at + j * 64), rest = load_matrices(q_at + 8 * ROW_STRIDE + j * 64);
      uint4 k0 = load_matrices(k_at + j * 64), k1 = load_matrices(k_at + j * 64 + 32);
      mma(s, k0, q.x, q.y);
      mma(r, k0, rest.x, rest.y);
      mma(s, k1, q.z, q.w);
      mma(r, k1, rest.z, rest.w);
    }
    __syncwarp();
    if (next < end) bring(k_tile, keys + (u64)next * ROW_BYTES, coming, k_full, lane);
#pragma unroll
    for (int i = 0; i < 4; i++) s[i] += r[i];
    if (p + g >= end) s[0] = s[1] = -INFINITY;
    if (p + g + 8 >= end) s[2] = s[3] = -INFINITY;
    float n0 = fmaxf(s[0], s[2]), n1 = fmaxf(s[1], s[3]);
#pragma unroll
    for (int o = 4; o <= 16; o *= 2) {
      n0 = fmaxf(n0, __shfl_xor_sync(ALL, n0, o));
      n1 = fmaxf(n1, __shfl_xor_sync(ALL, n1, o));
    }
    n0 = fmaxf(n0, m0);
    n1 = fmaxf(n1, m1);
    if (__any_sync(ALL, n0 > m0 || n1 > m1)) {
      float f0 = exp2f(m0 - n0), f1 = exp2f(m1 - n1);
      l0 *= f0;
      l1 *= f1;
#pragma unroll
      for (int i = 0; i < 16; i++) {
        out[i][0] *= f0;
        out[i][1] *= f1;
        out[i][2] *= f0;
        out[i][3] *= f1;
      }
      m0 = n0;
      m1 = n1;
    }
    float p0 = exp2f(s[0] - m0), p1 = exp2f(s[1] - m1), p2 = exp2f(s[2] - m0), p3 = exp2f(s[3] - m1);
    l0 += p0 + p2;
    l1 += p1 + p3;
    u32 w0 = pack_bfloats(p0, p1), w1 = pack_bfloats(p2, p3);
    u32 x0 = transpose(pack_rest(p0, p1, w0)), x1 = transpose(pack_rest(p2, p3, w1));
    w0 = transpose(w0);
    w1 = transpose(w1);
    barrier_wait(v_full, parity);
    if (last) {
      // Rows past the end have weight zero, but must not be NaN.
      for (u32 i = has_own ? position - p : end - p; i < TILE; i++)
        ((uint4*)(v_tile + i * ROW_STRIDE))[lane] =
            has_own && p + i == position ? ((const uint4*)own)[ROW_BYTES / 16 + lane] : make_uint4(0, 0, 0, 0);
      __syncwarp();
    }
#pragma unroll
    for (u32 i = 0; i < 16; i++) {
      uint4 v = load_transposed(v_at + i * 32);
      mma(out[i], v, w0, w1);
      mma(out[i], v, x0, x1);
    }
    __syncwarp();
    if (next < end) bring(v_tile, vals + (u64)next * ROW_BYTES, coming, v_full, lane);
    parity ^= 1;
  }
#pragma unroll
  for (int o = 4; o <= 16; o *= 2) {
    l0 += __shfl_xor_sync(ALL, l0, o);
    l1 += __shfl_xor_sync(ALL, l1, o);
  }
  if (g == 0) {
    largest_of[warp][2 * t] = m0;
    largest_of[warp][2 * t + 1] = m1;
    sum_of[warp][2 * t] = l0;
    sum_of[warp][2 * t + 1] = l1;
  }
  __syncthreads();
  float all0 = -INFINITY, all1 = -INFINITY;
#pragma unroll
  for (int w = 0; w < SPLIT_WARPS; w++) {
    all0 = fmaxf(all0, largest_of[w][2 * t]);
    all1 = fmaxf(all1, largest_of[w][2 * t + 1]);
  }
  // A warp without positions has -inf and zeros.
  float f0 = exp2f(m0 - all0), f1 = exp2f(m1 - all1);
  if (warp < l.warps) {
    float* mine = values + warp * (8 * VALUE_STRIDE) + 2 * t * VALUE_STRIDE + g;
#pragma unroll
    for (int i = 0; i < 16; i++) {
      mine[16 * i] = out[i][0] * f0;
      mine[16 * i + VALUE_STRIDE] = out[i][1] * f1;
      mine[16 * i + 8] = out[i][2] * f0;
      mine[16 * i + 8 + VALUE_STRIDE] = out[i][3] * f1;
    }
  }
  __syncthreads();
  u32 at = (token * a.shape.heads + kv_head * 8) * a.shape.splits + split;
#pragma unroll
  for (u32 h = 0; h < 8; h++) {
    float sum = 0.0f;
    for (u32 w = 0; w < l.warps; w++) sum += values[(w * 8 + h) * VALUE_STRIDE + threadIdx.x];
    ((float*)a.partial)[(u64)(at + h * a.shape.splits) * HEAD_DIM + threadIdx.x] = sum;
  }
  if (threadIdx.x < 8) {
    u32 h = threadIdx.x;
    float top = -INFINITY, sum = 0.0f;
#pragma unroll
    for (u32 w = 0; w < SPLIT_WARPS; w++) top = fmaxf(top, largest_of[w][h]);
#pragma unroll
    for (u32 w = 0; w < SPLIT_WARPS; w++) sum += sum_of[w][h] * exp2f(largest_of[w][h] - top);
    float* to = (float*)a.weights + (u64)(at + h * a.shape.splits) * 2;
    to[0] = top;
    to[1] = sum;
  }
}

// Joins the splits, divides, and applies the output gate. Grid: (heads, tokens); 256 threads, a dimension each.
extern "C" __global__ void __launch_bounds__(HEAD_DIM)
    native_attention_combine(const __grid_constant__ AttentionCombineArgs a, const __grid_constant__ AttentionLaunch l) {
  __shared__ float factors[MOST_SPLITS];
  __shared__ float tops[8], sums[8];
  u32 i = threadIdx.x, warp = i / 32, lane = i % 32, head = blockIdx.x, token = blockIdx.y;
  u32 at = (token * a.shape.heads + head) * a.shape.splits;
  u32 position = loadu((const u32*)a.positions + token);
  u32 used = position / split_span(a.shape.span, a.shape.splits, position) + 1;
  // The projection stands two kernels back.
  float gate = load1((const float*)a.projected + (u64)token * a.shape.stride + head * 2 * HEAD_DIM + HEAD_DIM + i);
  grid_enter(l.step);
  float largest = -INFINITY, sum = 0.0f;
  if (i < used) {
    float2 w = __ldcg((const float2*)a.weights + at + i);
    largest = w.x;
    sum = w.y;
  }
  float top = largest;
  for (int o = 16; o; o >>= 1) top = fmaxf(top, __shfl_xor_sync(ALL, top, o));
  if (lane == 0) tops[warp] = top;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < 8; w++) top = fmaxf(top, tops[w]);
  float factor = i < used ? exp2f(largest - top) : 0.0f;
  factors[i] = factor;
  float part = warp_sum(sum * factor);
  if (lane == 0) sums[warp] = part;
  __syncthreads();
  float all = 0.0f, value = 0.0f;
#pragma unroll
  for (int w = 0; w < 8; w++) all += sums[w];
  const float* partial = (const float*)a.partial + (u64)at * HEAD_DIM + i;
#pragma unroll 8
  for (u32 s = 0; s < used; s++) value += load1(partial + s * HEAD_DIM) * factors[s];
  ((float*)a.y)[(u64)(token * a.shape.heads + head) * HEAD_DIM + i] = value / all * sigmoid(gate);
}
