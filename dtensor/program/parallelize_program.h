// SPDX-License-Identifier: BSD-3-Clause
// Runs a program from Python on several ranks, with the same plan as the Python
// model.
//
//   auto program = load_program("model.pt2");
//   parallelize_program(program, mesh["tp"], {
//       {"model.layers.*.self_attn.[qkv]_proj", ColwiseParallel()},
//       {"model.layers.*.self_attn.o_proj", RowwiseParallel()}});
//   const auto logits = full_tensor(program({ids, mask}));
//
// On a mesh of several dimensions, batches or sequences can be sharded too:
//
//   parallelize_program(program, mesh, plan);  // mesh of "dp" and "tp"
//   program({distribute_tensor(ids, mesh, {Shard(0), Replicate()})});
#pragma once

#include <dtensor/layout/mesh.h>
#include <dtensor/parallel/style.h>
#include <dtensor/program/program.h>

#include <string>

namespace dtensor {

/// Options for parallelize_program().
struct ParallelizeProgramOptions {
  /// Mesh dimension that the plan's styles shard over, if the mesh has several.
  std::string plan_dim = "tp";
};

/// Applies the styles to program.module() as parallelize_module does. Makes all
/// other parameters, buffers and constants replicated DTensors. From then on,
/// all values of the program are DTensors with the shapes that they have in
/// Python. The output of a styled module stays a DTensor, even with
/// use_local_output. Each rank reads only the bytes of its local shards from
/// the file. If the weights have already been read, rank 0's values are
/// scattered.
///
/// If the mesh has several dimensions, the plan applies to one of them. On the
/// others, parameters are replicated and inputs keep their layout. Inputs may
/// be sharded along the batch, which is data parallelism (gradients are summed
/// over that dimension), or along the sequence, for which context_parallel()
/// provides attention.
///
/// Throws the errors of parallelize_module, IndexError if the mesh has no
/// dimension plan_dim, and RuntimeError for a program that is already parallel.
/// The closest Python counterpart is tensor_parallel_transformation
/// (torch.distributed.tensor.experimental._tp_transform).
DTENSOR_API void parallelize_program(
    Program& program,
    const DeviceMesh& mesh,
    const ParallelizePlan& plan = {},
    const ParallelizeProgramOptions& options = {});

} // namespace dtensor
