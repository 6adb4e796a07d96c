// SPDX-License-Identifier: BSD-3-Clause
// register_sharding() with a rule that is a Python function. The engine caches
// decisions, so the function runs once for each new combination of layouts and
// shapes.
#include "parts.h"

#include "convert.h"
#include "without_gil.h"

#include <dtensor/ops/op_call.h>
#include <dtensor/ops/register_sharding.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>

namespace dtensor::python {
namespace {

/// Arguments of a call in the form for the Python rule: DTensorSpecs in place
/// of tensors.
class RuleArguments {
 public:
  explicit RuleArguments(const OpCall& call) : call_(call) {
    const auto& arguments = call.schema.arguments();
    for (size_t i = 0; i < call.args.size(); ++i) {
      if (arguments[i].kwarg_only()) {
        keywords[arguments[i].name().c_str()] = convert(call.args[i]);
      } else {
        positional.append(convert(call.args[i]));
      }
    }
  }

  py::list positional;
  py::dict keywords;

 private:
  py::object next_spec() {
    return to_python(call_.inputs[next_input_++].spec);
  }

  py::object convert(const c10::IValue& value) {
    if (value.isTensor()) {
      return value.toTensor().defined() ? next_spec() : py::none();
    }
    if (value.isTensorList()) {
      py::list specs;
      for (size_t i = 0; i < value.toTensorVector().size(); ++i) {
        specs.append(next_spec());
      }
      return specs;
    }
    return torch::jit::toPyObject(value);
  }

  const OpCall& call_;
  size_t next_input_ = 0;
};

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
  const py::object choices = rule(*arguments.positional, **arguments.keywords);
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
