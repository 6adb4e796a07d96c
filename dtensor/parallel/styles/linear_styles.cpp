// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/parallel/linear_styles.h>

#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/parallel/plan/plan_changes_impl.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

namespace dtensor {
namespace {

using detail::BoundaryLayouts;

// Parameter layouts of a style for each kind of module.
struct ParameterLayouts {
  Placement linear_weight;
  Placement linear_bias;
  Placement embedding_weight;
  Placement linear_input;
  Placement convolution_input;
};

// Parameters of a torch::nn::Conv1d to 3d or ConvTranspose1d to 3d.
struct ConvolutionParameters {
  at::Tensor weight; // (out, in / groups, space...)
  at::Tensor bias;
  int64_t groups;
  bool transposed; // the weight is (in, out / groups, space...)

  int64_t in() const {
    return transposed ? weight.size(0) : weight.size(1) * groups;
  }
  int64_t out() const {
    return transposed ? weight.size(1) * groups : weight.size(0);
  }
};

template <class Holder>
void find_convolution(
    const StyleTarget& target,
    bool transposed,
    std::optional<ConvolutionParameters>& found) {
  if (auto* module = target.module.as<Holder>()) {
    found = {
        module->weight, module->bias, module->options.groups(), transposed};
  }
}

std::optional<ConvolutionParameters> convolution_of(const StyleTarget& target) {
  std::optional<ConvolutionParameters> found;
  find_convolution<torch::nn::Conv1d>(target, false, found);
  find_convolution<torch::nn::Conv2d>(target, false, found);
  find_convolution<torch::nn::Conv3d>(target, false, found);
  find_convolution<torch::nn::ConvTranspose1d>(target, true, found);
  find_convolution<torch::nn::ConvTranspose2d>(target, true, found);
  find_convolution<torch::nn::ConvTranspose3d>(target, true, found);
  return found;
}

// Rejects max_norm, because an Embedding with max_norm writes to the rows that
// it looks up.
void check_keeps_rows(
    const StyleTarget& target,
    const char* style,
    const torch::nn::EmbeddingImpl& embedding) {
  DTENSOR_CHECK_NOT_IMPLEMENTED(
      !embedding.options.max_norm(),
      "[{}] cannot style {} with max_norm = {}: forward would write to rows of "
      "a sharded weight. Leave max_norm out, or leave the module as it is.",
      style,
      detail::describe_typed(target),
      embedding.options.max_norm().value_or(0));
}

// Changes layouts for one group to layouts for several groups: input and output
// channels are sharded together, at multiples of a group.
void shard_groups(
    const StyleTarget& target,
    const char* style,
    const ConvolutionParameters& convolution,
    ParameterLayouts& layouts) {
  DTENSOR_CHECK_VALUE(
      layouts.linear_weight.is_chunk(),
      "[{}] {} has groups = {}, and its channels are sharded by groups, not in "
      "{}. Leave out multiple_of and fused_projections.",
      style,
      detail::describe_typed(target),
      convolution.groups,
      layouts.linear_weight);
  const auto in_group = [&](int64_t size) { return size / convolution.groups; };
  layouts.linear_weight = Shard(0, in_group(convolution.weight.size(0)));
  layouts.linear_bias = Shard(0, in_group(convolution.out()));
  layouts.convolution_input = Shard(1, in_group(convolution.in()));
}

// Distributes weight and bias, and attaches one boundary to them.
void distribute_and_attach(
    detail::PlanChanges& changes,
    const StyleTarget& target,
    const at::Tensor& weight,
    const at::Tensor& bias,
    const ParameterLayouts& parameters,
    const BoundaryLayouts& layouts) {
  std::vector<at::Tensor> all = {weight};
  changes.distribute(weight, target, parameters.linear_weight, "weight");
  if (bias.defined()) {
    changes.distribute(bias, target, parameters.linear_bias, "bias");
    all.push_back(bias);
  }
  changes.attach(all, BoundaryKind::kLinear, target, layouts);
}

void apply_to_convolution(
    const StyleTarget& target,
    const char* style,
    const ConvolutionParameters& convolution,
    ParameterLayouts parameters,
    BoundaryLayouts layouts) {
  if (convolution.groups > 1) {
    shard_groups(target, style, convolution, parameters);
  } else if (convolution.transposed) {
    parameters.linear_weight =
        parameters.linear_weight.with_dim(1 - parameters.linear_weight.dim());
  }
  layouts.input.desired = parameters.convolution_input;
  layouts.input.features = convolution.in();
  layouts.input.features_dim = 1;
  detail::note_changes(target, [&](detail::PlanChanges& changes) {
    distribute_and_attach(
        changes,
        target,
        convolution.weight,
        convolution.bias,
        parameters,
        layouts);
  });
}

// Attaches one boundary to weight and bias. For a 2-D input torch::nn::Linear
// calls addmm, and for any other input matmul and then `output += bias`. Both
// products find the boundary of the weight. The addition finds the boundary of
// the bias, which adds this rank's shard to the local output
// (ops/boundary/linear_bias.cpp).
void apply_to(
    const StyleTarget& target,
    const char* style,
    const ParameterLayouts& parameters,
    BoundaryLayouts layouts) {
  if (const auto convolution = convolution_of(target)) {
    apply_to_convolution(target, style, *convolution, parameters, layouts);
    return;
  }
  detail::note_changes(target, [&](detail::PlanChanges& changes) {
    if (auto* linear = target.module.as<torch::nn::Linear>()) {
      layouts.input.desired = parameters.linear_input;
      layouts.input.features = linear->weight.size(1);
      distribute_and_attach(
          changes, target, linear->weight, linear->bias, parameters, layouts);
    } else if (auto* embedding = target.module.as<torch::nn::Embedding>()) {
      check_keeps_rows(target, style, *embedding);
      layouts.input.desired = Replicate();
      changes.distribute(
          embedding->weight, target, parameters.embedding_weight, "weight");
      changes.attach(
          {embedding->weight}, BoundaryKind::kEmbedding, target, layouts);
    } else {
      DTENSOR_THROW_NOT_IMPLEMENTED(
          "[{}] cannot style {}: only torch::nn::Linear, Embedding, Conv1d to "
          "3d and ConvTranspose1d to 3d are supported. Style its children "
          "instead.",
          style,
          detail::describe_typed(target));
    }
  });
}

// Checks that `unit` divides each of the fused projections of the sharded
// dimension.
void check_unit(
    const StyleTarget& target,
    const char* style,
    int64_t unit,
    int64_t linear_dim,
    int64_t embedding_dim,
    int64_t pieces = 1) {
  auto* linear = target.module.as<torch::nn::Linear>();
  auto* embedding = target.module.as<torch::nn::Embedding>();
  const auto convolution = convolution_of(target);
  if (linear == nullptr && embedding == nullptr && !convolution) {
    return; // rejected later
  }
  const auto size = linear != nullptr ? linear->weight.size(linear_dim)
      : convolution ? (linear_dim == 0 ? convolution->out() : convolution->in())
                    : embedding->weight.size(embedding_dim);
  DTENSOR_CHECK_VALUE(
      pieces >= 1 && size % pieces == 0,
      "[{}] {} has a dimension of {} to shard, which is not divisible into "
      "fused_projections = {} equal blocks. Set fused_projections to 3 for a "
      "fused projection of queries, keys and values, to 1 for a single "
      "projection.",
      style,
      detail::describe_module(target),
      size,
      pieces);
  DTENSOR_CHECK_VALUE(
      unit >= 1 && size / pieces % unit == 0,
      "[{}] {} has a dimension of {} to shard, which is not a multiple of "
      "multiple_of = {}. Set multiple_of to a divisor of it, such as the "
      "features of a head.",
      style,
      detail::describe_module(target),
      size / pieces,
      unit);
}

// Checks num_query_heads for a Linear with `count` units.
void check_shared_units(
    const StyleTarget& target,
    const ColwiseOptions& options,
    int64_t count) {
  DTENSOR_CHECK_VALUE(
      options.num_query_heads > 0 && count > 0 &&
          options.num_query_heads % count == 0,
      "[ColwiseParallel] {} has {} of {}, which num_query_heads = {} cannot "
      "share evenly. Set num_query_heads to a multiple of {}: the number of "
      "query heads.",
      detail::describe_module(target),
      detail::pluralize(count, "key/value head"),
      detail::pluralize(options.multiple_of, "feature"),
      options.num_query_heads,
      count);
  DTENSOR_CHECK_VALUE(
      options.fused_projections == 1,
      "[ColwiseParallel] {} has fused_projections = {} and num_query_heads. "
      "Leave out either.",
      detail::describe_module(target),
      options.fused_projections);
  const bool is_local = options.use_local_output && !target.keep_dtensors;
  DTENSOR_CHECK_VALUE(
      is_local && options.output_layouts == Shard(-1),
      "[ColwiseParallel] {}: with num_query_heads the output is a plain "
      "tensor of the heads that this rank needs, not {}{}. Leave out either "
      "num_query_heads or that layout; attention on DTensors in R selects the "
      "heads itself.",
      detail::describe_module(target),
      is_local ? "" : "a DTensor in ",
      to_string(options.output_layouts));
}

// Returns the units that num_query_heads requests.
detail::SharedUnits shared_units(
    const StyleTarget& target,
    const ColwiseOptions& options) {
  auto* linear = target.module.as<torch::nn::Linear>();
  if (options.num_query_heads == 0 || linear == nullptr) {
    DTENSOR_CHECK_NOT_IMPLEMENTED(
        options.num_query_heads == 0,
        "[ColwiseParallel] cannot use num_query_heads for {}: only "
        "torch::nn::Linear is supported. Leave it out.",
        detail::describe_typed(target));
    return {};
  }
  const auto count = linear->weight.size(0) / options.multiple_of;
  check_shared_units(target, options, count);
  return {options.multiple_of, count, options.num_query_heads};
}

Placement shard_of_style(int64_t dim, const ColwiseOptions& options) {
  return options.fused_projections == 1
      ? Shard(dim, options.multiple_of)
      : StridedShard(dim, options.fused_projections, options.multiple_of);
}

} // namespace

void ColwiseParallel::apply(const StyleTarget& target) const {
  check_unit(
      target,
      "ColwiseParallel",
      options_.multiple_of,
      0,
      1,
      options_.fused_projections);
  const auto shared = shared_units(target, options_);
  const bool is_sharded_by_units =
      shared.users == 0 || shared.is_sharded_by_units(target.mesh.size());
  const auto rows =
      is_sharded_by_units ? shard_of_style(0, options_) : Replicate();
  const int64_t channels = convolution_of(target) ? 1 : -1;
  BoundaryLayouts layouts{
      {.plain = options_.input_layouts, .desired = Replicate()},
      options_.output_layouts == Shard(-1) ? shard_of_style(channels, options_)
                                           : options_.output_layouts,
      options_.use_local_output};
  if (!is_sharded_by_units) {
    layouts.shared = shared;
  }
  apply_to(
      target,
      "ColwiseParallel",
      {rows, rows, shard_of_style(1, options_), Replicate(), Replicate()},
      layouts);
}

void RowwiseParallel::apply(const StyleTarget& target) const {
  const int64_t chunks = options_.overlap_chunks;
  const bool is_linear = target.module.as<torch::nn::Linear>() != nullptr;
  DTENSOR_CHECK_VALUE(
      chunks == 1 || (chunks > 1 && is_linear),
      "[RowwiseParallel] {} cannot be computed in {} chunks. Set "
      "overlap_chunks to 1, or to more for a torch::nn::Linear.",
      detail::describe_typed(target),
      chunks);
  const auto unit = options_.multiple_of;
  check_unit(target, "RowwiseParallel", unit, 1, 0);
  const bool is_convolution = convolution_of(target).has_value();
  apply_to(
      target,
      "RowwiseParallel",
      {Shard(1, unit),
       Replicate(),
       Shard(0, unit),
       Shard(-1, unit),
       Shard(1, unit)},
      {{.plain = options_.input_layouts.value_or(
            is_linear            ? Shard(-1, unit)
                : is_convolution ? Shard(1, unit)
                                 : Replicate()),
        .desired = Replicate()},
       options_.output_layouts,
       options_.use_local_output,
       chunks});
}

} // namespace dtensor
