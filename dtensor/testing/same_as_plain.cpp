// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/testing/same_as_plain.h>

#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/StringUtil.h>
#include <c10/util/accumulate.h>
#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/comm/ranks.h>
#include <dtensor/error.h>
#include <dtensor/layout/spec_impl.h>
#include <dtensor/layout/text.h>
#include <dtensor/tensor/dtensor.h>
#include <dtensor/testing/expect.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <random>
#include <string>

namespace dtensor::testing {
namespace {

using Tensors = std::vector<at::Tensor>;
using Layouts = std::vector<Placements>; // one per operand

Placements placements_of(const at::Tensor& t) {
  Placements all{Replicate()};
  for (int64_t dim = 0; dim < t.dim(); ++dim) {
    all.push_back(Shard(dim));
  }
  if (at::isFloatingType(t.scalar_type())) {
    all.push_back(Partial());
  }
  return all;
}

// Enumerates all combinations of layouts, or samples them if there are too
// many.
class Combinations {
 public:
  Combinations(std::vector<Placements> choices, int64_t mesh_ndim, int64_t most)
      : choices_(std::move(choices)),
        mesh_ndim_(mesh_ndim) {
    for (const auto& one : choices_) {
      for (int64_t m = 0; m < mesh_ndim && count_ <= most; ++m) {
        count_ *= static_cast<int64_t>(one.size());
      }
    }
    draws_ = count_ > most;
    count_ = std::min(count_, most);
  }
  int64_t count() const {
    return count_;
  }
  Layouts next() {
    auto rest = next_++;
    Layouts layouts;
    for (const auto& one : choices_) {
      Placements layout;
      for (int64_t m = 0; m < mesh_ndim_; ++m) {
        const auto at = draws_ ? random_() : rest;
        layout.push_back(one[at % one.size()]);
        rest /= one.size();
      }
      layouts.push_back(layout);
    }
    return layouts;
  }

 private:
  std::vector<Placements> choices_;
  int64_t mesh_ndim_;
  int64_t count_ = 1;
  bool draws_ = false;
  uint64_t next_ = 0;
  std::mt19937 random_{7};
};

std::string text_of(const Layouts& layouts) {
  std::vector<std::string> parts;
  for (const auto& layout : layouts) {
    parts.push_back(to_string(PlacementsRef(layout)));
  }
  return c10::str("[", c10::Join("; ", parts), "]");
}

struct Outcome {
  Tensors results;
  Tensors gradients; // for operands that require a gradient
};

// Returns the gradients of a random linear combination of the results.
Tensors gradients_of(const Tensors& results, const Tensors& leaves) {
  Tensors outputs;
  Tensors cotangents;
  for (const at::Tensor& result : results) {
    if (!result.defined() || !result.requires_grad()) {
      continue;
    }
    at::Tensor cotangent =
        seeded_randn(result.sizes(), result.scalar_type(), 99 + outputs.size());
    if (is_dtensor(result)) {
      const auto& mesh = DTensor(result).device_mesh();
      cotangent = distribute_tensor(
          cotangent, mesh, detail::replicated_placements(mesh), std::nullopt);
    }
    outputs.push_back(result);
    cotangents.push_back(cotangent);
  }
  if (outputs.empty() || leaves.empty()) {
    return Tensors(leaves.size());
  }
  return torch::autograd::grad(
      outputs, leaves, cotangents, std::nullopt, false, /*allow_unused=*/true);
}

Outcome
outcome_of(const TensorFunction& fn, Tensors operands, const Tensors& like) {
  Tensors leaves;
  for (size_t i = 0; i < operands.size(); ++i) {
    operands[i] = operands[i].detach();
    if (like[i].requires_grad()) {
      leaves.push_back(operands[i].requires_grad_());
    }
  }
  Outcome outcome{fn(operands), {}};
  outcome.gradients = gradients_of(outcome.results, leaves);
  return outcome;
}

void compare(
    const at::Tensor& mine,
    const at::Tensor& plain,
    const std::string& what,
    const SameAsPlainOptions& options) {
  DTENSOR_CHECK(
      mine.defined() == plain.defined(),
      "[{}] {}",
      what,
      plain.defined() ? "is undefined." : "is defined, but should not be.");
  if (!mine.defined()) {
    return;
  }
  try {
    expect_close(mine, plain.detach(), options.rtol, options.atol);
  } catch (const c10::Error& error) {
    DTENSOR_THROW("[{}] {}", what, error.what_without_backtrace());
  }
}

void compare(
    const Tensors& mine,
    const Tensors& plain,
    const std::string& what,
    const SameAsPlainOptions& options) {
  DTENSOR_CHECK(
      mine.size() == plain.size(),
      "[{}] got {}, expected {}.",
      what,
      detail::pluralize(mine.size(), "tensor"),
      plain.size());
  for (size_t i = 0; i < mine.size(); ++i) {
    compare(mine[i], plain[i], c10::str(what, " ", i), options);
  }
}

class Trial {
 public:
  Trial(
      const TensorFunction& fn,
      const Tensors& operands,
      const SameAsPlainOptions& options)
      : fn_(fn),
        operands_(operands),
        options_(options),
        plain_(outcome_of(fn, operands, operands)) {
    for (size_t i = 0; i < operands.size(); ++i) {
      choices_.push_back(
          options.placements.empty() ? placements_of(operands[i])
                                     : options.placements[i]);
    }
  }

  void on_mesh(const std::vector<int64_t>& shape) const {
    const auto mesh = init_device_mesh(at::kCPU, shape);
    Combinations all(choices_, mesh.ndim(), options_.layouts);
    for (int64_t k = 0; k < all.count(); ++k) {
      const auto layouts = all.next();
      try {
        in_layouts(mesh, layouts);
      } catch (const c10::Error& error) {
        DTENSOR_THROW(
            "[expect_same_as_plain] on a mesh of {} in {}: {}",
            c10::Join("x", shape),
            text_of(layouts),
            error.what_without_backtrace());
      }
    }
  }

 private:
  void in_layouts(const DeviceMesh& mesh, const Layouts& layouts) const {
    Tensors operands;
    for (size_t i = 0; i < operands_.size(); ++i) {
      operands.push_back(in_layout(operands_[i], mesh, layouts[i]));
    }
    const auto mine = outcome_of(fn_, operands, operands_);
    compare(mine.results, plain_.results, "result", options_);
    compare(mine.gradients, plain_.gradients, "gradient", options_);
    {
      const c10::NoGradGuard no_grad;
      compare(
          fn_(operands), plain_.results, "without autograd, result", options_);
    }
    const c10::InferenceMode inference;
    compare(
        fn_(operands), plain_.results, "in inference mode, result", options_);
  }

  const TensorFunction& fn_;
  const Tensors& operands_;
  const SameAsPlainOptions& options_;
  std::vector<Placements> choices_;
  Outcome plain_;
};

} // namespace

at::Tensor in_layout(
    const at::Tensor& full,
    const DeviceMesh& mesh,
    PlacementsRef layout) {
  // The term of ranks r > 0 is -full, and the term of rank 0 is n * full. Their
  // sum is full.
  auto term = full.detach();
  Placements cuts(layout.begin(), layout.end());
  for (int64_t m = 0; m < mesh.ndim(); ++m) {
    auto& placement = cuts[static_cast<size_t>(m)];
    if (placement.is_partial()) {
      term = term.mul(mesh.get_local_rank(m) == 0 ? mesh.size(m) : -1);
      placement = Replicate();
    }
  }
  FromLocalOptions options;
  options.shape = full.sizes().vec();
  return DTensor::from_local(
      to_local(distribute_tensor(term, mesh, cuts, std::nullopt)),
      mesh,
      layout,
      options);
}

void expect_same_as_plain(
    const TensorFunction& fn,
    const std::vector<at::Tensor>& operands,
    const SameAsPlainOptions& options) {
  DTENSOR_CHECK_VALUE(
      options.placements.empty() ||
          options.placements.size() == operands.size(),
      "[expect_same_as_plain] got placements for {}, but there are {}. Pass "
      "placements for each operand, or for none.",
      detail::pluralize(options.placements.size(), "operand"),
      operands.size());
  const Trial trial(fn, operands, options);
  for (const auto& shape : options.meshes) {
    run_ranks(c10::multiply_integers(shape), [&] { trial.on_mesh(shape); });
  }
}

} // namespace dtensor::testing
