// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/program/operand_layouts_impl.h>

#include <dtensor/layout/spec_impl.h>
#include <dtensor/ops/path/stack_impl.h>
#include <dtensor/tensor/autograd_impl.h>
#include <dtensor/tensor/meta_impl.h>

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <iterator>
#include <unordered_set>
#include <utility>

namespace dtensor::detail {
namespace {

using c10::IValue;

bool is_view_of(const at::Tensor& view, const at::Tensor& base) {
  return !view.is_same(base) && is_dtensor(view) &&
      meta_of(view).local().storage().unsafeGetStorageImpl() ==
      meta_of(base).local().storage().unsafeGetStorageImpl();
}

bool is_in(const at::Tensor& t, const std::vector<at::Tensor>& all) {
  return std::ranges::any_of(
      all, [&](const auto& other) { return other.is_same(t); });
}

// Number of calls that are examined each time that a value is released.
constexpr size_t kCallsPerRelease = 16;

} // namespace

void WrittenViews::begin(const GraphNode& node, const torch::jit::Stack& args) {
  begun_ = {};
  if (node.in_place_args.empty() || !node.written.empty()) {
    return;
  }
  const auto& own = node.in_place_args[0];
  if (own.sharing != nullptr && args[own.arg].isTensor() &&
      is_dtensor(args[own.arg].toTensor())) {
    begun_ = {&node, args, own.arg, {}};
  }
}

void WrittenViews::end(const torch::jit::Stack& results) {
  if (begun_.node == nullptr) {
    return;
  }
  const auto& base = begun_.args[begun_.base].toTensor();
  begun_.views = tensors_in(results);
  const bool all = std::ranges::all_of(
      begun_.views, [&](const auto& view) { return is_view_of(view, base); });
  if (all) { // other results are copies, as in a plain program
    calls_[begun_.node->in_place_args[0].sharing->front()].push_back(
        std::move(begun_));
    ++num_calls_;
  }
  begun_ = {};
}

// Empties calls from the last to the first, because a view may be the base of a
// later view, and then removes them.
void WrittenViews::forget_unused() {
  if (++num_waits_ * kCallsPerRelease < num_calls_) {
    return;
  }
  num_waits_ = 0;
  num_calls_ = 0;
  for (auto set = calls_.begin(); set != calls_.end();) {
    auto& calls = set->second;
    for (auto call = calls.rbegin(); call != calls.rend(); ++call) {
      const bool used = std::ranges::any_of(
          call->views, [](const auto& view) { return view.use_count() > 1; });
      if (!used) {
        *call = {};
      }
    }
    remove_empty(calls);
    num_calls_ += calls.size();
    set = calls.empty() ? calls_.erase(set) : std::next(set);
  }
}

void WrittenViews::remove_empty(ViewCalls& calls) {
  std::erase_if(calls, [](const auto& call) { return call.node == nullptr; });
}

// Keeps the calls with views in use. Only the graph's values decide whether a
// view is in use, because they are equal on all ranks. Other owners of a view
// may differ between ranks.
void WrittenViews::keep_used(
    ViewCalls& calls,
    const at::Tensor& t,
    c10::ArrayRef<IValue> values,
    const std::vector<Slot>& sharing) {
  std::unordered_set<const c10::TensorImpl*> used = {t.unsafeGetTensorImpl()};
  for (const auto slot : sharing) {
    if (values[slot].isTensor()) {
      used.insert(values[slot].toTensor().unsafeGetTensorImpl());
    }
  }
  for (auto call = calls.rbegin(); call != calls.rend(); ++call) {
    const bool is_used =
        std::ranges::any_of(call->views, [&](const auto& view) {
          return used.count(view.unsafeGetTensorImpl()) > 0;
        });
    if (is_used) {
      used.insert(call->args[call->base].toTensor().unsafeGetTensorImpl());
    } else {
      *call = {};
    }
  }
  remove_empty(calls);
}

// Makes the views of redistributed tensors again.
void WrittenViews::retake_views(ViewCalls& calls, Moved& moved) {
  for (auto& call : calls) {
    auto& base = call.args[call.base];
    const auto found = moved.find(base.toTensor().unsafeGetTensorImpl());
    if (found == moved.end()) {
      continue;
    }
    base = found->second;
    auto stack = call.args;
    std::get<c10::OperatorHandle>(call.node->call).callBoxed(&stack);
    const auto views = tensors_in(stack);
    for (size_t i = 0; i < views.size(); ++i) {
      moved[call.views[i].unsafeGetTensorImpl()] = views[i];
    }
    call.views = views;
  }
}

at::Tensor WrittenViews::brought(
    const at::Tensor& t,
    const InPlaceArg& own,
    const SpecPtr& to,
    std::vector<IValue>& values) {
  if (own.sharing == nullptr) {
    return t;
  }
  auto& calls = calls_[own.sharing->front()];
  keep_used(calls, t, values, *own.sharing);
  auto root = t;
  for (auto call = calls.rbegin(); call != calls.rend(); ++call) {
    if (is_in(root, call->views)) {
      root = call->args[call->base].toTensor();
    }
  }
  // Gradients are recorded, because a later use may record gradients even if
  // this use does not.
  const c10::AutoGradMode mode(
      c10::GradMode::is_enabled() || root.requires_grad());
  Moved moved;
  // Uses the replicated layout if other views exist, because these may not fit
  // the layout that this call needs.
  moved[root.unsafeGetTensorImpl()] = redistribute_autograd(
      root, calls.empty() ? to : fully_replicated_spec(*spec_of(root)));
  retake_views(calls, moved);
  for (const auto slot : *own.sharing) {
    if (values[slot].isTensor()) {
      const auto found =
          moved.find(values[slot].toTensor().unsafeGetTensorImpl());
      values[slot] = found == moved.end() ? values[slot] : found->second;
    }
  }
  return moved.at(t.unsafeGetTensorImpl());
}

} // namespace dtensor::detail
