// SPDX-License-Identifier: BSD-3-Clause
// Gradients of views that took rows of shards. The gradient formula has only
// the sizes of the viewed tensor, so the node of the view keeps its layout.
#include <dtensor/ops/kernels/local_kernels_impl.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/select_ops.h>
#include <ATen/ops/slice_ops.h>
#include <c10/core/WrapDimMinimal.h>
#include <dtensor/ops/install/kernels_impl.h>
#include <dtensor/ops/kernels/kernel_args_impl.h>
#include <dtensor/ops/kernels/taken_rows_impl.h>
#include <dtensor/ops/scopes/explicit_redistribution_impl.h>
#include <dtensor/redistribute/execute.h>
#include <dtensor/tensor/meta_impl.h>
#include <dtensor/tensor/wrap_impl.h>
#include <dtensor/torch_nodes_impl.h>
#include <torch/csrc/autograd/function_hook.h>

#include <algorithm>
#include <memory>
#include <utility>

namespace dtensor {
namespace {

using detail::KernelArgs;
using detail::TakenRows;

// Holds the layout of a viewed tensor at the node of the view.
struct ViewedLayout final : torch::autograd::FunctionPostHook {
  explicit ViewedLayout(SpecPtr s) : spec(std::move(s)) {}
  torch::autograd::variable_list operator()(
      const torch::autograd::variable_list& gradients,
      const torch::autograd::variable_list&) override {
    return gradients;
  }
  SpecPtr spec;
};

// Returns the layout at the node of the running gradient formula, or null.
SpecPtr viewed_layout() {
  const auto node = torch::autograd::get_current_node();
  if (node == nullptr) {
    return nullptr;
  }
  for (const auto& hook : node->post_hooks()) {
    if (const auto* found = dynamic_cast<const ViewedLayout*>(hook.get())) {
      return found->spec;
    }
  }
  return nullptr;
}

// Layouts in which a gradient of taken rows arrives and leaves.
struct GradientLayouts {
  Placements rows;
  Placements all;
};

// Returns the layouts in which ranks write the rows of their shards. Mesh
// dimensions that do not shard the tensor along the rows keep the layout of the
// gradient.
GradientLayouts
gradient_layouts(const Spec& grad, const Spec& viewed, const TakenRows& taken) {
  GradientLayouts layouts;
  for (size_t m = 0; m < viewed.placements().size(); ++m) {
    const auto& p = viewed.placements()[m];
    const auto& now = grad.placements()[m];
    if (p.is_sharded(taken.dim)) {
      layouts.rows.push_back(Replicate());
      layouts.all.push_back(p);
    } else if (!taken.drops_dim || !now.is_sharded()) {
      const bool gathers = now.is_sharded(taken.dim);
      layouts.rows.push_back(gathers ? Replicate() : now);
      layouts.all.push_back(layouts.rows.back());
    } else {
      layouts.rows.push_back(now);
      layouts.all.push_back(
          now.with_dim(now.dim() + (now.dim() >= taken.dim ? 1 : 0)));
    }
  }
  return layouts;
}

// Returns the layout of the gradient of an exchanged slice if that gradient is
// neither sharded like the slice nor replicated; empty otherwise.
Placements
exchanged_layout(const Spec& grad, const Spec& viewed, const TakenRows& taken) {
  Placements wanted(grad.placements());
  const auto shardings = std::ranges::count_if(
      viewed.placements(),
      [&](const Placement& p) { return p.is_sharded(taken.dim); });
  for (size_t m = 0; m < wanted.size() && shardings == 1; ++m) {
    const bool is_exchanged = !taken.drops_dim &&
        viewed.placements()[m].is_sharded(taken.dim) &&
        taken.range.count >= viewed.mesh().size(static_cast<int64_t>(m));
    if (is_exchanged && !wanted[m].is_replicate()) {
      wanted[m] = Shard(taken.dim);
      return wanted;
    }
  }
  return {};
}

at::Tensor brought_to(
    const c10::OperatorHandle& op,
    const at::Tensor& grad,
    const SpecPtr& to) {
  const auto& from = detail::spec_of(grad);
  if (to != from) {
    detail::before_redistributing(
        op.schema().name(), "grad_output", from, to->placements());
  }
  return redistribute_local(detail::local_of(grad), from, to);
}

} // namespace

bool detail::returns_rows(c10::ArrayRef<c10::IValue> args) {
  const auto viewed = viewed_layout();
  if (viewed == nullptr || !is_dtensor(args[0].toTensor())) {
    return false;
  }
  const auto& grad = *spec_of(args[0].toTensor());
  const auto dim = c10::maybe_wrap_dim(args[2].toInt(), viewed->dim());
  if (grad.mesh() != viewed->mesh() ||
      viewed->sizes() != SizesRef(args[1].toIntVector())) {
    return false;
  }
  // The rule exchanges rows of a slice.
  return grad.dim() < viewed->dim() || exchanging_dim(*viewed, grad, dim) < 0;
}

void detail::return_rows(
    const c10::OperatorHandle& op,
    torch::jit::Stack* stack) {
  KernelArgs args(op, *stack);
  const auto grad = args.tensor("grad_output");
  const auto& from = spec_of(grad);
  const auto viewed = viewed_layout();
  const auto taken = taken_rows(args, viewed->sizes());
  if (const auto exchanged = exchanged_layout(*from, *viewed, taken);
      !exchanged.empty()) {
    const auto to = from->with_placements(exchanged);
    args.set("grad_output", wrap(brought_to(op, grad, to), to));
    op.callBoxed(stack);
    return;
  }
  const auto layouts = gradient_layouts(*from, *viewed, taken);
  const auto local = brought_to(op, grad, from->with_placements(layouts.rows));
  const auto all = Spec::make(
      viewed->mesh(),
      layouts.all,
      viewed->sizes(),
      contiguous_strides(viewed->sizes()),
      from->dtype());
  if (!all->mesh().contains_this_rank()) {
    args.returns(wrap(local, all));
    return;
  }
  const auto rows = taken.drops_dim ? local.unsqueeze(taken.dim) : local;
  const auto result = zeros_of(*all, local.options());
  detail::for_held_rows(
      result, *all, taken, [&](Interval positions, const at::Tensor& held) {
        held.copy_(rows.narrow(taken.dim, positions.begin, positions.size()));
      });
  args.returns(wrap(result, all));
}

namespace {

// Returns true if ranks took rows of their shards of `viewed` for `view`.
bool took_rows(const at::Tensor& viewed, const at::Tensor& view, int64_t dim) {
  if (!is_dtensor(viewed) || !is_dtensor(view)) {
    return false;
  }
  const auto along = c10::maybe_wrap_dim(dim, viewed.dim());
  const auto from = detail::spec_of(viewed)->placements();
  const auto to = detail::spec_of(view)->placements();
  const bool is_slice =
      view.dim() == viewed.dim() && view.size(along) != viewed.size(along);
  for (size_t m = 0; m < from.size(); ++m) {
    if (from[m].is_sharded(along) &&
        (to[m].is_partial() ||
         (is_slice && from[m].is_shard() && to[m].is_sharded(along)))) {
      return true;
    }
  }
  return false;
}

template <class Op, class Schema = typename Op::schema>
struct ViewingKernel;

template <class Op, class... Rest>
struct ViewingKernel<Op, at::Tensor(const at::Tensor&, int64_t, Rest...)> {
  static at::Tensor call(
      c10::DispatchKeySet keys,
      const at::Tensor& self,
      int64_t dim,
      Rest... rest) {
    // Selects another key with LibTorch's own kernel, which continues below
    // autograd.
    const auto stock_keys = keys.remove(c10::DispatchKey::AutogradFunctionality)
                                .add(c10::DispatchKey::AutogradOther);
    auto result = Op::redispatch(stock_keys, self, dim, rest...);
    if (c10::GradMode::is_enabled() && self.requires_grad() &&
        C10_UNLIKELY(took_rows(self, result, dim))) {
      const auto& node = result.grad_fn();
      if (node != nullptr) {
        node->add_post_hook(
            std::make_unique<ViewedLayout>(detail::spec_of(self)));
      }
    }
    return result;
  }
};

} // namespace

std::optional<torch::CppFunction> detail::viewing_kernel(const OpInfo& info) {
  if (info.name == "aten::select.int") {
    return torch::CppFunction(
        TORCH_FN(ViewingKernel<at::_ops::select_int>::call));
  }
  if (info.name == "aten::slice.Tensor") {
    return torch::CppFunction(
        TORCH_FN(ViewingKernel<at::_ops::slice_Tensor>::call));
  }
  return std::nullopt;
}

} // namespace dtensor
