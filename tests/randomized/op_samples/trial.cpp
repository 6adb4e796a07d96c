// SPDX-License-Identifier: BSD-3-Clause
#include "trial.h"

#include "twin.h"

#include <ATen/ops/isfinite.h>

#include <algorithm>

namespace dtensor::randomized {
namespace {

bool same_operands(const Tensors& a, const Tensors& b) {
  return std::equal(
      a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
        return x.sizes() == y.sizes() && x.scalar_type() == y.scalar_type();
      });
}

// False if a result contains infinities or NaN, which are not sums of terms.
bool is_finite(const Results& results) {
  for (const auto* tensors : {&results.values, &results.grads}) {
    for (const auto& t : *tensors) {
      if (t.defined() && !at::isfinite(t.detach()).all().item<bool>()) {
        return false;
      }
    }
  }
  return true;
}

// True if LibTorch returns uninitialized memory: this loss of no samples.
bool has_uninitialized_result(const Call& call) {
  return call.op.schema().name() == "aten::multilabel_margin_loss_forward" &&
      call.arguments[0].isTensor() && call.arguments[0].toTensor().numel() == 0;
}

} // namespace

Trial trial_alone(Call call) {
  Trial trial{std::move(call), {}, Compared::kAll, false, {}};
  trial.compared = has_uninitialized_result(trial.call)
      ? Compared::kShapes
      : compared_of(trial.call.op);
  try {
    add_outs(trial.call);
    trial.truth = truth_of(trial.call);
  } catch (const std::exception&) {
    trial.skip = true; // no outs: the functional form throws
  }
  for (const auto& value : trial.truth.no_grad.values) {
    trial.skip |= value.defined() && value.layout() != at::kStrided;
  }
  bool any_distributed = false;
  for (const auto& t : trial.truth.operands) {
    any_distributed |= !t.unsafeGetTensorImpl()->is_wrapped_number();
  }
  trial.skip |= !any_distributed;
  return trial;
}

namespace {

void add_twins(Trial& trial, const std::vector<Call>& twins) {
  const auto& truth = trial.truth;
  if (trial.skip || !truth.no_grad.error.empty()) {
    return;
  }
  for (const auto& call : twins) {
    auto twin = trial_alone(call);
    const auto& other = twin.truth;
    if (!twin.skip && other.no_grad.error.empty() && other.grad.error.empty() &&
        same_operands(other.operands, truth.operands) &&
        is_finite(other.no_grad) && is_finite(other.grad)) {
      trial.twins.push_back(std::move(twin));
    }
  }
}

} // namespace

Trial trial_of(Call call) {
  const auto twins = twins_of(call);
  auto trial = trial_alone(std::move(call));
  add_twins(trial, twins);
  return trial;
}

std::vector<const Trial*> order_of(const Trial& trial, bool backwards) {
  std::vector<const Trial*> order = {&trial, &trial};
  for (const auto& twin : trial.twins) {
    order.insert(backwards ? order.begin() : order.end(), &twin);
  }
  if (!trial.twins.empty()) {
    order.push_back(order.front());
  }
  return order;
}

} // namespace dtensor::randomized
