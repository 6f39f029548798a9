// Matrix times matrix for prefill on Hopper's warpgroup instructions, in place of gemm.cu's kernels, and as exact as f32
// products: inputs are two halves a value (split.cu), weights are exact.
//
// A weight is scale * code + bias = scale * (code - 8) + (bias + 8 scale). The first part has 8 + 3 bits, which is what a
// half has; the second is one number for 64 columns and meets the sum of their inputs. So every 64 columns the same weights
// are multiplied with the inputs' hi and lo, and every 512 columns the second parts of eight groups (two halves each) with
// the sums (two halves each). Ranges, with weights times WEIGHT_UNIT: scales of 5e-7 to 32 are exact, beyond that they
// become 32; second parts are limited to 511; inputs have any range (split.cu).
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
#define HOPPER_PIECE SPLIT_COLUMNS               // columns of a place of the weights' ring
#define HOPPER_STEPS (SPLIT_PLACES + 1)          // places of the inputs' ring in the meantime: hi, lo of eight groups, sums
#define HOPPER_PITCH (HOPPER_PIECE / 2)          // bytes of a row of codes; 16-byte piece p of row r at p ^ (r % 8)
#define HOPPER_GROUPS (HOPPER_PIECE / GROUP * 2) // bytes of a row's scales, and of its biases
#define HOPPER_WEIGHTS (HOPPER_ROWS * (HOPPER_PITCH + 2 * HOPPER_GROUPS))
// Barriers, then what the end of a tile needs, for four tiles: a job's words and the inputs' factors, 256 each.
#define HOPPER_NOTES 1024
#define HOPPER_HEAD (HOPPER_NOTES + 4 * 2 * 1024)
#define HOPPER_SHARED (HOPPER_HEAD + HOPPER_INPUTS + 2 * HOPPER_WEIGHTS)
#define MEMBER __device__ __forceinline__
struct HopperLaunch {
  // Tiles of weight rows; most blocks of pairs.
  u32 columns, capacity;
  // The inputs, as hopper_split_rows leaves them.
  const void* split;
  const void* sums;
  Step step;
};

DEVICE void copy4(void* to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
// The barrier counts this thread once all its copies so far have come.
DEVICE void copies_arrive(u64* b) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(b)) : "memory");
}

// Two codes less 8 times a scale, as halves: of byte t of a word the low one, then the high one, which is left where it is,
// sixteen times as large; `scales` makes up for that. 1,024 + what is left of a byte is exact in a half, and so is all that
// follows.
DEVICE u32 expand(u32 word, u32 select, u32 scales) {
  u32 v = __byte_perm(word, 0, select);
  // v & mask | 1,024 twice, which is one instruction; of its constants one is in a register.
  asm("lop3.b32 %0, %0, %1, %2, 0xea;" : "+r"(v) : "n"(0x00f0000fu), "r"(0x64006400u));
  // Less 1,024 + 8 and 1,024 + 8 * 16.
  asm("sub.rn.f16x2 %0, %0, %1;" : "+r"(v) : "r"(0x64806408u));
  // In its place, while the instructions before it run.
  asm volatile("mul.rn.f16x2 %0, %0, %1;" : "+r"(v) : "r"(scales));
  return v;
}
// A thread's rows in a place of the weights' ring: codes, then the scales of all rows, then the biases.
DEVICE const u8* factors_at(const u8* piece, u32 row) { return piece + HOPPER_ROWS * HOPPER_PITCH + row * HOPPER_GROUPS; }
// The first operands of the four instructions of a group. `row`: the thread's first; the other is row + 8.
DEVICE void expand_group(u32 (&a)[16], const u8* piece, u32 row, u32 t, u32 group) {
  u32 select = t | t << 8, place = (2 * group ^ row % 8) * 16;
#pragma unroll
  for (u32 h = 0; h < 2; h++) {
    const u8* codes = piece + (row + 8 * h) * HOPPER_PITCH;
    uint4 p = *(const uint4*)(codes + place), q = *(const uint4*)(codes + (place ^ 16));
    float scale = bfloat(*(const u16*)(factors_at(piece, row + 8 * h) + group * 2));
    // And a 16th. Eight of them are no more than the largest half: 8 * 8,188 = 65,504.
    u32 scales = limit_halves(pack_halves(scale * WEIGHT_UNIT, scale * (WEIGHT_UNIT / 16)), 0x5fff6fffu);
    a[h] = expand(p.x, select, scales);
    a[2 + h] = expand(p.y, select, scales);
    a[4 + h] = expand(p.z, select, scales);
    a[6 + h] = expand(p.w, select, scales);
    a[8 + h] = expand(q.x, select, scales);
    a[10 + h] = expand(q.y, select, scales);
    a[12 + h] = expand(q.z, select, scales);
    a[14 + h] = expand(q.w, select, scales);
  }
}
// What meets the sums: bias + 8 scale of groups 2 t and 2 t + 1 of the thread's rows, as two halves each. The instructions'
// second operand has hi of the eight sums in columns 0 to 7 and lo in columns 8 to 15, so the first operands are hi, hi
// (hi[0], hi[1], hi[0], hi[1]) and lo, nothing.
struct Offsets {
  u32 hi[2], lo[2];
};
DEVICE void load_offsets(Offsets& o, const u8* piece, u32 row, u32 t) {
#pragma unroll
  for (u32 h = 0; h < 2; h++) {
    const u8* at = factors_at(piece, row + 8 * h) + 4 * t;
    u32 scales = *(const u32*)at, biases = *(const u32*)(at + HOPPER_ROWS * HOPPER_GROUPS);
    float a = fmaf(bfloat_low(scales), 8 * WEIGHT_UNIT, bfloat_low(biases) * WEIGHT_UNIT);
    float b = fmaf(bfloat_high(scales), 8 * WEIGHT_UNIT, bfloat_high(biases) * WEIGHT_UNIT);
    o.hi[h] = pack_limited(a, b);
    o.lo[h] = limit_halves(pack_rest_halves(a, b, o.hi[h]), 0x7bff7bffu);
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
// A tile's words and factors, of the n-th tile that a block takes.
DEVICE u32* notes_at(u8* shared, u32 n) { return (u32*)(shared + HOPPER_NOTES) + n % 4 * 512; }

// Starts copies of 512 columns of a tile's weights, of its words too if they are the first; 128 threads.
template <class J>
DEVICE void bring_weights(const J& job, const typename J::Tile& t, u32 piece, Place<2>& w, u32 n, u8* shared) {
  Barriers b(shared);
  u32 tid = threadIdx.x - 256;
  u8* to = shared + HOPPER_HEAD + HOPPER_INPUTS + w.at * HOPPER_WEIGHTS;
  barrier_wait(b.weights_empty + w.at, w.round);
#pragma unroll 4
  for (u32 k = 0; k < 16; k++) {
    u32 r = tid / 16 + 8 * k;
    copy16(to + r * HOPPER_PITCH + (tid % 16 ^ r % 8) * 16, job.weights(t, r).codes + piece * 16 + tid % 16);
  }
  WeightRow row = job.weights(t, tid);
  to += HOPPER_ROWS * HOPPER_PITCH + tid * HOPPER_GROUPS;
  copy16(to, row.scales + piece * 8);
  copy16(to + HOPPER_ROWS * HOPPER_GROUPS, row.biases + piece * 8);
  if (piece == 0)
    for (u32 k = tid; k < J::WIDE; k += 128) {
      u32* words = notes_at(shared, n) + k;
      if (J::NOTES) copy4(words, job.note(t, k));
      if constexpr (J::PAIRS) {
        u32 row = job.input(t, k);
        copy4(words + 256, (const u8*)job.sums + (u64)(row / SPLIT_ROWS) * job.pieces * (2 * SPLIT_SUMS) + SPLIT_SUMS + row % SPLIT_ROWS * 4);
      }
    }
  copies_arrive(b.weights_full + w.at);
  w.next();
}

// What brings a job's tiles: 128 threads. Inputs side by side (rows token0, a multiple of 128, and on) come by one thread's
// bulk copies, those of pairs by copies of 16 bytes.
template <class J> DEVICE void bring_tiles(const J& job, u8* shared) {
  constexpr u32 WIDE = J::WIDE;
  Barriers b(shared);
  u32 tid = threadIdx.x - 256, part = tid % 8, lane_row = tid / 8, n = 0, i = blockIdx.x;
  // An empty ring counts as one that was given back.
  Place<Ring<J>::PLACES> p = {0, 1};
  Place<2> w = {0, 1};
  typename J::Tile t, after;
  uint4 next = job.fetch(i);
  if (!job.tile(i, next, t)) return;
  next = job.fetch(i += gridDim.x);
  bring_weights(job, t, 0, w, n, shared);
  for (bool more = true; more; t = after) {
    u32 from[WIDE / 16];
    if constexpr (J::PAIRS) {
      // Where an input's first values lie, in 16 bytes: they are swizzled, by their place among 128 rows there and
      // by their place in the tile here.
#pragma unroll
      for (u32 k = 0; k < WIDE / 16; k++) {
        u32 row = job.input(t, lane_row + 16 * k);
        from[k] = row / SPLIT_ROWS * job.pieces * (SPLIT_PLACES * SPLIT_PLACE / 16) + row % SPLIT_ROWS * 8 + (part ^ row % 8);
      }
    }
    for (u32 piece = 0; piece < job.pieces; piece++) {
      for (u32 s = 0; s < HOPPER_STEPS; s++) {
        // The next weights, well before they are needed and when those before the last have been given back.
        if (s == 4) {
          bool last = piece + 1 == job.pieces;
          after = t;
          if (last) {
            more = job.tile(i, next, after);
            next = job.fetch(i += gridDim.x);
          }
          if (more) bring_weights(job, after, last ? 0 : piece + 1, w, n + last, shared);
        }
        u8* place = shared + HOPPER_HEAD + p.at * Ring<J>::PLACE;
        if constexpr (J::PAIRS) {
          barrier_wait(b.empty + p.at, p.round);
          if (s < SPLIT_PLACES) {
            u8* to = place + lane_row * 128 + (part ^ lane_row % 8) * 16;
            const u8* x = (const u8*)job.split + (u64)(piece * SPLIT_PLACES + s) * SPLIT_PLACE;
#pragma unroll
            for (u32 k = 0; k < WIDE / 16; k++)
              if (k * 16 < t.inputs) copy16(to + k * 2048, x + (u64)from[k] * 16);
          } else if (part < 2) {
            u8* to = place + lane_row * 32 + (part ^ lane_row / 4 % 2) * 16;
#pragma unroll
            for (u32 k = 0; k < WIDE / 16; k++)
              if (k * 16 < t.inputs) {
                // A block of sums is a 32nd of one of values. Computed here: there are no registers for all of them.
                u32 f = from[k];
                asm volatile("" : "+r"(f));
                u32 r = f / 8 % SPLIT_ROWS, at = (f - r * 8 - f % 8) / 2 + r * 32 + (part ^ r / 4 % 2) * 16;
                copy16(to + k * 512, (const u8*)job.sums + piece * (2 * SPLIT_SUMS) + at);
              }
          }
          copies_arrive(b.full + p.at);
        } else if (tid == 0) {
          barrier_wait(b.empty + p.at, p.round);
          u64* full = b.full + p.at;
          // Whole eights of rows, in one or two blocks.
          u32 rows = t.inputs + 7 & ~7u, first = min(rows, SPLIT_ROWS), second = rows - first;
          u32 row_bytes = s < SPLIT_PLACES ? 128 : 32;
          bool start = piece == 0 && s == 0;
          u64 block = (u64)(t.token0 / SPLIT_ROWS) * job.pieces;
          const u8* sums = (const u8*)job.sums + (block + piece) * (2 * SPLIT_SUMS);
          const u8* x = s < SPLIT_PLACES ? (const u8*)job.split + ((block + piece) * SPLIT_PLACES + s) * SPLIT_PLACE : sums;
          u64 block_bytes = (u64)job.pieces * (s < SPLIT_PLACES ? SPLIT_PLACES * SPLIT_PLACE : 2 * SPLIT_SUMS);
          barrier_expect(full, rows * (row_bytes + (start ? 4 : 0)));
          bulk_load(place, x, first * row_bytes, full);
          if (second) bulk_load(place + SPLIT_ROWS * row_bytes, x + block_bytes, second * row_bytes, full);
          if (start) {
            u32* factors = notes_at(shared, n) + 256;
            bulk_load(factors, sums + SPLIT_SUMS, first * 4, full);
            if (second) bulk_load(factors + SPLIT_ROWS, sums + job.pieces * (2 * SPLIT_SUMS) + SPLIT_SUMS, second * 4, full);
          }
        }
        p.next();
      }
    }
    n++;
  }
}

// Calls what multiplies with as many sums as the inputs need: one loop for all numbers of inputs, whose registers are the same.
template <class J, class F> DEVICE void with_sums(float (&d)[J::WIDE / 2], u32 inputs, const F& f) {
  if (!J::PAIRS || inputs > J::WIDE * 3 / 4)
    f(d);
  else if (inputs <= 32)
    f((float(&)[16])d);
  else if (inputs <= 48)
    f((float(&)[24])d);
  else if (inputs <= 64)
    f((float(&)[32])d);
  else if (inputs <= 80)
    f((float(&)[40])d);
  else if (inputs <= 96)
    f((float(&)[48])d);
  else if (inputs <= 128)
    f((float(&)[64])d);
  else if constexpr (J::WIDE == 256)
    f((float(&)[96])d);
}

// What multiplies: 64 weight rows of a tile times its inputs. The sums that a job stores are to be multiplied by the inputs'
// factors.
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
  Offsets offsets;
  u32 x_at = shared_address(shared + HOPPER_HEAD);
  const u8* piece = shared;
  // The operands of a group.
  auto prepare = [&](u32 (&out)[16], u32 group) {
    if (group % 8 == 0) {
      piece = shared + HOPPER_HEAD + HOPPER_INPUTS + w.at * HOPPER_WEIGHTS;
      barrier_wait(b.weights_full + w.at, w.round);
    }
    expand_group(out, piece, row, lane % 4, group % 8);
    if (group % 8 == 7) {
      load_offsets(offsets, piece, row, lane % 4);
      __syncwarp();
      if (lane == 0) barrier_arrive(b.weights_empty + w.at);
      w.next();
    }
  };
  // The next place, once it is full.
  auto enter = [&] {
    Place<Ring<J>::PLACES> p = next;
    barrier_wait(b.full + p.at, p.round);
    if (J::PAIRS) async_fence();
    next.next();
    return p.at;
  };
  auto give_back = [&](u32 at) {
    if (lane == 0) barrier_arrive(b.empty + at);
  };
  // A group's operands with the two places of its inputs; `other` gets the next group's operands in the meantime.
  auto multiply = [&](const u32 (&in)[16], u32 keep, u32 (&other)[16], u32 following) {
    u32 first = enter(), second = enter();
    u64 hi = tile_at(x_at + first * Ring<J>::PLACE, 16), lo = tile_at(x_at + second * Ring<J>::PLACE, 16);
    warpgroup_enter();
    with_sums<J>(d, t.inputs, [&](auto& sums) {
#pragma unroll
      for (u32 k = 0; k < 4; k++) warpgroup_multiply(sums, in + 4 * k, hi + 2 * k, k ? 1 : keep);
      warpgroup_commit();
#pragma unroll
      for (u32 k = 0; k < 4; k++) warpgroup_multiply(sums, in + 4 * k, lo + 2 * k, 1);
      warpgroup_commit();
    });
    if (following < job.pieces * 8) prepare(other, following);
    warpgroup_wait<1>();
    give_back(first);
    warpgroup_wait<0>();
    settle(d);
    give_back(second);
  };
  auto multiply_offsets = [&] {
    u32 at = enter();
    u64 x = narrow_tile_at(x_at + at * Ring<J>::PLACE);
    u32 first[4] = {offsets.hi[0], offsets.hi[1], offsets.hi[0], offsets.hi[1]}, second[4] = {offsets.lo[0], offsets.lo[1], 0, 0};
    warpgroup_enter();
    // For all inputs: with a choice of their number here, the compiler runs out of registers.
    warpgroup_multiply(d, first, x, 1);
    warpgroup_multiply(d, second, x, 1);
    warpgroup_commit();
    warpgroup_wait<0>();
    settle(d);
    give_back(at);
  };
  prepare(a[0], 0);
  for (u32 g = 0; g < job.pieces * 8; g += 2) {
    multiply(a[0], g, a[1], g + 1);
    multiply(a[1], 1, a[0], g + 2);
    if (g % 8 == 6) multiply_offsets();
  }
  job.store(t, d, row, lane % 4 * 2, notes, (const float*)notes + 256);
}

template <class J> DEVICE void run_job(const J& job, u8* shared) {
  Barriers b(shared);
  if (threadIdx.x == 0) {
    for (u32 i = 0; i < 8; i++) {
      barrier_init(b.full + i, J::PAIRS ? 128 : 1);
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
    // The split inputs come from another kernel's stores, and the copy engine reads them.
    if (!J::PAIRS) asm volatile("fence.proxy.async.global;" ::: "memory");
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
      multiply_tile(job, t, p, w, shared, notes_at(shared, n++));
      asm volatile("" : "+r"(next.x), "+r"(next.y), "+r"(next.z)::"memory");
    }
  }
}

// ---- dense products

template <u32 WIDTH, bool ADD> struct Dense {
  static constexpr u32 WIDE = WIDTH;
  static constexpr bool NOTES = false, PAIRS = false;
  // Tiles of inputs that are multiplied with all weights before the next ones: so many that they stay in the second-level cache.
  static constexpr u32 NEAR = 2048 / WIDE;
  struct Tile {
    u32 matrix, rows, row0, offset, token0, inputs;
  };
  const GemmArgs& a;
  const void *split, *sums;
  u32 pieces, tokens, across, blocks;
  MEMBER Dense(const GemmArgs& args, const HopperLaunch& l) : a(args), split(l.split), sums(l.sums) {
    tokens = loadu(&((const Chunk*)a.chunk)->tokens);
    pieces = a.shape.cols / HOPPER_PIECE;
    across = (tokens + WIDE - 1) / WIDE;
    blocks = 0;
    for (u32 m = 0; m < a.shape.matrices; m++) blocks += (pick(a.shape.rows, m) + HOPPER_ROWS - 1) / HOPPER_ROWS;
  }
  MEMBER uint4 fetch(u32) const { return make_uint4(0, 0, 0, 0); }
  MEMBER bool tile(u32 i, const uint4&, Tile& t) const {
    u32 first = i / (blocks * NEAR) * NEAR, width = min(NEAR, across - first);
    if (first >= across) return false;
    i -= first * blocks;
    u32 block = i / width;
    t.token0 = (first + i % width) * WIDE;
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
  MEMBER WeightRow weights(const Tile& t, u32 r) const {
    u32 m = t.matrix;
    return weight_row(m == 0 ? a.w0 : m == 1 ? a.w1 : m == 2 ? a.w2 : a.w3, m == 0 ? a.s0 : m == 1 ? a.s1 : m == 2 ? a.s2 : a.s3,
                      m == 0 ? a.b0 : m == 1 ? a.b1 : m == 2 ? a.b2 : a.b3, min(t.row0 + r, t.rows - 1), a.shape.cols);
  }
  MEMBER const void* note(const Tile&, u32) const { return 0; }
  MEMBER void store(const Tile& t, float (&d)[WIDE / 2], u32 row, u32 column, const u32*, const float* factors) const {
    float* y = (float*)a.y + (u64)t.token0 * a.shape.stride + t.offset + t.row0;
    if (!ADD && t.inputs == WIDE && t.row0 + HOPPER_ROWS <= t.rows) {
      // A whole tile: nothing to ask for each value.
      float *even = y + (u64)column * a.shape.stride + row, *odd = even + a.shape.stride;
#pragma unroll
      for (u32 i = 0; i < WIDE / 8; i++) {
        float2 f = *(const float2*)(factors + 8 * i + column);
        even[0] = d[4 * i] * f.x;
        odd[0] = d[4 * i + 1] * f.y;
        even[8] = d[4 * i + 2] * f.x;
        odd[8] = d[4 * i + 3] * f.y;
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
            if (c < t.inputs) y[(u64)c * a.shape.stride + r] = old[i] + d[(block + i) / 2 * 4 + 2 * h + i % 2] * factors[c];
          }
        }
      } else {
#pragma unroll
        for (u32 i = 0; i < WIDE / 4; i++) {
          u32 c = i / 2 * 8 + column + i % 2;
          if (c < t.inputs) y[(u64)c * a.shape.stride + r] = d[i / 2 * 4 + 2 * h + i % 2] * factors[c];
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
    Dense<wide, add> job(a, l);                                                                                \
    run_job(job, shared);                                                                                      \
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

// silu(gate) up score, from sums and the input's factor.
DEVICE void store_gated(void* h, u64 at, float gate, float up, float factor, float score) {
  ((float*)h)[at] = silu(gate * factor) * (up * factor) * score;
}

template <u32 WIDTH> struct ExpertsGateUp {
  static constexpr u32 WIDE = WIDTH;
  static constexpr bool NOTES = true, PAIRS = true;
  typedef PairTile Tile;
  const ExpertsGateUpArgs& a;
  const void *split, *sums;
  u32 pieces, columns, capacity;
  MEMBER uint4 fetch(u32 i) const { return pair_block(a.blocks, i / columns, capacity); }
  MEMBER bool tile(u32 i, const uint4& b, Tile& t) const { return pair_tile(i, b, columns, 64, t); }
  MEMBER u32 pair(const Tile& t, u32 i) const { return loadu((const u32*)a.pairs + t.first + min(i, t.inputs - 1)); }
  // The row of an input.
  MEMBER u32 input(const Tile& t, u32 i) const { return pair(t, i) / a.shape.chosen; }
  MEMBER WeightRow weights(const Tile& t, u32 r) const {
    u64 row = (u64)t.expert * a.shape.width + min(joint_row(t.column0, r), a.shape.width - 1);
    return r / 8 % 2 ? weight_row(a.up_w, a.up_s, a.up_b, row, a.shape.hidden) : weight_row(a.gate_w, a.gate_s, a.gate_b, row, a.shape.hidden);
  }
  MEMBER const void* note(const Tile& t, u32 i) const { return (const float*)a.scores + pair(t, i); }
  MEMBER void store(const Tile& t, float (&d)[WIDE / 2], u32 row, u32 column, const u32* notes, const float* factors) const {
    u32 c = joint_row(t.column0, row);
    if (c >= a.shape.width) return;
#pragma unroll
    for (u32 i = 0; i < WIDE / 4; i++) {
      u32 m = i / 2 * 8 + column + i % 2;
      if (i / 2 * 8 >= t.inputs) break;
      if (m < t.inputs)
        store_gated(a.h, (u64)(t.first + m) * a.shape.width + c, d[i / 2 * 4 + i % 2], d[i / 2 * 4 + 2 + i % 2], factors[m],
                    __uint_as_float(notes[m]));
    }
  }
};

template <u32 WIDTH> struct ExpertsDown {
  static constexpr u32 WIDE = WIDTH;
  static constexpr bool NOTES = true, PAIRS = true;
  typedef PairTile Tile;
  const ExpertsDownArgs& a;
  const void *split, *sums;
  u32 pieces, columns, capacity;
  MEMBER uint4 fetch(u32 i) const { return pair_block(a.blocks, i / columns, capacity); }
  MEMBER bool tile(u32 i, const uint4& b, Tile& t) const { return pair_tile(i, b, columns, HOPPER_ROWS, t); }
  MEMBER u32 input(const Tile& t, u32 i) const { return t.first + min(i, t.inputs - 1); }
  MEMBER WeightRow weights(const Tile& t, u32 r) const {
    return weight_row(a.down_w, a.down_s, a.down_b, (u64)t.expert * a.shape.hidden + min(t.column0 + r, a.shape.hidden - 1), a.shape.width);
  }
  MEMBER const void* note(const Tile& t, u32 i) const { return (const u32*)a.pairs + t.first + min(i, t.inputs - 1); }
  MEMBER void store(const Tile& t, float (&d)[WIDE / 2], u32 row, u32 column, const u32* notes, const float* factors) const {
#pragma unroll
    for (u32 i = 0; i < WIDE / 4; i++) {
      u32 m = i / 2 * 8 + column + i % 2;
      if (i / 2 * 8 >= t.inputs) break;
      if (m >= t.inputs) continue;
      float* y = (float*)a.y + (u64)notes[m] * a.shape.hidden + t.column0 + row;
      if (t.column0 + row < a.shape.hidden) y[0] = d[i / 2 * 4 + i % 2] * factors[m];
      if (t.column0 + row + 8 < a.shape.hidden) y[8] = d[i / 2 * 4 + 2 + i % 2] * factors[m];
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
  const void *split, *sums;
  u32 pieces, tokens;
  MEMBER uint4 fetch(u32) const { return make_uint4(0, 0, 0, 0); }
  MEMBER bool tile(u32 i, const uint4&, Tile& t) const {
    u32 columns = a.shape.shared_width / 64;
    t.column0 = i % columns * 64;
    t.token0 = i / columns * WIDE;
    t.inputs = t.token0 < tokens ? min(WIDE, tokens - t.token0) : 0;
    return t.inputs != 0;
  }
  MEMBER WeightRow weights(const Tile& t, u32 r) const {
    u64 row = joint_row(t.column0, r);
    return r / 8 % 2 ? weight_row(a.up_w, a.up_s, a.up_b, row, a.shape.hidden) : weight_row(a.gate_w, a.gate_s, a.gate_b, row, a.shape.hidden);
  }
  MEMBER const void* note(const Tile& t, u32 i) const {
    return (const float*)a.logits + (u64)(t.token0 + min(i, t.inputs - 1)) * a.shape.stride + a.shape.experts;
  }
  MEMBER void store(const Tile& t, float (&d)[WIDE / 2], u32 row, u32 column, const u32* notes, const float* factors) const {
    u32 c = joint_row(t.column0, row);
#pragma unroll
    for (u32 i = 0; i < WIDE / 4; i++) {
      u32 m = i / 2 * 8 + column + i % 2;
      if (m < t.inputs)
        store_gated(a.h, (u64)(t.token0 + m) * a.shape.shared_width + c, d[i / 2 * 4 + i % 2], d[i / 2 * 4 + 2 + i % 2], factors[m],
                    sigmoid(__uint_as_float(notes[m])));
    }
  }
};

#define HOPPER_EXPERTS(name, Args, Job, cols, wide)                                                            \
  extern "C" __global__ void __launch_bounds__(HOPPER_THREADS, 1)                                              \
      name(const __grid_constant__ Args a, const __grid_constant__ HopperLaunch l) {                           \
    extern __shared__ __align__(128) u8 shared[];                                                              \
    grid_enter(l.step);                                                                                        \
    Job<wide> job = {a, l.split, l.sums, a.shape.cols / HOPPER_PIECE, l.columns, l.capacity};                  \
    run_job(job, shared);                                                                                      \
  }
HOPPER_EXPERTS(hopper_experts_gate_up_128, ExpertsGateUpArgs, ExpertsGateUp, hidden, 128)
HOPPER_EXPERTS(hopper_experts_gate_up_256, ExpertsGateUpArgs, ExpertsGateUp, hidden, 256)
HOPPER_EXPERTS(hopper_experts_down_128, ExpertsDownArgs, ExpertsDown, width, 128)
HOPPER_EXPERTS(hopper_experts_down_256, ExpertsDownArgs, ExpertsDown, width, 256)
extern "C" __global__ void __launch_bounds__(HOPPER_THREADS, 1)
    hopper_shared_gate_up(const __grid_constant__ SharedGateUpArgs a, const __grid_constant__ HopperLaunch l) {
  extern __shared__ __align__(128) u8 shared[];
  grid_enter(l.step);
  SharedGateUp job = {a, l.split, l.sums, a.shape.hidden / HOPPER_PIECE, loadu(&((const Chunk*)a.chunk)->tokens)};
  run_job(job, shared);
}
