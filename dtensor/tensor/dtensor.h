// SPDX-License-Identifier: BSD-3-Clause
// DTensor: a tensor that is spread over the ranks of a mesh.
//
// A distributed tensor is an at::Tensor of the global shape; every operator,
// module, optimizer and autograd works on it. All functions return at::Tensor.
// The class below is a view of such a tensor, and adds what only a distributed
// tensor has.
//
//   auto w = distribute_tensor(torch::randn({8, 6}), mesh, {Shard(0)});
//   auto y = w * 2;                            // at::Tensor, still distributed
//   DTensor(y).placements();                   // S(0)
//   full_tensor(y);                            // plain, 8 x 6, on every rank
//
// Hold tensors as at::Tensor (or auto). LibTorch's templates compare types, and
// some do not take a DTensor for a tensor: Sequential and AnyModule refuse a
// variable declared as DTensor.
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
  /// Compare shape and dtype between ranks, and give replicas rank 0's data.
  bool run_check = false;
  /// Global shape and strides; needed when shards are uneven. Strides default
  /// to row-major for `shape`.
  std::optional<std::vector<int64_t>> shape = std::nullopt;
  std::optional<std::vector<int64_t>> stride = std::nullopt;
  /// Layout in which the gradient arrives at the local tensor; default: the
  /// forward layout with Partial replaced by Replicate.
  std::optional<Placements> grad_placements = std::nullopt;
};

/// Options of DTensor::redistribute.
struct RedistributeOptions {
  /// Cast before communicating; the result has this dtype.
  std::optional<at::ScalarType> forward_dtype = std::nullopt;
  /// Cast the gradient to this before communicating it, and back afterwards.
  std::optional<at::ScalarType> backward_dtype = std::nullopt;
  /// Return while the last collective is under way, forward and backward. The
  /// first use of the result waits for it.
  bool async_op = false;
};

/// The view of a distributed tensor: the same tensor, with the members below.
/// Functions that take one accept every at::Tensor that is distributed.
class DTENSOR_API DTensor : public at::Tensor {
 public:
  /// Undefined.
  DTensor() = default;
  /// `t` seen as the DTensor it is. Throws TypeError if it is plain.
  DTensor(at::Tensor t); // NOLINT(google-explicit-constructor)

  /// The DTensor of layout `spec` whose part on this rank is `local`, which it
  /// shares the memory of: a leaf. Throws TypeError if `local` is a DTensor or
  /// has another dtype, ValueError for a part of another shape.
  /// Python: DTensor(local_tensor, spec, requires_grad=...).
  DTensor(
      const at::Tensor& local,
      const SpecPtr& spec,
      bool requires_grad = false);

  /// The DTensor whose part on this rank is `local`, on `mesh` (default: the
  /// current one, comm/mesh_scope.h) in layout `placements` (default: Replicate
  /// on every mesh dimension). Without `shape`, all shards are taken to be as
  /// large as this one. Differentiable.
  /// Throws TypeError if `local` is a DTensor, ValueError/IndexError for
  /// placements that do not fit, ValueError if run_check finds a difference.
  /// Python: DTensor.from_local.
  static at::Tensor from_local(
      const at::Tensor& local,
      const DeviceMesh& mesh = {},
      PlacementsRef placements = {},
      const FromLocalOptions& options = {});

  /// The mesh that it is spread over, and its placement on each mesh dimension.
  /// Python: DTensor.device_mesh, DTensor.placements.
  const DeviceMesh& device_mesh() const;
  PlacementsRef placements() const;
  /// Everything that is known of it but its data.
  const SpecPtr& spec() const;

  /// This rank's part, sharing memory. Differentiable: its gradient is taken
  /// to be in `grad_placements` (default: this layout, Partial -> Replicate).
  /// Python: DTensor.to_local.
  at::Tensor to_local(
      const std::optional<Placements>& grad_placements = std::nullopt) const;

  /// The whole tensor on every rank. Differentiable.
  /// Python: DTensor.full_tensor.
  at::Tensor full_tensor(
      const std::optional<Placements>& grad_placements = std::nullopt) const;

  /// The same tensor in another layout, on the same mesh. Differentiable.
  /// An asynchronous one copies what its peers read unless nobody else holds
  /// this tensor: dtensor::redistribute(std::move(x), ...).
  /// Throws ValueError if the layout cannot be reached.
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

/// Distributes a full tensor that every rank has, over `mesh` (default: the
/// current one) in layout `placements` (default: Replicate): shards are
/// scattered and replicas broadcast from the rank `src_data_rank` of each mesh
/// dimension; nullopt: every rank cuts its own tensor, and nothing is
/// communicated. A DTensor is returned as it is if it has this layout. Throws
/// RuntimeError for a non-leaf, ValueError for placements of the wrong length
/// or another layout of a DTensor, IndexError for a shard dimension that the
/// tensor does not have. Python: torch.distributed.tensor.distribute_tensor.
DTENSOR_API at::Tensor distribute_tensor(
    const at::Tensor& tensor,
    const DeviceMesh& mesh = {},
    PlacementsRef placements = {},
    std::optional<int64_t> src_data_rank = 0);

/// A tensor that every rank has alike, as a DTensor: nothing is communicated,
/// and it shares the memory. Differentiable. DTensor::from_local, replicated.
DTENSOR_API at::Tensor replicate(
    const at::Tensor& tensor,
    const DeviceMesh& mesh = {});

/// The whole of `tensor`, plain, on every rank; a plain one as it is.
/// Differentiable. DTensor::full_tensor of what may be one.
DTENSOR_API at::Tensor full_tensor(
    const at::Tensor& tensor,
    const std::optional<Placements>& grad_placements = std::nullopt);

/// DTensor(tensor).to_local(): the local shard, plain. Differentiable.
/// Throws TypeError if `tensor` is plain.
DTENSOR_API at::Tensor to_local(
    const at::Tensor& tensor,
    const std::optional<Placements>& grad_placements = std::nullopt);

/// DTensor(tensor).redistribute(): `tensor` in another layout. Differentiable.
/// Throws TypeError if `tensor` is plain, ValueError if the layout cannot be
/// reached.
DTENSOR_API at::Tensor redistribute(
    at::Tensor tensor,
    PlacementsRef placements,
    const RedistributeOptions& options = {});

/// Layout line, then this rank's part.
DTENSOR_API std::ostream& operator<<(std::ostream& os, const DTensor& t);

} // namespace dtensor
