// Half precision, which prefill's products take on the tensor cores: 11 bits, at the speed of bfloats (8 bits); two halves
// of a value have 22 (split.cu, gdn_prefill.cu).
//
// A half ends at 65,504, and below 6e-5 it has an absolute error of 3e-8 instead of 11 bits. So every operand has a range:
//   weights        times 2^8: 11 bits from 2.4e-7, the largest 127 in any case and 255 where scale and bias don't add up
//   rows of a chunk  normed, or weighted means of such, or a gated product; what they add to the residual stream is of the
//                  size of their products, so an absolute error of 3e-8 is none
//   GDN            every operand in two halves, times powers of two that fit (gdn_prefill.cu)
//   attention      queries and keys are normed, softmax weights times 2^15, values as they are
// Finite values beyond the range become the largest half: a bounded error where an infinity would spoil a whole row.

// Two floats as halves, the first in the low half.
DEVICE u32 pack_halves(float low, float high) {
  u32 r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
// The halves of the smaller magnitudes, with the first one's signs, where `most` has none; NaN stays.
DEVICE u32 limit_halves(u32 packed, u32 most) {
  asm("min.NaN.xorsign.abs.f16x2 %0, %0, %1;" : "+r"(packed) : "r"(most));
  return packed;
}
// Beyond the range, infinities too, the largest half.
DEVICE u32 pack_limited(float low, float high) { return limit_halves(pack_halves(low, high), 0x7bff7bffu); }
DEVICE float half_low(u32 packed) {
  float r;
  asm("{\n .reg .b16 l, h;\n mov.b32 {l, h}, %1;\n cvt.f32.f16 %0, l;\n}" : "=f"(r) : "r"(packed));
  return r;
}
DEVICE float half_high(u32 packed) {
  float r;
  asm("{\n .reg .b16 l, h;\n mov.b32 {l, h}, %1;\n cvt.f32.f16 %0, h;\n}" : "=f"(r) : "r"(packed));
  return r;
}
// What the halves lack.
DEVICE u32 pack_rest_halves(float low, float high, u32 packed) {
  return pack_halves(low - half_low(packed), high - half_high(packed));
}
// Two results of a kernel. What is not finite stays so, so that it is found in the logits.
DEVICE u32 pack_results(float low, float high) {
  u32 r = pack_halves(low, high);
  return fabsf(low) + fabsf(high) < INFINITY ? limit_halves(r, 0x7bff7bffu) : r;
}

// D += A B: 16 x 16 times 16 x 8 halves, f32 sums.
DEVICE void mma_half(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
DEVICE void mma_half(float (&d)[4], const uint4& a, u32 b0, u32 b1) { mma_half(d, a.x, a.y, a.z, a.w, b0, b1); }

// Weights are expanded times this; sums are multiplied by the inverse.
#define WEIGHT_UNIT 256.0f
#define WEIGHT_UNDO (1.0f / WEIGHT_UNIT)
