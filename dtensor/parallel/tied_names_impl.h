// SPDX-License-Identifier: BSD-3-Clause
// Names of tensors that several modules share. Files store such a tensor once,
// under its first name, like Python's safetensors.torch.save_model.
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

  /// Map from each further name of a tensor to its first name.
  const std::map<std::string, std::string>& firsts() const {
    return firsts_;
  }
  /// Returns all names of the tensor called `name`, in order; empty if there is
  /// only one.
  const std::vector<std::string>& names_of(const std::string& name) const;

 private:
  std::map<std::string, std::string> firsts_;
  std::map<std::string, std::vector<std::string>> by_first_;
};

/// True if two tensors of one shape have equal elements; NaN equals NaN.
bool have_same_values(const at::Tensor& a, const at::Tensor& b);

} // namespace dtensor::detail
