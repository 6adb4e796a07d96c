// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/ops/combinations_impl.h>

#include <dtensor/redistribute/plan.h>

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cmath>
#include <string_view>

namespace dtensor::detail {
namespace {

// Modelled rates, in GB/s, at which a rank reads operands and writes results:
// the rate of a core that streams from memory, and the rate of a current GPU.
constexpr double kCpuGigabytesPerS = 20;
constexpr double kGpuGigabytesPerS = 1000;

double item_size(at::ScalarType dtype) {
  return static_cast<double>(c10::elementSize(dtype));
}

bool is_gradient(const OpCall& call, const OpInput& input) {
  const std::string_view name =
      call.schema.arguments()[static_cast<size_t>(input.arg)].name();
  return name.starts_with("grad");
}

// Returns the input whose gradient may be result `o`. This is the first input
// with the sizes of the result, which the gradient formula saved in the forward
// pass.
int exit_of(const OpCall& call, size_t o) {
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    const auto& input = call.inputs[i];
    if (!is_gradient(call, input) &&
        input.sizes() == SizesRef(call.outputs[o].sizes)) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

bool has_dim_of(SizesRef sizes, int64_t size) {
  return std::ranges::any_of(sizes, [&](int64_t s) { return s >= size; });
}

} // namespace

ChoiceCost::ChoiceCost(const OpCall& call)
    : call_(call),
      links_(call.mesh),
      exits_(call.outputs.size(), -1),
      known_(call.inputs.size()) {
  for (int64_t m = 0; m < call.mesh.ndim(); ++m) {
    shape_.push_back(call.mesh.size(m));
    for (const auto& input : call.inputs) {
      sharded_ |= input.placement(m).is_sharded() ? mesh_dim_bit(m) : 0;
    }
  }
  const LinkCost fastest = links_.fastest(shape_);
  for (const auto& input : call.inputs) {
    least_times_.emplace_back(
        Frame{input.spec->sizes(), shape_},
        static_cast<int64_t>(c10::elementSize(input.spec->dtype())),
        fastest);
  }
  const bool has_gradient = std::ranges::any_of(
      call.inputs, [&](const auto& in) { return is_gradient(call, in); });
  for (size_t o = 0; o < exits_.size() && has_gradient; ++o) {
    exits_[o] = exit_of(call, o);
  }
}

bool ChoiceCost::moves(size_t i, size_t mesh_dim, const Placement& to) const {
  const auto& from = call_.inputs[i].spec->placements()[mesh_dim];
  return shape_[mesh_dim] > 1 && from != to && !from.is_replicate();
}

uint64_t ChoiceCost::moving_dims(const MeshStrategy& first) const {
  uint64_t moving = 0;
  for (size_t i = 0; i < first.inputs.size(); ++i) {
    for (size_t m = 0; m < first.inputs[i].size(); ++m) {
      moving |= moves(i, m, first.inputs[i][m]) ? mesh_dim_bit(m) : 0;
    }
  }
  return moving;
}

// Returns a lower bound for the elements of a local tensor, because mesh
// dimensions without a placement may shard it.
double ChoiceCost::local_elements(int64_t numel, const Placements& first)
    const {
  auto elements = static_cast<double>(numel);
  for (size_t m = 0; m < shape_.size(); ++m) {
    if (m >= first.size() || first[m].is_sharded()) {
      elements /= static_cast<double>(shape_[m]);
    }
  }
  return elements;
}

int64_t ChoiceCost::ranks(const MeshDims& dims) const {
  int64_t n = 1;
  for (const int64_t m : dims) {
    n *= shape_[static_cast<size_t>(m)];
  }
  return n;
}

Picoseconds ChoiceCost::redistribution(size_t i, const Placements& to) const {
  const SpecPtr& from = call_.inputs[i].spec;
  if (from->placements() == PlacementsRef(to)) {
    return 0;
  }
  auto& known = known_[i];
  const auto found = std::ranges::find_if(
      known, [&](const auto& entry) { return entry.first == to; });
  if (found != known.end()) {
    return found->second;
  }
  const double time =
      redistribute_cost(from, from->with_placements(to, call_.name().c_str()));
  const Picoseconds rounded =
      std::isinf(time) ? kNever : std::llround(time * 1e6);
  known.emplace_back(to, rounded);
  return rounded;
}

Picoseconds ChoiceCost::redistribution_at_least(
    size_t i,
    const Placements& first) const {
  const auto from = call_.inputs[i].spec->placements();
  return least_times_[i].between(from, first).least();
}

// True if the operands keep the tensor unsharded on a mesh dimension: none is
// sharded, and an operand beside partial ones is replicated.
bool ChoiceCost::keeps_unsharded(const MeshStrategy& first, size_t mesh_dim)
    const {
  bool replicated = false;
  for (size_t i = 0; i < call_.inputs.size(); ++i) {
    const auto& from = call_.inputs[i].spec->placements()[mesh_dim];
    replicated |= from.is_replicate() && first.inputs[i][mesh_dim].is_sharded();
  }
  return replicated && !has_sharded_input(mesh_dim);
}

// Returns the next collective of result `o`. A gradient ends in the layout of
// the tensor whose gradient it is. Any use of a partial result needs at least a
// reduce_scatter. A result that is sharded although the operands are replicated
// needs an all_gather.
std::optional<CollectiveKind> ChoiceCost::next_collective(
    size_t o,
    const MeshStrategy& first,
    size_t mesh_dim) const {
  const Placement& now = first.outputs[o][mesh_dim];
  const Placement* exit = exits_[o] < 0
      ? nullptr
      : &call_.inputs[static_cast<size_t>(exits_[o])]
             .spec->placements()[mesh_dim];
  const bool ends_sharded = exit != nullptr && exit->is_sharded();
  if (now.is_partial()) {
    return exit == nullptr || ends_sharded ? CollectiveKind::kReduceScatter
                                           : CollectiveKind::kAllReduce;
  }
  if (now.is_sharded() && ends_sharded) {
    return now == *exit ? std::nullopt
                        : std::optional(CollectiveKind::kAllToAll);
  }
  const bool gathers =
      now.is_sharded() && (exit != nullptr || keeps_unsharded(first, mesh_dim));
  return gathers ? std::optional(CollectiveKind::kAllGather) : std::nullopt;
}

Picoseconds ChoiceCost::use_of_result(
    size_t o,
    const MeshStrategy& first,
    uint64_t moving) const {
  const auto& result = call_.outputs[o];
  Picoseconds time = 0;
  for (CollectiveKind kind :
       {CollectiveKind::kAllReduce,
        CollectiveKind::kReduceScatter,
        CollectiveKind::kAllToAll,
        CollectiveKind::kAllGather}) {
    MeshDims dims;
    Placements buffer = first.outputs[o];
    for (size_t m = 0; m < buffer.size(); ++m) {
      if ((moving & mesh_dim_bit(m)) != 0 &&
          next_collective(o, first, m) == kind) {
        dims.push_back(static_cast<int64_t>(m));
        buffer[m] =
            kind == CollectiveKind::kAllGather ? Replicate() : buffer[m];
      }
    }
    if (dims.empty()) {
      continue;
    }
    if (kind == CollectiveKind::kReduceScatter &&
        !has_dim_of(result.sizes, ranks(dims))) {
      kind = CollectiveKind::kAllReduce;
    }
    const double bytes =
        item_size(result.dtype) * local_elements(numel(result.sizes), buffer);
    time +=
        picoseconds(links_.over(dims), wire_bytes(kind, ranks(dims), bytes));
  }
  return time;
}

// Returns the time of computations that other ranks repeat, because a strategy
// replicates inputs that were sharded. If no input was sharded, the program
// keeps the tensors unsharded, and partial gradients become replicated.
Picoseconds ChoiceCost::duplicated(const MeshStrategy& first, uint64_t moving)
    const {
  int64_t copies = 1;
  const auto are_unsharded = [](const std::vector<Placements>& all, size_t m) {
    return std::ranges::all_of(
        all, [m](const Placements& p) { return p[m].is_replicate(); });
  };
  for (size_t m = 0; m < first.inputs[0].size(); ++m) {
    if ((moving & mesh_dim_bit(m)) != 0 && has_sharded_input(m) &&
        are_unsharded(first.inputs, m) && are_unsharded(first.outputs, m)) {
      copies *= shape_[m];
    }
  }
  if (copies == 1) {
    return 0;
  }
  double bytes = 0;
  for (size_t i = 0; i < call_.inputs.size(); ++i) {
    const Spec& spec = *call_.inputs[i].spec;
    bytes +=
        item_size(spec.dtype()) * local_elements(spec.numel(), first.inputs[i]);
  }
  for (size_t o = 0; o < call_.outputs.size(); ++o) {
    bytes += item_size(call_.outputs[o].dtype) *
        local_elements(numel(call_.outputs[o].sizes), first.outputs[o]);
  }
  const double rate = call_.mesh.device_type() == c10::DeviceType::CPU
      ? kCpuGigabytesPerS
      : kGpuGigabytesPerS;
  return picoseconds({0, rate}, bytes * (1 - 1 / static_cast<double>(copies)));
}

Picoseconds ChoiceCost::after_redistribution(const MeshStrategy& first) const {
  const uint64_t moving = moving_dims(first);
  if (moving == 0) {
    return 0;
  }
  Picoseconds time = duplicated(first, moving);
  for (size_t o = 0; o < call_.outputs.size(); ++o) {
    time += call_.outputs[o].defined ? use_of_result(o, first, moving) : 0;
  }
  return time;
}

Picoseconds ChoiceCost::at_least(const MeshStrategy& first) const {
  Picoseconds time = after_redistribution(first);
  for (size_t i = 0; i < call_.inputs.size(); ++i) {
    time += redistribution_at_least(i, first.inputs[i]);
  }
  return time;
}

Picoseconds ChoiceCost::of(const MeshStrategy& chosen, Picoseconds limit)
    const {
  c10::SmallVector<Picoseconds, 8> bounds;
  Picoseconds time = after_redistribution(chosen);
  for (size_t i = 0; i < call_.inputs.size(); ++i) {
    bounds.push_back(redistribution_at_least(i, chosen.inputs[i]));
    time += bounds.back();
  }
  for (size_t i = 0; i < call_.inputs.size() && time <= limit; ++i) {
    const Picoseconds exact = redistribution(i, chosen.inputs[i]);
    if (exact == kNever) {
      return kNever;
    }
    time += exact - bounds[i];
  }
  return time;
}

} // namespace dtensor::detail
