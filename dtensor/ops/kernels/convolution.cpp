// SPDX-License-Identifier: BSD-3-Clause
// Convolutions of a rank without samples or without channels, which LibTorch
// refuses, and of sharded spatial dimensions, which need rows of other ranks.
// Also other operators that keep samples and channels apart.
#include <dtensor/ops/kernels/local_kernels_impl.h>

#include <dtensor/ops/kernels/convolution_edges_impl.h>
#include <dtensor/ops/kernels/empty_convolution_impl.h>
#include <dtensor/ops/kernels/kernel_args_impl.h>
#include <dtensor/ops/kernels/row_exchange_impl.h>
#include <dtensor/tensor/memory_order_impl.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <string_view>
#include <utility>

namespace dtensor::detail {
namespace {

// Returns local zeros for a result; an undefined tensor for an undefined
// result.
at::Tensor zeros(const SpecPtr& result, const at::Tensor& like) {
  return result == nullptr
      ? at::Tensor()
      : at::zeros(result->local_sizes(), like.options().dtype(result->dtype()));
}

// Returns the halos of the sharded spatial dimensions. `input` is null if no
// spatial dimension is sharded.
std::vector<Halo>
halos_of(const KernelArgs& args, const SpecPtr& input, const SpecPtr& result) {
  std::vector<Halo> halos;
  const auto space = args.tensor("weight").dim() - 2;
  for_sharded_space(input, space, [&](int64_t m, int64_t dim) {
    const auto number = [&](std::string_view name) {
      return element_for(
          args.at(name).toIntVector(), static_cast<size_t>(dim - 2));
    };
    const KernelWindow window{
        args.tensor("weight").size(dim),
        number("stride"),
        number("padding"),
        number("dilation")};
    halos.push_back(make_halo(input, m, window, *result));
  });
  return halos;
}

// Adds zeros around the rows of each halo.
at::Tensor pad(const at::Tensor& input, const std::vector<Halo>& halos) {
  std::vector<int64_t> pads(static_cast<size_t>(input.dim() - 2) * 2, 0);
  for (const auto& halo : halos) {
    // constant_pad_nd starts at the last dimension.
    const auto place = static_cast<size_t>(input.dim() - 1 - halo.rows->dim);
    pads[2 * place] = halo.padding_before;
    pads[2 * place + 1] = halo.padding_behind;
  }
  const bool is_padded =
      std::ranges::any_of(pads, [](auto n) { return n > 0; });
  return is_padded ? at::constant_pad_nd(input, pads, 0) : input;
}

// Returns all rows that the windows of this rank's results cover.
at::Tensor reached_rows(at::Tensor input, const std::vector<Halo>& halos) {
  for (const auto& halo : halos) {
    input = gather_rows(input, halo.rows);
  }
  return pad(input, halos);
}

// Returns zeros in the shape of reached_rows().
at::Tensor zeros_reached(
    const at::Tensor& input,
    const std::vector<Halo>& halos) {
  auto sizes = input.sizes().vec();
  for (const auto& halo : halos) {
    const auto& rows = *halo.rows;
    sizes[static_cast<size_t>(rows.dim)] = halo.padding_before +
        rows.own(rows.needed).size() + halo.padding_behind;
  }
  return at::zeros({1}, input.options()).expand(sizes);
}

// Returns this rank's rows of the gradient of the input, given the gradients of
// the rows that each rank used.
at::Tensor summed_gradient(
    at::Tensor gradient,
    const std::vector<Halo>& halos) {
  for (auto halo = halos.rbegin(); halo != halos.rend(); ++halo) {
    const auto rows = gradient.size(halo->rows->dim) - halo->padding_before -
        halo->padding_behind;
    gradient = apply_adjoint(
        gradient.narrow(halo->rows->dim, halo->padding_before, rows),
        halo->rows);
  }
  return gradient;
}

// Passes the rows that this rank's results need, without padding along the
// sharded dimensions.
void set_input(
    KernelArgs& args,
    const at::Tensor& input,
    const std::vector<Halo>& halos) {
  if (halos.empty()) {
    return;
  }
  auto padding =
      elements_for(args.at("padding").toIntVector(), input.dim() - 2);
  for (const auto& halo : halos) {
    padding[static_cast<size_t>(halo.rows->dim - 2)] = 0;
  }
  args.set("padding", std::move(padding));
  args.set("input", input);
}

// Transposed convolutions with sharded spatial dimensions. The rank gathers the
// windows that cover its rows of the result.
class TransposedInSpace {
 public:
  // Gathers the windows into `input`.
  TransposedInSpace(
      const KernelArgs& args,
      const SpecPtr& layout,
      const Spec& result,
      at::Tensor& input)
      : stride_(per_dim(args, "stride", result)),
        padding_(per_dim(args, "padding", result)),
        dilation_(per_dim(args, "dilation", result)),
        output_padding_(per_dim(args, "output_padding", result)),
        pads_(2 * stride_.size(), 0) {
    const auto weight = args.tensor("weight");
    const auto space = weight.dim() - 2;
    for_sharded_space(layout, space, [&](int64_t m, int64_t dim) {
      input = gather(layout, result, m, dim, weight.size(dim), input);
    });
  }

  // Runs the operator without its bias.
  at::Tensor run(KernelArgs& args) const {
    args.set("bias", c10::IValue());
    args.set("padding", padding_);
    args.set("output_padding", output_padding_);
    return at::constant_pad_nd(args.compute(), pads_, 0);
  }

 private:
  // Returns an argument as a list with a number for each spatial dimension.
  static std::vector<int64_t>
  per_dim(const KernelArgs& args, std::string_view name, const Spec& result) {
    return elements_for(args.at(name).toIntVector(), result.dim() - 2);
  }

  // Returns the windows that cover the rank's rows of the result. Records how
  // many rows the windows lack, or have too many, at each end.
  at::Tensor gather(
      const SpecPtr& layout,
      const Spec& result,
      int64_t mesh_dim,
      int64_t dim,
      int64_t kernel,
      const at::Tensor& input) {
    const auto d = static_cast<size_t>(dim);
    const auto i = d - 2;
    const KernelWindow window{kernel, stride_[i], padding_[i], dilation_[i]};
    const auto results = rows_of_ranks(result, mesh_dim);
    std::vector<Interval> needed;
    for (const auto& rows : results) {
      needed.push_back(window.windows_over(rows, layout->sizes()[d]));
    }
    const auto exchange =
        c10::make_intrusive<RowExchange>(layout, mesh_dim, needed);
    const auto made = window.rows_of(exchange->own(needed));
    const auto& wanted = exchange->own(results);
    const auto place = 2 * (stride_.size() - 1 - i);
    pads_[place] = made.begin - wanted.begin;
    pads_[place + 1] = wanted.end - made.end;
    padding_[i] = output_padding_[i] = 0;
    return gather_rows(input, exchange);
  }

  std::vector<int64_t> stride_;
  std::vector<int64_t> padding_;
  std::vector<int64_t> dilation_;
  std::vector<int64_t> output_padding_;
  std::vector<int64_t> pads_; // of the last dimension first
};

bool is_sharded_in_space(const SpecPtr& input) {
  bool is_sharded = false;
  for (int64_t dim = 2; input != nullptr && dim < input->dim(); ++dim) {
    is_sharded |= input->is_sharded(dim);
  }
  return is_sharded;
}

void transposed_in_space(KernelArgs& args, const Decision& decision) {
  const auto& result = *decision.outputs[0];
  auto input = args.tensor("input");
  const auto weight = args.tensor("weight");
  const auto bias = args.tensor("bias");
  const TransposedInSpace convolution(args, decision.inputs[0], result, input);
  if (input.numel() == 0 || weight.numel() == 0 ||
      numel(result.local_sizes()) == 0) {
    args.returns(empty_convolution(
        input, weight, bias, zeros(decision.outputs[0], input)));
    return;
  }
  args.set("input", input);
  auto output = convolution.run(args);
  args.returns(
      bias.defined() ? plus_bias(output, bias, input, weight) : output);
}

} // namespace

void convolution_local(KernelArgs& args, const Decision& decision) {
  if (args.flag("transposed") && is_sharded_in_space(decision.inputs[0])) {
    transposed_in_space(args, decision);
    return;
  }
  const auto& result = decision.outputs[0];
  const auto halos = halos_of(args, decision.inputs[0], result);
  const auto shard = args.tensor("input");
  const auto weight = args.tensor("weight");
  const bool has_elements =
      weight.numel() > 0 && numel(result->local_sizes()) > 0;
  // convolve_with_halos() records no gradient of the halos.
  const bool records = at::GradMode::is_enabled() &&
      (shard.requires_grad() || weight.requires_grad());
  if (halos.size() == 1 && !records && has_elements && shard.numel() > 0) {
    if (const auto edges = edge_rows(halos[0])) {
      args.returns(in_memory_order(
          convolve_with_halos(args, halos[0], *edges), result->strides()));
      return;
    }
  }
  const auto input = reached_rows(shard, halos);
  if (has_elements && input.numel() > 0) {
    set_input(args, input, halos);
    return args.run_operator();
  }
  args.returns(empty_convolution(
      input, weight, args.tensor("bias"), zeros(result, input)));
}

void convolution_backward_local(KernelArgs& args, const Decision& decision) {
  const auto halos = halos_of(args, decision.inputs[1], decision.inputs[0]);
  const auto grad_output = args.tensor("grad_output");
  const auto weight = args.tensor("weight");
  const auto shard = args.tensor("input");
  // Only the gradient of the weight depends on the values of the input.
  const auto input = decision.outputs[1] != nullptr
      ? reached_rows(shard, halos)
      : zeros_reached(shard, halos);
  if (input.numel() > 0 && weight.numel() > 0 && grad_output.numel() > 0) {
    set_input(args, input, halos);
    args.run_operator();
  } else {
    const auto gradients = empty_convolution_gradients(
        grad_output, input, weight, zeros(decision.outputs[2], grad_output));
    args.returns();
    for (size_t i = 0; i < gradients.size(); ++i) {
      args.stack().emplace_back(
          decision.outputs[i] == nullptr ? at::Tensor() : gradients[i]);
    }
  }
  auto& grad_input = torch::jit::peek(args.stack(), 0, 3);
  if (decision.outputs[0] != nullptr) {
    grad_input = summed_gradient(grad_input.toTensor(), halos);
  }
}

} // namespace dtensor::detail
