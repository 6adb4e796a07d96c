// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/ops/slot_impl.h>

#include <ATen/core/enum_tag.h>
#include <dtensor/ops/stack_impl.h>

#include <atomic>

namespace dtensor::detail {
namespace {

bool writes(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

// foo_.overload computes what foo.overload computes.
const OpRule* rule_of(const c10::OperatorName& name, bool in_place) {
  const auto& registry = RuleRegistry::global();
  const auto* rule = registry.find(name);
  if (rule == nullptr && in_place && name.name.back() == '_') {
    rule = registry.find(
        {name.name.substr(0, name.name.size() - 1), name.overload_name});
  }
  return rule;
}

// The values of Scalars, floats and generators do not decide layouts; their
// types do.
bool value_decides(const c10::Argument& argument) {
  auto type = argument.type();
  if (auto optional = type->cast<c10::OptionalType>()) {
    type = optional->getElementType();
  }
  return type->kind() != c10::TypeKind::NumberType &&
      type->kind() != c10::TypeKind::FloatType;
}

// Products of matrices: their gradients are products of matrices.
bool is_product(const std::string& name) {
  return name == "aten::addmm" || name == "aten::linear" ||
      name == "aten::matmul";
}

// Whether LibTorch's formula for the gradient is made of operators with rules
// that find the right layouts. (That of embedding does not know the table's.)
bool has_formula(const std::string& name) {
  return is_product(name) || name == "aten::layer_norm";
}

// Where an element is zero, the gradient of a product is made of the products
// of the others, beside plain ones; that of mvlgamma is made of a plain range.
bool makes_plain_in_gradient(const std::string& name) {
  return name == "aten::prod" || name == "aten::prod.dim_int" ||
      name == "aten::mvlgamma_";
}

// Into which LibTorch's own functions write what they draw or count, in
// torch::nn::init and torch::nn::utils::rnn.
bool takes_plain_source(const std::string& name) {
  return name == "aten::copy_" || name == "aten::index_put_" ||
      name == "aten::scatter_.src";
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
  in_place = !is_out && !arguments.empty() && writes(arguments[0]);
  is_view = !is_out && !in_place && !arguments.empty() &&
      arguments[0].alias_info() != nullptr;
  random = op.hasTag(at::Tag::nondeterministic_seeded);
  inplace_view = op.hasTag(at::Tag::inplace_view);
  rule = rule_of(op.operator_name(), in_place);
  // In place the stock autograd serves: a region makes new tensors.
  is_region = rule != nullptr && (!in_place || rule->kernel != nullptr) &&
      ((rule->region && !in_place) ||
       op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd));
  for (const auto& argument : arguments) {
    value_matters.push_back(
        value_decides(argument) ||
        (rule != nullptr && rule->uses_scalar_values));
  }
  adds_in_place = name == "aten::add_.Tensor";
  boundary = boundary_role(schema.name());
  carries_boundaries = detail::carries_boundaries(schema.name());
  multiplies_matrices = is_product(name);
  formula_makes_plain = makes_plain_in_gradient(name);
  takes_plain = takes_plain_source(name);
  if (is_region && has_formula(name)) {
    stock = op.getComputedKernelForDispatchKey(c10::DispatchKey::AutogradCPU);
  }
}

} // namespace dtensor::detail
