// SPDX-License-Identifier: BSD-3-Clause
// Linear algebra. Each tensor ends in the dimensions of a matrix or vector, and
// the dimensions before them are batches. Batches are independent, so they may
// be sharded. Matrices are unsharded, except the right-hand sides of a linear
// system, which are independent as well.
//
// Gradients are those of the local operator, since LibTorch's formulas create
// plain tensors.
#include <dtensor/ops/rules/linalg_impl.h>
#include <dtensor/ops/rules/shapes_impl.h>

#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/kernels/local_kernels_impl.h>
#include <dtensor/ops/registry.h>
#include <dtensor/ops/rules/pointwise_impl.h>

namespace dtensor {
namespace {

using namespace detail;

// Returns the rule of an operator on batches of matrices.
DimRule batched(Batched ranks) {
  return [ranks = std::move(ranks)](const OpCall& call, int64_t mesh_dim) {
    return batch_strategies(call, ranks, mesh_dim);
  };
}

// Returns the dimension of the right-hand sides that may be sharded, counted
// from the end: columns, or rows if the system is on their right.
int64_t independent_dim(const OpCall& call) {
  const bool left = !call.has_arg("left") || call.bool_arg("left");
  return left ? 1 : 2;
}

// Adds the strategy that shards the right-hand sides, input `rhs`. The other
// inputs and results stay replicated.
void add_right_hand_sides(
    const OpCall& call,
    size_t rhs,
    Strategies& strategies) {
  const auto from_end = independent_dim(call);
  auto s = all_alike(call, Replicate());
  s.inputs[rhs] = Shard(call.inputs[rhs].dim() - from_end);
  s.outputs[0] = Shard(call.outputs[0].dim() - from_end);
  strategies.push_back(std::move(s));
}

// Returns the rule of a solver, which is linear in its right-hand sides.
DimRule solver(Batched ranks, size_t rhs) {
  ranks.linear = {rhs};
  return [ranks, rhs](const OpCall& call, int64_t mesh_dim) {
    auto strategies = batch_strategies(call, ranks, mesh_dim);
    add_right_hand_sides(call, rhs, strategies);
    return strategies;
  };
}

// Returns the strategies of solve, whose right-hand side may be a batch of
// vectors. LibTorch recognises vectors by their sizes: batches of A without the
// last dimension. A broadcast matrix could have such sizes after sharding, so
// it stays unsharded.
Strategies solve(const OpCall& call, int64_t mesh_dim) {
  const auto a = call.inputs[0].sizes();
  const auto b = call.inputs[1].sizes();
  const bool vectors =
      b.size() == 1 || (b.size() + 1 == a.size() && b == a.slice(0, b.size()));
  if (!vectors && b.size() + 1 == a.size()) {
    return {};
  }
  const int64_t b_rank = vectors ? 1 : 2;
  const Batched ranks{
      .inputs = {2, b_rank}, .outputs = {b_rank, 2, 1, 0}, .linear = {1}};
  auto strategies = batch_strategies(call, ranks, mesh_dim);
  if (!vectors) {
    add_right_hand_sides(call, 1, strategies);
  }
  return strategies;
}

// Returns the strategies of a cross product, linear in either operand.
Strategies cross(const OpCall& call, int64_t mesh_dim) {
  const auto& sizes = call.outputs[0].sizes;
  const auto ndim = call.outputs[0].dim();
  const auto along = call.dim_arg("dim", ndim);
  Strategies strategies;
  for (int64_t d = 0; d < ndim; ++d) {
    if (d != along) {
      strategies.push_back(
          {{Shard(d)},
           {operand_shard(call.inputs[0].sizes(), sizes, d),
            operand_shard(call.inputs[1].sizes(), sizes, d)}});
    }
  }
  add_linear(call, {0, 1}, sum_ops(), mesh_dim, strategies);
  return strategies;
}

// Returns the strategies of trace: every rank adds the diagonal elements of its
// shard.
Strategies trace(const OpCall& call, int64_t mesh_dim) {
  Strategies strategies{
      {{partial_sum()}, {Shard(0)}}, {{partial_sum()}, {Shard(1)}}};
  add_linear(call, {0}, sum_ops(), mesh_dim, strategies);
  return strategies;
}

std::vector<OutputMeta> trace_meta(const OpCall& call) {
  const auto& self = *call.inputs[0].spec;
  DTENSOR_CHECK(
      self.dim() == 2,
      "[{}] needs a matrix, got {}. Pass a tensor of two dimensions.",
      call.name(),
      self);
  const bool integral = at::isIntegralType(self.dtype(), true);
  return {{{}, {}, integral ? at::kLong : self.dtype()}};
}

// Marks calls that check no errors, because the operator itself can run them.
void note_unchecked(const OpCall& call, Decision& decision) {
  decision.is_plain_call = !call.bool_arg("check_errors");
}

// Returns the strategies of cdist, which shard batches, or the rows of either
// operand.
Strategies cdist(const OpCall& call, int64_t mesh_dim) {
  auto strategies =
      batch_strategies(call, {.inputs = {2, 2}, .outputs = {2}}, mesh_dim);
  const auto rows = call.outputs[0].dim() - 2;
  strategies.push_back(
      {{Shard(rows)}, {Shard(call.inputs[0].dim() - 2), Replicate()}});
  strategies.push_back(
      {{Shard(rows + 1)}, {Replicate(), Shard(call.inputs[1].dim() - 2)}});
  return strategies;
}

// Chooses the formula for the Euclidean distance by the global number of rows.
// For many rows, the formula is a product of matrices.
void localize_cdist(const OpCall& call, Decision& decision) {
  constexpr int64_t kManyRows = 25;
  constexpr int64_t kProduct = 1;
  constexpr int64_t kNoProduct = 2;
  const auto& mode = call.arg("compute_mode");
  if (!mode.isNone() && mode.toInt() != 0) {
    return;
  }
  const auto is_many = [](const Spec& spec, SizesRef sizes) {
    return sizes[static_cast<size_t>(spec.dim()) - 2] > kManyRows;
  };
  bool global = false;
  bool local = false;
  for (size_t i = 0; i < 2; ++i) {
    const auto& spec = decision.layout_of(call, i);
    global |= is_many(spec, spec.sizes());
    local |= is_many(spec, spec.local_sizes());
  }
  if (global != local) {
    decision.args.emplace_back(
        call.arg_index("compute_mode"), global ? kProduct : kNoProduct);
  }
}

// Returns the strategies of lu_unpack. LibTorch ignores pivots that are not
// unpacked, so they may have other batches.
Strategies lu_unpack(const OpCall& call, int64_t mesh_dim) {
  const auto matrices = call.inputs[0].sizes();
  const auto pivots = call.inputs[1].sizes();
  const bool same_batches = matrices.size() == pivots.size() + 1 &&
      matrices.slice(0, matrices.size() - 2) ==
          pivots.slice(0, pivots.size() - 1);
  return same_batches
      ? batch_strategies(
            call, {.inputs = {2, 1}, .outputs = {2, 2, 2}}, mesh_dim)
      : Strategies{};
}

} // namespace

DTENSOR_RULES(linalg) {
  const auto add_batched = [&](const char* name,
                               Batched ranks,
                               const MetaRule& meta = nullptr) -> OpRule& {
    return rules.dim_rule(name, batched(std::move(ranks)))
        .with_meta(meta)
        .as_region();
  };
  const auto add_solver = [&](const char* name,
                              Batched ranks,
                              size_t rhs,
                              const MetaRule& meta = nullptr) -> OpRule& {
    return rules.dim_rule(name, solver(std::move(ranks), rhs))
        .with_meta(meta)
        .as_region();
  };
  // Adds operators that return "info" and can check it. A check fails on all
  // ranks or on none.
  const auto add_checked = [&](const char* name, const DimRule& rule) {
    rules.dim_rule(name, rule)
        .with_localize(note_unchecked)
        .with_local_kernel(boxed(check_errors_local))
        .as_region();
  };
  // Factorizations.
  add_checked(
      "linalg_cholesky_ex", batched({.inputs = {2}, .outputs = {2, 0}}));
  add_checked("linalg_inv_ex", batched({.inputs = {2}, .outputs = {2, 0}}));
  for (const auto* name : {"linalg_lu_factor_ex", "linalg_ldl_factor_ex"}) {
    add_checked(name, batched({.inputs = {2}, .outputs = {2, 1, 0}}));
  }
  add_batched("cholesky", {.inputs = {2}, .outputs = {2}}, cholesky_meta)
      .with_local_kernel(boxed(cholesky_local));
  add_batched("linalg_lu", {.inputs = {2}, .outputs = {2, 2, 2}});
  rules.dim_rule("lu_unpack", lu_unpack).as_region();
  add_batched("linalg_qr", {.inputs = {2}, .outputs = {2, 2}});
  add_batched("geqrf", {.inputs = {2}, .outputs = {2, 1}}, geqrf_meta);
  add_batched(
      "linalg_householder_product",
      {.inputs = {2, 1}, .outputs = {2}},
      householder_meta)
      .with_local_kernel(boxed(householder_local));
  // Spectra.
  add_batched("linalg_eig", {.inputs = {2}, .outputs = {1, 2}}, eig_meta);
  add_batched("_linalg_eigvals", {.inputs = {2}, .outputs = {1}}, eigvals_meta);
  add_batched("_linalg_eigh", {.inputs = {2}, .outputs = {1, 2}});
  add_batched("_linalg_svd", {.inputs = {2}, .outputs = {2, 1, 2}});
  // Functions of a matrix.
  add_batched("_linalg_det", {.inputs = {2}, .outputs = {0, 2, 1}})
      .with_local_kernel(boxed(determinant_local));
  add_batched("_linalg_slogdet", {.inputs = {2}, .outputs = {0, 0, 2, 1}});
  add_batched("cholesky_inverse", {.inputs = {2}, .outputs = {2}}, square_meta);
  add_batched(
      "linalg_matrix_exp", {.inputs = {2}, .outputs = {2}}, matrix_exp_meta);
  add_batched(
      "linalg_pinv.atol_rtol_tensor",
      {.inputs = {2, 0, 0}, .outputs = {2}},
      pinv_meta)
      .with_local_kernel(boxed(zeros_of_squares_if_empty));
  for (const auto* name :
       {"linalg_matrix_rank",
        "linalg_matrix_rank.tol_tensor",
        "linalg_matrix_rank.atol_rtol_float",
        "linalg_matrix_rank.atol_rtol_tensor"}) {
    add_batched(name, {.inputs = {2, 0, 0}, .outputs = {0}}, matrix_rank_meta)
        .with_local_kernel(boxed(zeros_if_empty));
  }
  // Solvers.
  add_checked("_linalg_solve_ex", solve);
  const Batched two{.inputs = {2, 2}, .outputs = {2}};
  const Batched factored{.inputs = {2, 1, 2}, .outputs = {2}};
  add_solver("linalg_solve_triangular", two, 1, solved_meta);
  for (const auto* name : {"cholesky_solve", "_cholesky_solve_helper"}) {
    add_solver(name, two, 0, cholesky_solved_meta);
  }
  for (const auto* name : {"linalg_lu_solve", "linalg_ldl_solve"}) {
    add_solver(name, factored, 2);
  }
  add_solver("ormqr", factored, 2, ormqr_meta)
      .with_local_kernel(boxed(ormqr_local));
  add_batched("triangular_solve", {.inputs = {2, 2}, .outputs = {2, 2}});
  // Distances.
  for (const auto* name : {"cdist", "_cdist_forward"}) {
    rules.dim_rule(name, cdist)
        .with_meta(cdist_meta)
        .with_localize(localize_cdist)
        .as_region();
  }
  rules
      .dim_rule(
          "_cdist_backward", batched({.inputs = {2, 2, 2, 2}, .outputs = {2}}))
      .with_meta(cdist_backward_meta);
  rules.dim_rule("linalg_cross", cross);
  rules.dim_rule("trace", trace)
      .with_meta(trace_meta)
      .with_localize(keep_layouts)
      .with_local_kernel(boxed(trace_local))
      .no_strided()
      .as_region();
}

} // namespace dtensor
