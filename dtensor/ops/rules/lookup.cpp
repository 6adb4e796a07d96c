// SPDX-License-Identifier: BSD-3-Clause
// Look-ups: places in sorted numbers, membership, elements by flat index,
// counts, and embeddings. The tensor with the keys may be sharded. The tensor
// that is searched is replicated.
#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/kernels/local_kernels_impl.h>
#include <dtensor/ops/registry.h>
#include <dtensor/ops/rules/shapes_impl.h>

#include <algorithm>

namespace dtensor {
namespace {

using namespace detail;

// Adds the strategies that shard input `i` like the result, and replicate all
// other inputs.
void add_sharded_input(const OpCall& call, size_t i, Strategies& strategies) {
  for (int64_t d = 0; d < call.inputs[i].dim(); ++d) {
    strategies.push_back(replicated_except(call, {Shard(d)}, {{i, Shard(d)}}));
  }
}

// Returns the rule of an operator that looks up each element of input `i`.
DimRule lookup(size_t i) {
  return [i](const OpCall& call, int64_t) {
    Strategies strategies;
    add_sharded_input(call, i, strategies);
    return strategies;
  };
}

// Returns the strategies of (sorted_sequence, self, sorter?). The sequence is a
// vector, or has a vector for each row of self.
Strategies searchsorted(const OpCall& call, int64_t) {
  Strategies strategies;
  if (call.inputs[0].dim() == 1) {
    add_sharded_input(call, 1, strategies);
    return strategies;
  }
  const auto last = call.inputs[0].dim() - 1;
  for (int64_t d = 0; d < last; ++d) {
    strategies.push_back(
        {{Shard(d)}, Placements(call.inputs.size(), Shard(d))});
  }
  strategies.push_back(
      replicated_except(call, {Shard(last)}, {{1, Shard(last)}}));
  return strategies;
}

at::ScalarType place_dtype(const OpCall& call) {
  return call.bool_arg("out_int32") ? at::kInt : at::kLong;
}

std::vector<OutputMeta> bucketize_meta(const OpCall& call) {
  return {dense(call.inputs[0].sizes(), place_dtype(call))};
}

// Checks global shapes, because local shapes could fit although the global
// shapes do not.
std::vector<OutputMeta> searchsorted_meta(const OpCall& call) {
  const auto& sequence = *call.inputs[0].spec;
  const auto& self = *call.inputs[1].spec;
  const auto ndim = static_cast<size_t>(sequence.dim());
  const bool rows_fit = ndim > 0 && sequence.dim() == self.dim() &&
      sequence.sizes().slice(0, ndim - 1) == self.sizes().slice(0, ndim - 1);
  const bool sorter_fits =
      call.inputs.size() < 3 || call.inputs[2].sizes() == sequence.sizes();
  DTENSOR_CHECK(
      (ndim == 1 || rows_fit) && sorter_fits,
      "[{}] needs a sorted vector, or one for each row of the values, got {} "
      "for {}. Reshape the sequence, and its sorter.",
      call.name(),
      sequence,
      self);
  return {dense(self.sizes(), place_dtype(call))};
}

std::vector<OutputMeta> take_meta(const OpCall& call) {
  return {dense(call.inputs[1].sizes(), call.inputs[0].spec->dtype())};
}

// Returns the strategies of histc: the counts of all shards add up if the
// limits of the bins are given. Without given limits, the limits depend on all
// elements.
Strategies histc(const OpCall& call, int64_t) {
  const auto low = call.arg("min").toScalar().toDouble();
  const auto high = call.arg("max").toScalar().toDouble();
  Strategies strategies;
  for (int64_t d = 0; low != high && d < call.inputs[0].dim(); ++d) {
    strategies.push_back({{partial_sum()}, {Shard(d)}});
  }
  return strategies;
}

std::vector<OutputMeta> histc_meta(const OpCall& call) {
  return {dense({call.int_arg("bins")}, call.inputs[0].spec->dtype())};
}

// Returns the number of ways to choose `r` of `n`.
int64_t choose(int64_t n, int64_t r) {
  int64_t ways = n < r ? 0 : 1;
  for (int64_t i = 0; i < std::min(r, n - r); ++i) {
    ways = ways * (n - i) / (i + 1);
  }
  return ways;
}

std::vector<OutputMeta> combinations_meta(const OpCall& call) {
  const auto& self = *call.inputs[0].spec;
  const auto r = call.int_arg("r");
  DTENSOR_CHECK(
      self.dim() == 1 && r >= 0,
      "[{}] needs a vector and a number of elements, got {} and {}. Flatten "
      "the tensor.",
      call.name(),
      self,
      r);
  if (r == 0) {
    return {dense({0}, self.dtype())};
  }
  const auto n = self.sizes()[0];
  const auto rows =
      choose(call.bool_arg("with_replacement") ? n + r - 1 : n, r);
  return {dense({rows, r}, self.dtype())};
}

// Embedding. The table may be sharded by columns; the output is then sharded
// likewise. The table may also be sharded by rows: a rank looks up the tokens
// of its rows and writes zeros for the others, and the output is Partial(sum).
// Alternatively the indices are sharded.

Strategies embedding(const OpCall& call, int64_t) {
  const auto indices_dim = call.inputs[1].dim();
  Strategies all = {
      {{partial_sum()}, {Shard(0), Replicate()}},
      {{Shard(indices_dim)}, {Shard(1), Replicate()}}};
  // scale_grad_by_freq counts the occurrences of a token in all indices.
  if (!call.bool_arg("scale_grad_by_freq")) {
    for (int64_t d = 0; d < indices_dim; ++d) {
      all.push_back({{Shard(d)}, {Replicate(), Shard(d)}});
    }
  }
  return all;
}

std::vector<OutputMeta> embedding_meta(const OpCall& call) {
  const auto& weight = *call.inputs[0].spec;
  DTENSOR_CHECK(
      weight.dim() == 2,
      "[{}] 'weight' must be 2-D, got {}. Reshape it.",
      call.name(),
      weight);
  const auto& indices = *call.inputs[1].spec;
  DTENSOR_CHECK(
      indices.dtype() == at::kLong || indices.dtype() == at::kInt,
      "[{}] the indices, {}, have another dtype than i64 and i32. Convert "
      "them.",
      call.name(),
      indices);
  Sizes sizes(indices.sizes());
  sizes.push_back(weight.sizes()[1]);
  return {dense(sizes, weight.dtype())};
}

// Keeps the spec of the weight if the local kernel needs the range of rows that
// the rank holds.
void keep_weight_spec(const OpCall& call, Decision& decision) {
  const bool is_plain = !decision.layout_of(call, 0).is_sharded(0) &&
      numel(decision.layout_of(call, 1).local_sizes()) > 0 &&
      !call.bool_arg("sparse");
  set_plain_call(call, decision, is_plain);
}

// Returns the strategies of (grad_output, indices) -> gradient of weight.
Strategies dense_backward(const OpCall& call, int64_t) {
  const auto indices_dim = call.inputs[1].dim();
  Strategies all = {
      {{Shard(1)}, {Shard(indices_dim), Replicate()}},
      {{partial_sum()}, {partial_sum(), Replicate()}}};
  if (!call.bool_arg("scale_grad_by_freq")) {
    for (int64_t d = 0; d < indices_dim; ++d) {
      all.push_back({{partial_sum()}, {Shard(d), Shard(d)}});
    }
  }
  return all;
}

std::vector<OutputMeta> dense_backward_meta(const OpCall& call) {
  const auto& grad = *call.inputs[0].spec;
  return {
      dense({call.int_arg("num_weights"), grad.sizes().back()}, grad.dtype())};
}

} // namespace

DTENSOR_RULES(lookup) {
  rules.dim_rule("bucketize.Tensor", lookup(0)).with_meta(bucketize_meta);
  rules.dim_rule("searchsorted.Tensor", searchsorted)
      .with_meta(searchsorted_meta);
  for (const auto* name : {"isin.Tensor_Tensor", "isin.Tensor_Scalar"}) {
    rules.dim_rule(name, lookup(0));
  }
  // The gradient formula adds to plain zeros.
  rules.dim_rule("take", lookup(1)).with_meta(take_meta).as_region();
  // Each combination contains elements of all shards.
  const auto none = [](const OpCall&, int64_t) { return Strategies(); };
  rules.dim_rule("combinations", none).with_meta(combinations_meta).as_region();
  rules.dim_rule("histc", histc).with_meta(histc_meta).scalar_values();
}

DTENSOR_RULES(embedding) {
  rules.dim_rule("embedding", embedding)
      .with_meta(embedding_meta)
      .with_localize(keep_weight_spec)
      .with_local_kernel(boxed(embedding_local))
      .as_region()
      .with_traits(
          {.boundary = BoundaryRole{
               .kind = BoundaryKind::kEmbedding, .input = 1, .parameter = 0}});
  rules.dim_rule("embedding_dense_backward", dense_backward)
      .with_meta(dense_backward_meta);
}

} // namespace dtensor
