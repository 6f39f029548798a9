// Matrix times matrix for prefill on Hopper's warpgroup instructions, in place of gemm.cu's kernels.
//
// A block stays on its multiprocessor and takes tile after tile: 128 weight rows times up to WIDE inputs. Of three
// warpgroups one brings what is needed to two rings in shared memory and runs ahead into the next tile: inputs by 64
// columns, codes, scales and biases by 512, whole lines of a row at a time (32 bytes of each of 128 rows would cost the load
// unit more than the inputs do). Each of the others has 64 weight rows. Weights are the instructions'
// first operand, which may come from registers: a thread expands its own codes there, and no expanded weight is written
// to memory of any kind. A lane needs two neighbours of every eight columns, that is one byte of a word of codes.
#define HOPPER_THREADS 384
#define HOPPER_ROWS 128
#define HOPPER_INPUTS 131072                     // bytes of the inputs' ring: 4 or 8 places
#define HOPPER_PIECE 512                         // columns of a place of the weights' ring
#define HOPPER_PITCH (HOPPER_PIECE / 2)          // bytes of a row of codes; 16-byte piece p of row r at p ^ (r % 8)
#define HOPPER_GROUPS (HOPPER_PIECE / GROUP * 2) // bytes of a row's scales, and of its biases
#define HOPPER_WEIGHTS (HOPPER_ROWS * (HOPPER_PITCH + 2 * HOPPER_GROUPS))
// Barriers, then four tiles' 256 words for the end of a tile.
#define HOPPER_HEAD 5120
#define HOPPER_SHARED (HOPPER_HEAD + HOPPER_INPUTS + 2 * HOPPER_WEIGHTS)
#define MEMBER __device__ __forceinline__
struct HopperLaunch {
  // Tiles of weight rows; most blocks of pairs.
  u32 columns, capacity;
  Step step;
};

DEVICE void copy4(void* to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
// The barrier counts this thread once all its copies so far have come.
DEVICE void copies_arrive(u64* b) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(b)) : "memory");
}

// Two codes as halves: of byte t of a word the low one, then sixteen times the high one, where it is already; `scales` makes up
// for that. 1,024 + what is left of a byte is exact in a half, as is the difference to 1,024; the product with the
// scale plus the bias is rounded once.
DEVICE u32 expand(u32 word, u32 select, u32 scales, u32 bias) {
  u32 v = __byte_perm(word, 0, select);
  // v & mask | 1,024 twice, which is one instruction; of its constants one is in a register.
  asm("lop3.b32 %0, %0, %1, %2, 0xea;" : "+r"(v) : "n"(0x00f0000fu), "r"(0x64006400u));
  asm("sub.rn.f16x2 %0, %0, %1;" : "+r"(v) : "r"(0x64006400u));
  // In its place, while the instructions before it run.
  asm volatile("fma.rn.f16x2 %0, %0, %1, %2;" : "+r"(v) : "r"(scales), "r"(bias));
  return v;
}
// The first operands of the four instructions of a group. `row`: the thread's first; the other is row + 8.
DEVICE void expand_group(u32 (&a)[16], const u8* piece, u32 row, u32 t, u32 group) {
  u32 select = t | t << 8, place = (2 * group ^ row % 8) * 16;
#pragma unroll
  for (u32 h = 0; h < 2; h++) {
    const u8* codes = piece + (row + 8 * h) * HOPPER_PITCH;
    uint4 p = *(const uint4*)(codes + place), q = *(const uint4*)(codes + (place ^ 16));
    const u8* factors = piece + HOPPER_ROWS * HOPPER_PITCH + (row + 8 * h) * HOPPER_GROUPS + group * 2;
    u32 both = weight_factors(*(const u16*)factors, *(const u16*)(factors + HOPPER_ROWS * HOPPER_GROUPS));
    u32 scale = __byte_perm(both, 0, 0x1010), bias = __byte_perm(both, 0, 0x3232);
    // 1 and 1/16, exact down to scales of 5e-7.
    asm("mul.rn.f16x2 %0, %0, %1;" : "+r"(scale) : "r"(0x2c003c00u));
    a[h] = expand(p.x, select, scale, bias);
    a[2 + h] = expand(p.y, select, scale, bias);
    a[4 + h] = expand(p.z, select, scale, bias);
    a[6 + h] = expand(p.w, select, scale, bias);
    a[8 + h] = expand(q.x, select, scale, bias);
    a[10 + h] = expand(q.y, select, scale, bias);
    a[12 + h] = expand(q.z, select, scale, bias);
    a[14 + h] = expand(q.w, select, scale, bias);
  }
}

// A place in a ring, and the parity of the round.
template <u32 PLACES> struct Place {
  u32 at, round;
  MEMBER void next() {
    if (++at == PLACES) {
      at = 0;
      round ^= 1;
    }
  }
};
struct Barriers {
  u64 *full, *empty;                  // of the inputs' ring
  u64 *weights_full, *weights_empty;  // of the weights'
  MEMBER explicit Barriers(u8* shared) {
    full = (u64*)shared;
    empty = full + 8;
    weights_full = full + 16;
    weights_empty = full + 18;
  }
};
template <class J> struct Ring {
  static constexpr u32 PLACE = J::WIDE * 128, PLACES = HOPPER_INPUTS / PLACE;
};

// What brings a job's tiles: 128 threads.
template <class J> DEVICE void bring_tiles(const J& job, u8* shared) {
  constexpr u32 WIDE = J::WIDE;
  Barriers b(shared);
  u32 tid = threadIdx.x - 256, piece = tid % 8, lane_row = tid / 8, n = 0, i = blockIdx.x;
  // An empty ring counts as one that was given back.
  Place<Ring<J>::PLACES> p = {0, 1};
  Place<2> w = {0, 1};
  typename J::Tile t;
  uint4 next = job.fetch(i);
  while (job.tile(i, next, t)) {
    next = job.fetch(i += gridDim.x);
    u32 from[WIDE / 16];
#pragma unroll
    for (u32 k = 0; k < WIDE / 16; k++) from[k] = job.input(t, lane_row + 16 * k);
    WeightRow row = job.weights(t, tid);
    for (u32 s = 0; s < job.steps; s++) {
      if (s % 8 == 0) {
        u8* to = shared + HOPPER_HEAD + HOPPER_INPUTS + w.at * HOPPER_WEIGHTS;
        u64* full = b.weights_full + w.at;
        barrier_wait(b.weights_empty + w.at, w.round);
#pragma unroll 4
        for (u32 k = 0; k < 16; k++) {
          u32 r = tid / 16 + 8 * k;
          copy16(to + r * HOPPER_PITCH + (tid % 16 ^ r % 8) * 16, job.weights(t, r).codes + s * 2 + tid % 16);
        }
        to += HOPPER_ROWS * HOPPER_PITCH + tid * HOPPER_GROUPS;
        copy16(to, row.scales + s);
        copy16(to + HOPPER_ROWS * HOPPER_GROUPS, row.biases + s);
        copies_arrive(full);
        w.next();
      }
      barrier_wait(b.empty + p.at, p.round);
      u8* to = shared + HOPPER_HEAD + p.at * Ring<J>::PLACE + lane_row * 128 + (piece ^ lane_row % 8) * 16;
      const u8* x = (const u8*)job.x + s * 128 + piece * 16;
#pragma unroll
      for (u32 k = 0; k < WIDE / 16; k++)
        if (k * 16 < t.inputs) copy16(to + k * 2048, x + (u64)from[k] * 16);
      if (J::NOTES && s == 0)
        for (u32 k = tid; k < WIDE; k += 128) copy4(shared + 1024 + (n % 4 * 256 + k) * 4, job.note(t, k));
      copies_arrive(b.full + p.at);
      p.next();
    }
    n++;
  }
}

// What multiplies: 64 weight rows of a tile times N inputs. The sums that a job stores are times WEIGHT_UNIT.
template <class J>
DEVICE void multiply_tile(const J& job, const typename J::Tile& t, Place<Ring<J>::PLACES>& next, Place<2>& w, u8* shared, const u32* notes) {
  constexpr u32 WIDE = J::WIDE;
  Barriers b(shared);
  u32 lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
  float d[WIDE / 2];
  // Of a block of pairs the instructions write some only.
  if (J::PAIRS)
#pragma unroll
    for (u32 i = 0; i < WIDE / 2; i++) d[i] = 0.0f;
  u32 a[2][16];
  Place<Ring<J>::PLACES> p = next;
  u32 x_at = shared_address(shared + HOPPER_HEAD);
  const u8* piece = shared + HOPPER_HEAD + HOPPER_INPUTS + w.at * HOPPER_WEIGHTS;
  auto prepare = [&](u32 (&out)[16], u32 s) {
    if (s % 8 == 0) {
      piece = shared + HOPPER_HEAD + HOPPER_INPUTS + w.at * HOPPER_WEIGHTS;
      barrier_wait(b.weights_full + w.at, w.round);
    }
    expand_group(out, piece, row, lane % 4, s % 8);
    if (s % 8 == 7) {
      __syncwarp();
      if (lane == 0) barrier_arrive(b.weights_empty + w.at);
      w.next();
    }
    barrier_wait(b.full + next.at, next.round);
    async_fence();
  };
  auto start = [&](const u32 (&in)[16], u32 keep) {
    p = next;
    next.next();
    u64 x = tile_at(x_at + p.at * Ring<J>::PLACE, 16);
    warpgroup_enter();
    if (!J::PAIRS || t.inputs > WIDE * 3 / 4) {
#pragma unroll
      for (u32 k = 0; k < 4; k++) warpgroup_multiply(d, in + 4 * k, x + 2 * k, k ? 1 : keep);
    } else if (t.inputs <= 32) {
#pragma unroll
      for (u32 k = 0; k < 4; k++) warpgroup_multiply((float(&)[16])d, in + 4 * k, x + 2 * k, k ? 1 : keep);
    } else if (t.inputs <= 48) {
#pragma unroll
      for (u32 k = 0; k < 4; k++) warpgroup_multiply((float(&)[24])d, in + 4 * k, x + 2 * k, k ? 1 : keep);
    } else if (t.inputs <= 64) {
#pragma unroll
      for (u32 k = 0; k < 4; k++) warpgroup_multiply((float(&)[32])d, in + 4 * k, x + 2 * k, k ? 1 : keep);
    } else if (t.inputs <= 80) {
#pragma unroll
      for (u32 k = 0; k < 4; k++) warpgroup_multiply((float(&)[40])d, in + 4 * k, x + 2 * k, k ? 1 : keep);
    } else if (t.inputs <= 96) {
#pragma unroll
      for (u32 k = 0; k < 4; k++) warpgroup_multiply((float(&)[48])d, in + 4 * k, x + 2 * k, k ? 1 : keep);
    } else if (t.inputs <= 128) {
#pragma unroll
      for (u32 k = 0; k < 4; k++) warpgroup_multiply((float(&)[64])d, in + 4 * k, x + 2 * k, k ? 1 : keep);
    } else if constexpr (WIDE == 256) {
#pragma unroll
      for (u32 k = 0; k < 4; k++) warpgroup_multiply((float(&)[96])d, in + 4 * k, x + 2 * k, k ? 1 : keep);
    }
    warpgroup_commit();
  };
  auto give_back = [&] {
    warpgroup_wait<0>();
    settle(d);
    if (lane == 0) barrier_arrive(b.empty + p.at);
  };
  prepare(a[0], 0);
  for (u32 s = 0; s < job.steps; s += 2) {
    start(a[0], s);
    prepare(a[1], s + 1);
    give_back();
    start(a[1], 1);
    if (s + 2 < job.steps) prepare(a[0], s + 2);
    give_back();
  }
  job.store(t, d, row, lane % 4 * 2, notes);
}

template <class J> DEVICE void run_job(const J& job, u8* shared) {
  Barriers b(shared);
  if (threadIdx.x == 0) {
    for (u32 i = 0; i < 8; i++) {
      barrier_init(b.full + i, 128);
      barrier_init(b.empty + i, 8);
    }
    for (u32 i = 0; i < 2; i++) {
      barrier_init(b.weights_full + i, 128);
      barrier_init(b.weights_empty + i, 8);
    }
    barrier_fence();
  }
  __syncthreads();
  if (threadIdx.x >= 256) {
    registers_less<56>();
    bring_tiles(job, shared);
  } else {
    registers_more<224>();
    Place<Ring<J>::PLACES> p = {0, 0};
    Place<2> w = {0, 0};
    typename J::Tile t;
    u32 i = blockIdx.x, n = 0;
    uint4 next = job.fetch(i);
    while (job.tile(i, next, t)) {
      // On its way while this tile is multiplied.
      next = job.fetch(i += gridDim.x);
      multiply_tile(job, t, p, w, shared, (const u32*)(shared + 1024) + n++ % 4 * 256);
      asm volatile("" : "+r"(next.x), "+r"(next.y), "+r"(next.z)::"memory");
    }
  }
}

// ---- dense products

template <u32 WIDTH, bool ADD> struct Dense {
  static constexpr u32 WIDE = WIDTH;
  static constexpr bool NOTES = false, PAIRS = false;
  struct Tile {
    u32 matrix, rows, row0, offset, token0, inputs;
  };
  const GemmArgs& a;
  const void* x;
  u32 steps, tokens, across;
  MEMBER Dense(const GemmArgs& args) : a(args), x(args.x) {
    tokens = loadu(&((const Chunk*)a.chunk)->tokens);
    steps = a.shape.cols / 64;
    across = (tokens + WIDE - 1) / WIDE;
  }
  MEMBER uint4 fetch(u32) const { return make_uint4(0, 0, 0, 0); }
  MEMBER bool tile(u32 i, const uint4&, Tile& t) const {
    u32 block = i / across;
    t.token0 = i % across * WIDE;
    t.inputs = min(WIDE, tokens - t.token0);
    t.offset = 0;
    for (t.matrix = 0; t.matrix < a.shape.matrices; t.matrix++) {
      t.rows = pick(a.shape.rows, t.matrix);
      u32 blocks = (t.rows + HOPPER_ROWS - 1) / HOPPER_ROWS;
      if (block < blocks) break;
      block -= blocks;
      t.offset += t.rows;
    }
    t.row0 = block * HOPPER_ROWS;
    return t.matrix < a.shape.matrices;
  }
  // Where an input lies, in 16 bytes.
  MEMBER u32 input(const Tile& t, u32 i) const { return (t.token0 + min(i, t.inputs - 1)) * (a.shape.cols / 8); }
  MEMBER WeightRow weights(const Tile& t, u32 r) const {
    u32 m = t.matrix;
    return weight_row(m == 0 ? a.w0 : m == 1 ? a.w1 : m == 2 ? a.w2 : a.w3, m == 0 ? a.s0 : m == 1 ? a.s1 : m == 2 ? a.s2 : a.s3,
                      m == 0 ? a.b0 : m == 1 ? a.b1 : m == 2 ? a.b2 : a.b3, min(t.row0 + r, t.rows - 1), a.shape.cols);
  }
  MEMBER const void* note(const Tile&, u32) const { return 0; }
  MEMBER void store(const Tile& t, float (&d)[WIDE / 2], u32 row, u32 column, const u32*) const {
    float* y = (float*)a.y + (u64)t.token0 * a.shape.stride + t.offset + t.row0;
    if (!ADD && t.inputs == WIDE && t.row0 + HOPPER_ROWS <= t.rows) {
      // A whole tile: nothing to ask for each value.
      float *even = y + (u64)column * a.shape.stride + row, *odd = even + a.shape.stride;
#pragma unroll
      for (u32 i = 0; i < WIDE / 8; i++) {
        even[0] = d[4 * i] * WEIGHT_UNDO;
        odd[0] = d[4 * i + 1] * WEIGHT_UNDO;
        even[8] = d[4 * i + 2] * WEIGHT_UNDO;
        odd[8] = d[4 * i + 3] * WEIGHT_UNDO;
        even += 8 * a.shape.stride;
        odd += 8 * a.shape.stride;
      }
      return;
    }
#pragma unroll
    for (u32 h = 0; h < 2; h++) {
      u32 r = row + 8 * h;
      if (t.row0 + r >= t.rows) continue;
      if constexpr (ADD) {
        // What is there comes in first, sixteen values at a time: a load behind a store would wait for it.
#pragma unroll
        for (u32 block = 0; block < WIDE / 4; block += 16) {
          float old[16];
#pragma unroll
          for (u32 i = 0; i < 16; i++) {
            u32 c = (block + i) / 2 * 8 + column + i % 2;
            old[i] = c < t.inputs ? load1(y + (u64)c * a.shape.stride + r) : 0.0f;
          }
#pragma unroll
          for (u32 i = 0; i < 16; i++) {
            u32 c = (block + i) / 2 * 8 + column + i % 2;
            if (c < t.inputs) y[(u64)c * a.shape.stride + r] = old[i] + d[(block + i) / 2 * 4 + 2 * h + i % 2] * WEIGHT_UNDO;
          }
        }
      } else {
#pragma unroll
        for (u32 i = 0; i < WIDE / 4; i++) {
          u32 c = i / 2 * 8 + column + i % 2;
          if (c < t.inputs) y[(u64)c * a.shape.stride + r] = d[i / 2 * 4 + 2 * h + i % 2] * WEIGHT_UNDO;
        }
      }
    }
  }
};
#define HOPPER_GEMM(name, wide, add)                                                                           \
  extern "C" __global__ void __launch_bounds__(HOPPER_THREADS, 1)                                              \
      name(const __grid_constant__ GemmArgs a, const __grid_constant__ HopperLaunch l) {                       \
    extern __shared__ __align__(128) u8 shared[];                                                             \
    grid_enter(l.step);                                                                                        \
    Dense<wide, add> job(a);                                                                                   \
    run_job(job, shared);                                                                            \
  }
HOPPER_GEMM(hopper_gemm_128, 128, false)
HOPPER_GEMM(hopper_gemm_256, 256, false)
HOPPER_GEMM(hopper_gemm_add_128, 128, true)
HOPPER_GEMM(hopper_gemm_add_256, 256, true)

// ---- products of experts

// Blocks of at most WIDE pairs of one expert, as native_moe_blocks leaves them; behind the last, blocks of no pairs.
struct PairTile {
  u32 expert, first, inputs, column0;
};
DEVICE uint4 pair_block(const void* blocks, u32 block, u32 capacity) {
  return block < capacity ? __ldcg((const uint4*)blocks + block) : make_uint4(0, 0, 0, 0);
}
DEVICE bool pair_tile(u32 i, const uint4& b, u32 columns, u32 width, PairTile& t) {
  t.expert = b.x;
  t.first = b.y;
  t.inputs = b.z;
  t.column0 = i % columns * width;
  return b.z != 0;
}

// The half at a row of `width`: silu(gate) up factor, from sums.
DEVICE void store_gated(void* h, u64 at, float gate, float up, float factor) {
  *((u16*)h + at) = (u16)pack_results(silu(gate * WEIGHT_UNDO) * (up * WEIGHT_UNDO) * factor, 0.0f);
}

template <u32 WIDTH> struct ExpertsGateUp {
  static constexpr u32 WIDE = WIDTH;
  static constexpr bool NOTES = true, PAIRS = true;
  typedef PairTile Tile;
  const ExpertsGateUpArgs& a;
  const void* x;
  u32 steps, columns, capacity;
  MEMBER uint4 fetch(u32 i) const { return pair_block(a.blocks, i / columns, capacity); }
  MEMBER bool tile(u32 i, const uint4& b, Tile& t) const { return pair_tile(i, b, columns, 64, t); }
  MEMBER u32 pair(const Tile& t, u32 i) const { return loadu((const u32*)a.pairs + t.first + min(i, t.inputs - 1)); }
  MEMBER u32 input(const Tile& t, u32 i) const { return pair(t, i) / a.shape.chosen * (a.shape.hidden / 8); }
  MEMBER WeightRow weights(const Tile& t, u32 r) const {
    u64 row = (u64)t.expert * a.shape.width + min(joint_row(t.column0, r), a.shape.width - 1);
    return r / 8 % 2 ? weight_row(a.up_w, a.up_s, a.up_b, row, a.shape.hidden) : weight_row(a.gate_w, a.gate_s, a.gate_b, row, a.shape.hidden);
  }
  MEMBER const void* note(const Tile& t, u32 i) const { return (const float*)a.scores + pair(t, i); }
  MEMBER void store(const Tile& t, float (&d)[WIDE / 2], u32 row, u32 column, const u32* notes) const {
    u32 c = joint_row(t.column0, row);
    if (c >= a.shape.width) return;
#pragma unroll
    for (u32 i = 0; i < WIDE / 4; i++) {
      u32 m = i / 2 * 8 + column + i % 2;
      if (i / 2 * 8 >= t.inputs) break;
      if (m < t.inputs)
        store_gated(a.h, (u64)(t.first + m) * a.shape.width + c, d[i / 2 * 4 + i % 2], d[i / 2 * 4 + 2 + i % 2],
                    __uint_as_float(notes[m]));
    }
  }
};

template <u32 WIDTH> struct ExpertsDown {
  static constexpr u32 WIDE = WIDTH;
  static constexpr bool NOTES = true, PAIRS = true;
  typedef PairTile Tile;
  const ExpertsDownArgs& a;
  const void* x;
  u32 steps, columns, capacity;
  MEMBER uint4 fetch(u32 i) const { return pair_block(a.blocks, i / columns, capacity); }
  MEMBER bool tile(u32 i, const uint4& b, Tile& t) const { return pair_tile(i, b, columns, HOPPER_ROWS, t); }
  MEMBER u32 input(const Tile& t, u32 i) const { return (t.first + min(i, t.inputs - 1)) * (a.shape.width / 8); }
  MEMBER WeightRow weights(const Tile& t, u32 r) const {
    return weight_row(a.down_w, a.down_s, a.down_b, (u64)t.expert * a.shape.hidden + min(t.column0 + r, a.shape.hidden - 1), a.shape.width);
  }
  MEMBER const void* note(const Tile& t, u32 i) const { return (const u32*)a.pairs + t.first + min(i, t.inputs - 1); }
  MEMBER void store(const Tile& t, float (&d)[WIDE / 2], u32 row, u32 column, const u32* notes) const {
#pragma unroll
    for (u32 i = 0; i < WIDE / 4; i++) {
      u32 m = i / 2 * 8 + column + i % 2;
      if (i / 2 * 8 >= t.inputs) break;
      if (m >= t.inputs) continue;
      float* y = (float*)a.y + (u64)notes[m] * a.shape.hidden + t.column0 + row;
      if (t.column0 + row < a.shape.hidden) y[0] = d[i / 2 * 4 + i % 2] * WEIGHT_UNDO;
      if (t.column0 + row + 8 < a.shape.hidden) y[8] = d[i / 2 * 4 + 2 + i % 2] * WEIGHT_UNDO;
    }
  }
};

struct SharedGateUp {
  static constexpr u32 WIDE = 128;
  static constexpr bool NOTES = true, PAIRS = false;
  struct Tile {
    u32 token0, inputs, column0;
  };
  const SharedGateUpArgs& a;
  const void* x;
  u32 steps, tokens;
  MEMBER uint4 fetch(u32) const { return make_uint4(0, 0, 0, 0); }
  MEMBER bool tile(u32 i, const uint4&, Tile& t) const {
    u32 columns = a.shape.shared_width / 64;
    t.column0 = i % columns * 64;
    t.token0 = i / columns * WIDE;
    t.inputs = t.token0 < tokens ? min(WIDE, tokens - t.token0) : 0;
    return t.inputs != 0;
  }
  MEMBER u32 input(const Tile& t, u32 i) const { return (t.token0 + min(i, t.inputs - 1)) * (a.shape.hidden / 8); }
  MEMBER WeightRow weights(const Tile& t, u32 r) const {
    u64 row = joint_row(t.column0, r);
    return r / 8 % 2 ? weight_row(a.up_w, a.up_s, a.up_b, row, a.shape.hidden) : weight_row(a.gate_w, a.gate_s, a.gate_b, row, a.shape.hidden);
  }
  MEMBER const void* note(const Tile& t, u32 i) const {
    return (const float*)a.logits + (u64)(t.token0 + min(i, t.inputs - 1)) * a.shape.stride + a.shape.experts;
  }
  MEMBER void store(const Tile& t, float (&d)[WIDE / 2], u32 row, u32 column, const u32* notes) const {
    u32 c = joint_row(t.column0, row);
#pragma unroll
    for (u32 i = 0; i < WIDE / 4; i++) {
      u32 m = i / 2 * 8 + column + i % 2;
      if (m < t.inputs)
        store_gated(a.h, (u64)(t.token0 + m) * a.shape.shared_width + c, d[i / 2 * 4 + i % 2], d[i / 2 * 4 + 2 + i % 2],
                    sigmoid(__uint_as_float(notes[m])));
    }
  }
};

#define HOPPER_EXPERTS(name, Args, Job, x, cols, wide)                                                         \
  extern "C" __global__ void __launch_bounds__(HOPPER_THREADS, 1)                                              \
      name(const __grid_constant__ Args a, const __grid_constant__ HopperLaunch l) {                           \
    extern __shared__ __align__(128) u8 shared[];                                                              \
    grid_enter(l.step);                                                                                        \
    Job<wide> job = {a, a.x, a.shape.cols / 64, l.columns, l.capacity};                                        \
    run_job(job, shared);                                                                                      \
  }
HOPPER_EXPERTS(hopper_experts_gate_up_128, ExpertsGateUpArgs, ExpertsGateUp, x, hidden, 128)
HOPPER_EXPERTS(hopper_experts_gate_up_256, ExpertsGateUpArgs, ExpertsGateUp, x, hidden, 256)
HOPPER_EXPERTS(hopper_experts_down_128, ExpertsDownArgs, ExpertsDown, h, width, 128)
HOPPER_EXPERTS(hopper_experts_down_256, ExpertsDownArgs, ExpertsDown, h, width, 256)
extern "C" __global__ void __launch_bounds__(HOPPER_THREADS, 1)
    hopper_shared_gate_up(const __grid_constant__ SharedGateUpArgs a, const __grid_constant__ HopperLaunch l) {
  extern __shared__ __align__(128) u8 shared[];
  grid_enter(l.step);
  SharedGateUp job = {a, a.x, a.shape.hidden / 64, loadu(&((const Chunk*)a.chunk)->tokens)};
  run_job(job, shared);
}
