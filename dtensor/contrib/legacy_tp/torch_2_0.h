// SPDX-License-Identifier: BSD-3-Clause
// Tensor-parallel API of PyTorch 2.0 and 2.1: the functions and defaults of
// those versions, by the current styles. Target: dtensor::legacy_tp.
//
//   namespace tp = dtensor::torch_2_0;
//   tp::parallelize_module(
//       *model, mesh, tp::PairwiseParallel(), /*tp_mesh_dim=*/1);
//
// docs/guides/torch_2_0.md lists the differences and today's equivalents.
#pragma once

#include <dtensor/layout/mesh.h>
#include <dtensor/layout/placement.h>
#include <dtensor/parallel/style.h>

#include <ATen/core/Tensor.h>

#include <optional>

namespace dtensor::torch_2_0 {

// Input functions. A plain tensor becomes the local tensor of a DTensor,
// without communication; a DTensor is redistributed. Default mesh: that of the
// DTensor. All are differentiable. They throw RuntimeError for an undefined
// tensor, a plain tensor without a mesh, and a mesh that is not 1-D, and
// NotImplementedError for a DTensor on another mesh.

/// Returns `input`, a full tensor on every rank, as a DTensor in R.
/// Python: torch.distributed.tensor.parallel.make_input_replicate_1d.
DTENSOR_API at::Tensor make_input_replicate_1d(
    const at::Tensor& input,
    const DeviceMesh& device_mesh = {});

/// Gathers `input`, the local shard along dimension 0, into a DTensor in R.
/// Python: torch.distributed.tensor.parallel.make_input_reshard_replicate.
DTENSOR_API at::Tensor make_input_reshard_replicate(
    const at::Tensor& input,
    const DeviceMesh& device_mesh = {});

/// Returns `input`, the local shard along `dim`, as a DTensor in S(dim).
/// Python: torch.distributed.tensor.parallel.make_input_shard_1d.
DTENSOR_API at::Tensor make_input_shard_1d(
    const at::Tensor& input,
    const DeviceMesh& device_mesh = {},
    int64_t dim = 0);

/// Like make_input_shard_1d, along the last dimension.
/// Python: torch.distributed.tensor.parallel.make_input_shard_1d_last_dim.
DTENSOR_API at::Tensor make_input_shard_1d_last_dim(
    const at::Tensor& input,
    const DeviceMesh& device_mesh = {});

// Output functions, for DTensors. Default mesh: that of the output. All are
// differentiable. They throw TypeError for a plain tensor, ValueError for a
// mesh that is not 1-D, and NotImplementedError for a mesh other than the
// output's.

/// Redistributes `output` to R.
/// Python: torch.distributed.tensor.parallel.make_output_replicate_1d.
DTENSOR_API at::Tensor make_output_replicate_1d(
    const at::Tensor& output,
    const DeviceMesh& device_mesh = {});

/// Redistributes `output` to S(dim).
/// Python: torch.distributed.tensor.parallel.make_output_shard_1d.
DTENSOR_API at::Tensor make_output_shard_1d(
    const at::Tensor& output,
    const DeviceMesh& device_mesh = {},
    int64_t dim = 0);

/// Returns the full `output` on every rank, as a plain tensor.
/// Python: torch.distributed.tensor.parallel.make_output_tensor.
DTENSOR_API at::Tensor make_output_tensor(
    const at::Tensor& output,
    const DeviceMesh& device_mesh = {});

/// Returns the local shard of `output` in S(0), as a plain tensor.
/// Python: torch.distributed.tensor.parallel.make_output_reshard_tensor.
DTENSOR_API at::Tensor make_output_reshard_tensor(
    const at::Tensor& output,
    const DeviceMesh& device_mesh = {});

/// Returns the local tensor of `output` in its own layout.
/// Python: torch.distributed.tensor.parallel.make_sharded_output_tensor.
DTENSOR_API at::Tensor make_sharded_output_tensor(
    const at::Tensor& output,
    const DeviceMesh& device_mesh = {});

// Styles, also for plans of the current parallelize_module. A style takes
// layouts instead of Python 2.0's functions _prepare_input and _prepare_output,
// because it adds a Linear's bias in the layout of the output.

/// Options for ColwiseParallel.
struct ColwiseOptions {
  /// Layout of a plain input. R corresponds to make_input_replicate_1d.
  Placement input_layouts = Replicate();
  /// Layout of the output. R corresponds to make_output_replicate_1d.
  Placement output_layouts = Replicate();
  /// Returns the local tensor of the output instead of a DTensor.
  bool use_local_output = false;
};

/// Style for a Linear or Embedding. The output is gathered: a DTensor in R. (In
/// 2.1, as today: the local shard in S(-1).) apply() throws RuntimeError for
/// any other module.
/// Python: torch.distributed.tensor.parallel.ColwiseParallel of 2.0.
class DTENSOR_API ColwiseParallel : public ParallelStyle {
 public:
  explicit ColwiseParallel(ColwiseOptions options = {}) : options_(options) {}
  void apply(const StyleTarget& target) const override;

 private:
  ColwiseOptions options_;
};

/// Options for RowwiseParallel.
struct RowwiseOptions {
  /// Layout of a plain input. Default: S(-1) for a Linear (as by
  /// make_input_shard_1d_last_dim), R for an Embedding.
  std::optional<Placement> input_layouts = std::nullopt;
  /// Layout of the output. R corresponds to make_output_replicate_1d.
  Placement output_layouts = Replicate();
  /// Returns the local tensor of the output instead of a DTensor.
  bool use_local_output = false;
};

/// Style for a Linear or Embedding. The output is a DTensor in R. (In 2.1, as
/// today: a plain tensor.) apply() throws RuntimeError for any other module.
/// Python: torch.distributed.tensor.parallel.RowwiseParallel of 2.0.
class DTENSOR_API RowwiseParallel : public ParallelStyle {
 public:
  explicit RowwiseParallel(RowwiseOptions options = {}) : options_(options) {}
  void apply(const StyleTarget& target) const override;

 private:
  RowwiseOptions options_;
};

/// Options for PairwiseParallel.
struct PairwiseOptions {
  /// Layout of a plain input. R corresponds to make_input_replicate_1d.
  Placement input_layouts = Replicate();
  /// Layout of the output. With use_local_output, R corresponds to
  /// make_output_tensor and S(0) to make_output_reshard_tensor.
  Placement output_layouts = Replicate();
  bool use_local_output = true;
};

/// Shards the Linear children of a module (an MLP) alternately by columns and
/// by rows; the last of an odd number is unchanged. Tensors in between are
/// DTensors, and the output of the last pair is in output_layouts. Shards
/// torch::nn::MultiheadAttention and TensorParallelMultiheadAttention
/// (torch_2_0_attention.h) by heads; if these do not divide evenly, the last
/// ranks have fewer heads, or none. Applies itself to the children of any other
/// module. Throws RuntimeError if it shards nothing, and NotImplementedError
/// for torch::nn::MultiheadAttention with input_layouts other than R.
/// Python: torch.distributed.tensor.parallel.PairwiseParallel.
class DTENSOR_API PairwiseParallel : public ParallelStyle {
 public:
  explicit PairwiseParallel(PairwiseOptions options = {}) : options_(options) {}
  void apply(const StyleTarget& target) const override;

 private:
  PairwiseOptions options_;
};

/// PairwiseParallel with plain input and output (T, ...), sharded along the
/// sequence: make_input_reshard_replicate and make_output_reshard_tensor.
/// Python: torch.distributed.tensor.parallel.SequenceParallel of 2.0 and 2.1.
class DTENSOR_API SequenceParallel : public PairwiseParallel {
 public:
  SequenceParallel()
      : PairwiseParallel(
            {.input_layouts = Shard(0), .output_layouts = Shard(0)}) {}
};

/// Applies the styles of `plan`, or one style to the module itself, along
/// dimension `tp_mesh_dim` of `mesh`. Keys are full names without patterns; ""
/// is the module. On an error nothing changes. Throws IndexError for a
/// dimension that the mesh lacks, ValueError for a name that the module lacks,
/// RuntimeError for an entry without a style, and the errors of the styles.
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

/// Returns true: fully_shard() needs no setup for parallelized modules.
/// Python: torch.distributed.tensor.parallel.fsdp.enable_2d_with_fsdp.
constexpr bool enable_2d_with_fsdp() {
  return true;
}

} // namespace dtensor::torch_2_0
