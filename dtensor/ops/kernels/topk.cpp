// SPDX-License-Identifier: BSD-3-Clause
// topk along a sharded dimension. Each rank finds the candidates of its shard,
// and the ranks exchange only these candidates.
#include <dtensor/ops/kernels/local_kernels_impl.h>

#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/ops/kernels/index_kernels_impl.h>
#include <dtensor/ops/kernels/kernel_args_impl.h>
#include <dtensor/ops/kernels/sorted_rows_impl.h>

#include <ATen/ops/cat.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/topk.h>

#include <algorithm>
#include <limits>
#include <vector>

namespace dtensor::detail {
namespace {

// Values along the last dimension, and their global indices.
struct TopkCandidates { // (rows, count)
  at::Tensor values;
  at::Tensor indices;
};

// Returns the row-major bytes of a tensor.
at::Tensor row_major_bytes(const at::Tensor& t) {
  return t.contiguous().view({-1}).view(at::kByte);
}

// Reads a tensor of `count` columns from `bytes`, from `offset` on. Advances
// `offset` behind the tensor.
at::Tensor read_rows(
    const at::Tensor& bytes,
    int64_t& offset,
    int64_t count,
    const at::Tensor& like) {
  const auto rows = like.size(0);
  const auto length = rows * count * static_cast<int64_t>(like.element_size());
  // The copy is aligned for the dtype of the tensor.
  auto read = bytes.narrow(0, offset, length).clone();
  offset += length;
  return read.view(like.scalar_type()).view({rows, count});
}

// A search for the k greatest or least elements of each row.
struct TopkSearch {
  const Spec& spec;
  int64_t dim;
  int64_t k;
  bool largest;

  // Returns the number of elements of the rank at `coordinate`, or of all ranks
  // that differ from it in mesh dimensions from `m` on that are `merged`.
  int64_t size_at(
      Sizes& coordinate,
      const std::vector<bool>& merged,
      size_t m = 0) const {
    const auto shape = spec.mesh().shape();
    for (; m < merged.size(); ++m) {
      if (!merged[m]) {
        continue;
      }
      int64_t total = 0;
      for (coordinate[m] = 0; coordinate[m] < shape[m]; ++coordinate[m]) {
        total += size_at(coordinate, merged, m + 1);
      }
      coordinate[m] = 0;
      return total;
    }
    const auto size = spec.sizes()[static_cast<size_t>(dim)];
    return total_size(
        local_intervals(size, dim, shape, spec.placements(), coordinate));
  }

  // Returns the candidates of this rank's shard, (rows, local size).
  TopkCandidates find(const at::Tensor& shard) const {
    const auto count = std::min(k, shard.size(1));
    auto [values, places] = at::topk(shard, count, 1, largest);
    const auto size = spec.sizes()[static_cast<size_t>(dim)];
    const bool narrow = size <= std::numeric_limits<int32_t>::max();
    return {
        values,
        to_global_indices(places, local_intervals(spec, dim))
            .to(narrow ? at::kInt : at::kLong)};
  }

  // Returns the best k of all candidates. All ranks get the same candidates,
  // even among equal values, because a stable sort has a unique result.
  TopkCandidates best(const TopkCandidates& all) const {
    auto [values, order] = at::sort(
        all.values, /*stable=*/true, /*dim=*/1, /*descending=*/largest);
    const auto count = std::min(k, values.size(1));
    return {
        values.narrow(1, 0, count),
        all.indices.gather(1, order.narrow(1, 0, count))};
  }

  // Gathers the candidates of the ranks along a mesh dimension.
  TopkCandidates gather(
      const TopkCandidates& mine,
      int64_t mesh_dim,
      const Sizes& counts) const {
    Sizes lengths;
    const auto rows = mine.values.size(0);
    for (const auto count : counts) {
      lengths.push_back(
          rows * count *
          static_cast<int64_t>(
              mine.indices.element_size() + mine.values.element_size()));
    }
    const auto all = get_group(spec.mesh(), mesh_dim)
                         .all_gather(
                             at::cat(
                                 {row_major_bytes(mine.indices),
                                  row_major_bytes(mine.values)}),
                             0,
                             lengths);
    std::vector<at::Tensor> values;
    std::vector<at::Tensor> indices;
    int64_t offset = 0;
    for (const auto count : counts) {
      indices.push_back(read_rows(all, offset, count, mine.indices));
      values.push_back(read_rows(all, offset, count, mine.values));
    }
    return {at::cat(values, 1), at::cat(indices, 1)};
  }

  // Returns the global result.
  TopkCandidates run(const at::Tensor& shard) const {
    auto found = find(shard);
    const auto& mesh = spec.mesh();
    std::vector<bool> merged(static_cast<size_t>(mesh.ndim()), false);
    for (int64_t m = 0; m < mesh.ndim(); ++m) {
      const auto at = static_cast<size_t>(m);
      if (!spec.placements()[at].is_sharded(dim)) {
        continue;
      }
      Sizes counts;
      Sizes coordinate(*mesh.get_coordinate());
      for (int64_t rank = 0; rank < mesh.size(m); ++rank) {
        coordinate[at] = rank;
        counts.push_back(std::min(k, size_at(coordinate, merged)));
      }
      found = best(gather(found, m, counts));
      merged[at] = true;
    }
    return found;
  }
};

} // namespace

void topk_local(KernelArgs& args, const Decision& decision) {
  if (return_without_data(args, decision)) {
    return;
  }
  const ShardRows self(args, decision);
  const TopkSearch search{
      *self.spec, self.dim, args.integer("k"), args.flag("largest")};
  const auto found = search.run(self.rows.detach());
  const auto indices = self.restored(found.indices.to(at::kLong));
  args.returns(
      picked_from_shards(
          self.shard,
          self.restored(found.values),
          indices,
          self.dim,
          self.spec),
      indices);
}

} // namespace dtensor::detail
