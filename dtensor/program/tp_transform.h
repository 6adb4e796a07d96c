// SPDX-License-Identifier: BSD-3-Clause
// Automatic tensor parallelism: finds the plan in the operators of a program or
// script.
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
/// products may lead to one rowwise product. The search applies the operators'
/// sharding rules on meshes of several sizes. They also give the unit that
/// keeps each attention head on one rank, so the plan is valid for any number
/// of ranks.
///
/// A product whose result the program returns is colwise, and that result stays
/// sharded. An embedding is rowwise if its table is larger than every weight of
/// the pairs, or is tied to a colwise weight. Products without a pair are not
/// sharded; without pairs, the plan is empty. The search computes no values and
/// reads no weights.
///
/// A module that is called several times gets a style if all its calls are in
/// pairs that need this style. A weight that modules share has one layout.
/// Products that run_decompositions() has decomposed are found too. The result
/// sizes of an operator without a rule or a meta kernel come from the file. A
/// script has no recorded sizes, so the search ends at such an operator.
DTENSOR_API std::vector<PlanEntryText> find_tp_plan(const Program& program);

/// Calls parallelize_program() with the found plan and returns the plan, for
/// printing. A plan without lines means that no weight is sharded.
/// Python: tensor_parallel_transformation of
/// torch.distributed.tensor.experimental._tp_transform, which takes a style for
/// each parameter.
DTENSOR_API std::vector<PlanEntryText> tp_transform(
    Program& program,
    const DeviceMesh& mesh,
    const ParallelizeProgramOptions& options = {});

/// Finds a plan for a scripted or traced model from the code of forward() and
/// all functions that it calls. Products are aten::linear, and matmul, mm and
/// addmm with a transposed weight. The code states no sizes. They follow from
/// `sample_inputs`, the arguments of forward(); arguments at the end may be
/// omitted if they have defaults. Without sample inputs, tensors of the shapes
/// that the weights suggest are used.
///
/// A branch is read if its condition depends only on attributes (with their
/// current values, such as `training`), None and numbers of dimensions. Weights
/// stay unsharded if they are used in branches that depend on sizes or data, in
/// loops, in operators that need data, or through attributes that the script
/// sets. The search uses no values of weights and does not change the script.
///
/// Throws ValueError for a script without forward() and for inputs that it does
/// not accept, and RuntimeError for a script that is already parallel.
DTENSOR_API std::vector<PlanEntryText> find_tp_plan(
    const torch::jit::Module& script,
    const std::vector<c10::IValue>& sample_inputs = {});

/// Calls parallelize_script() with the found plan and returns the plan, for
/// printing. An optimizer can use the script's own parameters. State
/// dictionaries need modules that hold them; to get these, call
/// parallelize_script() with make_plan(find_tp_plan(script)). (Not in Python.)
DTENSOR_API std::vector<PlanEntryText> tp_transform(
    torch::jit::Module& script,
    const DeviceMesh& mesh,
    const std::vector<c10::IValue>& sample_inputs = {});

} // namespace dtensor
