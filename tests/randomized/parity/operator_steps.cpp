// SPDX-License-Identifier: BSD-3-Clause
#include "machine.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

namespace dtensor::parity {
namespace {

c10::IValue
value_of(const Machine& machine, const Json& given, const c10::TypePtr& type);

// Returns a wrapped number: a number as a tensor operand.
at::Tensor wrapped_number(double value) {
  auto t = at::scalar_tensor(value, at::kDouble);
  t.unsafeGetTensorImpl()->set_wrapped_number(true);
  return t;
}

template <class T>
c10::IValue list_of(
    const Machine& machine,
    const Json& given,
    const c10::TypePtr& element) {
  c10::List<T> list;
  for (const auto& item : given) {
    list.push_back(value_of(machine, item, element).to<T>());
  }
  return list;
}

c10::IValue list_of(
    const Machine& machine,
    const Json& given,
    const c10::TypePtr& element) {
  switch (element->kind()) {
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
      return list_of<int64_t>(machine, given, element);
    case c10::TypeKind::BoolType:
      return list_of<bool>(machine, given, element);
    default:
      return list_of<at::Tensor>(machine, given, element);
  }
}

c10::IValue
value_of(const Machine& machine, const Json& given, const c10::TypePtr& type) {
  if (type->kind() == c10::TypeKind::OptionalType) {
    return given.is_null()
        ? c10::IValue()
        : value_of(
              machine,
              given,
              type->castRaw<c10::OptionalType>()->getElementType());
  }
  if (type->kind() == c10::TypeKind::ListType) {
    const auto element = type->castRaw<c10::ListType>()->getElementType();
    // A single number stands for a list with one number.
    return list_of(
        machine, given.is_array() ? given : Json::array({given}), element);
  }
  if (given.is_string()) {
    const auto& text = given.get_ref<const std::string&>();
    return text.starts_with("!") ? c10::IValue(dtype_of(text))
                                 : c10::IValue(machine.tensor(text));
  }
  if (type->kind() == c10::TypeKind::TensorType) {
    return wrapped_number(given.get<double>());
  }
  if (type->kind() == c10::TypeKind::FloatType || given.is_number_float()) {
    return given.get<double>();
  }
  return given.is_boolean() ? c10::IValue(given.get<bool>())
                            : c10::IValue(given.get<int64_t>());
}

c10::OperatorHandle operator_of(const std::string& name) {
  const auto dot = name.find('.');
  return c10::Dispatcher::singleton().findSchemaOrThrow(
      name.substr(0, dot).c_str(),
      dot == std::string::npos ? "" : name.substr(dot + 1).c_str());
}

torch::jit::Stack stack_of(
    const Machine& machine,
    const Json& step,
    const c10::FunctionSchema& schema) {
  torch::jit::Stack stack;
  const auto& args = step["args"];
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto& argument = schema.arguments()[i];
    if (i < args.size()) {
      stack.push_back(value_of(machine, args[i], argument.real_type()));
    } else {
      stack.push_back(argument.default_value().value());
    }
  }
  return stack;
}

void call_operator(Machine& machine, const Json& step) {
  const auto op = operator_of(step["name"]);
  auto stack = stack_of(machine, step, op.schema());
  op.callBoxed(&stack);
  Tensors results;
  for (const auto& value : stack) {
    if (value.isTensorList()) {
      const auto list = value.toTensorVector();
      results.insert(results.end(), list.begin(), list.end());
    } else {
      results.push_back(value.toTensor());
    }
  }
  machine.bind_all(step["to"], results);
}

void backward(Machine& machine, const Json& step) {
  machine.tensor(step["of"]).backward();
}

void grad(Machine& machine, const Json& step) {
  const bool again = step.value("create_graph", false);
  machine.bind_all(
      step["to"],
      torch::autograd::grad(
          {machine.tensor(step["of"])},
          machine.tensors(step["inputs"]),
          {},
          again,
          again));
}

PlacementsList layouts_of(const Json& given) {
  PlacementsList layouts;
  for (const auto& item : given) {
    layouts.push_back(
        item.is_null() ? MaybePlacements()
                       : MaybePlacements(placements_of(item)));
  }
  return layouts;
}

void map_locals(Machine& machine, const Json& step) {
  const auto& out = step["out"];
  const auto results = layouts_of(out[0].is_array() ? out : Json::array({out}));
  const auto inputs = layouts_of(step.value("in", Json::array()));
  LocalMapOptions options;
  options.in_grad_placements = layouts_of(step.value("in_grad", Json::array()));
  if (step.contains("mesh")) {
    options.device_mesh = machine.mesh_of(step);
  }
  options.redistribute_inputs = step.value("redistribute_inputs", false);
  const std::string name = step["fn"];
  const auto& args = step["args"];
  const auto first = machine.tensor(args[0]);
  if (name == "mm") {
    const auto mm = [](const at::Tensor& a, const at::Tensor& b) {
      return at::mm(a, b);
    };
    machine.bind_all(
        step["to"],
        {local_map(mm, results, inputs, options)(
            first, machine.tensor(args[1]))});
  } else if (name == "scale") {
    const auto scale = [](const at::Tensor& x, double by) { return x * by; };
    machine.bind_all(
        step["to"],
        {local_map(scale, results, inputs, options)(
            first, args[1].get<double>())});
  } else {
    TORCH_CHECK(name == "two", "no function ", name);
    const auto two = [](const at::Tensor& x) { return Tensors{x * 2, x + 1}; };
    machine.bind_all(
        step["to"], local_map(two, results, inputs, options)(first));
  }
}

at::Tensor scale_rows(const at::Tensor& x, const at::Tensor& factors) {
  return x * factors.unsqueeze(1);
}

TORCH_LIBRARY(parity, library) {
  library.def("scale_rows(Tensor x, Tensor factors) -> Tensor");
  library.impl(
      "scale_rows",
      torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, scale_rows));
}

} // namespace

void define_custom_operator() {
  register_sharding("parity::scale_rows", [](const OpCall&, int64_t) {
    return Strategies{
        {.outputs = {Shard(0)}, .inputs = {Shard(0), Shard(0)}},
        {.outputs = {Shard(1)}, .inputs = {Shard(1), Replicate()}}};
  });
}

Steps operator_steps() {
  return {
      {"op", call_operator},
      {"backward", backward},
      {"grad", grad},
      {"local_map", map_locals}};
}

} // namespace dtensor::parity
