// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/program/program.h>

#include <dtensor/comm/mesh_scope.h>
#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/parallel/distribute_module.h>
#include <dtensor/parallel/state/state_values_impl.h>
#include <dtensor/program/interpreter_impl.h>
#include <dtensor/program/parallelize_program.h>
#include <dtensor/program/read_graph_impl.h>
#include <dtensor/program/sample_inputs_impl.h>
#include <dtensor/tensor/dtensor.h>
#include <dtensor/weights/load_weights.h>
#include <dtensor/weights/pt2_archive_impl.h>

#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <ostream>
#include <unordered_set>
#include <utility>

namespace dtensor {
namespace {

constexpr const char* kParallelizeProgram = "parallelize_program";
constexpr const char* kModels = "models/";

bool is_torchscript(const detail::Pt2Archive& archive) {
  return !archive.names_in("constants.pkl").empty() &&
      !archive.names_in("code/").empty();
}

// Returns the name of the only graph in the archive.
std::string graph_in(const detail::Pt2Archive& archive) {
  auto names = archive.names_in(kModels);
  std::erase_if(names, [](const auto& n) { return !n.ends_with(".json"); });
  DTENSOR_CHECK_VALUE(
      !names.empty() || !is_torchscript(archive),
      "[load_program] {} is a TorchScript file, not an exported program. Load "
      "it with torch::jit::load(), link dtensor::torchscript, and call "
      "parallelize_script() or tp_transform() "
      "(dtensor/contrib/torchscript/parallelize_script.h).",
      archive.path());
  DTENSOR_CHECK_VALUE(
      names.size() == 1,
      "[load_program] {} contains {} programs under {}, expected 1. Write it "
      "with torch.export.save() of PyTorch 2.8 or newer.",
      archive.path(),
      names.size(),
      kModels);
  return kModels + names[0];
}

bool is_operator_name(const std::string& item) {
  const auto colons = item.find("::");
  if (colons == std::string::npos || colons == 0) {
    return false;
  }
  const auto name = item.substr(colons + 2);
  return name == "*" ||
      (!name.empty() && name.find_first_of(".*: ") == std::string::npos);
}

void check_operator_names(const std::vector<std::string>& allowed) {
  for (const auto& item : allowed) {
    DTENSOR_CHECK_VALUE(
        is_operator_name(item),
        "[load_program] allowed_operators has \"{}\", which is not an operator "
        "name. Write \"torchvision::nms\" for all its overloads, or "
        "\"torchvision::*\" for a namespace.",
        item);
  }
}

// Reads the weights (full tensors, or this rank's shards) unless they have
// already been read.
void read_weights(detail::ProgramState& state) {
  if (state.is_read) {
    return;
  }
  const c10::InferenceMode off(false); // the parameters may be trained later
  load_weights(*state.module, *state.file, {.strict = false});
  for (size_t i = 0; i < state.inputs.size(); ++i) {
    const auto& input = state.graph.inputs[i];
    if (input.kind == detail::InputKind::kConstant) {
      state.inputs[i] = state.file->read(input.name).to(state.device);
    }
  }
  if (!state.mesh.defined() && state.device != c10::kCPU) {
    state.module->to(state.device);
  }
  state.is_read = true;
}

} // namespace

detail::ProgramState& state_of(const Program& program) {
  return *program.state_;
}

Program load_program(
    const std::string& path,
    const LoadProgramOptions& options) {
  check_operator_names(options.allowed_operators);
  const auto file = open_weights(path);
  const detail::Pt2Archive archive(path);
  auto state = std::make_shared<detail::ProgramState>();
  state->path = path;
  state->device = options.device;
  const auto name = graph_in(archive);
  state->graph = detail::read_graph(
      archive.text(name),
      {path, options.device, options.allowed_operators, name});
  state->file = file;
  state->module = detail::make_modules(state->graph, *file, state->inputs);
  return Program(std::move(state));
}

std::vector<at::Tensor> Program::sample_inputs() const {
  return detail::read_sample_inputs(detail::Pt2Archive(state_->path));
}

std::vector<std::string> Program::input_names() const {
  std::vector<std::string> names;
  for (const auto& input : state_->graph.inputs) {
    if (input.kind == detail::InputKind::kUser) {
      names.push_back(input.name);
    }
  }
  return names;
}

std::vector<std::string> Program::output_names() const {
  return state_->graph.output_names;
}

size_t Program::num_operators() const {
  const auto& nodes = state_->graph.nodes;
  return static_cast<size_t>(std::ranges::count_if(nodes, [](const auto& node) {
    return std::holds_alternative<c10::OperatorHandle>(node.call);
  }));
}

torch::nn::Module& Program::module() {
  read_weights(*state_);
  return *state_->module;
}

std::vector<at::Tensor> Program::parameters() {
  std::vector<at::Tensor> parameters;
  std::unordered_set<const c10::TensorImpl*> known;
  for (const auto& parameter : module().parameters()) {
    if (parameter.requires_grad() &&
        known.insert(parameter.unsafeGetTensorImpl()).second) {
      parameters.push_back(parameter);
    }
  }
  return parameters;
}

namespace {

void bind_inputs(
    detail::Interpreter& interpreter,
    const detail::ProgramState& state,
    std::vector<c10::IValue> inputs) {
  size_t next = 0;
  for (size_t i = 0; i < state.graph.inputs.size(); ++i) {
    const auto& input = state.graph.inputs[i];
    interpreter.values()[input.slot] = input.kind == detail::InputKind::kUser
        ? interpreter.placed(std::move(inputs[next++]))
        : c10::IValue(state.inputs[i]);
  }
}

void mutate(
    detail::Interpreter& interpreter,
    const detail::ProgramState& state) {
  const c10::NoGradGuard no_grad;
  const auto& values = interpreter.values();
  for (const auto& mutation : state.graph.mutations) {
    const auto& target = values[state.graph.inputs[mutation.input].slot];
    target.toTensor().copy_(values[mutation.value].toTensor());
  }
}

} // namespace

std::vector<c10::IValue> Program::run(std::vector<c10::IValue> inputs) {
  detail::check_inputs(*state_, inputs);
  read_weights(*state_);
  detail::OperandLayouts layouts(state_->graph, state_->layouts);
  detail::Interpreter interpreter(
      *state_, state_->mesh.defined() ? &layouts : nullptr);
  bind_inputs(interpreter, *state_, std::move(inputs));
  for (const auto& node : state_->graph.nodes) {
    interpreter.call(node);
    for (const auto slot : node.last_uses) {
      interpreter.values()[slot] = c10::IValue();
      layouts.forget(slot);
    }
  }
  mutate(interpreter, *state_);
  std::vector<c10::IValue> outputs;
  outputs.reserve(state_->graph.outputs.size());
  for (const auto& output : state_->graph.outputs) {
    outputs.push_back(interpreter.value_of(output));
  }
  return outputs;
}

at::Tensor Program::operator()(const std::vector<at::Tensor>& inputs) {
  auto results = run({inputs.begin(), inputs.end()});
  DTENSOR_CHECK_VALUE(
      results.size() == 1 && results[0].isTensor(),
      "[Program] {} returns {}{}. Call run().",
      state_->path,
      results.size(),
      results.size() == 1 ? " value, which is not a tensor" : " values");
  return results[0].toTensor();
}

void parallelize_program(
    Program& program,
    const DeviceMesh& given_mesh,
    const ParallelizePlan& plan,
    const ParallelizeProgramOptions& options) {
  auto& state = state_of(program);
  const auto mesh = detail::mesh_or_current(given_mesh, kParallelizeProgram);
  DTENSOR_CHECK(
      !state.mesh.defined(),
      "[parallelize_program] {} is already parallelized on {}. Load it again.",
      state.path,
      state.mesh);
  if (!plan.empty()) {
    const bool has_others = mesh.ndim() > 1;
    parallelize_module(
        *state.module,
        has_others ? mesh[options.plan_dim] : mesh,
        plan,
        {.keep_dtensors = true, .root_mesh = has_others ? mesh : DeviceMesh()});
  }
  distribute_module(*state.module, mesh);
  state.mesh = mesh;
  read_weights(state);
  for (size_t i = 0; i < state.inputs.size(); ++i) {
    if (state.graph.inputs[i].kind == detail::InputKind::kConstant) {
      state.inputs[i] = replicate_tensor(state.inputs[i], mesh);
    }
  }
}

std::ostream& operator<<(std::ostream& os, const Program& program) {
  const auto& state = state_of(program);
  os << state.path << ": " << program.num_operators() << " operators";
  for (const auto& name : program.input_names()) {
    os << "\ninput " << name;
  }
  for (const auto& name : program.output_names()) {
    os << (name.empty() ? "" : "\noutput ") << name;
  }
  for (const auto& item : state.module->named_parameters()) {
    os << "\nparameter " << item.key() << " "
       << detail::state_text(item.value());
  }
  for (const auto& item : state.module->named_buffers()) {
    os << "\nbuffer " << item.key() << " " << detail::state_text(item.value());
  }
  return os;
}

} // namespace dtensor
