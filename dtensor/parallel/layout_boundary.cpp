// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/parallel/layout_boundary_impl.h>

#include <dtensor/comm/rank/plain_draws_impl.h>
#include <dtensor/error.h>
#include <dtensor/layout/spec_impl.h>
#include <dtensor/layout/text.h>
#include <dtensor/parallel/grad_layout_impl.h>
#include <dtensor/parallel/module_input_impl.h>
#include <dtensor/parallel/overlapped_linear_impl.h>
#include <dtensor/parallel/tied_modules_impl.h>
#include <dtensor/redistribute/execute.h>
#include <dtensor/tensor/autograd_impl.h>
#include <dtensor/tensor/layout_steps_impl.h>
#include <dtensor/tensor/meta_impl.h>
#include <dtensor/tensor/region_impl.h>

#include <torch/nn/module.h>

#include <utility>

namespace dtensor::detail {
namespace {

// Returns the bias layout that matches the output's last dimension. For a
// Partial output the bias is Partial too, so that it is added once.
Placement bias_layout(const Placement& output, int64_t output_dim) {
  if (output.is_partial()) {
    return output;
  }
  return output.is_sharded() && output.dim() == output_dim - 1
      ? output.with_dim(0)
      : Replicate();
}

at::Tensor checked_output(at::Tensor output) {
  DTENSOR_CHECK_TYPE(
      is_dtensor(output),
      "[boundary] the output_fn of {} returned a plain tensor. Return a "
      "DTensor, as its arguments are.",
      describe_module(ModuleScope::current()));
  return output;
}

} // namespace

void LayoutBoundary::notify_input(const at::Tensor& input) const {
  notify_module_tensor(
      ReplicaKind::kInput, input, where_, layouts_.input.plain);
}

// Skips plain outputs of shared units, which have no layout.
void LayoutBoundary::notify_output(const at::Tensor& output) const {
  if (is_dtensor(output) || (layouts_.output && layouts_.shared.users == 0)) {
    notify_module_tensor(
        ReplicaKind::kOutput,
        output,
        where_,
        layouts_.output.value_or(Replicate()));
  }
}

at::Tensor LayoutBoundary::prepare_input(const at::Tensor& input) const {
  return shared_input(input, where_, layouts_.input, sibling_);
}

ModuleInput LayoutBoundary::take_input(const at::Tensor& input) const {
  return detail::take_input(
      input, where_, layouts_.input, sibling_, known_input_);
}

ResultConversion LayoutBoundary::exit_of(const SpecPtr& made) const {
  const bool as_local = layouts_.use_local_output;
  if (!layouts_.output) {
    if (as_local) {
      record_local_tensor(*made);
    }
    return {nullptr, as_local};
  }
  if (exit_.made != made) {
    exit_ = {
        made,
        made->with_placements(
            where_.with(made->placements(), *layouts_.output),
            "output_layouts")};
  }
  if (as_local) {
    record_local_tensor(*exit_.to);
  }
  return {exit_.to, as_local};
}

at::Tensor LayoutBoundary::finish_output(
    const at::Tensor& input,
    const at::Tensor& output) const {
  const auto& make = layouts_.output_fn;
  return to_output_layout(
      make == nullptr ? output : checked_output((*make)(input, output)),
      where_,
      layouts_.output,
      layouts_.use_local_output);
}

at::Tensor LayoutBoundary::finish_product(
    const at::Tensor& input,
    const at::Tensor& product) const {
  return awaited_bias_.is_expected()
      ? awaited_bias_.finish(*this, input, product)
      : finish_output(input, product);
}

bool LayoutBoundary::add_pending_bias(
    const at::Tensor& output,
    const at::Tensor& bias) const {
  return layouts_.output_fn != nullptr &&
      detail::add_pending_bias(*this, output, bias);
}

at::Tensor LayoutBoundary::multiply(
    const at::Tensor& input,
    const at::Tensor& weight_t,
    const at::Tensor& bias) const {
  if (layouts_.shared.users > 0 && where_.mesh.contains_this_rank()) {
    if (const auto ranks = where_.mesh.size(); ranks > 1) {
      note_shards(!layouts_.shared.is_even(ranks));
    }
    return shared_linear(input, weight_t, bias, layouts_.shared);
  }
  if (layouts_.overlap_chunks == 1) {
    return {};
  }
  const auto layout = normalize_placements(
      where_.mesh, {*layouts_.output}, input.dim(), "boundary");
  const auto product = overlapped_linear(
      input, weight_t, bias, layout[0], layouts_.overlap_chunks);
  return product.defined() ? finish_output(input, product) : product;
}

LayoutBoundary::Bias LayoutBoundary::layouts_of_bias(
    const SpecPtr& given,
    int64_t output_dim) const {
  const auto output = normalize_placements(
      where_.mesh, {layouts_.output.value()}, output_dim, "boundary")[0];
  const auto layout = bias_layout(output, output_dim);
  // Every rank adds the bias to its local output. If outputs are sharded and
  // the bias is replicated, its gradient is Partial.
  const bool sums = output.is_sharded() && layout.is_replicate();
  const auto added = given->with_placements({layout}, "boundary");
  const auto grad = sums    ? Placement(Partial(ReduceOp::kSum))
      : layout.is_partial() ? Placement(Replicate())
                            : layout;
  return {given, output_dim, added, gradient_spec(*added, grad)};
}

at::Tensor LayoutBoundary::local_bias(
    const at::Tensor& bias,
    const at::Tensor& output) const {
  if (!where_.mesh.contains_this_rank()) {
    return to_local_autograd(bias);
  }
  if (layouts_.shared.users > 0) {
    return shared_bias(bias, layouts_.shared);
  }
  const auto& given = spec_of(bias);
  if (bias_.given != given || bias_.output_dim != output.dim()) {
    bias_ = layouts_of_bias(given, output.dim());
  }
  return enter_alone(region_input(bias, bias_.added, bias_.grad));
}

// Called for every operator, so it must be cheap. Tying or cloning changes the
// parameter's reference count: ties are checked only after a change of that.
void LayoutBoundary::refresh(const at::Tensor& parameter, BoundaryKind kind)
    const {
  if (parameter.requires_grad()) {
    keep_gradient_in_layout(parameter);
  }
  auto& meta = meta_of(parameter);
  const auto* const known =
      static_cast<const LayoutBoundary*>(meta.boundaries->get(kind).get());
  const Seen now{parameter.unsafeGetTensorImpl(), parameter.use_count()};
  auto& seen = seen_[seen_[0].parameter == now.parameter ? 0 : 1];
  if (known == this && seen == now) {
    return;
  }
  if (seen_[0].parameter == nullptr) {
    seen_[0] = now;
  } else {
    seen = now;
  }
  if (auto tied = style_of_tied(parameter, kind, known)) {
    auto all = std::make_shared<Boundaries>(*meta.boundaries);
    all->set(kind, std::move(tied));
    meta.boundaries = std::move(all);
  }
}

void check_same_style(const LayoutBoundary& a, const LayoutBoundary& b) {
  DTENSOR_CHECK(
      a.layouts() == b.layouts() && a.where() == b.where(),
      "[boundary] {} was tied to {}, which is styled differently. Give both "
      "the same style.",
      describe_module(a.module_name()),
      describe_module(b.module_name()));
}

// Takes the general path on ranks outside of the mesh and for DTensor outputs.
// Otherwise redistribution and conversion to a local tensor are one autograd
// node.
at::Tensor to_output_layout(
    const at::Tensor& y,
    const StyleMesh& where,
    const std::optional<Placement>& output,
    bool use_local) {
  const auto& made = spec_of(y);
  const auto to = output
      ? made->with_placements(
            where.with(made->placements(), *output), "output_layouts")
      : made;
  if (use_local) {
    record_local_tensor(*to);
  }
  if (!use_local || !to->mesh().contains_this_rank()) {
    const auto placed = redistribute_autograd(
        y,
        to,
        {.async_op = communicates_in_background(to->mesh()) && !use_local});
    return use_local ? to_local_autograd(placed) : placed;
  }
  auto grad = gradient_spec(*to, without_partial(to->placements()));
  return enter_alone(region_input(y, to, std::move(grad)));
}

std::string describe_module(std::string_view name) {
  return name.empty() ? "the module itself"
                      : "module \"" + std::string(name) + "\"";
}

std::string describe(const StyleTarget& target) {
  return describe_module(target.name);
}

std::string describe_typed(const StyleTarget& target) {
  return describe(target) + " of type " + target.module.name();
}

} // namespace dtensor::detail
