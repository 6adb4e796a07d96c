// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/ops/install/kernels_impl.h>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/cat_ops.h>
#include <dtensor/ops/install/fast_kernel_impl.h>
#include <dtensor/ops/path/stack_impl.h>
#include <dtensor/tensor/gradient_impl.h>
#include <dtensor/tensor/meta_impl.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace dtensor::detail {
namespace {

SpecPtr spec_or_null(const at::Tensor& t) {
  return is_dtensor(t) ? spec_of(t) : nullptr;
}

// Returns the tensor with the node of a call. This is the base if the call
// wrote to a view.
at::Tensor recorded_on(const at::Tensor& result, bool in_place) {
  return in_place && result.is_view() ? at::Tensor(result._base()) : result;
}

// Kernel of cat, which skips tensors of shape [0] and creates new tensors as
// their gradients. cat is called too often for a boxed kernel. With this
// kernel, calls without gradients are faster and calls with gradients slower,
// by a similar amount.
struct CatKernel {
  using Op = at::_ops::cat;

  static bool is_skipped(const at::Tensor& t) {
    return t.dim() == 1 && t.numel() == 0;
  }

  static void distribute_gradients(
      const at::Tensor& result,
      const at::ITensorListRef& tensors) {
    std::vector<SpecPtr> operands;
    for (const at::Tensor& t : tensors) {
      operands.push_back(spec_or_null(t));
    }
    make_gradients_distributed(result, std::move(operands));
  }

  static at::Tensor call(
      c10::DispatchKeySet keys,
      const at::ITensorListRef& tensors,
      int64_t dim) {
    if (!c10::GradMode::is_enabled() || !requires_grad(tensors)) {
      const at::AutoDispatchBelowADInplaceOrView below;
      return FastKernel<Op, false>::call(keys, tensors, dim);
    }
    // Selects another key with LibTorch's own kernel, which continues below
    // autograd.
    const auto stock_keys = keys.remove(c10::DispatchKey::AutogradFunctionality)
                                .add(c10::DispatchKey::AutogradOther);
    auto result = op().redispatch(stock_keys, tensors, dim);
    if (C10_UNLIKELY(std::ranges::any_of(tensors, is_skipped))) {
      distribute_gradients(result, tensors);
    }
    return result;
  }

  static const c10::TypedOperatorHandle<Op::schema>& op() {
    static const auto handle = c10::Dispatcher::singleton()
                                   .findSchemaOrThrow("aten::cat", "")
                                   .typed<Op::schema>();
    return handle;
  }
};

} // namespace

std::optional<torch::CppFunction> plain_gradient_kernel(
    const std::shared_ptr<const OpInfo>& info) {
  if (!info->traits.gradient_from_sizes_only) {
    return std::nullopt;
  }
  if (info->name == CatKernel::Op::name) {
    return torch::CppFunction(TORCH_FN(CatKernel::call));
  }
  const auto stock = native_kernel(info->op, /*above_autograd=*/true);
  return boxed_kernel([=](const c10::OperatorHandle& op,
                          c10::DispatchKeySet keys,
                          torch::jit::Stack* stack) {
    std::vector<SpecPtr> operands;
    const auto args = last_args(*stack, info->num_args);
    const bool records = wants_gradients(args);
    if (records) {
      visit_tensors(args, [&](const at::Tensor& t, size_t, int) {
        operands.push_back(spec_or_null(t));
      });
    }
    stock.callBoxed(op, keys, stack);
    if (records) {
      make_gradients_distributed(
          recorded_on(stack->back().toTensor(), info->in_place),
          std::move(operands));
    }
  });
}

} // namespace dtensor::detail
