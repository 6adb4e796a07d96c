// SPDX-License-Identifier: BSD-3-Clause
// Cells and layers of recurrent networks: samples are independent. LibTorch
// decomposes these operators into operators that write in place, which is wrong
// for a partial sum. Packed sequences mix samples and time, so they are
// replicated.
#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/kernels/local_kernels_impl.h>
#include <dtensor/ops/registry.h>
#include <dtensor/ops/rules/shapes_impl.h>

#include <algorithm>
#include <string>

namespace dtensor {
namespace {

using namespace detail;

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
  Strategy samples{
      Placements(states, Shard(0)),
      Placements(call.inputs.size(), Replicate())};
  std::fill_n(samples.inputs.begin(), states + 1, Shard(0));
  return {std::move(samples)};
}

// Returns the number of states: hidden and cell states of an LSTM.
size_t state_count(const OpCall& call) {
  return call.schema.returns().size() - 1;
}

bool is_packed(const OpCall& call) {
  return call.has_arg("batch_sizes");
}

// Returns the dimension of samples of input and output. States have samples in
// dimension 1.
int64_t sample_dim(const OpCall& call) {
  return call.bool_arg("batch_first") ? 0 : 1;
}

// Returns the strategies of (input, state..., parameters...) -> output,
// state...
Strategies layers(const OpCall& call, int64_t) {
  if (is_packed(call)) {
    return {};
  }
  const auto states = static_cast<std::ptrdiff_t>(state_count(call));
  const auto sharding = Shard(sample_dim(call));
  auto samples = replicated_except(
      call, Placements(call.outputs.size(), Shard(1)), {{0, sharding}});
  samples.outputs[0] = sharding;
  std::fill_n(samples.inputs.begin() + 1, states, Shard(1));
  return {std::move(samples)};
}

// Returns the shapes of the results. LibTorch's output is a transposed view if
// samples come first.
std::vector<OutputMeta> layers_meta(const OpCall& call) {
  const auto& input = *call.inputs[0].spec;
  const size_t first_state = is_packed(call) ? 2 : 1;
  const auto& hidden = *call.inputs[first_state].spec;
  DTENSOR_CHECK(
      input.dim() == (is_packed(call) ? 2 : 3) && hidden.dim() == 3,
      "[{}] needs an input of (time, samples, features), or of (elements, "
      "features) if it is packed, and states of three dimensions, got {} and "
      "{}. Add dimensions of size 1.",
      call.name(),
      input,
      hidden);
  const int64_t directions = call.bool_arg("bidirectional") ? 2 : 1;
  Sizes sizes(input.sizes());
  sizes.back() = hidden.sizes()[2] * directions;
  std::vector<OutputMeta> outputs{dense(sizes, input.dtype())};
  if (!is_packed(call) && sample_dim(call) == 0) {
    outputs[0].strides = {
        sizes[2], std::max<int64_t>(sizes[0], 1) * sizes[2], 1};
  }
  for (size_t i = 0; i < state_count(call); ++i) {
    const auto& state = *call.inputs[first_state + i].spec;
    outputs.push_back(dense(state.sizes(), input.dtype()));
  }
  return outputs;
}

// Refuses a call whose result has the dtype of autocast, unless it is empty:
// the dtype would differ between ranks.
void refuse_autocast(const c10::OperatorHandle& op, torch::jit::Stack*) {
  DTENSOR_THROW_NOT_IMPLEMENTED(
      "[{}] is not supported under autocast. Turn autocast off around the "
      "call, and convert the module and its input to the dtype of autocast.",
      name_of(op.operator_name()));
}

} // namespace

DTENSOR_RULES(recurrent) {
  for (const char* name :
       {"gru_cell", "lstm_cell", "rnn_relu_cell", "rnn_tanh_cell"}) {
    rules.dim_rule(name, cell).with_traits({.module_created_arg = "hx"});
  }
  for (const std::string name : {"gru", "lstm", "rnn_relu", "rnn_tanh"}) {
    for (const auto& form : {name + ".input", name + ".data"}) {
      auto& rule = rules.dim_rule(form, layers)
                       .with_meta(layers_meta)
                       .with_local_kernel(boxed(recurrent_layers_local))
                       .with_draws(recurrent_draws)
                       .with_traits({.module_created_arg = "hx"});
      if (name != "gru") {
        rule.with_kernel(refuse_autocast, is_autocast);
      }
    }
  }
}

} // namespace dtensor
