// SPDX-License-Identifier: BSD-3-Clause
// Fields of the state and the options of LibTorch's optimizers, with their
// Python names.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

namespace dtensor::detail {

using StateNumber = std::variant<int64_t*, double*>;

/// Fields of the state of one parameter.
struct StateFields {
  std::vector<std::pair<const char*, at::Tensor*>> tensors;
  std::vector<std::pair<const char*, StateNumber>> numbers;
  /// Lists of equal length.
  std::vector<std::pair<const char*, std::deque<at::Tensor>*>> lists = {};
};

/// True for the name of a tensor that optimizers make only with some options or
/// at some steps. Saved state has every other tensor and number.
bool is_optional_state(std::string_view name);

/// Returns the number as stored in a state dictionary: a 0-dim tensor.
at::Tensor number_tensor(const StateNumber& number);

/// Location of an option: a number, a flag, two numbers (betas), an optional
/// number (stored as -1 if absent), or line_search_fn (stored as 1 for
/// strong_wolfe, 0 for none).
using OptionPlace = std::variant<
    double*,
    bool*,
    std::tuple<double, double>*,
    int64_t*,
    std::optional<int64_t>*,
    std::optional<std::string>*>;
using OptionFields = std::vector<std::pair<const char*, OptionPlace>>;

/// Convert an option to numbers and back. betas has two numbers; other options
/// have one number.
std::vector<double> option_numbers(const OptionPlace& place);
void set_option(const OptionPlace& place, const std::vector<double>& numbers);

/// Returns the option as stored in a state dictionary: a 0-dim tensor, or a
/// tensor of two numbers.
at::Tensor option_tensor(const OptionPlace& place);

/// Optimizer type with known fields.
class KnownOptimizer {
 public:
  virtual ~KnownOptimizer() = default;
  virtual std::unique_ptr<torch::optim::OptimizerParamState> make() const = 0;
  virtual StateFields fields(
      torch::optim::OptimizerParamState& state) const = 0;
  /// True if the optimizer treats all parameters as one vector, and keeps its
  /// state vectors under the first parameter.
  virtual bool flattens_all_parameters() const = 0;
  /// Returns all options, the learning rate first.
  virtual OptionFields options(
      torch::optim::OptimizerOptions& options) const = 0;
};

/// Throws NotImplementedError for an unknown optimizer type.
std::unique_ptr<KnownOptimizer> known_optimizer(
    const torch::optim::Optimizer& optimizer,
    const char* where);

} // namespace dtensor::detail
