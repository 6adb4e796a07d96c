// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/parallel/optimizer_fields_impl.h>

#include <dtensor/error.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

namespace dtensor::detail {
namespace {

using torch::optim::OptimizerParamState;

template <class State>
OptimizerFields adam_fields(State& state) {
  return {
      {{"exp_avg", &state.exp_avg()},
       {"exp_avg_sq", &state.exp_avg_sq()},
       {"max_exp_avg_sq", &state.max_exp_avg_sq()}},
      {{"step", &state.step()}}};
}

OptimizerFields fields_of(torch::optim::AdamParamState& state) {
  return adam_fields(state);
}
OptimizerFields fields_of(torch::optim::AdamWParamState& state) {
  return adam_fields(state);
}
OptimizerFields fields_of(torch::optim::SGDParamState& state) {
  return {{{"momentum_buffer", &state.momentum_buffer()}}, {}};
}
OptimizerFields fields_of(torch::optim::AdagradParamState& state) {
  return {{{"sum", &state.sum()}}, {{"step", &state.step()}}};
}
OptimizerFields fields_of(torch::optim::RMSpropParamState& state) {
  return {
      {{"square_avg", &state.square_avg()},
       {"momentum_buffer", &state.momentum_buffer()},
       {"grad_avg", &state.grad_avg()}},
      {{"step", &state.step()}}};
}

template <class State>
class KnownState final : public KnownOptimizer {
 public:
  std::unique_ptr<OptimizerParamState> make() const override {
    return std::make_unique<State>();
  }
  OptimizerFields fields(OptimizerParamState& state) const override {
    return fields_of(static_cast<State&>(state));
  }
};

template <class Optimizer, class State>
std::unique_ptr<KnownOptimizer> if_is(
    const torch::optim::Optimizer& optimizer) {
  return dynamic_cast<const Optimizer*>(&optimizer) == nullptr
      ? nullptr
      : std::make_unique<KnownState<State>>();
}

} // namespace

std::unique_ptr<KnownOptimizer> known_optimizer(
    const torch::optim::Optimizer& optimizer,
    const char* where) {
  using namespace torch::optim;
  for (const auto& if_known :
       {if_is<SGD, SGDParamState>,
        if_is<Adam, AdamParamState>,
        if_is<AdamW, AdamWParamState>,
        if_is<Adagrad, AdagradParamState>,
        if_is<RMSprop, RMSpropParamState>}) {
    if (auto known = if_known(optimizer)) {
      return known;
    }
  }
  DTENSOR_CHECK_NOT_IMPLEMENTED(
      false,
      where,
      "what this optimizer keeps is not known. It does SGD, Adam, AdamW, "
      "Adagrad and RMSprop.");
}

} // namespace dtensor::detail
