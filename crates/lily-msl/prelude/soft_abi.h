// Between kernels compiled for the soft device and its scheduler. No standard headers: the kernels' translation
// unit includes this, and their names (half, uint, exp) must stay free.
#pragma once

// What a thread is told about itself. Positions and sizes are x, y, z.
struct LilyThread {
  unsigned position_in_group[3], group_position[3], group_size[3], grid_groups[3];
  unsigned simdgroup, lane, index, simdgroups;
};

// The arguments of a dispatch, by index.
struct LilyArgs {
  void* buffer[31];
  void* threadgroup[31];
};

struct LilyKernel {
  const char* name;
  void (*thunk)(const LilyArgs*);
};

struct LilyConstant {
  unsigned index;
  void* value;
  unsigned size;
  bool* defined;
};

// All that the kernels' translation unit offers.
struct LilyTable {
  const LilyKernel* kernels;
  unsigned n_kernels;
  const LilyConstant* constants;
  unsigned n_constants;
};

// Computes a collective for the lanes of `mask`; `slots[lane]` is that lane's argument.
typedef void (*LilyCollective)(void** slots, unsigned mask);

extern "C" {
extern const LilyTable lily_table;
const LilyThread* lily_thread();
void lily_collective(LilyCollective fn, void* slot, unsigned site);
// Flags are those of mem_flags: 1 device memory, 2 threadgroup memory.
void lily_simd_barrier(unsigned flags, unsigned site);
void lily_barrier(unsigned flags, unsigned site);
// The memory of a threadgroup variable; the same key gives the same memory within a threadgroup.
void* lily_threadgroup_variable(const void* key, unsigned long size, const char* name);
// All threads of a threadgroup of so many simdgroups wait for each other. Orders no memory.
void lily_scope(unsigned simdgroups, unsigned site);
// Announces that an operation reads `size` bytes for this thread.
void lily_read(const void* p, unsigned size);
// Ends a dispatch: an operand of a tensor operation is no tile of `depth` x `rows`.
void lily_bad_operand(const char* which, const int* sizes, const int* strides, int depth, int rows, unsigned site);
// Announces an atomic access of `size` bytes.
void lily_atomic(const volatile void* p, unsigned size, bool write);
}
