// Type errors that a C++ compiler without address spaces accepts. Lines marked BAD must be refused, others not.
#include <metal_stdlib>
using namespace metal;
struct Params { int k; float e; };
struct Block { half d; uchar q[16]; };
inline float from_device(device const float* p) { return p[0]; }
inline float from_threadgroup(threadgroup const float* p) { return p[0]; }
inline void bump(thread float& a) { a += 1.0f; }
kernel void k(device float* y [[buffer(0)]], device const float* x [[buffer(1)]], constant Params& p [[buffer(2)]],
              device bfloat* b [[buffer(3)]], device const Block* w [[buffer(4)]], device float4* v [[buffer(5)]],
              device atomic_uint* n [[buffer(6)]], uint i [[thread_position_in_grid]]) {
  threadgroup float shared[32];
  y[0] = from_threadgroup(x);              // BAD: device pointer to threadgroup
  y[1] = from_device(shared);              // BAD: threadgroup pointer to device
  p.k = 3;                                 // BAD: constant is not written
  device float* q = shared;                // BAD: other address space
  b[0] = x[0];                             // BAD: implicit float to bfloat
  bump(y[2]);                              // BAD: thread reference to device memory
  threadgroup float* t = shared;
  t[0] = 1.0f;
  float z = x[0] * 0.5;
  x[1] = 2.0f;                             // BAD: const
  y[3] = simd_sum(b[0]);                   // BAD: no simd functions of bfloat
  Block c = w[0];
  y[4] = float(c.d) + z;
  float4 f = v[0];
  v[1] = f.wzyx * 2.0f;
  v[2].xy = f.zw;
  float3 g = f;                            // BAD: other length
  half h = b[0];                           // BAD: bfloat to half
  y[5] = max(1, 2u);                       // BAD: ambiguous
  uint4 u = uint4(1, 2, 3);                // BAD: three parts of four
  float4 good = float4(f.xy, 1.0f, z);
  uint bits = as_type<uint>(good.x);
  y[6] = as_type<float>(bits) + exp(z);
  ulong big = as_type<ulong>(z);           // BAD: other size
  atomic_fetch_add_explicit(n, 1u, memory_order_relaxed);
  atomic_fetch_add_explicit(y, 1.0f, memory_order_relaxed); // BAD: no atomic
  b[1] = bfloat(x[0]);
  y[7] = float(b[1]) + simd_max(z);
}
