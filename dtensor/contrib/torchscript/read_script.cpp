// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/contrib/torchscript/read_script_impl.h>

#include <dtensor/program/allowed_operators.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/ir/ir.h>

#include <algorithm>
#include <array>
#include <exception>
#include <map>
#include <set>
#include <string_view>
#include <utility>

namespace dtensor::torchscript {
namespace {

namespace jit = torch::jit;

using c10::IValue;
using Value = OperatorGraph::Value;

// Queries of a tensor whose result is independent of sizes and data.
constexpr std::array<std::string_view, 10> kFixed = {
    "aten::dim",
    "aten::__is__",
    "aten::__isnot__",
    "aten::is_floating_point",
    "aten::is_complex",
    "aten::device",
    "prim::dtype",
    "prim::device",
    "prim::is_cuda",
    "prim::layout"};

std::optional<c10::OperatorHandle> operator_of(const jit::Node& node) {
  const auto* schema = node.maybeSchema();
  return schema == nullptr ? std::nullopt
                           : c10::Dispatcher::singleton().findSchema(
                                 {schema->name(), schema->overload_name()});
}

c10::OperatorHandle linear() {
  return c10::Dispatcher::singleton().findSchemaOrThrow("aten::linear", "");
}

// Sets the device of new tensors to meta.
void make_without_data(const c10::OperatorHandle& op, jit::Stack& stack) {
  const auto& arguments = op.schema().arguments();
  for (size_t i = 0; i < stack.size() && i < arguments.size(); ++i) {
    if (arguments[i].name() == "device") {
      stack[i] = c10::Device(c10::kMeta);
    }
  }
}

// "layers.0.fc.weight" -> "layers.0.fc".
std::string module_of(const std::string& name) {
  const auto dot = name.rfind('.');
  return dot == std::string::npos ? "" : name.substr(0, dot);
}

class Reader {
 public:
  Reader(const jit::Module& script, const std::vector<ModuleTensor>& tensors)
      : script_(script),
        tensors_(read_.graph) {
    for (const auto& held : tensors) {
      tensors_.add_held(held.tensor);
    }
  }

  ReadScript read(const jit::Graph& forward, const ScriptInputs& inputs) {
    find_writes(*forward.block());
    values_[forward.inputs()[0]] = script_._ivalue();
    for (size_t i = 0; i < inputs.size(); ++i) {
      const auto* value = forward.inputs()[i + 1];
      if (inputs[i]) {
        values_[value] = tensors_.add_given(*inputs[i]);
      }
    }
    read_block(*forward.block());
    for (const auto* output : forward.outputs()) {
      if (const auto* value = known(output)) {
        for (const auto one : tensors_.values_in(*value)) {
          read_.graph.outputs.push_back(one);
        }
      }
    }
    return std::move(read_);
  }

 private:
  const IValue* known(const jit::Value* value) const {
    const auto found = values_.find(value);
    return found == values_.end() ? nullptr : &found->second;
  }

  void find_writes(const jit::Block& block) {
    for (const auto* node : block.nodes()) {
      if (kind_of(*node) == "prim::SetAttr") {
        written_.insert(node->s(c10::attr::name));
      }
      for (const auto* inner : node->blocks()) {
        find_writes(*inner);
      }
    }
  }

  void read_block(const jit::Block& block) {
    for (const auto* node : block.nodes()) {
      try {
        if (!read_node(*node)) {
          leave_unread(*node);
        }
      } catch (const std::exception&) {
        leave_unread(*node); // needs data, or throws
      }
    }
  }

  // Returns false if the node cannot be read.
  bool read_node(const jit::Node& node) {
    const auto kind = kind_of(node);
    if (kind == "prim::Constant") {
      return read_constant(node);
    }
    if (kind == "prim::GetAttr") {
      return read_attribute(node);
    }
    if (kind == "prim::If") {
      return read_branch(node);
    }
    jit::Stack stack;
    for (const auto* input : node.inputs()) {
      const auto* value = known(input);
      if (value == nullptr) {
        return false;
      }
      stack.push_back(*value);
    }
    if (!node.blocks().empty() || kind == "prim::SetAttr") {
      return false;
    }
    mark_if_varying(node, stack);
    const auto op = operator_of(node);
    if (op && !only_computes(op->schema())) {
      return false;
    }
    return op ? read_operator(node, *op, std::move(stack))
              : read_function(node, std::move(stack));
  }

  bool read_constant(const jit::Node& node) {
    auto value = jit::toIValue(node.output());
    if (value) {
      values_[node.output()] = *std::move(value);
    }
    return true; // other values are functions, which have been inlined
  }

  bool read_attribute(const jit::Node& node) {
    const auto* object = known(node.input());
    const auto& name = node.s(c10::attr::name);
    if (object == nullptr || !object->isObject() || written_.count(name) > 0) {
      return false;
    }
    const auto value = object->toObjectRef().getAttr(name);
    values_[node.output()] = tensors_.described(
        value.isList() && !value.isTensorList() ? value.deepcopy() : value);
    return true;
  }

  // Follows a branch whose condition depends on attributes and None alone, so
  // that other inputs take the same branch.
  bool read_branch(const jit::Node& node) {
    const auto* condition = known(node.input());
    if (condition == nullptr || varying_.count(node.input()) > 0) {
      return false;
    }
    const auto& block = *node.blocks()[condition->toBool() ? 0 : 1];
    read_block(block);
    for (size_t i = 0; i < node.outputs().size(); ++i) {
      const auto* from = block.outputs()[i];
      if (const auto* value = known(from)) {
        values_[node.output(i)] = *value;
      }
      if (varying_.count(from) > 0) {
        varying_.insert(node.output(i));
      }
    }
    return true;
  }

  bool has_read(const jit::Stack& stack) const {
    bool any = false;
    visit_tensors_in(
        stack, [&](const at::Tensor& t) { any = any || tensors_.is_read(t); });
    return any;
  }

  static bool has_tensors(const jit::Stack& stack) {
    bool any = false;
    visit_tensors_in(stack, [&](const at::Tensor&) { any = true; });
    return any;
  }

  // Marks results that may differ in another call of forward().
  void mark_if_varying(const jit::Node& node, const jit::Stack& stack) {
    const bool is_fixed =
        std::ranges::find(kFixed, kind_of(node)) != kFixed.end();
    const auto inputs = node.inputs();
    const bool varies = inputs.empty() || has_read(stack) ||
        std::ranges::any_of(inputs, [&](const auto* input) {
                          return varying_.count(input) > 0;
                        });
    if (varies && !is_fixed) {
      varying_.insert(node.outputs().begin(), node.outputs().end());
    }
  }

  void give(const jit::Node& node, const jit::Stack& results) {
    for (size_t i = 0; i < node.outputs().size(); ++i) {
      values_[node.output(i)] = results[i];
    }
  }

  // --- calls -----------------------------------------------------------------

  // Runs an operator on numbers. No operator runs on data, because LibTorch
  // trusts some arguments of a script, and the script may be malicious.
  bool read_operator(
      const jit::Node& node,
      const c10::OperatorHandle& op,
      jit::Stack stack) {
    make_without_data(op, stack);
    if (has_tensors(stack)) {
      return read_call(node, op, std::move(stack));
    }
    if (op.hasTag(at::Tag::nondeterministic_seeded) &&
        std::ranges::none_of(
            stack, [](const auto& value) { return value.isDevice(); })) {
      return false; // would draw random numbers
    }
    op.callBoxed(&stack);
    for (auto& value : stack) {
      const bool is_empty = value.isTensor() && value.toTensor().is_meta();
      value = is_empty ? tensors_.described(value) : value;
    }
    give(node, stack);
    return true;
  }

  // Adds a call on tensors that have values.
  bool
  read_call(const jit::Node& node, c10::OperatorHandle op, jit::Stack stack) {
    OperatorGraph::Call call;
    if (const auto weight = weight_call(node)) {
      call.module = module_of(attribute_name(*weight->weight));
      if (weight->role == WeightRole::kLinear) {
        op = linear();
        stack = {
            *known(weight->input),
            *known(weight->weight),
            weight->bias == nullptr ? IValue() : *known(weight->bias)};
      }
    }
    call.op = op;
    for (auto& value : stack) {
      value = tensors_.described(value);
      call.args.push_back(argument_of(value, tensors_));
    }
    const auto given = stack;
    op.callBoxed(&stack);
    const auto& name = op.schema().name();
    const bool is_product = name == "aten::linear" || name == "aten::embedding";
    read_.num_products += is_product ? 1 : 0;
    // Other calls only query a value, or return an argument.
    if (op.schema().is_mutable() || makes_tensors(stack, given)) {
      for (const auto& result : stack) {
        call.results.push_back(result_of(result));
      }
      read_.graph.calls.push_back(std::move(call));
    }
    give(node, stack);
    return true;
  }

  std::vector<std::optional<Value>> result_of(const IValue& value) {
    std::vector<std::optional<Value>> result;
    visit_tensors_in(value, [&](const at::Tensor& t) {
      result.emplace_back(tensors_.define(t));
    });
    return result;
  }

  // Runs a function that only TorchScript has: lists, numbers, queries.
  bool read_function(const jit::Node& node, jit::Stack stack) {
    const auto given = stack;
    run_function(node, stack);
    if (has_read(given) && makes_tensors(stack, given)) {
      return false;
    }
    give(node, stack);
    return true;
  }

  // --- unread code -----------------------------------------------------------

  void leave_unread(const jit::Node& node) {
    ++read_.num_unread;
    std::set<size_t> taken;
    collect_used(node, taken);
    if (!taken.empty()) {
      OperatorGraph::Call unread;
      for (const auto index : taken) {
        unread.args.emplace_back(Value{index});
      }
      read_.graph.calls.push_back(std::move(unread));
    }
  }

  // Collects the values that the node and its blocks use. For a method call,
  // includes the parameters of the module.
  void collect_used(const jit::Node& node, std::set<size_t>& taken) {
    for (const auto* input : node.inputs()) {
      const auto* value = known(input);
      if (value == nullptr) {
        continue;
      }
      add_indices(*value, taken);
      if (kind_of(node) == "prim::CallMethod" && value->isObject()) {
        for (const auto& t : jit::Module(value->toObject()).parameters()) {
          add_indices(t, taken);
        }
      }
    }
    for (const auto* block : node.blocks()) {
      for (const auto* inner : block->nodes()) {
        if (kind_of(*inner) == "prim::GetAttr") {
          read_attribute(*inner);
        }
        collect_used(*inner, taken);
      }
    }
  }

  void add_indices(const IValue& value, std::set<size_t>& taken) const {
    for (const auto& [index] : tensors_.values_in(value)) {
      taken.insert(index);
    }
  }

  const jit::Module& script_;
  ReadScript read_;
  ScriptTensors tensors_;
  std::map<const jit::Value*, IValue> values_; // values known so far
  std::set<const jit::Value*> varying_;
  std::set<std::string> written_; // attributes that the script sets
};

} // namespace

ReadScript read_script(
    const jit::Module& script,
    const jit::Graph& forward,
    const std::vector<ModuleTensor>& tensors,
    const ScriptInputs& inputs) {
  const c10::NoGradGuard no_grad;
  return Reader(script, tensors).read(forward, inputs);
}

} // namespace dtensor::torchscript
