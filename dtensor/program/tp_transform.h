// SPDX-License-Identifier: BSD-3-Clause
// Tensor parallelism without a plan: the plan is found from the graph.
//
//   auto program = load_program("model.pt2");
//   std::cout << tp_transform(program, mesh["tp"]);
//   // model.layers.*.self_attn.q_proj  colwise multiple_of=64
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

/// Finds pairs of matrix products: the weight of the first is sharded by
/// columns (colwise), and the weight of the second by rows (rowwise). All
/// values in between stay sharded without communication. Several colwise
/// products may lead to one rowwise product. The operators' sharding rules
/// decide this on meshes of several sizes. They also give the unit that keeps
/// each attention head on one rank, so the plan holds for any number of ranks.
///
/// A product that gives a result of the program is colwise, and its result
/// stays sharded. An embedding is rowwise if its table is larger than every
/// weight of the pairs, or is tied to a colwise weight. Products without a pair
/// are not sharded; without pairs, the plan is empty. Nothing is computed or
/// read.
///
/// A module that is called several times gets a style if all its calls are in
/// pairs that need that style. A weight that modules share is sharded in one
/// way. Products that run_decompositions() has taken apart are found too.
/// Behind an operator without a rule or a kernel for the meta device, the sizes
/// come from the file. A script has no recorded sizes, so its plan ends at such
/// an operator.
DTENSOR_API std::vector<PlanEntryText> find_tp_plan(const Program& program);

/// Calls parallelize_program() with the found plan and returns the plan, for
/// printing. A plan without lines means that no weight is sharded. Python:
/// tensor_parallel_transformation of
/// torch.distributed.tensor.experimental._tp_transform, which takes a style for
/// each parameter.
DTENSOR_API std::vector<PlanEntryText> tp_transform(
    Program& program,
    const DeviceMesh& mesh,
    const ParallelizeProgramOptions& options = {});

/// Finds a plan for a scripted or traced model from the code of forward() and
/// all functions that it calls. Products are aten::linear, and matmul, mm and
/// addmm with a transposed weight. Code has no sizes, so the operators' rules
/// run on `sample_inputs`, the arguments of forward(). Arguments at the end may
/// be omitted if they have defaults. Without sample inputs, tensors of the
/// shapes that the weights suggest are used.
///
/// Attributes (with their present values, such as `training`), None and the
/// number of dimensions decide which branch of a condition is read. Unread code
/// leaves its weights unsharded: branches that depend on sizes or data, loops,
/// operators that need data, and attributes that the script sets. No weight is
/// read or used in a computation, and the script is not changed.
///
/// Throws ValueError for a script without forward() and for inputs that it does
/// not accept, and RuntimeError for a script that is parallel already.
DTENSOR_API std::vector<PlanEntryText> find_tp_plan(
    const torch::jit::Module& script,
    const std::vector<c10::IValue>& sample_inputs = {});

/// Calls parallelize_script() with the found plan and returns the plan, for
/// printing. The parameters are the script's own, for an optimizer. To get
/// modules that hold them, for state dictionaries, call parallelize_script()
/// with make_plan(find_tp_plan(script)). Python: torch.distributed.tensor has
/// no counterpart for torch.jit.ScriptModule.
DTENSOR_API std::vector<PlanEntryText> tp_transform(
    torch::jit::Module& script,
    const DeviceMesh& mesh,
    const std::vector<c10::IValue>& sample_inputs = {});

} // namespace dtensor
