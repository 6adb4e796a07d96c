// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/data_parallel/fsdp_module.h>

#include <dtensor/data_parallel/unit_impl.h>
#include <dtensor/error.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <functional>
#include <utility>

namespace dtensor {
namespace {

detail::Unit::Units units_of(
    const std::vector<FSDPModule>& modules,
    const std::function<detail::UnitPtr(const FSDPModule&)>& unit_of) {
  detail::Unit::Units all;
  for (const auto& module : modules) {
    all.push_back(unit_of(module));
  }
  return all;
}

detail::Schedule& root_schedule(const detail::Unit& unit, const char* where) {
  DTENSOR_CHECK(
      unit.outer() == nullptr,
      "[{}] unit \"{}\" is nested in unit \"{}\". Call it on the outermost "
      "unit.",
      where,
      unit.name(),
      unit.outer()->name());
  return *unit.schedule();
}

} // namespace

GradientReductionHandle::GradientReductionHandle(
    std::shared_ptr<detail::Unit> unit)
    : unit_(std::move(unit)) {}

void GradientReductionHandle::wait() {
  if (const auto unit = std::exchange(unit_, nullptr)) {
    unit->schedule()->finish();
  }
}

FSDPModule::FSDPModule(const torch::nn::Module& module)
    : unit_(detail::unit_of_module(module)) {
  DTENSOR_CHECK_VALUE(
      unit_ != nullptr,
      "[FSDPModule] {} is not a unit. Call fully_shard for it first.",
      module.name());
}

FSDPModule::FSDPModule(std::shared_ptr<detail::Unit> unit)
    : unit_(std::move(unit)) {}

std::vector<std::shared_ptr<detail::Unit>> FSDPModule::units(
    bool recurse) const {
  std::vector<detail::UnitPtr> all = {unit_};
  for (size_t i = 0; recurse && i < all.size(); ++i) {
    for (const auto& inner : all[i]->inner()) {
      if (auto unit = inner.lock()) {
        all.push_back(std::move(unit));
      }
    }
  }
  return all;
}

void FSDPModule::unshard(bool async_op) {
  unit_->gather_ahead();
  if (!async_op) {
    unit_->gather();
  }
}

void FSDPModule::reshard() {
  unit_->release(/*after_forward=*/false);
}

void FSDPModule::set_requires_gradient_sync(bool requires_sync, bool recurse) {
  for (const auto& unit : units(recurse)) {
    if (auto* reduction = unit->reduction()) {
      reduction->settings.requires_sync = requires_sync;
    }
  }
}

void FSDPModule::set_requires_all_reduce(
    bool requires_all_reduce,
    bool recurse) {
  for (const auto& unit : units(recurse)) {
    if (auto* reduction = unit->reduction()) {
      reduction->settings.requires_all_reduce = requires_all_reduce;
    }
  }
}

void FSDPModule::set_reshard_after_forward(bool reshards, bool recurse) {
  for (const auto& unit : units(recurse)) {
    unit->settings.reshard_after_forward = reshards;
  }
}

void FSDPModule::set_reshard_after_backward(bool reshards, bool recurse) {
  for (const auto& unit : units(recurse)) {
    unit->settings.reshards_after_backward = reshards;
  }
}

void FSDPModule::set_keep_unsharded_storage(bool keep, bool recurse) {
  for (const auto& unit : units(recurse)) {
    unit->set_keep_unsharded_storage(keep);
  }
}

void FSDPModule::set_gradient_divide_factor(double factor) {
  DTENSOR_CHECK_VALUE(
      factor > 0,
      "[FSDPModule] the gradient divide factor is {}. Pass a positive number.",
      factor);
  if (auto* reduction = unit_->reduction()) {
    reduction->settings.divide_factor = factor;
  }
}

void FSDPModule::set_modules_to_forward_prefetch(
    const std::vector<FSDPModule>& units) {
  unit_->settings.forward_prefetch =
      units_of(units, [](const FSDPModule& m) { return m.unit_; });
}

void FSDPModule::set_modules_to_backward_prefetch(
    const std::vector<FSDPModule>& units) {
  unit_->settings.backward_prefetch =
      units_of(units, [](const FSDPModule& m) { return m.unit_; });
}

void FSDPModule::set_manual_backward_finalization(bool enabled) {
  constexpr const char* kWhere = "set_manual_backward_finalization";
  auto& schedule = root_schedule(*unit_, kWhere);
  const bool in_backward = torch::autograd::get_current_graph_task_id() != -1 ||
      (schedule.is_manual() && schedule.awaits_finish());
  DTENSOR_CHECK(
      enabled == schedule.is_manual() || !in_backward,
      "[{}] a backward pass of unit \"{}\" has begun. Call "
      "finalize_backward() first.",
      kWhere,
      unit_->name());
  schedule.set_manual_finalization(enabled);
}

GradientReductionHandle FSDPModule::finalize_backward(bool async_op) {
  constexpr const char* kWhere = "finalize_backward";
  auto& schedule = root_schedule(*unit_, kWhere);
  DTENSOR_CHECK(
      schedule.is_manual(),
      "[{}] unit \"{}\" finalizes backward passes itself. Call "
      "set_manual_backward_finalization(true) before the backward pass.",
      kWhere,
      unit_->name());
  DTENSOR_CHECK(
      !schedule.is_finalizing(),
      "[{}] unit \"{}\" still reduces gradients. Wait for the handle of the "
      "last call first.",
      kWhere,
      unit_->name());
  auto all = units(/*recurse=*/true);
  // Ranks need the same order of collectives, but nested units have no fixed
  // order.
  std::ranges::sort(
      all, [](const auto& a, const auto& b) { return a->name() < b->name(); });
  for (const auto& unit : all) {
    unit->reduce_unreduced();
  }
  if (async_op) {
    schedule.begin_finalizing();
    return GradientReductionHandle(unit_);
  }
  schedule.finish();
  return GradientReductionHandle(nullptr);
}

} // namespace dtensor
