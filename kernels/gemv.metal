// Matrix times vector for decoding: activations f32, weights 4 or 8 bits, sums f32.
//
// A threadgroup stages the activations once; a simdgroup computes ROWS rows, its lanes share the columns, CHUNK at a
// time, and every activation it takes up serves all rows. Up to four matrices with one input go in one dispatch,
// their outputs side by side.
#include "shapes.metal.h"

constant constexpr uint GEMV_SIMDGROUPS = 4;

// y = W rmsnorm(x), or y += W x.
//
// Replaces: RMSNorm and up to four projections (NORM), or a projection and the residual addition (ADD).
// Grid: (sum over matrices of ceil(rows / (ROWS * GEMV_SIMDGROUPS)), tokens); threadgroup 128.
// x [tokens, cols] f32; gain [cols] bfloat; y [tokens, stride] f32; w0..b3 the matrices: an absent one is bound to
// any matrix and not read. Threadgroup memory: 128 * (cols / 32 + 1) bytes. The norm's factor does not depend on the
// column, so it is applied to the sums.
template <uint ROWS, bool NORM, bool ADD>
[[kernel, max_total_threads_per_threadgroup(GEMV_SIMDGROUPS * 32)]] void project(
    device const float4* x [[buffer(0)]], device const bfloat4* gain [[buffer(1)]], device float* y [[buffer(2)]],
    constant ProjectShape& shape [[buffer(3)]], device const uint4* w0 [[buffer(4)]],
    device const bfloat* s0 [[buffer(5)]], device const bfloat* b0 [[buffer(6)]], device const uint4* w1 [[buffer(7)]],
    device const bfloat* s1 [[buffer(8)]], device const bfloat* b1 [[buffer(9)]],
    device const uint4* w2 [[buffer(10)]], device const bfloat* s2 [[buffer(11)]],
    device const bfloat* b2 [[buffer(12)]], device const uint4* w3 [[buffer(13)]],
    device const bfloat* s3 [[buffer(14)]], device const bfloat* b3 [[buffer(15)]],
    threadgroup float4* staged [[threadgroup(0)]], uint2 tg [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]], uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float parts[GEMV_SIMDGROUPS];
  // Which matrix this threadgroup works on, and its first row there.
  uint m = 0, block = tg.x, offset = 0;
  while (m + 1 < shape.matrices) {
    uint blocks = (shape.rows[m] + ROWS * GEMV_SIMDGROUPS - 1) / (ROWS * GEMV_SIMDGROUPS);
    if (block < blocks) break;
    block -= blocks;
    offset += shape.rows[m];
    m++;
  }
  device const uint4* w = m == 0 ? w0 : m == 1 ? w1 : m == 2 ? w2 : w3;
  device const bfloat* scales = m == 0 ? s0 : m == 1 ? s1 : m == 2 ? s2 : s3;
  device const bfloat* biases = m == 0 ? b0 : m == 1 ? b1 : m == 2 ? b2 : b3;
  uint rows = shape.rows[m], row0 = (block * GEMV_SIMDGROUPS + sg) * ROWS;
  bool wide = shape.bits[m] == 8;
  uint chunks = shape.cols / CHUNK, pitch = pitch_of(chunks);
  device const float4* xt = x + tg.y * (shape.cols / 4);

  float4 forth = wide ? float4(1.0f) : narrow(), back = wide ? float4(1.0f) : narrow_back();
  float squares = 0.0f;
  for (uint i = tid; i < shape.cols / 4; i += GEMV_SIMDGROUPS * 32) {
    float4 v = xt[i];
    if (NORM) {
      squares += dot(v, v);
      v *= float4(gain[i]);
    }
    stage(staged, pitch, i, v * forth);
  }
  squares = simd_sum(squares);
  if (lane == 0) parts[sg] = squares;
  threadgroup_barrier(mem_flags::mem_threadgroup);

  float sums[ROWS];
  for (uint r = 0; r < ROWS; r++) sums[r] = 0.0f;
  for (uint i = lane; i < chunks; i += 32) {
    Chunk c = load_chunk(staged, pitch, i, back);
    // Rows past the end repeat the last one and are not stored.
    uint groups = shape.cols / GROUP, g = i / (GROUP / CHUNK);
    if (wide) {
      for (uint r = 0; r < ROWS; r++) {
        uint row = min(row0 + r, rows - 1);
        sums[r] += dot8(w[(row * chunks + i) * 2], w[(row * chunks + i) * 2 + 1], float(scales[row * groups + g]),
                        float(biases[row * groups + g]), c);
      }
    } else {
      // All rows' loads are on their way before the first is needed.
      uint4 q[ROWS];
      float scale[ROWS], bias[ROWS];
      for (uint r = 0; r < ROWS; r++) {
        uint row = min(row0 + r, rows - 1);
        q[r] = w[row * chunks + i];
        scale[r] = float(scales[row * groups + g]);
        bias[r] = float(biases[row * groups + g]);
      }
      for (uint r = 0; r < ROWS; r++) sums[r] += dot4(q[r], scale[r], bias[r], c);
    }
  }
  float factor = 1.0f;
  if (NORM) {
    float total = 0.0f;
    for (uint i = 0; i < GEMV_SIMDGROUPS; i++) total += parts[i];
    factor = precise::rsqrt(total / float(shape.cols) + shape.eps);
  }
  for (uint r = 0; r < ROWS; r++) {
    float v = simd_sum(sums[r]) * factor;
    if (lane == 0 && row0 + r < rows) {
      uint at = tg.y * shape.stride + offset + row0 + r;
      y[at] = ADD ? y[at] + v : v;
    }
  }
}
#define PROJECT(name, rows, norm, add) \
  template [[host_name("project_" name #rows)]] [[kernel]] decltype(project<rows, norm, add>) project<rows, norm, add>;
PROJECT("norm_", 1, true, false)
PROJECT("norm_", 2, true, false)
PROJECT("norm_", 4, true, false)
PROJECT("norm_", 8, true, false)
PROJECT("add_", 1, false, true)
PROJECT("add_", 2, false, true)
PROJECT("add_", 4, false, true)
PROJECT("add_", 8, false, true)

struct EmbedShape {
  uint cols;  // a multiple of 64
  uint rows;  // of the table
};

// y = row `ids[token]` of the embedding, dequantised. The ids are the token slots that the sampler writes: where all
// logits are NaN it writes an id behind the last (UINT_MAX), which reads the last row here. The host finds the NaN.
// Grid: (ceil(cols / (32 * 32)), tokens); threadgroup 32: a lane writes 32 columns.
kernel void embed(device const uint* ids [[buffer(0)]], device const uint4* w [[buffer(1)]],
                  device const bfloat* scales [[buffer(2)]], device const bfloat* biases [[buffer(3)]],
                  device float4* y [[buffer(4)]], constant EmbedShape& shape [[buffer(5)]],
                  uint2 tg [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]]) {
  uint i = tg.x * 32 + lane, chunks = shape.cols / CHUNK;
  if (i >= chunks) return;
  uint row = min(ids[tg.y], shape.rows - 1), g = row * (shape.cols / GROUP) + i / (GROUP / CHUNK);
  uint4 q = w[row * chunks + i];
  float scale = float(scales[g]), bias = float(biases[g]);
  for (uint j = 0; j < 8; j++) {
    uint word = q[j / 2] >> (16 * (j % 2));
    float4 codes = float4(code(word & 15u), code(word >> 4 & 15u), code(word >> 8 & 15u), code(word >> 12 & 15u));
    y[tg.y * (shape.cols / 4) + i * 8 + j] = codes * scale + bias;
  }
}
