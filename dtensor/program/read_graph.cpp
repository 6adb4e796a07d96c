// SPDX-License-Identifier: BSD-3-Clause
// Reads the inputs and outputs of a graph. read_calls.cpp reads its calls.
#include <dtensor/program/read_graph_impl.h>

#include <ATen/core/jit_type.h>
#include <dtensor/error.h>
#include <dtensor/shortened_impl.h>

#include <sstream>
#include <string_view>
#include <utility>

namespace dtensor::detail {
namespace {

constexpr int64_t kSchemaMajor = 8;
constexpr const char* kAdvice =
    "Write it with torch.export.save() of PyTorch 2.8 or newer";

// Returns the device of the graph's values. torch.export requires a single
// device.
c10::DeviceType device_in(JsonView tensors, c10::DeviceType otherwise) {
  const auto all = tensors.members();
  return all.empty() ? otherwise
                     : read_device(all[0].value.at("device").at("type")).type();
}

void read_symbols(JsonView ranges, Graph& graph) {
  for (const auto& [symbol, range] : ranges.members()) {
    SymbolRange limits;
    if (const auto least = range.at("min_val"); least.is_integer()) {
      limits.least = least.integer();
    }
    if (const auto most = range.at("max_val"); most.is_integer()) {
      limits.most = most.integer();
    }
    graph.symbols.emplace(symbol, limits);
  }
}

void check_version(JsonView version, const ProgramOrigin& origin) {
  const auto major = version.at("major").integer();
  if (major != kSchemaMajor) {
    refuse_program(
        origin,
        detail::format_text(
            "its format version is {}.{}, but this library reads {}.x",
            major,
            version.at("minor").integer(),
            kSchemaMajor));
  }
}

Graph read_program(JsonView program, const ProgramOrigin& origin) {
  check_version(program.at("schema_version"), origin);
  const auto module = program.at("graph_module");
  const auto signature = module.at("signature");
  const auto graph_text = module.at("graph");
  const auto tensors = graph_text.at("tensor_values");
  Graph graph;
  GraphReader reader(
      origin, device_in(tensors, origin.device.type()), tensors, graph);
  reader.read_signature(signature);
  reader.read_nodes(graph_text.at("nodes"));
  reader.read_outputs(signature);
  graph.output_names = output_names(module, graph.outputs.size(), origin);
  read_symbols(program.at("range_constraints"), graph);
  find_linears(graph);
  find_uses(graph);
  find_writes(graph);
  return graph;
}

} // namespace

c10::Device read_device(JsonView name) {
  try {
    return c10::Device(name.text());
  } catch (const c10::ValueError&) {
    throw; // the name is not a text
  } catch (const c10::Error&) {
    name.refuse("expected a device, got " + name.description());
  }
}

void refuse_program(const ProgramOrigin& origin, const std::string& why) {
  DTENSOR_THROW_VALUE(
      "[load_program] {} is not a readable exported program: {}. {}.",
      origin.path,
      why,
      kAdvice);
}

// --- inputs and outputs ------------------------------------------------------

void GraphReader::read_signature(JsonView signature) {
  for (const auto& spec : signature.at("input_specs").elements()) {
    auto named = read_input(spec, *tensors_, origin_);
    if (!named) {
      continue;
    }
    auto& input = named->input;
    if (!inputs_.emplace(input.name, graph_.inputs.size()).second) {
      spec.refuse("duplicate input " + quoted_json(input.name));
    }
    input.slot = define(
        named->value,
        input.is_tensor ? ValueKind::kTensor : ValueKind::kNumber);
    graph_.inputs.push_back(std::move(input));
  }
}

void GraphReader::read_outputs(JsonView signature) {
  for (const auto& spec : signature.at("output_specs").elements()) {
    const auto [kind, about] = spec.only_member();
    read_output(kind, about);
  }
}

void GraphReader::read_output(const std::string& kind, JsonView spec) {
  if (kind == "user_output") {
    graph_.outputs.push_back(
        read_operand(spec.at("arg"), c10::AnyType::get(), *this));
  } else if (kind == "loss_output") {
    graph_.outputs.emplace_back(
        ValueOperand{find(spec.at("arg").at("name"), ValueKind::kTensor)});
  } else if (kind == "buffer_mutation") {
    add_mutation(spec, InputKind::kBuffer, "buffer_name");
  } else if (kind == "parameter_mutation") {
    add_mutation(spec, InputKind::kParameter, "parameter_name");
  } else if (kind == "user_input_mutation") {
    add_mutation(spec, InputKind::kUser, "user_input_name");
  } else {
    refuse_program(
        origin_, "it has an output of unsupported kind " + quoted_json(kind));
  }
}

void GraphReader::add_mutation(JsonView spec, InputKind kind, const char* key) {
  const auto name = spec.at(key);
  const auto found = inputs_.find(name.text());
  if (found == inputs_.end() || graph_.inputs[found->second].kind != kind ||
      !graph_.inputs[found->second].is_tensor) {
    name.refuse("the graph writes to it, but it is not an input");
  }
  graph_.mutations.push_back(
      {found->second, find(spec.at("arg").at("name"), ValueKind::kTensor)});
}

Slot GraphReader::define(const std::string& name, ValueKind kind) {
  const auto slot = graph_.num_slots++;
  values_[name] = {slot, kind};
  const auto about = kind == ValueKind::kTensor && tensors_
      ? tensors_->find(name)
      : std::nullopt;
  if (auto meta = about ? read_meta(*about) : std::nullopt) {
    graph_.metas.emplace(slot, *std::move(meta));
  }
  return slot;
}

Slot GraphReader::find(JsonView name, ValueKind kind) const {
  const auto found = values_.find(name.text());
  if (found == values_.end()) {
    name.refuse(
        "no input or node defines the value " + quoted_json(name.text()));
  }
  if (found->second.kind != kind) {
    name.refuse(
        "expected a {}, but {} is a {}",
        kind == ValueKind::kTensor ? "tensor" : "number",
        quoted_json(name.text()),
        kind == ValueKind::kTensor ? "number" : "tensor");
  }
  return found->second.slot;
}

// --- read_graph --------------------------------------------------------------

Graph read_graph(const std::string& json, const ProgramOrigin& origin) {
  const JsonDocument document(
      json, {"load_program", origin.path, origin.part, kAdvice});
  return read_program(document.root(), origin);
}

void find_uses(Graph& graph) {
  std::vector<bool> seen(graph.num_slots, false);
  const auto keep = [&](Slot slot) { seen[slot] = true; };
  for (const auto& output : graph.outputs) {
    visit_slots(output, keep);
  }
  for (const auto& mutation : graph.mutations) {
    keep(mutation.value);
    keep(graph.inputs[mutation.input].slot);
  }
  for (auto node = graph.nodes.rbegin(); node != graph.nodes.rend(); ++node) {
    const auto use = [&](Slot slot) {
      if (!seen[slot]) {
        seen[slot] = true;
        node->last_uses.push_back(slot);
      }
    };
    visit_results(*node, use);
    for (const auto& arg : node->args) {
      visit_slots(arg, use);
    }
  }
  graph.uses.assign(graph.num_slots, {});
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const auto& args = graph.nodes[i].args;
    for (size_t arg = 0; arg < args.size(); ++arg) {
      if (const auto* value = std::get_if<ValueOperand>(&args[arg])) {
        graph.uses[value->slot].push_back({i, arg});
      }
    }
  }
}

// --- names and expressions in the notation of exported programs --------------

std::optional<c10::OperatorName> operator_name(const std::string& target) {
  constexpr std::string_view kOperators = "torch.ops.";
  if (!target.starts_with(kOperators)) {
    return std::nullopt;
  }
  const auto rest = target.substr(kOperators.size());
  const auto first = rest.find('.');
  const auto last = rest.rfind('.');
  if (first == std::string::npos || first == last) {
    return std::nullopt;
  }
  const auto overload = rest.substr(last + 1);
  return c10::OperatorName(
      rest.substr(0, first) + "::" + rest.substr(first + 1, last - first - 1),
      overload == "default" ? "" : overload);
}

std::string symbol_of(const std::string& expression) {
  constexpr std::string_view kBegin = "Symbol('";
  const auto end = expression.find('\'', kBegin.size());
  const bool is_symbol = expression.starts_with(kBegin) &&
      end != std::string::npos && expression.find(')') + 1 == expression.size();
  return is_symbol ? expression.substr(kBegin.size(), end - kBegin.size())
                   : expression;
}

std::string innermost_module(const std::string& stack) {
  const auto entry = stack.substr(stack.rfind(';') + 1);
  const auto begin = entry.find(',');
  const auto end = entry.find(',', begin + 1);
  return begin == std::string::npos || end == std::string::npos
      ? ""
      : entry.substr(begin + 1, end - begin - 1);
}

namespace {

constexpr std::string_view kFile = "File \"";

// `  File "model.py", line 12, in forward` -> model.py:12
std::string place_of(const std::string& line) {
  const auto begin = line.find(kFile) + kFile.size();
  const auto end = line.find('"', begin);
  constexpr std::string_view kLine = ", line ";
  const auto number = line.find(kLine, end);
  if (end == std::string::npos || number == std::string::npos) {
    return "";
  }
  const auto from = number + kLine.size();
  return line.substr(begin, end - begin) + ":" +
      line.substr(from, line.find(',', from) - from);
}

std::string trimmed(const std::string& text) {
  const auto begin = text.find_first_not_of(' ');
  return begin == std::string::npos ? "" : text.substr(begin);
}

} // namespace

std::string source_line(const std::string& stack_trace) {
  std::istringstream lines(stack_trace);
  std::string found;
  std::string line;
  bool is_ours = false; // of the place before this line
  while (std::getline(lines, line)) {
    if (line.find(kFile) != std::string::npos) {
      const auto place = place_of(line);
      is_ours = !place.starts_with("torch/") && !place.starts_with('<') &&
          place.find("/torch/") == std::string::npos;
      found = is_ours || found.empty() ? place : found;
    } else if (is_ours) {
      found += ": " + trimmed(line);
      is_ours = false;
    }
  }
  return found.empty() ? "" : " at " + shortened(found);
}

} // namespace dtensor::detail
