// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/program/read_graph_impl.h>

#include <dtensor/error.h>
#include <dtensor/program/source_line_impl.h>

#include <ATen/core/enum_tag.h>
#include <ATen/core/jit_type.h>
#include <c10/util/StringUtil.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

namespace dtensor::detail {
namespace {

using Json = nlohmann::json;

constexpr const char* kLoadProgram = "load_program";
constexpr int64_t kSchemaMajor = 8;
constexpr std::string_view kHigherOrder = "torch.ops.higher_order.";
// Says again what the calls before and after it are made for, but in a program
// that casts: under strict=True torch.export sees other dtypes than there are.
constexpr std::string_view kAssertMetadata =
    "torch.ops.aten._assert_tensor_metadata.default";

[[noreturn]] void refuse_call(
    const ProgramOrigin& origin,
    const Json& call,
    const std::string& why) {
  const auto& node = call.at("metadata");
  DTENSOR_CHECK_NOT_IMPLEMENTED(
      false,
      kLoadProgram,
      origin.path,
      ": ",
      call.at("target").get<std::string>(),
      describe_source(source_line(node.value("stack_trace", ""))),
      " cannot be run: ",
      why,
      ".");
}

// Of its values, which torch.export wants on one device.
c10::DeviceType device_in(const Json& tensors, c10::DeviceType otherwise) {
  return tensors.empty()
      ? otherwise
      : c10::Device(tensors.begin()->at("device").at("type").get<std::string>())
            .type();
}

// Reads one graph, or one within it, whose names are its own.
class GraphReader final : public ArgumentContext {
 public:
  GraphReader(
      const ProgramOrigin& origin,
      c10::DeviceType exported_for,
      Graph& graph)
      : origin_(origin),
        exported_for_(exported_for),
        graph_(graph) {}

  void read_signature(const Json& signature, const Json& tensors) {
    for (const auto& spec : signature.at("input_specs")) {
      read_input(spec.begin().key(), spec.begin().value(), tensors);
    }
  }

  void read_nodes(const Json& nodes) {
    for (const auto& call : nodes) {
      call_ = &call;
      read_call(call);
    }
    call_ = nullptr;
  }

  void read_outputs(const Json& signature) {
    for (const auto& spec : signature.at("output_specs")) {
      read_output(spec.begin().key(), spec.begin().value());
    }
  }

  Slot find(const std::string& name) const override {
    const auto found = names_.find(name);
    if (found == names_.end()) {
      refuse_program(origin_, c10::str("nothing gives the value ", name));
    }
    return found->second;
  }

  c10::Device device() const override {
    return origin_.device;
  }

  c10::DeviceType exported_for() const override {
    return exported_for_;
  }

 private:
  void throw_of(const std::string& what) const override {
    if (call_ == nullptr) {
      refuse_program(origin_, "it has " + what);
    }
    refuse_call(origin_, *call_, "it has " + what);
  }

  Slot define(const std::string& name) {
    const auto slot = graph_.num_slots++;
    names_[name] = slot;
    return slot;
  }

  Operand operand(const Json& argument, const c10::TypePtr& type) const {
    return read_operand(argument, type, *this);
  }

  // --- inputs and outputs ----------------------------------------------------

  void
  read_input(const std::string& kind, const Json& spec, const Json& tensors) {
    if (auto named = detail::read_input(kind, spec, tensors, origin_)) {
      named->input.slot = define(named->value);
      graph_.inputs.push_back(std::move(named->input));
    }
  }

  void read_output(const std::string& kind, const Json& spec) {
    if (kind == "user_output") {
      graph_.outputs.push_back(operand(spec.at("arg"), c10::AnyType::get()));
    } else if (kind == "loss_output") {
      graph_.outputs.emplace_back(
          ValueOperand{find(spec.at("arg").at("name"))});
    } else if (kind == "buffer_mutation") {
      add_mutation(spec, InputKind::kBuffer, "buffer_name");
    } else if (kind == "parameter_mutation") {
      add_mutation(spec, InputKind::kParameter, "parameter_name");
    } else if (kind == "user_input_mutation") {
      add_mutation(spec, InputKind::kUser, "user_input_name");
    } else {
      refuse_program(origin_, c10::str("it has an output of kind ", kind));
    }
  }

  void add_mutation(const Json& spec, InputKind kind, const char* key) {
    const auto& name = spec.at(key).get_ref<const std::string&>();
    const auto input = std::find_if(
        graph_.inputs.begin(), graph_.inputs.end(), [&](const auto& i) {
          return i.kind == kind && i.name == name;
        });
    if (input == graph_.inputs.end()) {
      refuse_program(
          origin_, c10::str("it writes to ", name, ", which is no input"));
    }
    graph_.mutations.push_back(
        {static_cast<size_t>(input - graph_.inputs.begin()),
         find(spec.at("arg").at("name"))});
  }

  // --- calls -----------------------------------------------------------------

  void read_call(const Json& call) {
    const auto& target = call.at("target").get_ref<const std::string&>();
    if (target == kAssertMetadata) {
      if (graph_.casts) {
        read_dtype_check(call);
      }
      return;
    }
    if (const auto scoped = scoped_graph(call, *this)) {
      read_scope(call, *scoped);
      return;
    }
    auto node = node_of(call);
    if (const auto function = scalar_function(target)) {
      node.call = function;
      for (const auto& input : call.at("inputs")) {
        node.args.push_back(operand(input.at("arg"), c10::AnyType::get()));
      }
    } else {
      read_operator(call, target, node);
    }
    read_results(call, node);
    graph_.nodes.push_back(std::move(node));
  }

  void read_dtype_check(const Json& call) {
    auto node = node_of(call);
    node.call = check_dtype;
    node.args.resize(2);
    for (const auto& input : call.at("inputs")) {
      const auto& name = input.at("name").get_ref<const std::string&>();
      if (name == "a" || name == "dtype") {
        node.args[name == "a" ? 0 : 1] =
            operand(input.at("arg"), c10::AnyType::get());
      }
    }
    node.results.emplace_back();
    graph_.nodes.push_back(std::move(node));
  }

  static GraphNode node_of(const Json& call) {
    const auto& metadata = call.at("metadata");
    GraphNode node;
    node.target = call.at("target");
    if (const auto name = call.find("name");
        name != call.end() && name->is_string()) {
      node.name = *name;
    }
    node.module = innermost_module(metadata.value("nn_module_stack", ""));
    node.source = source_line(metadata.value("stack_trace", ""));
    return node;
  }

  void
  read_operator(const Json& call, const std::string& target, GraphNode& node) {
    if (target.starts_with(kHigherOrder)) {
      refuse_call(
          origin_,
          call,
          "it takes graphs as arguments. Export the model without it, or with "
          "its branches as models of their own");
    }
    const auto name = operator_name(target);
    if (!name) {
      refuse_call(
          origin_, call, "it is no operator of LibTorch or of a library");
    }
    const auto op = c10::Dispatcher::singleton().findSchema(*name);
    if (!op) {
      refuse_call(
          origin_,
          call,
          "there is no such operator. Load the library that registers it, or "
          "use the LibTorch that the program was exported with");
    }
    node.target = name->name;
    node.call = *op;
    node.is_random = op->hasTag(at::Tag::nondeterministic_seeded);
    read_arguments(call, op->schema(), node);
  }

  void read_arguments(
      const Json& call,
      const c10::FunctionSchema& schema,
      GraphNode& node) {
    std::map<std::string, const Json*> given;
    for (const auto& input : call.at("inputs")) {
      given[input.at("name")] = &input.at("arg");
    }
    for (const auto& argument : schema.arguments()) {
      const auto found = given.find(argument.name());
      if (found != given.end()) {
        node.args.push_back(operand(*found->second, argument.type()));
        given.erase(found);
      } else if (argument.default_value()) {
        node.args.emplace_back(*argument.default_value());
      } else if (argument.type()->kind() == c10::TypeKind::OptionalType) {
        node.args.emplace_back(c10::IValue());
      } else {
        refuse("no argument " + argument.name());
      }
    }
    if (!given.empty()) {
      refuse(
          "an argument " + given.begin()->first +
          ", which this LibTorch's operator does not take");
    }
  }

  void read_results(const Json& call, GraphNode& node) {
    for (const auto& output : call.at("outputs")) {
      const auto& kind = output.begin().key();
      const auto& value = output.begin().value();
      Result result;
      if (kind == "as_tensors") {
        result.is_list = true;
        for (const auto& item : value) {
          result.slots.emplace_back(define(item.at("name")));
        }
      } else if (kind == "as_tensor") {
        result.slots = {define(value.at("name"))};
      } else if (kind.starts_with("as_sym_")) {
        result.slots = {define(value.at("as_name"))};
      } else if (kind == "as_none") {
        result.slots = {std::nullopt};
      } else {
        refuse("a result of kind " + kind);
      }
      node.results.push_back(std::move(result));
    }
  }

  // (..., graph, inputs...) -> outputs of the graph
  void read_scope(const Json& call, const ScopedGraph& scoped) {
    const auto& inputs = call.at("inputs");
    const auto& graph =
        inputs.at(scoped.graph).at("arg").at("as_graph").at("graph");
    GraphReader inner(origin_, exported_for_, graph_);
    for (size_t i = 0; i < graph.at("inputs").size(); ++i) {
      inner.names_[value_name(graph.at("inputs").at(i))] =
          find(value_name(inputs.at(scoped.graph + 1 + i).at("arg")));
    }
    auto begin = node_of(call);
    auto end = begin;
    std::visit([&](const auto& mode) { begin.call = mode; }, scoped.begin);
    graph_.casts |= std::holds_alternative<BeginAutocast>(scoped.begin);
    graph_.nodes.push_back(std::move(begin));
    inner.read_nodes(graph.at("nodes"));
    graph_.nodes.push_back(std::move(end));
    std::vector<std::string> names;
    for (const auto& output : call.at("outputs")) {
      if (const auto list = output.find("as_tensors"); list != output.end()) {
        for (const auto& item : *list) {
          names.push_back(item.at("name"));
        }
      } else {
        names.push_back(value_name(output));
      }
    }
    for (size_t i = 0; i < names.size(); ++i) {
      names_[names[i]] = inner.find(value_name(graph.at("outputs").at(i)));
    }
  }

  static std::string value_name(const Json& value) {
    const auto& about = value.begin().value();
    return about.contains("name") ? about.at("name") : about.at("as_name");
  }

  const ProgramOrigin& origin_;
  c10::DeviceType exported_for_;
  const Json* call_ = nullptr; // that is read
  Graph& graph_;
  std::map<std::string, Slot> names_;
};

void read_symbols(const Json& ranges, Graph& graph) {
  for (const auto& [symbol, range] : ranges.items()) {
    SymbolRange limits;
    if (range.at("min_val").is_number_integer()) {
      limits.least = range.at("min_val");
    }
    if (range.at("max_val").is_number_integer()) {
      limits.most = range.at("max_val").get<int64_t>();
    }
    graph.symbols.emplace_back(symbol, limits);
  }
}

} // namespace

Graph read_graph(const std::string& json, const ProgramOrigin& origin) {
  const auto program = Json::parse(json, nullptr, false);
  if (!program.is_object()) {
    refuse_program(origin, "the graph is no JSON object");
  }
  try {
    const auto& version = program.at("schema_version");
    const auto major = version.at("major").get<int64_t>();
    if (major != kSchemaMajor) {
      refuse_program(
          origin,
          c10::str(
              "its format is of version ",
              major,
              ".",
              version.at("minor").get<int64_t>(),
              ", and this library reads ",
              kSchemaMajor,
              ".x"));
    }
    const auto& module = program.at("graph_module");
    const auto& signature = module.at("signature");
    Graph graph;
    const auto& tensors = module.at("graph").at("tensor_values");
    GraphReader reader(origin, device_in(tensors, origin.device.type()), graph);
    reader.read_signature(signature, tensors);
    reader.read_nodes(module.at("graph").at("nodes"));
    reader.read_outputs(signature);
    graph.output_names = output_names(module, graph.outputs.size());
    read_symbols(program.at("range_constraints"), graph);
    find_uses(graph);
    find_writes(graph);
    return graph;
  } catch (const Json::exception& error) {
    refuse_program(origin, error.what());
  }
}

} // namespace dtensor::detail
