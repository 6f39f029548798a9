// Random memory of a given kind: weights for measuring speed, inputs for comparing devices. The same numbers as
// `lily_gpu::synthetic` makes on the host.
struct FillArgs {
  void* to;
  u64 count;  // elements
  u64 seed;
  u32 kind;  // 0: 64-bit words; 1: 16-bit picks from the table; 2: floats; 3: bfloats
  float low, high;
  u16 table[16];
};

// SplitMix64 (Steele, Lea, Flood 2014) at a place of its sequence.
DEVICE u64 random_at(u64 seed, u64 i) {
  u64 z = seed + (i + 1) * 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}
DEVICE float uniform(const FillArgs& a, u64 i) {
  float u = __fmul_rn((float)(u32)(random_at(a.seed, i) >> 40), 1.0f / 16777216.0f);
  return __fadd_rn(a.low, __fmul_rn(__fsub_rn(a.high, a.low), u));
}

extern "C" __global__ void native_fill(const __grid_constant__ FillArgs a) {
  u64 step = (u64)gridDim.x * blockDim.x;
  for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < a.count; i += step) {
    if (a.kind == 0) ((u64*)a.to)[i] = random_at(a.seed, i);
    if (a.kind == 1) ((u16*)a.to)[i] = a.table[random_at(a.seed, i / 16) >> (i % 16 * 4) & 15];
    if (a.kind == 2) ((float*)a.to)[i] = uniform(a, i);
    if (a.kind == 3) {
      u16 bits;
      asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(uniform(a, i)));
      ((u16*)a.to)[i] = bits;
    }
  }
}
