// SPDX-License-Identifier: BSD-3-Clause
// OpTraits: what is true of an operator whatever the layouts of its operands.
// They stand in its rule, or alone for an operator that has none of its own:
//
//   rules.dim_rule("addmm", rule).with_traits({.product = true});
//   rules.traits("eq_.Scalar", {.gradient_of_sizes = true});
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace dtensor {

/// Which operators a module style's boundary speaks to: products with a weight,
/// look-ups in one, norms that scale by one.
enum class BoundaryKind : uint8_t { kLinear, kEmbedding, kNorm };

/// Where an operator finds what a module style looks for among its arguments.
struct BoundaryRole {
  BoundaryKind kind = BoundaryKind::kLinear;
  size_t input = 0;
  size_t parameter = 0;
  /// kLinear: that of the bias, if it takes one.
  std::optional<size_t> bias = std::nullopt;
  /// kLinear: the parameter is (out, in), and not (in, out).
  bool transposed = false;
  friend bool operator==(const BoundaryRole&, const BoundaryRole&) = default;
};

/// None for most operators.
struct OpTraits {
  /// The argument that is the shape of the first result: the local call gets
  /// that of this rank's part.
  std::string_view size_arg = "";
  /// Its gradients are products of matrices, as LibTorch's formula has them. A
  /// call on matrices that needs no communication takes that formula, which
  /// costs fewer nodes of the graph than a region.
  bool product = false;
  /// The same of a formula that is made of other operators with rules, which
  /// find the right layouts, for operands of any shape.
  bool formula = false;
  /// LibTorch's formula for its gradient makes plain tensors on the way: on
  /// replicated tensors it is computed whole instead.
  bool plain_in_gradient = false;
  /// LibTorch's formula makes a gradient of sizes and dtype alone, which then
  /// becomes distributed: derivatives.yaml says zeros_like(operand), of which
  /// only the sizes are kept, or the formula calls at::zeros(). Its in-place
  /// form has that formula too.
  bool gradient_of_sizes = false;
  /// It writes plain tensors to a replicated one if they are the same on every
  /// rank, since LibTorch's own functions call it so.
  bool takes_plain = false;
  /// Its result on a parameter is still that parameter: what a style has put on
  /// the parameter is on the result too.
  bool carries = false;
  /// Its result is some rows of the parameter: what a style has put on that for
  /// its parts too is on the result.
  bool carries_to_parts = false;
  /// A module's bias may be added to a plain local output by it.
  bool adds_bias = false;
  /// The argument that a module makes itself, plain, if it is called without:
  /// a state of zeros, where bags begin.
  std::string_view made_arg = "";
  /// It may be what a styled module computes.
  std::optional<BoundaryRole> boundary = std::nullopt;

  friend bool operator==(const OpTraits&, const OpTraits&) = default;
};

} // namespace dtensor
