// SPDX-License-Identifier: BSD-3-Clause
// ModuleClaim: the exclusive right of one rank to parallelize a module.
//
// If every rank parallelized one module that was built outside of run_ranks,
// several threads would replace its parameters at once. The first rank claims
// the module, and the other ranks throw. After the claim ends, they throw
// because the parameters belong to the first rank. Members of the module must
// be the tensors registered under their names (module_members_impl.h).
#pragma once

#include <dtensor/api.h>

#include <ATen/core/Tensor.h>

namespace torch::nn {
class Module;
}

namespace dtensor::detail {

class DTENSOR_INTERNAL_API ModuleClaim {
 public:
  /// Both throw RuntimeError if another rank holds the claim, or if a parameter
  /// is a DTensor of another rank. The first constructor also throws if a
  /// member is not the parameter registered under its name.
  ModuleClaim(const char* where, const torch::nn::Module& module);
  ModuleClaim(const char* where, const at::Tensor& parameter);
  ~ModuleClaim();
  ModuleClaim(const ModuleClaim&) = delete;
  ModuleClaim& operator=(const ModuleClaim&) = delete;

 private:
  explicit ModuleClaim(const void* claimed);

  const void* claimed_;
};

} // namespace dtensor::detail
