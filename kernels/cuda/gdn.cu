// Gated DeltaNet, one token (gdn_decode.metal's `gdn_step`).
//
// Four blocks a value head, a cluster: a block has 32 of the 128 values, a warp four rows of the state, which it holds
// in registers, loaded before the step's previous kernel is done. The gated norm runs over the head, so the blocks of a
// cluster exchange their sums of squares. Grid: (4 * value_heads, tokens of different sequences); 256 threads.
#define GDN_DIM 128
#define GDN_TAPS 4
#define GDN_PARTS 4
#define GDN_VALUES (GDN_DIM / GDN_PARTS)
#define GDN_CHANNELS (2 * GDN_DIM + GDN_VALUES)  // of a block: q, k, its part of v
struct GdnLaunch {
  Step step;
};

DEVICE float softplus(float x) {
  float e = expf(x);
  return x > 20.0f ? x : e < 1e-4f ? e - 0.5f * e * e : logf(1.0f + e);
}
// What a channel's convolution gives, of its weights, the three inputs before, and the present one.
DEVICE float convolve(uint2 weights, const float (&before)[3][GDN_CHANNELS], u32 channel, float now) {
  float4 w = bfloats4(weights);
  return silu(w.x * before[0][channel] + w.y * before[1][channel] + w.z * before[2][channel] + w.w * now);
}
// Writes to the same place of another block of the cluster, whose barrier at the same place as `b` counts the bytes.
DEVICE void send(float* p, u32 block, float v, u64* b) {
  u32 to, counter;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"(shared_address(p)), "r"(block));
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(counter) : "r"(shared_address(b)), "r"(block));
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to),
               "r"(__float_as_uint(v)), "r"(counter)
               : "memory");
}

extern "C" __global__ void __cluster_dims__(GDN_PARTS, 1, 1) __launch_bounds__(256, 6)
    native_gdn_step(const __grid_constant__ GdnArgs a, const __grid_constant__ GdnLaunch l) {
  __shared__ __align__(16) float qkv[GDN_CHANNELS];
  __shared__ __align__(16) uint2 weights[GDN_CHANNELS];
  __shared__ __align__(16) float before[3][GDN_CHANNELS];  // the convolution's inputs of three steps, oldest first
  __shared__ float outputs[GDN_VALUES];
  __shared__ float squares[GDN_PARTS];
  __shared__ u64 sent;
  // Shared memory of another block may be written once that block has started.
  if (threadIdx.x == 0) {
    barrier_init(&sent, 1);
    barrier_fence();
    barrier_expect(&sent, GDN_PARTS * 4);
  }
  __syncwarp();
  cluster_begin();
  u32 tid = threadIdx.x, warp = tid / 32, lane = tid % 32;
  u32 head = blockIdx.x / GDN_PARTS, part = blockIdx.x % GDN_PARTS, token = blockIdx.y;
  u32 together = a.shape.value_heads / a.shape.key_heads, key_head = head / together;
  u32 key_width = a.shape.key_heads * GDN_DIM, value_width = a.shape.value_heads * GDN_DIM;
  u32 channels = 2 * key_width + value_width;
  const float* in = (const float*)a.projected + (u64)token * a.shape.stride;
  u32 position = loadu((const u32*)a.positions + token), slot = loadu((const u32*)a.slots + token);

  // What does not depend on this step: convolution inputs of before, weights, state.
  // A thread's channel of q or k; of the last warp also one of v.
  u32 channel = (tid < GDN_DIM ? 0 : key_width - GDN_DIM) + key_head * GDN_DIM + tid;
  u32 v_channel = 2 * key_width + head * GDN_DIM + part * GDN_VALUES + lane;
  float* ring = (float*)a.ring + (u64)slot * (GDN_TAPS * channels);
  // Channels lie as in qkv. Registers are for the state: many blocks must have theirs under way.
  auto channel_of = [&](u32 i) {
    return i < GDN_DIM       ? key_head * GDN_DIM + i
           : i < 2 * GDN_DIM ? key_width + key_head * GDN_DIM + i - GDN_DIM
                             : 2 * key_width + head * GDN_DIM + part * GDN_VALUES + i - 2 * GDN_DIM;
  };
  if (tid < GDN_CHANNELS / 2) fetch16(shared_address(weights + 2 * tid), (const uint2*)a.conv_weight + channel_of(2 * tid));
  if (tid < 3 * GDN_CHANNELS / 4) {
    u32 i = tid / (GDN_CHANNELS / 4), c = tid % (GDN_CHANNELS / 4) * 4;
    fetch16(shared_address(before[i] + c), ring + (position + 1 + i) % GDN_TAPS * channels + channel_of(c));
  }
  fetches_end();
  float a_log = ((const float*)a.a_log)[head], dt_bias = ((const float*)a.dt_bias)[head];
  u32 row0 = part * GDN_VALUES + warp * 4;
  float4* state = (float4*)a.state + (((u64)slot * a.shape.value_heads + head) * GDN_DIM + row0) * (GDN_DIM / 4) + lane;
  float4 s[4];
#pragma unroll
  for (int r = 0; r < 4; r++) s[r] = load4(state + r * (GDN_DIM / 4));
  u16 gain = 0;
  if (warp == 0) gain = ((const u16*)a.gain)[part * GDN_VALUES + lane];
  grid_enter(l.step);

  float now = load1(in + channel), v_now = warp == 7 ? load1(in + v_channel) : 0.0f;
  float beta = sigmoid(load1(in + channels + value_width + head));
  float decay = expf(-expf(a_log) * softplus(load1(in + channels + value_width + a.shape.value_heads + head) + dt_bias));
  float z = warp == 0 ? load1(in + channels + head * GDN_DIM + part * GDN_VALUES + lane) : 0.0f;
  u32 now_at = position % GDN_TAPS * channels;
  fetches_wait<0>();
  __syncthreads();
  qkv[tid] = convolve(weights[tid], before, tid, now);
  // Blocks that share channels compute them alike; the first of them keeps the input. The place written is none that
  // any of them reads.
  if (part == 0 && head % together == 0) ring[now_at + channel] = now;
  if (warp == 7) {
    u32 i = 2 * GDN_DIM + lane;
    qkv[i] = convolve(weights[i], before, i, v_now);
    ring[now_at + v_channel] = v_now;
  }
  __syncthreads();

  float4 q = ((const float4*)qkv)[lane], k = ((const float4*)qkv)[GDN_DIM / 4 + lane];
  float both = warp_sum2(dot(q, q), dot(k, k), lane);
  float qq = __shfl_sync(ALL, both, 0), kk = __shfl_sync(ALL, both, 16);
  float fq = rsqrtf(qq + 1e-6f) * rsqrtf((float)GDN_DIM), fk = rsqrtf(kk + 1e-6f);
  q = make_float4(q.x * fq, q.y * fq, q.z * fq, q.w * fq);
  k = make_float4(k.x * fk, k.y * fk, k.z * fk, k.w * fk);
#pragma unroll
  for (int r = 0; r < 4; r++) s[r] = make_float4(s[r].x * decay, s[r].y * decay, s[r].z * decay, s[r].w * decay);
  float seen = warp_sum4(dot(s[0], k), dot(s[1], k), dot(s[2], k), dot(s[3], k), lane);
  float delta = beta * (qkv[2 * GDN_DIM + warp * 4 + lane / 8] - seen);
#pragma unroll
  for (int r = 0; r < 4; r++) {
    float d = __shfl_sync(ALL, delta, 8 * r);
    s[r] = make_float4(fmaf(d, k.x, s[r].x), fmaf(d, k.y, s[r].y), fmaf(d, k.z, s[r].z), fmaf(d, k.w, s[r].w));
    // Read next by another step, after far more than the second-level cache holds.
    __stcs(state + r * (GDN_DIM / 4), s[r]);
  }
  float sums = warp_sum4(dot(s[0], q), dot(s[1], q), dot(s[2], q), dot(s[3], q), lane);
  if ((lane & 7) == 0) outputs[warp * 4 + lane / 8] = sums;
  cluster_wait();
  __syncthreads();
  // The blocks meet by these bytes alone: a barrier of the cluster would wait until all of the state is stored.
  if (warp == 0) {
    float o = outputs[lane], sum = warp_sum(o * o);
    if (lane < GDN_PARTS) send(squares + part, lane, sum, &sent);
    barrier_wait(&sent, 0);
    float total = squares[0] + squares[1] + squares[2] + squares[3];
    float factor = rsqrtf(total / (float)GDN_DIM + a.shape.eps);
    ((float*)a.y)[(u64)token * value_width + head * GDN_DIM + part * GDN_VALUES + lane] = o * factor * bfloat(gain) * silu(z);
  }
}
