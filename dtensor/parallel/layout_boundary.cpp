// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/parallel/layout_boundary_impl.h>

#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/parallel/distribute_module.h>
#include <dtensor/parallel/overlapped_linear_impl.h>
#include <dtensor/tensor/api.h>
#include <dtensor/tensor/autograd_impl.h>
#include <dtensor/tensor/meta_impl.h>

namespace dtensor::detail {
namespace {

// The bias goes with the last dimension of the output; where the output is a
// sum over ranks, so is the bias, which is then added once.
Placement bias_layout(const Placement& output, int64_t output_dim) {
  if (output.is_partial()) {
    return output;
  }
  return output.cuts() && output.dim() == output_dim - 1 ? output.with_dim(0)
                                                         : Replicate();
}

} // namespace

at::Tensor LayoutBoundary::prepare_input(const at::Tensor& input) const {
  return shared_input(input, mesh_, layouts_.input);
}

at::Tensor LayoutBoundary::finish_output(const at::Tensor& output) const {
  return to_output_layout(output, layouts_.output, layouts_.use_local_output);
}

at::Tensor LayoutBoundary::multiply(
    const at::Tensor& input,
    const at::Tensor& weight_t,
    const at::Tensor& bias) const {
  const auto layout =
      normalize_placements(mesh_, {layouts_.output}, input.dim(), "boundary");
  const auto product = overlapped_linear(
      input, weight_t, bias, layout[0], layouts_.overlap_chunks);
  return product.defined() ? finish_output(product) : product;
}

at::Tensor LayoutBoundary::local_bias(
    const at::Tensor& bias,
    const at::Tensor& output) const {
  const auto layout =
      normalize_placements(mesh_, {layouts_.output}, output.dim(), "boundary");
  const auto wanted = bias_layout(layout[0], output.dim());
  const auto placed = redistribute_autograd(
      bias, spec_of(bias)->with_placements({wanted}, "boundary"));
  // Every rank adds the bias to its part: where the parts differ and the bias
  // is whole, its gradient is a sum over ranks.
  const bool sums = layout[0].cuts() && wanted.is_replicate();
  const auto grad = wanted.is_partial() ? Replicate() : wanted;
  return to_local_autograd(
      placed, Placements{sums ? Partial(ReduceOp::kSum) : grad});
}

at::Tensor
to_output_layout(const at::Tensor& y, const Placement& output, bool use_local) {
  const auto placed = redistribute_autograd(
      y, spec_of(y)->with_placements({output}, "output_layouts"));
  return use_local ? to_local_autograd(placed) : placed;
}

std::string describe_module(std::string_view name) {
  return name.empty() ? "the module itself"
                      : "module \"" + std::string(name) + "\"";
}

std::string describe(const StyleTarget& target) {
  return describe_module(target.name);
}

void distribute_parameter(
    at::Tensor& parameter,
    const StyleTarget& target,
    const Placement& placement,
    const std::string& what) {
  if (is_dtensor(parameter)) {
    const auto& spec = spec_of(parameter);
    const auto wanted =
        spec->with_placements({placement}, "parallelize_module");
    DTENSOR_CHECK(
        spec->mesh() == target.mesh && wanted == spec,
        "parallelize_module",
        describe(target),
        ": its ",
        what,
        " is a DTensor already, ",
        *spec,
        ", and the style wants ",
        to_string(placement),
        " on ",
        target.mesh,
        ". Tied parameters need one layout; style a module once.");
    return;
  }
  dtensor::distribute_parameter(
      parameter, target.mesh, {placement}, target.src_data_rank);
}

void attach_boundary(
    at::Tensor& parameter,
    BoundaryKind kind,
    const StyleTarget& target,
    const BoundaryLayouts& layouts) {
  auto& meta = meta_of(parameter);
  auto all = meta.boundaries == nullptr
      ? std::make_shared<Boundaries>()
      : std::make_shared<Boundaries>(*meta.boundaries);
  if (const auto& old = all->get(kind)) {
    const auto& other = static_cast<const LayoutBoundary&>(*old);
    DTENSOR_CHECK(
        other.module() != &target.module,
        "parallelize_module",
        describe(target),
        " has a style already. Style a module once.");
    DTENSOR_CHECK(
        other.layouts() == layouts && other.mesh() == target.mesh,
        "parallelize_module",
        describe(target),
        " is tied to module \"",
        other.module_name(),
        "\" and styled differently. Give both the same style.");
    return;
  }
  all->set(
      kind,
      std::make_shared<LayoutBoundary>(
          target.name, &target.module, target.mesh, layouts));
  meta.boundaries = std::move(all);
}

} // namespace dtensor::detail
