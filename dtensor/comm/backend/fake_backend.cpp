// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/processes/built_in_backends_impl.h>

#include <dtensor/comm/backend/rank_notes_impl.h>
#include <dtensor/comm/group/shard_buffers_impl.h>
#include <dtensor/layout/shard_math.h>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/accumulate.h>

namespace dtensor::detail {
namespace {

class FakeBackend final : public GroupBackend {
 public:
  explicit FakeBackend(GroupMembers members)
      : GroupBackend(std::move(members), {.plain = false, .sizes = false}) {}

  InFlight submit(Collective&& collective) override {
    if (collective.kind == CollectiveKind::kSend) {
      return CollectiveResult();
    }
    notes_.clear();
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    if (is_of_lists(collective)) {
      return tensors_of(collective);
    }
    return InFlight(tensor_of(collective)).into(collective.out);
  }

  // Assumptions are recorded as in real groups, for a realistic cost.
  void assume(const Spec& spec) override {
    notes_.add(spec);
  }

 private:
  size_t me() const {
    return static_cast<size_t>(rank());
  }

  static bool is_of_lists(const Collective& c) {
    return c.kind == CollectiveKind::kGather ||
        c.kind == CollectiveKind::kAllGatherStrings ||
        (c.kind == CollectiveKind::kAllToAll && c.shard_dim < 0 &&
         c.received.empty());
  }

  std::vector<at::Tensor> tensors_of(const Collective& c) const {
    if (c.kind == CollectiveKind::kAllToAll) {
      std::vector<at::Tensor> received(c.inputs.begin(), c.inputs.end());
      for (size_t from = 0; from < c.shapes.size(); ++from) {
        received[from] = at::zeros(c.shapes[from], c.inputs[from].options());
      }
      return received;
    }
    const bool receives = c.kind != CollectiveKind::kGather || c.root == rank();
    return std::vector<at::Tensor>(
        receives ? static_cast<size_t>(size()) : 0, c.input());
  }

  // Returns the size of the result of a gather along `dim`.
  int64_t gathered_size(const Collective& c) const {
    if (c.gathered_size >= 0) {
      return c.gathered_size;
    }
    return c.sizes.empty() ? c.input().size(c.dim) * size()
                           : c10::sum_integers(c.sizes);
  }

  at::Tensor tensor_of(const Collective& c) const {
    switch (c.kind) {
      case CollectiveKind::kAllReduce:
        return c.input().clone();
      case CollectiveKind::kAllGather:
        return zeros(c, resized(c.input().sizes(), c.dim, gathered_size(c)));
      case CollectiveKind::kReduceScatter:
        return shard_of(c).clone();
      case CollectiveKind::kAllToAll:
        return c.received.empty() ? exchanged(c)
                                  : zeros(c, {c10::sum_integers(c.received)});
      case CollectiveKind::kBroadcast:
        return c.root == rank() ? c.input().clone() : at::zeros_like(c.input());
      case CollectiveKind::kScatter:
        return c.root == rank() ? c.inputs[me()].clone()
                                : at::zeros_like(c.like);
      case CollectiveKind::kRecv:
        return at::zeros_like(c.like);
      default:
        return {};
    }
  }

  at::Tensor shard_of(const Collective& c) const {
    const Interval mine =
        shard_range_of(c.input().size(c.dim), size(), c.sizes, rank());
    return c.input().narrow(c.dim, mine.begin, mine.size());
  }

  at::Tensor exchanged(const Collective& c) const {
    Sizes sizes = resized(c.input().sizes(), c.dim, gathered_size(c));
    auto& sharded = sizes[static_cast<size_t>(c.shard_dim)];
    sharded = chunk(sharded, size(), rank()).size();
    return zeros(c, sizes);
  }

  static at::Tensor zeros(const Collective& c, at::IntArrayRef sizes) {
    return at::zeros(sizes, c.input().options());
  }

  RankNotes notes_;
};

} // namespace

GroupBackendPtr fake_backend(GroupMembers members) {
  return std::make_shared<FakeBackend>(std::move(members));
}

} // namespace dtensor::detail
