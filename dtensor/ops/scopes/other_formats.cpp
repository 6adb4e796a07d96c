// SPDX-License-Identifier: BSD-3-Clause
// Errors of operators on DTensors and plain tensors of another format: sparse,
// quantized or nested. LibTorch dispatches such a call to the key of this
// format for the backend of DTensors, which has no kernels of its own.
#include <dtensor/ops/scopes/plain_operand_impl.h>

#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/path/stack_impl.h>
#include <dtensor/ops/scopes/replicated_impl.h>
#include <dtensor/tensor/is_dtensor.h>
#include <dtensor/tensor/wrap_impl.h>
#include <dtensor/torch_internals.h>

#include <torch/library.h>

#include <iterator>
#include <optional>
#include <vector>

namespace dtensor::detail {
namespace {

using c10::DispatchKey;

constexpr DispatchKey kOtherFormats[] = {
    DispatchKey::Sparse,
    DispatchKey::SparseCsr,
    DispatchKey::Quantized,
    DispatchKey::NestedTensor};

void refuse_other_format(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet,
    torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto args = last_args(*stack, schema.arguments().size());
  if (const auto like = first_spec(args)) {
    visit_tensors(args, [&](const at::Tensor& t, size_t arg, int) {
      if (!is_dtensor(t)) {
        check_plain_format(schema, t, arg, *like);
      }
    });
  }
  DTENSOR_THROW_NOT_IMPLEMENTED(
      "[{}] makes or takes a sparse, quantized or nested tensor, which "
      "DTensors do not support. Call it on the local tensors.",
      name_of(schema.operator_name()));
}

bool takes_two_tensors(const c10::FunctionSchema& schema) {
  const auto& arguments = schema.arguments();
  return arguments.size() > 1 &&
      arguments[0].type()->kind() == c10::TypeKind::TensorType &&
      arguments[1].type()->kind() == c10::TypeKind::TensorType;
}

// Returns LibTorch's operators on two tensors whose kernel for any backend
// would precede the fallback, and then read the memory of the DTensor.
std::vector<c10::OperatorHandle> operators_with_kernels() {
  auto& dispatcher = c10::Dispatcher::singleton();
  std::vector<c10::OperatorHandle> found;
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = name.name.starts_with("aten::")
        ? dispatcher.findSchema(name)
        : std::nullopt;
    if (op && takes_two_tensors(op->schema()) &&
        (op->hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) ||
         op->hasKernelForDispatchKey(
             DispatchKey::CompositeExplicitAutogradNonFunctional))) {
      found.push_back(*op);
    }
  }
  return found;
}

torch::CppFunction refusal() {
  return torch::CppFunction::makeFromBoxedFunction<&refuse_other_format>();
}

bool install_refusals() {
  // Never destroyed, because operators are called until the process ends.
  static auto& libraries = *new std::vector<torch::Library>;
  libraries.reserve(2 * std::size(kOtherFormats));
  const auto ops = operators_with_kernels();
  for (const auto format : kOtherFormats) {
    const auto at_backend = [&](c10::BackendComponent backend) {
      return c10::toRuntimePerBackendFunctionalityKey(format, backend);
    };
    const auto key = at_backend(kDTensorBit);
    libraries.emplace_back(torch::Library::IMPL, "_", key, __FILE__, __LINE__)
        .fallback(refusal());
    auto& aten = libraries.emplace_back(
        torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
    for (const auto& op : ops) {
      if (op.hasKernelForDispatchKey(
              at_backend(c10::BackendComponent::CPUBit))) {
        aten.impl(name_of(op.operator_name()).c_str(), refusal());
      }
    }
  }
  return true;
}

const bool refuses_other_formats = install_refusals();

} // namespace

void check_plain_format(
    const c10::FunctionSchema& schema,
    const at::Tensor& plain,
    size_t arg,
    const Spec& beside) {
  DTENSOR_CHECK(
      has_dense_format(plain),
      "[{}] got mixed plain tensor and DTensor: argument \"{}\" is a plain {} "
      "next to {}, and DTensors do not support this format. Convert it to a "
      "dense tensor and distribute it with distribute_tensor, or call the "
      "operator on local tensors (to_local()).",
      name_of(schema.operator_name()),
      schema.arguments()[arg].name(),
      describe_format(plain),
      beside);
}

} // namespace dtensor::detail
