// One seeded fault a kernel; `good` has none.
#include <metal_stdlib>
using namespace metal;

kernel void good(device const float* x [[buffer(0)]], device float* y [[buffer(1)]], uint t [[thread_position_in_threadgroup]]) {
  threadgroup float shared[128];
  shared[t] = x[t];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[t] = shared[(t + 33) % 128];
}
kernel void missing_barrier(device const float* x [[buffer(0)]], device float* y [[buffer(1)]], uint t [[thread_position_in_threadgroup]]) {
  threadgroup float shared[128];
  shared[t] = 0.0f;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  shared[t] = x[t];
  y[t] = shared[(t + 33) % 128];
}
kernel void barrier_of_other_memory(device const float* x [[buffer(0)]], device float* y [[buffer(1)]], uint t [[thread_position_in_threadgroup]]) {
  threadgroup float shared[128];
  shared[t] = x[t];
  threadgroup_barrier(mem_flags::mem_device);
  y[t] = shared[(t + 33) % 128];
}
kernel void missing_simd_barrier(device const float* x [[buffer(0)]], device float* y [[buffer(1)]], uint t [[thread_position_in_threadgroup]]) {
  threadgroup float shared[128];
  shared[t] = x[t];
  float s = simd_sum(1.0f);
  y[t] = shared[t ^ 1] + s;
}
kernel void simd_barrier_over_simdgroups(device const float* x [[buffer(0)]], device float* y [[buffer(1)]], uint t [[thread_position_in_threadgroup]]) {
  threadgroup float shared[128];
  shared[t] = 0.0f;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  shared[t] = x[t];
  simdgroup_barrier(mem_flags::mem_threadgroup);
  y[t] = shared[t ^ 32];
}
kernel void read_past_end(device const float* x [[buffer(0)]], device float* y [[buffer(1)]], uint t [[thread_position_in_threadgroup]]) {
  y[t] = x[t + 1];
}
kernel void write_past_end(device const float* x [[buffer(0)]], device float* y [[buffer(1)]], uint t [[thread_position_in_threadgroup]]) {
  y[t + 8] = x[t];
}
kernel void read_before_start(device const float* x [[buffer(0)]], device float* y [[buffer(1)]], uint t [[thread_position_in_threadgroup]]) {
  y[t] = x[int(t) - 1];
}
kernel void threadgroup_past_end(device const float* x [[buffer(0)]], device float* y [[buffer(1)]], uint t [[thread_position_in_threadgroup]]) {
  threadgroup float shared[127];
  threadgroup float other[128];
  other[t] = 0.0f;
  shared[t] = x[t];
  y[t] = other[t];
}
kernel void uninitialised(device const float* x [[buffer(0)]], device float* y [[buffer(1)]], uint t [[thread_position_in_threadgroup]]) {
  threadgroup float shared[128];
  if (t != 70) shared[t] = x[t];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[t] = shared[(t + 1) % 128];
}
kernel void groups_collide(device const float* x [[buffer(0)]], device float* y [[buffer(1)]], uint t [[thread_position_in_threadgroup]],
                           uint g [[threadgroup_position_in_grid]]) {
  if (t < 64) y[t + 32 * g] = x[t];
}
kernel void group_reads_group(device const float* x [[buffer(0)]], device float* y [[buffer(1)]], uint t [[thread_position_in_threadgroup]],
                              uint g [[threadgroup_position_in_grid]]) {
  if (g == 0 && t < 8) y[t] = x[t];
  if (g == 1 && t < 8) y[t + 8] = y[t];
}
kernel void divergent_sum(device const float* x [[buffer(0)]], device float* y [[buffer(1)]], uint t [[thread_position_in_threadgroup]]) {
  if (x[t] > 3.0f) y[t] = simd_sum(x[t]);
}
kernel void early_return(device const float* x [[buffer(0)]], device float* y [[buffer(1)]], uint t [[thread_position_in_threadgroup]]) {
  if (x[t] > 60.0f) return;
  threadgroup_barrier(mem_flags::mem_none);
  y[t] = 1.0f;
}
kernel void different_barriers(device const float* x [[buffer(0)]], device float* y [[buffer(1)]], uint t [[thread_position_in_threadgroup]]) {
  if (x[t] > 63.0f) {
    threadgroup_barrier(mem_flags::mem_none);
  } else {
    threadgroup_barrier(mem_flags::mem_none);
  }
  y[t] = 1.0f;
}
kernel void write_after_reads(device const float* x [[buffer(0)]], device float* y [[buffer(1)]], uint t [[thread_position_in_threadgroup]]) {
  threadgroup float shared[4];
  if (t < 4) shared[t] = x[t];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[t] = shared[t % 4];
  if (t < 4) shared[t] = 0.0f;
}
