// Matrix times matrix for prefill on Hopper's warpgroup instructions, in place of gemm.cu's kernels, and as exact as f32
// products: inputs are two halves a value (split.cu), weights are exact.
//
// A weight is scale * code + bias = scale * (code - 8) + (bias + 8 scale). The first part has 8 + 3 bits, which is what a
// half has; the second is one number for 64 columns and meets the sum of their inputs. So every 64 columns the same weights
// are multiplied with the inputs' hi and lo, and every 512 columns the second parts of eight groups (two halves each) with
// the sums (two halves each). Ranges, with weights times WEIGHT_UNIT: scales of 5e-7 to 32 are exact, beyond that they
// become 32; second parts are limited to 511; inputs have any range (split.cu).
//
// A block stays on its multiprocessor and takes tile after tile: 128 weight rows times up to 128 inputs. Of three warpgroups one
// brings what is needed to two rings in shared memory and runs ahead into the next tiles: three warps inputs by 64 columns, one
// warp codes, scales and biases by 512, whole lines of a row at a time (32 bytes of each of 128 rows would cost the load unit
// more than the inputs do). Each of the others has 64 weight rows. Weights are the instructions' first operand, which may come
// from registers: a thread expands its own codes there, and no expanded weight is written to memory of any kind. A lane needs
// two neighbours of every eight columns, that is one byte of a word of codes.
#define HOPPER_THREADS 384
#define HOPPER_WIDE SPLIT_ROWS           // inputs of a tile
#define HOPPER_PLACES 8                  // of the inputs' ring, SPLIT_PLACE bytes each
#define HOPPER_STEPS (SPLIT_PLACES + 1)  // of 512 columns: hi, lo of eight groups in turn, sums
// Barriers, then what the end of a tile needs, for four tiles: a job's words and the inputs' factors, 128 each.
#define HOPPER_NOTES 1024
// And what the warps that bring pairs' inputs know about them.
#define HOPPER_BRINGING 3
#define HOPPER_TABLES (HOPPER_NOTES + 4 * 8 * HOPPER_WIDE)
// The rings; places of inputs must lie at multiples of 1,024 bytes.
#define HOPPER_RING (HOPPER_TABLES + 4 * 4 * HOPPER_WIDE)
static_assert(HOPPER_RING % 1024 == 0 && HOPPER_BRINGING < 4, "layout");
#define HOPPER_CODES (HOPPER_RING + HOPPER_PLACES * SPLIT_PLACE)
#define HOPPER_SHARED (HOPPER_CODES + 2 * HOPPER_WEIGHTS)
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
// A tile's words and factors, of the n-th tile that a block takes.
DEVICE u32* notes_at(u8* shared, u32 n) { return (u32*)(shared + HOPPER_NOTES) + n % 4 * (2 * HOPPER_WIDE); }

// The rows of a tile's weights: of one matrix, rows first and on, or, JOINT, of two, eight rows of each in turn (joint_row).
// Rows past the last repeat it.
struct WeightRows {
  const u8 *codes[2], *scales[2], *biases[2];
  u32 first, last;
};
template <u32 M> DEVICE void weight_rows(WeightRows& r, const void* w, const void* s, const void* b, u64 row, u32 pieces) {
  r.codes[M] = (const u8*)w + row * (pieces * HOPPER_PITCH);
  r.scales[M] = (const u8*)s + row * (pieces * HOPPER_GROUPS);
  r.biases[M] = (const u8*)b + row * (pieces * HOPPER_GROUPS);
}

// Brings the weights of a job's tiles, and what the end of a tile needs: 32 threads. Apart from what brings inputs, which would
// have to wait until weights have come from memory. What a warp does here takes as long as its instructions, one after the other,
// so there are few for a copy.
template <class J> DEVICE void bring_weights(const J& job, u8* shared, u32 lane) {
  Barriers b(shared);
  // An empty ring counts as one that was given back.
  Place<2> w = {0, 1};
  typename J::Tile t;
  u32 i = blockIdx.x;
  uint4 next = job.fetch(i);
  // A row of codes is 16 lanes' copies. Of four pairs of rows, which are swizzled differently, where the first lies.
  u32 at[4];
#pragma unroll
  for (u32 k = 0; k < 4; k++) at[k] = lane / 16 * HOPPER_PITCH + (lane % 16 ^ 2 * k + lane / 16) * 16;
  for (u32 n = 0; job.tile(i, next, t); n++) {
    next = job.fetch(i += gridDim.x);
    WeightRows rows = job.weights(t);
    u32 code_bytes = job.pieces * HOPPER_PITCH, factor_bytes = job.pieces * HOPPER_GROUPS;
    for (u32 piece = 0; piece < job.pieces; piece++) {
      u8* to = shared + HOPPER_CODES + w.at * HOPPER_WEIGHTS;
      barrier_wait(b.weights_empty + w.at, w.round);
      u32 column = piece * HOPPER_PITCH + lane % 16 * 16;
      const u8 *codes = rows.codes[0] + column, *other = J::JOINT ? rows.codes[1] + column : codes;
      u32 row = rows.first + lane / 16;
#pragma unroll 2
      for (u32 r = 0; r < HOPPER_ROWS; r += 16, row += J::JOINT ? 8 : 16)
#pragma unroll
        for (u32 k = 0; k < 8; k++) {
          u32 from = min(row + (J::JOINT ? k % 4 : k) * 2, rows.last);
          copy16(to + r * HOPPER_PITCH + at[k % 4] + 2 * k * HOPPER_PITCH, (k < 4 ? codes : other) + (u64)from * code_bytes);
        }
      // A lane has the same matrix in every 32 rows.
      u32 mine = J::JOINT ? lane / 8 % 2 : 0, first = J::JOINT ? joint_row(rows.first, lane) : rows.first + lane;
      const u8 *scales = (mine ? rows.scales[1] : rows.scales[0]) + piece * HOPPER_GROUPS;
      const u8 *biases = (mine ? rows.biases[1] : rows.biases[0]) + piece * HOPPER_GROUPS;
      to += HOPPER_ROWS * HOPPER_PITCH + lane * HOPPER_GROUPS;
#pragma unroll
      for (u32 k = 0; k < HOPPER_ROWS / 32; k++) {
        u32 from = min(first + (J::JOINT ? 16 : 32) * k, rows.last);
        copy16(to + k * 32 * HOPPER_GROUPS, scales + (u64)from * factor_bytes);
        copy16(to + (k * 32 + HOPPER_ROWS) * HOPPER_GROUPS, biases + (u64)from * factor_bytes);
      }
      if (piece == 0) {
#pragma unroll 1
        for (u32 k = lane; k < t.inputs; k += 32) {
          u32* words = notes_at(shared, n) + k;
          if constexpr (J::NOTES) copy4(words, job.note(t, k));
          if constexpr (J::PAIRS) {
            u32 x = job.input(t, k);
            u64 block = (u64)(x / SPLIT_ROWS) * job.pieces;
            copy4(words + HOPPER_WIDE, (const u8*)job.sums + block * (2 * SPLIT_SUMS) + SPLIT_SUMS + x % SPLIT_ROWS * 4);
          }
        }
      }
      copies_arrive(b.weights_full + w.at);
      w.next();
    }
  }
}

// Brings inputs side by side, rows token0 (a multiple of 128) and on, by bulk copies: one thread.
template <class J> DEVICE void bring_rows(const J& job, u8* shared) {
  Barriers b(shared);
  Place<HOPPER_PLACES> p = {0, 1};
  typename J::Tile t;
  // They come from another kernel's stores, and the copy engine reads them.
  asm volatile("fence.proxy.async.global;" ::: "memory");
  for (u32 n = 0; job.tile(blockIdx.x + n * gridDim.x, make_uint4(0, 0, 0, 0), t); n++) {
    // Whole eights of rows.
    u32 rows = t.inputs + 7 & ~7u;
    u64 block = (u64)(t.token0 / SPLIT_ROWS) * job.pieces;
    for (u32 piece = 0; piece < job.pieces; piece++) {
      const u8* sums = (const u8*)job.sums + (block + piece) * (2 * SPLIT_SUMS);
      const u8* values = (const u8*)job.split + (block + piece) * (SPLIT_PLACES * SPLIT_PLACE);
      for (u32 s = 0; s < HOPPER_STEPS; s++) {
        bool last = s == SPLIT_PLACES, start = piece == 0 && s == 0;
        u64* full = b.full + p.at;
        u32 bytes = rows * (last ? 32 : 128);
        barrier_wait(b.empty + p.at, p.round);
        barrier_expect(full, bytes + (start ? rows * 4 : 0));
        bulk_load(shared + HOPPER_RING + p.at * SPLIT_PLACE, last ? sums : values + s * SPLIT_PLACE, bytes, full);
        if (start) {
          // Threads have read there, four tiles ago.
          copy_fence();
          bulk_load(notes_at(shared, n) + HOPPER_WIDE, sums + SPLIT_SUMS, rows * 4, full);
        }
        p.next();
      }
    }
  }
}

// Brings inputs from anywhere by copies of 16 bytes, the places in turn with the other warps that do: 32 threads.
template <class J> DEVICE void bring_pairs(const J& job, u8* shared, u32 warp, u32 lane) {
  Barriers b(shared);
  // Where inputs' values lie, in 16 bytes, for this warp: of input i at i % 4 * 32 + i / 4. In the last three bits their
  // place among eight rows, which the pieces of a row are swizzled by.
  u32* table = (u32*)(shared + HOPPER_TABLES) + warp * HOPPER_WIDE;
  // Lanes 8 j to 8 j + 7 bring rows j, j + 4 and so on; every second one's pieces lie 64 bytes apart from where the others' do.
  u32 part = lane % 8, place = lane / 8 * 128 + (part ^ lane / 8) * 16, i = blockIdx.x;
  // The next step of this warp, from the tile's first, and its place.
  u32 step = warp;
  Place<HOPPER_PLACES> p = {warp, 1};
  typename J::Tile t;
  uint4 next = job.fetch(i);
  while (job.tile(i, next, t)) {
    next = job.fetch(i += gridDim.x);
    __syncwarp();
#pragma unroll
    for (u32 k = 0; k < HOPPER_WIDE / 32; k++) {
      u32 x = lane + 32 * k, row = job.input(t, x), block = row / SPLIT_ROWS * job.pieces;
      table[x % 4 * (HOPPER_WIDE / 4) + x / 4] = block * (SPLIT_PLACES * SPLIT_PLACE / 16) + row % SPLIT_ROWS * 8 + row % 8;
    }
    __syncwarp();
    for (; step < job.pieces * HOPPER_STEPS; step += HOPPER_BRINGING) {
      u32 piece = step / HOPPER_STEPS, s = step % HOPPER_STEPS;
      u8* to = shared + HOPPER_RING + p.at * SPLIT_PLACE;
      barrier_wait(b.empty + p.at, p.round);
      if (s < SPLIT_PLACES) {
        const u8* x = (const u8*)job.split + (u64)(piece * SPLIT_PLACES + s) * SPLIT_PLACE;
        const uint4* from = (const uint4*)(table + lane / 8 * (HOPPER_WIDE / 4));
        to += place;
        u8* odd = to + (place & 64 ? -64 : 64);
#pragma unroll 2
        for (u32 k = 0; k < t.inputs; k += 16, to += 2048, odd += 2048) {
          uint4 f = *from++;
          copy16(to, x + (u64)(f.x ^ part) * 16);
          copy16(odd + 512, x + (u64)(f.y ^ part) * 16);
          copy16(to + 1024, x + (u64)(f.z ^ part) * 16);
          copy16(odd + 1536, x + (u64)(f.w ^ part) * 16);
        }
      } else {
        // Two pieces a row; a block of sums is a 32nd of one of values.
        const u8* x = (const u8*)job.sums + piece * (2 * SPLIT_SUMS);
        for (u32 k = lane / 2; k < t.inputs; k += 16) {
          u32 f = table[k % 4 * (HOPPER_WIDE / 4) + k / 4], r = f / 8 % SPLIT_ROWS, block = f & ~(SPLIT_ROWS * 8 - 1);
          copy16(to + k * 32 + (lane % 2 ^ k / 4 % 2) * 16, x + block / 2 + r * 32 + (lane % 2 ^ r / 4 % 2) * 16);
        }
      }
      copies_arrive(b.full + p.at);
      p.at += HOPPER_BRINGING;
      if (p.at >= HOPPER_PLACES) {
        p.at -= HOPPER_PLACES;
        p.round ^= 1;
      }
    }
    step -= job.pieces * HOPPER_STEPS;
  }
}

// Calls what multiplies with as many sums as the inputs need: one loop for all numbers of inputs, whose registers are the same.
template <class J, class F> DEVICE void with_sums(float (&d)[HOPPER_WIDE / 2], u32 inputs, const F& f) {
  if (!J::PAIRS || inputs > 96)
    f(d);
  else if (inputs <= 32)
    f((float(&)[16])d);
  else if (inputs <= 48)
    f((float(&)[24])d);
  else if (inputs <= 64)
    f((float(&)[32])d);
  else if (inputs <= 80)
    f((float(&)[40])d);
  else
    f((float(&)[48])d);
}

// What multiplies: 64 weight rows of a tile times its inputs. The sums that a job stores are to be multiplied by the inputs'
// factors.
template <class J>
DEVICE void multiply_tile(const J& job, const typename J::Tile& t, Place<HOPPER_PLACES>& next, Place<2>& w, u8* shared,
                          const u32* notes) {
  Barriers b(shared);
  u32 lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
  // The instructions cut their sums off, towards zero, each of them: 5e-6 of a sum over 2,048 columns, 9e-6 over 4,096. So
  // theirs are sums over 512 columns.
  float d[HOPPER_WIDE / 2], total[HOPPER_WIDE / 2];
#pragma unroll
  for (u32 i = 0; i < HOPPER_WIDE / 2; i++) d[i] = total[i] = 0.0f;
  u32 a[2][16];
  Offsets offsets;
  u32 ring = shared_address(shared + HOPPER_RING);
  const u8* piece = shared;
  // The operands of a group.
  auto prepare = [&](u32 (&out)[16], u32 group) {
    if (group % 8 == 0) {
      piece = shared + HOPPER_CODES + w.at * HOPPER_WEIGHTS;
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
    u32 at = next.at;
    barrier_wait(b.full + at, next.round);
    next.next();
    return at;
  };
  auto give_back = [&](u32 at) {
    if (lane == 0) barrier_arrive(b.empty + at);
  };
  // A group's operands with the two places of its inputs; the next group's are expanded in the meantime.
  auto multiply = [&](const u32 (&in)[16], u32 keep, u32 (&other)[16], u32 following) {
    u32 first = enter(), second = enter();
    if (J::PAIRS) async_fence();
    u64 hi = tile_at(ring + first * SPLIT_PLACE, 16), lo = tile_at(ring + second * SPLIT_PLACE, 16);
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
  // The same for offsets and sums; for all inputs, whose number is not worth a choice here.
  auto multiply_offsets = [&] {
    u32 at = enter();
    if (J::PAIRS) async_fence();
    u64 x = narrow_tile_at(ring + at * SPLIT_PLACE);
    u32 first[4] = {offsets.hi[0], offsets.hi[1], offsets.hi[0], offsets.hi[1]}, second[4] = {offsets.lo[0], offsets.lo[1], 0, 0};
    warpgroup_enter();
    warpgroup_multiply(d, first, x, 1);
    warpgroup_multiply(d, second, x, 1);
    warpgroup_commit();
    warpgroup_wait<0>();
    settle(d);
    give_back(at);
#pragma unroll
    for (u32 i = 0; i < HOPPER_WIDE / 2; i++) total[i] += d[i];
  };
  prepare(a[0], 0);
  for (u32 g = 0; g < job.pieces * 8; g += 2) {
    multiply(a[0], g % 8, a[1], g + 1);
    multiply(a[1], 1, a[0], g + 2);
    if (g % 8 == 6) multiply_offsets();
  }
  job.store(t, total, row, lane % 4 * 2, notes, (const float*)notes + HOPPER_WIDE);
}

template <class J> DEVICE void run_job(const J& job, u8* shared) {
  Barriers b(shared);
  if (threadIdx.x == 0) {
    for (u32 i = 0; i < 8; i++) {
      barrier_init(b.full + i, J::PAIRS ? 32 : 1);
      barrier_init(b.empty + i, 8);
    }
    for (u32 i = 0; i < 2; i++) {
      barrier_init(b.weights_full + i, 32);
      barrier_init(b.weights_empty + i, 8);
    }
    barrier_fence();
  }
  __syncthreads();
  if (threadIdx.x >= 256) {
    registers_less<56>();
    u32 warp = threadIdx.x / 32 - 8, lane = threadIdx.x % 32;
    if (warp == HOPPER_BRINGING)
      bring_weights(job, shared, lane);
    else if constexpr (J::PAIRS)
      bring_pairs(job, shared, warp, lane);
    else if (threadIdx.x == 256)
      bring_rows(job, shared);
  } else {
    registers_more<224>();
    Place<HOPPER_PLACES> p = {0, 0};
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

template <bool ADD> struct Dense {
  static constexpr bool NOTES = false, PAIRS = false, JOINT = false;
  // Tiles of inputs that are multiplied with all weights before the next ones: so many that they stay in the second-level cache.
  static constexpr u32 NEAR = 2048 / HOPPER_WIDE;
  struct Tile {
    u32 matrix, rows, row0, offset, token0, inputs;
  };
  const GemmArgs& a;
  const void *split, *sums;
  u32 pieces, tokens, across, blocks;
  MEMBER Dense(const GemmArgs& args, const HopperLaunch& l) : a(args), split(l.split), sums(l.sums) {
    tokens = loadu(&((const Chunk*)a.chunk)->tokens);
    pieces = a.shape.cols / HOPPER_PIECE;
    across = (tokens + HOPPER_WIDE - 1) / HOPPER_WIDE;
    blocks = 0;
    for (u32 m = 0; m < a.shape.matrices; m++) blocks += (pick(a.shape.rows, m) + HOPPER_ROWS - 1) / HOPPER_ROWS;
  }
  MEMBER uint4 fetch(u32) const { return make_uint4(0, 0, 0, 0); }
  MEMBER bool tile(u32 i, const uint4&, Tile& t) const {
    u32 first = i / (blocks * NEAR) * NEAR, width = min(NEAR, across - first);
    if (first >= across) return false;
    i -= first * blocks;
    u32 block = i / width;
    t.token0 = (first + i % width) * HOPPER_WIDE;
    t.inputs = min(HOPPER_WIDE, tokens - t.token0);
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
  MEMBER WeightRows weights(const Tile& t) const {
    u32 m = t.matrix;
    WeightRows r;
    weight_rows<0>(r, m == 0 ? a.w0 : m == 1 ? a.w1 : m == 2 ? a.w2 : a.w3, m == 0 ? a.s0 : m == 1 ? a.s1 : m == 2 ? a.s2 : a.s3,
                   m == 0 ? a.b0 : m == 1 ? a.b1 : m == 2 ? a.b2 : a.b3, 0, pieces);
    r.first = t.row0;
    r.last = t.rows - 1;
    return r;
  }
  MEMBER void store(const Tile& t, float (&d)[HOPPER_WIDE / 2], u32 row, u32 column, const u32*, const float* factors) const {
    float* y = (float*)a.y + (u64)t.token0 * a.shape.stride + t.offset + t.row0;
    if (!ADD && t.inputs == HOPPER_WIDE && t.row0 + HOPPER_ROWS <= t.rows) {
      // A whole tile: nothing to ask for each value.
      float *even = y + (u64)column * a.shape.stride + row, *odd = even + a.shape.stride;
#pragma unroll
      for (u32 i = 0; i < HOPPER_WIDE / 8; i++) {
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
        for (u32 block = 0; block < HOPPER_WIDE / 4; block += 16) {
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
        for (u32 i = 0; i < HOPPER_WIDE / 4; i++) {
          u32 c = i / 2 * 8 + column + i % 2;
          if (c < t.inputs) y[(u64)c * a.shape.stride + r] = d[i / 2 * 4 + 2 * h + i % 2] * factors[c];
        }
      }
    }
  }
};
#define HOPPER_GEMM(name, add)                                                                           \
  extern "C" __global__ void __launch_bounds__(HOPPER_THREADS, 1)                                              \
      name(const __grid_constant__ GemmArgs a, const __grid_constant__ HopperLaunch l) {                       \
    extern __shared__ __align__(128) u8 shared[];                                                             \
    grid_enter(l.step);                                                                                        \
    Dense<add> job(a, l);                                                                                \
    run_job(job, shared);                                                                                      \
  }
HOPPER_GEMM(hopper_gemm_128, false)
HOPPER_GEMM(hopper_gemm_add_128, true)

// ---- products of experts

// Blocks of at most HOPPER_WIDE pairs of one expert, as native_moe_blocks leaves them; behind the last, blocks of no pairs.
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

struct ExpertsGateUp {
  static constexpr bool NOTES = true, PAIRS = true, JOINT = true;
  typedef PairTile Tile;
  const ExpertsGateUpArgs& a;
  const void *split, *sums;
  u32 pieces, columns, capacity;
  MEMBER uint4 fetch(u32 i) const { return pair_block(a.blocks, i / columns, capacity); }
  MEMBER bool tile(u32 i, const uint4& b, Tile& t) const { return pair_tile(i, b, columns, 64, t); }
  MEMBER u32 pair(const Tile& t, u32 i) const { return loadu((const u32*)a.pairs + t.first + min(i, t.inputs - 1)); }
  // The row of an input.
  MEMBER u32 input(const Tile& t, u32 i) const { return pair(t, i) / a.shape.chosen; }
  MEMBER WeightRows weights(const Tile& t) const {
    WeightRows r;
    weight_rows<0>(r, a.gate_w, a.gate_s, a.gate_b, (u64)t.expert * a.shape.width, pieces);
    weight_rows<1>(r, a.up_w, a.up_s, a.up_b, (u64)t.expert * a.shape.width, pieces);
    r.first = t.column0;
    r.last = a.shape.width - 1;
    return r;
  }
  MEMBER const void* note(const Tile& t, u32 i) const { return (const float*)a.scores + pair(t, i); }
  MEMBER void store(const Tile& t, float (&d)[HOPPER_WIDE / 2], u32 row, u32 column, const u32* notes, const float* factors) const {
    u32 c = joint_row(t.column0, row);
    if (c >= a.shape.width) return;
#pragma unroll
    for (u32 i = 0; i < HOPPER_WIDE / 4; i++) {
      u32 m = i / 2 * 8 + column + i % 2;
      if (i / 2 * 8 >= t.inputs) break;
      if (m < t.inputs)
        store_gated(a.h, (u64)(t.first + m) * a.shape.width + c, d[i / 2 * 4 + i % 2], d[i / 2 * 4 + 2 + i % 2], factors[m],
                    __uint_as_float(notes[m]));
    }
  }
};

struct ExpertsDown {
  static constexpr bool NOTES = true, PAIRS = true, JOINT = false;
  typedef PairTile Tile;
  const ExpertsDownArgs& a;
  const void *split, *sums;
  u32 pieces, columns, capacity;
  MEMBER uint4 fetch(u32 i) const { return pair_block(a.blocks, i / columns, capacity); }
  MEMBER bool tile(u32 i, const uint4& b, Tile& t) const { return pair_tile(i, b, columns, HOPPER_ROWS, t); }
  MEMBER u32 input(const Tile& t, u32 i) const { return t.first + min(i, t.inputs - 1); }
  MEMBER WeightRows weights(const Tile& t) const {
    WeightRows r;
    weight_rows<0>(r, a.down_w, a.down_s, a.down_b, (u64)t.expert * a.shape.hidden, pieces);
    r.first = t.column0;
    r.last = a.shape.hidden - 1;
    return r;
  }
  MEMBER const void* note(const Tile& t, u32 i) const { return (const u32*)a.pairs + t.first + min(i, t.inputs - 1); }
  MEMBER void store(const Tile& t, float (&d)[HOPPER_WIDE / 2], u32 row, u32 column, const u32* notes, const float* factors) const {
#pragma unroll
    for (u32 i = 0; i < HOPPER_WIDE / 4; i++) {
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
  static constexpr bool NOTES = true, PAIRS = false, JOINT = true;
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
    t.token0 = i / columns * HOPPER_WIDE;
    t.inputs = t.token0 < tokens ? min(HOPPER_WIDE, tokens - t.token0) : 0;
    return t.inputs != 0;
  }
  MEMBER WeightRows weights(const Tile& t) const {
    WeightRows r;
    weight_rows<0>(r, a.gate_w, a.gate_s, a.gate_b, 0, pieces);
    weight_rows<1>(r, a.up_w, a.up_s, a.up_b, 0, pieces);
    r.first = t.column0;
    r.last = a.shape.shared_width - 1;
    return r;
  }
  MEMBER const void* note(const Tile& t, u32 i) const {
    return (const float*)a.logits + (u64)(t.token0 + min(i, t.inputs - 1)) * a.shape.stride + a.shape.experts;
  }
  MEMBER void store(const Tile& t, float (&d)[HOPPER_WIDE / 2], u32 row, u32 column, const u32* notes, const float* factors) const {
    u32 c = joint_row(t.column0, row);
#pragma unroll
    for (u32 i = 0; i < HOPPER_WIDE / 4; i++) {
      u32 m = i / 2 * 8 + column + i % 2;
      if (m < t.inputs)
        store_gated(a.h, (u64)(t.token0 + m) * a.shape.shared_width + c, d[i / 2 * 4 + i % 2], d[i / 2 * 4 + 2 + i % 2], factors[m],
                    sigmoid(__uint_as_float(notes[m])));
    }
  }
};

#define HOPPER_EXPERTS(name, Args, Job, cols)                                                            \
  extern "C" __global__ void __launch_bounds__(HOPPER_THREADS, 1)                                              \
      name(const __grid_constant__ Args a, const __grid_constant__ HopperLaunch l) {                           \
    extern __shared__ __align__(128) u8 shared[];                                                              \
    grid_enter(l.step);                                                                                        \
    Job job = {a, l.split, l.sums, a.shape.cols / HOPPER_PIECE, l.columns, l.capacity};                  \
    run_job(job, shared);                                                                                      \
  }
HOPPER_EXPERTS(hopper_experts_gate_up_128, ExpertsGateUpArgs, ExpertsGateUp, hidden)
HOPPER_EXPERTS(hopper_experts_down_128, ExpertsDownArgs, ExpertsDown, width)
extern "C" __global__ void __launch_bounds__(HOPPER_THREADS, 1)
    hopper_shared_gate_up(const __grid_constant__ SharedGateUpArgs a, const __grid_constant__ HopperLaunch l) {
  extern __shared__ __align__(128) u8 shared[];
  grid_enter(l.step);
  SharedGateUp job = {a, l.split, l.sums, a.shape.hidden / HOPPER_PIECE, loadu(&((const Chunk*)a.chunk)->tokens)};
  run_job(job, shared);
}
