// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/ops/kernels/picked_rows_impl.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/select_ops.h>
#include <ATen/ops/zeros.h>
#include <c10/core/WrapDimMinimal.h>
#include <dtensor/layout/stepped_range_impl.h>
#include <dtensor/ops/kernels/kernel_args_impl.h>
#include <dtensor/ops/path/op_info_impl.h>
#include <dtensor/ops/scopes/explicit_redistribution_impl.h>
#include <dtensor/redistribute/execute.h>
#include <dtensor/tensor/meta_impl.h>
#include <dtensor/tensor/wrap_impl.h>
#include <dtensor/torch_nodes_impl.h>
#include <torch/csrc/autograd/function_hook.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace dtensor {
namespace {

using detail::KernelArgs;
using detail::SteppedRange;

// Calls f(part, shard_rows) for each stretch of the range that this rank holds:
// `part` are its positions in the range, `shard_rows` the rows of the shard.
template <class F>
void for_held_rows(
    const at::Tensor& shard,
    const Spec& layout,
    int64_t dim,
    const SteppedRange& range,
    const F& f) {
  int64_t before = 0; // rows of earlier intervals
  for (const auto& held : local_intervals(layout, dim)) {
    const auto part = range.positions_in(held);
    if (part.size() > 0) {
      const auto first = before + range.row_at(part.begin) - held.begin;
      const auto last = first + (part.size() - 1) * range.step;
      f(part, shard.slice(dim, first, last + 1, range.step));
    }
    before += held.size();
  }
}

// Returns zeros of the local shape of `layout`, in its memory order.
at::Tensor zeros_of(const Spec& layout, const at::TensorOptions& options) {
  const auto sizes = layout.local_sizes();
  return at::empty_strided(
             sizes, dense_strides(sizes, layout.strides()), options)
      .zero_();
}

SteppedRange row_range(const KernelArgs& args, int64_t size) {
  return {.begin = c10::maybe_wrap_dim(args.integer("index"), size)};
}

} // namespace

bool detail::can_pick(at::ScalarType dtype) {
  const bool is_float = at::isFloatingType(dtype) &&
      (!at::isReducedFloatingType(dtype) || dtype == at::kHalf ||
       dtype == at::kBFloat16);
  return is_float || at::isComplexType(dtype) ||
      (at::isIntegralType(dtype, /*includeBool=*/false) &&
       !at::isBarebonesUnsignedType(dtype));
}

void detail::pick_row(
    const c10::OperatorHandle& op,
    const Decision& decision,
    torch::jit::Stack* stack) {
  KernelArgs args(op, *stack);
  const auto& layout = *decision.inputs[0];
  const auto shard = args.tensor("self");
  const auto dim = c10::maybe_wrap_dim(args.integer("dim"), layout.dim());
  const auto range = row_range(args, layout.sizes()[static_cast<size_t>(dim)]);
  const auto result = zeros_of(*decision.outputs[0], shard.options());
  for_held_rows(
      shard, layout, dim, range, [&](Interval, const at::Tensor& row) {
        result.unsqueeze(dim).copy_(row);
      });
  args.returns(result);
}

// --- gradients --------------------------------------------------------------

namespace {

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

// Layouts in which a gradient arrives and leaves, on one mesh dimension.
struct GradientLayouts {
  Placements row;
  Placements all;
};

// Returns the layouts of the gradient of a row of a tensor of layout `viewed`.
// Mesh dimensions that do not shard `dim` keep the layout of the gradient.
GradientLayouts
gradient_layouts(const Spec& grad, const Spec& viewed, int64_t dim) {
  GradientLayouts layouts;
  for (size_t m = 0; m < viewed.placements().size(); ++m) {
    const auto& p = viewed.placements()[m];
    const auto& now = grad.placements()[m];
    const bool picks = p.is_sharded(dim);
    layouts.row.push_back(picks ? Replicate() : now);
    layouts.all.push_back(
        picks                                      ? p
            : now.is_sharded() && now.dim() >= dim ? now.with_dim(now.dim() + 1)
                                                   : now);
  }
  return layouts;
}

} // namespace

bool detail::returns_rows(c10::ArrayRef<c10::IValue> args) {
  const auto viewed = viewed_layout();
  if (viewed == nullptr || !is_dtensor(args[0].toTensor())) {
    return false;
  }
  return spec_of(args[0].toTensor())->mesh() == viewed->mesh() &&
      viewed->sizes() == SizesRef(args[1].toIntVector());
}

void detail::return_rows(
    const c10::OperatorHandle& op,
    torch::jit::Stack* stack) {
  KernelArgs args(op, *stack);
  const auto grad = args.tensor("grad_output");
  const auto viewed = viewed_layout();
  const auto dim = c10::maybe_wrap_dim(args.integer("dim"), viewed->dim());
  const auto range = row_range(args, viewed->sizes()[static_cast<size_t>(dim)]);
  const auto& from = spec_of(grad);
  const auto layouts = gradient_layouts(*from, *viewed, dim);
  const auto to = from->with_placements(layouts.row);
  if (to != from) {
    before_redistributing(
        op.schema().name(), "grad_output", from, to->placements());
  }
  const auto row = redistribute_local(local_of(grad), from, to);
  const auto all = Spec::make(
      viewed->mesh(),
      layouts.all,
      viewed->sizes(),
      contiguous_strides(viewed->sizes()),
      from->dtype());
  if (!all->mesh().contains_this_rank()) {
    args.returns(wrap(row, all));
    return;
  }
  const auto result = zeros_of(*all, row.options());
  for_held_rows(
      result, *all, dim, range, [&](Interval, const at::Tensor& held) {
        held.copy_(row.unsqueeze(dim));
      });
  args.returns(wrap(result, all));
}

namespace {

// Returns true if ranks picked rows of `viewed` for `view`.
bool picked(const at::Tensor& viewed, const at::Tensor& view) {
  if (!is_dtensor(viewed) || !is_dtensor(view)) {
    return false;
  }
  const auto from = detail::spec_of(viewed)->placements();
  const auto to = detail::spec_of(view)->placements();
  for (size_t m = 0; m < from.size(); ++m) {
    if (from[m].is_sharded() && to[m].is_partial()) {
      return true;
    }
  }
  return false;
}

template <class Op, class Schema = typename Op::schema>
struct PickingKernel;

template <class Op, class... Rest>
struct PickingKernel<Op, at::Tensor(const at::Tensor&, Rest...)> {
  static at::Tensor
  call(c10::DispatchKeySet keys, const at::Tensor& self, Rest... rest) {
    // Selects another key with LibTorch's own kernel, which continues below
    // autograd.
    const auto stock_keys = keys.remove(c10::DispatchKey::AutogradFunctionality)
                                .add(c10::DispatchKey::AutogradOther);
    auto result = Op::redispatch(stock_keys, self, rest...);
    if (c10::GradMode::is_enabled() && self.requires_grad() &&
        C10_UNLIKELY(picked(self, result))) {
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

std::optional<torch::CppFunction> detail::picking_kernel(const OpInfo& info) {
  if (info.name == "aten::select.int") {
    return torch::CppFunction(
        TORCH_FN(PickingKernel<at::_ops::select_int>::call));
  }
  return std::nullopt;
}

} // namespace dtensor
