// What decode and prefill attention share: head sizes, the norm of a head, and rotary positions.
#pragma once
#include "shapes.metal.h"

constant constexpr uint HEAD_DIM = 256;      // head width
constant constexpr uint ROTARY_DIM = 64;    // values of a head that are rotated
constant constexpr uint PER_LANE = HEAD_DIM / 32;
// norm_and_rotate pairs a lane's first value with its second: value i with value i + 32.
static_assert(ROTARY_DIM == 2 * 32, "a lane must hold both values of a rotated pair");

// The angle of rotation i at a position, in half turns from -1 to 1. `rate` is the 64-bit binary fraction of turns a
// position makes (high word first): integer products wrap as turns do, so large positions lose nothing.
inline float half_turns(uint position, uint2 rate) {
  uint turns = position * rate.x + mulhi(position, rate.y);
  return float(int(turns)) * (1.0f / 2147483648.0f);
}

// RMSNorm and rotary positions (arXiv:2104.09864) of one head by a simdgroup; lane l holds values l, l + 32, ...
// Value i of the first 32 is paired with value i + 32: both are the lane's own.
inline void norm_and_rotate(thread float (&v)[PER_LANE], device const bfloat* gain, device const uint2* rates, uint position,
                            float eps, uint lane) {
  float squares = 0.0f;
  for (uint j = 0; j < PER_LANE; j++) squares += v[j] * v[j];
  float factor = precise::rsqrt(simd_sum(squares) / float(HEAD_DIM) + eps);
  for (uint j = 0; j < PER_LANE; j++) v[j] *= factor * float(gain[j * 32 + lane]);
  float angle = half_turns(position, rates[lane]) * M_PI_F;
  float c = cos(angle), s = sin(angle), a = v[0], b = v[1];
  v[0] = a * c - b * s;
  v[1] = b * c + a * s;
}
