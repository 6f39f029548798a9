// A tile of Y = X W^T on simdgroup matrices, W dequantised on its way into threadgroup memory.
//
// A threadgroup of four simdgroups, two by two, computes ROWS inputs times TILE_COLS weight rows, TILE_DEPTH columns
// at a time: a thread loads its part of the next step's inputs and weights while the simdgroups multiply this step's.
// T is what the matrix unit takes, float or half; sums are f32. Weights are rounded to T, so expanded weights exist in
// 5 KB (half) or 10 KB (float) of threadgroup memory only.
#pragma once
#include "shapes.metal.h"

constant constexpr uint TILE_SIMDGROUPS = 4;
constant constexpr uint TILE_THREADS = TILE_SIMDGROUPS * 32;
constant constexpr uint TILE_COLS = 64;
constant constexpr uint TILE_DEPTH = CHUNK;
// Elements between two rows in threadgroup memory: not a multiple of 64 bytes, so that a column's elements lie in
// different banks, and a multiple of 16 bytes.
constant constexpr uint TILE_PITCH = TILE_DEPTH + 8;
// Results leave through threadgroup memory, 8 rows of 32 at a time and simdgroup: in the weights' tile, which nobody
// needs any more then.
constant constexpr uint RESULT_PITCH = 36;
constant constexpr uint RESULT_FLOATS = TILE_SIMDGROUPS * 8 * RESULT_PITCH;

typedef simdgroup_matrix<float, 8, 8> Sums;

// What weights are multiplied by on their way into a tile, and divided by behind the sums. Halves have 11 bits from 6e-5 to
// 65,504; times 2^8 that is weights from 2.4e-7 to 255, which a trained matrix lies within, and powers of two round nothing.
template <typename T> inline float weight_unit() { return sizeof(T) == sizeof(half) ? 256.0f : 1.0f; }

// A simdgroup's place for 8 rows of 32 results. Behind a barrier that ends the last use of the tile.
template <typename T>
inline threadgroup float* results_of(threadgroup vec<T, 4>* weight_tile, uint sg) {
  static_assert(TILE_COLS * TILE_PITCH * sizeof(T) >= RESULT_FLOATS * sizeof(float), "the results need the tile's room");
  return (threadgroup float*)weight_tile + sg * 8 * RESULT_PITCH;
}

// Of up to four matrices side by side in a grid, TILE_COLS rows a threadgroup: the one that a threadgroup works on, its first
// row there, and the place of the matrix's row 0 in an output row.
struct TilePlace {
  uint matrix;
  uint row0;
  uint offset;
};
inline TilePlace tile_place(constant ProjectShape& shape, uint block) {
  TilePlace p = {0u, 0u, 0u};
  while (p.matrix + 1 < shape.matrices) {
    uint blocks = (shape.rows[p.matrix] + TILE_COLS - 1) / TILE_COLS;
    if (block < blocks) break;
    block -= blocks;
    p.offset += shape.rows[p.matrix];
    p.matrix++;
  }
  p.row0 = block * TILE_COLS;
  return p;
}

// A quantised matrix [rows, cols], and where it begins in its tensor: a stack of experts has many.
struct TileMatrix {
  device const uint4* w;
  device const bfloat* scales;
  device const bfloat* biases;
  uint first;
};

// Pairs of token and expert in a block of moe_blocks, and rows of the experts' tiles.
constant constexpr uint EXPERT_ROWS = 32;

// A thread's 16 weights of a step.
struct TileWeights {
  uint4 codes;
  float scale;
  float bias;
};
inline TileWeights fetch_weights(device const uint4* w, device const bfloat* scales, device const bfloat* biases,
                                 uint row, uint cols, uint column, bool wide) {
  uint at = row * cols + column;
  TileWeights t;
  t.scale = float(scales[at / GROUP]);
  t.bias = float(biases[at / GROUP]);
  if (wide) {
    t.codes = w[at / 16];
  } else {
    uint2 codes = ((device const uint2*)w)[at / 16];
    t.codes = uint4(codes.x, codes.y, 0u, 0u);
  }
  return t;
}
template <typename T>
inline void put_weights(threadgroup T* tile, uint row, uint column, thread const TileWeights& t, bool wide) {
  threadgroup vec<T, 4>* to = (threadgroup vec<T, 4>*)(tile + row * TILE_PITCH + column);
  for (uint j = 0; j < 4; j++) {
    uint word = wide ? t.codes[j] : t.codes[j / 2] >> (16 * (j % 2));
    float4 q = wide ? codes8(word)
                    : float4(code(word & 15u), code(word >> 4 & 15u), code(word >> 8 & 15u), code(word >> 12 & 15u));
    to[j] = vec<T, 4>(fit4<T>((q * t.scale + t.bias) * weight_unit<T>()));
  }
}

// A thread's inputs of a step: ROWS / 4 of one row.
template <typename T, uint ROWS> struct TileInputs {
  vec<T, 4> v[ROWS / 16];
};
// The row of the tile, and the column of the step, where a thread's inputs stand.
template <uint ROWS> inline uint input_row(uint tid) { return tid / (TILE_THREADS / ROWS); }
template <uint ROWS> inline uint input_column(uint tid) { return tid % (TILE_THREADS / ROWS) * (ROWS / 4); }
template <typename T, uint ROWS> inline TileInputs<T, ROWS> fetch_inputs(device const T* x, uint row, uint cols, uint column) {
  device const vec<T, 4>* from = (device const vec<T, 4>*)(x + row * cols + column);
  TileInputs<T, ROWS> t;
  for (uint j = 0; j < ROWS / 16; j++) t.v[j] = from[j];
  return t;
}
template <typename T, uint ROWS> inline void put_inputs(threadgroup T* tile, uint tid, thread const TileInputs<T, ROWS>& t) {
  threadgroup vec<T, 4>* to = (threadgroup vec<T, 4>*)(tile + input_row<ROWS>(tid) * TILE_PITCH + input_column<ROWS>(tid));
  for (uint j = 0; j < ROWS / 16; j++) to[j] = t.v[j];
}

template <uint FM> inline void clear_sums(thread Sums (&sums)[FM][4]) {
  for (uint i = 0; i < FM; i++)
    for (uint j = 0; j < 4; j++) sums[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
}

// Adds a step to the simdgroup's part of the tile: rows from (sg / 2) 8 FM on, weight rows from (sg % 2) 32 on.
template <typename T, uint FM>
inline void multiply_step(threadgroup const T* inputs, threadgroup const T* weights, thread Sums (&sums)[FM][4], uint sg) {
  threadgroup const T* a = inputs + sg / 2 * (8 * FM) * TILE_PITCH;
  threadgroup const T* b = weights + sg % 2 * 32 * TILE_PITCH;
  for (uint k = 0; k < TILE_DEPTH; k += 8) {
    simdgroup_matrix<T, 8, 8> ma[FM], mb[4];
    for (uint i = 0; i < FM; i++) simdgroup_load(ma[i], a + 8 * i * TILE_PITCH + k, TILE_PITCH);
    for (uint j = 0; j < 4; j++) simdgroup_load(mb[j], b + 8 * j * TILE_PITCH + k, TILE_PITCH, ulong2(0, 0), true);
    for (uint i = 0; i < FM; i++)
      for (uint j = 0; j < 4; j++) simdgroup_multiply_accumulate(sums[i][j], ma[i], mb[j], sums[i][j]);
  }
}
