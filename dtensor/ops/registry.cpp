// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/ops/registry.h>

#include <dtensor/error.h>
#include <dtensor/ops/einsum.h>
#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/path/stack_impl.h>

#include <algorithm>

namespace dtensor {
namespace {

using detail::name_of;

template <class ByName>
std::vector<std::string> sorted_names(const ByName& entries) {
  std::vector<std::string> names;
  names.reserve(entries.size());
  for (const auto& [name, entry] : entries) {
    names.push_back(name_of(name));
  }
  std::ranges::sort(names);
  return names;
}

} // namespace

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
#define DTENSOR_ADD_FAMILY(family) add_##family##_rules(rules);
    DTENSOR_FAMILIES(DTENSOR_ADD_FAMILY)
#undef DTENSOR_ADD_FAMILY
    return rules;
  }();
  return registry;
}

const RuleRegistry& RuleRegistry::global() {
  return detail::registered_rules();
}

// The parameter is moved from below, which clang-tidy 14 does not detect.
// NOLINTNEXTLINE(performance-unnecessary-value-param)
OpRule& RuleRegistry::add(std::string_view name, OpRule rule) {
  const auto op = parse_operator_name(name);
  auto [it, inserted] = rules_.try_emplace(op, std::move(rule));
  DTENSOR_CHECK_VALUE(
      inserted,
      "[RuleRegistry] {} has a rule already. Replace it with "
      "register_sharding().",
      name_of(op));
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

void RuleRegistry::traits(std::string_view name, const OpTraits& traits) {
  const auto op = parse_operator_name(name);
  DTENSOR_CHECK_VALUE(
      find_traits(op) == nullptr,
      "[RuleRegistry] {} has traits already. Set them once, in its rule if it "
      "has one.",
      name_of(op));
  traits_[op] = traits;
}

const OpRule* RuleRegistry::find(const c10::OperatorName& name) const {
  const auto it = rules_.find(name);
  return it == rules_.end() ? nullptr : &it->second;
}

bool RuleRegistry::keeps_composite(const c10::OperatorName& name) const {
  return composite_.count(name) > 0;
}

const OpTraits* RuleRegistry::find_traits(const c10::OperatorName& name) const {
  if (const auto it = traits_.find(name); it != traits_.end()) {
    return &it->second;
  }
  const auto* rule = find(name);
  return rule == nullptr ? nullptr : &rule->traits;
}

std::vector<std::string> RuleRegistry::names() const {
  return sorted_names(rules_);
}

std::vector<std::string> RuleRegistry::names_of_traits() const {
  return sorted_names(traits_);
}

std::vector<std::string> RuleRegistry::composite_names() const {
  return sorted_names(composite_);
}

std::vector<std::string> RuleRegistry::unknown_names() const {
  auto unknown = names();
  for (const auto& more : {names_of_traits(), composite_names()}) {
    unknown.insert(unknown.end(), more.begin(), more.end());
  }
  std::erase_if(unknown, [](const std::string& name) {
    return c10::Dispatcher::singleton()
        .findSchema(parse_operator_name(name))
        .has_value();
  });
  return unknown;
}

} // namespace dtensor
