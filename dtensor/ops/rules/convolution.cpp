// SPDX-License-Identifier: BSD-3-Clause
// Convolutions of (samples, channels, space...), transposed ones included.
// Samples, output channels, input channels and groups may be sharded. Sharded
// spatial dimensions may stay sharded: ranks exchange the rows beside their own
// rows that the kernel covers.
#include <dtensor/error.h>
#include <dtensor/layout/kernel_window_impl.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/kernels/local_kernels_impl.h>
#include <dtensor/ops/registry.h>
#include <dtensor/ops/rules/shapes_impl.h>
#include <dtensor/ops/rules/spatial_impl.h>

namespace dtensor {
namespace {

using namespace detail;

/// Channels of a convolution. The weight is (out, in / groups, space...), and
/// (in, out / groups, space...) if transposed.
struct Channels {
  explicit Channels(const OpCall& call)
      : groups(call.int_arg("groups")),
        transposed(call.bool_arg("transposed")),
        weight(call.input("weight")->sizes()) {}

  int64_t in() const {
    return transposed ? weight[0] : weight[1] * groups;
  }
  int64_t out() const {
    return transposed ? weight[1] * groups : weight[0];
  }

  int64_t groups;
  bool transposed;
  SizesRef weight;
};

/// Placements of the forward operands and of the result.
struct Split {
  Placement input;
  Placement weight;
  Placement bias;
  Placement output;
};

// Returns the windows along dimension `dim` of the input.
KernelWindow window_of(const OpCall& call, size_t dim) {
  return {
      call.input("weight")->sizes()[dim],
      element_for(call.ints_arg("stride"), dim - 2),
      element_for(call.ints_arg("padding"), dim - 2),
      element_for(call.ints_arg("dilation"), dim - 2)};
}

// Returns the spatial dimension along which this mesh dimension shards the
// input, if its shards may stay; 0 if there is none. `result` is the shape of
// the forward result.
int64_t kept_space(const OpCall& call, int64_t mesh_dim, SizesRef result) {
  const auto& input = *call.input("input");
  const auto dim = sharded_space(call, input, mesh_dim, 2);
  const bool transposed = call.bool_arg("transposed");
  if (dim == 0 || (transposed && call.has_arg("grad_output"))) {
    return 0;
  }
  const auto d = static_cast<size_t>(dim);
  const auto window = window_of(call, d);
  const auto size = input.sizes()[d];
  const auto needed = [&](Interval results) {
    return transposed ? window.windows_over(results, size)
                      : window.rows_of(results);
  };
  return is_worth_exchanging(input, mesh_dim, dim, result[d], needed) ? dim : 0;
}

// Returns the ways of splitting the work between ranks. Channels of several
// groups are split between groups. Only `space`, if it is not 0, needs
// communication.
std::vector<Split> splits(const Channels& channels, int64_t space) {
  const Placement all = Replicate();
  std::vector<Split> ways{{Shard(0), all, all, Shard(0)}};
  if (channels.groups == 1) {
    const int64_t out = channels.transposed ? 1 : 0;
    ways.push_back({all, Shard(out), Shard(0), Shard(1)});
    ways.push_back({Shard(1), Shard(1 - out), partial_sum(), partial_sum()});
  } else {
    const auto in_group = [&](int64_t size) { return size / channels.groups; };
    ways.push_back(
        {Shard(1, in_group(channels.in())),
         Shard(0, in_group(channels.weight[0])),
         Shard(0, in_group(channels.out())),
         Shard(1, in_group(channels.out()))});
  }
  if (space > 0) {
    ways.push_back({Shard(space), all, all, Shard(space)});
  }
  return ways;
}

Strategies convolution_rule(const OpCall& call, int64_t mesh_dim) {
  const auto space = kept_space(call, mesh_dim, call.outputs[0].sizes);
  auto ways = splits(Channels(call), space);
  const auto sum = partial_sum();
  ways.push_back({sum, Replicate(), sum, sum});
  ways.push_back({Replicate(), sum, sum, sum});
  Strategies all;
  for (const auto& way : ways) {
    all.push_back({{way.output}, {way.input, way.weight}});
    if (call.inputs.size() > 2) {
      all.back().inputs.push_back(way.bias);
    }
  }
  return all;
}

// Returns the placement of the gradient of a tensor. The gradient of a
// replicated tensor is a sum over ranks, and the gradient of a partial tensor
// is replicated.
Placement gradient_of(const Placement& p) {
  if (p.is_replicate()) {
    return partial_sum();
  }
  return p.is_partial() ? Replicate() : p;
}

// Returns the strategies for grad_output, input, weight.
Strategies convolution_backward_rule(const OpCall& call, int64_t mesh_dim) {
  const auto space =
      kept_space(call, mesh_dim, call.input("grad_output")->sizes());
  Strategies all;
  for (const auto& way : splits(Channels(call), space)) {
    all.push_back(
        {{gradient_of(way.input),
          gradient_of(way.weight),
          gradient_of(way.bias)},
         {gradient_of(way.output), way.input, way.weight}});
  }
  all.push_back(
      {{partial_sum(), partial_sum(), partial_sum()},
       {partial_sum(), Replicate(), Replicate()}});
  return all;
}

void check_operands(const OpCall& call, const Channels& channels) {
  const auto& input = *call.input("input")->spec;
  const auto& weight = *call.input("weight")->spec;
  DTENSOR_CHECK(
      input.dim() >= 3 && input.dim() == weight.dim() &&
          input.sizes()[1] == channels.in() && channels.groups > 0 &&
          channels.weight[0] % channels.groups == 0,
      "[{}] an input of {} does not fit a weight of {} in {}. Pass (samples, "
      "channels, space...) with the weight's number of input channels.",
      call.name(),
      input,
      weight,
      pluralize(channels.groups, "group"));
  const auto* bias = call.has_arg("bias") ? call.input("bias") : nullptr;
  DTENSOR_CHECK(
      input.dtype() == weight.dtype() &&
          (bias == nullptr || bias->spec->dtype() == input.dtype()),
      "[{}] the dtypes of {}, the weight, {}, and the bias, {}, differ. "
      "Convert them.",
      call.name(),
      input,
      weight,
      bias == nullptr ? "none" : to_string(*bias->spec));
  DTENSOR_CHECK(
      bias == nullptr ||
          (bias->dim() == 1 && bias->sizes()[0] == channels.out()),
      "[{}] the bias, {}, must have {}. Pass one number for each output "
      "channel.",
      call.name(),
      bias == nullptr ? input : *bias->spec,
      pluralize(channels.out(), "element"));
}

std::vector<OutputMeta> convolution_meta(const OpCall& call) {
  const Channels channels(call);
  check_operands(call, channels);
  const auto& input = *call.input("input")->spec;
  const auto output_padding = call.ints_arg("output_padding");
  Sizes sizes{input.sizes()[0], channels.out()};
  for (size_t d = 2; d < channels.weight.size(); ++d) {
    const auto window = window_of(call, d);
    DTENSOR_CHECK(
        window.stride > 0 && window.dilation > 0 && window.padding >= 0,
        "[{}] got stride {}, dilation {} and padding {}. Pass a positive "
        "stride and dilation, and a padding of at least 0.",
        call.name(),
        window.stride,
        window.dilation,
        window.padding);
    const auto size = channels.transposed
        ? window.transposed_size(
              input.sizes()[d], element_for(output_padding, d - 2))
        : window.count(input.sizes()[d]);
    DTENSOR_CHECK(
        size > 0,
        "[{}] a kernel of {} with padding {} and stride {} does not fit "
        "dimension {} of {}. Use a smaller kernel or more padding.",
        call.name(),
        window.kernel,
        window.padding,
        window.stride,
        d,
        input);
    sizes.push_back(size);
  }
  return {dense(sizes, input.dtype())};
}

std::vector<OutputMeta> convolution_backward_meta(const OpCall& call) {
  const auto mask = call.arg("output_mask").toBoolList();
  const auto& input = *call.input("input")->spec;
  const auto& weight = *call.input("weight")->spec;
  const Sizes bias{Channels(call).out()};
  return {
      mask[0] ? dense_like(input) : undefined(),
      mask[1] ? dense_like(weight) : undefined(),
      mask[2] ? dense(bias, weight.dtype()) : undefined()};
}

// Passes the layouts of the operands to the local kernel if a spatial dimension
// of the input is sharded.
void note_sharded_space(const OpCall& call, Decision& decision) {
  const auto& input =
      decision.layout_of(call, static_cast<size_t>(call.input_index("input")));
  bool is_sharded = false;
  for (int64_t dim = 2; dim < input.dim(); ++dim) {
    is_sharded |= input.is_sharded(dim);
  }
  if (!is_sharded) {
    return;
  }
  decision.is_plain_call = false;
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    keep_layout(call, decision, i);
  }
}

// Passes the number of local groups, and marks calls whose operands all have
// elements, which the operator itself can run.
void localize_groups(const OpCall& call, Decision& decision) {
  const Channels channels(call);
  const auto weight = static_cast<size_t>(call.input_index("weight"));
  const auto in_group = channels.weight[0] / channels.groups;
  if (channels.groups > 1 && in_group > 0) {
    const auto local = decision.layout_of(call, weight).local_sizes();
    decision.args.emplace_back(
        call.arg_index("groups"), local.empty() ? 0 : local[0] / in_group);
  }
  decision.is_plain_call = true;
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    decision.is_plain_call = decision.is_plain_call &&
        has_local_elements(decision.layout_of(call, i));
  }
  note_sharded_space(call, decision);
}

void localize_backward(const OpCall& call, Decision& decision) {
  localize_groups(call, decision);
  const auto grad_output = decision.layout_of(call, 0).local_sizes();
  if (!call.arg("bias_sizes").isNone() && !grad_output.empty()) {
    decision.args.emplace_back(
        call.arg_index("bias_sizes"), std::vector<int64_t>{grad_output[1]});
  }
}

} // namespace

DTENSOR_RULES(convolution) {
  const auto add = [&](const char* name) -> OpRule& {
    return rules.dim_rule(name, convolution_rule)
        .with_meta(convolution_meta)
        .with_localize(localize_groups)
        .with_local_kernel(boxed(convolution_local));
  };
  add("_convolution");
  add("convolution")
      .as_region()
      .with_traits(
          {.boundary = BoundaryRole{.input = 0, .parameter = 1, .bias = 2}});
  rules.dim_rule("convolution_backward", convolution_backward_rule)
      .with_meta(convolution_backward_meta)
      .with_localize(localize_backward)
      .with_local_kernel(boxed(convolution_backward_local));
}

} // namespace dtensor
