// SPDX-License-Identifier: BSD-3-Clause
// Linear algebra: errors that all ranks report, traces, distances, and products
// with special cases in LibTorch.
#include <dtensor/ops/kernels/local_kernels_impl.h>

#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/kernels/kernel_args_impl.h>
#include <dtensor/ops/path/with_boundary_impl.h>
#include <dtensor/ops/scopes/replicated_impl.h>
#include <dtensor/redistribute/execute.h>
#include <dtensor/tensor/dtensor.h>
#include <dtensor/tensor/meta_impl.h>
#include <dtensor/tensor/wrap_impl.h>
#include <dtensor/torch_internals.h>

#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/_linalg_check_errors.h>
#include <ATen/ops/addbmm.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/diagonal.h>
#include <ATen/ops/einsum_native.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/linalg_cholesky_ex.h>
#include <ATen/ops/linalg_inv.h>
#include <ATen/ops/norm.h>
#include <ATen/ops/tensordot_native.h>
#include <torch/library.h>

#include <cstdlib>
#include <string>
#include <vector>

namespace dtensor {
namespace {

using namespace detail;

// Returns the global "info" of a factorization, one number per matrix.
at::Tensor gathered(const at::Tensor& local, const SpecPtr& spec) {
  const Placements replicated(spec->placements().size(), Replicate());
  return redistribute_local(
      local, spec, spec->with_placements(replicated, "linalg"));
}

// Returns the Python name for LibTorch's errors: "linalg.inv_ex" for
// aten::linalg_inv_ex, "linalg.solve_ex" for aten::_linalg_solve_ex.
std::string python_name(const KernelArgs& args) {
  const auto& name = args.base_name();
  return "linalg." + name.substr(name.find("linalg_") + 7);
}

// Throws LibTorch's error on all ranks if a matrix of any rank has an error.
void check_all(
    const at::Tensor& local_info,
    const SpecPtr& spec,
    const std::string& name) {
  const auto all = gathered(local_info, spec);
  if (!all.is_meta()) {
    at::_linalg_check_errors(all, name, /*is_matrix=*/all.dim() == 0);
  }
}

// Returns the layout of one number for each matrix of `matrices`.
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
void check_errors(KernelArgs& args) {
  const DTensor info(args.tensor("info"));
  const auto all = gathered(info.to_local(), info.spec());
  if (all.defined() && !all.is_meta()) {
    at::_linalg_check_errors(
        all, args.at("api_name").toStringRef(), args.flag("is_matrix"));
  }
  args.returns();
}

// Kernel of dist.
void dist(KernelArgs& args) {
  const auto difference = args.tensor("self") - args.tensor("other");
  args.returns(at::norm(difference, args.at("p").toScalar()));
}

// Returns self ** n of batches of matrices, n > 0, by repeated squaring.
at::Tensor power_of(const at::Tensor& self, int64_t n) {
  at::Tensor result;
  auto square = self;
  for (auto rest = n;;) {
    if (rest % 2 != 0) {
      result = result.defined() ? result.matmul(square) : square;
    }
    rest /= 2;
    if (rest == 0) {
      return result;
    }
    square = square.matmul(square);
  }
}

// Kernel of linalg_matrix_power. For the power 0, LibTorch copies a plain
// identity matrix, and the gradient would be plain.
void matrix_power(KernelArgs& args) {
  const auto self = args.tensor("self");
  const auto& spec = *spec_of(self);
  const auto ndim = self.dim();
  DTENSOR_CHECK(
      ndim >= 2 && self.size(ndim - 1) == self.size(ndim - 2),
      "[{}] needs square matrices, got {}. Pass (..., n, n).",
      args.name(),
      spec);
  const auto n = args.integer("n");
  if (n == 0) {
    const auto identity = at::eye(
        self.size(ndim - 1),
        at::TensorOptions(self.scalar_type())
            .device(self.is_meta() ? at::kMeta : spec.mesh().device_type()));
    args.returns(self.clone(at::MemoryFormat::Contiguous)
                     .copy_(place_plain(identity, spec)));
  } else if (n == 1 || n == -1) {
    args.returns(
        n == 1 ? self.clone(at::MemoryFormat::Contiguous)
               : at::linalg_inv(self));
  } else {
    args.returns(power_of(n < 0 ? at::linalg_inv(self) : self, std::abs(n)));
  }
}

// Adds one identity matrix to batches without matrices.
at::Tensor with_matrix(const at::Tensor& matrices) {
  std::vector<int64_t> widths(static_cast<size_t>(2 * matrices.dim()), 0);
  for (int64_t d = 0; d < matrices.dim() - 2; ++d) {
    // constant_pad_nd starts at the last dimension.
    const auto place = static_cast<size_t>(2 * (matrices.dim() - 1 - d));
    widths[place + 1] = matrices.size(d) == 0 ? 1 : 0;
  }
  return at::constant_pad_nd(matrices, widths) +
      at::eye(matrices.size(-1), matrices.options());
}

// Kernel of addbmm_, the only product that resizes self if the result has
// another shape.
void addbmm_in_place(KernelArgs& args) {
  auto self = args.tensor("self");
  const auto result = at::addbmm(
      self,
      args.tensor("batch1"),
      args.tensor("batch2"),
      args.at("beta").toScalar(),
      args.at("alpha").toScalar());
  if (result.sizes() == self.sizes()) {
    self.copy_(result);
  } else {
    rewrap(self, local_of(result), spec_of(result));
  }
  args.returns(self);
}

// Returns the first global index of this rank along `dim`.
int64_t first_index(const Spec& spec, int64_t dim) {
  const auto held = local_intervals(spec, dim);
  return held.empty() ? 0 : held[0].begin;
}

} // namespace

// Runs the operator without its check, and checks the matrices of all ranks.
// The operator's own check would fail only on the ranks with the faulty
// matrices.
void detail::check_errors_local(KernelArgs& args, const Decision& decision) {
  args.set("check_errors", false);
  args.run_operator();
  const auto info = args.stack().back().toTensor();
  check_all(info, decision.outputs.back(), python_name(args));
}

// Runs cholesky as linalg_cholesky_ex, which returns the info.
void detail::cholesky_local(KernelArgs& args, const Decision& decision) {
  const auto self = args.tensor("self");
  if (decision.outputs[0]->numel() == 0) { // may be non-square
    args.returns(self * self);             // the gradient formula takes `self`
    return;
  }
  const auto [factor, info] =
      at::linalg_cholesky_ex(self, args.flag("upper"), /*check_errors=*/false);
  check_all(info, batches_of(*decision.outputs[0]), "cholesky");
  args.returns(factor);
}

// Without matrices, computes the determinant of an identity matrix, and drops
// it, so that the gradient depends on the matrices if that of other ranks does.
void detail::determinant_local(KernelArgs& args, const Decision& decision) {
  const auto matrices = args.at(0).toTensor();
  if (matrices.numel() > 0 || decision.outputs[1]->numel() == 0) {
    return args.run_operator();
  }
  args.set("A", with_matrix(matrices));
  args.run_operator();
  for (size_t i = 0; i < decision.outputs.size(); ++i) {
    auto& result = torch::jit::peek(args.stack(), i, decision.outputs.size());
    const auto held = decision.outputs[i]->local_sizes();
    for (int64_t d = 0; d < matrices.dim() - 2; ++d) {
      result = result.toTensor().narrow(d, 0, held[static_cast<size_t>(d)]);
    }
  }
}

void detail::householder_local(KernelArgs& args, const Decision& decision) {
  const auto input = args.tensor("input");
  if (input.numel() > 0 || decision.outputs[0]->numel() == 0) {
    return args.run_operator();
  }
  args.returns(input * args.tensor("tau").sum());
}

void detail::ormqr_local(KernelArgs& args, const Decision& decision) {
  const auto other = args.tensor("input3");
  if (other.numel() > 0 || decision.outputs[0]->numel() == 0) {
    return args.run_operator();
  }
  args.returns(
      other * (args.tensor("self").sum() + args.tensor("input2").sum()));
}

void detail::trace_local(KernelArgs& args, const Decision& decision) {
  const auto& spec = *decision.inputs[0];
  const auto offset = first_index(spec, 0) - first_index(spec, 1);
  args.returns(at::diagonal(args.tensor("self"), offset).sum());
}

void detail::einsum_decomposed(
    const c10::OperatorHandle& op,
    torch::jit::Stack* stack) {
  KernelArgs args(op, *stack);
  const auto path = args.at("path").toOptional<std::vector<int64_t>>();
  args.returns(at::native::einsum(
      args.at("equation").toStringRef(),
      args.at("tensors").toTensorVector(),
      path ? at::OptionalIntArrayRef(*path) : std::nullopt));
}

void detail::tensordot_decomposed(
    const c10::OperatorHandle& op,
    torch::jit::Stack* stack) {
  KernelArgs args(op, *stack);
  args.returns(at::native::tensordot(
      args.tensor("self"),
      args.tensor("other"),
      args.at("dims_self").toIntVector(),
      args.at("dims_other").toIntVector()));
}

bool detail::is_autocast(c10::ArrayRef<c10::IValue> args) {
  return any_tensor(args, [](const at::Tensor& t) {
    const auto device = t.device().type();
    return at::autocast::is_autocast_available(device) &&
        at::autocast::is_autocast_enabled(device);
  });
}

// Broadcasts the bias if there is nothing to multiply. LibTorch does not
// broadcast in this case.
void detail::addmv_local(KernelArgs& args, const Decision& decision) {
  const auto self = args.tensor("self");
  const auto sizes = decision.outputs[0]->local_sizes();
  if (args.base_name().back() != '_' && self.sizes() != sizes) {
    args.set("self", self.expand(sizes));
  }
  args.run_operator();
}

DTENSOR_RULES(linalg_kernels) {
  rules.kernel("addbmm_", with_args(addbmm_in_place));
  rules.kernel("_linalg_check_errors", with_args(check_errors));
  rules.kernel("dist", with_args(dist));
  rules.kernel("linalg_matrix_power", with_args(matrix_power));
  rules.kernel("matrix_power", with_args(matrix_power));
}

} // namespace dtensor

namespace dtensor::detail {

// Handles output += bias, as torch::nn::Linear calls it, for a plain local
// output and the bias of a styled module. The module's boundary adds the bias
// (ops/boundary/linear_bias.cpp).
bool add_module_bias(torch::jit::Stack* stack) {
  const auto base = stack->size() - 3; // self, other, alpha
  at::Tensor self = (*stack)[base].toTensor();
  const at::Tensor bias = (*stack)[base + 1].toTensor();
  const auto* boundary = boundary_of(bias, BoundaryKind::kLinear);
  if (boundary == nullptr) {
    return false;
  }
  refresh_boundaries(bias, BoundaryKind::kLinear);
  if (!boundary->add_bias(self, bias, (*stack)[base + 2].toScalar())) {
    return false;
  }
  torch::jit::drop(*stack, 3);
  stack->emplace_back(std::move(self));
  return true;
}

namespace {

// Kernel of add_ above autograd, so that the addition is recorded on local
// tensors. All other calls go to LibTorch's own autograd kernel.
void add_(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack) {
  if (!add_module_bias(stack)) {
    static const auto stock =
        op.getComputedKernelForDispatchKey(c10::DispatchKey::AutogradCPU);
    stock.callBoxed(op, keys, stack);
  }
}

} // namespace

static_assert(kDTensorAutogradKey == c10::DispatchKey::AutogradPrivateUse3);
TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse3, m) {
  m.impl("add_.Tensor", torch::CppFunction::makeFromBoxedFunction<&add_>());
}

} // namespace dtensor::detail
