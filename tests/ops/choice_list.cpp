// SPDX-License-Identifier: BSD-3-Clause
// Lists random operator calls and the layouts that propagate() chooses, for
// tools/choice_table.py:
//
//   dtensor_choice_list          one call per line: mesh, family, operator,
//                                arguments as a Python tuple in which T(i) is
//                                tensor i, tensors (sizes, layout and dtype),
//                                modelled microseconds of the choice, and its
//                                layouts
//   dtensor_choice_list costs    reads one line of layouts per call, and prints
//                                their modelled microseconds; empty lines stay
//
// Layouts are those of the inputs, then those of the results, separated by "|".
#include "tests/ops/random_calls.h"

#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/combinations_impl.h>
#include <dtensor/ops/families_impl.h>
#include <dtensor/testing/fake_world.h>

#include <iostream>
#include <limits>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dtensor::testing {
namespace {

constexpr int kCalls = 125; // on each mesh
const std::vector<std::vector<int64_t>> kMeshes{{4}, {2, 2}, {2, 4}, {2, 2, 2}};

struct Family {
  std::string name;
  std::vector<detail::OpInfo> operators;
};

// Returns the families of the operators whose rules list strategies.
std::vector<Family> list_families() {
  std::vector<Family> families;
  const auto operators = operators_with_strategies();
  const auto add = [&](const char* name, const auto& add_rules) {
    RuleRegistry rules;
    add_rules(rules);
    Family family{name, {}};
    for (const auto& info : operators) {
      if (rules.find(info.op.operator_name()) != nullptr &&
          !info.op.schema().is_mutable()) {
        family.operators.push_back(info);
      }
    }
    if (!family.operators.empty()) {
      families.push_back(std::move(family));
    }
  };
#define ADD_FAMILY(family) add(#family, add_##family##_rules);
  DTENSOR_FAMILIES(ADD_FAMILY)
#undef ADD_FAMILY
  return families;
}

std::string to_python(const c10::IValue& value, int& tensors) {
  if (value.isTensor() && value.toTensor().defined()) {
    return "T(" + std::to_string(tensors++) + ")";
  }
  if (value.isBool()) {
    return value.toBool() ? "True" : "False";
  }
  if (value.isList()) {
    std::string text = "[";
    for (const c10::IValue& item : value.toListRef()) {
      text += to_python(item, tensors) + ", ";
    }
    return text + "]";
  }
  if (value.isString()) {
    return "'" + value.toStringRef() + "'";
  }
  if (value.isInt() || value.isDouble()) {
    std::ostringstream text;
    text << value;
    return text.str();
  }
  return "None";
}

std::string to_python(const torch::jit::Stack& arguments) {
  std::string text = "(";
  int tensors = 0;
  for (const auto& value : arguments) {
    text += to_python(value, tensors) + ", ";
  }
  return text + ")";
}

std::string to_text(const MeshStrategy& layouts) {
  std::string text;
  for (const auto* list : {&layouts.inputs, &layouts.outputs}) {
    for (const Placements& layout : *list) {
      text += (text.empty() ? "" : "|") + to_string(layout);
    }
  }
  return text;
}

MeshStrategy parse_layouts(const std::string& text, size_t inputs) {
  MeshStrategy layouts;
  std::istringstream stream(text);
  for (std::string layout; std::getline(stream, layout, '|');) {
    auto& list =
        layouts.inputs.size() < inputs ? layouts.inputs : layouts.outputs;
    list.push_back(parse_placements(layout));
  }
  return layouts;
}

// A call of a family, with the layouts that propagate() chooses.
struct Chosen {
  const std::string& family;
  const PlainCall& plain;
  const OpCall& call;
  const MeshStrategy& layouts;
};

template <class Visit>
void visit_calls(const Visit& visit) {
  const auto families = list_families();
  for (const auto& shape : kMeshes) {
    with_fake_world(0, numel(shape), [&] {
      const auto mesh = init_device_mesh(at::kCPU, shape);
      std::mt19937 random(11);
      for (int i = 0; i < kCalls; ++i) {
        const auto& family = families[random() % families.size()];
        const auto& info = family.operators[random() % family.operators.size()];
        const auto plain = plain_call_of(info.op);
        auto call = draw_call(info, plain, mesh, random);
        call.in_backward = false;
        int64_t failed = 0;
        if (const auto chosen =
                detail::choose_layouts(call, *info.rule, {}, failed)) {
          visit(Chosen{family.name, plain, call, chosen->layouts});
        }
      }
    });
  }
}

double microseconds(const OpCall& call, const MeshStrategy& layouts) {
  const auto time = detail::ChoiceCost(call).of(layouts);
  return time == detail::kNever ? std::numeric_limits<double>::infinity()
                                : detail::to_microseconds(time);
}

// Returns the modelled microseconds; infinity for layouts that this library
// does not have.
double microseconds(const OpCall& call, const std::string& layouts) {
  try {
    return microseconds(call, parse_layouts(layouts, call.inputs.size()));
  } catch (const c10::Error&) {
    return std::numeric_limits<double>::infinity();
  }
}

void list_calls() {
  visit_calls([](const Chosen& chosen) {
    const OpCall& call = chosen.call;
    std::cout << c10::Join("x", call.mesh.shape()) << ';' << chosen.family
              << ';' << c10::toString(call.schema.operator_name()) << ';'
              << to_python(chosen.plain.arguments) << ';';
    for (const auto& input : call.inputs) {
      std::cout << c10::Join("x", input.sizes()) << ','
                << to_string(input.spec->placements()) << ','
                << short_name(input.spec->dtype()) << '|';
    }
    std::cout << ';' << microseconds(call, chosen.layouts) << ';'
              << to_text(chosen.layouts) << '\n';
  });
}

void print_costs() {
  visit_calls([](const Chosen& chosen) {
    const OpCall& call = chosen.call;
    std::string line;
    std::getline(std::cin, line);
    if (!line.empty()) {
      std::cout << microseconds(call, line);
    }
    std::cout << '\n';
  });
}

} // namespace
} // namespace dtensor::testing

int main(int argc, char** argv) {
  std::cout.precision(std::numeric_limits<double>::max_digits10);
  if (argc == 2 && std::string_view(argv[1]) == "costs") {
    dtensor::testing::print_costs();
  } else if (argc == 1) {
    dtensor::testing::list_calls();
  } else {
    std::cerr << "usage: dtensor_choice_list [costs]\n";
    return 2;
  }
  return 0;
}
