// Matrix instructions of a warpgroup (128 threads, Hopper's wgmma) on tiles in shared memory.
//
// Tiles have rows of 128 bytes, 64 halves; the 16-byte piece p of row r lies at piece p ^ (r % 8), which is what the
// instructions call 128-byte swizzling. A tile starts at a multiple of 1,024 bytes; wider matrices are several tiles.
// The sums of an instruction with N columns: thread 32 w + 4 g + t has rows 16 w + g and 16 w + g + 8, columns 8 i + 2 t and
// the next one, for i < N / 8: d[4 i], d[4 i + 1] of the first row, d[4 i + 2], d[4 i + 3] of the second.

// Before the first instruction of a series, and after registers it takes have changed.
DEVICE void warpgroup_enter() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
// Ends a series.
DEVICE void warpgroup_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until at most the newest `LEFT` series are under way.
template <int LEFT> DEVICE void warpgroup_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory"); }
// What this thread has seen in shared memory is seen by the matrix instructions it starts.
DEVICE void async_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// Registers per thread of this warpgroup from here on.
template <u32 N> DEVICE void registers_more() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N)); }
template <u32 N> DEVICE void registers_less() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N)); }
// Keeps uses of sums behind the wait for them.
template <u32 N> DEVICE void settle(float (&d)[N]) {
#pragma unroll
  for (u32 i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}

// Where an operand lies: `leading` bytes between tiles side by side (only for transposed ones), 1,024 bytes between
// groups of eight rows.
DEVICE u64 tile_at(u32 address, u32 leading) {
  return (u64)(address >> 4 & 0x3fff) | (u64)(leading >> 4) << 16 | (u64)(1024 >> 4) << 32 | 1ull << 62;
}

// The same for rows of 32 bytes: the 16-byte piece p of row r lies at piece p ^ (r / 4 % 2), 256 bytes between groups of eight rows.
DEVICE u64 narrow_tile_at(u32 address) {
  return (u64)(address >> 4 & 0x3fff) | (u64)1 << 16 | (u64)(256 >> 4) << 32 | 3ull << 62;
}

#define SUMS4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SUMS16(d, i) SUMS4(d, i), SUMS4(d, i + 4), SUMS4(d, i + 8), SUMS4(d, i + 12)
#define SUMS32(d, i) SUMS16(d, i), SUMS16(d, i + 16)

// Names of the sums' registers in an instruction.
#define NAMES16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define NAMES24 NAMES16 ", " "%16, %17, %18, %19, %20, %21, %22, %23"
#define NAMES32 NAMES16 ", " "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES40 NAMES32 ", " "%32, %33, %34, %35, %36, %37, %38, %39"
#define NAMES48 NAMES32 ", " "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define NAMES64 NAMES48 ", " "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define NAMES96 NAMES64 ", " "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79" ", " "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define NAMES128 NAMES96 ", " "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" ", " "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

// d = A B + (keep ? d : 0): 64 rows of A, 16 values deep, from registers (a[0] row g, values 2 t and 2 t + 1; a[1] row
// g + 8; a[2], a[3] the same at 8 + 2 t), times N columns of B: rows of its tile, or, TRANSPOSED, columns. The operands behind
// the N / 2 sums are named A, B and KEEP.
#define WARPGROUP_MULTIPLY(NAME, SUMS, N, A, B, KEEP, TRANSPOSED, ...)                                                    \
  DEVICE void NAME(float (&d)[SUMS], const u32* a, u64 b, u32 keep) {                                                     \
    asm volatile("{\n .reg .pred keep;\n setp.ne.b32 keep, " KEEP ", 0;\n"                                               \
                 " wgmma.mma_async.sync.aligned.m64n" N "k16.f32.f16.f16 {" NAMES##SUMS "}, {" A "}, " B                \
                 ", keep, 1, 1, " TRANSPOSED ";\n}"                                                                       \
                 : __VA_ARGS__                                                                                            \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep));                                        \
  }
WARPGROUP_MULTIPLY(warpgroup_multiply, 16, "32", "%16, %17, %18, %19", "%20", "%21", "0", SUMS16(d, 0))
WARPGROUP_MULTIPLY(warpgroup_multiply, 24, "48", "%24, %25, %26, %27", "%28", "%29", "0", SUMS16(d, 0), SUMS4(d, 16), SUMS4(d, 20))
WARPGROUP_MULTIPLY(warpgroup_multiply, 32, "64", "%32, %33, %34, %35", "%36", "%37", "0", SUMS32(d, 0))
WARPGROUP_MULTIPLY(warpgroup_multiply, 40, "80", "%40, %41, %42, %43", "%44", "%45", "0", SUMS32(d, 0), SUMS4(d, 32), SUMS4(d, 36))
WARPGROUP_MULTIPLY(warpgroup_multiply, 48, "96", "%48, %49, %50, %51", "%52", "%53", "0", SUMS32(d, 0), SUMS16(d, 32))
WARPGROUP_MULTIPLY(warpgroup_multiply, 64, "128", "%64, %65, %66, %67", "%68", "%69", "0", SUMS32(d, 0), SUMS32(d, 32))
WARPGROUP_MULTIPLY(warpgroup_multiply, 96, "192", "%96, %97, %98, %99", "%100", "%101", "0", SUMS32(d, 0), SUMS32(d, 32), SUMS32(d, 64))
WARPGROUP_MULTIPLY(warpgroup_multiply, 128, "256", "%128, %129, %130, %131", "%132", "%133", "0", SUMS32(d, 0), SUMS32(d, 32), SUMS32(d, 64), SUMS32(d, 96))
WARPGROUP_MULTIPLY(warpgroup_multiply_transposed, 128, "256", "%128, %129, %130, %131", "%132", "%133", "1", SUMS32(d, 0), SUMS32(d, 32), SUMS32(d, 64), SUMS32(d, 96))
// The same with A from shared memory.
DEVICE void warpgroup_multiply(float (&d)[32], u64 a, u64 b, u32 keep) {
  asm volatile(
      "{\n .reg .pred keep;\n setp.ne.b32 keep, %34, 0;\n"
      " wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" NAMES32 "}, %32, %33, keep, 1, 1, 0, 0;\n}"
      : SUMS32(d, 0)
      : "l"(a), "l"(b), "r"(keep));
}
