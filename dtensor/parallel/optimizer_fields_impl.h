// SPDX-License-Identifier: BSD-3-Clause
// What LibTorch's optimizers keep of a parameter, and the options of a group of
// parameters, by the names that Python has for them.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

namespace dtensor::detail {

using StateNumber = std::variant<int64_t*, double*>;

/// The fields of what is kept of one parameter.
struct StateFields {
  std::vector<std::pair<const char*, at::Tensor*>> tensors;
  std::vector<std::pair<const char*, StateNumber>> numbers;
  /// As many of one as of another.
  std::vector<std::pair<const char*, std::deque<at::Tensor>*>> lists = {};
};

/// As a dictionary has it: a tensor without dimensions.
at::Tensor number_tensor(const StateNumber& number);

/// Where an option is: a number, a flag, two numbers (betas), a number that may
/// be missing (then it is -1), or line_search_fn (1: strong_wolfe, 0: none).
using OptionPlace = std::variant<
    double*,
    bool*,
    std::tuple<double, double>*,
    int64_t*,
    std::optional<int64_t>*,
    std::optional<std::string>*>;
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
  /// Whether it takes all parameters for one vector, and keeps vectors like it
  /// under the first of them.
  virtual bool spans_all() const = 0;
  /// All of them, the learning rate first.
  virtual OptionFields options(
      torch::optim::OptimizerOptions& options) const = 0;
};

/// Throws NotImplementedError for one that we do not know.
std::unique_ptr<KnownOptimizer> known_optimizer(
    const torch::optim::Optimizer& optimizer,
    const char* where);

} // namespace dtensor::detail
