// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/group_checks_impl.h>

#include <dtensor/error.h>
#include <dtensor/layout/shard_math.h>
#include <dtensor/layout/text.h>
#include <dtensor/torch_internals.h>

namespace dtensor::detail {

void tell(
    const Group& group,
    CollectiveKind kind,
    int64_t payload,
    double wire) {
  if (comm_observed()) {
    notify_comm_observers({kind, payload, wire, group.size(), group.label()});
  }
}

void tell_shard_dim_alltoall(
    const Group& group,
    const at::Tensor& input,
    int64_t shard_dim) {
  const int64_t size = input.size(shard_dim);
  const int64_t total = bytes(input);
  const int64_t kept = size == 0
      ? 0
      : total / size * chunk(size, group.size(), group.rank()).size();
  tell(
      group,
      CollectiveKind::kAllToAll,
      total,
      static_cast<double>(total - kept));
}

void check_defined(std::string_view where, const at::Tensor& tensor) {
  DTENSOR_CHECK_VALUE(
      tensor.defined(),
      where,
      "the tensor is undefined. Pass a tensor on every rank.");
  DTENSOR_CHECK_TYPE(
      !tensor.key_set().has_backend(detail::kDTensorBit),
      where,
      "groups communicate plain tensors, and this one of shape ",
      tensor.sizes(),
      " is a DTensor. Pass its to_local(), or redistribute() it instead.");
}

void check_reducible(
    std::string_view where,
    at::ScalarType dtype,
    ReduceOp op) {
  const bool bitwise = op == ReduceOp::kBand || op == ReduceOp::kBor ||
      op == ReduceOp::kBxor;
  const bool integral = at::isIntegralType(dtype, /*includeBool=*/true);
  DTENSOR_CHECK_TYPE(
      integral || !bitwise,
      where,
      to_string(op),
      " needs an integer or boolean dtype: ",
      short_name(dtype),
      ". Use sum, avg, min, max or product.");
  DTENSOR_CHECK_TYPE(
      !integral || op != ReduceOp::kAvg,
      where,
      "avg needs a floating-point or complex dtype: ",
      short_name(dtype),
      ". Use sum and divide.");
  const bool ordered = op == ReduceOp::kMin || op == ReduceOp::kMax;
  DTENSOR_CHECK_TYPE(
      !at::isComplexType(dtype) || !ordered,
      where,
      to_string(op),
      " needs an ordered dtype: ",
      short_name(dtype),
      ". Complex numbers take sum, avg and product.");
  DTENSOR_CHECK_TYPE(
      integral || at::isComplexType(dtype) ||
          (at::isFloatingType(dtype) && !at::isFloat8Type(dtype)),
      where,
      "cannot reduce ",
      short_name(dtype),
      ". Convert to bf16 or f32 first.");
}

int64_t
wrap_dim(std::string_view where, const at::Tensor& tensor, int64_t dim) {
  check_defined(where, tensor);
  DTENSOR_CHECK_INDEX(
      dim >= -tensor.dim() && dim < tensor.dim(),
      where,
      "no dimension ",
      dim,
      " in a tensor of ",
      tensor.dim(),
      " dimensions. Use one from ",
      -tensor.dim(),
      " to ",
      tensor.dim() - 1,
      ".");
  return dim < 0 ? dim + tensor.dim() : dim;
}

std::pair<int64_t, int64_t>
two_dims(const at::Tensor& input, int64_t gather_dim, int64_t shard_dim) {
  constexpr std::string_view kWhere = "shard_dim_alltoall";
  const int64_t gathered = wrap_dim(kWhere, input, gather_dim);
  const int64_t cut = wrap_dim(kWhere, input, shard_dim);
  DTENSOR_CHECK_VALUE(
      gathered != cut,
      kWhere,
      "gathers and cuts the same dimension, ",
      cut,
      ". Name two dimensions of the tensor.");
  return {gathered, cut};
}

} // namespace dtensor::detail
