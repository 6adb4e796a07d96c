// SPDX-License-Identifier: BSD-3-Clause
// Pooling, upsampling and padding of a picture of which each rank has a part.
//
// To pool, a rank gathers the rows that its windows reach, from a row at which
// a window would begin. It then runs the operator with the padding of the call,
// and drops the windows of other ranks.
#include <dtensor/ops/kernels/local_kernels_impl.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <dtensor/layout/kernel_window_impl.h>
#include <dtensor/ops/kernels/kernel_args_impl.h>
#include <dtensor/ops/kernels/row_exchange_impl.h>

#include <utility>
#include <vector>

namespace dtensor {
namespace {

using detail::KernelArgs;

// A dimension of space that the ranks of a mesh dimension share.
struct PoolDim {
  detail::RowExchangePtr rows;
  int64_t skipped = 0; // windows of the ranks before
  int64_t count = 0;   // windows of this rank

  // Returns the first row that this rank needs.
  int64_t first_row() const {
    return rows->own(rows->needed).begin;
  }
};

detail::KernelWindow window_of_pool(const KernelArgs& args, size_t i) {
  const auto list = [&](std::string_view name) {
    return args.at(name).toIntVector();
  };
  const auto kernel = list("kernel_size");
  const auto stride = list("stride");
  return {
      detail::element_for(kernel, i),
      detail::element_for(stride.empty() ? kernel : stride, i),
      detail::element_for(list("padding"), i),
      args.find("dilation") < 0 ? 1 : detail::element_for(list("dilation"), i)};
}

std::vector<PoolDim>
shared_dims(const KernelArgs& args, const Decision& decision, int64_t space) {
  std::vector<PoolDim> dims;
  const auto& self = decision.inputs[0];
  detail::for_sharded_space(self, space, [&](int64_t m, int64_t dim) {
    const auto size = self->sizes()[static_cast<size_t>(dim)];
    const auto window =
        window_of_pool(args, static_cast<size_t>(dim - (self->dim() - space)));
    const auto windows = detail::rows_of_ranks(*decision.outputs[0], m);
    std::vector<Interval> needed;
    for (const auto& shard : windows) {
      needed.push_back(detail::clip(window.aligned_rows(shard), size));
    }
    const auto rows = c10::make_intrusive<detail::RowExchange>(self, m, needed);
    const auto& own = rows->own(windows);
    dims.push_back({rows, window.skipped(own), own.size()});
  });
  return dims;
}

at::Tensor own_windows(at::Tensor t, const std::vector<PoolDim>& dims) {
  for (const auto& d : dims) {
    t = t.narrow(d.rows->dim, d.skipped, d.count);
  }
  return t.contiguous();
}

// Returns positions in the global space, given positions in the space of
// `input`, the rows that this rank gathered.
at::Tensor global_positions(
    at::Tensor local,
    const at::Tensor& input,
    const Spec& self,
    const std::vector<PoolDim>& dims,
    int64_t space) {
  auto global = at::zeros(local.sizes(), local.options());
  int64_t stride = 1;
  for (auto dim = self.dim() - 1; dim >= self.dim() - space; --dim) {
    auto place = local.remainder(input.size(dim));
    local = local.floor_divide(input.size(dim));
    for (const auto& d : dims) {
      place = d.rows->dim == dim ? place + d.first_row() : place;
    }
    global = global + place * stride;
    stride *= self.sizes()[static_cast<size_t>(dim)];
  }
  return global;
}

void run_pool(KernelArgs& args, const Decision& decision, int64_t space) {
  const auto dims = shared_dims(args, decision, space);
  auto input = args.tensor("self");
  for (const auto& d : dims) {
    input = detail::gather_rows(input, d.rows);
  }
  if (input.numel() == 0 || numel(decision.outputs[0]->local_sizes()) == 0) {
    args.set("self", input.narrow(0, 0, 0));
    detail::zeros_if_empty(args, decision);
    return;
  }
  args.set("self", input);
  args.run_operator();
  const auto count = decision.outputs.size();
  auto& values = torch::jit::peek(args.stack(), 0, count);
  values = own_windows(values.toTensor(), dims);
  if (count == 2) {
    auto& indices = torch::jit::peek(args.stack(), 1, count);
    indices = global_positions(
        own_windows(indices.toTensor(), dims),
        input,
        *decision.inputs[0],
        dims,
        space);
  }
}

} // namespace

LocalKernel detail::pool_local(int64_t space) {
  return boxed([space](KernelArgs& args, const Decision& decision) {
    run_pool(args, decision, space);
  });
}

// To upsample or pad, a rank gathers the rows that its rows of the result are
// made of.

namespace {

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
