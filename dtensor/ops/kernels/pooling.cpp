// SPDX-License-Identifier: BSD-3-Clause
// Pooling of a picture of which each rank has a part. A rank gathers the rows
// that its windows reach, from a row at which a window would begin, runs the
// operator with the padding of the call, and drops the windows of other ranks.
#include <dtensor/ops/kernels/local_kernels_impl.h>

#include <dtensor/ops/kernels/kernel_args_impl.h>
#include <dtensor/ops/kernels/row_exchange_impl.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>

#include <utility>

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

} // namespace dtensor
