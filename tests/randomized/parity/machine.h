// SPDX-License-Identifier: BSD-3-Clause
// Execution of one parity case on one rank. README.md describes the format of a
// case.
#pragma once

#include <dtensor/dtensor.h>
#include <torch/torch.h>

#include <nlohmann/json.hpp>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace dtensor::parity {

using Json = nlohmann::json;
using Tensors = std::vector<at::Tensor>;

/// A module and its call function.
struct Callable {
  std::shared_ptr<torch::nn::Module> module;
  std::function<Tensors(const Tensors&)> call;
};

class Machine {
 public:
  explicit Machine(const Json& given);

  /// Runs the case and returns {"records", "counts", "error"}.
  Json run();

  // Functions for the steps.
  /// Returns the tensor "x", "$x" or "x.grad".
  at::Tensor tensor(const std::string& name) const;
  Tensors tensors(const Json& names) const;
  const DeviceMesh& mesh(const std::string& name) const;
  /// Returns the mesh named by step.mesh. Default: "mesh"; undefined for null.
  DeviceMesh mesh_of(const Json& step) const;
  const Callable& module(const std::string& name) const;
  using Value = std::variant<at::Tensor, DeviceMesh, Callable>;
  void bind(const std::string& name, Value value);
  /// Binds values to names. `to` is a name, a list of names or null.
  void bind_all(const Json& to, const Tensors& values);
  void note(const std::string& label, Json record);

 private:
  void run_steps(const Json& steps, const std::string& prefix);
  void run_step(const Json& step, const std::string& label);
  void run_within(const Json& step, const std::string& prefix);

  const Json& case_;
  std::map<std::string, Value> named_;
  Json result_;
};

/// A step's function, looked up by its name.
using Step = void (*)(Machine&, const Json&);
using Steps = std::map<std::string, Step>;
Steps tensor_steps();
Steps operator_steps();
Steps mesh_steps();
Steps module_steps();

// Helpers for values that C++ and Python write in the same form.
Placements placements_of(const Json& texts);
at::ScalarType dtype_of(const std::string& name);
/// Returns the rank of the source data. This is the first rank, unless the step
/// gives another.
std::optional<int64_t> src_data_rank(const Json& step);
Json record_of(const at::Tensor& tensor);
Json record_of(const DeviceMesh& mesh);
Json texts_of(PlacementsRef placements);
/// Returns a tensor of numbers that are exact in every dtype.
at::Tensor pattern(const Json& step, int64_t seed);

/// Defines parity::scale_rows, with its own sharding rule.
void define_custom_operator();

} // namespace dtensor::parity
