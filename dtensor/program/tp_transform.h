// SPDX-License-Identifier: BSD-3-Clause
// Tensor parallelism without a plan: it is found in the graph.
//
//   auto program = load_program("model.pt2");
//   std::cout << tp_transform(program, mesh["tp"]);
//   // model.layers.*.self_attn.q_proj  colwise unit=64
//   // ...
//
//   auto script = torch::jit::load("model.ts");
//   std::cout << tp_transform(script, mesh["tp"]);
#pragma once

#include <ATen/core/ivalue.h>
#include <dtensor/layout/mesh.h>
#include <dtensor/program/parallelize_program.h>
#include <dtensor/program/plan_text.h>
#include <dtensor/program/program.h>

#include <vector>

namespace torch::jit {
struct Module;
}

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
///
/// A module that is called several times gets a style if all its calls are in
/// pairs that want it, and a weight that modules share is cut in one way.
/// Products that run_decompositions() has taken apart are found as well. Behind
/// an operator without a rule or without a kernel for the meta device, the file
/// says which sizes a value has; a script has none, so there the plan ends at
/// such an operator.
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

/// The same of a scripted or traced model, from the code of forward() with all
/// that it calls: aten::linear, and matmul, mm and addmm by a transposed
/// weight. Code has no sizes, so the operators' rules are asked for
/// `sample_inputs`, the arguments of forward(), of which those with defaults
/// may be left out at the end; without any, for tensors of the shapes that the
/// weights suggest. Attributes, None and the number of dimensions decide which
/// branch of a condition is read, attributes as they are now (`training`). What
/// is not read leaves the weights that it takes whole: branches that depend on
/// sizes or data, loops, operators that need data, attributes that the script
/// sets. Nothing is computed with weights, or read of them, and the script
/// stays as it is. Throws ValueError for a script without forward() and for
/// inputs that it does not take, and RuntimeError for one that is parallel
/// already.
DTENSOR_API std::vector<PlanLine> find_tp_plan(
    const torch::jit::Module& script,
    const std::vector<c10::IValue>& sample_inputs = {});

/// parallelize_script() with that plan, which it returns, to be printed. The
/// parameters are the script's own, for an optimizer; for modules that hold
/// them, as state dictionaries want, call parallelize_script() with
/// make_plan(find_tp_plan(script)).
/// Python: torch.distributed.tensor has none for torch.jit.ScriptModule.
DTENSOR_API std::vector<PlanLine> tp_transform(
    torch::jit::Module& script,
    const DeviceMesh& mesh,
    const std::vector<c10::IValue>& sample_inputs = {});

} // namespace dtensor
