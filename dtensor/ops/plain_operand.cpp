// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/ops/plain_operand_impl.h>

#include <ATen/DTensorState.h>
#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/stack_impl.h>

namespace dtensor::detail {
namespace {

std::string describe(const at::Tensor& plain) {
  std::string text = short_name(plain.scalar_type()) + "[";
  for (int64_t d = 0; d < plain.dim(); ++d) {
    text += (d == 0 ? "" : ", ") + std::to_string(plain.size(d));
  }
  return text + "]";
}

} // namespace

void check_plain_operand(
    const c10::FunctionSchema& schema,
    const at::Tensor& plain,
    size_t arg,
    const Spec& beside) {
  DTENSOR_CHECK(
      plain.numel() == 1 || at::get_dtensor_allow_implicit_replication(),
      name_of(schema.operator_name()),
      "got mixed plain tensor and DTensor: argument \"",
      schema.arguments()[arg].name(),
      "\" is a plain ",
      describe(plain),
      " next to ",
      beside,
      ". Make it a DTensor with distribute_tensor or DTensor::from_local, or "
      "take the local part of the others with to_local().");
}

} // namespace dtensor::detail
