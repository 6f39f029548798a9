// Tensor operations with one type error on each line marked BAD, which Metal's compiler refuses too.
#include <metal_stdlib>
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace metal;

typedef tensor<threadgroup half, dextents<int32_t, 2>, tensor_inline> Halves;
typedef tensor<threadgroup const half, dextents<int32_t, 2>, tensor_inline> ConstHalves;
typedef tensor<threadgroup int, dextents<int32_t, 2>, tensor_inline> Ints;
typedef tensor<threadgroup float, dextents<int32_t, 2>, tensor_inline> Floats;
typedef tensor<device float, dextents<int32_t, 2>, tensor_inline> DeviceFloats;
typedef mpp::tensor_ops::matmul2d<
    mpp::tensor_ops::matmul2d_descriptor(32, 64, 32, false, true, false,
                                         mpp::tensor_ops::matmul2d_descriptor::mode::multiply_accumulate),
    execution_simdgroups<4>>
    Product;

[[kernel, max_total_threads_per_threadgroup(128)]] void product(device float* y [[buffer(0)]],
                                                                uint tid [[thread_index_in_threadgroup]]) {
  threadgroup half a[32 * 32];
  threadgroup half b[64 * 32];
  threadgroup float c[32 * 64];
  a[tid] = half(1.0f);
  Halves left = Halves(a, dextents<int32_t, 2>(32, 32), array<int32_t, 2>{1, 32});
  Halves right = Halves(b, dextents<int32_t, 2>(32, 64), array<int32_t, 2>{1, 32});
  Floats to = Floats(c, dextents<int32_t, 2>(64, 32), array<int32_t, 2>{1, 64});
  DeviceFloats out = DeviceFloats(y, dextents<int32_t, 2>(64, 32), array<int32_t, 2>{1, 64});
  Product op;
  auto sums = op.get_destination_cooperative_tensor<Halves, Halves, float>();
  for (ushort i = 0; i < sums.get_capacity(); i++)
    if (sums.is_valid_element(i)) sums[i] = 0.0f;
  op.run(left, right, sums);
  sums.store(to);
  sums.store(out);
  Halves device_memory = Halves(y, dextents<int32_t, 2>(32, 32), array<int32_t, 2>{1, 32});  // BAD
  Halves unsigned_sizes = Halves(a, dextents<int32_t, 2>(32u, 32u), array<int32_t, 2>{1, 32});  // BAD
  Halves one_size = Halves(a, dextents<int32_t, 2>(32), array<int32_t, 2>{1, 32});  // BAD
  Halves unsigned_strides = Halves(a, dextents<int32_t, 2>(32, 32), array<uint, 2>{1, 32});  // BAD
  op.run(Halves(a, dextents<int32_t, 2>(32, 32), array<int32_t, 2>{1, 32}), right, sums);  // BAD
  op.run(left, sums, right);  // BAD
  sums.store(left);  // BAD
  sums.store(a);  // BAD
  auto of_halves = op.get_destination_cooperative_tensor<Halves, Halves, half>();
  of_halves.store(to);  // BAD
  sums = sums;  // BAD
  sums[0] = y;  // BAD
}
