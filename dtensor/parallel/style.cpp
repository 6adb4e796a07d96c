// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/parallel/style.h>

#include <dtensor/parallel/module_name_impl.h>

namespace dtensor {

StyleTarget StyleTarget::child_target(
    const std::string& child_name,
    torch::nn::Module& child) const {
  return {
      child,
      detail::full_name(name, child_name),
      mesh,
      src_data_rank,
      changes,
      keep_dtensors,
      root_mesh,
      style};
}

} // namespace dtensor
