// SPDX-License-Identifier: BSD-3-Clause
// Tensor parallelism without a plan: it is found in the graph.
//
//   auto program = load_program("model.pt2");
//   std::cout << tp_transform(program, mesh["tp"]);
//   // model.layers.*.self_attn.q_proj  colwise unit=64
//   // ...
#pragma once

#include <dtensor/layout/mesh.h>
#include <dtensor/program/parallelize_program.h>
#include <dtensor/program/plan_text.h>
#include <dtensor/program/program.h>

#include <vector>

namespace dtensor {

/// A plan of pairs: products whose weights are cut by columns, and the product
/// behind them that is cut by rows, where everything in between stays cut
/// without communication. Whether it does is what the operators' rules say of
/// meshes of several sizes, which also tell the unit that keeps heads whole, so
/// that the plan holds for any number of ranks. A product whose result is the
/// program's is cut by columns, and its result stays so; an embedding by rows
/// if its table is larger than the weights of all pairs of a layer, or tied to
/// what is cut. What pairs with nothing stays whole; where nothing pairs, the
/// plan is empty. Nothing is computed or read.
DTENSOR_API std::vector<PlanLine> find_tp_plan(const Program& program);

/// parallelize_program() with that plan, which it returns, to be printed: one
/// without lines says that all weights stay whole.
/// Python: tensor_parallel_transformation of
/// torch.distributed.tensor.experimental._tp_transform, which is given a style
/// for each parameter.
DTENSOR_API std::vector<PlanLine> tp_transform(
    Program& program,
    const DeviceMesh& mesh,
    const ParallelizeProgramOptions& options = {});

} // namespace dtensor
