// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/ops/dim_map.h>
#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/rules/shape_impl.h>

#include <ATen/ops/squeeze.h>

namespace dtensor {
namespace {

// Kernel of squeeze() and squeeze(dim), in place or not. It calls
// squeeze(dims), the only form in which the local call can name the dimensions
// of global size 1.
void squeeze_kernel(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  std::vector<int64_t> dims;
  const bool has_dim = schema.arguments().size() == 2;
  if (has_dim) {
    dims.push_back(torch::jit::pop(*stack).toInt());
  }
  auto self = torch::jit::pop(*stack).toTensor();
  if (!has_dim) {
    const auto all = identity_map(self.dim());
    dims.assign(all.begin(), all.end());
  }
  dims = detail::squeezed(self.sizes(), dims);
  const bool in_place = schema.name().back() == '_';
  stack->emplace_back(in_place ? self.squeeze_(dims) : at::squeeze(self, dims));
}

} // namespace

DTENSOR_RULES(squeeze) {
  rules.kernel("squeeze", squeeze_kernel);
  rules.kernel("squeeze.dim", squeeze_kernel);
}

} // namespace dtensor
