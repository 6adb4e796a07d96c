// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/group_checks_impl.h>

#include <c10/util/StringUtil.h>
#include <c10/util/accumulate.h>
#include <dtensor/comm/call_impl.h>
#include <dtensor/error.h>
#include <dtensor/layout/shard_math.h>
#include <dtensor/layout/text.h>
#include <dtensor/torch_internals.h>

namespace dtensor::detail {

void observe(
    const Group& group,
    CollectiveKind kind,
    int64_t payload,
    double wire) {
  if (comm_observed()) {
    notify_comm_observers({kind, payload, wire, group.size(), group.label()});
  }
}

void observe_shard_dim_alltoall(
    const Group& group,
    const at::Tensor& input,
    int64_t shard_dim) {
  const int64_t size = input.size(shard_dim);
  const int64_t total = bytes(input);
  const int64_t kept = size == 0
      ? 0
      : total / size * chunk(size, group.size(), group.rank()).size();
  observe(
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
  if (C10_LIKELY(dtype == at::kFloat && op == ReduceOp::kSum)) {
    return;
  }
  const bool bitwise =
      op == ReduceOp::kBand || op == ReduceOp::kBor || op == ReduceOp::kBxor;
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

namespace {

void check_one_for_each(
    std::string_view where,
    const Group& group,
    size_t given,
    std::string_view what) {
  DTENSOR_CHECK_VALUE(
      static_cast<int64_t>(given) == group.size(),
      where,
      "got ",
      given,
      " ",
      what,
      " for the ",
      group.size(),
      " ranks of \"",
      group.label(),
      "\". Pass one for each, or none on any rank.");
}

} // namespace

void check_part(
    std::string_view where,
    const Group& group,
    const at::Tensor& input,
    int64_t dim,
    SizesRef sizes) {
  if (sizes.empty()) {
    return;
  }
  check_one_for_each(where, group, sizes.size(), "sizes");
  const int64_t mine = sizes[static_cast<size_t>(group.rank())];
  DTENSOR_CHECK_VALUE(
      input.size(dim) == mine,
      where,
      "this rank's part has size ",
      input.size(dim),
      " along dim ",
      dim,
      ", and by the sizes given it has ",
      mine,
      ". Give every rank the part that the layout describes.");
}

void check_total(
    std::string_view where,
    const Group& group,
    const at::Tensor& input,
    int64_t dim,
    SizesRef sizes) {
  if (sizes.empty()) {
    return;
  }
  check_one_for_each(where, group, sizes.size(), "sizes");
  const int64_t total = c10::sum_integers(sizes);
  if (total != input.size(dim)) {
    throw_wrong_total(where, group.label(), dim, total, input.size(dim));
  }
}

void check_shapes(
    std::string_view where,
    const Group& group,
    const std::vector<at::Tensor>& inputs,
    c10::ArrayRef<Sizes> shapes) {
  if (shapes.empty()) {
    return;
  }
  check_one_for_each(where, group, shapes.size(), "shapes");
  const auto me = static_cast<size_t>(group.rank());
  DTENSOR_CHECK_VALUE(
      inputs[me].sizes() == shapes[me],
      where,
      "this rank keeps a part of shape ",
      inputs[me].sizes(),
      ", and by the shapes given one of ",
      at::IntArrayRef(shapes[me]),
      ". Give every rank the part that the layout describes.");
}

namespace {

constexpr int64_t kMostElements = int64_t{1} << 48;

} // namespace

void check_told_shape(
    const GroupMembers& members,
    size_t member,
    SizesRef shape) {
  int64_t most = kMostElements;
  for (const int64_t size : shape) {
    DTENSOR_CHECK(
        size >= 0 && size <= most,
        "all_to_all",
        "rank ",
        members.ranks[member],
        " of \"",
        members.label,
        "\" says that its part has shape [",
        c10::Join(", ", shape),
        "]. Run the same program on all ranks.");
    most = size > 0 ? most / size : most;
  }
}

void check_told_sizes(const GroupMembers& members, SizesRef sizes) {
  int64_t sum = 0;
  for (size_t member = 0; member < sizes.size(); ++member) {
    const int64_t size = sizes[member];
    DTENSOR_CHECK(
        size >= 0 && size <= kMostElements - sum,
        "all_gather",
        "rank ",
        members.ranks[member],
        " of \"",
        members.label,
        "\" says that its part has ",
        size,
        " elements. Run the same program on all ranks.");
    sum += size;
  }
}

void check_received(
    const GroupMembers& members,
    int64_t from,
    const at::Tensor& like,
    const at::Tensor& message,
    bool fits_shape) {
  DTENSOR_CHECK_VALUE(
      message.scalar_type() == like.scalar_type() && fits_shape,
      "recv",
      "rank ",
      members.ranks[static_cast<size_t>(members.rank)],
      " expects ",
      describe(like),
      " but rank ",
      members.ranks[static_cast<size_t>(from)],
      " sent ",
      describe(message),
      " on \"",
      members.label,
      "\". Receive a tensor of the shape and dtype that is sent.");
}

void throw_wrong_total(
    std::string_view where,
    std::string_view label,
    int64_t dim,
    int64_t total,
    int64_t wanted) {
  DTENSOR_CHECK_VALUE(
      false,
      where,
      "the parts on \"",
      label,
      "\" have size ",
      total,
      " along dim ",
      dim,
      " together, not ",
      wanted,
      ". Give every rank the part that the layout describes.");
}

} // namespace dtensor::detail
