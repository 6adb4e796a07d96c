// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/ops/kernels/convolution_edges_impl.h>

#include <ATen/ops/cat.h>
#include <c10/core/ScalarType.h>

#include <cstddef>
#include <utility>
#include <vector>

namespace dtensor::detail {
namespace {

// Returns the edge rows of a rank that has the rows `held` of `size`, and the
// windows `windows`.
std::optional<EdgeRows> edges_of(
    const KernelWindow& window,
    Interval held,
    Interval windows,
    int64_t size) {
  const auto reached = window.rows_of(windows);
  const bool is_first = held.begin == 0;
  const bool is_last = held.end == size;
  const bool fits = windows.size() > 0 &&
      windows.begin * window.stride == held.begin &&
      window.count(held.size()) == windows.size();
  // Only the first and the last rank may have padding.
  if (!fits || (!is_first && reached.begin < 0) ||
      (!is_last && reached.end > size)) {
    return std::nullopt;
  }
  EdgeRows edges;
  const auto covers_others = [&](int64_t at) {
    const auto rows = window.rows_of({at, at + 1});
    return (!is_first && rows.begin < held.begin) ||
        (!is_last && rows.end > held.end);
  };
  while (edges.first < windows.size() &&
         covers_others(windows.begin + edges.first)) {
    ++edges.first;
  }
  while (edges.first + edges.last < windows.size() &&
         covers_others(windows.end - 1 - edges.last)) {
    ++edges.last;
  }
  const auto kept = windows.size() - edges.last;
  // At least half of the rows are computed once, and no window that is computed
  // again covers padding.
  const bool is_apart = 2 * (edges.first + edges.last) <= windows.size() &&
      window.rows_of({0, edges.first}).end <= held.size() &&
      (edges.last == 0 || window.rows_of({kept, kept + 1}).begin >= 0);
  return is_apart ? std::optional(edges) : std::nullopt;
}

// Runs the operator on `input` with other padding.
at::Tensor convolve(
    const KernelArgs& args,
    const at::Tensor& input,
    std::vector<int64_t> padding) {
  const auto count = static_cast<std::ptrdiff_t>(args.count());
  torch::jit::Stack stack(args.stack().end() - count, args.stack().end());
  KernelArgs again(args.op(), stack);
  again.set("input", input);
  again.set("padding", std::move(padding));
  return again.compute();
}

} // namespace

std::optional<EdgeRows> edge_rows(const Halo& halo) {
  constexpr int64_t kLargeBytes = int64_t{1} << 20; // of a rank's shard
  const auto& rows = *halo.rows;
  const auto& layout = *rows.spec;
  int64_t shards = 1;
  for (int64_t m = 0; m < layout.mesh().ndim(); ++m) {
    shards *= layout.placements()[static_cast<size_t>(m)].is_sharded()
        ? layout.mesh().size(m)
        : 1;
  }
  const auto bytes = layout.numel() / shards *
      static_cast<int64_t>(c10::elementSize(layout.dtype()));
  if (bytes < kLargeBytes || !rows.communicates()) {
    return std::nullopt;
  }
  std::vector<EdgeRows> all;
  for (size_t rank = 0; rank < rows.held.size(); ++rank) {
    const auto edges = edges_of(
        halo.window,
        rows.held[rank],
        halo.windows[rank],
        layout.sizes()[static_cast<size_t>(rows.dim)]);
    if (!edges) {
      return std::nullopt;
    }
    all.push_back(*edges);
  }
  return all[static_cast<size_t>(layout.mesh().get_local_rank(rows.mesh_dim))];
}

at::Tensor convolve_with_halos(
    const KernelArgs& args,
    const Halo& halo,
    const EdgeRows& edges) {
  const auto& rows = *halo.rows;
  const auto dim = rows.dim;
  const auto& window = halo.window;
  const auto input = args.tensor("input");
  const auto [before, behind] = rows.halos(input);
  auto padding =
      elements_for(args.at("padding").toIntVector(), input.dim() - 2);
  auto result = convolve(args, input, padding);
  padding[static_cast<size_t>(dim - 2)] = 0;
  const auto count = result.size(dim);
  if (edges.first > 0) {
    const auto own = window.rows_of({0, edges.first}).end;
    result.narrow(dim, 0, edges.first)
        .copy_(convolve(
            args, at::cat({before, input.narrow(dim, 0, own)}, dim), padding));
  }
  if (edges.last > 0) {
    const auto begin = window.rows_of({count - edges.last, count}).begin;
    const auto own = input.size(dim) - begin;
    result.narrow(dim, count - edges.last, edges.last)
        .copy_(convolve(
            args,
            at::cat({input.narrow(dim, begin, own), behind}, dim),
            padding));
  }
  return result;
}

} // namespace dtensor::detail
