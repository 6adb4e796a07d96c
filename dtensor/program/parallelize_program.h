// SPDX-License-Identifier: BSD-3-Clause
// A program from Python on several ranks, by the plan that its model has there.
//
//   auto program = load_program("model.pt2");
//   parallelize_program(program, mesh["tp"], {
//       {"model.layers.*.self_attn.[qkv]_proj", ColwiseParallel()},
//       {"model.layers.*.self_attn.o_proj", RowwiseParallel()}});
//   const auto logits = full_tensor(program({ids, mask}));
//
// On a mesh of several dimensions batches or sequences may be cut as well:
//
//   parallelize_program(program, mesh, plan);  // of "dp" and "tp"
//   program({distribute_tensor(ids, mesh, {Shard(0), Replicate()})});
#pragma once

#include <dtensor/layout/mesh.h>
#include <dtensor/parallel/style.h>
#include <dtensor/program/program.h>

#include <string>

namespace dtensor {

/// Options of parallelize_program.
struct ParallelizeProgramOptions {
  /// Of a mesh of several dimensions: the one that styles cut along.
  std::string plan_dim = "tp";
};

/// Applies the styles to program.module() as parallelize_module does, and makes
/// all other parameters, buffers and constants replicated DTensors. All values
/// of the program are DTensors from here on, of the shapes that they have in
/// Python: what a style does to its module's output leaves it a DTensor, also
/// with use_local_output. A rank reads the bytes of the file alone that its
/// parts need, unless the weights have been read before; then those of rank 0
/// count.
///
/// A mesh of several dimensions is the program's, and the plan is about one of
/// them. On the others parameters are replicated and inputs come as they are:
/// cut along the batch, which is data parallelism (the gradients are summed
/// over it), or along the sequence, for whose attention context_parallel() is.
///
/// Throws what parallelize_module does, IndexError for a plan_dim that the mesh
/// does not have, and RuntimeError for a program that is parallel already.
/// Python has no counterpart but tensor_parallel_transformation
/// (torch.distributed.tensor.experimental._tp_transform).
DTENSOR_API void parallelize_program(
    Program& program,
    const DeviceMesh& mesh,
    const ParallelizePlan& plan = {},
    const ParallelizeProgramOptions& options = {});

} // namespace dtensor
