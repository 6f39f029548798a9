// Kernels that exercise the soft device: arithmetic, collectives, barriers, matrices, atomics.
#include <metal_stdlib>
#include "quant.h"
using namespace metal;

constant uint ROWS [[function_constant(0)]];

// y[N] = W[N, K] x[K]; a simdgroup computes ROWS rows. Grid: N / (2 ROWS) threadgroups of 64.
template <typename T>
[[kernel, max_total_threads_per_threadgroup(64)]] void gemv4(
    device const uint4* w [[buffer(0)]], device const T* scales [[buffer(1)]], device const T* biases [[buffer(2)]],
    device const float* x [[buffer(3)]], device float* y [[buffer(4)]], constant GemvShape& shape [[buffer(5)]],
    uint tg [[threadgroup_position_in_grid]], uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  for (uint r = 0; r < ROWS; r++) {
    uint row = (tg * 2 + sg) * ROWS + r;
    if (row >= shape.n) break;
    float sum = 0.0;
    for (uint i = lane; i < shape.k / 32; i += 32) {
      uint4 q = w[row * (shape.k / 32) + i];
      uint group = row * (shape.k / GROUP) + i * 32 / GROUP;
      sum += dot32(q, x + i * 32, float(scales[group]), float(biases[group]));
    }
    sum = simd_sum(sum);
    if (lane == 0) y[row] = sum;
  }
}
#define GEMV4(name, type) \
  template [[host_name("gemv4_" name)]] [[kernel]] decltype(gemv4<type>) gemv4<type>;
GEMV4("bf16", bfloat)
GEMV4("f16", half)

// One threadgroup a row of n elements.
kernel void rmsnorm(device const float4* x [[buffer(0)]], device const float4* gain [[buffer(1)]],
                    device float4* y [[buffer(2)]], constant uint& n [[buffer(3)]], constant float& eps [[buffer(4)]],
                    uint row [[threadgroup_position_in_grid]], uint tid [[thread_position_in_threadgroup]],
                    uint threads [[threads_per_threadgroup]], uint sg [[simdgroup_index_in_threadgroup]],
                    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float part[32];
  if (sg == 0) part[lane] = 0.0f;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  device const float4* xr = x + row * (n / 4);
  float s = 0.0f;
  for (uint i = tid; i < n / 4; i += threads) s += dot(xr[i], xr[i]);
  s = simd_sum(s);
  if (lane == 0) part[sg] = s;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  s = simd_sum(part[lane]);
  float r = precise::rsqrt(s / float(n) + eps);
  for (uint i = tid; i < n / 4; i += threads) y[row * (n / 4) + i] = xr[i] * r * gain[i];
}

// C[M, N] = A[M, K] B[N, K]^T: 32 x 32 tiles, four simdgroups of 16 x 16.
template <typename T, int TILE>
kernel void gemm(device const T* a [[buffer(0)]], device const T* b [[buffer(1)]], device float* c [[buffer(2)]],
                 constant uint3& mnk [[buffer(3)]], threadgroup T* shared [[threadgroup(0)]],
                 uint2 tg [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]],
                 ushort sg [[simdgroup_index_in_threadgroup]]) {
  uint n = mnk.y, k = mnk.z;
  threadgroup T* sa = shared;
  threadgroup T* sb = shared + TILE * TILE;
  simdgroup_matrix<float, 8, 8> acc[2][2];
  for (int i = 0; i < 2; i++)
    for (int j = 0; j < 2; j++) acc[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  ushort row = (sg / 2) * 16, column = (sg % 2) * 16;
  for (uint k0 = 0; k0 < k; k0 += TILE) {
    for (uint i = tid; i < TILE * TILE; i += 128) {
      sa[i] = a[(tg.y * TILE + i / TILE) * k + k0 + i % TILE];
      sb[i] = b[(tg.x * TILE + i / TILE) * k + k0 + i % TILE];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
    for (ushort kk = 0; kk < TILE; kk += 8) {
      simdgroup_matrix<T, 8, 8> ma[2], mb[2];
      for (ushort i = 0; i < 2; i++) {
        simdgroup_load(ma[i], sa + (row + 8 * i) * TILE + kk, TILE);
        simdgroup_load(mb[i], sb + (column + 8 * i) * TILE + kk, TILE, ulong2(0, 0), true);
      }
      for (ushort i = 0; i < 2; i++)
        for (ushort j = 0; j < 2; j++) simdgroup_multiply_accumulate(acc[i][j], ma[i], mb[j], acc[i][j]);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  for (ushort i = 0; i < 2; i++)
    for (ushort j = 0; j < 2; j++)
      simdgroup_store(acc[i][j], c + (tg.y * TILE + row + 8 * i) * n + tg.x * TILE + column + 8 * j, n);
}
template [[host_name("gemm_bf16")]] kernel void gemm<bfloat, 32>(device const bfloat*, device const bfloat*,
                                                                device float*, constant uint3&, threadgroup bfloat*,
                                                                uint2, uint, ushort);

kernel void histogram(device const uint* x [[buffer(0)]], device atomic_uint* bins [[buffer(1)]],
                      constant uint& n [[buffer(2)]], uint gid [[thread_position_in_grid]]) {
  if (gid < n) atomic_fetch_add_explicit(&bins[x[gid] & 15u], 1u, memory_order_relaxed);
}

// Every collective once; 32 results each.
kernel void collectives(device float* o [[buffer(0)]], uint lane [[thread_index_in_simdgroup]]) {
  float v = float(lane);
  o[lane] = simd_prefix_exclusive_sum(v);
  o[32 + lane] = simd_prefix_inclusive_sum(v);
  o[64 + lane] = simd_shuffle_xor(v, 5);
  o[96 + lane] = simd_shuffle_down(v, 3);
  o[128 + lane] = simd_shuffle_up(v, 3);
  o[160 + lane] = simd_max(v) + simd_min(v + 1.0f);
  o[192 + lane] = simd_broadcast(v, 7) + simd_broadcast_first(v);
  o[224 + lane] = simd_shuffle(v, ushort(31 - lane));
  o[256 + lane] = simd_shuffle_rotate_down(v, 1);
  o[288 + lane] = simd_shuffle_and_fill_up(v, 100.0f + v, 2);
  o[320 + lane] = (simd_any(lane == 3) ? 1.0f : 0.0f) + (simd_all(lane < 31) ? 2.0f : 0.0f);
  o[352 + lane] = float(popcount(uint(ulong(simd_ballot((lane & 1) == 0)))));
  o[384 + lane] = quad_sum(v);
  o[416 + lane] = float(simd_or(1u << lane) == 0xffffffffu ? simd_sum(1) : 0);
}

// Vectors, swizzles, literals, conversions.
kernel void vectors(device float* o [[buffer(0)]], uint lane [[thread_index_in_simdgroup]]) {
  float v = float(lane);
  half4 h = half4(1.0h, 2.0h, v, 4.0h);
  float4 f = float4(h.wzyx) + float4(float2(h.xy), 0.5, 1.0f);
  f.xy += 1.0f;
  f.zw = f.wz;
  o[lane] = f.x + 10 * f.y + 100 * f.z + 1000 * f.w;
  o[32 + lane] = as_type<float>(as_type<uint>(v) + 1u) > v ? 1.0f : 0.0f;
  o[64 + lane] = float(bfloat(v * 1.01f)) + float(half(v) * 0.1h);
  uint4 q = uint4(lane) >> uint4(0, 1, 2, 3) & 1u;
  o[96 + lane] = float(q.x + 2 * q.y + 4 * q.z + 8 * q.w);
  o[128 + lane] = select(1.0f, 2.0f, lane > 3) + clamp(v, 2.0f, 4.0f) + max(v, 5.0f) + fma(v, 2.0f, 1.0f);
  o[160 + lane] = dot(float3(1, 2, 3), float3(v)) + length(float2(3.0f, 4.0f));
  o[192 + lane] = exp(-v) + metal::fast::log(v + 1.0f) + tanh(v) + 1e-3;
  bool4 b = float4(v) > float4(0, 10, 20, 30);
  o[224 + lane] = float(all(b)) + 2 * float(any(b));
}
