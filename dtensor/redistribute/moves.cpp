// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/redistribute/moves_impl.h>

#include <algorithm>

namespace dtensor::detail {
namespace {

// Returns the size of the first rank's shard, which is the largest.
int64_t largest_shard(int64_t size, const Placement& sharding, int64_t parts) {
  if (size == 0 || parts == 1) {
    return size;
  }
  if (sharding.is_chunk()) {
    return (size + parts - 1) / parts;
  }
  const auto part = [&](int64_t piece) {
    return chunk(piece, parts, 0, sharding.unit()).size();
  };
  const int64_t piece = chunk(size, sharding.split_factor(), 0).size();
  return size / piece * part(piece) + part(size % piece);
}

// True if all shards have the same size.
bool makes_equal_shards(
    int64_t size,
    const Placement& sharding,
    int64_t parts) {
  return largest_shard(size, sharding, parts) * parts == size;
}

// True if no mesh dimension further right shards `dim`.
bool is_rightmost(
    const Frame& frame,
    PlacementsRef placements,
    size_t mesh_dim,
    int64_t dim) {
  for (size_t i = mesh_dim + 1; i < placements.size(); ++i) {
    if (placements[i].is_sharded(dim) && frame.mesh_shape[i] > 1) {
      return false;
    }
  }
  return true;
}

} // namespace

std::optional<Placement> last_sharding(
    const Frame& frame,
    PlacementsRef placements,
    int64_t mesh_dim,
    const Placement& sharding) {
  const auto at = static_cast<size_t>(mesh_dim);
  const int64_t dim = sharding.dim();
  if (is_rightmost(frame, placements, at, dim)) {
    return sharding;
  }
  Placements with(placements.begin(), placements.end());
  with[at] = sharding;
  const BlockCounts counts = block_counts(frame, with, dim);
  with[at] = Replicate();
  const BlockCounts others = block_counts(frame, with, dim);
  int64_t blocks = counts[at];
  for (size_t i = 0; i < with.size(); ++i) {
    if (i == at || counts[i] == 0) {
      continue;
    }
    if (counts[i] == kUneven || counts[i] != others[i]) {
      return std::nullopt; // this mesh dim splits the shards of `mesh_dim`
    }
    if (counts[i] < counts[at]) {
      blocks /= frame.mesh_shape[i]; // this mesh dim has split them
    }
  }
  if (blocks < 1) {
    return std::nullopt; // uneven
  }
  return blocks == 1 ? Shard(dim) : StridedShard(dim, blocks);
}

bool shards_evenly(int64_t size, const Placement& sharding, int64_t parts) {
  return parts == 1 ||
      (size % (sharding.split_factor() * parts) == 0 &&
       (sharding.unit() == 1 || makes_equal_shards(size, sharding, parts)));
}

bool is_linear(ReduceOp op) {
  return op == ReduceOp::kSum || op == ReduceOp::kAvg;
}

bool goes_with_other_partials(
    PlacementsRef placements,
    int64_t mesh_dim,
    ReduceOp op) {
  for (size_t i = 0; i < placements.size(); ++i) {
    const Placement& p = placements[i];
    if (i != static_cast<size_t>(mesh_dim) && p.is_partial() &&
        p.reduce_op() != op && !(is_linear(op) && is_linear(p.reduce_op()))) {
      return false;
    }
  }
  return true;
}

bool can_pad(ReduceOp op) {
  return op == ReduceOp::kSum || op == ReduceOp::kProduct ||
      op == ReduceOp::kBor || op == ReduceOp::kBxor;
}

int64_t ranks_over(const Frame& frame, const MeshDims& mesh_dims) {
  int64_t n = 1;
  for (const int64_t mesh_dim : mesh_dims) {
    n *= frame.mesh_shape[static_cast<size_t>(mesh_dim)];
  }
  return n;
}

std::optional<StepKind> step_kind(
    const Frame& frame,
    PlacementsRef before,
    int64_t mesh_dim,
    const Placement& to) {
  const auto at = static_cast<size_t>(mesh_dim);
  const Placement& from = before[at];
  if (from.is_sharded() && !last_sharding(frame, before, mesh_dim, from)) {
    return std::nullopt;
  }
  if (to.is_partial()) {
    const ReduceOp op = to.reduce_op();
    if (from.is_partial() || !goes_with_other_partials(before, mesh_dim, op) ||
        (from.is_sharded() && !can_pad(op))) {
      return std::nullopt;
    }
    return from.is_sharded() ? StepKind::kPad : StepKind::kPartition;
  }
  if (to.is_replicate()) {
    return from.is_partial() ? StepKind::kAllReduce : StepKind::kAllGather;
  }
  if (!last_sharding(frame, before, mesh_dim, to)) {
    return std::nullopt;
  }
  if (from.is_replicate()) {
    return StepKind::kSlice;
  }
  return from.is_sharded() ? StepKind::kAllToAll : StepKind::kReduceScatter;
}

int64_t largest_numel(const Frame& frame, PlacementsRef placements) {
  Sizes sizes(frame.sizes.begin(), frame.sizes.end());
  for (size_t i = 0; i < placements.size(); ++i) {
    if (placements[i].is_sharded()) {
      int64_t& size = sizes[static_cast<size_t>(placements[i].dim())];
      size = largest_shard(size, placements[i], frame.mesh_shape[i]);
    }
  }
  return numel(sizes);
}

bool has_equal_shards(const Spec& spec) {
  Sizes sizes(spec.sizes());
  for (size_t i = 0; i < spec.placements().size(); ++i) {
    const Placement& sharding = spec.placements()[i];
    if (!sharding.is_sharded()) {
      continue;
    }
    int64_t& size = sizes[static_cast<size_t>(sharding.dim())];
    const int64_t parts = spec.mesh().shape()[i];
    if (!makes_equal_shards(size, sharding, parts)) {
      return false;
    }
    size /= parts;
  }
  return true;
}

bool is_permutation(const Step& step) {
  const auto& dims = step.mesh_dims;
  for (size_t i = 0; i < step.before.size(); ++i) {
    const bool is_own =
        std::ranges::find(dims, static_cast<int64_t>(i)) != dims.end();
    const bool fits = is_own
        ? step.before[i].is_sharded() && step.after[i].is_sharded()
        : step.before[i] == step.after[i];
    if (!fits) {
      return false;
    }
  }
  return true;
}

bool counts_result(StepKind kind, bool is_permutation) {
  return kind == StepKind::kAllGather ||
      (kind == StepKind::kAllToAll && !is_permutation);
}

double bytes_sent(const Frame& frame, const Step& step, int64_t item_size) {
  const CollectiveKind collective = collective_of(step.kind).value();
  const bool after = counts_result(step.kind, is_permutation(step));
  const int64_t numel = largest_numel(frame, after ? step.after : step.before);
  return bytes_sent(
      collective, ranks_over(frame, step.mesh_dims), numel, item_size);
}

double bytes_sent(
    CollectiveKind collective,
    int64_t ranks,
    int64_t numel,
    int64_t item_size) {
  const int64_t elements = elements_sent_times_ranks(collective, ranks, numel);
  return static_cast<double>(elements) * static_cast<double>(item_size) /
      static_cast<double>(ranks);
}

} // namespace dtensor::detail
