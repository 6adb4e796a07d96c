// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/processes/hierarchical_impl.h>

#include <dtensor/comm/part_buffers_impl.h>
#include <dtensor/layout/shard_math.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <map>

namespace dtensor::detail {
namespace {

using Positions = std::vector<int64_t>; // of members in the whole group

// The members of each host, hosts in the order of their first members.
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

int64_t sum_of(SizesRef counts) {
  int64_t total = 0;
  for (const int64_t count : counts) {
    total += count;
  }
  return total;
}

class Hierarchical final : public GroupBackend {
 public:
  /// hosts[h][l] is the position of member (h, l).
  Hierarchical(
      GroupMembers members,
      std::vector<Positions> hosts,
      GroupBackendPtr within,
      GroupBackendPtr across,
      GroupBackendPtr flat)
      : GroupBackend(std::move(members)),
        hosts_(std::move(hosts)),
        within_(std::move(within)),
        across_(std::move(across)),
        flat_(std::move(flat)) {}

  at::Tensor all_reduce(const at::Tensor& input, ReduceOp op) override {
    const Sizes counts = chunk_sizes(input.numel(), within_->size());
    const bool divides = op == ReduceOp::kAvg;
    const ReduceOp inner = divides ? ReduceOp::kSum : op;
    at::Tensor part = within_->reduce_scatter(input.view({-1}), counts, inner);
    if (part.numel() > 0) { // on all members with this place, or on none
      part = across_->all_reduce(part, inner);
    }
    if (divides) {
      part = part / size();
    }
    return within_->all_gather(part.to(input.scalar_type()), counts)
        .view(input.sizes());
  }

  at::Tensor all_gather(const at::Tensor& input, SizesRef counts) override {
    const at::Tensor column =
        across_->all_gather(input, picked(counts, column_of(place())));
    Sizes columns;
    for (int64_t l = 0; l < within_->size(); ++l) {
      columns.push_back(sum_of(picked(counts, column_of(l))));
    }
    return in_members_order(within_->all_gather(column, columns), counts);
  }

  at::Tensor reduce_scatter(
      const at::Tensor& input,
      SizesRef counts,
      ReduceOp op) override {
    const auto parts = split(input, 0, counts);
    std::vector<at::Tensor> by_place;
    Sizes columns;
    for (int64_t l = 0; l < within_->size(); ++l) {
      for (const int64_t position : column_of(l)) {
        by_place.push_back(parts[static_cast<size_t>(position)]);
      }
      columns.push_back(sum_of(picked(counts, column_of(l))));
    }
    const bool divides = op == ReduceOp::kAvg;
    const ReduceOp inner = divides ? ReduceOp::kSum : op;
    const at::Tensor column =
        within_->reduce_scatter(at::cat(by_place), columns, inner);
    const at::Tensor mine = across_->reduce_scatter(
        column, picked(counts, column_of(place())), inner);
    return divides ? (mine / size()).to(input.scalar_type()) : mine;
  }

  // From the root to one member of each host, and on from there.
  at::Tensor broadcast(const at::Tensor& input, int64_t root) override {
    const auto [host, l] = whereabouts(root);
    const at::Tensor mine =
        place() == l ? across_->broadcast(input, host) : input;
    return within_->broadcast(mine, l);
  }

  at::Tensor all_to_all(
      const at::Tensor& input,
      SizesRef sent,
      SizesRef received) override {
    return flat_->all_to_all(input, sent, received);
  }
  void send(const at::Tensor& input, int64_t to, int64_t tag) override {
    flat_->send(input, to, tag);
  }
  at::Tensor recv(const at::Tensor& like, int64_t from, int64_t tag) override {
    return flat_->recv(like, from, tag);
  }

 private:
  // This member's l.
  int64_t place() const {
    return within_->rank();
  }
  Positions column_of(int64_t l) const {
    Positions column;
    for (const Positions& host : hosts_) {
      column.push_back(host[static_cast<size_t>(l)]);
    }
    return column;
  }
  // (h, l) of a member.
  std::pair<int64_t, int64_t> whereabouts(int64_t position) const {
    for (size_t h = 0; h < hosts_.size(); ++h) {
      const auto& host = hosts_[h];
      const auto found = std::find(host.begin(), host.end(), position);
      if (found != host.end()) {
        return {static_cast<int64_t>(h), found - host.begin()};
      }
    }
    TORCH_INTERNAL_ASSERT(false, "member ", position, " is on no host");
  }
  // What lies column after column, member after member.
  at::Tensor in_members_order(const at::Tensor& columns, SizesRef counts)
      const {
    Positions order;
    for (int64_t l = 0; l < within_->size(); ++l) {
      const auto column = column_of(l);
      order.insert(order.end(), column.begin(), column.end());
    }
    const auto parts = split(columns, 0, picked(counts, order));
    std::vector<at::Tensor> sorted(parts.size());
    for (size_t i = 0; i < parts.size(); ++i) {
      sorted[static_cast<size_t>(order[i])] = parts[i];
    }
    return at::cat(sorted);
  }

  std::vector<Positions> hosts_;
  GroupBackendPtr within_;
  GroupBackendPtr across_;
  GroupBackendPtr flat_;
};

// The backend of the members at these positions, of which `mine` is this one.
GroupBackendPtr of_some(
    const GroupMembers& all,
    const MeetingPlace& place,
    const Positions& positions,
    const std::string& name,
    const MakeBackend& make) {
  GroupMembers members{{}, 0, all.label};
  MeetingPlace own = place;
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

bool is_regular(const MeetingPlace& place) {
  const auto hosts = by_host(place.hosts);
  return hosts.front().size() > 1 && hosts.size() > 1 &&
      std::all_of(hosts.begin(), hosts.end(), [&](const Positions& host) {
           return host.size() == hosts.front().size();
         });
}

GroupBackendPtr hierarchical_backend(
    GroupMembers members,
    const MeetingPlace& place,
    const MakeBackend& within,
    const MakeBackend& across) {
  auto hosts = by_host(place.hosts);
  const auto mine =
      std::find_if(hosts.begin(), hosts.end(), [&](const auto& h) {
        return std::find(h.begin(), h.end(), members.rank) != h.end();
      });
  const auto l =
      std::find(mine->begin(), mine->end(), members.rank) - mine->begin();
  Positions column;
  Positions everybody;
  for (const Positions& host : hosts) {
    column.push_back(host[static_cast<size_t>(l)]);
    everybody.insert(everybody.end(), host.begin(), host.end());
  }
  std::sort(everybody.begin(), everybody.end());
  auto inner = of_some(
      members, place, *mine, c10::str("host ", mine - hosts.begin()), within);
  auto outer = of_some(members, place, column, c10::str("place ", l), across);
  auto flat = of_some(members, place, everybody, "all", across);
  return std::make_shared<Hierarchical>(
      std::move(members),
      std::move(hosts),
      std::move(inner),
      std::move(outer),
      std::move(flat));
}

} // namespace dtensor::detail
