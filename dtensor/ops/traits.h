// SPDX-License-Identifier: BSD-3-Clause
// OpTraits: properties of an operator that do not depend on the layouts of its
// operands. Traits are part of the operator's rule, or set on their own for an
// operator without a rule:
//
//   rules.dim_rule("addmm", rule).with_traits({.product = true});
//   rules.traits("eq_.Scalar", {.gradient_from_sizes_only = true});
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace dtensor {

/// Operators to which a boundary applies: products with a weight, look-ups in a
/// weight, norms that scale by a weight. A boundary redistributes the input and
/// output of an operator in a module with a parallel style
/// (parallel/boundary.h).
enum class BoundaryKind : uint8_t { kLinear, kEmbedding, kNorm };

/// Positions of the arguments that a boundary uses.
struct BoundaryRole {
  BoundaryKind kind = BoundaryKind::kLinear;
  size_t input = 0;
  size_t parameter = 0;
  /// kLinear: position of the bias, if the operator takes one.
  std::optional<size_t> bias = std::nullopt;
  /// kLinear: true if the parameter is (out, in) instead of (in, out).
  bool transposed = false;
  friend bool operator==(const BoundaryRole&, const BoundaryRole&) = default;
};

/// Properties of an operator; most operators have none.
struct OpTraits {
  /// Argument that holds the shape of the first result. The local call gets the
  /// local shape in this argument.
  std::string_view size_arg = "";
  /// True if LibTorch's gradient formula consists of matrix products. A call on
  /// matrices without communication uses that formula, because it takes fewer
  /// autograd nodes than a region (OpRule::region).
  bool product = false;
  /// True if LibTorch's gradient formula consists of other operators with
  /// rules, which find the right layouts for operands of any shape.
  bool formula = false;
  /// True if LibTorch's gradient formula creates plain tensors. On replicated
  /// tensors the operator then runs as one region on the local tensors.
  bool gradient_makes_plain = false;
  /// True if LibTorch's gradient formula makes a plain tensor from sizes and
  /// dtype alone: derivatives.yaml says zeros_like(operand) and saves only the
  /// sizes, or the formula calls at::zeros(). That gradient is then
  /// distributed. The in-place form has the same formula.
  bool gradient_from_sizes_only = false;
  /// True if the operator may copy plain tensors into a replicated tensor,
  /// provided that they are equal on all ranks. LibTorch's own functions make
  /// such calls.
  bool accepts_plain_source = false;
  /// True if LibTorch lets the operator write to an expanded tensor, whose
  /// elements share memory.
  bool writes_expanded = false;
  /// True if the result stands for the parameter that the operator is applied
  /// to. A boundary of the parameter then also applies to the result.
  bool keeps_boundary = false;
  /// True if the result is some rows of the parameter. A boundary that applies
  /// to rows then also applies to the result.
  bool boundary_follows_rows = false;
  /// True if the operator may add a module's bias to a plain local output.
  bool adds_bias = false;
  /// True if the memory order of the result depends on the kernel that LibTorch
  /// selects. The local result is copied to the memory order of its layout.
  bool result_order_varies = false;
  /// True if an operator without a rule takes operands in any layout: it
  /// gathers them, and every rank computes the full result.
  bool gathers = false;
  /// Argument that torch::nn creates as a plain tensor if the caller omits it:
  /// a state of zeros, or the offsets of bags.
  std::string_view module_created_arg = "";
  /// Argument positions, if a boundary can apply to the operator.
  std::optional<BoundaryRole> boundary = std::nullopt;

  friend bool operator==(const OpTraits&, const OpTraits&) = default;
};

} // namespace dtensor
