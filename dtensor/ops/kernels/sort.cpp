// SPDX-License-Identifier: BSD-3-Clause
// Sort, kthvalue and medians along a sharded dimension. To sort, each rank
// sorts its shard. The ranks find the positions at which the sorted shards
// divide into the shards of the result. Then they exchange each element once,
// in the order of their indices. A bit for each element of the sender's shard
// says whether it was sent, which gives the receiver the indices. (With more
// than 32 ranks, indices would take fewer bytes, but both are small then.)
#include <dtensor/ops/kernels/local_kernels_impl.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bitwise_left_shift.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/ops/kernels/index_kernels_impl.h>
#include <dtensor/ops/kernels/kernel_args_impl.h>
#include <dtensor/ops/kernels/linear_map_impl.h>
#include <dtensor/ops/kernels/over_shards_impl.h>
#include <dtensor/ops/kernels/sorted_rows_impl.h>

#include <algorithm>
#include <vector>

namespace dtensor::detail {
namespace {

// Sends consecutive slices of a vector to the ranks, and returns the received
// slices, concatenated.
at::Tensor exchange(
    Group& group,
    const at::Tensor& vector,
    const std::vector<int64_t>& sent,
    const std::vector<int64_t>& received) {
  std::vector<Sizes> shapes;
  for (const auto size : received) {
    shapes.push_back({size});
  }
  return at::cat(group.all_to_all(vector.split_with_sizes(sent), shapes));
}

// A permutation of elements across ranks.
struct Route : LinearMap {
  SpecPtr spec; // keeps the group's mesh
  int64_t mesh_dim = 0;
  at::Tensor send_order;    // flat positions in the shard
  at::Tensor receive_order; // positions in the received elements
  std::vector<int64_t> sent;
  std::vector<int64_t> received;
  std::vector<int64_t> from_sizes; // (rows, local size) of the operand
  std::vector<int64_t> to_sizes;   // and of the result

  Group& group() const {
    return get_group(spec->mesh(), mesh_dim);
  }
  // Returns the received elements in the order of arrival.
  at::Tensor send(const at::Tensor& rows) const {
    return exchange(
        group(),
        rows.reshape({-1}).index_select(0, send_order),
        sent,
        received);
  }
  at::Tensor arrange(const at::Tensor& arrived) const {
    return arrived.index_select(0, receive_order).view(to_sizes);
  }
  at::Tensor apply(const at::Tensor& rows) const override {
    return arrange(send(rows));
  }
  at::Tensor apply_adjoint(const at::Tensor& rows) const override {
    const auto arrived = rows.new_empty({receive_order.numel()})
                             .index_copy(0, receive_order, rows.reshape({-1}));
    const auto back = exchange(group(), arrived, received, sent);
    return back.new_empty({send_order.numel()})
        .index_copy(0, send_order, back)
        .view(from_sizes);
  }
};
using RoutePtr = c10::intrusive_ptr<Route>;

constexpr int64_t kBitsPerByte = 8;

int64_t packed_size(int64_t bits) {
  return (bits + kBitsPerByte - 1) / kBitsPerByte;
}

// Returns the values of the bits of a byte.
at::Tensor bit_values(const at::Tensor& like) {
  return at::bitwise_left_shift(
      1, at::arange(kBitsPerByte, like.options().dtype(at::kByte)));
}

// Returns one mask per receiver, (ranks, bytes): bit i of a mask is set if
// element i goes to this rank.
at::Tensor pack_masks(const at::Tensor& receivers, int64_t ranks) {
  const int64_t count = receivers.numel();
  const int64_t size = packed_size(count);
  const auto bytes = at::arange(count, receivers.options().dtype(at::kLong))
                         .floor_divide(kBitsPerByte) +
      receivers.to(at::kLong) * size;
  const auto values = bit_values(receivers).repeat(size).narrow(0, 0, count);
  return at::zeros({ranks * size}, values.options())
      .index_add(0, bytes, values)
      .view({ranks, size});
}

// Returns the positions of bits that are set, in ascending order.
at::Tensor positions_of_bits(const at::Tensor& bytes) {
  return bytes.unsqueeze(1)
      .bitwise_and(bit_values(bytes))
      .reshape({-1})
      .nonzero()
      .squeeze(1);
}

// The sort of rows along their last dimension, which the ranks of one mesh
// dimension share.
struct Sort {
  // The elements that a rank sends.
  struct Sending {
    at::Tensor counts;    // of each row for each rank, (rows, ranks)
    at::Tensor receivers; // of each element of the flattened rows
  };

  SpecPtr spec;
  int64_t dim;
  bool descending;

  Interval held(int64_t rank, int64_t ranks) const {
    return chunk(spec->sizes()[static_cast<size_t>(dim)], ranks, rank);
  }

  // Sets the order in which a rank sends the elements of its rows: by
  // receiver, then by position.
  Sending plan_sending(Route& route, const at::Tensor& rows) const {
    auto& group = route.group();
    const auto [keys, order] = stable_sort(order_keys(rows, descending), 1);
    const auto begin = held(group.rank(), group.size()).begin;
    const auto split_at = split_positions(
        {keys,
         order + begin,
         spec->sizes()[static_cast<size_t>(dim)],
         held(0, group.size()).size()},
        group);
    const auto places = at::arange(rows.size(1), split_at.options());
    const auto ends = split_at.narrow(1, 1, group.size()).contiguous();
    const auto by_key = at::searchsorted(
        ends,
        places.expand(rows.sizes()).contiguous(),
        /*out_int32=*/true,
        /*right=*/true);
    const auto receivers =
        at::empty_like(by_key).scatter_(1, order, by_key).reshape({-1});
    route.send_order = std::get<1>(stable_sort(receivers, 0));
    auto counts = split_at.diff(1, 1);
    route.sent = to_list(counts.sum(0));
    return {counts, receivers};
  }

  // Exchanges the numbers of elements of each row that a rank gets from each
  // rank. Returns these numbers, (ranks, rows).
  at::Tensor plan_receiving(Route& route, const at::Tensor& counts) const {
    std::vector<at::Tensor> columns;
    std::vector<Sizes> shapes;
    for (int64_t rank = 0; rank < counts.size(1); ++rank) {
      columns.push_back(counts.select(1, rank).contiguous());
      shapes.push_back({counts.size(0)});
    }
    auto all = at::stack(route.group().all_to_all(columns, shapes));
    route.received = to_list(all.sum(1));
    return all;
  }

  // Sets the order of the received elements: by row, then by key. Equal keys
  // arrive in the order of their indices.
  void plan_order(
      Route& route,
      const at::Tensor& values,
      const at::Tensor& counts) const {
    const auto order =
        std::get<1>(stable_sort(order_keys(values, descending), 0));
    if (counts.size(1) == 1) {
      route.receive_order = order;
      return;
    }
    const auto row = at::arange(counts.size(1), counts.options())
                         .repeat(counts.size(0))
                         .repeat_interleave(counts.reshape({-1}));
    const auto by_row = std::get<1>(stable_sort(row.index_select(0, order), 0));
    route.receive_order = order.index_select(0, by_row);
  }

  // Returns the global index of each received element. `receivers` are those
  // of this rank's elements.
  at::Tensor received_indices(const Route& route, const at::Tensor& receivers)
      const {
    auto& group = route.group();
    const int64_t num_rows = route.from_sizes[0];
    std::vector<Sizes> shapes;
    for (int64_t rank = 0; rank < group.size(); ++rank) {
      shapes.push_back(
          {packed_size(num_rows * held(rank, group.size()).size())});
    }
    auto indices =
        group.all_to_all(pack_masks(receivers, group.size()).unbind(0), shapes);
    for (int64_t rank = 0; rank < group.size(); ++rank) {
      const Interval columns = held(rank, group.size());
      auto& part = indices[static_cast<size_t>(rank)];
      part = positions_of_bits(part).remainder(
                 std::max<int64_t>(columns.size(), 1)) +
          columns.begin;
    }
    return at::cat(indices);
  }

  // Returns sorted values and their indices, and the route between the ranks.
  std::tuple<at::Tensor, at::Tensor, RoutePtr> run(
      const at::Tensor& rows) const {
    auto route = c10::make_intrusive<Route>();
    route->spec = spec;
    route->mesh_dim = mesh_dim_sharding(*spec, dim);
    route->from_sizes = rows.sizes().vec();
    const auto sending = plan_sending(*route, rows);
    const auto counts = plan_receiving(*route, sending.counts);
    const auto& group = route->group();
    route->to_sizes = {rows.size(0), held(group.rank(), group.size()).size()};
    const auto values = route->send(rows);
    plan_order(*route, values, counts);
    const auto indices = received_indices(*route, sending.receivers);
    return {route->arrange(values), route->arrange(indices), route};
  }
};

} // namespace

void sort_local(KernelArgs& args, const Decision& decision) {
  if (return_without_data(args, decision)) {
    return;
  }
  const ShardRows self(args, decision);
  const Sort sort{self.spec, self.dim, args.flag("descending")};
  const auto [values, indices, route] = sort.run(self.rows.detach());
  args.returns(
      self.restored(apply_linear(self.rows, route, values)),
      self.restored(indices));
}

// kthvalue and medians along a sharded dimension. Each rank sorts its shard,
// and the ranks find the element at a position of the globally sorted
// dimension.

namespace {

// Returns the position of the wanted element in each sorted row, (rows, 1), of
// `size` elements. NaN is the greatest element: a median is NaN if there is any
// NaN, and a nanmedian is the median of the other elements.
at::Tensor wanted_position(
    const KernelArgs& args,
    const at::Tensor& rows,
    int64_t size,
    Group& group) {
  const auto options = rows.options().dtype(at::kLong);
  const auto& op = args.base_name();
  if (op == "aten::kthvalue") {
    return at::full({rows.size(0), 1}, args.integer("k") - 1, options);
  }
  const auto nans =
      group.all_reduce(rows.isnan().sum(1, /*keepdim=*/true), ReduceOp::kSum);
  const auto middle = [](const at::Tensor& count) {
    return (count - 1).clamp_min(0).floor_divide(2);
  };
  return op == "aten::nanmedian"
      ? middle(size - nans)
      : at::where(nans.gt(0), size - nans, middle(at::full_like(nans, size)));
}

} // namespace

void selection_local(KernelArgs& args, const Decision& decision) {
  if (return_without_data(args, decision)) {
    return;
  }
  const ShardRows self(args, decision);
  const auto size = self.size;
  const auto rows = self.rows.detach();
  auto& group =
      get_group(self.spec->mesh(), mesh_dim_sharding(*self.spec, self.dim));
  const auto [keys, order] = stable_sort(order_keys(rows, false), 1);
  const auto begin = chunk(size, group.size(), group.rank()).begin;
  const auto indices = self.restored(indices_at(
      {keys, order + begin, size, chunk(size, group.size(), 0).size()},
      wanted_position(args, rows, size, group),
      group));
  const auto values =
      picked_from_shards(self.shard, {}, indices, self.dim, self.spec);
  const auto sizes = decision.outputs[0]->local_sizes();
  args.returns(values.reshape(sizes), indices.reshape(sizes));
}

// Median of all elements. The shards are rows with one element per column, and
// the ranks number the columns one rank after the other.
void median_local(KernelArgs& args, const Decision& decision) {
  const auto shard = args.tensor("self");
  if (shard.is_meta()) {
    args.returns(at::empty({}, shard.options()));
    return;
  }
  const auto& spec = *decision.inputs[0];
  const auto placements = spec.placements();
  const auto* const sharded = std::ranges::find_if(
      placements, [](const Placement& p) { return p.is_sharded(); });
  auto& group = get_group(spec.mesh(), sharded - placements.begin());
  const auto length = spec.sizes()[static_cast<size_t>(sharded->dim())];
  const auto largest =
      chunk(length, group.size(), 0).size() * (spec.numel() / length);
  const auto begin = group.rank() * largest;
  const auto row = shard.reshape({1, shard.numel()});
  const auto [keys, order] = stable_sort(order_keys(row, false), 1);
  const auto place = indices_at(
      {keys, order + begin, group.size() * largest, largest},
      wanted_position(args, row, spec.numel(), group),
      group);
  const auto here = place.ge(begin).logical_and(place.lt(begin + row.size(1)));
  const auto found = row.numel() == 0
      ? at::zeros({1, 1}, row.options())
      : row.gather(1, (place - begin).clamp(0, row.size(1) - 1))
            .masked_fill(here.logical_not(), 0);
  args.returns(group.all_reduce(found, ReduceOp::kSum).reshape({}));
}

} // namespace dtensor::detail
