// The attention kernels, and a piece of them alone.
#include "attention_decode.metal"

kernel void test_rotate(device const float* x [[buffer(0)]], device const bfloat* gain [[buffer(1)]],
                        device const uint2* rates [[buffer(2)]], device float* y [[buffer(3)]],
                        constant uint& position [[buffer(4)]], constant float& eps [[buffer(5)]],
                        uint lane [[thread_index_in_simdgroup]]) {
  float v[PER_LANE];
  for (uint j = 0; j < PER_LANE; j++) v[j] = x[j * 32 + lane];
  norm_and_rotate(v, gain, rates, position, eps, lane);
  for (uint j = 0; j < PER_LANE; j++) y[j * 32 + lane] = v[j];
}
