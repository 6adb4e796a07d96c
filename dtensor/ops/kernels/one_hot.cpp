// SPDX-License-Identifier: BSD-3-Clause
// one_hot of ids in any layout: each rank compares its local ids with all
// classes. LibTorch's decomposition would write into a plain tensor.
#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/registry.h>
#include <dtensor/ops/replicated_impl.h>
#include <dtensor/tensor/meta_impl.h>

#include <ATen/ops/_to_copy.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/max.h>
#include <ATen/ops/min.h>
#include <ATen/ops/unsqueeze.h>

namespace dtensor {
namespace {

constexpr const char* kWhere = "aten::one_hot";

// Returns the number of classes, and throws for ids that the plain operator
// rejects. All ranks compare the same numbers, so all throw or none.
int64_t checked_classes(const at::Tensor& ids, int64_t num_classes) {
  const auto& spec = *detail::spec_of(ids);
  if (ids.numel() == 0) {
    DTENSOR_CHECK(
        num_classes > 0,
        "[{}] the ids, {}, are empty, so the number of classes cannot be "
        "inferred. Pass num_classes.",
        kWhere,
        spec);
    return num_classes;
  }
  const auto least = at::min(ids).item<int64_t>();
  const auto greatest = at::max(ids).item<int64_t>();
  DTENSOR_CHECK(
      least >= 0 && (num_classes < 0 || greatest < num_classes),
      "[{}] the ids, {}, are from {} to {}, but the number of classes is {}. "
      "Pass ids of at least 0 and below that number.",
      kWhere,
      spec,
      least,
      greatest,
      num_classes);
  return num_classes < 0 ? greatest + 1 : num_classes;
}

void one_hot(const c10::OperatorHandle& /*op*/, torch::jit::Stack* stack) {
  const auto num_classes = torch::jit::pop(*stack).toInt();
  const auto ids = torch::jit::pop(*stack).toTensor();
  const auto& spec = *detail::spec_of(ids);
  DTENSOR_CHECK(
      spec.dtype() == at::kLong,
      "[{}] the ids are {}. Convert them to int64.",
      kWhere,
      spec);
  const auto classes = detail::place_plain(
      at::arange(
          checked_classes(ids, num_classes),
          at::TensorOptions(at::kLong).device(spec.mesh().device_type())),
      spec);
  stack->emplace_back(
      at::_to_copy(at::eq(at::unsqueeze(ids, -1), classes), at::kLong));
}

} // namespace

DTENSOR_RULES(one_hot) {
  rules.kernel("one_hot", one_hot);
}

} // namespace dtensor
