// SPDX-License-Identifier: BSD-3-Clause
#include "machine.h"

#include <tests/parallel/modules.h>

#include <filesystem>
#include <fstream>

#include <unistd.h>

namespace dtensor::parity {
namespace {

using torch::nn::Module;

using dtensor::test_modules::Mlp;

struct StackImpl : Module {
  StackImpl(int64_t width, int64_t hidden, bool bias) {
    for (int i = 0; i < 2; ++i) {
      layers->push_back(Mlp(width, hidden, bias));
    }
    register_module("layers", layers);
  }
  at::Tensor forward(at::Tensor x) {
    for (const auto& layer : *layers) {
      x = layer->as<Mlp>()->forward(x);
    }
    return x;
  }
  torch::nn::ModuleList layers;
};
TORCH_MODULE(Stack);

struct ReluImpl : Module {
  at::Tensor forward(const at::Tensor& x) {
    return torch::relu(x);
  }
};
DTENSOR_MODULE(Relu);

struct SumImpl : Module {
  at::Tensor forward(const at::Tensor& x, const at::Tensor& y) {
    return x * 2 + y;
  }
};
DTENSOR_MODULE(Sum);

struct PairImpl : Module {
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& x) {
    return {x * 2, x + 1};
  }
};
DTENSOR_MODULE(Pair);

struct AffineImpl : Module {
  explicit AffineImpl(int64_t width)
      : weight(register_parameter("weight", torch::empty(width))),
        shift(register_buffer("shift", pattern({{"sizes", {width}}}, 9))) {}
  at::Tensor forward(const at::Tensor& x) {
    return x * weight + shift;
  }
  at::Tensor weight;
  at::Tensor shift;
};
TORCH_MODULE(Affine);

template <class Holder>
Callable of_one(Holder holder) {
  return {holder.ptr(), [holder](const Tensors& inputs) mutable -> Tensors {
            return {holder->forward(inputs.at(0))};
          }};
}

Callable sum_of_two() {
  Sum sum;
  return {sum.ptr(), [sum](const Tensors& inputs) mutable -> Tensors {
            TORCH_CHECK(inputs.size() == 2);
            return {sum->forward(inputs[0], inputs[1])};
          }};
}

Callable pair_of_one() {
  Pair pair;
  return {pair.ptr(), [pair](const Tensors& inputs) mutable -> Tensors {
            auto [first, second] = pair->forward(inputs.at(0));
            return {first, second};
          }};
}

Callable
made_of(const std::string& kind, const std::vector<int64_t>& sizes, bool bias) {
  if (kind == "linear") {
    return of_one(torch::nn::Linear(
        torch::nn::LinearOptions(sizes[0], sizes[1]).bias(bias)));
  }
  if (kind == "embedding") {
    return of_one(torch::nn::Embedding(sizes[0], sizes[1]));
  }
  if (kind == "layer_norm") {
    return of_one(torch::nn::LayerNorm(torch::nn::LayerNormOptions(sizes)));
  }
  if (kind == "dropout") {
    return of_one(hooked::Dropout(torch::nn::DropoutOptions(0.0)));
  }
  if (kind == "mlp") {
    return of_one(Mlp(sizes[0], sizes[1], bias));
  }
  if (kind == "stack") {
    return of_one(Stack(sizes[0], sizes[1], bias));
  }
  if (kind == "affine") {
    return of_one(Affine(sizes[0]));
  }
  if (kind == "sum") {
    return sum_of_two();
  }
  if (kind == "pair") {
    return pair_of_one();
  }
  TORCH_CHECK(kind == "relu", "no module ", kind);
  return of_one(Relu());
}

void make_module(Machine& machine, const Json& step) {
  auto made = made_of(
      step["kind"],
      step.value("sizes", std::vector<int64_t>()),
      step.value("bias", true));
  const c10::NoGradGuard no_grad;
  int64_t seed = 0;
  for (auto& parameter : made.module->parameters()) {
    parameter.copy_(pattern({{"sizes", parameter.sizes().vec()}}, ++seed));
  }
  machine.bind(step["to"], std::move(made));
}

Placement placement_of(const Json& text) {
  return placements_of(Json::array({text}))[0];
}

// Python's keyword arguments become positional arguments, because C++ has no
// keyword arguments.
OptionalPlacements optional_placements(
    const Json& style,
    const std::string& name) {
  OptionalPlacements layouts;
  const auto add = [&](const Json& text) {
    layouts.push_back(
        text.is_null() ? std::nullopt : std::optional(placement_of(text)));
  };
  for (const auto& text : style.value(name, Json::array())) {
    add(text);
  }
  const auto named = name.substr(0, name.find("layouts")) + "kwarg_layouts";
  for (const auto& text : style.value(named, Json::object())) {
    add(text);
  }
  return layouts;
}

using StylePtr = std::shared_ptr<const ParallelStyle>;

template <class Style, class Options>
StylePtr linear_style(const Json& style) {
  Options options;
  if (style.contains("input_layouts")) {
    options.input_layouts = placement_of(style["input_layouts"]);
  }
  if (style.contains("output_layouts")) {
    options.output_layouts = placement_of(style["output_layouts"]);
  }
  options.use_local_output = style.value("use_local_output", true);
  return std::make_shared<Style>(options);
}

StylePtr sequence(const Json& style) {
  return std::make_shared<SequenceParallel>(SequenceParallelOptions{
      .sequence_dim = style.value("sequence_dim", int64_t{1}),
      .use_local_output = style.value("use_local_output", false)});
}

StylePtr prepare_input(const Json& style) {
  return std::make_shared<PrepareModuleInput>(PrepareModuleInputOptions{
      .input_layouts = optional_placements(style, "input_layouts"),
      .desired_input_layouts =
          optional_placements(style, "desired_input_layouts"),
      .use_local_output = style.value("use_local_output", false)});
}

StylePtr prepare_output(const Json& style) {
  return std::make_shared<PrepareModuleOutput>(PrepareModuleOutputOptions{
      .output_layouts = optional_placements(style, "output_layouts"),
      .desired_output_layouts =
          optional_placements(style, "desired_output_layouts"),
      .use_local_output = style.value("use_local_output", true)});
}

StylePtr prepare_both(const Json& style) {
  return std::make_shared<PrepareModuleInputOutput>(
      PrepareModuleInputOutputOptions{
          .input_layouts = optional_placements(style, "input_layouts"),
          .desired_input_layouts =
              optional_placements(style, "desired_input_layouts"),
          .use_local_input = style.value("use_local_input", false),
          .output_layouts = optional_placements(style, "output_layouts"),
          .desired_output_layouts =
              optional_placements(style, "desired_output_layouts"),
          .use_local_output = style.value("use_local_output", true)});
}

StylePtr style_of(const Json& style) {
  static const std::map<std::string, StylePtr (*)(const Json&)> makers = {
      {"colwise", linear_style<ColwiseParallel, ColwiseOptions>},
      {"rowwise", linear_style<RowwiseParallel, RowwiseOptions>},
      {"sequence", sequence},
      {"prepare_input", prepare_input},
      {"prepare_output", prepare_output},
      {"prepare_input_output", prepare_both}};
  return makers.at(style["style"])(style);
}

void parallelize(Machine& machine, const Json& step) {
  auto& module = *machine.module(step["of"]).module;
  const auto mesh = machine.mesh_of(step);
  const ParallelizeOptions options{.src_data_rank = src_data_rank(step)};
  if (!step.contains("plan")) {
    parallelize_module(std::as_const(module), mesh);
    return;
  }
  const auto& given = step["plan"];
  if (given.contains("style")) {
    parallelize_module(module, mesh, *style_of(given), options);
    return;
  }
  std::map<std::string, StylePtr> plan;
  for (const auto& [pattern, style] : given.items()) {
    plan.emplace(pattern, style_of(style));
  }
  parallelize_module(module, mesh, plan, options);
}

void distribute(Machine& machine, const Json& step) {
  const auto partition = step.value("partition", Json::object());
  const auto cut =
      [&](const std::string& name, Module& module, const DeviceMesh& mesh) {
        for (auto& item : module.named_parameters(/*recurse=*/false)) {
          const auto full_name =
              name.empty() ? item.key() : name + "." + item.key();
          if (partition.contains(full_name)) {
            distribute_parameter(
                item.value(), mesh, placements_of(partition[full_name]));
          }
        }
      };
  ModuleTensorsFn before;
  ModuleTensorsFn after;
  if (step.contains("input")) {
    before = [layouts = placements_of(step["input"])](
                 const std::vector<at::Tensor*>& inputs,
                 const DeviceMesh& mesh) {
      for (auto* input : inputs) {
        *input = DTensor::from_local(*input, mesh, layouts);
      }
    };
    after = [layouts = placements_of(step["output"])](
                const std::vector<at::Tensor*>& outputs, const DeviceMesh&) {
      for (auto* output : outputs) {
        *output = to_local(DTensor(*output).redistribute(layouts));
      }
    };
  }
  distribute_module(
      *machine.module(step["of"]).module,
      machine.mesh_of(step),
      cut,
      before,
      after);
}

// Applies fully_shard to modules by name; "" is the root with all remaining
// parameters.
void shard(Machine& machine, const Json& step) {
  FullyShardOptions options{.mesh = machine.mesh_of(step)};
  if (step.contains("reshard_after_forward")) {
    const auto& given = step["reshard_after_forward"];
    options.reshard_after_forward = given.is_boolean()
        ? ReshardAfterForward(given.get<bool>())
        : ReshardAfterForward(given.get<int64_t>());
  }
  if (step.contains("dims")) {
    // Chooses the placement by a parameter's number of dimensions.
    options.shard_placement_fn = [&](const at::Tensor& parameter) {
      return std::optional<Placement>(
          Shard(step["dims"][std::to_string(parameter.dim())].get<int64_t>()));
    };
  }
  auto& module = *machine.module(step["of"]).module;
  for (const auto& name : step["units"]) {
    const auto text = name.get<std::string>();
    fully_shard(text.empty() ? module : *module.named_modules()[text], options);
  }
}

void call(Machine& machine, const Json& step) {
  auto inputs = machine.tensors(step["args"]);
  for (const auto& name : step.value("kwargs", Json::object())) {
    inputs.push_back(machine.tensor(name));
  }
  machine.bind_all(step["to"], machine.module(step["of"]).call(inputs));
}

void show_parameters(Machine& machine, const Json& step) {
  const auto& module = *machine.module(step["of"]).module;
  for (const auto& item : module.named_parameters()) {
    machine.note(item.key(), record_of(item.value()));
    machine.note(item.key() + ".grad", record_of(item.value().grad()));
  }
  for (const auto& item : module.named_buffers()) {
    machine.note(item.key(), record_of(item.value()));
  }
}

void sharding_info(Machine& machine, const Json& step) {
  const auto& model = machine.module(step["of"]);
  const CommDebugMode comm(*model.module);
  model.call(machine.tensors(step["args"]));
  Json shardings;
  for (const auto& [name, placements] : comm.get_sharding_info()) {
    shardings[name] = texts_of(placements);
  }
  Json parameters;
  for (const auto& [module, tensors] : comm.get_parameter_info()) {
    for (const auto& [name, tensor] : tensors) {
      const auto full_name = module.empty() ? name : module + "." + name;
      parameters[full_name] = tensor.sizes().vec();
    }
  }
  machine.note("shardings", shardings);
  machine.note("parameters", parameters);
  machine.note("total", comm.get_total_counts());
}

bool is_json(const std::filesystem::path& file) {
  std::ifstream stream(file);
  return !Json::parse(stream).empty();
}

void comm_texts(Machine& machine, const Json& step) {
  const auto& model = machine.module(step["of"]);
  const CommDebugMode comm(*model.module);
  model.call(machine.tensors(step["args"]));
  const auto stem = std::filesystem::temp_directory_path() /
      ("parity_" + std::to_string(getpid()) + "_" + std::to_string(get_rank()));
  auto longer = Json::array();
  auto named = Json::array();
  auto files = Json::array();
  size_t before = 0;
  for (int64_t level = 0; level < 4; ++level) {
    const auto table = comm.generate_comm_debug_tracing_table(level);
    if (level > 0) {
      longer.push_back(table.size() > before);
    }
    before = table.size();
    named.push_back(table.find("all_reduce") != std::string::npos);
    comm.log_comm_debug_tracing_table_to_file(stem.string(), level);
    const bool has_table = std::filesystem::file_size(stem) > 0;
    comm.generate_json_dump(stem.string(), level);
    files.push_back({has_table, is_json(stem)});
  }
  std::filesystem::remove(stem);
  machine.note("each level says more", longer);
  machine.note("name the collective", named);
  machine.note("files", files);
}

} // namespace

Steps module_steps() {
  return {
      {"module", make_module},
      {"parallelize", parallelize},
      {"distribute_module", distribute},
      {"fully_shard", shard},
      {"call", call},
      {"show_parameters", show_parameters},
      {"sharding_info", sharding_info},
      {"comm_texts", comm_texts}};
}

} // namespace dtensor::parity
