// SPDX-License-Identifier: BSD-3-Clause
// Compares an operator on DTensors, values and gradients, with itself on the
// plain full tensors, over meshes and drawn combinations of layouts.
#pragma once

#include "operands.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>

namespace dtensor::testing {

using Tensors = std::vector<at::Tensor>;

/// An operator on operands, each with the placements it may have on a mesh
/// dimension. Operands that require gradients are leaves.
struct Oracle {
  std::string name;
  Tensors operands;
  std::vector<Placements> choices;
  std::function<at::Tensor(const Tensors&)> fn;
  double tolerance = 1e-9;
};

/// Terms of ranks r > 0 are -full, that of rank 0 makes up for them.
inline at::Tensor spread(
    const at::Tensor& full,
    const DeviceMesh& mesh,
    const Placements& layout) {
  auto term = full.detach();
  auto cuts = layout;
  for (int64_t m = 0; m < mesh.ndim(); ++m) {
    if (layout[static_cast<size_t>(m)].is_partial()) {
      const auto n = mesh.size(m);
      term = term * (mesh.get_local_rank(m) == 0 ? n : -1);
      cuts[static_cast<size_t>(m)] = Replicate();
    }
  }
  const auto local =
      distribute_tensor(term, mesh, cuts, std::nullopt).to_local();
  FromLocalOptions options;
  options.shape = full.sizes().vec();
  return DTensor::from_local(local, mesh, layout, options);
}

inline std::string text_of(const std::vector<Placements>& layouts) {
  std::string text;
  for (const auto& layout : layouts) {
    text += "[" + to_string(PlacementsRef(layout)) + "]";
  }
  return text;
}

struct Outcome {
  at::Tensor value;
  Tensors grads;
};

inline Outcome differentiate(const Oracle& o, Tensors operands) {
  Outcome outcome;
  for (size_t i = 0; i < operands.size(); ++i) {
    operands[i] = operands[i].detach();
    operands[i].set_requires_grad(o.operands[i].requires_grad());
  }
  outcome.value = o.fn(operands);
  if (!outcome.value.requires_grad()) {
    return outcome;
  }
  auto cotangent =
      uniform(outcome.value.sizes(), 99).to(outcome.value.scalar_type());
  if (is_dtensor(outcome.value)) {
    const auto mesh = DTensor(outcome.value).device_mesh();
    const Placements whole(static_cast<size_t>(mesh.ndim()), Replicate());
    cotangent = distribute_tensor(cotangent, mesh, whole, std::nullopt);
  }
  outcome.value.backward(cotangent);
  for (const auto& operand : operands) {
    outcome.grads.push_back(operand.grad());
  }
  return outcome;
}

inline void compare(
    const Oracle& o,
    const Outcome& truth,
    const Outcome& mine,
    const std::string& where,
    Failures& failures) {
  const auto check = [&](const at::Tensor& a,
                         const at::Tensor& b,
                         const std::string& what) {
    if (a.defined() != b.defined()) {
      failures.add(where + ": " + what + " is undefined on one side");
      return;
    }
    if (!a.defined()) {
      return;
    }
    const auto whole = full(b.detach());
    if (a.sizes() != whole.sizes() || a.scalar_type() != whole.scalar_type() ||
        !at::allclose(
            whole, a.detach(), o.tolerance, o.tolerance, /*equal_nan=*/true)) {
      failures.add(where + ": " + what + " differs");
    }
  };
  check(truth.value, mine.value, "the value");
  for (size_t i = 0; i < truth.grads.size(); ++i) {
    check(
        truth.grads[i],
        i < mine.grads.size() ? mine.grads[i] : at::Tensor(),
        "gradient " + std::to_string(i));
  }
}

/// One layout for every operand, `count` times, the same on every rank.
inline std::vector<std::vector<Placements>>
draw_layouts(const Oracle& o, int64_t mesh_ndim, size_t count) {
  std::mt19937 random(7);
  std::vector<std::vector<Placements>> all;
  for (size_t k = 0; k < count; ++k) {
    std::vector<Placements> layouts;
    for (const auto& choices : o.choices) {
      Placements layout;
      for (int64_t m = 0; m < mesh_ndim; ++m) {
        layout.push_back(choices[random() % choices.size()]);
      }
      layouts.push_back(layout);
    }
    if (std::find(all.begin(), all.end(), layouts) == all.end()) {
      all.push_back(layouts);
    }
  }
  return all;
}

inline void expect_same_as_plain(const Oracle& o, size_t count = 40) {
  const std::vector<std::vector<int64_t>> meshes = {{1}, {2}, {3}, {2, 2}};
  const auto truth = differentiate(o, o.operands);
  Failures failures;
  for (const auto& shape : meshes) {
    int64_t ranks = 1;
    for (const auto n : shape) {
      ranks *= n;
    }
    run_ranks(ranks, [&] {
      const auto mesh = init_device_mesh(at::kCPU, shape);
      for (const auto& layouts : draw_layouts(o, mesh.ndim(), count)) {
        const auto where = o.name + " " + text_of(layouts) + " on " +
            std::to_string(ranks) + " ranks";
        Tensors operands;
        for (size_t i = 0; i < o.operands.size(); ++i) {
          operands.push_back(spread(o.operands[i], mesh, layouts[i]));
        }
        try {
          compare(o, truth, differentiate(o, operands), where, failures);
          at::NoGradGuard no_grad;
          compare(
              o,
              {truth.value, {}},
              {o.fn(operands), {}},
              where + " without gradients",
              failures);
        } catch (const c10::Error& e) {
          failures.add(where + ": " + first_line(e));
        }
      }
      c10::InferenceMode inference;
      Tensors operands;
      const auto layouts = draw_layouts(o, mesh.ndim(), 1)[0];
      for (size_t i = 0; i < o.operands.size(); ++i) {
        operands.push_back(spread(o.operands[i], mesh, layouts[i]));
      }
      compare(
          o,
          {truth.value, {}},
          {o.fn(operands), {}},
          o.name + " in inference mode",
          failures);
    });
  }
  EXPECT_EQ(failures.text(), "");
}

/// Counts the collectives of this rank while it lives, by kind.
class Collectives : public CommObserver {
 public:
  void on_collective(const CollectiveEvent& event) override {
    text_ += (text_.empty() ? "" : ", ") + std::string(to_string(event.kind)) +
        " " + std::to_string(event.payload_bytes);
  }
  /// "all_reduce 24, all_gather 8": kinds and bytes in order.
  std::string take() {
    return std::exchange(text_, "");
  }

 private:
  std::string text_;
  CommObserverGuard guard_{*this};
};

/// Uniform in (-1, 1) with a gradient.
inline at::Tensor variable(at::IntArrayRef sizes, uint64_t seed) {
  return ((uniform(sizes, seed) - 0.5) * 2.5).requires_grad_(true);
}

} // namespace dtensor::testing
