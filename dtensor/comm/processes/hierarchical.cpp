// SPDX-License-Identifier: BSD-3-Clause
// The hierarchical backend. Member (h, l) is the l-th member on host h. There
// are two kinds of groups: all members on one host (same h), and all members
// with the same l, one per host. A reduction is reduce-scattered within the
// host, reduced across hosts, and gathered within the host again. Each member
// thus sends only its slice over the network, and every byte crosses the
// network once.
#include <dtensor/comm/processes/built_in_backends_impl.h>

#include <dtensor/comm/backend/decompose_impl.h>
#include <dtensor/comm/group/shard_buffers_impl.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <c10/util/accumulate.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <map>

namespace dtensor::detail {
namespace {

using Positions = std::vector<int64_t>; // positions in the full group

// Groups the members by host, with hosts in the order of their first members.
std::vector<Positions> by_host(const std::vector<std::string>& hosts) {
  std::map<std::string, size_t> known;
  std::vector<Positions> result;
  for (size_t i = 0; i < hosts.size(); ++i) {
    const auto [found, is_new] = known.emplace(hosts[i], result.size());
    if (is_new) {
      result.emplace_back();
    }
    result[found->second].push_back(static_cast<int64_t>(i));
  }
  return result;
}

Sizes picked(SizesRef counts, const Positions& positions) {
  Sizes result;
  for (const int64_t position : positions) {
    result.push_back(counts[static_cast<size_t>(position)]);
  }
  return result;
}

// Transposes hosts[h][l] into columns[l][h].
std::vector<Positions> by_place(const std::vector<Positions>& hosts) {
  std::vector<Positions> columns(hosts.front().size());
  for (const Positions& host : hosts) {
    for (size_t l = 0; l < host.size(); ++l) {
      columns[l].push_back(host[l]);
    }
  }
  return columns;
}

at::Tensor result_of(const GroupBackendPtr& backend, Collective&& collective) {
  return std::move(backend->submit(std::move(collective)).wait().tensor);
}

at::Tensor
gathered(const GroupBackendPtr& backend, at::Tensor input, Sizes counts) {
  return result_of(
      backend,
      {.kind = CollectiveKind::kAllGather,
       .inputs = std::move(input),
       .sizes = std::move(counts)});
}

at::Tensor reduce_scattered(
    const GroupBackendPtr& backend,
    at::Tensor input,
    Sizes counts,
    ReduceOp op) {
  return result_of(
      backend,
      {.kind = CollectiveKind::kReduceScatter,
       .op = op,
       .inputs = std::move(input),
       .sizes = std::move(counts)});
}

at::Tensor broadcasted(
    const GroupBackendPtr& backend,
    const at::Tensor& input,
    int64_t root) {
  return result_of(
      backend,
      {.kind = CollectiveKind::kBroadcast, .root = root, .inputs = input});
}

// Returns the terms of a reduction. The sum for an average of halves may
// overflow, so the terms are in f32.
at::Tensor terms_of(const at::Tensor& input, ReduceOp op) {
  return op == ReduceOp::kAvg && input.scalar_type() == at::kHalf
      ? input.to(at::kFloat)
      : input;
}

// The backend may overwrite the tensor.
at::Tensor
reduced(const GroupBackendPtr& backend, at::Tensor owned, ReduceOp op) {
  return result_of(
      backend,
      {.kind = CollectiveKind::kAllReduce,
       .op = op,
       .inputs = std::move(owned)});
}

class Hierarchical final : public GroupBackend {
 public:
  /// `columns[l][h]` is the position of member (h, l).
  Hierarchical(
      GroupMembers members,
      std::vector<Positions> columns,
      GroupBackendPtr within,
      GroupBackendPtr across,
      GroupBackendPtr flat)
      : GroupBackend(std::move(members)),
        columns_(std::move(columns)),
        within_(std::move(within)),
        across_(std::move(across)),
        flat_(std::move(flat)) {}

  InFlight submit(Collective&& collective) override {
    return decompose(
        std::move(collective), *this, [this](Collective&& primitive) {
          return InFlight(run(std::move(primitive)));
        });
  }
  void abandon(const std::string& why) override {
    for (const auto& backend : {within_, across_, flat_}) {
      backend->abandon(why);
    }
  }

 private:
  at::Tensor run(Collective&& c) {
    switch (c.kind) {
      case CollectiveKind::kAllReduce:
        return all_reduce(c.input(), c.op);
      case CollectiveKind::kAllGather:
        return all_gather(c.input(), c.sizes);
      case CollectiveKind::kReduceScatter:
        return reduce_scatter(c.input(), c.sizes, c.op);
      case CollectiveKind::kBroadcast:
        return broadcast(c.input(), c.root);
      default: // an all_to_all or a message
        c.is_async = false;
        return result_of(flat_, std::move(c));
    }
  }

  at::Tensor all_reduce(const at::Tensor& input, ReduceOp op) {
    const Sizes counts = chunk_sizes(input.numel(), within_->size());
    const bool divides = op == ReduceOp::kAvg;
    const ReduceOp inner = divides ? ReduceOp::kSum : op;
    at::Tensor part = reduce_scattered(
        within_, terms_of(input, op).view({-1}), counts, inner);
    if (part.numel() > 0) { // empty on all of a column or none
      part = reduced(across_, std::move(part), inner);
    }
    if (divides) {
      part = part / size();
    }
    return gathered(within_, part.to(input.scalar_type()), counts)
        .view(input.sizes());
  }

  // Gathers each column across hosts first, so that every byte crosses the
  // network once per host, then exchanges the columns within the host.
  at::Tensor all_gather(const at::Tensor& input, SizesRef counts) {
    const at::Tensor column =
        gathered(across_, input, picked(counts, my_column()));
    return in_members_order(
        gathered(within_, column, column_counts(counts)), counts);
  }

  at::Tensor
  reduce_scatter(const at::Tensor& input, SizesRef counts, ReduceOp op) {
    const auto parts = split(terms_of(input, op), 0, counts);
    std::vector<at::Tensor> by_place;
    for (const Positions& column : columns_) {
      for (const int64_t position : column) {
        by_place.push_back(parts[static_cast<size_t>(position)]);
      }
    }
    const bool divides = op == ReduceOp::kAvg;
    const ReduceOp inner = divides ? ReduceOp::kSum : op;
    const at::Tensor column = reduce_scattered(
        within_, at::cat(by_place), column_counts(counts), inner);
    const at::Tensor mine =
        reduce_scattered(across_, column, picked(counts, my_column()), inner);
    return divides ? (mine / size()).to(input.scalar_type()) : mine;
  }

  // Broadcasts from the root to one member of each host, then within each host.
  at::Tensor broadcast(const at::Tensor& input, int64_t root) {
    const auto [host, l] = host_and_index_of(root);
    const at::Tensor mine =
        place() == l ? broadcasted(across_, input, host) : input;
    return broadcasted(within_, mine, l);
  }

  // Returns this member's l.
  int64_t place() const {
    return within_->rank();
  }
  const Positions& my_column() const {
    return columns_[static_cast<size_t>(place())];
  }
  Sizes column_counts(SizesRef counts) const {
    Sizes result;
    for (const Positions& column : columns_) {
      result.push_back(c10::sum_integers(picked(counts, column)));
    }
    return result;
  }
  // Returns (h, l) of a member.
  std::pair<int64_t, int64_t> host_and_index_of(int64_t position) const {
    for (size_t l = 0; l < columns_.size(); ++l) {
      const auto& column = columns_[l];
      const auto found = std::ranges::find(column, position);
      if (found != column.end()) {
        return {found - column.begin(), static_cast<int64_t>(l)};
      }
    }
    TORCH_INTERNAL_ASSERT(false, "member ", position, " is on no host");
  }
  // Reorders rows from column-major order (all of column 0 first) to the order
  // of members.
  at::Tensor in_members_order(const at::Tensor& columns, SizesRef counts)
      const {
    Positions order;
    for (const Positions& column : columns_) {
      order.insert(order.end(), column.begin(), column.end());
    }
    const auto parts = split(columns, 0, picked(counts, order));
    std::vector<at::Tensor> sorted(parts.size());
    for (size_t i = 0; i < parts.size(); ++i) {
      sorted[static_cast<size_t>(order[i])] = parts[i];
    }
    return at::cat(sorted);
  }

  std::vector<Positions> columns_;
  GroupBackendPtr within_;
  GroupBackendPtr across_;
  GroupBackendPtr flat_;
};

// Creates the backend of the members at `positions`, which include this member.
GroupBackendPtr make_subgroup_backend(
    const GroupMembers& all,
    const RendezvousInfo& place,
    const Positions& positions,
    const std::string& name,
    const MakeBackend& make) {
  GroupMembers members{{}, 0, all.label};
  RendezvousInfo own = place;
  own.hosts.clear();
  for (const int64_t position : positions) {
    if (position == all.rank) {
      members.rank = static_cast<int64_t>(members.ranks.size());
    }
    members.ranks.push_back(all.ranks[static_cast<size_t>(position)]);
    own.hosts.push_back(place.hosts[static_cast<size_t>(position)]);
  }
  own.store = c10::make_intrusive<c10d::PrefixStore>(name, place.store);
  return make(std::move(members), own);
}

} // namespace

bool is_regular(const RendezvousInfo& place) {
  const auto hosts = by_host(place.hosts);
  return hosts.front().size() > 1 && hosts.size() > 1 &&
      std::ranges::all_of(hosts, [&](const Positions& host) {
           return host.size() == hosts.front().size();
         });
}

GroupBackendPtr hierarchical_backend(
    GroupMembers members,
    const RendezvousInfo& place,
    const MakeBackend& within,
    const MakeBackend& across) {
  const auto hosts = by_host(place.hosts);
  auto columns = by_place(hosts);
  const auto holds_me = [&](const Positions& positions) {
    return std::ranges::count(positions, members.rank) > 0;
  };
  const auto host = std::ranges::find_if(hosts, holds_me);
  const auto column = std::ranges::find_if(columns, holds_me);
  auto inner = make_subgroup_backend(
      members, place, *host, c10::str("host ", host - hosts.begin()), within);
  auto outer = make_subgroup_backend(
      members,
      place,
      *column,
      c10::str("place ", column - columns.begin()),
      across);
  RendezvousInfo of_all = place;
  of_all.store = c10::make_intrusive<c10d::PrefixStore>("all", place.store);
  auto flat = across(members, of_all);
  return std::make_shared<Hierarchical>(
      std::move(members),
      std::move(columns),
      std::move(inner),
      std::move(outer),
      std::move(flat));
}

} // namespace dtensor::detail
