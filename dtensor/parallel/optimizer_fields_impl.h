// SPDX-License-Identifier: BSD-3-Clause
// What LibTorch's optimizers keep of a parameter, and the options of a group of
// parameters, by the names that Python has for them.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

namespace dtensor::detail {

/// The fields of what is kept of one parameter.
struct StateFields {
  std::vector<std::pair<const char*, at::Tensor*>> tensors;
  std::vector<std::pair<const char*, int64_t*>> numbers;
};

/// Where an option is: a number, a flag, or two numbers (betas).
using OptionPlace = std::variant<double*, bool*, std::tuple<double, double>*>;
using OptionFields = std::vector<std::pair<const char*, OptionPlace>>;

/// An option as numbers, and the other way round: as many as it has.
std::vector<double> option_numbers(const OptionPlace& place);
void set_option(const OptionPlace& place, const std::vector<double>& numbers);

/// As a dictionary has it: a tensor without dimensions, or of two numbers.
at::Tensor option_tensor(const OptionPlace& place);

/// An optimizer of a kind that we know.
class KnownOptimizer {
 public:
  virtual ~KnownOptimizer() = default;
  virtual std::unique_ptr<torch::optim::OptimizerParamState> make() const = 0;
  virtual StateFields fields(
      torch::optim::OptimizerParamState& state) const = 0;
  /// All of them, the learning rate first.
  virtual OptionFields options(
      torch::optim::OptimizerOptions& options) const = 0;
};

/// Throws NotImplementedError for one that we do not know.
std::unique_ptr<KnownOptimizer> known_optimizer(
    const torch::optim::Optimizer& optimizer,
    const char* where);

} // namespace dtensor::detail
