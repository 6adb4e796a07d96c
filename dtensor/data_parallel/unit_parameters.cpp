// SPDX-License-Identifier: BSD-3-Clause
// Functions of Unit that read the current state of its parameters, which
// modules own.
#include <dtensor/data_parallel/unit_impl.h>
#include <dtensor/data_parallel/unit_source_impl.h>

#include <ATen/ops/cat.h>
#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/tensor/meta_impl.h>
#include <torch/nn/module.h>

namespace dtensor::detail {

void Unit::set_parameters(std::vector<UnitParameter> parameters) {
  parameters_ = std::move(parameters);
  lay_out({});
  if (parameters_.empty()) {
    return;
  }
  const auto device = this->device().type();
  reduction_.emplace(
      groups_.shard, groups_.repeat, device, offloads_ ? c10::kCPU : device);
}

at::Tensor Unit::parameter(size_t i) const {
  const auto& p = parameters_[i];
  DTENSOR_CHECK(
      p.tensor != nullptr,
      "[{}] parameter \"{}\" of unit \"{}\" was destroyed. Keep all modules "
      "of a unit alive while one of them is used.",
      kFullyShard,
      p.name,
      name_);
  return at::Tensor(
      c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::
          reclaim_copy(p.tensor));
}

std::vector<at::Tensor> Unit::parameters() const {
  std::vector<at::Tensor> all;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    all.push_back(parameter(i));
  }
  return all;
}

// Returns the parameters that require grad, and parameters that did in earlier,
// unreduced passes.
std::vector<ReducedParameter> Unit::reduced_parameters() const {
  const auto all = parameters();
  std::vector<ReducedParameter> targets;
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].requires_grad() || reduction_->has_unreduced(i)) {
      targets.push_back({i, &parameters_[i].layout});
    }
  }
  return targets;
}

ParameterState Unit::state(size_t i) const {
  ++states_read_;
  const auto tensor = parameter(i);
  const auto& local = local_of(tensor);
  const auto& facts = meta_of(tensor).view_facts;
  return {
      local.unsafeGetTensorImpl(),
      (static_cast<uint64_t>(version_of(tensor)) << 32) | version_of(local),
      facts == nullptr ? 0 : facts->writes.current_version(),
      parameters_[i].replaced,
      tensor.requires_grad()};
}

ParameterStates Unit::states() const {
  ParameterStates all;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    all.push_back(state(i));
  }
  return all;
}

void Unit::check_replacement_data(size_t i, const at::Tensor& data) {
  auto& p = parameters_[i];
  const auto& spec = *p.layout.spec;
  DTENSOR_CHECK_VALUE(
      is_dtensor(data) && spec_of(data)->mesh() == spec.mesh() &&
          spec_of(data)->placements() == spec.placements() &&
          data.sizes() == spec.sizes(),
      "[{}] parameter \"{}\" of unit \"{}\", {}, cannot take the data of {}. "
      "Copy values with set_model_state_dict.",
      kFullyShard,
      p.name,
      name_,
      spec,
      is_dtensor(data) ? to_string(*spec_of(data))
                       : shape_text(data.scalar_type(), data.sizes()));
  ++p.replaced;
  note_change();
}

// Updates dtypes after a cast, for example by Module::to(). Lays out bytes if
// the unsharded dtypes differ.
void Unit::note_dtypes() {
  const auto all = parameters();
  for (size_t i = 0; i < all.size(); ++i) {
    auto& spec = parameters_[i].layout.spec;
    spec = spec->with_dtype(all[i].scalar_type());
    DTENSOR_CHECK(
        mixed_precision_.param_dtype ||
            all[i].scalar_type() == all[0].scalar_type(),
        "[{}] parameters of unit \"{}\" were cast to different dtypes: \"{}\" "
        "{}, \"{}\" {}. Cast the whole unit, or set mp_policy.param_dtype.",
        kFullyShard,
        name_,
        parameters_[0].name,
        all[0].scalar_type(),
        parameters_[i].name,
        all[i].scalar_type());
  }
  const auto dtypes = unsharded_dtypes();
  const bool is_mixed = dtypes != std::vector(dtypes.size(), dtypes[0]);
  if (is_mixed || layout_->is_in_bytes()) {
    lay_out(is_mixed ? dtypes : std::vector<at::ScalarType>());
  }
}

// Lays out the buffer of the all-gather: of bytes if `dtypes` are given.
void Unit::lay_out(const std::vector<at::ScalarType>& dtypes) {
  std::vector<ShardedSizes> sharded;
  for (const auto& p : parameters_) {
    sharded.push_back(p.layout.sharded);
  }
  layout_.emplace(
      std::move(sharded), static_cast<size_t>(groups_.shard->size()), dtypes);
}

at::ScalarType Unit::unsharded_dtype(size_t i) const {
  const auto& p = parameters_[i];
  const auto own = p.layout.spec->dtype();
  return p.keeps_dtype ? own : mixed_precision_.param_dtype.value_or(own);
}

std::vector<at::ScalarType> Unit::unsharded_dtypes() const {
  std::vector<at::ScalarType> dtypes;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    dtypes.push_back(unsharded_dtype(i));
  }
  return dtypes;
}

// Returns the dtype in which gradients are reduced, the same dtype for all
// parameters.
at::ScalarType Unit::reduce_dtype() const {
  auto dtype = unsharded_dtype(0);
  for (size_t i = 1; i < parameters_.size(); ++i) {
    dtype = c10::promoteTypes(dtype, unsharded_dtype(i));
  }
  return mixed_precision_.reduce_dtype.value_or(dtype);
}

std::optional<at::ScalarType> Unit::operand_dtype(size_t i) const {
  return mixed_precision_.cast_forward_inputs && !parameters_[i].keeps_dtype
      ? mixed_precision_.param_dtype
      : std::nullopt;
}

c10::Device Unit::device() const {
  return c10::Device(parameters_[0].layout.spec->mesh().device_type());
}

// Returns this rank's input of the all-gather.
at::Tensor Unit::all_gather_input() const {
  std::vector<at::Tensor> parts;
  for (const auto& parameter : parameters()) {
    const auto& part = local_of(parameter);
    DTENSOR_CHECK(
        !part.is_meta(),
        "[{}] parameter \"{}\" of unit \"{}\" is on the meta device. "
        "Materialize the module before its forward pass.",
        kFullyShard,
        parameters_[parts.size()].name,
        name_);
    const auto dtype = unsharded_dtype(parts.size());
    parts.push_back(part.reshape({-1}).to(device(), dtype));
  }
  return layout_->is_in_bytes()
      ? layout_->section(parts, static_cast<size_t>(groups_.shard->rank()))
      : at::cat(parts); // a copy
}

void Unit::check_unchanged(const Gathering& gathering, size_t i) const {
  DTENSOR_CHECK(
      gathering.of()[i] == state(i),
      "[{}] parameter \"{}\" of unit \"{}\" was changed between forward and "
      "backward, so gradients would be wrong. Call backward before the step "
      "of the optimizer.",
      kFullyShard,
      parameters_[i].name,
      name_);
}

std::set<UnitPtr> units_in(const torch::nn::Module& module) {
  std::set<UnitPtr> found;
  for (const auto& parameter : module.parameters()) {
    for (auto unit = unit_of(parameter); unit != nullptr;
         unit = unit->outer()) {
      found.insert(unit);
    }
  }
  return found;
}

UnitPtr unit_of_module(const torch::nn::Module& module) {
  for (const auto& unit : units_in(module)) {
    if (unit->module() == &module) {
      return unit;
    }
  }
  return nullptr;
}

UnitPtr unit_of(const at::Tensor& parameter) {
  const auto* source =
      dynamic_cast<const UnitParameterSource*>(unsharded_source_of(parameter));
  return source == nullptr ? nullptr : source->unit();
}

} // namespace dtensor::detail
