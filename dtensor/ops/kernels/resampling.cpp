// SPDX-License-Identifier: BSD-3-Clause
// Upsampling and padding of a picture of which each rank has a part. A rank
// gathers the rows that its rows of the result are made of.
#include <dtensor/ops/kernels/local_kernels_impl.h>

#include <dtensor/layout/edge_padding_impl.h>
#include <dtensor/ops/kernels/kernel_args_impl.h>
#include <dtensor/ops/kernels/row_exchange_impl.h>

#include <ATen/ops/tensor.h>

#include <utility>
#include <vector>

namespace dtensor {
namespace {

using detail::KernelArgs;
using detail::RowExchange;

// Adds `halo` rows on either side of the rows of a rank that has some.
Interval with_halo(Interval rows, int64_t halo, int64_t size) {
  return rows.size() == 0
      ? rows
      : detail::clip({rows.begin - halo, rows.end + halo}, size);
}

// Ranges of rows, by dimension.
using Ranges = std::vector<std::pair<int64_t, Interval>>;

at::Tensor own_rows(at::Tensor t, const Ranges& ranges) {
  for (const auto& [dim, rows] : ranges) {
    t = t.narrow(dim, rows.begin, rows.size());
  }
  return t.contiguous();
}

void upsample(
    KernelArgs& args,
    const Decision& decision,
    int64_t space,
    int64_t halo) {
  const auto& self = decision.inputs[0];
  auto input = args.tensor("self");
  auto sizes = args.at("output_size").toIntVector();
  Ranges own; // rows of the local result
  detail::for_sharded_space(self, space, [&](int64_t m, int64_t dim) {
    const auto d = static_cast<size_t>(dim);
    std::vector<Interval> needed;
    for (const auto& rows : detail::rows_of_ranks(*self, m)) {
      needed.push_back(with_halo(rows, halo, self->sizes()[d]));
    }
    const auto rows = c10::make_intrusive<RowExchange>(self, m, needed);
    const auto& held = rows->own(rows->held);
    input = detail::gather_rows(input, rows);
    const auto factor = decision.outputs[0]->sizes()[d] / self->sizes()[d];
    sizes[static_cast<size_t>(dim - (self->dim() - space))] =
        input.size(dim) * factor;
    const auto skipped = held.begin - rows->own(needed).begin;
    own.push_back({dim, {skipped * factor, (skipped + held.size()) * factor}});
  });
  const bool is_empty = input.numel() == 0;
  args.set("self", input);
  args.set("output_size", std::move(sizes));
  detail::zeros_if_empty(args, decision);
  if (!is_empty) {
    args.stack().back() = own_rows(args.stack().back().toTensor(), own);
  }
}

void pad(
    KernelArgs& args,
    const Decision& decision,
    int64_t space,
    bool reflects) {
  const auto& self = decision.inputs[0];
  auto input = args.tensor("self");
  auto pads = args.at("padding").toIntVector();
  detail::for_sharded_space(self, space, [&](int64_t m, int64_t dim) {
    const auto place = static_cast<size_t>(2 * (self->dim() - 1 - dim));
    const detail::EdgePadding padding{
        reflects, pads[place], self->sizes()[static_cast<size_t>(dim)]};
    const auto results = detail::rows_of_ranks(*decision.outputs[0], m);
    std::vector<Interval> needed;
    for (const auto& positions : results) {
      needed.push_back(padding.rows_of(positions));
    }
    const auto rows = c10::make_intrusive<RowExchange>(self, m, needed);
    const auto& own = rows->own(results);
    std::vector<int64_t> order;
    for (auto at = own.begin; at < own.end; ++at) {
      order.push_back(padding.row_of(at) - rows->own(needed).begin);
    }
    input = detail::gather_rows(input, rows)
                .index_select(
                    dim, at::tensor(order, input.options().dtype(at::kLong)));
    pads[place] = pads[place + 1] = 0;
  });
  args.set("self", input);
  args.set("padding", std::move(pads));
  detail::zeros_if_empty(args, decision);
}

} // namespace

LocalKernel detail::upsample_local(int64_t space, int64_t halo) {
  return boxed([space, halo](KernelArgs& args, const Decision& decision) {
    upsample(args, decision, space, halo);
  });
}

LocalKernel detail::pad_local(int64_t space, bool reflects) {
  return boxed([space, reflects](KernelArgs& args, const Decision& decision) {
    pad(args, decision, space, reflects);
  });
}

} // namespace dtensor
