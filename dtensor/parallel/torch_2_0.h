// SPDX-License-Identifier: BSD-3-Clause
// The tensor-parallel API of PyTorch 2.0 and 2.1, for programs that were
// written for it: the functions and defaults of that time, over today's styles.
//
//   namespace tp = dtensor::torch_2_0;
//   tp::parallelize_module(
//       *model, mesh, tp::PairwiseParallel(), /*tp_mesh_dim=*/1);
//
// docs/guides/torch_2_0.md says what is different, and what to write today.
#pragma once

#include <dtensor/layout/mesh.h>
#include <dtensor/layout/placement.h>
#include <dtensor/parallel/style.h>

#include <ATen/core/Tensor.h>

#include <optional>

namespace dtensor::torch_2_0 {

// Inputs. A plain tensor becomes the DTensor whose part it is, without
// communication; a DTensor is redistributed. No mesh: that of the DTensor. All
// are differentiable, and throw RuntimeError for an undefined tensor, a plain
// one without a mesh, and a mesh that is not one-dimensional,
// NotImplementedError for a DTensor on another mesh.

/// `input`, whole on every rank, as a DTensor in R.
/// Python: torch.distributed.tensor.parallel.make_input_replicate_1d.
DTENSOR_API at::Tensor make_input_replicate_1d(
    const at::Tensor& input,
    const DeviceMesh& device_mesh = {});

/// `input`, this rank's part along dimension 0, gathered: a DTensor in R.
/// Python: torch.distributed.tensor.parallel.make_input_reshard_replicate.
DTENSOR_API at::Tensor make_input_reshard_replicate(
    const at::Tensor& input,
    const DeviceMesh& device_mesh = {});

/// `input`, this rank's part along dimension `dim`, as a DTensor in S(dim).
/// Python: torch.distributed.tensor.parallel.make_input_shard_1d.
DTENSOR_API at::Tensor make_input_shard_1d(
    const at::Tensor& input,
    const DeviceMesh& device_mesh = {},
    int64_t dim = 0);

/// The same along the last dimension.
/// Python: torch.distributed.tensor.parallel.make_input_shard_1d_last_dim.
DTENSOR_API at::Tensor make_input_shard_1d_last_dim(
    const at::Tensor& input,
    const DeviceMesh& device_mesh = {});

// Outputs, DTensors all. No mesh: that of the output. All are differentiable,
// and throw TypeError for a plain tensor, ValueError for a mesh that is not
// one-dimensional, NotImplementedError for another mesh than the output's.

/// `output` in R, as a DTensor.
/// Python: torch.distributed.tensor.parallel.make_output_replicate_1d.
DTENSOR_API at::Tensor make_output_replicate_1d(
    const at::Tensor& output,
    const DeviceMesh& device_mesh = {});

/// `output` in S(dim), as a DTensor.
/// Python: torch.distributed.tensor.parallel.make_output_shard_1d.
DTENSOR_API at::Tensor make_output_shard_1d(
    const at::Tensor& output,
    const DeviceMesh& device_mesh = {},
    int64_t dim = 0);

/// The whole `output`, plain, on every rank.
/// Python: torch.distributed.tensor.parallel.make_output_tensor.
DTENSOR_API at::Tensor make_output_tensor(
    const at::Tensor& output,
    const DeviceMesh& device_mesh = {});

/// This rank's part of `output` in S(0), plain.
/// Python: torch.distributed.tensor.parallel.make_output_reshard_tensor.
DTENSOR_API at::Tensor make_output_reshard_tensor(
    const at::Tensor& output,
    const DeviceMesh& device_mesh = {});

/// This rank's part of `output` as it is, plain.
/// Python: torch.distributed.tensor.parallel.make_sharded_output_tensor.
DTENSOR_API at::Tensor make_sharded_output_tensor(
    const at::Tensor& output,
    const DeviceMesh& device_mesh = {});

// Styles. Where Python takes functions, _prepare_input and _prepare_output,
// these take the layouts that they stand for, as in 2.1: a Linear's bias is
// added in the layout of its output, which a function does not tell. They may
// stand in a plan of today's parallelize_module, too.

/// Options of ColwiseParallel.
struct ColwiseOptions {
  /// Of a plain input: R for make_input_replicate_1d; R of the output for
  /// make_output_replicate_1d.
  Placement input_layouts = Replicate();
  Placement output_layouts = Replicate();
  /// Return this rank's part of the output instead of a DTensor.
  bool use_local_output = false;
};

/// Linear (Embedding) whose output is gathered: a DTensor in R; in 2.1, as
/// today, this rank's part in S(-1). RuntimeError for any other module.
/// Python: torch.distributed.tensor.parallel.ColwiseParallel of 2.0.
class DTENSOR_API ColwiseParallel : public ParallelStyle {
 public:
  explicit ColwiseParallel(ColwiseOptions options = {}) : options_(options) {}
  void apply(const StyleTarget& target) const override;

 private:
  ColwiseOptions options_;
};

/// Options of RowwiseParallel.
struct RowwiseOptions {
  /// Of a plain input; default: S(-1), as make_input_shard_1d_last_dim, for a
  /// Linear, R for an Embedding. R of the output for make_output_replicate_1d.
  std::optional<Placement> input_layouts = std::nullopt;
  Placement output_layouts = Replicate();
  /// Return this rank's part of the output instead of a DTensor.
  bool use_local_output = false;
};

/// Linear (Embedding) whose output is a DTensor in R; in 2.1, as today, plain.
/// apply() throws RuntimeError for any other module.
/// Python: torch.distributed.tensor.parallel.RowwiseParallel of 2.0.
class DTENSOR_API RowwiseParallel : public ParallelStyle {
 public:
  explicit RowwiseParallel(RowwiseOptions options = {}) : options_(options) {}
  void apply(const StyleTarget& target) const override;

 private:
  RowwiseOptions options_;
};

/// Options of PairwiseParallel.
struct PairwiseOptions {
  /// Layout of a plain input: R for make_input_replicate_1d.
  Placement input_layouts = Replicate();
  /// With use_local_output R for make_output_tensor, S(0) for
  /// make_output_reshard_tensor.
  Placement output_layouts = Replicate();
  bool use_local_output = true;
};

/// Of a module with more than one Linear child (an MLP): its Linears by
/// columns, rows, columns, ..., the last one of an odd number left as it is;
/// DTensors in between, and what comes out of the last pair in output_layouts.
/// Of a torch::nn::MultiheadAttention, or a TensorParallelMultiheadAttention
/// (torch_2_0_attention.h): whole heads, of which the last ranks have fewer, or
/// none, where they do not divide by the ranks. Of any other module: its
/// children.
/// apply() throws RuntimeError if nothing was found, NotImplementedError for a
/// torch::nn::MultiheadAttention whose input_layouts are not R.
/// Python: torch.distributed.tensor.parallel.PairwiseParallel.
class DTENSOR_API PairwiseParallel : public ParallelStyle {
 public:
  explicit PairwiseParallel(PairwiseOptions options = {}) : options_(options) {}
  void apply(const StyleTarget& target) const override;

 private:
  PairwiseOptions options_;
};

/// PairwiseParallel with input and output, (T, ...) plain, cut along the
/// sequence: make_input_reshard_replicate and make_output_reshard_tensor.
/// Python: torch.distributed.tensor.parallel.SequenceParallel of 2.0 and 2.1.
class DTENSOR_API SequenceParallel : public PairwiseParallel {
 public:
  SequenceParallel()
      : PairwiseParallel(
            {.input_layouts = Shard(0), .output_layouts = Shard(0)}) {}
};

/// Applies the styles of `plan` along dimension `tp_mesh_dim` of `mesh`, or one
/// to the module itself. Keys are full names, without patterns; "" is the
/// module. Nothing is changed if anything is refused. Throws IndexError for a
/// dimension that the mesh does not have, ValueError for a name that the module
/// does not have, RuntimeError for an entry without a style; and what styles
/// throw.
/// Python: torch.distributed.tensor.parallel.parallelize_module of 2.0.
DTENSOR_API void parallelize_module(
    torch::nn::Module& module,
    const DeviceMesh& mesh,
    const ParallelizePlan& plan,
    int64_t tp_mesh_dim = 0);
DTENSOR_API void parallelize_module(
    torch::nn::Module& module,
    const DeviceMesh& mesh,
    const ParallelStyle& style,
    int64_t tp_mesh_dim = 0);

/// Whether fully_shard() may take a parallel module: without enabling anything.
/// Python: torch.distributed.tensor.parallel.fsdp.enable_2d_with_fsdp.
constexpr bool enable_2d_with_fsdp() {
  return true;
}

} // namespace dtensor::torch_2_0
