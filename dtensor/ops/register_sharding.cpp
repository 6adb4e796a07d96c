// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/ops/register_sharding.h>

#include <dtensor/comm/world_impl.h>
#include <dtensor/error.h>
#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/install/kernels_impl.h>

#include <utility>

namespace dtensor {
namespace {

constexpr const char* kRegisterSharding = "register_sharding";

c10::OperatorHandle find_operator(std::string_view name) {
  const auto op =
      c10::Dispatcher::singleton().findSchema(parse_operator_name(name));
  DTENSOR_CHECK_VALUE(
      op.has_value(),
      "[{}] no library has registered an operator \"{}\". Register it first, "
      "and name it \"library::operator.overload\".",
      kRegisterSharding,
      name);
  return *op;
}

// Returns op_.overload if its rule follows from the rule of op.overload.
std::optional<c10::OperatorHandle> in_place_form(
    const c10::OperatorHandle& op) {
  auto name = op.operator_name();
  name.name += "_";
  return RuleRegistry::global().find(name) != nullptr
      ? std::nullopt
      : c10::Dispatcher::singleton().findSchema(name);
}

} // namespace

void register_sharding(std::string_view name, OpRule rule) {
  const auto op = find_operator(name);
  DTENSOR_CHECK_VALUE(
      rule.dim_rule || rule.mesh_rule || rule.kernel,
      "[{}] the rule of \"{}\" is empty. Set its dim_rule, mesh_rule or "
      "kernel.",
      kRegisterSharding,
      name);
  DTENSOR_CHECK(
      !detail::has_peers_in_process(),
      "[{}] cannot register a rule for \"{}\" inside a rank: other ranks may "
      "be calling it. Register it before the ranks start.",
      kRegisterSharding,
      name);
  const auto* known = RuleRegistry::global().find(op.operator_name());
  // Keeps the fields of the old rule that do not depend on layouts.
  if (!rule.meta && known != nullptr) {
    rule.meta = known->meta;
  }
  if (rule.traits == OpTraits() && known != nullptr) {
    rule.traits = known->traits;
  }
  // The gradient of another library's operator is that of the plain operator.
  rule.region |= op.schema().name().rfind("aten::", 0) != 0 && !rule.kernel;
  detail::registered_rules().replace(name, std::move(rule));
  detail::reinstall_kernels(op);
  if (const auto in_place = in_place_form(op)) {
    detail::reinstall_kernels(*in_place);
  }
}

void register_sharding(std::string_view name, DimRule rule) {
  OpRule op;
  op.dim_rule = std::move(rule);
  register_sharding(name, std::move(op));
}

} // namespace dtensor
