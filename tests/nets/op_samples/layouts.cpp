// SPDX-License-Identifier: BSD-3-Clause
#include "layouts.h"

#include <ATen/ATen.h>
#include <dtensor/layout/text.h>
#include <dtensor/tensor/dtensor.h>

#include <random>
#include <set>

namespace dtensor::nets {
namespace {

bool stays_plain(const at::Tensor& t) {
  return t.unsafeGetTensorImpl()->is_wrapped_number();
}

// True if `t` can be a partial sum. Only finite numbers can, because inf - inf
// is not inf, and LibTorch does not add unsigned integers.
bool can_be_partial(const at::Tensor& t) {
  const auto dtype = t.scalar_type();
  return dtype != at::kBool && dtype != at::kUInt16 && dtype != at::kUInt32 &&
      dtype != at::kUInt64 &&
      (!(t.is_floating_point() || t.is_complex()) ||
       at::isfinite(t).all().item<bool>());
}

// Returns true for each element that terms and an operator can multiply by some
// numbers without overflow.
at::Tensor can_grow(const at::Tensor& t) {
  return at::isfinite(t * 0x1p32);
}

bool all_can_grow(const at::Tensor& t) {
  return !t.is_floating_point() || can_grow(t).all().item<bool>();
}

std::vector<Placement> choices_of(const at::Tensor& t) {
  std::vector<Placement> choices;
  for (int64_t d = 0; d < t.dim(); ++d) {
    choices.push_back(Shard(d));
  }
  if (can_be_partial(t)) {
    choices.push_back(Partial(ReduceOp::kSum));
  }
  return choices;
}

// Returns further placements for a drawn layout. An operand gets one kind of
// Partial, because different reductions do not mix.
std::vector<Placement> drawn_choices_of(
    const at::Tensor& t,
    std::mt19937_64& engine) {
  auto choices = choices_of(t);
  if (can_be_partial(t)) {
    static const std::vector<ReduceOp> floating = {
        ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMax, ReduceOp::kMin};
    const auto draw = engine();
    choices.back() = Partial(
        t.is_floating_point() && all_can_grow(t)
            ? floating[draw % floating.size()]
            : ReduceOp::kSum);
  }
  if (t.dim() > 0) {
    const auto dim = engine() % static_cast<uint64_t>(t.dim());
    choices.push_back(StridedShard(static_cast<int64_t>(dim), 2));
    choices.push_back(Shard(static_cast<int64_t>(dim), 2));
  }
  return choices;
}

// Returns factors that sum up to 1, in rank order, without rounding.
at::Scalar factor(int64_t rank, int64_t ranks) {
  switch (ranks) {
    case 2:
      return rank == 0 ? 2 : -1;
    case 3:
      return rank == 0 ? 2 : rank == 1 ? -2 : 1;
    default:
      return 1;
  }
}

// Returns this rank's term of a sum. For a number near the largest one, rank 0
// has the full value.
at::Tensor sum_term(const at::Tensor& total, int64_t rank, int64_t ranks) {
  auto term = total * factor(rank, ranks);
  if (!total.is_floating_point() && !total.is_complex()) {
    return term; // wraps around and back
  }
  const auto alone = rank == 0 ? total : at::zeros_like(total);
  return at::where(can_grow(total), term, alone);
}

at::Tensor
term_of(const at::Tensor& full, const DeviceMesh& mesh, PlacementsRef layout) {
  auto term = full;
  for (int64_t m = 0; m < mesh.ndim(); ++m) {
    const auto& p = layout[static_cast<size_t>(m)];
    if (!p.is_partial()) {
      continue;
    }
    const auto rank = mesh.get_local_rank(m);
    switch (p.reduce_op()) {
      case ReduceOp::kMax:
        term = rank == 0 ? term : term - 1;
        break;
      case ReduceOp::kMin:
        term = rank == 0 ? term : term + 1;
        break;
      case ReduceOp::kAvg:
        term = term * factor(rank, mesh.size(m)) * mesh.size(m);
        break;
      default:
        term = sum_term(term, rank, mesh.size(m));
    }
  }
  return term;
}

at::Tensor place_one(
    const at::Tensor& full,
    const DeviceMesh& mesh,
    const Placements& layout) {
  if (layout.empty()) {
    return full;
  }
  auto cuts = layout;
  for (auto& p : cuts) {
    p = p.is_partial() ? Placement(Replicate()) : p;
  }
  const auto cut =
      distribute_tensor(term_of(full, mesh, layout), mesh, cuts, std::nullopt);
  if (cuts == layout) {
    return cut;
  }
  FromLocalOptions options;
  options.shape = full.sizes().vec();
  options.stride = cut.strides().vec();
  return DTensor::from_local(to_local(cut), mesh, layout, options);
}

Combination replicated(const Truth& truth, size_t mesh_dims) {
  Combination all;
  for (const auto& operand : truth.operands) {
    all.push_back(
        stays_plain(operand) ? Placements()
                             : Placements(mesh_dims, Replicate()));
  }
  return all;
}

} // namespace

std::vector<Combination> combinations_of(
    const Truth& truth,
    const std::vector<int64_t>& mesh_shape,
    size_t random,
    uint64_t seed) {
  const auto whole = replicated(truth, mesh_shape.size());
  std::vector<Combination> all = {whole};
  for (size_t i = 0; i < whole.size(); ++i) {
    const auto choices = whole[i].empty() ? std::vector<Placement>()
                                          : choices_of(truth.operands[i]);
    for (const auto& choice : choices) {
      for (size_t m = 0; m < mesh_shape.size(); ++m) {
        all.push_back(whole);
        all.back()[i][m] = choice;
      }
    }
  }
  std::mt19937_64 engine(seed);
  for (size_t k = 0; k < random; ++k) {
    auto drawn = whole;
    for (size_t i = 0; i < drawn.size(); ++i) {
      const auto may_be = drawn_choices_of(truth.operands[i], engine);
      for (auto& p : drawn[i]) {
        const auto draw = engine() % (may_be.size() + 2); // often replicated
        p = draw < may_be.size() ? may_be[draw] : p;
      }
    }
    if (std::find(all.begin(), all.end(), drawn) == all.end()) {
      all.push_back(std::move(drawn));
    }
  }
  return all;
}

bool is_replicated(const Combination& combination) {
  for (const auto& layout : combination) {
    for (const auto& p : layout) {
      if (!p.is_replicate()) {
        return false;
      }
    }
  }
  return true;
}

std::string to_string(const Truth& truth, const Combination& combination) {
  std::string text;
  for (size_t i = 0; i < combination.size(); ++i) {
    const auto& t = truth.operands[i];
    const PlacementsRef layout(combination[i]);
    text += c10::str(
        i == 0 ? "" : ", ",
        short_name(t.scalar_type()),
        "[",
        c10::Join(", ", t.sizes()),
        "] ",
        layout.empty() ? "plain" : dtensor::to_string(layout));
  }
  return text;
}

Tensors place(
    const Truth& truth,
    const DeviceMesh& mesh,
    const Combination& combination) {
  const at::AutoGradMode no_grad(false);
  Tensors placed;
  for (size_t i = 0; i < combination.size(); ++i) {
    placed.push_back(place_one(truth.operands[i], mesh, combination[i]));
  }
  return placed;
}

} // namespace dtensor::nets
