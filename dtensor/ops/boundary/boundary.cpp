// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/ops/boundary/boundary_impl.h>

#include <dtensor/comm/observer.h>
#include <dtensor/comm/rank/plain_draws_impl.h>
#include <dtensor/error.h>
#include <dtensor/layout/spec_impl.h>
#include <dtensor/ops/boundary/boundaries_impl.h>
#include <dtensor/redistribute/execute.h>
#include <dtensor/tensor/autograd_impl.h>
#include <dtensor/tensor/gradient_impl.h>
#include <dtensor/tensor/layout_steps_impl.h>
#include <dtensor/tensor/meta_impl.h>

#include <algorithm>
#include <utility>

namespace dtensor::detail {
namespace {

at::Tensor checked_output(at::Tensor output) {
  DTENSOR_CHECK_TYPE(
      is_dtensor(output),
      "[boundary] the output_fn of {} returned a plain tensor. Return a "
      "DTensor, as its arguments are.",
      describe_module(ModuleScope::current()));
  return output;
}

} // namespace

Boundary::Boundary(
    const std::string& module_name,
    const torch::nn::Module* module,
    std::string description,
    BoundaryLayouts layouts,
    Converter input)
    : module_name_(keep_module_name(module_name)),
      module_(module),
      description_(std::move(description)),
      layouts_(std::move(layouts)),
      input_(std::move(input)) {}

// Skips plain outputs of shared units, which have no layout.
void Boundary::notify_output(const at::Tensor& output) const {
  if (is_dtensor(output) || (layouts_.output && layouts_.shared.users == 0)) {
    notify_module_tensor(
        ReplicaKind::kOutput,
        output,
        where(),
        layouts_.output.value_or(Replicate()));
  }
}

ResultConversion Boundary::exit_of(const SpecPtr& made) const {
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
            where().with(made->placements(), *layouts_.output),
            "output_layouts")};
  }
  if (as_local) {
    record_local_tensor(*exit_.to);
  }
  return {exit_.to, as_local};
}

at::Tensor Boundary::finish_output(
    const at::Tensor& input,
    const at::Tensor& output) const {
  const auto& make = layouts_.output_fn;
  return to_output_layout(
      make == nullptr ? output : checked_output((*make)(input, output)),
      where(),
      layouts_.output,
      layouts_.use_local_output);
}

at::Tensor Boundary::multiply(
    const at::Tensor& input,
    const at::Tensor& weight_t,
    const at::Tensor& bias) const {
  if (layouts_.shared.users > 0 && where().mesh.contains_this_rank()) {
    if (const auto ranks = where().mesh.size(); ranks > 1) {
      note_shards(!layouts_.shared.is_even(ranks));
    }
    return shared_linear(input, weight_t, bias, layouts_.shared);
  }
  if (layouts_.overlap_chunks == 1) {
    return {};
  }
  const auto layout = normalize_placements(
      where().mesh, {*layouts_.output}, input.dim(), "boundary");
  const auto product = overlapped_linear(
      input, weight_t, bias, layout[0], layouts_.overlap_chunks);
  return product.defined() ? finish_output(input, product) : product;
}

// Called for every operator, so this function must be cheap. Tying or cloning
// changes the parameter's reference count, so ties are checked only after such
// a change.
void Boundary::refresh(const at::Tensor& parameter, BoundaryKind kind) const {
  if (parameter.requires_grad()) {
    keep_gradient_in_layout(parameter);
  }
  auto& meta = meta_of(parameter);
  const auto* const known = meta.boundaries->get(kind).get();
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

// Takes the general path on ranks outside of the mesh and for DTensor outputs.
// In all other cases, redistribution and conversion to a local tensor are one
// autograd node.
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
  return convert_single_input(conversion_to(y, to, std::move(grad)));
}

const Boundary* boundary_of(const at::Tensor& t, BoundaryKind kind) {
  if (!is_dtensor(t)) {
    return nullptr;
  }
  const auto& boundaries = meta_of(t).boundaries;
  return boundaries == nullptr ? nullptr : boundaries->get(kind).get();
}

void refresh_boundaries(const at::Tensor& t, BoundaryKind kind) {
  if (!is_dtensor(t) || !t.is_leaf()) {
    return;
  }
  // Keeps the boundaries alive, because refresh() may replace the boundaries of
  // `t`.
  if (const auto boundaries = meta_of(t).boundaries) {
    if (const auto& boundary = boundaries->get_any(kind)) {
      boundary->refresh(t, kind);
    }
  }
}

std::shared_ptr<const Boundaries> boundaries_to_carry(
    const OpTraits& traits,
    const at::Tensor& from) {
  if (meta_of(from).boundaries == nullptr) {
    return nullptr;
  }
  refresh_boundaries(from, BoundaryKind::kLinear);
  const auto& all = meta_of(from).boundaries;
  const auto& boundary = all->get_any(BoundaryKind::kLinear);
  const bool goes_on = traits.keeps_boundary ||
      (boundary != nullptr && boundary->layouts().applies_to_rows);
  return goes_on ? all : nullptr;
}

void name_module(c10::Error& error, const std::string& module) {
  constexpr std::string_view kIn = "in ";
  const std::string_view text = error.msg();
  const bool is_ours = text.starts_with('[') && !text.starts_with("[aten::");
  const bool is_named = std::ranges::any_of(
      error.context(), [&](const auto& line) { return line.starts_with(kIn); });
  if (!is_ours && !is_named) {
    error.add_context(std::string(kIn) + module);
  }
}

} // namespace dtensor::detail
