// SPDX-License-Identifier: BSD-3-Clause
// Pooling, upsampling and padding with sharded spatial dimensions. Also roll
// and flip, which move rows.
//
// To pool, a rank gathers the rows that its windows cover, starting with a row
// at which a window would begin. It then runs the operator with the padding of
// the call, and drops the windows of other ranks.
#include <dtensor/ops/kernels/local_kernels_impl.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/WrapDimMinimal.h>
#include <dtensor/layout/kernel_window_impl.h>
#include <dtensor/ops/kernels/kernel_args_impl.h>
#include <dtensor/ops/kernels/row_exchange_impl.h>
#include <dtensor/tensor/memory_order_impl.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>
#include <vector>

namespace dtensor::detail {
namespace {

// A spatial dimension that the ranks of a mesh dimension share.
struct PoolDim {
  RowExchangePtr rows;
  int64_t skipped = 0; // windows of the earlier ranks
  int64_t count = 0;   // windows of this rank

  // Returns the first row that this rank needs.
  int64_t first_row() const {
    return rows->own(rows->needed).begin;
  }
};

KernelWindow window_of_pool(const KernelArgs& args, size_t i) {
  const auto list = [&](std::string_view name) {
    return args.at(name).toIntVector();
  };
  const auto kernel = list("kernel_size");
  const auto stride = list("stride");
  return {
      element_for(kernel, i),
      element_for(stride.empty() ? kernel : stride, i),
      element_for(list("padding"), i),
      args.find("dilation") < 0 ? 1 : element_for(list("dilation"), i)};
}

std::vector<PoolDim>
shared_dims(const KernelArgs& args, const Decision& decision, int64_t space) {
  std::vector<PoolDim> dims;
  const auto& self = decision.inputs[0];
  for_sharded_space(self, space, [&](int64_t m, int64_t dim) {
    const auto size = self->sizes()[static_cast<size_t>(dim)];
    const auto window =
        window_of_pool(args, static_cast<size_t>(dim - (self->dim() - space)));
    const auto windows = rows_of_ranks(*decision.outputs[0], m);
    std::vector<Interval> needed;
    for (const auto& shard : windows) {
      needed.push_back(clip(window.aligned_rows(shard), size));
    }
    const auto rows = c10::make_intrusive<RowExchange>(self, m, needed);
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

// Returns positions among the global spatial dimensions. The given positions
// refer to `input`, the rows that this rank gathered.
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
    input = gather_rows(input, d.rows);
  }
  if (input.numel() == 0 || numel(decision.outputs[0]->local_sizes()) == 0) {
    args.set("self", input.narrow(0, 0, 0));
    zeros_of_squares_if_empty(args, decision);
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

LocalKernel pool_local(int64_t space) {
  return boxed([space](KernelArgs& args, const Decision& decision) {
    run_pool(args, decision, space);
  });
}

// To upsample or pad, a rank gathers the rows from which its rows of the result
// are computed.

namespace {

// Adds `halo` rows on either side of a rank's rows, unless the rank has no
// rows.
Interval with_halo(Interval rows, int64_t halo, int64_t size) {
  return rows.size() == 0 ? rows
                          : clip({rows.begin - halo, rows.end + halo}, size);
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
  for_sharded_space(self, space, [&](int64_t m, int64_t dim) {
    const auto d = static_cast<size_t>(dim);
    std::vector<Interval> needed;
    for (const auto& rows : rows_of_ranks(*self, m)) {
      needed.push_back(with_halo(rows, halo, self->sizes()[d]));
    }
    const auto rows = c10::make_intrusive<RowExchange>(self, m, needed);
    const auto& held = rows->own(rows->held);
    input = gather_rows(input, rows);
    const auto factor = decision.outputs[0]->sizes()[d] / self->sizes()[d];
    sizes[static_cast<size_t>(dim - (self->dim() - space))] =
        input.size(dim) * factor;
    const auto skipped = held.begin - rows->own(needed).begin;
    own.push_back({dim, {skipped * factor, (skipped + held.size()) * factor}});
  });
  const bool is_empty = input.numel() == 0;
  args.set("self", input);
  args.set("output_size", std::move(sizes));
  zeros_if_empty(args, decision);
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
  for_sharded_space(self, space, [&](int64_t m, int64_t dim) {
    const auto place = static_cast<size_t>(2 * (self->dim() - 1 - dim));
    const EdgePadding padding{
        reflects, pads[place], self->sizes()[static_cast<size_t>(dim)]};
    const auto results = rows_of_ranks(*decision.outputs[0], m);
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
    input = gather_rows(input, rows)
                .index_select(
                    dim, at::tensor(order, input.options().dtype(at::kLong)));
    pads[place] = pads[place + 1] = 0;
  });
  args.set("self", input);
  args.set("padding", std::move(pads));
  zeros_of_squares_if_empty(args, decision);
}

} // namespace

LocalKernel upsample_local(int64_t space, int64_t halo) {
  return boxed([space, halo](KernelArgs& args, const Decision& decision) {
    upsample(args, decision, space, halo);
  });
}

LocalKernel pad_local(int64_t space, bool reflects) {
  return boxed([space, reflects](KernelArgs& args, const Decision& decision) {
    pad(args, decision, space, reflects);
  });
}

// To move rows, ranks exchange them by the positions of the rows in the result.

namespace {

using Ranks = std::vector<Interval>; // a range of rows for each rank

// Returns f(rows) for the range of each rank.
std::vector<Intervals> for_each_rank(
    const Ranks& ranges,
    const std::function<Intervals(Interval)>& f) {
  std::vector<Intervals> lists;
  std::ranges::transform(ranges, std::back_inserter(lists), f);
  return lists;
}

// Returns the positions of `rows` after a shift by `shift` in a dimension of
// `size`. A range may continue at the beginning of the dimension.
Intervals rolled(Interval rows, int64_t shift, int64_t size) {
  const Interval moved{rows.begin + shift, rows.end + shift};
  const auto wraps = std::clamp(size, moved.begin, moved.end);
  return {
      Interval{moved.begin, wraps}, Interval{wraps - size, moved.end - size}};
}

// Returns the positions of `rows` after the dimension is reversed.
Intervals flipped(Interval rows, int64_t size) {
  return {Interval{size - rows.end, size - rows.begin}};
}

// Calls `f` with each mesh dimension that shards `layout`, the tensor
// dimension, and the ranks' ranges of its rows.
void for_ranges(
    const SpecPtr& layout,
    const std::function<void(int64_t mesh_dim, int64_t dim, const Ranks&)>& f) {
  for_sharded_space(layout, layout->dim(), [&](int64_t m, int64_t dim) {
    f(m, dim, rows_of_ranks(*layout, m));
  });
}

at::Tensor in_result_order(const at::Tensor& t, const Decision& decision) {
  return in_memory_order(t, decision.outputs[0]->strides());
}

} // namespace

void roll_local(KernelArgs& args, const Decision& decision) {
  const auto& layout = decision.inputs[0];
  auto result = args.tensor("self");
  const auto shifts = args.at("shifts").toIntVector();
  const auto dims = args.at("dims").toIntVector();
  if (shifts.size() != dims.size()) {
    return args.run_operator(); // throws
  }
  for (size_t i = 0; i < dims.size(); ++i) {
    const auto dim = c10::maybe_wrap_dim(dims[i], layout->dim());
    const auto size = layout->sizes()[static_cast<size_t>(dim)];
    if (!layout->is_sharded(dim)) {
      result = result.roll(shifts[i], dim);
      continue;
    }
    for_ranges(layout, [&](int64_t m, int64_t d, const Ranks& ranges) {
      if (d == dim && size > 0) {
        const auto shift = (shifts[i] % size + size) % size;
        const auto moved = for_each_rank(
            ranges, [&](Interval rows) { return rolled(rows, shift, size); });
        result = move_rows(result, d, layout->mesh(), m, moved, ranges);
      }
    });
  }
  args.returns(in_result_order(result, decision));
}

void flip_local(KernelArgs& args, const Decision& decision) {
  const auto& layout = decision.inputs[0];
  std::vector<bool> flips(static_cast<size_t>(layout->dim()), false);
  for (const auto dim : args.at("dims").toIntVector()) {
    flips[static_cast<size_t>(c10::maybe_wrap_dim(dim, layout->dim()))] = true;
  }
  auto result = args.compute();
  for_ranges(layout, [&](int64_t m, int64_t dim, const Ranks& ranges) {
    if (flips[static_cast<size_t>(dim)]) {
      const auto size = layout->sizes()[static_cast<size_t>(dim)];
      const auto moved = for_each_rank(
          ranges, [&](Interval rows) { return flipped(rows, size); });
      result = move_rows(result, dim, layout->mesh(), m, moved, ranges);
    }
  });
  args.returns(in_result_order(result, decision));
}

void constant_pad_local(KernelArgs& args, const Decision& decision) {
  const auto& layout = decision.inputs[0];
  auto input = args.tensor("self");
  auto pads = args.at("pad").toIntVector(); // of the last dimension first
  for_ranges(layout, [&](int64_t m, int64_t dim, const Ranks& ranges) {
    const auto place = static_cast<size_t>(2 * (layout->dim() - 1 - dim));
    if (place >= pads.size() || (pads[place] == 0 && pads[place + 1] == 0)) {
      return;
    }
    const auto before = pads[place];
    const auto size = layout->sizes()[static_cast<size_t>(dim)];
    const auto results = rows_of_ranks(*decision.outputs[0], m);
    Ranks needed;
    for (const auto& [begin, end] : results) {
      needed.push_back(
          {std::clamp<int64_t>(begin - before, 0, size),
           std::clamp<int64_t>(end - before, 0, size)});
    }
    const auto held =
        for_each_rank(ranges, [](Interval rows) { return Intervals{rows}; });
    input = move_rows(input, dim, layout->mesh(), m, held, needed);
    const auto rank = static_cast<size_t>(layout->mesh().get_local_rank(m));
    const auto& own = results[rank];
    pads[place] = std::clamp<int64_t>(before, own.begin, own.end) - own.begin;
    pads[place + 1] = own.size() - needed[rank].size() - pads[place];
  });
  args.set("self", input);
  args.set("pad", std::move(pads));
  args.returns(in_result_order(args.compute(), decision));
}

} // namespace dtensor::detail
