// SPDX-License-Identifier: BSD-3-Clause
// DTensor: a tensor distributed over the ranks of a mesh.
//
// A distributed tensor is an at::Tensor of the global shape. Operators,
// modules, optimizers and autograd work on it. All functions of this library
// return at::Tensor. The class DTensor is a handle to such a tensor, with the
// members that only a distributed tensor has.
//
//   auto w = distribute_tensor(torch::randn({8, 6}), mesh, {Shard(0)});
//   auto y = w * 2;                            // at::Tensor, still distributed
//   DTensor(y).placements();                   // S(0)
//   full_tensor(y);                            // plain, 8 x 6, on every rank
//
// Declare variables as at::Tensor (or auto). Some LibTorch templates compare
// types and do not accept a DTensor as a tensor: Sequential and AnyModule
// reject a variable declared as DTensor.
//
// Python: torch.distributed.tensor.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/api.h>
#include <dtensor/layout/spec.h>
#include <dtensor/tensor/is_dtensor.h>

#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

namespace dtensor {

/// Options of DTensor::from_local.
struct FromLocalOptions {
  /// Compares shape and dtype between ranks, and gives all replicas the data of
  /// their first rank.
  bool run_check = false;
  /// Global shape and strides; required if shards are uneven. Strides default
  /// to row-major for `shape`.
  std::optional<std::vector<int64_t>> shape = std::nullopt;
  std::optional<std::vector<int64_t>> stride = std::nullopt;
  /// Layout of the local tensor's gradient; default: the forward layout, with
  /// Replicate in place of Partial.
  std::optional<Placements> grad_placements = std::nullopt;
};

/// Options of DTensor::redistribute.
struct RedistributeOptions {
  /// Dtype of the result; the tensor is cast before it is communicated.
  std::optional<at::ScalarType> forward_dtype = std::nullopt;
  /// Dtype in which the gradient is communicated; it is cast back afterwards.
  std::optional<at::ScalarType> backward_dtype = std::nullopt;
  /// Returns while the last collective is in flight, forward and backward. The
  /// first use of the result waits for it.
  bool async_op = false;
};

/// A handle to a distributed tensor: the same tensor, with the members below.
/// Functions with a DTensor parameter accept every distributed at::Tensor.
class DTENSOR_API DTensor : public at::Tensor {
 public:
  /// Makes an undefined tensor.
  DTensor() = default;
  /// Wraps `t`, which must be distributed. Throws TypeError if `t` is plain.
  DTensor(at::Tensor t); // NOLINT(google-explicit-constructor)

  /// Makes the DTensor of layout `spec` with local tensor `local`, whose memory
  /// it shares. The result is a leaf. Throws TypeError if `local` is a DTensor
  /// or has another dtype, ValueError if it has another shape.
  /// Python: DTensor(local_tensor, spec, requires_grad=...).
  DTensor(
      const at::Tensor& local,
      const SpecPtr& spec,
      bool requires_grad = false);

  /// Returns the DTensor with local tensor `local` on `mesh` (default: the
  /// current mesh, comm/mesh_scope.h) in layout `placements` (default:
  /// Replicate on every mesh dimension). Without options.shape, all shards are
  /// assumed to have the shape of `local`. Differentiable. Throws TypeError if
  /// `local` is a DTensor, ValueError/IndexError for placements that do not
  /// fit, ValueError if run_check finds a difference.
  /// Python: DTensor.from_local.
  static at::Tensor from_local(
      const at::Tensor& local,
      const DeviceMesh& mesh = {},
      PlacementsRef placements = {},
      const FromLocalOptions& options = {});

  /// Return the mesh of this tensor, and its placement on each mesh dimension.
  /// Python: DTensor.device_mesh, DTensor.placements.
  const DeviceMesh& device_mesh() const;
  PlacementsRef placements() const;
  /// Returns the mesh, placements, global shape, strides and dtype.
  const SpecPtr& spec() const;

  /// Returns the local tensor, which shares this tensor's memory.
  /// Differentiable: the gradient of the local tensor is taken to be in
  /// `grad_placements` (default: this layout, with Replicate in place of
  /// Partial).
  /// Python: DTensor.to_local.
  at::Tensor to_local(
      const std::optional<Placements>& grad_placements = std::nullopt) const;

  /// Returns the full tensor on every rank, as a plain tensor. Differentiable:
  /// the gradient of the full tensor is taken to be in `grad_placements`
  /// (default: Replicate).
  /// Python: DTensor.full_tensor.
  at::Tensor full_tensor(
      const std::optional<Placements>& grad_placements = std::nullopt) const;

  /// Returns the same tensor in another layout on the same mesh.
  /// Differentiable. An asynchronous redistribution copies the data that other
  /// ranks read, unless the caller gives up the only reference to this tensor,
  /// as in dtensor::redistribute(std::move(x), ...). Throws ValueError if the
  /// layout cannot be reached.
  /// Python: DTensor.redistribute.
  at::Tensor redistribute(
      PlacementsRef placements,
      const RedistributeOptions& options = {}) const&;
  at::Tensor redistribute(
      PlacementsRef placements,
      const RedistributeOptions& options = {}) &&;
  at::Tensor redistribute(
      const DeviceMesh& mesh,
      PlacementsRef placements,
      const RedistributeOptions& options = {}) const;
};

/// Distributes a full tensor over `mesh` (default: the current mesh) in layout
/// `placements` (default: Replicate). Every rank must pass a tensor of the full
/// shape. The rank at position `src_data_rank` along each mesh dimension
/// scatters the shards and broadcasts the replicas. If `src_data_rank` is
/// nullopt, every rank shards its own tensor, without communication. A DTensor
/// that has this layout is returned unchanged. Throws RuntimeError for a
/// non-leaf, and ValueError for a wrong number of placements or a DTensor in
/// another layout. Throws IndexError for a shard dimension that the tensor does
/// not have.
/// Python: torch.distributed.tensor.distribute_tensor.
DTENSOR_API at::Tensor distribute_tensor(
    const at::Tensor& tensor,
    const DeviceMesh& mesh = {},
    PlacementsRef placements = {},
    std::optional<int64_t> src_data_rank = 0);

/// Returns the replicated DTensor of a tensor that is equal on all ranks.
/// Shares the memory of `tensor` and communicates nothing. Differentiable.
/// Throws TypeError if `tensor` is a DTensor.
/// Python: DTensor.from_local with its default, Replicate.
DTENSOR_API at::Tensor replicate_tensor(
    const at::Tensor& tensor,
    const DeviceMesh& mesh = {});

/// Returns the full tensor of `tensor`, plain, on every rank; a plain `tensor`
/// is returned unchanged. Differentiable.
DTENSOR_API at::Tensor full_tensor(
    const at::Tensor& tensor,
    const std::optional<Placements>& grad_placements = std::nullopt);

/// Returns DTensor(tensor).to_local(): the local tensor, plain. Differentiable.
/// Throws TypeError if `tensor` is plain.
DTENSOR_API at::Tensor to_local(
    const at::Tensor& tensor,
    const std::optional<Placements>& grad_placements = std::nullopt);

/// Returns DTensor(tensor).redistribute(): `tensor` in another layout.
/// Differentiable. Throws TypeError if `tensor` is plain, ValueError if the
/// layout cannot be reached.
DTENSOR_API at::Tensor redistribute(
    at::Tensor tensor,
    PlacementsRef placements,
    const RedistributeOptions& options = {});

/// Returns true if `tensor` is the DTensor of an asynchronous redistribution
/// that nothing has waited for yet. Its next use waits, as in to_local(). False
/// for all other tensors, plain and undefined ones included. Never waits.
///
/// Example:
///   auto y = redistribute(x, {Replicate()}, {.async_op = true});
///   is_pending(y); // true if the ranks communicate
///   to_local(y);   // waits
///   is_pending(y); // false
///
/// Python: isinstance(y.to_local(), AsyncCollectiveTensor).
DTENSOR_API bool is_pending(const at::Tensor& tensor);

/// Prints the layout, then the local tensor.
DTENSOR_API std::ostream& operator<<(std::ostream& os, const DTensor& t);

} // namespace dtensor
