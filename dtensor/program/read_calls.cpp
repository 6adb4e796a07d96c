// SPDX-License-Identifier: BSD-3-Clause
// Reads the calls of a graph.
#include <dtensor/program/read_graph_impl.h>

#include <ATen/core/enum_tag.h>
#include <ATen/core/jit_type.h>
#include <c10/core/Device.h>
#include <dtensor/error.h>
#include <dtensor/program/allowed_operators.h>
#include <dtensor/weights/weight_format_impl.h>

#include <algorithm>
#include <string_view>
#include <utility>

namespace dtensor::detail {
namespace {

constexpr std::string_view kHigherOrder = "torch.ops.higher_order.";
// An assertion of dtypes, which is not read because the adjacent calls imply
// it. Only programs with autocast scopes have a use for this assertion: under
// strict=True, torch.export may record other dtypes than the program has.
constexpr std::string_view kAssertMetadata =
    "torch.ops.aten._assert_tensor_metadata.default";

// Higher-order operators that only run a graph in a scope: torch.no_grad() and
// torch.autocast().
constexpr std::string_view kGradScope =
    "torch.ops.higher_order.wrap_with_set_grad_enabled";
constexpr std::string_view kAutocastScope =
    "torch.ops.higher_order.wrap_with_autocast";

// Returns the text of a member, or an empty text if the member is missing.
std::string text_or_empty(JsonView object, const char* key) {
  const auto found = object.find(key);
  return found && found->is_text() ? found->text() : "";
}

// Returns nothing for {"as_none": ...}.
std::optional<JsonView> value_in(JsonView arg, const char* kind) {
  return arg.find("as_none") ? std::nullopt : std::optional(arg.at(kind));
}

// Returns the name of a tensor or a number.
const std::string& name_in(JsonView about) {
  const auto name = about.find("name");
  return name ? name->text() : about.at("as_name").text();
}

std::string source_of(JsonView call) {
  return source_line(text_or_empty(call.at("metadata"), "stack_trace"));
}

GraphNode node_of(JsonView call) {
  const auto metadata = call.at("metadata");
  GraphNode node;
  node.target = call.at("target").text();
  node.module = innermost_module(text_or_empty(metadata, "nn_module_stack"));
  node.source = source_of(call);
  return node;
}

bool is_list_of_tensors(const c10::Type* type) {
  const auto* list = type == nullptr ? nullptr : type->castRaw<c10::ListType>();
  return list != nullptr &&
      list->getElementType()->kind() == c10::TypeKind::TensorType;
}

// Returns true if `allowed` has the operator's name ("torchvision::nms") or its
// namespace ("torchvision::*").
bool is_named_in(
    const std::vector<std::string>& allowed,
    const std::string& operator_name) {
  const auto colons = operator_name.find("::");
  const auto all = operator_name.substr(0, colons) + "::*";
  return std::ranges::any_of(allowed, [&](const std::string& item) {
    return item == operator_name || item == all;
  });
}

// Throws NotImplementedError with the call's line in the Python source.
[[noreturn]] void refuse_call(
    const ProgramOrigin& origin,
    JsonView call,
    const std::string& why) {
  DTENSOR_THROW_NOT_IMPLEMENTED(
      "[load_program] {}: {}{} cannot be run: {}.",
      origin.path,
      shown_name(call.at("target").text()),
      source_of(call),
      why);
}

} // namespace

void GraphReader::refuse(const std::string& what) const {
  if (!call_) {
    refuse_program(origin_, "it has " + what);
  }
  refuse_call(origin_, *call_, "it has " + what);
}

void GraphReader::read_nodes(JsonView nodes) {
  for (const auto& call : nodes.elements()) {
    call_ = call;
    read_call(call);
  }
  call_.reset();
}

void GraphReader::read_call(JsonView call) {
  const auto& target = call.at("target").text();
  if (target == kAssertMetadata) {
    if (graph_.casts) {
      read_dtype_check(call);
    }
    return;
  }
  if (target == kGradScope) {
    const auto enabled = call.at("inputs").at(0).at("arg").at("as_bool");
    read_scope(call, BeginGradMode{enabled.boolean()}, 1);
    return;
  }
  if (target == kAutocastScope) {
    const auto mode = read_autocast(call.at("inputs"));
    graph_.casts = true;
    read_scope(call, mode, 4);
    return;
  }
  auto node = node_of(call);
  if (const auto* signature = scalar_function(target)) {
    read_scalar_call(call, *signature, node);
  } else {
    read_operator(call, target, node);
  }
  graph_.nodes.push_back(std::move(node));
}

void GraphReader::read_scalar_call(
    JsonView call,
    const ScalarSignature& signature,
    GraphNode& node) {
  node.call = signature.function;
  const auto inputs = call.at("inputs").elements();
  if (inputs.size() != signature.args.size()) {
    refuse(detail::format_text(
        "{}, but takes {}",
        pluralize(inputs.size(), "argument"),
        signature.args.size()));
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    const c10::TypePtr type = signature.args[i] == 't'
        ? c10::TypePtr(c10::TensorType::get())
        : c10::TypePtr(c10::NumberType::get());
    node.args.push_back(read_operand(inputs[i].at("arg"), type, *this));
  }
  read_results(call, nullptr, node);
}

void GraphReader::read_dtype_check(JsonView call) {
  auto node = node_of(call);
  node.call = check_dtype;
  node.args.resize(2);
  bool has_tensor = false;
  for (const auto& input : call.at("inputs").elements()) {
    const auto& name = input.at("name").text();
    if (name == "a") {
      node.args[0] =
          read_operand(input.at("arg"), c10::TensorType::get(), *this);
      has_tensor = true;
    } else if (name == "dtype") {
      node.args[1] = read_operand(input.at("arg"), c10::AnyType::get(), *this);
    }
  }
  if (!has_tensor) {
    refuse("no argument a");
  }
  node.results.emplace_back();
  graph_.nodes.push_back(std::move(node));
}

c10::OperatorHandle GraphReader::operator_of(const std::string& target) const {
  if (target.starts_with(kHigherOrder)) {
    refuse_call(
        origin_,
        *call_,
        "it takes graphs as arguments, which is not supported. Export the "
        "model without it, or export its branches as separate models");
  }
  const auto name = operator_name(target);
  if (!name) {
    refuse_call(origin_, *call_, "it is not a registered operator");
  }
  const auto op = c10::Dispatcher::singleton().findSchema(*name);
  if (!op) {
    refuse_call(
        origin_,
        *call_,
        "no such operator is registered. Load the library that registers it, "
        "or use the LibTorch that the program was exported with");
  }
  if (!only_computes(op->schema()) &&
      !is_named_in(origin_.allowed_operators, name->name)) {
    refuse_call(
        origin_,
        *call_,
        detail::format_text(
            "{} is not on the list of operators without side effects. If you "
            "trust the file, allow it: LoadProgramOptions{{.allowed_operators "
            "= {{\"{}\"}}}}",
            name->name,
            name->name));
  }
  return *op;
}

void GraphReader::read_operator(
    JsonView call,
    const std::string& target,
    GraphNode& node) {
  const auto op = operator_of(target);
  node.target = op.schema().name();
  node.call = op;
  node.check = argument_check(op.schema());
  node.is_random = op.hasTag(at::Tag::nondeterministic_seeded);
  read_arguments(call, op.schema(), node);
  read_results(call, &op.schema().returns(), node);
}

void GraphReader::read_arguments(
    JsonView call,
    const c10::FunctionSchema& schema,
    GraphNode& node) {
  std::map<std::string, JsonView> given;
  for (const auto& input : call.at("inputs").elements()) {
    const auto name = input.at("name");
    if (!given.emplace(name.text(), input.at("arg")).second) {
      name.refuse("duplicate argument " + shown_name(name.text()));
    }
  }
  for (const auto& argument : schema.arguments()) {
    const auto found = given.find(argument.name());
    if (found != given.end()) {
      node.args.push_back(
          read_operand(found->second, argument.real_type(), *this));
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
        "an argument " + shown_name(given.begin()->first) +
        ", which this LibTorch's operator does not take");
  }
}

void GraphReader::read_results(
    JsonView call,
    const std::vector<c10::Argument>* returns,
    GraphNode& node) {
  const auto outputs = call.at("outputs").elements();
  const auto most = returns == nullptr ? 1 : returns->size();
  const bool is_one_number = returns == nullptr && outputs.size() != 1;
  if (outputs.size() > most || is_one_number) {
    refuse(detail::format_text(
        "{}, but returns {}", pluralize(outputs.size(), "result"), most));
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    const auto* type =
        returns == nullptr ? nullptr : (*returns)[i].type().get();
    node.results.push_back(read_result(outputs[i].only_member(), type));
  }
}

Result GraphReader::read_result(
    const JsonMember& output,
    const c10::Type* type) {
  const auto& [kind, value] = output;
  const bool is_tensor =
      type != nullptr && type->kind() == c10::TypeKind::TensorType;
  if (kind == "as_tensors" && is_list_of_tensors(type)) {
    Result result{true, {}};
    for (const auto& item : value.elements()) {
      result.slots.emplace_back(
          define(item.at("name").text(), ValueKind::kTensor));
    }
    return result;
  }
  if (kind == "as_tensor" && is_tensor) {
    return {false, {define(value.at("name").text(), ValueKind::kTensor)}};
  }
  if (kind.starts_with("as_sym_") &&
      (type == nullptr || is_number(type->kind()))) {
    return {false, {define(value.at("as_name").text(), ValueKind::kNumber)}};
  }
  if (kind == "as_none") {
    return {false, {std::nullopt}};
  }
  refuse("a result of unsupported kind " + shown_name(kind));
}

// --- scopes ------------------------------------------------------------------

const GraphReader::Value& GraphReader::value_of(JsonView operand) const {
  const auto& text = name_in(operand.only_member().value);
  const auto found = values_.find(text);
  if (found == values_.end()) {
    operand.refuse("no input or node defines the value " + quoted_json(text));
  }
  return found->second;
}

at::ScalarType GraphReader::dtype_of(JsonView number) const {
  const auto* format = exported_format(number.integer());
  if (format == nullptr) {
    refuse("an unknown dtype number " + number.description());
  }
  return format->dtype;
}

// (str device, dtype?, bool enabled, bool? cache_enabled, graph, inputs...)
BeginAutocast GraphReader::read_autocast(JsonView inputs) const {
  const auto arg = [&](size_t i) { return inputs.at(i).at("arg"); };
  BeginAutocast mode;
  mode.device = read_device(arg(0).at("as_string")).type();
  if (mode.device == exported_for_) {
    mode.device = device().type(); // moved like its tensors
  }
  if (const auto number = value_in(arg(1), "as_scalar_type")) {
    mode.dtype = dtype_of(*number);
  }
  // Other types are ignored, as by torch.autocast(), which warns.
  const bool is_low =
      !mode.dtype || *mode.dtype == c10::kHalf || *mode.dtype == c10::kBFloat16;
  mode.enabled = arg(2).at("as_bool").boolean() && is_low;
  if (const auto caches = value_in(arg(3), "as_bool")) {
    mode.caches = caches->boolean();
  }
  return mode;
}

// (..., graph, inputs...) -> outputs of the graph
template <class Mode>
void GraphReader::read_scope(JsonView call, const Mode& mode, size_t first) {
  const auto inputs = call.at("inputs");
  const auto graph = inputs.at(first).at("arg").at("as_graph").at("graph");
  GraphReader inner(
      origin_, exported_for_, graph.find("tensor_values"), graph_);
  const auto names = graph.at("inputs").elements();
  for (size_t i = 0; i < names.size(); ++i) {
    inner.values_[name_in(names[i].only_member().value)] =
        value_of(inputs.at(first + 1 + i).at("arg"));
  }
  auto begin = node_of(call);
  auto end = begin;
  begin.call = mode;
  graph_.nodes.push_back(std::move(begin));
  inner.read_nodes(graph.at("nodes"));
  graph_.nodes.push_back(std::move(end));
  size_t next = 0;
  const auto give = [&](JsonView about) {
    values_[name_in(about)] = inner.value_of(graph.at("outputs").at(next++));
  };
  for (const auto& output : call.at("outputs").elements()) {
    const auto [kind, about] = output.only_member();
    if (kind == "as_tensors") {
      for (const auto& item : about.elements()) {
        give(item);
      }
    } else {
      give(about);
    }
  }
}

} // namespace dtensor::detail
