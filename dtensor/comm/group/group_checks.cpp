// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/group/group_checks_impl.h>

#include <c10/util/StringUtil.h>
#include <c10/util/accumulate.h>
#include <dtensor/comm/backend/call_impl.h>
#include <dtensor/comm/group/shard_buffers_impl.h>
#include <dtensor/comm/observer.h>
#include <dtensor/error.h>
#include <dtensor/layout/shard_math.h>
#include <dtensor/layout/text.h>
#include <dtensor/torch_internals.h>

#include <algorithm>

namespace dtensor::detail {
namespace {

int64_t bytes(const at::Tensor& tensor) {
  return static_cast<int64_t>(tensor.nbytes());
}

// Returns the bytes of the result of an all_gather. Estimates them from this
// rank's shard if the total size is unknown.
int64_t gathered_bytes(
    const Group& group,
    const Collective& c,
    const at::Tensor& gathered) {
  if (gathered.defined()) {
    return bytes(gathered);
  }
  if (c.gathered_size < 0) {
    return bytes(c.input()) * group.size();
  }
  Sizes sizes(c.input().sizes());
  sizes[static_cast<size_t>(c.dim)] = c.gathered_size;
  return c10::multiply_integers(sizes) * c.input().element_size();
}

// Returns the bytes of an all_to_all that stay on this rank.
int64_t kept_bytes(const Group& group, const Collective& c) {
  const auto me = static_cast<size_t>(group.rank());
  if (!c.received.empty()) {
    return c.sizes[me] * c.input().element_size();
  }
  if (c.shard_dim < 0) {
    return bytes(c.inputs[me]);
  }
  const int64_t size = c.input().size(c.shard_dim);
  return size == 0 ? 0
                   : bytes(c.input()) / size *
          chunk(size, group.size(), group.rank()).size();
}

// Returns the bytes that this rank sends.
double sent_bytes(
    const Group& group,
    const Collective& c,
    const at::Tensor& gathered) {
  const auto in_ring = [&](int64_t buffer) {
    return wire_bytes(c.kind, group.size(), static_cast<double>(buffer));
  };
  switch (c.kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kScatter:
      return in_ring(c.input_bytes());
    case CollectiveKind::kAllGather:
      return in_ring(gathered_bytes(group, c, gathered));
    case CollectiveKind::kAllToAll:
      return static_cast<double>(c.input_bytes() - kept_bytes(group, c));
    case CollectiveKind::kGather:
      return group.rank() == c.root ? 0 : static_cast<double>(c.input_bytes());
    default:
      return static_cast<double>(c.input_bytes());
  }
}

} // namespace

void observe(
    const Group& group,
    const Collective& collective,
    const at::Tensor& gathered) {
  if (comm_observed()) {
    notify_comm_observers(
        {.kind = collective.kind,
         .payload_bytes = collective.input_bytes(),
         .wire_bytes = sent_bytes(group, collective, gathered),
         .group_size = group.size(),
         .label = group.label()});
  }
}

void check_defined(std::string_view where, const at::Tensor& tensor) {
  DTENSOR_CHECK_VALUE(
      tensor.defined(),
      "[{}] the tensor is undefined. Pass a tensor on every rank.",
      where);
  DTENSOR_CHECK_TYPE(
      !tensor.key_set().has_backend(detail::kDTensorBit),
      "[{}] expected a plain tensor, got a DTensor of shape {}. Pass its "
      "to_local(), or call redistribute() instead.",
      where,
      tensor.sizes());
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
      "[{}] {} needs an integer or boolean dtype: {}. Use sum, avg, min, max "
      "or product.",
      where,
      to_string(op),
      short_name(dtype));
  DTENSOR_CHECK_TYPE(
      !integral || op != ReduceOp::kAvg,
      "[{}] avg needs a floating-point or complex dtype: {}. Use sum and "
      "divide.",
      where,
      short_name(dtype));
  const bool ordered = op == ReduceOp::kMin || op == ReduceOp::kMax;
  DTENSOR_CHECK_TYPE(
      !at::isComplexType(dtype) || !ordered,
      "[{}] {} needs an ordered dtype: {}. Complex dtypes support sum, avg and "
      "product.",
      where,
      to_string(op),
      short_name(dtype));
  DTENSOR_CHECK_TYPE(
      integral || at::isComplexType(dtype) ||
          (at::isFloatingType(dtype) && !at::isFloat8Type(dtype)),
      "[{}] cannot reduce {}. Convert to bf16 or f32 first.",
      where,
      short_name(dtype));
}

int64_t
wrap_dim(std::string_view where, const at::Tensor& tensor, int64_t dim) {
  check_defined(where, tensor);
  DTENSOR_CHECK_INDEX(
      dim >= -tensor.dim() && dim < tensor.dim(),
      "[{}] no dimension {} in a tensor of {}. Use one from {} to {}.",
      where,
      dim,
      pluralize(tensor.dim(), "dimension"),
      -tensor.dim(),
      tensor.dim() - 1);
  return dim < 0 ? dim + tensor.dim() : dim;
}

std::pair<int64_t, int64_t>
two_dims(const at::Tensor& input, int64_t gather_dim, int64_t shard_dim) {
  constexpr std::string_view kWhere = "shard_dim_alltoall";
  const int64_t gathered = wrap_dim(kWhere, input, gather_dim);
  const int64_t sharded = wrap_dim(kWhere, input, shard_dim);
  DTENSOR_CHECK_VALUE(
      gathered != sharded,
      "[{}] gather_dim and shard_dim are both {}. Pass two different "
      "dimensions.",
      kWhere,
      sharded);
  return {gathered, sharded};
}

namespace {

// The sum over fewer than 2^15 ranks does not overflow.
constexpr int64_t kMostElements = int64_t{1} << 48;

void check_one_for_each(
    std::string_view where,
    const Group& group,
    size_t given,
    std::string_view noun) {
  DTENSOR_CHECK_VALUE(
      static_cast<int64_t>(given) == group.size(),
      "[{}] got {} for {} of \"{}\". Pass one for each, or none on any rank.",
      where,
      pluralize(given, noun),
      pluralize(group.size(), "rank"),
      group.label());
}

// Throws ValueError unless the shards' total size is `wanted`.
void check_total_size(
    std::string_view where,
    std::string_view label,
    int64_t dim,
    int64_t total,
    int64_t wanted) {
  DTENSOR_CHECK_VALUE(
      total == wanted,
      "[{}] the shards on \"{}\" have total size {} along dim {}, expected {}. "
      "Pass the shard that the layout describes on every rank.",
      where,
      label,
      total,
      dim,
      wanted);
}

} // namespace

void check_sizes(
    std::string_view where,
    std::string_view label,
    SizesRef sizes) {
  DTENSOR_CHECK_VALUE(
      std::ranges::all_of(sizes, [](int64_t size) { return size >= 0; }),
      "[{}] negative sizes on \"{}\": {}. Pass 0 for a rank without elements.",
      where,
      label,
      sizes);
  DTENSOR_CHECK_VALUE(
      std::ranges::all_of(
          sizes, [](int64_t size) { return size <= kMostElements; }),
      "[{}] sizes above 2^48 on \"{}\": {}. Pass each rank's number of "
      "elements.",
      where,
      label,
      sizes);
}

void check_shard_size(
    std::string_view where,
    const Group& group,
    const at::Tensor& input,
    int64_t dim,
    SizesRef sizes) {
  if (sizes.empty()) {
    return;
  }
  check_one_for_each(where, group, sizes.size(), "size");
  check_sizes(where, group.label(), sizes);
  const int64_t mine = sizes[static_cast<size_t>(group.rank())];
  DTENSOR_CHECK_VALUE(
      input.size(dim) == mine,
      "[{}] this rank's shard has size {} along dim {}, but `sizes` gives {}. "
      "Pass the shard that the layout describes on every rank.",
      where,
      input.size(dim),
      dim,
      mine);
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
  check_one_for_each(where, group, sizes.size(), "size");
  check_sizes(where, group.label(), sizes);
  check_total_size(
      where, group.label(), dim, c10::sum_integers(sizes), input.size(dim));
}

void check_gathered_size(
    const Collective& collective,
    std::string_view label,
    int64_t total) {
  if (collective.gathered_size >= 0) {
    check_total_size(
        collective.name(),
        label,
        collective.dim,
        total,
        collective.gathered_size);
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
  check_one_for_each(where, group, shapes.size(), "shape");
  const auto me = static_cast<size_t>(group.rank());
  DTENSOR_CHECK_VALUE(
      inputs[me].sizes() == shapes[me],
      "[{}] this rank's own input has shape {}, but `shapes` gives {}. Pass "
      "the shard that the layout describes on every rank.",
      where,
      inputs[me].sizes(),
      at::IntArrayRef(shapes[me]));
}

void check_remote_shape(
    std::string_view where,
    const GroupMembers& members,
    size_t member,
    SizesRef shape) {
  DTENSOR_CHECK(
      is_valid_shape(shape, kMostElements),
      "[{}] rank {} of \"{}\" sent an invalid shape: [{}]. Run the same "
      "program on all ranks.",
      where,
      members.ranks[member],
      members.label,
      c10::Join(", ", shape));
}

void check_remote_sizes(
    std::string_view where,
    const GroupMembers& members,
    SizesRef sizes) {
  int64_t sum = 0;
  for (size_t member = 0; member < sizes.size(); ++member) {
    const int64_t size = sizes[member];
    DTENSOR_CHECK(
        size >= 0 && size <= kMostElements - sum,
        "[{}] rank {} of \"{}\" sent an invalid number of elements: {}. Run "
        "the same program on all ranks.",
        where,
        members.ranks[member],
        members.label,
        size);
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
      "[recv] rank {} expects {} but rank {} sent {} on \"{}\". Receive a "
      "tensor of the shape and dtype that is sent.",
      members.ranks[static_cast<size_t>(members.rank)],
      describe_tensor(like),
      members.ranks[static_cast<size_t>(from)],
      describe_tensor(message),
      members.label);
}

} // namespace dtensor::detail
