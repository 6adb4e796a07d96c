// SPDX-License-Identifier: BSD-3-Clause
// RowExchange: an exchange of rows along a sharded tensor dimension. Each rank
// gets the rows that it needs: its own, and the halo beside them.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/comm/group.h>
#include <dtensor/layout/kernel_window_impl.h>
#include <dtensor/layout/spec.h>
#include <dtensor/ops/kernels/linear_map_impl.h>

#include <functional>
#include <utility>
#include <vector>

namespace dtensor::detail {

/// Calls `f` with each mesh dimension that shards one of the last `space`
/// tensor dimensions, and with this tensor dimension. A null layout shards no
/// dimension.
void for_sharded_space(
    const SpecPtr& layout,
    int64_t space,
    const std::function<void(int64_t mesh_dim, int64_t dim)>& f);

/// Returns the rows that each rank of a mesh dimension has of the tensor
/// dimension that this mesh dimension alone shards.
std::vector<Interval> rows_of_ranks(const Spec& layout, int64_t mesh_dim);

/// Ranges of rows of the tensor dimension that a mesh dimension alone shards,
/// in rank order: the rows that the ranks have, and the rows that they need.
struct RowExchange : LinearMap {
  /// The ranks have the rows of their shards in `layout`, or the rows `has`.
  RowExchange(const SpecPtr& layout, int64_t m, std::vector<Interval> needs);
  RowExchange(
      SpecPtr layout,
      int64_t m,
      std::vector<Interval> has,
      std::vector<Interval> needs);

  /// Returns this rank's range from `all`, the ranges of all ranks.
  const Interval& own(const std::vector<Interval>& all) const;
  /// Returns true if any rank receives rows.
  bool communicates() const;
  /// Returns the rows that this rank needs, from the ranks that have them.
  at::Tensor apply(const at::Tensor& held_rows) const override;
  /// Returns the rows that this rank needs from the ranks before it and from
  /// the ranks behind it. Records no gradient.
  std::pair<at::Tensor, at::Tensor> halos(const at::Tensor& held_rows) const;
  /// Returns this rank's rows of the sum over ranks of the rows that the ranks
  /// needed.
  at::Tensor apply_adjoint(const at::Tensor& needed_rows) const override;

  SpecPtr spec; // keeps the group's mesh
  int64_t mesh_dim;
  int64_t dim; // of the tensor
  std::vector<Interval> held;
  std::vector<Interval> needed;

 private:
  size_t rank() const;
  std::vector<at::Tensor> send(
      const at::Tensor& rows,
      const std::vector<Interval>& from,
      const std::vector<Interval>& to) const;
};
using RowExchangePtr = c10::intrusive_ptr<RowExchange>;

/// Calls RowExchange::apply if any rank receives rows, and records its
/// gradient.
at::Tensor gather_rows(
    const at::Tensor& held_rows,
    const RowExchangePtr& exchange);

/// Gives each rank of a mesh dimension its rows of a result, along dimension
/// `dim`, from the ranks that have them. Rank r has the rows `held[r]` of the
/// result, in the order of its local tensor, and gets the rows `needed[r]`, as
/// far as some rank has them. The result is a new tensor. Takes one all_to_all,
/// or none if no rank needs rows of another rank.
at::Tensor move_rows(
    const at::Tensor& rows,
    int64_t dim,
    const DeviceMesh& mesh,
    int64_t mesh_dim,
    const std::vector<Intervals>& held,
    const std::vector<Interval>& needed);

/// Returns the ranges of rows of a tensor that consists of the rows of each
/// rank, in rank order, along `dim`. The rows of this rank are those of `rows`.
/// The ranks exchange their numbers of rows, which may depend on values.
std::vector<Interval>
ranges_of_ranks(Group& group, const at::Tensor& rows, int64_t dim = 0);

/// Returns this rank's shard of the tensor of layout `spec`. The ranks of
/// `mesh_dim` have the ranges `has` of this tensor. This mesh dimension alone
/// shards the dimension of the rows. Differentiable.
at::Tensor even_shard(
    const at::Tensor& rows,
    std::vector<Interval> has,
    const SpecPtr& spec,
    int64_t mesh_dim);

/// A spatial dimension that the ranks of a mesh dimension share: the rows that
/// the windows of each rank's results cover, and this rank's rows of padding
/// before and behind its rows.
struct Halo {
  RowExchangePtr rows;
  int64_t padding_before = 0;
  int64_t padding_behind = 0;
  KernelWindow window;
  std::vector<Interval> windows; // of each rank
};

/// Returns the halo of the windows of `result`. Ranks have shards of the rows
/// of `layout` and of the windows, along the same dimension.
Halo make_halo(
    const SpecPtr& layout,
    int64_t mesh_dim,
    const KernelWindow& window,
    const Spec& result);

} // namespace dtensor::detail
