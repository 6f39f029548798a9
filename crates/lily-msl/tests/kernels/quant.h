#pragma once
#define GROUP 64
struct GemvShape {
  uint n;
  uint k;
};
// 32 4-bit codes times 32 activations: scale * sum(q x) + bias * sum(x).
inline float dot32(uint4 q, device const float* x, float scale, float bias) {
  float d = 0.0f, s = 0.0f;
  for (int c = 0; c < 4; c++)
    for (int k = 0; k < 8; k++) {
      float v = x[8 * c + k];
      d += float((q[c] >> (4 * k)) & 15u) * v;
      s += v;
    }
  return scale * d + bias * s;
}
