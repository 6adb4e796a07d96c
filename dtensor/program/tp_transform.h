// SPDX-License-Identifier: BSD-3-Clause
// Automatic tensor parallelism: finds the plan in the operators of a program.
//
//   auto program = load_program("model.pt2");
//   std::cout << tp_transform(program, mesh["tp"]);
//   // model.layers.*.self_attn.q_proj  colwise multiple_of=64
//   // ...
//
// The module dtensor::torchscript has the same functions for TorchScript
// models.
#pragma once

#include <dtensor/layout/mesh.h>
#include <dtensor/program/operator_graph.h>
#include <dtensor/program/parallelize_program.h>
#include <dtensor/program/plan_text.h>
#include <dtensor/program/program.h>

#include <vector>

namespace torch::nn {
class Module;
}

namespace dtensor {

/// Finds pairs of matrix products: the weight of the first is sharded by
/// columns (colwise), and the weight of the second by rows (rowwise). All
/// values in between stay sharded without communication. Several colwise
/// products may lead to one rowwise product. The search applies the operators'
/// sharding rules on meshes of several sizes. The rules also give the unit that
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
/// sizes of an operator without a rule or a meta kernel come from the file. An
/// OperatorGraph has no recorded sizes, so the search ends at such an operator.
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

/// Finds a plan of `model` in a graph that the program describes. An input of
/// the graph that is a parameter of the model is a weight; the plan names the
/// module that holds it. The search calls the operators on tensors without
/// data, so check operators that a file names with only_computes()
/// (program/allowed_operators.h). Throws ValueError for a graph that uses
/// undefined values, defines a value twice, or passes another number of
/// arguments than the operator has. (Not in Python.)
DTENSOR_API std::vector<PlanEntryText> find_tp_plan(
    const OperatorGraph& graph,
    const torch::nn::Module& model);

} // namespace dtensor
