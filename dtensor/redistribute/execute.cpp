// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/redistribute/execute.h>

#include <dtensor/comm/group/redistribution_scope_impl.h>
#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/error.h>
#include <dtensor/layout/mesh_state_impl.h>
#include <dtensor/layout/text.h>
#include <dtensor/redistribute/plan_impl.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace dtensor {

using namespace detail;

namespace {

// Returns false if the tensors have separate memory. Wrappers of torch.func
// have no memory to compare.
bool may_share_memory(const at::Tensor& result, const at::Tensor& local) {
  return local.defined() && (!local.has_storage() || result.is_alias_of(local));
}

// Copies `result` if necessary. During a plan, slices are views. The plan's
// result must not share memory with its input or keep a larger storage alive.
// The result's memory order follows `strides`, the strides of the layout, so
// that a view of the global tensor is also a view of the local tensors. `local`
// is the plan's input, or undefined if `result` cannot alias it.
at::Tensor own_memory(
    const at::Tensor& result,
    const at::Tensor& local,
    SizesRef strides) {
  const auto wanted = dense_strides(result.sizes(), strides);
  if (wanted != dtensor::contiguous_strides(result.sizes()) ||
      !result.has_storage() || may_share_memory(result, local) ||
      result.storage().nbytes() > result.nbytes()) {
    return at::empty_strided(result.sizes(), wanted, result.options())
        .copy_(result);
  }
  return result.contiguous();
}

// Checks the shape of the last step's result and returns it in its own memory.
at::Tensor finish(
    const at::Tensor& result,
    const at::Tensor& local,
    const Spec& from,
    const Spec& to) {
  DTENSOR_CHECK_VALUE(
      result.sizes() == to.local_sizes(),
      "[redistribute] the local tensors do not form the global tensor: this "
      "rank got {} where {} has {}. On every rank, pass the local tensor that "
      "{} describes.",
      result.sizes(),
      to,
      to.local_sizes(),
      from);
  return own_memory(result, local, to.strides());
}

// Returns a meta tensor in layout `to`. Meta tensors have no data to send.
at::Tensor meta_shard(const at::Tensor& local, const Spec& to) {
  return at::empty_strided(
      to.local_sizes(),
      dense_strides(to.local_sizes(), to.strides()),
      local.options().requires_grad(false));
}

void check_local(const at::Tensor& local, const Spec& from) {
  DTENSOR_CHECK_VALUE(
      local.sizes() == from.local_sizes(),
      "[redistribute] the local tensor has shape {}, but its layout gives this "
      "rank {}. Pass the local tensor that the layout describes.",
      local.sizes(),
      from.local_sizes());
}

/// A plan with its step number `entered` in flight.
class PendingPlan final : public Pending {
 public:
  PendingPlan(
      SpecPtr from,
      SpecPtr to,
      std::shared_ptr<const RankPlan> plan,
      size_t entered,
      PendingPtr collective)
      : from_(std::move(from)),
        to_(std::move(to)),
        plan_(std::move(plan)),
        entered_(entered),
        collective_(std::move(collective)),
        inference_(c10::InferenceMode::is_enabled()) {}

  at::Tensor wait() override {
    if (collective_ != nullptr) {
      std::optional<c10::InferenceMode> as_when_entered;
      if (c10::InferenceMode::is_enabled() != inference_) {
        as_when_entered.emplace(inference_);
      }
      const at::NoGradGuard no_grad;
      result_ = rest(collective_->wait());
      collective_ = nullptr;
    }
    return result_;
  }

 private:
  at::Tensor rest(const at::Tensor& received) const {
    const auto& steps = plan_->local_steps(*from_);
    at::Tensor result = steps[entered_].finish(received);
    for (size_t i = entered_ + 1; i < steps.size(); ++i) {
      result = steps[i].execute(result);
    }
    return finish(result, {}, *from_, *to_);
  }

  SpecPtr from_;
  SpecPtr to_;
  std::shared_ptr<const RankPlan> plan_;
  size_t entered_;
  PendingPtr collective_;
  bool inference_;
  at::Tensor result_;
};

} // namespace

at::Tensor redistribute_local(
    const at::Tensor& local,
    const SpecPtr& from,
    const SpecPtr& to) {
  const auto the_plan = plan_for_this_rank(from, to);
  if (!from->mesh().contains_this_rank()) {
    return at::empty({0}, local.options().requires_grad(false));
  }
  check_local(local, *from);
  if (the_plan->steps.empty()) {
    return local;
  }
  if (local.is_meta()) {
    return meta_shard(local, *to);
  }
  at::NoGradGuard no_grad;
  const RedistributionScope scope(*from, *to);
  at::Tensor result = local;
  for (const LocalStep& step : the_plan->local_steps(*from)) {
    result = step.execute(result);
  }
  return finish(result, local, *from, *to);
}

PendingPtr redistribute_local_async(
    at::Tensor local,
    const SpecPtr& from,
    const SpecPtr& to) {
  auto the_plan = plan_for_this_rank(from, to);
  const auto& steps = the_plan->steps;
  const auto last =
      std::find_if(steps.rbegin(), steps.rend(), [](const Step& step) {
        return collective_of(step.kind).has_value();
      });
  if (last == steps.rend() || local.is_meta() ||
      !from->mesh().contains_this_rank()) {
    return ready(redistribute_local(local, from, to));
  }
  check_local(local, *from);
  const at::NoGradGuard no_grad;
  const RedistributionScope scope(*from, *to);
  const auto entered = static_cast<size_t>(steps.rend() - last) - 1;
  const auto& local_steps = the_plan->local_steps(*from);
  for (size_t i = 0; i < entered; ++i) {
    local = local_steps[i].execute(local);
  }
  auto collective = local_steps[entered].enter(std::move(local));
  return std::make_shared<PendingPlan>(
      from, to, std::move(the_plan), entered, std::move(collective));
}

bool detail::communicates_in_background(const DeviceMesh& mesh) {
  if (mesh.size() == 1 || mesh_groups(mesh) == nullptr ||
      !mesh.contains_this_rank()) {
    return false;
  }
  for (int64_t dim = 0; dim < mesh.ndim(); ++dim) {
    const Group& group = get_group(mesh, dim);
    if (group.size() > 1 &&
        !group.progresses_in_background(mesh.device_type())) {
      return false;
    }
  }
  return true;
}

} // namespace dtensor
