// Mixture of experts for one token: the two dispatches behind the router's projection (moe_decode.metal's
// `moe_gate_up_*` and `moe_down_*`).
#define EXPERT_WIDTH 512  // of a routed and of the shared expert
#define HIDDEN 2048

struct MoeLaunch {
  // gate_up, of the block with number i: `each` tiles, one more if i < `more`.
  u32 each, more;
  Step step;
};

// h[e] = silu(gate_e x) up_e x for the chosen experts, x = rmsnorm(residual).
//
// A tile is 8 rows of gate and 8 of up of one expert. 16 computing warps, a slice of 256 columns and every second tile each,
// and one that chooses the experts. The choice needs the router's logits, so nothing can be loaded before they are there;
// then every tile is, by a warp for each. Grid: (blocks, 1, tokens).
#define GATE_UP_WARPS 16
#define GATE_UP_TILES 8  // most a block takes
#define GATE_UP_SLICES (HIDDEN / SLICE)
#define GATE_UP_ROW (HIDDEN / 2)
#define GATE_UP_GROUPS (HIDDEN / GROUP)
#define GATE_UP_STAGE (16 * (GATE_UP_ROW + GATE_UP_GROUPS * 4))
extern "C" __global__ void __launch_bounds__(GATE_UP_WARPS * 32 + 32, 1)
    native_moe_gate_up(const __grid_constant__ MoeGateUpArgs a, const __grid_constant__ MoeLaunch l) {
  extern __shared__ __align__(128) u8 shared[];
  constexpr u32 threads = GATE_UP_WARPS * 32, row_bytes = HIDDEN / 2, group_bytes = GATE_UP_GROUPS * 2;
  constexpr u32 per_expert = EXPERT_WIDTH / 8, tile_sums = GATE_UP_SLICES * 16;
  u64* full = (u64*)shared;
  float* parts = (float*)(shared + 128);
  u32* ids = (u32*)(shared + 256);
  Choice& choice = *(Choice*)(shared + 512);
  Staged staged = staged_at(shared + 1024, HIDDEN);
  float* sums = (float*)(shared + 1024 + (STAGED_BYTES(HIDDEN) + 127) / 128 * 128);
  u8* ring = (u8*)(sums + GATE_UP_TILES * tile_sums);
  u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, token = blockIdx.z;
  u32 first = l.each * blockIdx.x + min(blockIdx.x, l.more), count = l.each + (blockIdx.x < l.more ? 1 : 0);
  if (threadIdx.x < GATE_UP_TILES) {
    barrier_init(full + threadIdx.x, 1);
    barrier_fence();
  }
  __syncthreads();

  if (warp == GATE_UP_WARPS) {
    grid_wait();
    // No further than the last expert that this block works on.
    u32 chosen = (first + count - 1) / per_expert + 1;
    choose_experts((const float*)a.routed + token * a.shape.stride, a.shape.experts, chosen, lane, choice, ids, 0);
    sync_some(2, threads + 32);
    return;
  }

  // The residual is complete: what wrote it stands two kernels back, before the router.
  static_assert(HIDDEN / 4 == threads, "a thread stages four columns");
  float4 g = bfloats4(((const uint2*)a.gain)[threadIdx.x]);
  float4 v = load4((const float4*)a.residual + token * (HIDDEN / 4) + threadIdx.x);
  stage(staged, threadIdx.x, make_float4(v.x * g.x, v.y * g.y, v.z * g.z, v.w * g.w));
  float squares = warp_sum(dot(v, v));
  if (lane == 0) parts[warp] = squares;
  sync_some(1, threads);
  u32 slice = warp % GATE_UP_SLICES, set = warp / GATE_UP_SLICES;
  Slice x = load_slice<false>(staged, slice, lane);
  grid_enter(l.step);
  sync_some(2, threads + 32);
  if (warp < count && lane == 0) {
    u32 tile = first + warp;
    u64 row = (u64)ids[tile / per_expert] * EXPERT_WIDTH + tile % per_expert * 8;
    u8* to = ring + warp * GATE_UP_STAGE;
    u64* b = full + warp;
    barrier_expect(b, 16 * (row_bytes + 2 * group_bytes));
    bulk_load(to + 32 * group_bytes, (const u8*)a.gate_w + row * row_bytes, 8 * row_bytes, b);
    bulk_load(to + 32 * group_bytes + 8 * row_bytes, (const u8*)a.up_w + row * row_bytes, 8 * row_bytes, b);
    bulk_load(to, (const u8*)a.gate_s + row * group_bytes, 8 * group_bytes, b);
    bulk_load(to + 8 * group_bytes, (const u8*)a.up_s + row * group_bytes, 8 * group_bytes, b);
    bulk_load(to + 16 * group_bytes, (const u8*)a.gate_b + row * group_bytes, 8 * group_bytes, b);
    bulk_load(to + 24 * group_bytes, (const u8*)a.up_b + row * group_bytes, 8 * group_bytes, b);
  }
  __syncwarp();
  for (u32 k = set; k < count; k += GATE_UP_WARPS / GATE_UP_SLICES) {
    const u8* stage = ring + k * GATE_UP_STAGE;
    const u16* scales = (const u16*)stage;
    barrier_wait(full + k, 0);
    float s = slice_product<false>(stage + 32 * group_bytes, GATE_UP_ROW, scales, scales + 16 * GATE_UP_GROUPS,
                                   GATE_UP_GROUPS, slice, x, lane);
    if (lane % 4 < 2) sums[k * tile_sums + slice * 16 + lane % 4 * 8 + lane / 4] = s;
  }
  sync_some(1, threads);
  u32 k = threadIdx.x / 8, row = threadIdx.x % 8;
  if (k < count) {
    float total = 0.0f, gate = 0.0f, up = 0.0f;
#pragma unroll
    for (u32 i = 0; i < GATE_UP_WARPS; i++) total += parts[i];
    float factor = rsqrtf(total / (float)HIDDEN + a.shape.eps);
#pragma unroll
    for (u32 i = 0; i < GATE_UP_SLICES; i++) {
      gate += sums[k * tile_sums + i * 16 + row];
      up += sums[k * tile_sums + i * 16 + 8 + row];
    }
    u32 tile = first + k;
    ((float*)a.h)[(token * a.shape.chosen + tile / per_expert) * EXPERT_WIDTH + tile % per_expert * 8 + row] =
        silu(gate * factor) * (up * factor);
  }
}

// residual += sum_e score_e down_e h_e + sigmoid(shared gate) shared_down (silu(shared gate proj) shared up).
//
// A block computes 16 rows of the residual: 18 warps, two slices of each of the eight experts and the shared one, and one
// that chooses. The router is two kernels back, so choice and loads come before the experts' h is there.
// Grid: (hidden / 16, 1, tokens).
#define DOWN_PARTS 9
#define DOWN_WARPS (2 * DOWN_PARTS)
#define DOWN_ROWS 16
#define DOWN_ROW (EXPERT_WIDTH / 2)
#define DOWN_GROUPS (EXPERT_WIDTH / GROUP)
#define DOWN_STAGE (DOWN_ROWS * (DOWN_ROW + DOWN_GROUPS * 4))
extern "C" __global__ void __launch_bounds__(DOWN_WARPS * 32 + 32, 1)
    native_moe_down(const __grid_constant__ MoeDownArgs a, const __grid_constant__ MoeLaunch l) {
  extern __shared__ __align__(128) u8 shared[];
  constexpr u32 width = EXPERT_WIDTH, row_bytes = width / 2, group_bytes = DOWN_GROUPS * 2, cols = DOWN_PARTS * width;
  constexpr u32 part_bytes = DOWN_ROWS * (row_bytes + 2 * group_bytes);
  u64* full = (u64*)shared;                    // [9]
  u32* ids = (u32*)(shared + 128);             // [8]
  float* scores = (float*)(shared + 192);      // [8]
  float* partial = (float*)(shared + 256);     // [18][16]
  Choice& choice = *(Choice*)(shared + 1536);
  Staged staged = staged_at(shared + 2048, cols);
  u8* weights = shared + 2048 + (STAGED_BYTES(cols) + 127) / 128 * 128;
  u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, token = blockIdx.z, row0 = blockIdx.x * DOWN_ROWS;
  const float* mine = (const float*)a.routed + token * a.shape.stride;
  if (threadIdx.x < DOWN_PARTS) {
    barrier_init(full + threadIdx.x, 1);
    barrier_fence();
  }
  __syncthreads();

  if (warp == DOWN_WARPS) {
    choose_experts(mine, a.shape.experts, a.shape.chosen, lane, choice, ids, scores);
  } else if (warp < 4) {
    // The shared expert's activations: its projections came with the router's. 128 threads, 512 values.
    const float* gate = mine + a.shape.experts + 1;
    const float* up = gate + width;
    u32 i = threadIdx.x;
    float open = sigmoid(load1(mine + a.shape.experts));
    float4 h;
    h.x = silu(load1(gate + 4 * i)) * load1(up + 4 * i) * open;
    h.y = silu(load1(gate + 4 * i + 1)) * load1(up + 4 * i + 1) * open;
    h.z = silu(load1(gate + 4 * i + 2)) * load1(up + 4 * i + 2) * open;
    h.w = silu(load1(gate + 4 * i + 3)) * load1(up + 4 * i + 3) * open;
    stage(staged, 8 * width / 4 + i, h);
  }
  float old = 0.0f;
  u32 at = token * a.shape.hidden + row0 + threadIdx.x;
  // Written by the kernel before the router: complete.
  if (threadIdx.x < DOWN_ROWS) old = load1((const float*)a.residual + at);
  __syncthreads();
  if (warp < DOWN_WARPS && warp % 2 == 0 && lane == 0) {
    u32 part = warp / 2;
    u64 row = part == 8 ? row0 : (u64)ids[part] * a.shape.hidden + row0;
    const u8* w = (const u8*)(part == 8 ? a.shared_w : a.down_w);
    const u8* s = (const u8*)(part == 8 ? a.shared_s : a.down_s);
    const u8* b = (const u8*)(part == 8 ? a.shared_b : a.down_b);
    u8* to = weights + part * DOWN_STAGE;
    barrier_expect(full + part, part_bytes);
    bulk_load(to + 2 * DOWN_ROWS * group_bytes, w + row * row_bytes, DOWN_ROWS * row_bytes, full + part);
    bulk_load(to, s + row * group_bytes, DOWN_ROWS * group_bytes, full + part);
    bulk_load(to + DOWN_ROWS * group_bytes, b + row * group_bytes, DOWN_ROWS * group_bytes, full + part);
  }
  __syncwarp();
  grid_enter(l.step);
  if (warp < 16) {
    const float4* h = (const float4*)a.h + token * (8 * width / 4);
    float4 v[2];
#pragma unroll
    for (u32 j = 0; j < 2; j++) v[j] = load4(h + j * 512 + threadIdx.x);
#pragma unroll
    for (u32 j = 0; j < 2; j++) {
      u32 i = j * 512 + threadIdx.x;
      float s = scores[i / (width / 4)];
      stage(staged, i, make_float4(v[j].x * s, v[j].y * s, v[j].z * s, v[j].w * s));
    }
  }
  __syncthreads();
  if (warp < DOWN_WARPS) {
    u32 part = warp / 2;
    const u8* stage = weights + part * DOWN_STAGE;
    const u16* scales = (const u16*)stage;
    Slice x = load_slice<false>(staged, warp, lane);
    barrier_wait(full + part, 0);
    float s = slice_product<false>(stage + 2 * DOWN_ROWS * group_bytes, DOWN_ROW, scales, scales + DOWN_ROWS * DOWN_GROUPS,
                                   DOWN_GROUPS, warp % 2, x, lane);
    if (lane % 4 < 2) partial[warp * DOWN_ROWS + lane % 4 * 8 + lane / 4] = s;
  }
  __syncthreads();
  if (threadIdx.x < DOWN_ROWS) {
    float sum = 0.0f;
#pragma unroll
    for (u32 p = 0; p < DOWN_WARPS; p++) sum += partial[p * DOWN_ROWS + threadIdx.x];
    ((float*)a.residual)[at] = old + sum;
  }
}
