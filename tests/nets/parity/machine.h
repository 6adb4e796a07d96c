// SPDX-License-Identifier: BSD-3-Clause
// One rank's run of a parity case: README.md says what stands in it.
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

/// A module and how it is called.
struct Callable {
  std::shared_ptr<torch::nn::Module> module;
  std::function<Tensors(const Tensors&)> call;
};

class Machine {
 public:
  explicit Machine(const Json& given);

  /// Runs the case: {"records", "counts", "error"}.
  Json run();

  // What steps use.
  /// "x", "$x" or "x.grad".
  at::Tensor tensor(const std::string& name) const;
  Tensors tensors(const Json& names) const;
  const DeviceMesh& mesh(const std::string& name) const;
  /// What step.mesh says: "mesh" if nothing, undefined if null.
  DeviceMesh mesh_of(const Json& step) const;
  const Callable& module(const std::string& name) const;
  using Value = std::variant<at::Tensor, DeviceMesh, Callable>;
  void bind(const std::string& name, Value value);
  /// `to` is a name, a list of names or null.
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

/// What a step does, by the name that stands in it.
using Step = void (*)(Machine&, const Json&);
using Steps = std::map<std::string, Step>;
Steps tensor_steps();
Steps operator_steps();
Steps mesh_steps();
Steps module_steps();

// What both sides write alike.
Placements placements_of(const Json& texts);
at::ScalarType dtype_of(const std::string& name);
/// Whose data count: the first rank's, unless the step says so.
std::optional<int64_t> src_data_rank(const Json& step);
Json record_of(const at::Tensor& tensor);
Json record_of(const DeviceMesh& mesh);
Json texts_of(PlacementsRef placements);
/// Numbers that are exact in every dtype.
at::Tensor pattern(const Json& step, int64_t seed);

/// parity::scale_rows, with a rule of its own.
void define_custom_operator();

} // namespace dtensor::parity
