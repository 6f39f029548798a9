// Sizes of the operations, shared by their decode and prefill kernels. They are passed as bytes with a dispatch.
#pragma once
#include "common.metal.h"

// Up to four projections of one input, their outputs side by side.
struct ProjectShape {
  uint cols;      // input width, a multiple of 64
  uint matrices;  // 1 to 4
  uint4 rows;     // output width of each matrix; they may be ragged
  uint4 bits;     // 4 or 8, for each
  uint stride;    // floats between the outputs of two tokens
  float eps;      // of the RMSNorm
};

struct AttentionShape {
  uint heads;
  uint kv_heads;
  uint capacity;  // positions a sequence's cache has room for
  uint span;      // positions of one split
  uint splits;    // splits the partial results have room for
  uint stride;    // floats between the projections of two tokens
  float eps;      // of the norms of q and k
};

constant constexpr uint GDN_DIM = 128;  // width of a key head and of a value head
constant constexpr uint GDN_TAPS = 4;   // convolution width, and places of the ring of its inputs
struct GdnShape {
  uint key_heads;
  uint value_heads;
  uint stride;  // floats between the projections of two tokens
  float eps;    // of the gated norm
};

struct MoeShape {
  uint hidden;
  uint experts;
  uint chosen;        // experts a token
  uint width;         // of a routed expert
  uint shared_width;  // of the shared expert
  uint stride;        // floats between two tokens in `routed`
  float eps;          // of the RMSNorm
};

// Which tokens of which sequence a prefill dispatch computes. In a buffer, so that one plan serves every chunk up to
// the size its grids were made for: threadgroups past the last token end at once.
struct PrefillChunk {
  uint position;  // of the first token
  uint tokens;    // at least 1
  uint slot;      // the sequence's place in the caches and states
};
