// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/program/tp_transform.h>

#include <dtensor/error.h>
#include <dtensor/program/find_pairs_impl.h>
#include <dtensor/program/operator_graph.h>

#include <ATen/core/enum_tag.h>
#include <ATen/core/jit_type.h>
#include <c10/util/StringUtil.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <string_view>
#include <unordered_set>
#include <utility>

namespace dtensor::detail {
namespace {

// Replaces numbers: "layers.0.fc" -> "layers.*.fc".
std::string without_numbers(const std::string& name) {
  std::string pattern;
  for (const auto part : c10::split(name, '.')) {
    const bool is_number =
        part.find_first_not_of("0123456789") == std::string_view::npos;
    pattern += (pattern.empty() ? "" : ".") +
        (is_number ? std::string("*") : std::string(part));
  }
  return pattern;
}

// Calls find_pairs() and merges lines that are equal in all layers of `root`,
// where numbers stand for layers: "layers.*.fc" for "layers.0.fc" and
// "layers.1.fc".
std::vector<PlanEntryText> find_plan(
    const ProgramState& state,
    const torch::nn::Module& root) {
  const auto lines = find_pairs(state, root);
  std::vector<std::string> names;
  for (const auto& item : root.named_modules("", false)) {
    names.push_back(item.key());
  }
  const auto count = [](const auto& all, const auto& is_one) {
    return std::ranges::count_if(all, is_one);
  };
  std::vector<PlanEntryText> result;
  for (const auto& line : lines) {
    const PlanEntryText merged{without_numbers(line.pattern), line.style};
    const auto alike = count(lines, [&](const auto& other) {
      return other.style == merged.style &&
          without_numbers(other.pattern) == merged.pattern;
    });
    const auto matching = count(names, [&](const auto& name) {
      return without_numbers(name) == merged.pattern;
    });
    const auto& entry = alike > 1 && alike == matching ? merged : line;
    if (std::ranges::find(result, entry) == result.end()) {
      result.push_back(entry);
    }
  }
  return result;
}

bool is_list(const c10::Type& type) {
  return type.castRaw<c10::ListType>() != nullptr;
}

// Returns the kind of a list argument that holds tensors.
std::optional<ListOf> list_of(const c10::TypePtr& type) {
  const auto* list = type->castRaw<c10::ListType>();
  if (list == nullptr) {
    return std::nullopt;
  }
  const auto& element = *list->getElementType();
  return element.kind() == c10::TypeKind::TensorType
      ? std::optional(ListOf::kTensor)
      : element.isSubtypeOf(*c10::OptionalType::ofTensor())
      ? std::optional(ListOf::kOptionalTensor)
      : std::nullopt;
}

// Converts a described graph to the graph that the search reads.
class GraphConverter {
 public:
  GraphConverter(const OperatorGraph& from, const torch::nn::Module& model)
      : from_(from),
        is_defined_(from.num_values, false) {
    state_.path = "the graph";
    state_.graph.num_slots = from.num_values;
    for (const auto& parameter : model.parameters()) {
      parameters_.insert(parameter.unsafeGetTensorImpl());
    }
  }

  ProgramState convert() {
    for (const auto& [value, tensor] : from_.inputs) {
      GraphInput input;
      input.kind = parameters_.count(tensor.unsafeGetTensorImpl()) > 0
          ? InputKind::kParameter
          : InputKind::kUser;
      input.slot = defined(value);
      state_.graph.inputs.push_back(std::move(input));
      state_.inputs.push_back(tensor);
    }
    for (at_ = 0; at_ < from_.calls.size(); ++at_) {
      add(from_.calls[at_]);
    }
    for (const auto& value : from_.outputs) {
      state_.graph.outputs.emplace_back(ValueOperand{used(value)});
    }
    return std::move(state_);
  }

 private:
  std::string where() const {
    return at_ == from_.calls.size()
        ? "the list of outputs"
        : format_text(
              "call {} ({})",
              at_,
              from_.calls[at_].op ? from_.calls[at_].op->schema().name()
                                  : "without an operator");
  }

  Slot used(OperatorGraph::Value value) const {
    DTENSOR_CHECK_VALUE(
        value.index < is_defined_.size() && is_defined_[value.index],
        "[find_tp_plan] {} of the graph uses value {}, which no input and no "
        "earlier call defines. Define it first.",
        where(),
        value.index);
    return value.index;
  }

  Slot defined(OperatorGraph::Value value) {
    DTENSOR_CHECK_VALUE(
        value.index < is_defined_.size() && !is_defined_[value.index],
        "[find_tp_plan] value {} of the graph is defined twice, or is not one "
        "of its values (there are {}). Make each with new_value().",
        value.index,
        is_defined_.size());
    is_defined_[value.index] = true;
    return value.index;
  }

  void add(const OperatorGraph::Call& call) {
    GraphNode node;
    node.module = call.module;
    if (call.op) {
      const auto& schema = call.op->schema();
      DTENSOR_CHECK_VALUE(
          call.args.size() == schema.arguments().size() &&
              call.results.size() == schema.returns().size(),
          "[find_tp_plan] {} of the graph has {} and {}, but the operator has "
          "{} and {}. Pass all, including defaults.",
          where(),
          pluralize(call.args.size(), "argument"),
          pluralize(call.results.size(), "result"),
          schema.arguments().size(),
          schema.returns().size());
      node.target = schema.name();
      node.call = *call.op;
      node.is_random = call.op->hasTag(at::Tag::nondeterministic_seeded);
    } else {
      node.call = Unread{};
    }
    add_operands(call, node);
    state_.graph.nodes.push_back(std::move(node));
  }

  void add_operands(const OperatorGraph::Call& call, GraphNode& node) {
    for (size_t i = 0; i < call.args.size(); ++i) {
      node.args.push_back(operand_of(
          call.args[i],
          call.op ? call.op->schema().arguments()[i].type() : nullptr));
    }
    for (size_t i = 0; i < call.results.size(); ++i) {
      const bool many =
          call.op && is_list(*call.op->schema().returns()[i].type());
      Result result{many, {}};
      for (const auto& value : call.results[i]) {
        result.slots.push_back(
            value ? std::optional(defined(*value)) : std::nullopt);
      }
      node.results.push_back(std::move(result));
    }
  }

  Operand operand_of(
      const OperatorGraph::Argument& argument,
      const c10::TypePtr& type) const {
    if (const auto* constant = std::get_if<c10::IValue>(&argument)) {
      return *constant;
    }
    if (const auto* value = std::get_if<OperatorGraph::Value>(&argument)) {
      return ValueOperand{used(*value)};
    }
    const auto kind = type == nullptr ? ListOf::kTensor : list_of(type);
    DTENSOR_CHECK_VALUE(
        kind.has_value(),
        "[find_tp_plan] {} of the graph has a list of values for an argument "
        "of type {}. Pass a constant.",
        where(),
        type->annotation_str());
    ListOperand list{*kind, {}};
    for (const auto& item :
         std::get<std::vector<OperatorGraph::Item>>(argument)) {
      if (const auto* value = std::get_if<OperatorGraph::Value>(&item)) {
        list.items.emplace_back(used(*value));
      } else {
        list.items.emplace_back(std::get<c10::IValue>(item));
      }
    }
    return list;
  }

  const OperatorGraph& from_;
  std::unordered_set<const void*> parameters_;
  std::vector<bool> is_defined_; // by value
  size_t at_ = 0;                // call that is being converted
  ProgramState state_;
};

} // namespace
} // namespace dtensor::detail

namespace dtensor {

OperatorGraph::Value OperatorGraph::add_input(const at::Tensor& tensor) {
  inputs.push_back({new_value(), tensor});
  return inputs.back().value;
}

OperatorGraph::Value OperatorGraph::add_call(
    const c10::OperatorHandle& op,
    std::vector<Argument> args,
    std::string module) {
  const auto result = new_value();
  calls.push_back({op, std::move(args), {{result}}, std::move(module)});
  return result;
}

std::vector<PlanEntryText> find_tp_plan(const Program& program) {
  const auto& state = state_of(program);
  return detail::find_plan(state, *state.module);
}

std::vector<PlanEntryText> find_tp_plan(
    const OperatorGraph& graph,
    const torch::nn::Module& model) {
  return detail::find_plan(
      detail::GraphConverter(graph, model).convert(), model);
}

std::vector<PlanEntryText> tp_transform(
    Program& program,
    const DeviceMesh& mesh,
    const ParallelizeProgramOptions& options) {
  auto plan = find_tp_plan(program);
  parallelize_program(program, mesh, make_plan(plan), options);
  return plan;
}

} // namespace dtensor
