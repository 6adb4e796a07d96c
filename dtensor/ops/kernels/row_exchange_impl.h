// SPDX-License-Identifier: BSD-3-Clause
// RowExchange: gives each rank of a mesh dimension the rows that it needs of a
// dimension that the ranks share: its own rows, and the halo beside them.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <dtensor/comm/group.h>
#include <dtensor/layout/kernel_window_impl.h>
#include <dtensor/layout/spec.h>

#include <vector>

namespace dtensor::detail {

/// Ranges of rows of tensor dimension `dim`, in rank order: those that the
/// ranks of a mesh dimension have, and those that they need.
struct RowExchange : torch::CustomClassHolder {
  RowExchange(
      SpecPtr s,
      int64_t m,
      int64_t d,
      std::vector<Interval> has,
      std::vector<Interval> needs);

  /// Returns this rank's position in the mesh dimension.
  int64_t rank() const;
  /// Returns true if any rank receives rows.
  bool communicates() const;
  /// Returns the rows that this rank needs, from the ranks that have them.
  at::Tensor gather(const at::Tensor& held_rows) const;
  /// Returns this rank's rows of the sum over ranks of rows that the ranks
  /// needed: the adjoint of gather().
  at::Tensor sum(const at::Tensor& needed_rows) const;

  SpecPtr spec; // keeps the group's mesh
  int64_t mesh_dim;
  int64_t dim;
  std::vector<Interval> held;
  std::vector<Interval> needed;

 private:
  std::vector<at::Tensor> send(
      const at::Tensor& rows,
      const std::vector<Interval>& from,
      const std::vector<Interval>& to) const;
};
using RowExchangePtr = c10::intrusive_ptr<RowExchange>;

/// Calls RowExchange::gather and records its gradient.
at::Tensor gather_rows(
    const at::Tensor& held_rows,
    const RowExchangePtr& exchange);
/// Returns the adjoint of gather_rows(), and records its gradient.
at::Tensor sum_rows(
    const at::Tensor& needed_rows,
    const RowExchangePtr& exchange);

/// A dimension of space that the ranks of a mesh dimension share: the rows that
/// the windows of each rank's results reach, and this rank's rows of padding
/// before and behind them.
struct Halo {
  RowExchangePtr rows;
  int64_t padding_before = 0;
  int64_t padding_behind = 0;
};

/// Returns the halo along dimension `dim` of a tensor of layout `spec`, which
/// mesh dimension `mesh_dim` alone shards. There are `windows` windows, sharded
/// alike.
Halo make_halo(
    const SpecPtr& spec,
    int64_t mesh_dim,
    int64_t dim,
    const KernelWindow& window,
    int64_t windows);

} // namespace dtensor::detail
