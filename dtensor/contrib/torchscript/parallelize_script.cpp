// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/contrib/torchscript/parallelize_script.h>

#include <dtensor/comm/mesh_scope.h>
#include <dtensor/contrib/torchscript/read_script_impl.h>
#include <dtensor/error.h>
#include <dtensor/parallel/distribute_module.h>
#include <dtensor/program/tp_transform.h>
#include <dtensor/tensor/dtensor.h>

#include <ATen/ops/empty.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/ir/ir.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <utility>

namespace dtensor {
namespace torchscript {
namespace {

using c10::Argument;
using c10::IValue;
using Arguments = std::vector<Argument>;

// Sizes of candidate inputs: a batch, a sequence.
constexpr int64_t kBatch = 2;
constexpr int64_t kLength = 6;
constexpr size_t kMostFeatures = 8;
constexpr size_t kMostTries = 256;

// Returns the arguments of forward() without the module itself.
Arguments arguments_of(const torch::jit::Module& script) {
  const auto& all = script.get_method("forward").function().getSchema();
  return {all.arguments().begin() + 1, all.arguments().end()};
}

std::string text_of(const Arguments& arguments) {
  std::string text;
  for (const auto& argument : arguments) {
    text += (text.empty() ? "" : ", ") + argument.name() + " (" +
        argument.type()->annotation_str() + ")";
  }
  return text;
}

ScriptInputs inputs_of(
    const Arguments& arguments,
    const std::vector<IValue>& given) {
  ScriptInputs inputs(given.begin(), given.end());
  for (size_t i = given.size(); i < arguments.size(); ++i) {
    inputs.push_back(arguments[i].default_value());
  }
  const bool all_there = std::ranges::all_of(
      inputs, [](const auto& value) { return value.has_value(); });
  DTENSOR_CHECK_VALUE(
      all_there && given.size() <= arguments.size(),
      "[find_tp_plan] forward() takes {}, but the number of sample inputs is "
      "{}. Pass one for each argument that has no default.",
      text_of(arguments),
      given.size());
  for (size_t i = 0; i < given.size(); ++i) {
    DTENSOR_CHECK_VALUE(
        given[i].type()->isSubtypeOf(*arguments[i].type()),
        "[find_tp_plan] forward() takes {}, but the sample input for {} is a "
        "{}. Pass inputs of these types.",
        text_of(arguments),
        arguments[i].name(),
        given[i].type()->annotation_str());
  }
  return inputs;
}

at::Tensor described(c10::IntArrayRef sizes, at::ScalarType dtype) {
  return at::empty(sizes, at::TensorOptions(dtype).device(c10::kMeta));
}

// Returns candidates: indices for embeddings, and rows for each product, as
// batches of sequences, as batches, and as single rows.
std::vector<IValue> likely_tensors(const std::vector<ModuleTensor>& tensors) {
  std::vector<IValue> indices;
  std::vector<IValue> rows;
  std::vector<int64_t> seen;
  for (const auto& [name, t, is_buffer, role] : tensors) {
    if (role == WeightRole::kEmbedding && indices.empty()) {
      indices.emplace_back(described({kBatch, kLength}, at::kLong));
      indices.emplace_back(described({kLength}, at::kLong));
    }
    if (role != WeightRole::kLinear || t.dim() != 2 ||
        seen.size() == kMostFeatures ||
        std::ranges::find(seen, t.size(1)) != seen.end()) {
      continue;
    }
    const auto features = t.size(1);
    const auto dtype = t.scalar_type();
    seen.push_back(features);
    rows.emplace_back(described({kBatch, kLength, features}, dtype));
    rows.emplace_back(described({kBatch, features}, dtype));
    rows.emplace_back(described({features}, dtype));
  }
  indices.insert(indices.end(), rows.begin(), rows.end());
  return indices;
}

bool takes_tensor(const Argument& argument) {
  return !argument.default_value() &&
      c10::TensorType::get()->isSubtypeOf(*argument.type());
}

// Returns candidate inputs: first the same tensor for all arguments, then all
// combinations.
std::vector<ScriptInputs> likely_inputs(
    const Arguments& arguments,
    const std::vector<IValue>& tensors) {
  ScriptInputs defaults;
  std::vector<size_t> open;
  for (const auto& argument : arguments) {
    if (takes_tensor(argument)) {
      open.push_back(defaults.size());
    }
    defaults.push_back(argument.default_value());
  }
  std::vector<ScriptInputs> all;
  for (const auto& t : tensors) {
    all.push_back(defaults);
    for (const auto i : open) {
      all.back()[i] = t;
    }
  }
  std::vector<size_t> chosen(open.size(), 0);
  while (open.size() > 1 && !tensors.empty() && all.size() < kMostTries) {
    all.push_back(defaults);
    for (size_t i = 0; i < open.size(); ++i) {
      all.back()[open[i]] = tensors[chosen[i]];
    }
    size_t place = open.size();
    while (place > 0 && ++chosen[place - 1] == tensors.size()) {
      chosen[--place] = 0;
    }
    if (place == 0) {
      break;
    }
  }
  return all;
}

void check_plain(const std::vector<ModuleTensor>& tensors) {
  for (const auto& held : tensors) {
    DTENSOR_CHECK(
        !is_dtensor(held.tensor),
        "[find_tp_plan] the script is already parallelized: {} is a DTensor. "
        "Load it again.",
        held.name);
  }
}

// A script's calls, and modules that hold its tensors.
struct ScriptGraph {
  OperatorGraph graph;
  std::shared_ptr<torch::nn::Module> modules;
};

// Reads forward() for these inputs. Inputs at the end may be omitted if they
// have defaults. Without inputs, tries inputs of the shapes that the weights
// suggest and keeps those for which most calls can be read. Throws ValueError
// for a script without forward() and for inputs that it does not accept.
ScriptGraph graph_of_script(
    const torch::jit::Module& script,
    const std::vector<IValue>& inputs) {
  const auto forward = inlined_forward(script);
  DTENSOR_CHECK_VALUE(
      forward != nullptr,
      "[find_tp_plan] the script has no method forward(). Define it, or pass a "
      "plan to parallelize_script().");
  const auto tensors = script_tensors(script, forward.get());
  check_plain(tensors);
  const auto arguments = arguments_of(script);
  if (!inputs.empty()) {
    auto read =
        read_script(script, *forward, tensors, inputs_of(arguments, inputs));
    return {std::move(read.graph), module_tree(tensors)};
  }
  ReadScript best;
  best.graph =
      read_script(script, *forward, tensors, ScriptInputs(arguments.size()))
          .graph;
  for (const auto& likely : likely_inputs(arguments, likely_tensors(tensors))) {
    auto read = read_script(script, *forward, tensors, likely);
    const bool is_better = read.num_products > best.num_products ||
        (read.num_products == best.num_products && read.num_products > 0 &&
         read.num_unread < best.num_unread);
    if (is_better) {
      best = std::move(read);
    }
    if (best.num_products > 0 && best.num_unread == 0) {
      break;
    }
  }
  return {std::move(best.graph), module_tree(tensors)};
}

} // namespace
} // namespace torchscript

std::shared_ptr<torch::nn::Module> parallelize_script(
    const torch::jit::Module& script,
    const DeviceMesh& given_mesh,
    const ParallelizePlan& plan) {
  const auto mesh = given_mesh.defined() ? given_mesh : get_current_mesh();
  DTENSOR_CHECK_VALUE(
      mesh.defined(),
      "[parallelize_script] no mesh was passed and no mesh is current. Pass a "
      "mesh from init_device_mesh, or set the current one with MeshScope.");
  const auto forward = torchscript::inlined_forward(script);
  auto modules =
      module_tree(torchscript::script_tensors(script, forward.get()));
  if (!plan.empty()) {
    parallelize_module(*modules, mesh, plan, {.keep_dtensors = true});
  }
  distribute_module(*modules, mesh);
  return modules;
}

std::vector<PlanEntryText> find_tp_plan(
    const torch::jit::Module& script,
    const std::vector<c10::IValue>& sample_inputs) {
  const auto [graph, modules] =
      torchscript::graph_of_script(script, sample_inputs);
  return find_tp_plan(graph, *modules);
}

std::vector<PlanEntryText> tp_transform(
    torch::jit::Module& script,
    const DeviceMesh& mesh,
    const std::vector<c10::IValue>& sample_inputs) {
  auto plan = find_tp_plan(script, sample_inputs);
  parallelize_script(script, mesh, make_plan(plan));
  return plan;
}

} // namespace dtensor
