// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/parallel/distribute_optimizer_state.h>

#include <ATen/core/grad_mode.h>
#include <dtensor/error.h>
#include <dtensor/layout/spec_impl.h>
#include <dtensor/layout/text.h>
#include <dtensor/parallel/state/optimizer_fields_impl.h>
#include <dtensor/parallel/state/state_values_impl.h>
#include <dtensor/redistribute/local_slice_impl.h>
#include <dtensor/tensor/dtensor.h>
#include <dtensor/tensor/meta_impl.h>
#include <dtensor/tensor/wrap_impl.h>
#include <torch/optim/optimizer.h>

#include <utility>

namespace dtensor {
namespace {

using torch::optim::Optimizer;

constexpr const char* kDistribute = "distribute_optimizer_state";

// Returns a copy of this rank's shard in the layout `layout`, or an undefined
// tensor if the rank lacks some values.
at::Tensor copy_of_shard(const at::Tensor& value, const Spec& layout) {
  if (is_dtensor(value) && detail::spec_of(value)->has_partial()) {
    return {};
  }
  detail::IndexBox held;
  detail::IndexBox wanted;
  Sizes sizes;
  for (int64_t dim = 0; dim < value.dim(); ++dim) {
    held.push_back(
        is_dtensor(value) ? local_intervals(*detail::spec_of(value), dim)
                          : Intervals{{0, value.size(dim)}});
    wanted.push_back(local_intervals(layout, dim));
    sizes.push_back(total_size(wanted.back()));
  }
  const auto slice = detail::slice_of(held, wanted);
  if (slice.sizes != sizes) {
    return {};
  }
  const auto part =
      is_dtensor(value) ? detail::local_of(value) : value.detach();
  return detail::read_slice(part, slice).clone(at::MemoryFormat::Contiguous);
}

bool has_layout(const at::Tensor& value, const Spec& layout) {
  return is_dtensor(value) && detail::spec_of(value)->mesh() == layout.mesh() &&
      detail::spec_of(value)->placements() == layout.placements();
}

/// New optimizer state, which replaces the old state after all checks.
class Replacements {
 public:
  /// Adds the replacement of `value` (called `name`) in the layout `layout`.
  void add(at::Tensor& value, const Spec& layout, const std::string& name) {
    if (!value.defined() || has_layout(value, layout)) {
      return;
    }
    auto spec = Spec::make(
        layout.mesh(),
        layout.placements(),
        value.sizes(),
        value.scalar_type(),
        kDistribute);
    auto part = copy_of_shard(value, *spec);
    DTENSOR_CHECK_VALUE(
        part.defined(),
        "[{}] optimizer state \"{}\" is {}, so this rank lacks values of its "
        "local shard of {}. Use set_optimizer_state_dict, which communicates.",
        kDistribute,
        name,
        detail::state_text(value),
        *spec);
    all_.emplace_back(&value, detail::wrap(std::move(part), std::move(spec)));
  }
  void set() {
    for (auto& [value, replacement] : all_) {
      *value = std::move(replacement);
    }
  }

 private:
  std::vector<std::pair<at::Tensor*, at::Tensor>> all_;
};

void replace_fields(
    const at::Tensor& parameter,
    const detail::StateFields& fields,
    Replacements& replacements) {
  for (const auto& [name, value] : fields.tensors) {
    DTENSOR_CHECK_VALUE(
        !value->defined() || value->sizes() == parameter.sizes(),
        "[{}] optimizer state \"{}\" is {}, but its parameter is {}. Pass an "
        "optimizer whose parameters had this shape.",
        kDistribute,
        name,
        detail::state_text(*value),
        detail::state_text(parameter));
    replacements.add(*value, *detail::spec_of(parameter), name);
  }
}

// Replaces vectors over all parameters, which are stored under the first
// parameter.
void replace_vectors(
    const at::Tensor& parameter,
    const detail::StateFields& fields,
    Replacements& replacements) {
  const auto layout =
      detail::fully_replicated_spec(*detail::spec_of(parameter));
  for (const auto& [name, value] : fields.tensors) {
    replacements.add(*value, *layout, name);
  }
  for (const auto& [name, list] : fields.lists) {
    for (auto& value : *list) {
      replacements.add(value, *layout, name);
    }
  }
}

} // namespace

void distribute_optimizer_state(Optimizer& optimizer) {
  const c10::NoGradGuard no_grad;
  const auto kind = detail::known_optimizer(optimizer, kDistribute);
  Replacements replacements;
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& parameter : group.params()) {
      const auto found =
          optimizer.state().find(parameter.unsafeGetTensorImpl());
      if (found == optimizer.state().end() || !is_dtensor(parameter)) {
        continue;
      }
      const auto fields = kind->fields(*found->second);
      const auto replace =
          kind->flattens_all_parameters() ? replace_vectors : replace_fields;
      replace(parameter, fields, replacements);
    }
  }
  replacements.set();
}

} // namespace dtensor
