// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/backend/reduce_impl.h>

#include <ATen/ops/add.h>
#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/bitwise_or.h>
#include <ATen/ops/bitwise_xor.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/mul.h>
#include <dtensor/comm/backend/reduce_loops_impl.h>
#include <dtensor/comm/group/backend_call_impl.h>

namespace dtensor::detail {
namespace {

// Size from which tensor operators are faster than the bf16 loops here. Tensor
// operators use newer bf16 instructions, but take more steps to start.
constexpr int64_t kLongBF16Bytes = 1 << 15;

bool is_arithmetic(ReduceOp op) {
  return op == ReduceOp::kSum || op == ReduceOp::kAvg ||
      op == ReduceOp::kProduct;
}

// out = a op b; out may be a.
void combine(
    at::Tensor& out,
    const at::Tensor& a,
    const at::Tensor& b,
    ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
      at::add_out(out, a, b);
      return;
    case ReduceOp::kMin:
      at::minimum_out(out, a, b);
      return;
    case ReduceOp::kMax:
      at::maximum_out(out, a, b);
      return;
    case ReduceOp::kProduct:
      at::mul_out(out, a, b);
      return;
    case ReduceOp::kBand:
      at::bitwise_and_out(out, a, b);
      return;
    case ReduceOp::kBor:
      at::bitwise_or_out(out, a, b);
      return;
    case ReduceOp::kBxor:
      at::bitwise_xor_out(out, a, b);
      return;
  }
}

} // namespace

void reduce_into(
    const at::Tensor& out,
    c10::ArrayRef<at::Tensor> inputs,
    ReduceOp op) {
  if (inputs.size() == 1) {
    out.copy_(inputs[0]);
    return;
  }
  at::Tensor sum = out;
  // LibTorch itself computes a sum of two half values in float32 and rounds
  // once; an average could overflow before the division.
  const bool wide = at::isReducedFloatingType(out.scalar_type()) &&
      is_arithmetic(op) && (inputs.size() > 2 || op == ReduceOp::kAvg);
  if (wide) {
    sum = at::empty_like(out, out.options().dtype(at::kFloat));
    sum.copy_(inputs[0]);
    combine(sum, sum, inputs[1], op);
  } else {
    combine(sum, inputs[0], inputs[1], op);
  }
  for (size_t i = 2; i < inputs.size(); ++i) {
    combine(sum, sum, inputs[i], op);
  }
  if (op == ReduceOp::kAvg) {
    sum.div_(static_cast<double>(inputs.size()));
  }
  if (wide) {
    out.copy_(sum);
  }
}

bool prefers_loop(at::ScalarType dtype, ReduceOp op, int64_t bytes) {
  const bool long_bf16 = dtype == at::kBFloat16 && bytes > kLongBF16Bytes;
  return has_loop(dtype, op) && !long_bf16;
}

void reduce_memory(
    at::ScalarType dtype,
    ReduceOp op,
    c10::ArrayRef<const void*> inputs,
    void* out,
    int64_t count) {
  const auto item = static_cast<int64_t>(c10::elementSize(dtype));
  if (prefers_loop(dtype, op, count * item)) {
    reduce_loop(dtype, op, inputs, out, count);
    return;
  }
  const PlainTensors guard;
  c10::SmallVector<at::Tensor, 8> tensors;
  for (const void* input : inputs) {
    tensors.push_back(
        at::from_blob(const_cast<void*>(input), {count}, dtype)); // only read
  }
  reduce_into(at::from_blob(out, {count}, dtype), tensors, op);
}

} // namespace dtensor::detail
