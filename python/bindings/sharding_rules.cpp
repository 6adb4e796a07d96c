// SPDX-License-Identifier: BSD-3-Clause
// register_sharding() with a rule that is a Python function. The engine caches
// decisions, so the function runs once for each new combination of layouts and
// shapes.
#include "parts.h"

#include "convert.h"
#include "without_gil.h"

#include <dtensor/error.h>
#include <dtensor/ops/op_call.h>
#include <dtensor/ops/register_sharding.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>

namespace dtensor::python {
namespace {

bool is_default(const c10::Argument& parameter, const c10::IValue& value) {
  const auto& value_by_default = parameter.default_value();
  return value_by_default.has_value() && *value_by_default == value;
}

/// Returns true for a parameter of this type, or an optional of this type.
bool has_type(const c10::Argument& parameter, c10::TypeKind kind) {
  const auto& type = parameter.real_type();
  const auto optional = type->cast<c10::OptionalType>();
  return (optional ? optional->getElementType() : type)->kind() == kind;
}

/// Converts an argument without tensors. LibTorch keeps enumerations such as
/// dtypes as integers.
py::object convert_plain(
    const c10::Argument& parameter,
    const c10::IValue& value) {
  if (value.isInt()) {
    if (has_type(parameter, c10::TypeKind::ScalarTypeType)) {
      return py::cast(static_cast<at::ScalarType>(value.toInt()));
    }
    if (has_type(parameter, c10::TypeKind::LayoutType)) {
      return py::cast(static_cast<at::Layout>(value.toInt()));
    }
    if (has_type(parameter, c10::TypeKind::MemoryFormatType)) {
      return py::cast(static_cast<at::MemoryFormat>(value.toInt()));
    }
  }
  return torch::jit::toPyObject(value);
}

/// Arguments of a call in the form for the Python rule: DTensorSpecs in place
/// of tensors. As in PyTorch, positional arguments at the end and keyword
/// arguments are left out if they equal the default.
class RuleArguments {
 public:
  explicit RuleArguments(const OpCall& call) : call_(call) {
    const auto& parameters = call.schema.arguments();
    size_t given = 0; // positional arguments that are passed
    for (size_t i = 0; i < call.args.size(); ++i) {
      const bool is_passed = !is_default(parameters[i], call.args[i]);
      py::object value = convert(parameters[i], call.args[i]);
      if (!parameters[i].kwarg_only()) {
        positional.append(std::move(value));
        given = is_passed ? i + 1 : given;
      } else if (is_passed) {
        keywords[parameters[i].name().c_str()] = std::move(value);
      }
    }
    positional = py::list(positional[py::slice(0, given, 1)]);
  }

  py::list positional;
  py::dict keywords;

 private:
  /// Returns None for an undefined tensor, or a None in a list.
  py::object convert_tensor(const c10::IValue& value) {
    const bool is_input = value.isTensor() && value.toTensor().defined();
    return is_input ? to_python(call_.inputs[next_input_++].spec) : py::none();
  }

  /// Returns a tuple, or a list if any tensor is left out, as PyTorch does.
  py::object convert_tensors(const c10::IValue& values) {
    py::list specs;
    bool has_none = false;
    for (const c10::IValue& value : values.toListRef()) {
      specs.append(convert_tensor(value));
      has_none = has_none || specs[specs.size() - 1].is_none();
    }
    return has_none || specs.empty() ? py::object(specs) : py::tuple(specs);
  }

  py::object convert(const c10::Argument& parameter, const c10::IValue& value) {
    if (value.isTensor()) {
      return convert_tensor(value);
    }
    if (value.isTensorList() || value.isOptionalTensorList()) {
      return convert_tensors(value);
    }
    return convert_plain(parameter, value);
  }

  const OpCall& call_;
  size_t next_input_ = 0;
};

bool is_strategy(py::handle choice) {
  return PySequence_Check(choice.ptr()) != 0 && py::len(choice) == 2 &&
      py::isinstance<py::iterable>(choice[py::int_(0)]) &&
      py::isinstance<py::iterable>(choice[py::int_(1)]);
}

/// Throws TypeError unless the rule's result is a list of pairs of placements.
py::list checked_choices(const OpCall& call, const py::object& result) {
  const bool is_list = py::isinstance<py::iterable>(result);
  const py::list choices = is_list ? py::list(result) : py::list();
  DTENSOR_CHECK_TYPE(
      is_list && std::all_of(choices.begin(), choices.end(), is_strategy),
      "[{}] the rule returned {}. Return a list of pairs: the placements of "
      "the results, and those of the arguments.",
      call.name(),
      py::repr(is_list ? choices : result).cast<std::string>());
  return choices;
}

/// Placements of tensors among the entries; entries of other arguments are
/// None.
Placements placements_of_tensors(py::handle entries) {
  Placements placements;
  for (py::handle entry : py::reinterpret_borrow<py::iterable>(entries)) {
    if (!entry.is_none()) {
      placements.push_back(to_placement(entry));
    }
  }
  return placements;
}

Strategies call_python_rule(py::handle rule, const OpCall& call) {
  const py::gil_scoped_acquire gil;
  const RuleArguments arguments(call);
  const py::list choices =
      checked_choices(call, rule(*arguments.positional, **arguments.keywords));
  Strategies strategies;
  for (py::handle choice : choices) {
    const auto pair = py::reinterpret_borrow<py::sequence>(choice);
    const auto outputs = placements_of_tensors(pair[0]);
    const auto inputs = placements_of_tensors(pair[1]);
    strategies.push_back(
        {.outputs = {outputs.begin(), outputs.end()},
         .inputs = {inputs.begin(), inputs.end()}});
  }
  return strategies;
}

} // namespace

void bind_sharding_rules(py::module_& module) {
  module.def(
      "register_sharding", [](const std::string& name, py::object function) {
        // Rules live as long as the process, longer than the interpreter.
        const auto* const rule = new py::object(std::move(function));
        without_gil([&] {
          register_sharding(name, [rule](const OpCall& call, int64_t) {
            return call_python_rule(*rule, call);
          });
        });
      });
}

} // namespace dtensor::python
