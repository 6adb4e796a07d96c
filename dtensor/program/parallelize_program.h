// SPDX-License-Identifier: BSD-3-Clause
// A program from Python on several ranks, by the plan that its model has there.
//
//   auto program = load_program("model.pt2");
//   parallelize_program(program, mesh["tp"], {
//       {"model.layers.*.self_attn.[qkv]_proj", ColwiseParallel()},
//       {"model.layers.*.self_attn.o_proj", RowwiseParallel()}});
//   const auto logits = full_tensor(program({ids, mask}));
#pragma once

#include <dtensor/layout/mesh.h>
#include <dtensor/parallel/style.h>
#include <dtensor/program/program.h>

namespace dtensor {

/// Applies the styles to program.module() as parallelize_module does, and makes
/// all other parameters, buffers and constants replicated DTensors. All values
/// of the program are DTensors from here on, of the shapes that they have in
/// Python: what a style does to its module's output leaves it a DTensor, also
/// with use_local_output. A rank reads the bytes of the file alone that its
/// parts need, unless the weights have been read before; then those of rank 0
/// count. Throws what parallelize_module does, and RuntimeError for a program
/// that is parallel already.
/// Python has no counterpart but tensor_parallel_transformation
/// (torch.distributed.tensor.experimental._tp_transform).
DTENSOR_API void parallelize_program(
    Program& program,
    const DeviceMesh& mesh,
    const ParallelizePlan& plan = {});

} // namespace dtensor
