// SPDX-License-Identifier: BSD-3-Clause
// ModuleTracker: attributes operators to modules. In the forward pass an
// operator belongs to the module that owns its parameter operand, or else to
// the innermost module with a ModuleScope (modules with styles or hooks). In a
// backward pass an operator belongs to the module of the forward operator that
// created the node. LibTorch gives a node the sequence number of the operator
// that created it.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace dtensor::detail {

class ModuleTracker {
 public:
  struct Cause {
    std::string_view module; // "" if unknown
    bool backward = false;
  };

  /// Looks up the parameters of `model` (may be null), and names its modules
  /// with hooks while the tracker lives.
  explicit ModuleTracker(torch::nn::Module* model);
  ~ModuleTracker();
  ModuleTracker(const ModuleTracker&) = delete;
  ModuleTracker& operator=(const ModuleTracker&) = delete;

  /// Bracket an outermost operator. `call` must have inputs.
  Cause begin(const at::RecordFunction& call);
  void end();
  /// Returns the cause of any other current work.
  Cause now() const;

 private:
  std::string_view reads_parameter_of(const at::RecordFunction& call) const;
  std::string_view owner_of(const at::Tensor& t, bool looks_up) const;
  std::string_view maker_of_current_node() const;

  struct Made {
    uint64_t end = 0;
    std::string_view module;
  };

  std::unordered_map<const c10::TensorImpl*, std::string_view> parameters_;
  std::vector<const torch::nn::Module*> named_; // named by this tracker
  Cause cause_;
  uint64_t first_ = 0;
  // The nodes of each operator, by thread and first sequence number.
  std::map<std::pair<uint64_t, uint64_t>, Made> made_;
};

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// A module of a model, for tables.
struct ModuleInfo {
  std::string name; // full name: "layers.0.w1"; "" for the model
  std::string type; // "torch::nn::LinearImpl"
  size_t depth = 0;
  NamedTensors parameters; // direct parameters, by local name
  NamedTensors buffers;
  const torch::nn::Module* module = nullptr;
};

/// Returns the model and all its submodules, parents first.
std::vector<ModuleInfo> modules_of(const torch::nn::Module& model);

} // namespace dtensor::detail
