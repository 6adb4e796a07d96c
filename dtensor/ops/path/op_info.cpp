// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/ops/path/op_info_impl.h>

#include <ATen/core/enum_tag.h>
#include <dtensor/ops/install/kernels_impl.h>
#include <dtensor/ops/path/stack_impl.h>

#include <atomic>

namespace dtensor::detail {
namespace {

// Returns the rule of an operator; foo_.overload uses the rule of foo.overload.
const OpRule* rule_of(const c10::OperatorName& name, bool in_place) {
  const auto& registry = RuleRegistry::global();
  const auto* rule = registry.find(name);
  if (rule == nullptr && in_place && name.name.back() == '_') {
    rule = registry.find(
        {name.name.substr(0, name.name.size() - 1), name.overload_name});
  }
  return rule;
}

// Returns true if the value of an argument affects layouts. For Scalars, floats
// and generators, only the type does.
bool value_decides(const c10::Argument& argument) {
  auto type = argument.type();
  if (auto optional = type->cast<c10::OptionalType>()) {
    type = optional->getElementType();
  }
  return type->kind() != c10::TypeKind::NumberType &&
      type->kind() != c10::TypeKind::FloatType;
}

// Returns the traits of the operator. foo_ shares the gradient formula of foo;
// other traits of foo need not hold for a write.
OpTraits traits_of(const c10::OperatorName& name, const OpRule* rule) {
  if (const auto* own = RuleRegistry::global().find_traits(name)) {
    return *own;
  }
  OpTraits traits;
  traits.gradient_from_sizes_only =
      rule != nullptr && rule->traits.gradient_from_sizes_only;
  return traits;
}

size_t next_slot() {
  static std::atomic<size_t> next{0};
  return next.fetch_add(1);
}

} // namespace

OpInfo::OpInfo(const c10::OperatorHandle& handle)
    : op(handle),
      name(name_of(handle.operator_name())),
      slot(next_slot()),
      num_args(handle.schema().arguments().size()),
      num_returns(handle.schema().returns().size()) {
  const auto& schema = op.schema();
  const auto& arguments = schema.arguments();
  for (const auto& argument : arguments) {
    is_out |= argument.is_out();
  }
  in_place = !is_out && !arguments.empty() && is_written(arguments[0]);
  is_view = !is_out && !in_place && !arguments.empty() &&
      arguments[0].alias_info() != nullptr;
  random = op.hasTag(at::Tag::nondeterministic_seeded);
  inplace_view = op.hasTag(at::Tag::inplace_view);
  rule = rule_of(op.operator_name(), in_place);
  used_in_backward = rule != nullptr && rule->used_in_backward;
  traits = traits_of(op.operator_name(), rule);
  // In-place operators use LibTorch's own autograd, because a region makes new
  // tensors.
  is_region = rule != nullptr && (!in_place || rule->kernel != nullptr) &&
      ((rule->region && !in_place) || is_composite(op));
  TORCH_INTERNAL_ASSERT(num_args <= value_matters.size(), name);
  for (size_t i = 0; i < num_args; ++i) {
    value_matters[i] = value_decides(arguments[i]) ||
        (rule != nullptr && rule->uses_scalar_values);
  }
  if (is_region && (traits.product || traits.formula)) {
    stock = op.getComputedKernelForDispatchKey(c10::DispatchKey::AutogradCPU);
  }
}

} // namespace dtensor::detail
