// A matrix expanded to bfloats in memory: what the products spare by taking the codes as they are. For measuring only.
struct ExpandArgs {
  const void* codes;
  const void* scales;
  const void* biases;
  void* out;
  u64 words;  // of codes
  u32 bits, end;
};

extern "C" __global__ void native_expand(const __grid_constant__ ExpandArgs a) {
  u64 step = (u64)gridDim.x * blockDim.x;
  u32 per_word = 32 / a.bits, words_per_group = GROUP / per_word, mask = (1u << a.bits) - 1;
  for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < a.words; i += step) {
    u32 word = ((const u32*)a.codes)[i];
    u64 group = i / words_per_group;
    float s = bfloat(((const u16*)a.scales)[group]), b = bfloat(((const u16*)a.biases)[group]);
    u32 out[4];
#pragma unroll
    for (u32 j = 0; j < 4; j++) {
      float low = fmaf(s, (float)(word >> (2 * j * a.bits) & mask), b);
      float high = fmaf(s, (float)(word >> ((2 * j + 1) * a.bits) & mask), b);
      out[j] = pack_bfloats(low, high);
      if (j == 1 && per_word == 4) break;
    }
    if (per_word == 8)
      ((uint4*)a.out)[i] = make_uint4(out[0], out[1], out[2], out[3]);
    else
      ((uint2*)a.out)[i] = make_uint2(out[0], out[1]);
  }
}
