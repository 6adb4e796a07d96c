// SPDX-License-Identifier: BSD-3-Clause
// ModuleTracker: whose doing an operator is. In the forward pass that of the
// module whose parameter it reads, else of the innermost module that says so
// (ModuleScope: styled modules, and those with hooks); in a backward pass that
// of the module whose operator made the node. Nodes have the number that
// LibTorch gave to the operator.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

#include <cstdint>
#include <map>
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
    std::string_view module; // "" for none that is known
    bool backward = false;
  };

  /// Knows the parameters of `model` (may be null), and has its modules with
  /// hooks tell their names, as long as it lives.
  explicit ModuleTracker(torch::nn::Module* model);
  ~ModuleTracker();
  ModuleTracker(const ModuleTracker&) = delete;
  ModuleTracker& operator=(const ModuleTracker&) = delete;

  /// Around an operator that no other one calls; `call` has inputs.
  Cause begin(const at::RecordFunction& call);
  void end();
  /// Of anything else that happens now.
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
  std::vector<const torch::nn::Module*> named_; // by this tracker
  Cause cause_;
  uint64_t first_ = 0;
  // By thread and first number: the nodes that one operator made.
  std::map<std::pair<uint64_t, uint64_t>, Made> made_;
};

} // namespace dtensor::detail
