// The soft device: runs a dispatch one threadgroup at a time. Every thread is a fiber with its own stack; a fiber
// runs until it reaches a collective or a barrier. A simdgroup's collective is computed when all its lanes wait
// there; a threadgroup's barrier opens when all its threads do. The order in which lanes, simdgroups and
// threadgroups run is the natural one for seed 0 and a shuffled one otherwise.
//
// Kernels compiled with the thread sanitizer's instrumentation call the __tsan_* functions at every memory access;
// soft_check.hpp implements them: bounds, uninitialised threadgroup memory, races, bytes touched.
#include "soft_abi.h"

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;

#define LILY_API extern "C" __attribute__((visibility("default")))

// ---- what the host passes and gets -----------------------------------------------------------------------------

struct LilyBuffer {
  u32 index, writable;
  void* ptr;
  u64 len;
  const char* name;
};

struct LilyValue {
  u32 index, size;
  u64 bits;
};

struct LilyDispatch {
  u32 kernel, strict, seed, n_buffers, n_threadgroup, n_values;
  u32 grid[3], group[3];
  const LilyBuffer* buffers;
  const u32* threadgroup; // pairs: index, bytes
  const LilyValue* values;
};

// Kinds of faults; the host has the same list.
enum Fault : u32 {
  FAULT_NONE,
  FAULT_BOUNDS,
  FAULT_READ_ONLY,
  FAULT_UNINITIALISED,
  FAULT_RACE,
  FAULT_DIVERGENCE,
  FAULT_BARRIER,
  FAULT_THREADGROUP_MEMORY,
  FAULT_USAGE,
  FAULT_TENSOR,
};

struct LilyReport {
  u32 fault, site, other_site, threadgroup_bytes;
  u64 pc, other_pc; // offsets into this library, 0 where unknown
  u64 threads, collectives, barriers, divergent, switches;
  char message[512];
};

// ---- state -----------------------------------------------------------------------------------------------------

static const u32 MAX_THREADS = 1024, MAX_SIMDGROUPS = 32;
static const u64 STACK_BYTES = 256 * 1024;
static const u32 MAX_THREADGROUP_BYTES = 32 * 1024;
static const u64 ARENA_BYTES = 128 * 1024;
static const u64 RED_ZONE = 64;

struct Fiber {
  void* sp;
  LilyCollective fn; // null at a simdgroup barrier
  void* slot;
  u32 site, flags;
  LilyThread thread;
};

// Lanes of a simdgroup by what they do: one bit a lane.
struct Simdgroup {
  u32 exists, ready, simd, barrier, done;
};

struct Variable {
  const void* key;
  unsigned char* at;
  u64 size;
  const char* name;
};

struct State {
  Fiber fiber[MAX_THREADS];
  Simdgroup sg[MAX_SIMDGROUPS];
  u32 order[MAX_SIMDGROUPS];
  u32 n_threads, n_sg, cur, cur_sg;
  unsigned char* stacks;
  void* main_sp;
  void (*thunk)(const LilyArgs*);
  LilyArgs args;
  const LilyDispatch* d;
  LilyReport* report;
  u32 rng, rotate, reverse;
  // Threadgroup memory: dynamic arguments first, then variables in order of first use.
  unsigned char* arena;
  u64 arena_used, arena_dirty;
  u32 tg_bytes;
  Variable var[96];
  u32 n_dynamic, n_var;
};
static State S;

extern "C" {
void lily_switch(void** save_sp, void* load_sp);
void lily_fiber_entry();
}

#if defined(__x86_64__)
asm(R"(
.text
.globl lily_switch
.hidden lily_switch
lily_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.globl lily_fiber_entry
.hidden lily_fiber_entry
lily_fiber_entry:
  call lily_fiber_main
  ud2
)");
static const int SAVED_WORDS = 6;
#elif defined(__aarch64__)
#if defined(__APPLE__)
#define SYM "_"
#else
#define SYM ""
#endif
asm(".text\n.globl " SYM "lily_switch\n" SYM "lily_switch:\n"
    "  sub sp, sp, #160\n  stp x19, x20, [sp, #0]\n  stp x21, x22, [sp, #16]\n  stp x23, x24, [sp, #32]\n"
    "  stp x25, x26, [sp, #48]\n  stp x27, x28, [sp, #64]\n  stp x29, x30, [sp, #80]\n  stp d8, d9, [sp, #96]\n"
    "  stp d10, d11, [sp, #112]\n  stp d12, d13, [sp, #128]\n  stp d14, d15, [sp, #144]\n"
    "  mov x9, sp\n  str x9, [x0]\n  mov sp, x1\n"
    "  ldp x19, x20, [sp, #0]\n  ldp x21, x22, [sp, #16]\n  ldp x23, x24, [sp, #32]\n"
    "  ldp x25, x26, [sp, #48]\n  ldp x27, x28, [sp, #64]\n  ldp x29, x30, [sp, #80]\n  ldp d8, d9, [sp, #96]\n"
    "  ldp d10, d11, [sp, #112]\n  ldp d12, d13, [sp, #128]\n  ldp d14, d15, [sp, #144]\n  add sp, sp, #160\n  ret\n"
    ".globl " SYM "lily_fiber_entry\n" SYM "lily_fiber_entry:\n  bl " SYM "lily_fiber_main\n  brk #1\n");
#else
#error "the soft device's context switch knows x86-64 and aarch64"
#endif

// ---- ends ------------------------------------------------------------------------------------------------------

// Records the first fault of the dispatch and leaves the kernel for good.
static void fail(u32 kind, const char* format, ...) {
  LilyReport& r = *S.report;
  r.fault = kind;
  va_list ap;
  va_start(ap, format);
  vsnprintf(r.message, sizeof r.message, format, ap);
  va_end(ap);
  lily_switch(&S.fiber[S.cur].sp, S.main_sp);
  abort();
}

static const char* where() {
  static char text[128];
  const LilyThread& t = S.fiber[S.cur].thread;
  snprintf(text, sizeof text, "threadgroup (%u, %u, %u), simdgroup %u, lane %u", t.group_position[0],
           t.group_position[1], t.group_position[2], t.simdgroup, t.lane);
  return text;
}

static bool usage(const char* message) {
  S.report->fault = FAULT_USAGE;
  snprintf(S.report->message, sizeof S.report->message, "%s", message);
  return false;
}

static void* map(u64 bytes) {
  void* p = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return p == MAP_FAILED ? 0 : p;
}

#include "soft_check.hpp"

// ---- order -----------------------------------------------------------------------------------------------------

static u32 random_word() {
  u32 x = S.rng;
  x ^= x << 13;
  x ^= x >> 17;
  x ^= x << 5;
  return S.rng = x;
}

static void shuffle() {
  if (!S.d->seed) return;
  u32 r = random_word();
  S.rotate = r & 31;
  S.reverse = r >> 5 & 1;
  for (u32 i = S.n_sg; i > 1; i--) {
    u32 j = random_word() % i, t = S.order[i - 1];
    S.order[i - 1] = S.order[j];
    S.order[j] = t;
  }
}

// The lane of `mask` that runs next.
static u32 pick(u32 mask) {
  u32 m = S.rotate ? mask >> S.rotate | mask << (32 - S.rotate) : mask;
  u32 i = S.reverse ? 31 - u32(__builtin_clz(m)) : u32(__builtin_ctz(m));
  return (i + S.rotate) & 31;
}

static void run(u32 n) {
  u32 c = S.cur;
  S.cur = n;
  if (c != n) {
    S.report->switches++;
    lily_switch(&S.fiber[c].sp, S.fiber[n].sp);
  }
}

// All lanes of a simdgroup wait or are done, and some wait at a collective: computes one.
static void resolve(u32 g) {
  Simdgroup& s = S.sg[g];
  Fiber* f = &S.fiber[g * 32];
  u32 first = __builtin_ctz(s.simd), mask = 0;
  void* slots[32] = {};
  for (u32 i = 0; i < 32; i++)
    if (s.simd >> i & 1 && f[i].fn == f[first].fn && f[i].site == f[first].site) {
      mask |= 1u << i;
      slots[i] = f[i].slot;
    }
  S.report->collectives++;
  if (mask != ~0u) {
    S.report->divergent++;
    if (S.d->strict) {
      u32 elsewhere = (s.simd | s.barrier) & ~mask;
      S.report->site = f[first].site;
      S.report->other_site = elsewhere ? f[__builtin_ctz(elsewhere)].site : 0;
      S.cur = g * 32 + first;
      const char* why = s.done              ? "other lanes have returned"
                        : s.exists != ~0u   ? "the simdgroup has fewer than 32 threads"
                        : s.barrier & ~mask ? "other lanes wait at a threadgroup barrier"
                                            : "other lanes wait elsewhere";
      fail(FAULT_DIVERGENCE, "%s: only lanes %#x reach this operation of the simdgroup; %s", where(), mask, why);
    }
  }
  if (f[first].fn)
    f[first].fn(slots, mask);
  else
    check_simd_barrier(g, f[first].flags);
  s.simd &= ~mask;
  s.ready |= mask;
  shuffle();
}

// Nothing runs: opens the barrier; false when no thread is left.
static bool open_barrier() {
  u32 waiting = 0, site = 0, other = 0, flags = 0, a_thread = 0;
  for (u32 i = 0; i < S.n_threads; i++) {
    if (!(S.sg[i / 32].barrier >> (i % 32) & 1)) continue;
    Fiber& f = S.fiber[i];
    if (!waiting++) site = f.site, a_thread = i;
    if (f.site != site) other = f.site;
    flags |= f.flags;
  }
  if (!waiting) return false;
  S.report->barriers++;
  if (S.d->strict && (waiting != S.n_threads || other)) {
    S.report->site = site;
    S.report->other_site = other;
    S.cur = a_thread;
    if (other) fail(FAULT_BARRIER, "%s: threads of one threadgroup wait at different barriers", where());
    fail(FAULT_BARRIER, "%s: %u of %u threads reach this barrier; the others have returned", where(), waiting,
         S.n_threads);
  }
  check_barrier(flags);
  for (u32 g = 0; g < S.n_sg; g++) {
    S.sg[g].ready |= S.sg[g].barrier;
    S.sg[g].barrier = 0;
  }
  shuffle();
  return true;
}

static bool next_simdgroup() {
  for (u32 i = 0; i < S.n_sg; i++)
    if (S.sg[S.order[i]].ready | S.sg[S.order[i]].simd) {
      S.cur_sg = S.order[i];
      return true;
    }
  return false;
}

// The current fiber cannot go on: runs another, and returns when this one may.
static void schedule() {
  for (;;) {
    Simdgroup& s = S.sg[S.cur_sg];
    if (s.ready) {
      run(S.cur_sg * 32 + pick(s.ready));
      return;
    }
    if (s.simd) {
      resolve(S.cur_sg);
      // A shuffled schedule also changes simdgroups between barriers.
      if (S.d->seed && random_word() % 4 == 0) next_simdgroup();
      continue;
    }
    if (next_simdgroup()) continue;
    if (!open_barrier()) {
      lily_switch(&S.fiber[S.cur].sp, S.main_sp);
      return;
    }
    next_simdgroup();
  }
}

extern "C" void lily_fiber_main() {
  S.thunk(&S.args);
  Simdgroup& s = S.sg[S.cur / 32];
  s.ready &= ~(1u << S.cur % 32);
  s.done |= 1u << S.cur % 32;
  schedule();
  abort();
}

static void wait(u32 Simdgroup::*as, LilyCollective fn, void* slot, u32 flags, u32 site) {
  Fiber& f = S.fiber[S.cur];
  f.fn = fn;
  f.slot = slot;
  f.flags = flags;
  f.site = site;
  Simdgroup& s = S.sg[S.cur / 32];
  u32 bit = 1u << S.cur % 32;
  s.ready &= ~bit;
  s.*as |= bit;
  schedule();
}

const LilyThread* lily_thread() { return &S.fiber[S.cur].thread; }
void lily_collective(LilyCollective fn, void* slot, unsigned site) { wait(&Simdgroup::simd, fn, slot, 0, site); }
void lily_simd_barrier(unsigned flags, unsigned site) { wait(&Simdgroup::simd, 0, 0, flags, site); }
void lily_barrier(unsigned flags, unsigned site) { wait(&Simdgroup::barrier, 0, 0, flags, site); }

void lily_scope(unsigned simdgroups, unsigned site) {
  if (simdgroups != S.n_sg) {
    S.report->site = site;
    fail(FAULT_TENSOR, "%s: an operation of %u simdgroups in a threadgroup of %u", where(), simdgroups, S.n_sg);
  }
  lily_barrier(0, site);
}

void lily_bad_operand(const char* which, const int* sizes, const int* strides, int depth, int rows, unsigned site) {
  S.report->site = site;
  fail(FAULT_TENSOR, "%s: the %s operand has %d x %d elements, strides %d and %d; the tile is %d x %d, its elements neighbours",
       where(), which, sizes[0], sizes[1], strides[0], strides[1], depth, rows);
}

// ---- threadgroup memory ----------------------------------------------------------------------------------------

static unsigned char* allocate(u64 size, const void* key, const char* name) {
  if (S.n_var == sizeof S.var / sizeof S.var[0]) fail(FAULT_THREADGROUP_MEMORY, "too many threadgroup variables");
  u64 padded = (size + 15) & ~u64(15);
  if (size > MAX_THREADGROUP_BYTES || S.tg_bytes + padded > MAX_THREADGROUP_BYTES)
    fail(FAULT_THREADGROUP_MEMORY, "%s brings threadgroup memory to %llu bytes; the limit is %u", name,
         (unsigned long long)(S.tg_bytes + size), MAX_THREADGROUP_BYTES);
  S.tg_bytes += u32(padded);
  unsigned char* p = S.arena + S.arena_used + RED_ZONE;
  S.arena_used += padded + 2 * RED_ZONE;
  if (S.arena_used > S.arena_dirty) {
    memset(S.arena + S.arena_dirty, 0xff, S.arena_used - S.arena_dirty);
    S.arena_dirty = S.arena_used;
  }
  S.var[S.n_var++] = Variable{key, p, size, name};
  if (S.tg_bytes > S.report->threadgroup_bytes) S.report->threadgroup_bytes = S.tg_bytes;
  return p;
}

void* lily_threadgroup_variable(const void* key, unsigned long size, const char* name) {
  for (u32 i = S.n_dynamic; i < S.n_var; i++)
    if (S.var[i].key == key) return S.var[i].at;
  return allocate(size, key, name);
}

// ---- dispatch --------------------------------------------------------------------------------------------------

static void start_fiber(u32 i) {
  void** sp = (void**)(S.stacks + (i + 1) * STACK_BYTES - 64);
#if defined(__x86_64__)
  *--sp = 0; // keeps the entry's stack aligned to 16 bytes before its call
  *--sp = 0;
  *--sp = (void*)lily_fiber_entry;
  for (int k = 0; k < SAVED_WORDS; k++) *--sp = 0;
#else
  sp -= 20;
  memset(sp, 0, 160);
  sp[11] = (void*)lily_fiber_entry;
#endif
  S.fiber[i].sp = sp;
}

static void run_group(const u32 position[3]) {
  const LilyDispatch& d = *S.d;
  memset(S.arena, 0xff, S.arena_dirty);
  // Variables are found anew; dynamic arguments keep their places.
  S.n_var = S.n_dynamic;
  S.arena_used = 0;
  S.tg_bytes = 0;
  for (u32 i = 0; i < S.n_dynamic; i++) {
    u64 padded = (S.var[i].size + 15) & ~u64(15);
    S.arena_used += padded + 2 * RED_ZONE;
    S.tg_bytes += u32(padded);
  }
  check_group();
  for (u32 g = 0; g < S.n_sg; g++) {
    u32 left = S.n_threads - g * 32, mask = left >= 32 ? ~0u : (1u << left) - 1;
    S.sg[g] = Simdgroup{mask, mask, 0, 0, 0};
  }
  for (u32 i = 0; i < S.n_threads; i++) {
    start_fiber(i);
    LilyThread& t = S.fiber[i].thread;
    u32 p[3] = {i % d.group[0], i / d.group[0] % d.group[1], i / (d.group[0] * d.group[1])};
    for (int k = 0; k < 3; k++) {
      t.position_in_group[k] = p[k];
      t.group_position[k] = position[k];
      t.group_size[k] = d.group[k];
      t.grid_groups[k] = d.grid[k];
    }
    t.simdgroup = i / 32;
    t.lane = i % 32;
    t.index = i;
    t.simdgroups = S.n_sg;
  }
  S.report->threads += S.n_threads;
  shuffle();
  S.cur_sg = S.order[0];
  S.cur = S.cur_sg * 32 + pick(S.sg[S.cur_sg].ready);
  lily_switch(&S.main_sp, S.fiber[S.cur].sp);
}

static bool prepare() {
  const LilyDispatch& d = *S.d;
  if (d.kernel >= lily_table.n_kernels) return usage("no such kernel");
  u64 n = u64(d.group[0]) * d.group[1] * d.group[2];
  if (n == 0 || n > MAX_THREADS) return usage("a threadgroup has 1 to 1024 threads");
  if (!S.stacks) S.stacks = (unsigned char*)map(MAX_THREADS * STACK_BYTES);
  if (!S.arena) S.arena = (unsigned char*)map(ARENA_BYTES);
  if (!S.stacks || !S.arena) return usage("no memory for the fibers' stacks");
  S.n_threads = u32(n);
  S.n_sg = (S.n_threads + 31) / 32;
  S.rng = d.seed * 2654435761u + 0x9e3779b9u;
  if (!S.rng) S.rng = 1;
  S.rotate = S.reverse = 0;
  for (u32 i = 0; i < S.n_sg; i++) S.order[i] = i;
  S.thunk = lily_table.kernels[d.kernel].thunk;
  memset(&S.args, 0, sizeof S.args);
  for (u32 i = 0; i < lily_table.n_constants; i++) {
    const LilyConstant& c = lily_table.constants[i];
    *c.defined = false;
    memset(c.value, 0, c.size);
    for (u32 k = 0; k < d.n_values; k++)
      if (d.values[k].index == c.index) {
        if (d.values[k].size != c.size) return usage("a function constant has another size than its value");
        memcpy(c.value, &d.values[k].bits, c.size);
        *c.defined = true;
      }
  }
  S.n_var = S.n_dynamic = 0;
  S.tg_bytes = 0;
  S.arena_used = 0;
  for (u32 i = 0; i < d.n_threadgroup; i++) {
    u32 index = d.threadgroup[2 * i], bytes = d.threadgroup[2 * i + 1];
    if (index > 30 || S.tg_bytes + u64(bytes) > MAX_THREADGROUP_BYTES)
      return usage("threadgroup memory of the dispatch is over 32768 bytes, or its index over 30");
    S.args.threadgroup[index] = allocate(bytes, 0, "threadgroup argument");
  }
  S.n_dynamic = S.n_var;
  for (u32 i = 0; i < d.n_buffers; i++) {
    if (d.buffers[i].index > 30) return usage("a buffer's index is over 30");
    S.args.buffer[d.buffers[i].index] = d.buffers[i].ptr;
  }
  return check_prepare();
}

static u64 gcd(u64 a, u64 b) { return b ? gcd(b, a % b) : a; }

// Runs a dispatch; 0 when it ended without a fault.
LILY_API int lily_dispatch(const LilyDispatch* d, LilyReport* report) {
  memset(report, 0, sizeof *report);
  S.d = d;
  S.report = report;
  if (prepare()) {
    u64 total = u64(d->grid[0]) * d->grid[1] * d->grid[2], step = 1, at = 0;
    if (d->seed && total > 1) {
      do step = random_word() % total + 1;
      while (gcd(step, total) != 1);
      at = random_word() % total;
    }
    for (u64 i = 0; i < total && !report->fault; i++, at = (at + step) % total) {
      u32 position[3] = {u32(at % d->grid[0]), u32(at / d->grid[0] % d->grid[1]),
                         u32(at / (u64(d->grid[0]) * d->grid[1]))};
      run_group(position);
    }
    check_finish();
  }
  return int(report->fault);
}

LILY_API u32 lily_kernel_count() { return lily_table.n_kernels; }
LILY_API const char* lily_kernel_name(u32 i) { return i < lily_table.n_kernels ? lily_table.kernels[i].name : 0; }
