// SPDX-License-Identifier: BSD-3-Clause
// What a rank enters over c10d and waits for later.
#include <dtensor/comm/c10d_group_impl.h>

#include <dtensor/comm/group_checks_impl.h>
#include <dtensor/comm/part_buffers_impl.h>

#include <c10/util/accumulate.h>

namespace dtensor::detail {
namespace {

// Waits when it is asked to.
class C10dPending final : public Pending {
 public:
  C10dPending(
      std::shared_ptr<C10dGroup> group,
      std::string_view name,
      Started started,
      at::Tensor out)
      : group_(std::move(group)),
        name_(name),
        started_(std::move(started)),
        out_(std::move(out)) {}

  at::Tensor wait() override {
    if (!result_.defined()) {
      result_ = group_->wait_for(name_, started_);
      if (out_.defined()) {
        result_ = out_.copy_(result_);
      }
      started_ = {};
    }
    return result_;
  }

 private:
  std::shared_ptr<C10dGroup> group_;
  std::string_view name_;
  Started started_;
  at::Tensor out_;
  at::Tensor result_;
};

} // namespace

Started C10dGroup::begin(const AsyncCollective& collective) {
  const auto& input = collective.input;
  switch (collective.kind) {
    case CollectiveKind::kAllReduce:
      return begin_all_reduce(input, collective.op);
    case CollectiveKind::kAllGather:
      return begin_gather_along(collective);
    case CollectiveKind::kReduceScatter:
      return begin_reduce_scatter_along(collective);
    case CollectiveKind::kAllToAll:
      return begin_shard_dim_alltoall(collective);
    default:
      TORCH_INTERNAL_ASSERT(
          false, "not asynchronous: ", to_string(collective.kind));
  }
}

Started C10dGroup::begin_gather_along(const AsyncCollective& collective) {
  const auto& [kind, input, op, dim, cut_dim, given, total, out] = collective;
  const Sizes sizes = given.empty() ? ask_sizes(input.size(dim)) : given;
  const int64_t sum = c10::sum_integers(sizes);
  if (sum != total) {
    throw_wrong_total("all_gather", label(), dim, sum, total);
  }
  const auto shapes = shapes_along(input.sizes(), dim, sizes);
  const auto gathered = begin_all_gather(input.view({-1}), counts_of(shapes));
  return {gathered.work, [gathered, shapes, dim = dim] {
            return joined_from_buffer(gathered.finish(), shapes, dim);
          }};
}

Started C10dGroup::begin_reduce_scatter_along(
    const AsyncCollective& collective) {
  const auto& [kind, input, op, dim, cut_dim, given, total, out] = collective;
  const Sizes sizes =
      given.empty() ? chunk_sizes(input.size(dim), size()) : given;
  const auto shapes = shapes_along(input.sizes(), dim, sizes);
  const auto reduced = begin_reduce_scatter(
      cut_into_buffer(input, dim, sizes), counts_of(shapes), op);
  return {reduced.work, [reduced, mine = shapes[static_cast<size_t>(rank())]] {
            return reduced.finish().view(mine);
          }};
}

Started C10dGroup::begin_shard_dim_alltoall(const AsyncCollective& collective) {
  const auto& [kind, input, op, dim, cut_dim, given, total, out] = collective;
  const Sizes known = given.empty() ? ask_sizes(input.size(dim)) : given;
  const Sizes cut = chunk_sizes(input.size(cut_dim), size());
  const auto sent = split(input, cut_dim, cut);
  const auto shapes = shapes_along(
      resized(input.sizes(), cut_dim, cut[static_cast<size_t>(rank())]),
      dim,
      known);
  const auto exchanged = begin_all_to_all(
      in_one_buffer(sent), counts_of(shapes_of(sent)), counts_of(shapes));
  return {exchanged.work, [exchanged, shapes, dim = dim] {
            return joined_from_buffer(exchanged.finish(), shapes, dim);
          }};
}

PendingPtr C10dGroup::start(AsyncCollective collective) {
  const std::string_view name = to_string(collective.kind);
  auto started =
      begun(name, collective.input, [&] { return begin(collective); });
  return std::make_shared<C10dPending>(
      shared_from_this(), name, std::move(started), collective.out);
}

} // namespace dtensor::detail
