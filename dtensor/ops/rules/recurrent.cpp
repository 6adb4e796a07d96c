// SPDX-License-Identifier: BSD-3-Clause
// Cells of recurrent networks: samples are independent. LibTorch decomposes
// them into operators that write in place, which is wrong for a partial sum.
#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/registry.h>

#include <algorithm>
#include <string>

namespace dtensor {
namespace {

// Returns the strategies of (input, state..., two weights, biases) -> new
// state...
Strategies cell(const OpCall& call, int64_t) {
  const auto states = call.outputs.size();
  const auto samples_end =
      call.inputs.begin() + static_cast<std::ptrdiff_t>(states) + 1;
  const bool batched =
      std::all_of(call.inputs.begin(), samples_end, [](const OpInput& input) {
        return input.dim() == 2;
      });
  // A bias of two dimensions would be a bias per sample.
  const bool shared =
      std::all_of(samples_end + 2, call.inputs.end(), [](const OpInput& bias) {
        return bias.dim() < 2;
      });
  if (!batched || !shared) {
    return {};
  }
  Strategy samples;
  samples.outputs.resize(states, Shard(0));
  samples.inputs.resize(call.inputs.size(), Replicate());
  std::fill_n(samples.inputs.begin(), states + 1, Shard(0));
  return {std::move(samples)};
}

} // namespace

DTENSOR_RULES(recurrent) {
  for (const char* name :
       {"gru_cell", "lstm_cell", "rnn_relu_cell", "rnn_tanh_cell"}) {
    rules.dim_rule(name, cell).with_traits({.module_created_arg = "hx"});
  }
  for (const std::string name : {"gru", "lstm", "rnn_relu", "rnn_tanh"}) {
    rules.traits(name + ".input", {.module_created_arg = "hx"});
    rules.traits(name + ".data", {.module_created_arg = "hx"});
  }
}

} // namespace dtensor
