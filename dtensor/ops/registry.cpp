// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/ops/einsum.h>
#include <dtensor/ops/registry.h>

#include <dtensor/error.h>
#include <dtensor/ops/rules/families_impl.h>
#include <dtensor/ops/slot_impl.h>

#include <algorithm>

namespace dtensor {

c10::OperatorName parse_operator_name(std::string_view name) {
  const auto colons = name.find("::");
  const auto dot =
      name.find('.', colons == std::string_view::npos ? 0 : colons);
  std::string base(name.substr(0, dot));
  std::string overload(
      dot == std::string_view::npos ? "" : name.substr(dot + 1));
  if (colons == std::string_view::npos) {
    base = "aten::" + base;
  }
  return {std::move(base), std::move(overload)};
}

RuleRegistry& detail::registered_rules() {
  static RuleRegistry registry = [] {
    RuleRegistry rules;
    add_all_rules(rules);
    return rules;
  }();
  return registry;
}

const RuleRegistry& RuleRegistry::global() {
  return detail::registered_rules();
}

OpRule& RuleRegistry::add(std::string_view name, OpRule rule) {
  const auto op = parse_operator_name(name);
  auto [it, inserted] = rules_.try_emplace(op, std::move(rule));
  DTENSOR_CHECK_VALUE(
      inserted,
      "RuleRegistry",
      op.name,
      op.overload_name.empty() ? "" : ".",
      op.overload_name,
      " has a rule already. Give each operator one.");
  return it->second;
}

void RuleRegistry::replace(std::string_view name, OpRule rule) {
  rules_[parse_operator_name(name)] = std::move(rule);
}

OpRule& RuleRegistry::dim_rule(std::string_view name, DimRule rule) {
  OpRule op;
  op.dim_rule = std::move(rule);
  return add(name, std::move(op));
}

OpRule& RuleRegistry::mesh_rule(std::string_view name, MeshRule rule) {
  OpRule op;
  op.mesh_rule = std::move(rule);
  return add(name, std::move(op));
}

OpRule& RuleRegistry::einsum(std::string_view name, std::string_view equation) {
  return dim_rule(
      name, [strategies = einsum_strategies(equation)](const OpCall&, int64_t) {
        return strategies;
      });
}

OpRule& RuleRegistry::kernel(std::string_view name, DTensorKernel kernel) {
  OpRule op;
  op.kernel = std::move(kernel);
  return add(name, std::move(op));
}

void RuleRegistry::keep_composite(std::string_view name) {
  composite_[parse_operator_name(name)] = true;
}

const OpRule* RuleRegistry::find(const c10::OperatorName& name) const {
  const auto it = rules_.find(name);
  return it == rules_.end() ? nullptr : &it->second;
}

bool RuleRegistry::keeps_composite(const c10::OperatorName& name) const {
  return composite_.count(name) > 0;
}

std::vector<std::string> RuleRegistry::names() const {
  std::vector<std::string> names;
  names.reserve(rules_.size());
  for (const auto& [name, rule] : rules_) {
    names.push_back(
        name.overload_name.empty() ? name.name
                                   : name.name + "." + name.overload_name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> RuleRegistry::unknown_names() const {
  auto unknown = names();
  std::erase_if(unknown, [](const std::string& name) {
    return c10::Dispatcher::singleton()
        .findSchema(parse_operator_name(name))
        .has_value();
  });
  return unknown;
}

} // namespace dtensor
