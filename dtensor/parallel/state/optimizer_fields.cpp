// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/parallel/state/optimizer_fields_impl.h>

#include <dtensor/error.h>

#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <array>
#include <type_traits>

namespace dtensor::detail {
namespace {

using torch::optim::Optimizer;
using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamState;

template <class State> // Adam or AdamW
requires requires(State& state) {
  state.exp_avg();
}
StateFields fields_of(State& state) {
  return {
      {{"exp_avg", &state.exp_avg()},
       {"exp_avg_sq", &state.exp_avg_sq()},
       {"max_exp_avg_sq", &state.max_exp_avg_sq()}},
      {{"step", &state.step()}}};
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

// Omits `al`, which is temporary within a step.
StateFields fields_of(torch::optim::LBFGSParamState& state) {
  return {
      {{"d", &state.d()},
       {"H_diag", &state.H_diag()},
       {"prev_flat_grad", &state.prev_flat_grad()}},
      {{"func_evals", &state.func_evals()},
       {"n_iter", &state.n_iter()},
       {"t", &state.t()},
       {"prev_loss", &state.prev_loss()}},
      {{"old_dirs", &state.old_dirs()},
       {"old_stps", &state.old_stps()},
       {"ro", &state.ro()}}};
}

template <class Options> // of Adam or AdamW
requires requires(Options& options) {
  options.betas();
}
OptionFields options_of(Options& options) {
  return {
      {"lr", &options.lr()},
      {"betas", &options.betas()},
      {"eps", &options.eps()},
      {"weight_decay", &options.weight_decay()},
      {"amsgrad", &options.amsgrad()}};
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

OptionFields options_of(torch::optim::LBFGSOptions& options) {
  return {
      {"lr", &options.lr()},
      {"max_iter", &options.max_iter()},
      {"max_eval", &options.max_eval()},
      {"tolerance_grad", &options.tolerance_grad()},
      {"tolerance_change", &options.tolerance_change()},
      {"history_size", &options.history_size()},
      {"line_search_fn", &options.line_search_fn()}};
}

constexpr double kNone = -1; // an absent number

// Convert between a value and its number.
template <class Value>
double number_of(const Value& value) {
  return static_cast<double>(value);
}
double number_of(const std::optional<int64_t>& value) {
  return value ? number_of(*value) : kNone;
}
double number_of(const std::optional<std::string>& value) {
  return value ? 1 : 0;
}

template <class Value>
void set_number(Value& value, double number) {
  value = static_cast<Value>(number);
}
void set_number(std::optional<int64_t>& value, double number) {
  value = number == kNone ? std::nullopt
                          : std::optional(static_cast<int64_t>(number));
}
void set_number(std::optional<std::string>& value, double number) {
  value =
      number == 0 ? std::nullopt : std::optional<std::string>("strong_wolfe");
}

template <class Place>
constexpr bool is_pair = std::is_same_v<Place, std::tuple<double, double>*>;

at::ScalarType dtype_of(const OptionPlace& place) {
  if (std::holds_alternative<bool*>(place) ||
      std::holds_alternative<std::optional<std::string>*>(place)) {
    return at::kBool;
  }
  return std::holds_alternative<int64_t*>(place) ||
          std::holds_alternative<std::optional<int64_t>*>(place)
      ? at::kLong
      : at::kDouble;
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
  bool flattens_all_parameters() const override {
    return std::is_same_v<State, torch::optim::LBFGSParamState>;
  }
};

// Returns null for another type of optimizer.
template <class OptimizerType, class State, class Options>
std::unique_ptr<KnownOptimizer> known_as(const Optimizer& optimizer) {
  return dynamic_cast<const OptimizerType*>(&optimizer) == nullptr
      ? nullptr
      : std::make_unique<Known<State, Options>>();
}

} // namespace

bool is_optional_state(std::string_view name) {
  constexpr std::array<std::string_view, 6> kOptional = {
      "max_exp_avg_sq",
      "momentum_buffer",
      "grad_avg",
      "d",
      "H_diag",
      "prev_flat_grad"};
  return std::ranges::find(kOptional, name) != kOptional.end();
}

at::Tensor number_tensor(const StateNumber& number) {
  if (auto* const* integer = std::get_if<int64_t*>(&number)) {
    return at::scalar_tensor(**integer, at::kLong);
  }
  return at::scalar_tensor(*std::get<double*>(number), at::kDouble);
}

std::vector<double> option_numbers(const OptionPlace& place) {
  return std::visit(
      [](auto* value) -> std::vector<double> {
        if constexpr (is_pair<decltype(value)>) {
          return {std::get<0>(*value), std::get<1>(*value)};
        } else {
          return {number_of(*value)};
        }
      },
      place);
}

void set_option(const OptionPlace& place, const std::vector<double>& numbers) {
  std::visit(
      [&](auto* value) {
        if constexpr (is_pair<decltype(value)>) {
          *value = {numbers[0], numbers[1]};
        } else {
          set_number(*value, numbers[0]);
        }
      },
      place);
}

at::Tensor option_tensor(const OptionPlace& place) {
  const auto numbers = option_numbers(place);
  return numbers.size() > 1 ? at::tensor(numbers, at::kDouble)
                            : at::scalar_tensor(numbers[0], dtype_of(place));
}

std::unique_ptr<KnownOptimizer> known_optimizer(
    const Optimizer& optimizer,
    const char* where) {
  using namespace torch::optim;
  for (const auto known :
       {known_as<AdamW, AdamWParamState, AdamWOptions>,
        known_as<Adam, AdamParamState, AdamOptions>,
        known_as<SGD, SGDParamState, SGDOptions>,
        known_as<Adagrad, AdagradParamState, AdagradOptions>,
        known_as<RMSprop, RMSpropParamState, RMSpropOptions>,
        known_as<LBFGS, LBFGSParamState, LBFGSOptions>}) {
    if (auto found = known(optimizer)) {
      return found;
    }
  }
  DTENSOR_THROW_NOT_IMPLEMENTED(
      "[{}] unsupported type of optimizer. Use SGD, Adam, AdamW, Adagrad, "
      "RMSprop or LBFGS.",
      where);
}

} // namespace dtensor::detail
