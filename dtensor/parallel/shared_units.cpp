// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/parallel/shared_units_impl.h>

#include <dtensor/layout/shard_math.h>
#include <dtensor/tensor/layout_steps_impl.h>
#include <dtensor/tensor/meta_impl.h>
#include <dtensor/tensor/region_impl.h>

#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <vector>

namespace dtensor::detail {
namespace {

using Units = std::vector<int64_t>;

// Returns a replicated operand as a plain tensor, with a Partial gradient since
// each rank uses only some units.
at::Tensor local_part(const at::Tensor& whole) {
  return enter_alone(region_input(
      whole,
      nullptr,
      gradient_spec(*spec_of(whole), Placements{Partial(ReduceOp::kSum)})));
}

Units mine_of(const DeviceMesh& mesh, const SharedUnits& shared) {
  return shared.of_rank(mesh.size(), mesh.get_local_rank());
}

// True if any rank repeats units. All ranks record the same graph then.
bool has_repeats(const DeviceMesh& mesh, const SharedUnits& shared) {
  for (int64_t rank = 0; rank < mesh.size(); ++rank) {
    const auto units = shared.of_rank(mesh.size(), rank);
    if (std::adjacent_find(units.begin(), units.end()) != units.end()) {
      return true;
    }
  }
  return false;
}

// Selects units along the last dimension of `t`.
at::Tensor take_units(const at::Tensor& t, const Units& which, int64_t unit) {
  const auto apart = t.unflatten(-1, {t.size(-1) / unit, unit});
  std::vector<at::Tensor> parts = {apart.narrow(-2, 0, 0)};
  for (auto one = which.begin(); one != which.end();) {
    const auto next = std::find_if(
        one, which.end(), [&](int64_t other) { return other != *one; });
    auto sizes = apart.sizes().vec();
    sizes[sizes.size() - 2] = next - one;
    parts.push_back(apart.narrow(-2, *one, 1).expand(sizes));
    one = next;
  }
  return at::cat(parts, -2).flatten(-2);
}

} // namespace

// Counts this rank's users of each unit and divides the counts by their
// greatest common divisor. Then equally many consecutive users belong to each
// entry of the result.
std::vector<int64_t> SharedUnits::of_rank(int64_t ranks, int64_t rank) const {
  const auto mine = chunk(users, ranks, rank);
  const auto each = users / count;
  const auto uses = [&](int64_t one) { // number of this rank's users
    return std::min(mine.end, (one + 1) * each) -
        std::max(mine.begin, one * each);
  };
  const Interval used{
      mine.begin / each,
      mine.size() == 0 ? mine.begin / each : (mine.end - 1) / each + 1};
  int64_t together = 0;
  for (auto one = used.begin; one < used.end; ++one) {
    together = std::gcd(together, uses(one));
  }
  Units units;
  for (auto one = used.begin; one < used.end; ++one) {
    units.insert(units.end(), static_cast<size_t>(uses(one) / together), one);
  }
  return units;
}

bool SharedUnits::is_cut(int64_t ranks) const {
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const auto part = chunk(count, ranks, rank);
    Units once(static_cast<size_t>(part.size()));
    std::iota(once.begin(), once.end(), part.begin);
    if (of_rank(ranks, rank) != once) {
      return false;
    }
  }
  return true;
}

bool SharedUnits::is_even(int64_t ranks) const {
  for (int64_t rank = 1; rank < ranks; ++rank) {
    if (of_rank(ranks, rank).size() != of_rank(ranks, 0).size()) {
      return false;
    }
  }
  return true;
}

// Multiplies by the contiguous rows of the units that this rank needs, then
// repeats units of the output if necessary.
at::Tensor shared_linear(
    const at::Tensor& input,
    const at::Tensor& weight_t,
    const at::Tensor& bias,
    const SharedUnits& shared) {
  const auto& mesh = spec_of(input)->mesh();
  const auto units = mine_of(mesh, shared);
  const auto first = units.empty() ? 0 : units.front();
  const auto different = units.empty() ? 0 : units.back() - first + 1;
  const auto rows = [&](const at::Tensor& t) {
    return t.narrow(0, first * shared.unit, different * shared.unit);
  };
  auto y = at::linear(
      local_part(input),
      rows(local_part(weight_t).t()),
      bias.defined() ? std::optional(rows(local_part(bias))) : std::nullopt);
  if (!has_repeats(mesh, shared)) {
    return y;
  }
  auto positions = units;
  for (auto& position : positions) {
    position -= first;
  }
  return take_units(y, positions, shared.unit);
}

at::Tensor shared_bias(const at::Tensor& bias, const SharedUnits& shared) {
  return take_units(
      local_part(bias), mine_of(spec_of(bias)->mesh(), shared), shared.unit);
}

} // namespace dtensor::detail
