// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/ops/kernels/row_exchange_impl.h>

#include <dtensor/comm/init_device_mesh.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstddef>
#include <utility>

namespace dtensor::detail {
namespace {

// Sends a tensor to each rank of a mesh dimension, and receives tensors of
// these shapes. Meta tensors only get their shapes.
std::vector<at::Tensor> exchange(
    std::vector<at::Tensor> sent,
    const std::vector<Sizes>& shapes,
    const DeviceMesh& mesh,
    int64_t mesh_dim) {
  if (!sent[0].is_meta()) {
    return get_group(mesh, mesh_dim).all_to_all(sent, shapes);
  }
  for (size_t peer = 0; peer < shapes.size(); ++peer) {
    sent[peer] = at::empty(shapes[peer], sent[peer].options());
  }
  return sent;
}

// Returns the rows `part` of a tensor that consists of the rows `all`.
at::Tensor
rows_of(const at::Tensor& t, int64_t dim, Interval all, Interval part) {
  return part.size() == 0 ? t.narrow(dim, 0, 0)
                          : t.narrow(dim, part.begin - all.begin, part.size());
}

} // namespace

void for_sharded_space(
    const SpecPtr& layout,
    int64_t space,
    const std::function<void(int64_t mesh_dim, int64_t dim)>& f) {
  for (int64_t m = 0; layout != nullptr && m < layout->mesh().ndim(); ++m) {
    const auto& p = layout->placements()[static_cast<size_t>(m)];
    if (p.is_sharded() && p.dim() >= layout->dim() - space) {
      f(m, p.dim());
    }
  }
}

std::vector<Interval> rows_of_ranks(const Spec& layout, int64_t mesh_dim) {
  const auto& placement = layout.placements()[static_cast<size_t>(mesh_dim)];
  return chunks(
      layout.sizes()[static_cast<size_t>(placement.dim())],
      layout.mesh().size(mesh_dim),
      placement.unit());
}

RowExchange::RowExchange(
    const SpecPtr& layout,
    int64_t m,
    std::vector<Interval> needs)
    : RowExchange(layout, m, rows_of_ranks(*layout, m), std::move(needs)) {}

RowExchange::RowExchange(
    SpecPtr layout,
    int64_t m,
    std::vector<Interval> has,
    std::vector<Interval> needs)
    : spec(std::move(layout)),
      mesh_dim(m),
      dim(spec->placements()[static_cast<size_t>(mesh_dim)].dim()),
      held(std::move(has)),
      needed(std::move(needs)) {}

size_t RowExchange::rank() const {
  return static_cast<size_t>(spec->mesh().get_local_rank(mesh_dim));
}

const Interval& RowExchange::own(const std::vector<Interval>& all) const {
  return all[rank()];
}

bool RowExchange::communicates() const {
  return received_rows(held, needed) > 0;
}

// Sends to each other rank r the rows in both from[rank] (this rank's) and
// to[r]. Returns the rows received from each rank.
std::vector<at::Tensor> RowExchange::send(
    const at::Tensor& rows,
    const std::vector<Interval>& from,
    const std::vector<Interval>& to) const {
  const auto self = rank();
  std::vector<at::Tensor> sent;
  std::vector<Sizes> shapes;
  for (size_t peer = 0; peer < from.size(); ++peer) {
    const bool is_other = peer != self;
    const auto leaving = is_other ? overlap(from[self], to[peer]) : Interval{};
    const auto arriving = is_other ? overlap(from[peer], to[self]) : Interval{};
    sent.push_back(rows_of(rows, dim, from[self], leaving).contiguous());
    shapes.emplace_back(rows.sizes());
    shapes.back()[static_cast<size_t>(dim)] = arriving.size();
  }
  return exchange(std::move(sent), shapes, spec->mesh(), mesh_dim);
}

at::Tensor RowExchange::apply(const at::Tensor& held_rows) const {
  const auto self = rank();
  auto pieces = send(held_rows, held, needed);
  pieces[self] =
      rows_of(held_rows, dim, held[self], overlap(held[self], needed[self]));
  return at::cat(pieces, dim);
}

std::pair<at::Tensor, at::Tensor> RowExchange::halos(
    const at::Tensor& held_rows) const {
  const at::NoGradGuard no_grad;
  const auto pieces = send(held_rows, held, needed);
  const auto self = static_cast<std::ptrdiff_t>(rank());
  const auto own = pieces.begin() + self; // empty
  return {
      at::cat(std::vector(pieces.begin(), own + 1), dim),
      at::cat(std::vector(own, pieces.end()), dim)};
}

at::Tensor RowExchange::apply_adjoint(const at::Tensor& needed_rows) const {
  const auto self = rank();
  auto pieces = send(needed_rows, needed, held);
  pieces[self] = rows_of(
      needed_rows, dim, needed[self], overlap(held[self], needed[self]));
  auto sizes = needed_rows.sizes().vec();
  sizes[static_cast<size_t>(dim)] = held[self].size();
  auto result = at::zeros(sizes, needed_rows.options());
  for (size_t peer = 0; peer < held.size(); ++peer) {
    const auto rows = overlap(needed[peer], held[self]);
    if (rows.size() > 0) {
      rows_of(result, dim, held[self], rows).add_(pieces[peer]);
    }
  }
  return result;
}

at::Tensor gather_rows(
    const at::Tensor& held_rows,
    const RowExchangePtr& exchange) {
  if (!exchange->communicates()) {
    const auto& held = exchange->own(exchange->held);
    return rows_of(
        held_rows,
        exchange->dim,
        held,
        overlap(held, exchange->own(exchange->needed)));
  }
  return apply_linear(held_rows, exchange);
}

namespace {

// Rows of a result that a rank has, and the position of the first of them in
// its local tensor.
struct HeldRows {
  Interval rows;
  int64_t local_begin;
};

std::vector<HeldRows> common_rows(const Intervals& held, Interval needed) {
  std::vector<HeldRows> found;
  int64_t before = 0; // rows of earlier intervals
  for (const auto& interval : held) {
    const auto rows = overlap(interval, needed);
    if (rows.size() > 0) {
      found.push_back({rows, before + rows.begin - interval.begin});
    }
    before += interval.size();
  }
  return found;
}

int64_t count_rows(const std::vector<HeldRows>& parts) {
  int64_t count = 0;
  for (const auto& part : parts) {
    count += part.rows.size();
  }
  return count;
}

// Returns the given local rows, in one tensor.
at::Tensor joined(
    const at::Tensor& local,
    int64_t dim,
    const std::vector<HeldRows>& parts) {
  std::vector<at::Tensor> tensors{local.narrow(dim, 0, 0)};
  for (const auto& part : parts) {
    tensors.push_back(local.narrow(dim, part.local_begin, part.rows.size()));
  }
  return at::cat(tensors, dim).contiguous();
}

// Returns the rows that arrive from the ranks, in the order of their positions.
at::Tensor sorted_rows(
    const std::vector<at::Tensor>& from_ranks,
    const std::vector<std::vector<HeldRows>>& arriving,
    int64_t dim) {
  std::vector<std::pair<int64_t, at::Tensor>> parts; // by position
  for (size_t peer = 0; peer < arriving.size(); ++peer) {
    int64_t before = 0;
    for (const auto& [rows, local_begin] : arriving[peer]) {
      parts.emplace_back(
          rows.begin, from_ranks[peer].narrow(dim, before, rows.size()));
      before += rows.size();
    }
  }
  std::ranges::sort(
      parts, [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<at::Tensor> in_order{from_ranks[0].narrow(dim, 0, 0)};
  for (auto& [position, part] : parts) {
    in_order.push_back(std::move(part));
  }
  return at::cat(in_order, dim);
}

// Returns true if a rank needs rows of another rank.
bool moves_rows(
    const std::vector<Intervals>& held,
    const std::vector<Interval>& needed) {
  for (size_t from = 0; from < held.size(); ++from) {
    for (size_t to = 0; to < needed.size(); ++to) {
      if (from != to && !common_rows(held[from], needed[to]).empty()) {
        return true;
      }
    }
  }
  return false;
}

} // namespace

at::Tensor move_rows(
    const at::Tensor& rows,
    int64_t dim,
    const DeviceMesh& mesh,
    int64_t mesh_dim,
    const std::vector<Intervals>& held,
    const std::vector<Interval>& needed) {
  const auto self = static_cast<size_t>(mesh.get_local_rank(mesh_dim));
  std::vector<std::vector<HeldRows>> arriving;
  std::vector<at::Tensor> tensors;
  std::vector<Sizes> shapes;
  for (size_t peer = 0; peer < held.size(); ++peer) {
    const bool is_other = peer != self;
    const auto leaving = common_rows(held[self], needed[peer]);
    tensors.push_back(
        joined(rows, dim, is_other ? leaving : std::vector<HeldRows>()));
    arriving.push_back(common_rows(held[peer], needed[self]));
    shapes.emplace_back(rows.sizes());
    shapes.back()[static_cast<size_t>(dim)] =
        is_other ? count_rows(arriving.back()) : 0;
  }
  if (rows.is_meta() || moves_rows(held, needed)) {
    tensors = exchange(std::move(tensors), shapes, mesh, mesh_dim);
  }
  tensors[self] = joined(rows, dim, arriving[self]);
  return sorted_rows(tensors, arriving, dim);
}

std::vector<Interval>
ranges_of_ranks(Group& group, const at::Tensor& rows, int64_t dim) {
  const auto options = rows.options().dtype(at::kLong).requires_grad(false);
  const auto counts =
      group.all_gather(at::full({1}, rows.size(dim), options), 0).cpu();
  std::vector<Interval> ranges;
  int64_t begin = 0;
  for (int64_t i = 0; i < counts.numel(); ++i) {
    // A rank of a fake world gathers zeros, but has rows.
    const auto size = i == group.rank() ? rows.size(dim)
                                        : counts.const_data_ptr<int64_t>()[i];
    ranges.push_back({begin, begin + size});
    begin += size;
  }
  return ranges;
}

at::Tensor even_shard(
    const at::Tensor& rows,
    std::vector<Interval> has,
    const SpecPtr& spec,
    int64_t mesh_dim) {
  return gather_rows(
      rows,
      c10::make_intrusive<RowExchange>(
          spec, mesh_dim, std::move(has), rows_of_ranks(*spec, mesh_dim)));
}

Halo make_halo(
    const SpecPtr& layout,
    int64_t mesh_dim,
    const KernelWindow& window,
    const Spec& result) {
  std::vector<Interval> reached;
  std::vector<Interval> needed;
  const auto dim = layout->placements()[static_cast<size_t>(mesh_dim)].dim();
  const auto size = layout->sizes()[static_cast<size_t>(dim)];
  auto all_windows = rows_of_ranks(result, mesh_dim);
  for (const auto& windows : all_windows) {
    reached.push_back(window.rows_of(windows));
    needed.push_back(clip(reached.back(), size));
  }
  auto exchange = c10::make_intrusive<RowExchange>(layout, mesh_dim, needed);
  const auto own = exchange->own(reached);
  return {
      std::move(exchange),
      std::max<int64_t>(std::min<int64_t>(own.end, 0) - own.begin, 0),
      std::max<int64_t>(own.end - std::max(own.begin, size), 0),
      window,
      std::move(all_windows)};
}

} // namespace dtensor::detail
