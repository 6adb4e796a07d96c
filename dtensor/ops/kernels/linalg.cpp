// SPDX-License-Identifier: BSD-3-Clause
// Linear algebra: errors that all ranks report, traces, distances.
#include <dtensor/ops/kernels/local_kernels_impl.h>

#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/kernels/kernel_args_impl.h>
#include <dtensor/redistribute/execute.h>
#include <dtensor/tensor/dtensor.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/_linalg_check_errors.h>
#include <ATen/ops/diagonal.h>
#include <ATen/ops/linalg_cholesky_ex.h>
#include <ATen/ops/norm.h>

#include <string>

namespace dtensor {
namespace {

// Returns the global "info" of a factorization, which has a number per matrix.
at::Tensor gathered(const at::Tensor& local, const SpecPtr& spec) {
  const Placements replicated(spec->placements().size(), Replicate());
  return redistribute_local(
      local, spec, spec->with_placements(replicated, "linalg"));
}

// Returns the Python name for LibTorch's errors: "linalg.inv_ex" for
// aten::linalg_inv_ex, "linalg.solve_ex" for aten::_linalg_solve_ex.
std::string python_name(const c10::OperatorHandle& op) {
  const auto& name = op.schema().name();
  return "linalg." + name.substr(name.find("linalg_") + 7);
}

// Throws LibTorch's error on all ranks if a matrix of any rank has one.
void check_all(
    const at::Tensor& local_info,
    const SpecPtr& spec,
    const std::string& name) {
  const auto all = gathered(local_info, spec);
  if (!all.is_meta()) {
    at::_linalg_check_errors(all, name, /*is_matrix=*/all.dim() == 0);
  }
}

// Returns the layout of one number for each of these matrices.
SpecPtr batches_of(const Spec& matrices) {
  const auto sizes = matrices.sizes();
  return Spec::make(
      matrices.mesh(),
      matrices.placements(),
      sizes.slice(0, sizes.size() - 2),
      at::kInt);
}

// Kernel of _linalg_check_errors. Gathers the info, so that an error of one
// matrix is an error on all ranks.
void check_errors(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  detail::KernelArgs args(op, *stack);
  const DTensor info(args.tensor("info"));
  const auto all = gathered(info.to_local(), info.spec());
  if (all.defined() && !all.is_meta()) {
    at::_linalg_check_errors(
        all, args.at("api_name").toStringRef(), args.flag("is_matrix"));
  }
  args.returns();
}

// Kernel of dist.
void dist(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  detail::KernelArgs args(op, *stack);
  const auto difference = args.tensor("self") - args.tensor("other");
  args.returns(at::norm(difference, args.at("p").toScalar()));
}

// Returns the first global index of this rank along `dim`.
int64_t first_index(const Spec& spec, int64_t dim) {
  const auto held = local_intervals(spec, dim);
  return held.empty() ? 0 : held[0].begin;
}

} // namespace

// Runs the operator without its check, which would fail on the ranks with the
// faulty matrices only, and checks the matrices of all ranks.
void detail::check_errors_local(
    const c10::OperatorHandle& op,
    const Decision& decision,
    torch::jit::Stack* stack) {
  const detail::KernelArgs args(op, *stack);
  if (!args.flag("check_errors")) {
    op.callBoxed(stack);
    return;
  }
  const auto count = op.schema().arguments().size();
  const auto position = static_cast<size_t>(args.find("check_errors"));
  (*stack)[stack->size() - count + position] = false;
  op.callBoxed(stack);
  check_all(stack->back().toTensor(), decision.outputs.back(), python_name(op));
}

// Runs cholesky as linalg_cholesky_ex, which returns the info.
void detail::cholesky_local(
    const c10::OperatorHandle& op,
    const Decision& decision,
    torch::jit::Stack* stack) {
  detail::KernelArgs args(op, *stack);
  const auto self = args.tensor("self");
  if (decision.outputs[0]->numel() == 0) { // also if it is not square
    args.returns(self.clone());
    return;
  }
  const auto [factor, info] =
      at::linalg_cholesky_ex(self, args.flag("upper"), /*check_errors=*/false);
  check_all(info, batches_of(*decision.outputs[0]), "cholesky");
  args.returns(factor);
}

void detail::householder_local(
    const c10::OperatorHandle& op,
    const Decision& decision,
    torch::jit::Stack* stack) {
  detail::KernelArgs args(op, *stack);
  const auto input = args.tensor("input");
  if (input.numel() > 0 || decision.outputs[0]->numel() == 0) {
    op.callBoxed(stack);
    return;
  }
  args.returns(input * args.tensor("tau").sum());
}

void detail::ormqr_local(
    const c10::OperatorHandle& op,
    const Decision& decision,
    torch::jit::Stack* stack) {
  detail::KernelArgs args(op, *stack);
  const auto other = args.tensor("input3");
  if (other.numel() > 0 || decision.outputs[0]->numel() == 0) {
    op.callBoxed(stack);
    return;
  }
  args.returns(
      other * (args.tensor("self").sum() + args.tensor("input2").sum()));
}

void detail::trace_local(
    const c10::OperatorHandle& op,
    const Decision& decision,
    torch::jit::Stack* stack) {
  detail::KernelArgs args(op, *stack);
  const auto& spec = *decision.inputs[0];
  const auto offset = first_index(spec, 0) - first_index(spec, 1);
  args.returns(at::diagonal(args.tensor("self"), offset).sum());
}

DTENSOR_RULES(linalg_kernels) {
  rules.kernel("_linalg_check_errors", check_errors);
  rules.kernel("dist", dist);
}

} // namespace dtensor
