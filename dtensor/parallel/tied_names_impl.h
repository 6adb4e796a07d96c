// SPDX-License-Identifier: BSD-3-Clause
// Names of tensors that several modules share. Files hold such a tensor once,
// under its first name, as Python's safetensors.torch.save_model does.
#pragma once

#include <dtensor/parallel/state_dict.h>

#include <map>
#include <string>
#include <vector>

namespace dtensor::detail {

class TiedNames {
 public:
  TiedNames() = default;
  explicit TiedNames(const StateDict& tensors);

  /// Each further name of a tensor, and the first name of that tensor.
  const std::map<std::string, std::string>& firsts() const {
    return firsts_;
  }
  /// All names of the tensor that is called `name`, in their order; empty if it
  /// has one name.
  const std::vector<std::string>& names_of(const std::string& name) const;

 private:
  std::map<std::string, std::string> firsts_;
  std::map<std::string, std::vector<std::string>> by_first_;
};

/// Whether two tensors of one shape have equal elements; NaN equals NaN.
bool have_same_values(const at::Tensor& a, const at::Tensor& b);

} // namespace dtensor::detail
