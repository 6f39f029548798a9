// Checks of an instrumented dispatch. Part of soft_rt.cpp.
//
// Buffers are copied into regions with guards around them, so that an access beside a buffer is an access to
// nothing. A region keeps one bit a byte for reads and for writes, and, where it may be written, who accessed
// each byte last. Time is a counter that every barrier advances: an access is ordered before another of the same
// threadgroup when a barrier of the threadgroup (or of the simdgroup, for lanes of one) that covers that memory
// lies between. Accesses of different threadgroups of one dispatch are never ordered.
#if defined(LILY_CHECKED)

static const u64 GUARD_BYTES = 64 * 1024;

enum Readers : u8 { ONE_THREAD, ONE_SIMDGROUP, SEVERAL_SIMDGROUPS, SEVERAL_GROUPS };

// The last accesses of a byte. Stamps are times; 0 is never.
struct Cell {
  u32 write_stamp, read_stamp;
  u16 write_thread, read_thread;
  u8 write_atomic, read_atomic;
  u8 readers; // see Readers
  u32 write_pc, read_pc;
};

struct Region {
  unsigned char *base, *host, *mapping;
  u64 len, mapped;
  bool writable;
  u64 *read_bits, *write_bits;
  Cell* cells; // null for a region that nothing may write
};

static struct {
  Region region[31];
  u32 n_regions, last;
  Cell* arena_cells;
  u32 clock, group_start;
  u32 group_sync[2];               // by memory: 0 device, 1 threadgroup
  u32 simd_sync[MAX_SIMDGROUPS][2];
} C;

// This library in memory: its first byte and the end of its data.
#if defined(__APPLE__)
extern "C" char __dso_handle;
static char* const IMAGE = &__dso_handle;
static char* const IMAGE_END = &__dso_handle + (64 << 20);
#else
extern "C" char __ehdr_start __attribute__((visibility("hidden")));
extern "C" char _end __attribute__((visibility("hidden")));
static char* const IMAGE = &__ehdr_start;
static char* const IMAGE_END = &_end;
#endif

static u32 offset_of(void* pc) { return u32((char*)pc - IMAGE); }

static void mark(u64* bits, u64 at, u64 n) {
  for (u64 end = at + n; at < end;) {
    u64 word = at / 64, bit = at % 64, take = 64 - bit < end - at ? 64 - bit : end - at;
    bits[word] |= (take == 64 ? ~u64(0) : ((u64(1) << take) - 1)) << bit;
    at += take;
  }
}

// Whether an access of thread `who` at `stamp` comes before everything thread `me` does now.
static bool ordered(u32 stamp, u32 who, u32 me, u32 memory) {
  if (stamp < C.group_start) return false; // another threadgroup
  if (who == me || stamp < C.group_sync[memory]) return true;
  return who / 32 == me / 32 && stamp < C.simd_sync[me / 32][memory];
}

static void race(const char* what, u64 at, u32 n, bool write, u32 other, bool other_write, u32 other_stamp,
                 void* pc, u32 other_pc) {
  S.report->pc = offset_of(pc);
  S.report->other_pc = other_pc;
  char who[64];
  if (other_stamp < C.group_start)
    snprintf(who, sizeof who, "another threadgroup");
  else
    snprintf(who, sizeof who, "thread %u (simdgroup %u, lane %u)", other, other / 32, other % 32);
  fail(FAULT_RACE, "%s: %s %u bytes at byte %llu of %s, which %s %s; no barrier lies between", where(),
       write ? "writes" : "reads", n, (unsigned long long)at, what, who, other_write ? "writes" : "reads");
}

// Whether all recorded reads of a byte come before what thread `me` does now.
static bool reads_ordered(const Cell& c, u32 me, u32 memory) {
  if (c.readers == SEVERAL_GROUPS || c.read_stamp < C.group_start) return false;
  if (c.readers == ONE_THREAD) return ordered(c.read_stamp, c.read_thread, me, memory);
  if (c.read_stamp < C.group_sync[memory]) return true;
  return c.readers == ONE_SIMDGROUP && c.read_thread / 32 == me / 32 && c.read_stamp < C.simd_sync[me / 32][memory];
}

static void order(Cell* cells, u64 at, u32 n, bool write, bool atomic, u32 memory, const char* what, void* pc) {
  u32 me = S.cur;
  for (u64 i = at; i < at + n; i++) {
    Cell& c = cells[i];
    if (c.write_stamp && !(atomic && c.write_atomic) && !ordered(c.write_stamp, c.write_thread, me, memory))
      race(what, i, n, write, c.write_thread, true, c.write_stamp, pc, c.write_pc);
    if (write) {
      if (c.read_stamp && !(atomic && c.read_atomic) && !reads_ordered(c, me, memory))
        race(what, i, n, true, c.read_thread, false, c.read_stamp, pc, c.read_pc);
      c.write_stamp = C.clock;
      c.write_thread = u16(me);
      c.write_atomic = atomic;
      c.write_pc = offset_of(pc);
      c.read_stamp = 0; // whoever comes after this write comes after those reads
    } else {
      if (!c.read_stamp || reads_ordered(c, me, memory)) {
        c.readers = ONE_THREAD;
        c.read_atomic = atomic;
      } else {
        if (c.read_stamp < C.group_start)
          c.readers = SEVERAL_GROUPS;
        else if (c.readers < SEVERAL_GROUPS)
          c.readers = c.readers != SEVERAL_SIMDGROUPS && c.read_thread / 32 == me / 32 ? ONE_SIMDGROUP : SEVERAL_SIMDGROUPS;
        c.read_atomic &= atomic;
      }
      c.read_stamp = C.clock;
      c.read_thread = u16(me);
      c.read_pc = offset_of(pc);
    }
  }
}

static void outside(u64 at, u32 n, bool write, void* pc) {
  S.report->pc = offset_of(pc);
  const char* verb = write ? "writes" : "reads";
  if (at < 4096) fail(FAULT_BOUNDS, "%s: %s %u bytes through a null pointer (unbound argument?)", where(), verb, n);
  // Name the nearest argument.
  const LilyBuffer* best = 0;
  u64 distance = ~u64(0);
  long long offset = 0;
  for (u32 i = 0; i < S.d->n_buffers; i++) {
    const LilyBuffer& b = S.d->buffers[i];
    u64 base = u64(S.args.buffer[b.index]), end = base + b.len, far = at < base ? base - at : at >= end ? at - end : 0;
    if (far < distance) distance = far, best = &b, offset = (long long)(at - base);
  }
  if (best && distance < GUARD_BYTES)
    fail(FAULT_BOUNDS, "%s: %s %u bytes at byte %lld of buffer %u (%s), which has %llu bytes", where(), verb, n,
         offset, best->index, best->name, (unsigned long long)best->len);
  fail(FAULT_BOUNDS, "%s: %s %u bytes outside every bound buffer", where(), verb, n);
}

static void threadgroup_access(u64 a, u32 n, bool write, bool atomic, void* pc) {
  const char* verb = write ? "writes" : "reads";
  for (u32 i = 0; i < S.n_var; i++) {
    Variable& v = S.var[i];
    u64 at = a - u64(v.at);
    if (at >= v.size || n > v.size - at) continue;
    u64 cell = a - u64(S.arena);
    if (!write)
      for (u64 k = cell; k < cell + n; k++)
        if (C.arena_cells[k].write_stamp < C.group_start) {
          S.report->pc = offset_of(pc);
          fail(FAULT_UNINITIALISED, "%s: reads %u bytes at byte %llu of threadgroup memory %s before anything is written there",
               where(), n, (unsigned long long)at, v.name);
        }
    for (u64 k = cell; k < cell + n; k++) {
      // Of threadgroup memory only this threadgroup's accesses count.
      Cell& c = C.arena_cells[k];
      if (c.write_stamp < C.group_start) c.write_stamp = 0;
      if (c.read_stamp < C.group_start) c.read_stamp = 0;
    }
    order(C.arena_cells + (u64(v.at) - u64(S.arena)), at, n, write, atomic, 1, v.name, pc);
    return;
  }
  S.report->pc = offset_of(pc);
  const Variable* best = 0;
  u64 distance = ~u64(0);
  for (u32 i = 0; i < S.n_var; i++) {
    u64 base = u64(S.var[i].at), end = base + S.var[i].size, far = a < base ? base - a : a >= end ? a - end : 0;
    if (far < distance) distance = far, best = &S.var[i];
  }
  long long offset = best ? (long long)(a - u64(best->at)) : 0;
  fail(FAULT_BOUNDS, "%s: %s %u bytes at byte %lld of threadgroup memory %s, which has %llu bytes", where(), verb, n,
       offset, best ? best->name : "?", (unsigned long long)(best ? best->size : 0));
}

static void access(const volatile void* p, u64 n, bool write, bool atomic, void* pc) {
  u64 a = u64(p);
  if (a - u64(S.stacks) < MAX_THREADS * STACK_BYTES) return;
  if (a - u64(S.arena) < ARENA_BYTES) return threadgroup_access(a, u32(n), write, atomic, pc);
  Region* r = &C.region[C.last];
  if (C.n_regions == 0 || a - u64(r->base) >= r->len || n > r->len - (a - u64(r->base))) {
    u32 i = 0;
    for (; i < C.n_regions; i++) {
      r = &C.region[i];
      if (a - u64(r->base) < r->len && n <= r->len - (a - u64(r->base))) break;
    }
    if (i == C.n_regions) {
      if (!write && a >= u64(IMAGE) && a < u64(IMAGE_END)) return; // constant tables of the kernels
      return outside(a, u32(n), write, pc);
    }
    C.last = i;
  }
  u64 at = a - u64(r->base);
  if (write && !r->writable) {
    S.report->pc = offset_of(pc);
    fail(FAULT_READ_ONLY, "%s: writes %u bytes at byte %llu of a buffer bound for reading", where(), u32(n),
         (unsigned long long)at);
  }
  if (!write || atomic) mark(r->read_bits, at, n);
  if (write) mark(r->write_bits, at, n);
  if (r->cells) order(r->cells, at, u32(n), write, atomic, 0, "a buffer", pc);
}

static void check_simd_barrier(u32 g, u32 flags) {
  for (u32 m = 0; m < 2; m++)
    if (flags >> m & 1) C.simd_sync[g][m] = ++C.clock;
}

static void check_barrier(u32 flags) {
  for (u32 m = 0; m < 2; m++)
    if (flags >> m & 1) C.group_sync[m] = ++C.clock;
}

static void check_group() {
  C.group_start = ++C.clock;
  memset(C.group_sync, 0, sizeof C.group_sync);
  memset(C.simd_sync, 0, sizeof C.simd_sync);
}

static void release_regions() {
  for (u32 i = 0; i < C.n_regions; i++) {
    Region& r = C.region[i];
    if (r.mapping) munmap(r.mapping, r.mapped);
    if (r.read_bits) munmap(r.read_bits, r.len / 8 + 16);
    if (r.write_bits) munmap(r.write_bits, r.len / 8 + 16);
    if (r.cells) munmap(r.cells, r.len * sizeof(Cell));
  }
  memset(C.region, 0, sizeof C.region);
  C.n_regions = C.last = 0;
}

// Buffers that overlap share a region.
static bool check_prepare() {
  const LilyDispatch& d = *S.d;
  release_regions();
  C.clock = 0;
  if (!C.arena_cells) C.arena_cells = (Cell*)map(ARENA_BYTES * sizeof(Cell));
  if (!C.arena_cells) return usage("no memory for the checks");
  memset(C.arena_cells, 0, ARENA_BYTES * sizeof(Cell));
  for (u32 i = 0; i < d.n_buffers; i++) {
    unsigned char *lo = (unsigned char*)d.buffers[i].ptr, *hi = lo + d.buffers[i].len;
    bool writable = d.buffers[i].writable;
    if (lo == hi) continue;
    for (u32 k = 0; k < C.n_regions;) {
      Region& r = C.region[k];
      if (lo < r.host + r.len && r.host < hi) {
        if (r.host + r.len > hi) hi = r.host + r.len;
        if (r.host < lo) lo = r.host;
        writable |= r.writable;
        r = C.region[--C.n_regions];
        memset(&C.region[C.n_regions], 0, sizeof(Region));
        k = 0;
      } else
        k++;
    }
    Region& r = C.region[C.n_regions++];
    r.host = lo;
    r.len = u64(hi - lo);
    r.writable = writable;
  }
  for (u32 i = 0; i < C.n_regions; i++) {
    Region& r = C.region[i];
    r.mapped = r.len + 2 * GUARD_BYTES + 4096;
    r.mapping = (unsigned char*)map(r.mapped);
    r.read_bits = (u64*)map(r.len / 8 + 16);
    r.write_bits = (u64*)map(r.len / 8 + 16);
    if (r.writable) r.cells = (Cell*)map(r.len * sizeof(Cell));
    if (!r.mapping || !r.read_bits || !r.write_bits || (r.writable && !r.cells))
      return usage("no memory for a checked copy of the buffers");
    r.base = r.mapping + GUARD_BYTES + (u64(r.host) & 4095); // the same alignment as the host's
    memcpy(r.base, r.host, r.len);
  }
  for (u32 i = 0; i < d.n_buffers; i++)
    for (u32 k = 0; k < C.n_regions; k++) {
      Region& r = C.region[k];
      unsigned char* p = (unsigned char*)d.buffers[i].ptr;
      if (d.buffers[i].len && p >= r.host && p < r.host + r.len)
        S.args.buffer[d.buffers[i].index] = r.base + (p - r.host);
    }
  return true;
}

static void check_finish() {
  for (u32 i = 0; i < C.n_regions; i++) {
    Region& r = C.region[i];
    if (r.writable && r.base) memcpy(r.host, r.base, r.len);
  }
}

// The byte ranges of a bound buffer that the last dispatch read (or wrote), as pairs start, end. Gives their
// number; writes at most `capacity` of them. Buffers that share memory share what happened to it.
LILY_API u64 lily_touched(const void* host, u64 len, u32 write, u64* out, u64 capacity) {
  u64 n = 0;
  for (u32 i = 0; i < C.n_regions; i++) {
    Region& r = C.region[i];
    const unsigned char* p = (const unsigned char*)host;
    if (!len || !r.base || p < r.host || p >= r.host + r.len) continue;
    const u64* bits = write ? r.write_bits : r.read_bits;
    u64 from = u64(p - r.host), end = from + len, start = 0;
    bool open = false;
    for (u64 k = from; k < end;) {
      u64 word = bits[k / 64];
      // Whole words of one kind are skipped at once.
      if (k % 64 == 0 && k + 64 <= end && (word == 0 || word == ~u64(0)) && open == (word != 0)) {
        k += 64;
        continue;
      }
      bool set = word >> (k % 64) & 1;
      if (set != open) {
        if (set)
          start = k;
        else {
          if (n < capacity) out[2 * n] = start - from, out[2 * n + 1] = k - from;
          n++;
        }
        open = set;
      }
      k++;
    }
    if (open) {
      if (n < capacity) out[2 * n] = start - from, out[2 * n + 1] = end - from;
      n++;
    }
  }
  return n;
}

void lily_atomic(const volatile void* p, unsigned size, bool write) {
  access(p, size, write, true, __builtin_return_address(0));
}

void lily_read(const void* p, unsigned size) { access(p, size, false, false, __builtin_return_address(0)); }

// ---- what the instrumentation calls ----------------------------------------------------------------------------

#define ACCESS(name, n, write) \
  extern "C" void name(void* p) { access(p, n, write, false, __builtin_return_address(0)); }
#define ACCESSES(n)                                                                            \
  ACCESS(__tsan_read##n, n, false)                                                             \
  ACCESS(__tsan_write##n, n, true)                                                             \
  ACCESS(__tsan_unaligned_read##n, n, false)                                                   \
  ACCESS(__tsan_unaligned_write##n, n, true)                                                   \
  ACCESS(__tsan_volatile_read##n, n, false)                                                    \
  ACCESS(__tsan_volatile_write##n, n, true)                                                    \
  ACCESS(__tsan_unaligned_volatile_read##n, n, false)                                          \
  ACCESS(__tsan_unaligned_volatile_write##n, n, true)
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)
extern "C" {
void __tsan_read_range(void* p, u64 n) { access(p, n, false, false, __builtin_return_address(0)); }
void __tsan_write_range(void* p, u64 n) { access(p, n, true, false, __builtin_return_address(0)); }
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void* __tsan_memcpy(void* d, const void* s, u64 n) {
  access(s, n, false, false, __builtin_return_address(0));
  access(d, n, true, false, __builtin_return_address(0));
  return memcpy(d, s, n);
}
void* __tsan_memset(void* d, int c, u64 n) {
  access(d, n, true, false, __builtin_return_address(0));
  return memset(d, c, n);
}
}

#else

static void check_simd_barrier(u32, u32) {}
static void check_barrier(u32) {}
static void check_group() {}
static bool check_prepare() { return true; }
static void check_finish() {}
void lily_atomic(const volatile void*, unsigned, bool) {}
void lily_read(const void*, unsigned) {}

#endif
