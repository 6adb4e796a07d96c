// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/parallel/optimizer_fields_impl.h>

#include <dtensor/error.h>

#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

namespace dtensor::detail {
namespace {

using torch::optim::Optimizer;
using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamState;

template <class State>
StateFields adam_fields(State& state) {
  return {
      {{"exp_avg", &state.exp_avg()},
       {"exp_avg_sq", &state.exp_avg_sq()},
       {"max_exp_avg_sq", &state.max_exp_avg_sq()}},
      {{"step", &state.step()}}};
}

StateFields fields_of(torch::optim::AdamParamState& state) {
  return adam_fields(state);
}
StateFields fields_of(torch::optim::AdamWParamState& state) {
  return adam_fields(state);
}
StateFields fields_of(torch::optim::SGDParamState& state) {
  return {{{"momentum_buffer", &state.momentum_buffer()}}, {}};
}
StateFields fields_of(torch::optim::AdagradParamState& state) {
  return {{{"sum", &state.sum()}}, {{"step", &state.step()}}};
}
StateFields fields_of(torch::optim::RMSpropParamState& state) {
  return {
      {{"square_avg", &state.square_avg()},
       {"momentum_buffer", &state.momentum_buffer()},
       {"grad_avg", &state.grad_avg()}},
      {{"step", &state.step()}}};
}

template <class Options>
OptionFields adam_options(Options& options) {
  return {
      {"lr", &options.lr()},
      {"betas", &options.betas()},
      {"eps", &options.eps()},
      {"weight_decay", &options.weight_decay()},
      {"amsgrad", &options.amsgrad()}};
}

OptionFields options_of(torch::optim::AdamOptions& options) {
  return adam_options(options);
}
OptionFields options_of(torch::optim::AdamWOptions& options) {
  return adam_options(options);
}
OptionFields options_of(torch::optim::SGDOptions& options) {
  return {
      {"lr", &options.lr()},
      {"momentum", &options.momentum()},
      {"dampening", &options.dampening()},
      {"weight_decay", &options.weight_decay()},
      {"nesterov", &options.nesterov()}};
}
OptionFields options_of(torch::optim::AdagradOptions& options) {
  return {
      {"lr", &options.lr()},
      {"lr_decay", &options.lr_decay()},
      {"weight_decay", &options.weight_decay()},
      {"initial_accumulator_value", &options.initial_accumulator_value()},
      {"eps", &options.eps()}};
}
OptionFields options_of(torch::optim::RMSpropOptions& options) {
  return {
      {"lr", &options.lr()},
      {"alpha", &options.alpha()},
      {"eps", &options.eps()},
      {"weight_decay", &options.weight_decay()},
      {"momentum", &options.momentum()},
      {"centered", &options.centered()}};
}

template <class State, class Options>
class Known final : public KnownOptimizer {
 public:
  std::unique_ptr<OptimizerParamState> make() const override {
    return std::make_unique<State>();
  }
  StateFields fields(OptimizerParamState& state) const override {
    return fields_of(static_cast<State&>(state));
  }
  OptionFields options(OptimizerOptions& options) const override {
    return options_of(static_cast<Options&>(options));
  }
};

} // namespace

std::vector<double> option_numbers(const OptionPlace& place) {
  if (const auto* number = std::get_if<double*>(&place)) {
    return {**number};
  }
  if (const auto* flag = std::get_if<bool*>(&place)) {
    return {**flag ? 1. : 0.};
  }
  const auto& [first, second] = *std::get<std::tuple<double, double>*>(place);
  return {first, second};
}

void set_option(const OptionPlace& place, const std::vector<double>& numbers) {
  if (const auto* number = std::get_if<double*>(&place)) {
    **number = numbers[0];
  } else if (const auto* flag = std::get_if<bool*>(&place)) {
    **flag = numbers[0] != 0;
  } else {
    *std::get<std::tuple<double, double>*>(place) = {numbers[0], numbers[1]};
  }
}

at::Tensor option_tensor(const OptionPlace& place) {
  const auto numbers = option_numbers(place);
  if (numbers.size() > 1) {
    return at::tensor(numbers, at::kDouble);
  }
  return at::scalar_tensor(
      numbers[0],
      std::holds_alternative<bool*>(place) ? at::kBool : at::kDouble);
}

std::unique_ptr<KnownOptimizer> known_optimizer(
    const Optimizer& optimizer,
    const char* where) {
  using namespace torch::optim;
  if (dynamic_cast<const AdamW*>(&optimizer)) {
    return std::make_unique<Known<AdamWParamState, AdamWOptions>>();
  }
  if (dynamic_cast<const Adam*>(&optimizer)) {
    return std::make_unique<Known<AdamParamState, AdamOptions>>();
  }
  if (dynamic_cast<const SGD*>(&optimizer)) {
    return std::make_unique<Known<SGDParamState, SGDOptions>>();
  }
  if (dynamic_cast<const Adagrad*>(&optimizer)) {
    return std::make_unique<Known<AdagradParamState, AdagradOptions>>();
  }
  if (dynamic_cast<const RMSprop*>(&optimizer)) {
    return std::make_unique<Known<RMSpropParamState, RMSpropOptions>>();
  }
  DTENSOR_CHECK_NOT_IMPLEMENTED(
      false,
      where,
      "what this optimizer keeps is not known. It does SGD, Adam, AdamW, "
      "Adagrad and RMSprop.");
}

} // namespace dtensor::detail
