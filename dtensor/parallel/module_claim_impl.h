// SPDX-License-Identifier: BSD-3-Clause
// ModuleClaim: while a module is made parallel, it is one rank's.
//
// A module that was built outside of run_ranks and that every rank makes
// parallel would have its parameters exchanged by several threads at once. The
// first rank claims it, the others throw; when the first is done, they find
// that the parameters belong to it. Members of the module have to be the
// tensors that are registered under their names (module_members_impl.h).
#pragma once

#include <ATen/core/Tensor.h>

namespace torch::nn {
class Module;
}

namespace dtensor::detail {

class ModuleClaim {
 public:
  /// Both throw RuntimeError where another rank has claimed it, or where a
  /// parameter is a DTensor of another rank; the first one also where a member
  /// is not the parameter that is registered under its name.
  ModuleClaim(const char* where, const torch::nn::Module& module);
  ModuleClaim(const char* where, const at::Tensor& parameter);
  ~ModuleClaim();
  ModuleClaim(const ModuleClaim&) = delete;
  ModuleClaim& operator=(const ModuleClaim&) = delete;

 private:
  const void* claimed_;
};

} // namespace dtensor::detail
