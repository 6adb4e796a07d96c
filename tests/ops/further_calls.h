// SPDX-License-Identifier: BSD-3-Clause
// Arguments of plain calls of losses of samples, and of operators with operands
// of several shapes.
#pragma once

#include "spatial_calls.h"

#include <string>
#include <vector>

namespace dtensor::testing {

// Adds losses of (samples, classes), and of (time, samples, classes).
inline void add_sample_losses(CallTable& table) {
  const auto scores = at::full({4, 6}, 0.5);
  const auto one = at::full({}, 0.5);
  const auto labels = at::zeros({4}, at::kLong);
  const auto lists = at::zeros({4, 6}, at::kLong);
  table["multi_margin_loss"] = {scores, labels};
  table["multi_margin_loss_backward"] = {one, scores, labels, 1, 1.0};
  table["multilabel_margin_loss_forward"] = {scores, lists, 1};
  table["multilabel_margin_loss_backward"] = {one, scores, lists, 1, scores};
  const auto log_probs = at::full({6, 4, 3}, -1.0);
  const auto targets = at::ones({4, 2}, at::kLong);
  const std::vector<int64_t> times(4, 6);
  const std::vector<int64_t> lengths(4, 2);
  const auto grad = at::full({4}, 0.5);
  const auto alpha = at::full({4, 6, 5}, 0.5);
  table["ctc_loss.IntList"] =
      table["_ctc_loss"] = {log_probs, targets, times, lengths};
  table["_ctc_loss_backward"] = {
      grad, log_probs, targets, times, lengths, grad, alpha, 0};
  for (const auto* name :
       {"ctc_loss.Tensor", "_ctc_loss.Tensor", "_ctc_loss_backward.Tensor"}) {
    const auto base = std::string(name).substr(0, std::string(name).find('.'));
    auto& call = table[name];
    call = table[base == "ctc_loss" ? "ctc_loss.IntList" : base];
    for (auto& value : call) {
      if (value.isIntList()) {
        value = at::tensor(value.toIntVector(), at::kLong);
      }
    }
  }
}

inline void add_further_calls(CallTable& table) {
  add_sample_losses(table);
}

} // namespace dtensor::testing
