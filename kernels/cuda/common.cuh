// What the native CUDA kernels share. Hopper and later (sm_90): bulk copies into shared memory, barriers that count
// their bytes, programmatic dependent launch. For NVRTC, no headers.
//
// A native kernel replaces a kernel of `kernels/*.metal` and takes the same arguments; the host writes the structures
// (`ProjectArgs`, ...) from the manifest, so a changed signature is a compile error here.
//
// Order within a step. Every kernel of the chain waits until the one before is complete before it reads or writes what a
// step makes (`grid_wait`), and lets the next one start (`grid_release`). What depends on no kernel of the step may be
// read before the wait: weights, and state and caches of earlier steps. Some kernels also read what came from two
// kernels back (`routed`, the residual, the output gates): the kernel in front of those releases only after its own
// wait, so that all before it is complete by then; the others release at once (`release_first`, see native.rs).
typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short u16;
typedef unsigned char u8;
#define DEVICE static __device__ __forceinline__
#define MEMBER __device__ __forceinline__

// Columns that share a scale and a bias.
#define GROUP 64
#define ALL 0xffffffffu
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif

DEVICE void grid_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
DEVICE void grid_release() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
// What every native kernel of a step is launched with besides its arguments.
struct Step {
  u32 release_first, unused;
};
DEVICE void grid_enter(const Step& s) {
  if (s.release_first) grid_release();
  grid_wait();
  if (!s.release_first) grid_release();
}
// ---- barriers in shared memory (PTX mbarrier)

DEVICE u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }
DEVICE void barrier_init(u64* b, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(arrivals) : "memory");
}
// Makes initialised barriers known to the copy engine.
DEVICE void barrier_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
DEVICE void barrier_expect(u64* b, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)), "r"(bytes) : "memory");
}
DEVICE void barrier_arrive(u64* b) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(b)) : "memory");
}
DEVICE void barrier_wait(u64* b, u32 parity) {
  asm volatile(
      "{\n .reg .pred done;\n"
      "again:\n mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      " @done bra over;\n bra again;\n"
      "over:\n}" ::"r"(shared_address(b)),
      "r"(parity)
      : "memory");
}
// Orders what this thread has read or written before what the copy engine writes once it knows of it.
DEVICE void copy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// Copies bytes (a multiple of 16, both ends aligned to 16) to shared memory; the barrier counts them.
DEVICE void bulk_load(void* to, const void* from, u32 bytes, u64* b) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(b))
      : "memory");
}
// A barrier of some of the block's warps.
DEVICE void sync_some(u32 id, u32 threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }

// A barrier of all blocks of a cluster.
DEVICE void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// The first half of one that orders no memory: the block has started, and its barriers have been initialised (barrier_fence).
DEVICE void cluster_begin() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }

// ---- copies of a thread into shared memory, counted in groups

DEVICE void fetch16(u32 to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
DEVICE void fetch8(u32 to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to), "l"(from) : "memory");
}
DEVICE void fetches_end() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// All but the last LEFT groups are there.
template <u32 LEFT> DEVICE void fetches_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory"); }

// ---- loads of what other kernels wrote: past the first-level cache

DEVICE float4 load4(const void* p) { return __ldcg((const float4*)p); }
DEVICE float load1(const void* p) { return __ldcg((const float*)p); }
DEVICE u32 loadu(const void* p) { return __ldcg((const u32*)p); }

// ---- numbers

DEVICE float bfloat(u16 bits) { return __uint_as_float((u32)bits << 16); }
DEVICE float bfloat_low(u32 word) { return __uint_as_float(word << 16); }
DEVICE float bfloat_high(u32 word) { return __uint_as_float(word & 0xffff0000u); }
DEVICE float4 bfloats4(uint2 w) {
  return make_float4(bfloat_low(w.x), bfloat_high(w.x), bfloat_low(w.y), bfloat_high(w.y));
}
// Where the exponential is too large the quotient is 0.
DEVICE float sigmoid(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }
DEVICE float silu(float x) { return __fdividef(x, 1.0f + __expf(-x)); }
DEVICE float dot(float4 a, float4 b) { return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w; }

// ---- sums over a warp

DEVICE float warp_sum(float v) {
  for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(ALL, v, o);
  return v;
}
// Two sums with six shuffles less than two: lanes 0 to 15 get the first, lanes 16 to 31 the second.
DEVICE float warp_sum2(float a, float b, u32 lane) {
  bool upper = lane & 16;
  float keep = upper ? b : a, give = upper ? a : b;
  float v = keep + __shfl_xor_sync(ALL, give, 16);
  for (int o = 8; o; o >>= 1) v += __shfl_xor_sync(ALL, v, o);
  return v;
}
// Four sums: lanes 8 r to 8 r + 7 get sum r.
DEVICE float warp_sum4(float a, float b, float c, float d, u32 lane) {
  bool upper = lane & 16, high = lane & 8;
  float v0 = (upper ? c : a) + __shfl_xor_sync(ALL, upper ? a : c, 16);
  float v1 = (upper ? d : b) + __shfl_xor_sync(ALL, upper ? b : d, 16);
  float v = (high ? v1 : v0) + __shfl_xor_sync(ALL, high ? v0 : v1, 8);
  for (int o = 4; o; o >>= 1) v += __shfl_xor_sync(ALL, v, o);
  return v;
}

// ---- activations as two signed bytes
//
// x = scale * (256 high + low), one scale for 128 columns: 15 bits. The products with 4- and 8-bit codes are exact
// integers, so results do not depend on any order; the only error is the rounding of x (at most 1/65,000 of the largest of
// the 128), and the sum that multiplies the biases is taken over the rounded values.

// Activations of all columns in shared memory: bytes, and for each group its scale and scale * sum.
struct Staged {
  u8* high;
  u8* low;
  float2* groups;
};
// Bytes of shared memory that `cols` staged columns take.
#define STAGED_BYTES(cols) ((cols) * 2 + (cols) / GROUP * 8)
DEVICE Staged staged_at(u8* p, u32 cols) {
  Staged s;
  s.high = p;
  s.low = p + cols;
  s.groups = (float2*)(p + 2 * cols);
  return s;
}
// Puts four columns from column 4 i. A whole warp calls together, for 128 columns: they share the scale.
DEVICE void stage(const Staged& s, u32 i, float4 v) {
  float most = fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
  // Floats without a sign are in the order of their bits.
  float largest = __uint_as_float(__reduce_max_sync(ALL, __float_as_uint(most)));
  // 127 * 256 + 127 is the largest number of two such bytes; a bit less leaves room for rounding.
  float inverse = largest > 1e-30f ? __fdividef(32600.0f, largest) : 0.0f;
  int a = __float2int_rn(v.x * inverse), b = __float2int_rn(v.y * inverse);
  int c = __float2int_rn(v.z * inverse), d = __float2int_rn(v.w * inverse);
  // The low byte is signed: what it lacks or has too much goes to the high one.
  u32 ab = __byte_perm((u32)a, (u32)b, 0x5410), cd = __byte_perm((u32)c, (u32)d, 0x5410);
  ((u32*)s.low)[i] = __byte_perm(ab, cd, 0x6420);
  ab = __byte_perm((u32)(a + 128), (u32)(b + 128), 0x5410);
  cd = __byte_perm((u32)(c + 128), (u32)(d + 128), 0x5410);
  ((u32*)s.high)[i] = __byte_perm(ab, cd, 0x7531);
  int sum = a + b + c + d;
  bool upper = threadIdx.x & 16;
  int first = __reduce_add_sync(ALL, upper ? 0 : sum), second = __reduce_add_sync(ALL, upper ? sum : 0);
  // A NaN or an infinity is lost in the integers and must reach the result.
  bool bad = __any_sync(ALL, !(fabsf(v.x + v.y + v.z + v.w) < 3.0e38f));
  if ((threadIdx.x & 15) == 0) {
    float scale = bad ? __int_as_float(0x7fc00000) : largest * (1.0f / 32600.0f);
    s.groups[i / 16] = make_float2(scale, scale * (float)(upper ? second : first));
  }
}

// ---- 16 rows of a matrix times 256 columns, on the tensor cores
//
// An mma multiplies 16 rows x 32 columns of codes (bytes) with 32 x 8 activation bytes. A vector has one column, so the
// eight are used for its high and low bytes and for four groups of 64 columns: column 2 k + d holds byte d of group k. The
// sums of one group for two rows end in one lane, and all lanes share the work of scaling them.
//
// A lane (g = lane / 4, t = lane % 4) takes rows g and g + 8, 16 bytes at 16 t of every 64. Of 4-bit codes these are two
// groups: word i holds columns 32 t + 8 i to + 7, of which the low nibbles are the even and the high ones the odd columns.
// Of 8-bit codes they are columns 16 t to + 15 of one group. Rows lie a multiple of 128 bytes apart, so that the same place
// of two rows is in the same banks: odd rows take every pair of 64 bytes the other way round. Then an mma sees different
// columns in odd and even rows. It gets both columns' activations, each group's in its own columns of the result, and what
// does not belong together goes to sums that nobody reads: the first and the second 64 bytes of a pair have sums of
// their own, and a lane reads those where its row had its group.

#define SLICE 256  // columns

DEVICE void mma_bytes(int (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm(
      "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// A lane's share of a slice of activations: the second operands of the mmas, and the scale and sum of its group.
struct Slice {
  u32 b[8];
  float scale, sum;
};
// For 8-bit (WIDE) or 4-bit codes.
template <bool WIDE> DEVICE Slice load_slice(const Staged& s, u32 slice, u32 lane) {
  Slice r;
  u32 t = lane % 4, n = lane / 4, group = n / 2;
  const u8* bytes = (n % 2 ? s.low : s.high) + slice * SLICE;
  if (WIDE) {
    // For the first pair of groups, then for the second.
    uint4 w = *(const uint4*)(bytes + group * 64 + t * 16);
#pragma unroll
    for (u32 j = 0; j < 2; j++) {
      bool mine = group / 2 == j;
      r.b[4 * j] = mine ? w.x : 0;
      r.b[4 * j + 1] = mine ? w.y : 0;
      r.b[4 * j + 2] = mine ? w.z : 0;
      r.b[4 * j + 3] = mine ? w.w : 0;
    }
  } else {
    const uint4* p = (const uint4*)(bytes + group / 2 * 128 + t * 32);
    uint4 v = p[0], w = p[1];
    u32 x[8] = {v.x, v.y, v.z, v.w, w.x, w.y, w.z, w.w};
    bool mine = group % 2 == t / 2;
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
      r.b[2 * i] = mine ? __byte_perm(x[2 * i], x[2 * i + 1], 0x6420) : 0;
      r.b[2 * i + 1] = mine ? __byte_perm(x[2 * i], x[2 * i + 1], 0x7531) : 0;
    }
  }
  float2 f = s.groups[slice * 4 + t];
  r.scale = f.x;
  r.sum = f.y;
  return r;
}

// The products of 16 rows, `row_bytes` apart, with a slice; scales and biases have `groups` values a row. The lanes with
// t = 0 return row g, those with t = 1 row g + 8; the rest repeats them.
template <bool WIDE>
DEVICE float slice_product(const u8* rows, u32 row_bytes, const u16* scales, const u16* biases, u32 groups, u32 slice,
                           const Slice& x, u32 lane) {
  u32 g = lane / 4, t = lane % 4, odd = g % 2;
  const u8* r0 = rows + g * row_bytes + slice * (WIDE ? SLICE : SLICE / 2) + t * 16;
  const u8* r1 = r0 + 8 * row_bytes;
  u32 at = g * groups + slice * 4 + t, below = at + 8 * groups;
  float s0 = bfloat(scales[at]), s1 = bfloat(scales[below]), b0 = bfloat(biases[at]), b1 = bfloat(biases[below]);
  int d[2][4] = {{0, 0, 0, 0}, {0, 0, 0, 0}};
  if (WIDE) {
#pragma unroll
    for (u32 j = 0; j < 4; j++) {
      u32 place = 64 * (j ^ odd);
      uint4 p = *(const uint4*)(r0 + place), q = *(const uint4*)(r1 + place);
      mma_bytes(d[j % 2], p.x, q.x, p.y, q.y, x.b[j / 2 * 4], x.b[j / 2 * 4 + 1]);
      mma_bytes(d[j % 2], p.z, q.z, p.w, q.w, x.b[j / 2 * 4 + 2], x.b[j / 2 * 4 + 3]);
    }
  } else {
    const u32 m = 0x0f0f0f0fu;
#pragma unroll
    for (u32 j = 0; j < 2; j++) {
      u32 place = 64 * (j ^ odd);
      uint4 p = *(const uint4*)(r0 + place), q = *(const uint4*)(r1 + place);
      u32 a[4] = {p.x, p.y, p.z, p.w}, b[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
      for (u32 i = 0; i < 4; i++)
        mma_bytes(d[j], a[i] & m, b[i] & m, a[i] >> 4 & m, b[i] >> 4 & m, x.b[2 * i], x.b[2 * i + 1]);
    }
  }
  bool second = ((WIDE ? t : t / 2) ^ g) & 1;
  int i0 = second ? d[1][0] * 256 + d[1][1] : d[0][0] * 256 + d[0][1];
  int i1 = second ? d[1][2] * 256 + d[1][3] : d[0][2] * 256 + d[0][3];
  float v0 = fmaf(s0, x.scale * (float)i0, b0 * x.sum), v1 = fmaf(s1, x.scale * (float)i1, b1 * x.sum);
  // Sums over the four groups.
  bool upper = t & 1;
  float v = (upper ? v1 : v0) + __shfl_xor_sync(ALL, upper ? v0 : v1, 1);
  return v + __shfl_xor_sync(ALL, v, 2);
}

// ---- the choice of experts, by one warp: the `chosen` largest logits, best first, lowest id among equals

DEVICE u32 order_key(float v) {
  u32 b = __float_as_uint(v);
  // NaN comes first, so that it reaches the result through its score.
  return v != v ? ALL : b & 0x80000000u ? ~b : b | 0x80000000u;
}

// What a warp needs in shared memory to choose experts.
struct Choice {
  u32 largest[32];     // of each lane's keys
  u32 key[32], id[32];  // candidates
};

// How many of the 32 values are larger than `mine`; with ids, also equal ones with a lower id.
DEVICE u32 rank_of(const u32* values, u32 mine) {
  u32 rank = 0;
#pragma unroll
  for (int i = 0; i < 8; i++) {
    uint4 v = ((const uint4*)values)[i];
    rank += (v.x > mine) + (v.y > mine) + (v.z > mine) + (v.w > mine);
  }
  return rank;
}

// ids[n] and scores[n] (softmax over the chosen) for n < chosen <= 8, in shared memory; visible after __syncwarp.
// At most 256 experts. One warp's work, and other warps wait for it: no chain over the experts, but two counts. The `chosen`
// largest are not below the chosen-th largest of the lanes' own largest; what is not below that are a dozen candidates.
DEVICE void choose_experts(const float* logits, u32 experts, u32 chosen, u32 lane, Choice& c, u32* ids, float* scores) {
  u32 k[8];
#pragma unroll
  for (u32 i = 0; i < 8; i++) k[i] = i * 32 + lane < experts ? order_key(load1(logits + i * 32 + lane)) : 0;
  u32 best = max(max(max(k[0], k[1]), max(k[2], k[3])), max(max(k[4], k[5]), max(k[6], k[7])));
  c.largest[lane] = best;
  c.key[lane] = 0;
  c.id[lane] = ALL;
  __syncwarp();
  u32 least = __reduce_min_sync(ALL, rank_of(c.largest, best) < chosen ? best : ALL);
  // Candidates side by side, in order of their ids.
  u32 before = 0;
#pragma unroll
  for (u32 i = 0; i < 8; i++) {
    bool candidate = k[i] >= least && k[i] > 0;
    u32 all = __ballot_sync(ALL, candidate), at = before + __popc(all & ((1u << lane) - 1));
    if (candidate && at < 32) {
      c.key[at] = k[i];
      c.id[at] = i * 32 + lane;
    }
    before += __popc(all);
  }
  __syncwarp();
  if (before <= 32) {
    u32 key = c.key[lane], rank = rank_of(c.key, key);
    // Equal ones in order of ids, which is theirs here.
    if (__popc(__match_any_sync(ALL, key)) > 1 && key != 0)
      for (u32 i = 0; i < lane; i++) rank += c.key[i] == key;
    if (rank < chosen) ids[rank] = c.id[lane];
  } else {
    // Very many equal logits: one after the other, the lowest id of the largest.
    for (u32 n = 0; n < chosen; n++) {
      u32 m = max(max(max(k[0], k[1]), max(k[2], k[3])), max(max(k[4], k[5]), max(k[6], k[7])));
      u32 top = __reduce_max_sync(ALL, m), id = ALL;
#pragma unroll
      for (u32 i = 0; i < 8; i++) id = k[i] == top ? min(id, i * 32 + lane) : id;
      id = __reduce_min_sync(ALL, id);
#pragma unroll
      for (u32 i = 0; i < 8; i++) k[i] = id == i * 32 + lane ? 0 : k[i];
      if (lane == 0) ids[n] = id;
    }
  }
  __syncwarp();
  if (scores) {
    float v = lane < chosen ? load1(logits + ids[lane]) : -INFINITY, top = v;
    for (int o = 4; o; o >>= 1) top = fmaxf(top, __shfl_xor_sync(ALL, top, o));
    float e = lane < chosen ? __expf(v - top) : 0.0f, sum = e;
    for (int o = 4; o; o >>= 1) sum += __shfl_xor_sync(ALL, sum, o);
    if (lane < chosen) scores[lane] = e / sum;
    __syncwarp();
  }
}
