// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/ops/kernels/global_indices_impl.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>

#include <vector>

namespace dtensor::detail {
namespace {

// Returns the global index of each local index.
at::Tensor table_of(const Intervals& held) {
  std::vector<int64_t> all;
  for (const auto& interval : held) {
    for (auto i = interval.begin; i < interval.end; ++i) {
      all.push_back(i);
    }
  }
  return at::tensor(all, at::kLong);
}

} // namespace

at::Tensor to_global_indices(const at::Tensor& local, const Intervals& held) {
  if (local.numel() == 0) {
    return local;
  }
  if (held.size() == 1) {
    return local + held[0].begin;
  }
  const auto table = table_of(held).to(local.device());
  return table.index_select(0, local.reshape({-1})).view(local.sizes());
}

at::Tensor to_local_indices(const at::Tensor& global, const Intervals& held) {
  auto local = at::full_like(global, -1);
  int64_t before = 0;
  for (const auto& interval : held) {
    const auto is_held =
        global.ge(interval.begin).logical_and_(global.lt(interval.end));
    local = at::where(is_held, global - (interval.begin - before), local);
    before += interval.size();
  }
  return local;
}

} // namespace dtensor::detail
