// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/ops/kernels/selected_rows_impl.h>

#include <ATen/ops/full.h>
#include <dtensor/ops/kernels/row_exchange_impl.h>

#include <utility>

namespace dtensor::detail {

std::vector<Interval>
ranges_of_ranks(Group& group, const at::Tensor& rows, int64_t dim) {
  const auto options = rows.options().dtype(at::kLong).requires_grad(false);
  const auto counts =
      group.all_gather(at::full({1}, rows.size(dim), options), 0).cpu();
  std::vector<Interval> ranges;
  int64_t begin = 0;
  for (int64_t i = 0; i < counts.numel(); ++i) {
    // A rank of a fake world gathers zeros, but has rows.
    const auto size = i == group.rank() ? rows.size(dim)
                                        : counts.const_data_ptr<int64_t>()[i];
    ranges.push_back({begin, begin + size});
    begin += size;
  }
  return ranges;
}

at::Tensor even_shard(
    const at::Tensor& rows,
    std::vector<Interval> has,
    const SpecPtr& spec,
    int64_t mesh_dim) {
  return gather_rows(
      rows,
      c10::make_intrusive<RowExchange>(
          spec, mesh_dim, std::move(has), rows_of_ranks(*spec, mesh_dim)));
}

} // namespace dtensor::detail
