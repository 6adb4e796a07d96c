// SPDX-License-Identifier: BSD-3-Clause
#include "layouts.h"

#include <ATen/ATen.h>
#include <dtensor/layout/text.h>
#include <dtensor/tensor/dtensor.h>

#include <random>
#include <set>

#include "tests/randomized/harness/place.h"

namespace dtensor::randomized {
namespace {

bool stays_plain(const at::Tensor& t) {
  return t.unsafeGetTensorImpl()->is_wrapped_number();
}

// True if `t` can be a partial sum. Numbers must be finite, because inf - inf
// is not inf. Unsigned integers are excluded, because LibTorch does not add
// them.
bool can_be_partial(const at::Tensor& t) {
  const auto dtype = t.scalar_type();
  return dtype != at::kBool && dtype != at::kUInt16 && dtype != at::kUInt32 &&
      dtype != at::kUInt64 &&
      (!(t.is_floating_point() || t.is_complex()) ||
       at::isfinite(t).all().item<bool>());
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
    placed.push_back(
        combination[i].empty()
            ? truth.operands[i]
            : place(truth.operands[i], mesh, combination[i]));
  }
  return placed;
}

} // namespace dtensor::randomized
