// SPDX-License-Identifier: BSD-3-Clause
// Helpers for the rules of operators on (samples..., channels, space...), in
// which samples and channels may be sharded.
#pragma once

#include <dtensor/layout/kernel_window_impl.h>
#include <dtensor/ops/registry.h>
#include <dtensor/ops/rules/shapes_impl.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace dtensor::detail {

/// Adds the strategy of an operator that is linear in its first operand, for an
/// operand that is a partial sum. Averages of integers are rounded, so they are
/// not linear.
void add_linear_in_first(const OpCall& call, Strategies& strategies);

/// Returns the dimension of `input`, from `first` on, that this mesh dimension
/// alone shards and that may stay sharded; 0 if there is none.
int64_t sharded_space(
    const OpCall& call,
    const OpInput& input,
    int64_t mesh_dim,
    int64_t first);

/// Returns the rows that windows need.
using NeededRows = std::function<Interval(Interval windows)>;

/// Returns true if ranks exchange the rows of `dim` that their windows need.
/// Each rank has some of the `result` windows, and the ranks receive fewer rows
/// than if they gathered the dimension.
bool is_worth_exchanging(
    const OpInput& input,
    int64_t mesh_dim,
    int64_t dim,
    int64_t result,
    const NeededRows& needed);

/// Returns the windows of pooling along the spatial dimension `i`.
KernelWindow pool_window(const OpCall& call, size_t i);

/// Returns the numbers of windows along the `space` dimensions, by the
/// arguments kernel_size, stride, padding and dilation. In ceil mode, the last
/// window may extend beyond the end.
std::vector<int64_t>
windows_of(const OpCall& call, SizesRef space, bool ceil_mode);

/// Linearity of an operator in its first operand.
enum class Linear : uint8_t { kNo, kInFirst };

/// Returns the rule of an operator whose last `space` dimensions are unsharded.
/// All operands and results have the same other dimensions.
DimRule before_space(int64_t space, Linear linear = Linear::kNo);

/// Passes the layout of an operand with sharded spatial dimensions to the local
/// kernel, and marks calls that the operator itself can run.
LocalizeRule note_space(int64_t space);

/// Returns the shape of the first operand with `space` as its last dimensions.
Sizes with_space(const OpCall& call, const std::vector<int64_t>& space);

/// Adds an operator that runs locally unless the rank has no samples or no
/// channels.
OpRule& add_spatial(RuleRegistry& rules, const std::string& name, DimRule rule);

/// Adds a backward operator of grad_output and self with unsharded spatial
/// dimensions. The operator's own gradient for self is zero.
void add_spatial_backward(
    RuleRegistry& rules,
    const std::string& name,
    int64_t space);

} // namespace dtensor::detail
