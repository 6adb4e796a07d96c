// SPDX-License-Identifier: BSD-3-Clause
// Softmax, its gradients and logsumexp along a sharded dimension. The ranks
// exchange statistics of each row: the greatest element and the sum of
// exponentials, or the sum of a gradient. No element moves. 16-bit numbers are
// computed in 32 bits, as in the plain operators.
#include <dtensor/ops/kernels/local_kernels_impl.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/logsumexp.h>
#include <dtensor/ops/kernels/kernel_args_impl.h>
#include <dtensor/ops/kernels/over_shards_impl.h>
#include <dtensor/tensor/memory_order_impl.h>

#include <limits>

namespace dtensor::detail {
namespace {

// The dimension "dim" of a call, and the ranks that share it.
struct SharedDim {
  SharedDim(const KernelArgs& args, const Decision& decision)
      : spec(*decision.inputs[0]),
        dim(c10::maybe_wrap_dim(args.integer("dim"), spec.dim())) {}

  at::Tensor greatest(const at::Tensor& t) const {
    return reduced_over_shards(
        greatest_along(t, dim), spec, dim, ReduceOp::kMax);
  }
  at::Tensor sum(const at::Tensor& t) const {
    return reduced_over_shards(
        t.sum(dim, /*keepdim=*/true), spec, dim, ReduceOp::kSum);
  }

  const Spec& spec;
  int64_t dim;
};

// Returns the result in its dtype and memory order.
void return_result(
    KernelArgs& args,
    const Decision& decision,
    const at::Tensor& computed) {
  const auto& spec = *decision.outputs[0];
  args.returns(in_memory_order(computed.to(spec.dtype()), spec.strides()));
}

// Runs the operator if the operand has no data, or if `refused`. Returns true
// in these cases.
bool runs_operator(
    KernelArgs& args,
    const char* operand,
    bool refused = false) {
  const bool runs = refused || args.tensor(operand).is_meta();
  if (runs) {
    args.run_operator();
  }
  return runs;
}

// Runs the operator for calls without data, and for calls that LibTorch's CPU
// kernels refuse.
bool runs_forward(KernelArgs& args) {
  const bool refused = args.find("half_to_float") >= 0 &&
      args.flag("half_to_float") && args.tensor("self").is_cpu();
  return runs_operator(args, "self", refused);
}

// Elements minus the greatest element of their row.
struct Shifted {
  Shifted(const KernelArgs& args, const Decision& decision)
      : row(args, decision) {
    const auto dtype = decision.outputs[0]->dtype();
    const auto x = args.tensor("self").to(dtype).to(accumulation_dtype(dtype));
    greatest = row.greatest(x);
    elements = x - greatest;
  }

  // Returns the softmax. Overwrites the elements.
  at::Tensor softmax() {
    elements.exp_();
    return elements.div_(row.sum(elements));
  }
  at::Tensor log_softmax() {
    return elements.sub_(row.sum(elements.exp()).log_());
  }

  SharedDim row;
  at::Tensor greatest;
  at::Tensor elements;
};

} // namespace

void softmax_local(KernelArgs& args, const Decision& decision) {
  if (!runs_forward(args)) {
    return_result(args, decision, Shifted(args, decision).softmax());
  }
}

void log_softmax_local(KernelArgs& args, const Decision& decision) {
  if (!runs_forward(args)) {
    return_result(args, decision, Shifted(args, decision).log_softmax());
  }
}

// A row of -inf gives zeros.
void safe_softmax_local(KernelArgs& args, const Decision& decision) {
  if (runs_forward(args)) {
    return;
  }
  Shifted shifted(args, decision);
  const auto is_masked =
      shifted.greatest.eq(-std::numeric_limits<double>::infinity());
  return_result(args, decision, shifted.softmax().masked_fill(is_masked, 0));
}

namespace {

// Gradient and result of a softmax in the dtype of sums.
struct SoftmaxGradient {
  SoftmaxGradient(const KernelArgs& args, const Decision& decision)
      : row(args, decision),
        grad(args.tensor("grad_output")),
        output(args.tensor("output")) {
    const auto dtype = accumulation_dtype(grad.scalar_type());
    grad = grad.to(dtype);
    output = output.to(dtype);
  }

  SharedDim row;
  at::Tensor grad;
  at::Tensor output;
};

} // namespace

void softmax_backward_local(KernelArgs& args, const Decision& decision) {
  if (runs_operator(args, "output")) {
    return;
  }
  const SoftmaxGradient of(args, decision);
  return_result(
      args,
      decision,
      (of.grad - of.row.sum(of.grad * of.output)).mul_(of.output));
}

void log_softmax_backward_local(KernelArgs& args, const Decision& decision) {
  if (runs_operator(args, "output")) {
    return;
  }
  const SoftmaxGradient of(args, decision);
  return_result(
      args, decision, of.grad - of.output.exp().mul_(of.row.sum(of.grad)));
}

// Each rank computes the logsumexp of its shard, and the ranks gather the
// results.
void logsumexp_local(KernelArgs& args, const Decision& decision) {
  if (runs_operator(args, "self")) {
    return;
  }
  const auto& from = *decision.inputs[0];
  const auto& to = *decision.outputs[0];
  auto found = at::logsumexp(
      args.tensor("self").to(accumulation_dtype(to.dtype())),
      args.at("dim").toIntVector(),
      /*keepdim=*/true);
  for (int64_t m = 0; m < from.mesh().ndim(); ++m) {
    const auto i = static_cast<size_t>(m);
    if (from.placements()[i].is_sharded() && !to.placements()[i].is_sharded()) {
      const auto rows = found.unsqueeze(0).contiguous();
      found = get_group(from.mesh(), m).all_gather(rows, 0).logsumexp(0);
    }
  }
  return_result(args, decision, found.reshape(to.local_sizes()));
}

} // namespace dtensor::detail
