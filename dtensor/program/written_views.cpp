// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/program/written_views_impl.h>

#include <dtensor/layout/spec_impl.h>
#include <dtensor/ops/path/stack_impl.h>
#include <dtensor/tensor/autograd_impl.h>
#include <dtensor/tensor/meta_impl.h>

#include <ATen/core/grad_mode.h>

#include <algorithm>
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
  return std::any_of(all.begin(), all.end(), [&](const auto& other) {
    return other.is_same(t);
  });
}

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
  const bool all = std::all_of(
      begun_.views.begin(), begun_.views.end(), [&](const auto& view) {
        return is_view_of(view, base);
      });
  if (all) { // other results are copies, as in a plain program
    calls_[begun_.node->in_place_args[0].sharing->front()].push_back(
        std::move(begun_));
  }
  begun_ = {};
}

void WrittenViews::forget_unused() {
  for (auto& [set, calls] : calls_) {
    // Walks backward, because a view may be the base of a later view.
    for (auto call = calls.end(); call != calls.begin();) {
      --call;
      const bool used = std::any_of(
          call->views.begin(), call->views.end(), [](const auto& view) {
            return view.use_count() > 1;
          });
      call = used ? call : calls.erase(call);
    }
  }
}

// Keeps the calls with views in use. Only the graph's values decide this,
// because they are equal on all ranks; other owners of a view may not be.
void WrittenViews::keep_used(
    ViewCalls& calls,
    const at::Tensor& t,
    c10::ArrayRef<IValue> values,
    const std::vector<Slot>& sharing) {
  std::vector<at::Tensor> used = {t};
  for (const auto slot : sharing) {
    if (values[slot].isTensor()) {
      used.push_back(values[slot].toTensor());
    }
  }
  for (auto call = calls.end(); call != calls.begin();) {
    --call;
    const bool is_used = std::any_of(
        call->views.begin(), call->views.end(), [&](const auto& view) {
          return is_in(view, used);
        });
    if (is_used) {
      used.push_back(call->args[call->base].toTensor());
    } else {
      call = calls.erase(call);
    }
  }
}

// Takes the views of redistributed tensors again.
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
  // Gradients are recorded for all later uses, also where recording is on
  // again.
  const c10::AutoGradMode mode(
      c10::GradMode::is_enabled() || root.requires_grad());
  Moved moved;
  // Uses the replicated layout if there are other views, because they may not
  // fit the layout that this call needs.
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
