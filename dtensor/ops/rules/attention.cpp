// SPDX-License-Identifier: BSD-3-Clause
// scaled_dot_product_attention: batches and heads are independent, so those
// dimensions may be sharded. Sequences are unsharded, except in a
// context_parallel scope (parallel/attention/context_attention.cpp). Where
// groups of query heads share a key and a value head, there are two ways.
// Either the shards consist of complete groups with their keys and values:
//
//   9 query heads, 3 of keys, on (2):   q S(1, u=3), k S(1), v S(1)
//
// or keys and values are replicated, and each rank picks those of its query
// heads:
//
//   8 query heads, 2 of keys, on (4):   q S(1), k R, v R
//
// The features of the values are independent too. If they are sharded, each
// rank computes all weights, and the features of the result that it has values
// for:
//
//   q R, k R, v S(3) -> S(3)
#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/kernels/local_kernels_impl.h>
#include <dtensor/ops/registry.h>
#include <dtensor/ops/rules/pointwise_impl.h>
#include <dtensor/ops/rules/shapes_impl.h>

#include <ATen/ExpandUtils.h>

#include <algorithm>
#include <functional>
#include <numeric>

namespace dtensor {
namespace {

using namespace detail;

// Returns the shape of the output. Batch dimensions broadcast, except the heads
// of keys and values that groups of query heads share.
Sizes output_sizes(const OpCall& call) {
  const auto q = call.inputs[0].sizes();
  const auto k = call.inputs[1].sizes();
  const auto v = call.inputs[2].sizes();
  const bool grouped = call.bool_arg("enable_gqa");
  const auto batch = [&](SizesRef t) {
    return at::IntArrayRef(t).slice(
        0, t.size() - std::min<size_t>(t.size(), grouped ? 3 : 2));
  };
  auto sizes = at::infer_size(batch(q), batch(k));
  sizes = at::infer_size(sizes, batch(v));
  Sizes result(sizes.begin(), sizes.end());
  if (grouped && q.size() > 2) {
    result.push_back(q[q.size() - 3]);
  }
  result.push_back(q[q.size() - 2]);
  result.push_back(v.back());
  return result;
}

// Checks arguments that the local call does not check, because a kernel of this
// library may replace it.
void check_arguments(const OpCall& call) {
  const auto p = call.arg("dropout_p").toDouble();
  DTENSOR_CHECK(
      p >= 0 && p <= 1,
      "[{}] dropout_p must be between 0 and 1, got {}. Pass a probability.",
      call.name(),
      p);
  DTENSOR_CHECK(
      call.inputs[0].dim() >= 2 && call.inputs[1].dim() >= 2 &&
          call.inputs[2].dim() >= 2,
      "[{}] query, key and value need two dimensions or more, got {}, {} and "
      "{}. Pass (..., length, features).",
      call.name(),
      *call.inputs[0].spec,
      *call.inputs[1].spec,
      *call.inputs[2].spec);
}

// Checks the global shape of the mask. A mask with too few rows or columns
// could fit the local shards.
void check_mask(const OpCall& call, const Sizes& output) {
  const auto* mask = call.input("attn_mask");
  if (mask == nullptr) {
    return;
  }
  auto scores = output;
  const auto k = call.inputs[1].sizes();
  scores.back() = k[k.size() - 2];
  DTENSOR_CHECK(
      at::is_expandable_to(mask->sizes(), scores),
      "[{}] attn_mask, {}, cannot be expanded to the scores, of shape {}. Pass "
      "a mask that broadcasts to that shape.",
      call.name(),
      *mask->spec,
      at::IntArrayRef(scores));
}

std::vector<OutputMeta> attention_meta(const OpCall& call) {
  check_arguments(call);
  const auto sizes = output_sizes(call);
  check_mask(call, sizes);
  const auto& query = *call.inputs[0].spec;
  auto output = dense(sizes, query.dtype());
  // The fused kernels write the dimensions in the memory order of the query.
  if (query.dim() == output.dim()) {
    output.strides = dense_strides(sizes, query.strides());
  }
  return {output};
}

bool is_grouped(const OpCall& call) {
  return call.bool_arg("enable_gqa") && call.outputs[0].dim() > 2;
}

int64_t heads_of(const OpCall& call, size_t operand) {
  const auto sizes = call.inputs[operand].sizes();
  return sizes[sizes.size() - 3];
}

// Returns the number of groups of heads that are independent of each other. A
// single key or value head belongs to every query.
int64_t count_groups(const OpCall& call) {
  int64_t groups = 0;
  for (size_t i = 1; i <= 2; ++i) {
    groups =
        heads_of(call, i) == 1 ? groups : std::gcd(groups, heads_of(call, i));
  }
  return groups == 0 ? heads_of(call, 0) : groups;
}

// Returns the strategy that shards the output as `sharding`, and the operands
// along the corresponding dimensions.
Strategy each_by_itself(const OpCall& call, const Placement& sharding) {
  Strategy s{{sharding}, {}};
  for (const auto& input : call.inputs) {
    const auto own =
        operand_shard(input.sizes(), call.outputs[0].sizes, sharding.dim());
    s.inputs.push_back(own.is_sharded() ? sharding.with_dim(own.dim()) : own);
  }
  return s;
}

// Returns the strategy that shards each operand between groups of its own
// heads.
Strategy by_groups(const OpCall& call, int64_t groups) {
  const auto unit = [&](size_t operand) {
    return std::max<int64_t>(heads_of(call, operand) / groups, 1);
  };
  auto s = each_by_itself(call, Shard(call.outputs[0].dim() - 3, unit(0)));
  for (size_t i = 1; i <= 2; ++i) {
    s.inputs[i] = heads_of(call, i) == 1
        ? Replicate()
        : Shard(call.inputs[i].dim() - 3, unit(i));
  }
  return s;
}

// Returns true if one of the first `mesh_dims` mesh dimensions shards the query
// heads but not the heads of keys or values. `layout` gives the layout of an
// operand.
bool has_more_keys(
    const OpCall& call,
    int64_t mesh_dims,
    const std::function<const Spec&(size_t)>& layout) {
  for (size_t m = 0; m < static_cast<size_t>(mesh_dims); ++m) {
    const auto shards_heads = [&](size_t operand) {
      return layout(operand).placements()[m].is_sharded(
          call.inputs[operand].dim() - 3);
    };
    if (shards_heads(0) &&
        ((heads_of(call, 1) != 1 && !shards_heads(1)) ||
         (heads_of(call, 2) != 1 && !shards_heads(2)))) {
      return true;
    }
  }
  return false;
}

void add_grouped_heads(const OpCall& call, int64_t mesh_dim, Strategies& all) {
  const auto groups = count_groups(call);
  if (groups == 0 || heads_of(call, 0) % groups != 0) {
    return;
  }
  // If an earlier mesh dimension shards queries without their keys and values,
  // this mesh dimension cannot shard them together.
  if (!has_more_keys(call, mesh_dim, [&](size_t i) -> const Spec& {
        return *call.inputs[i].spec;
      })) {
    all.push_back(by_groups(call, groups));
  }
  const auto& query = call.inputs[0];
  const auto& now = query.placement(mesh_dim);
  if (now.is_shard() && now.dim() == query.dim() - 3 &&
      query.dim() == call.outputs[0].dim()) {
    // The queries stay, and keys and values are replicated.
    all.push_back(each_by_itself(call, now));
    all.back().inputs[1] = all.back().inputs[2] = Replicate();
  }
}

Strategies attention(const OpCall& call, int64_t mesh_dim) {
  const auto dim = call.outputs[0].dim();
  Strategies all;
  for (int64_t d = 0; d + 2 < dim; ++d) {
    if (is_grouped(call) && d == dim - 3) {
      add_grouped_heads(call, mesh_dim, all);
    } else {
      all.push_back(each_by_itself(call, Shard(d)));
    }
  }
  // Dropped weights depend on the global index, which the layout of the result
  // must determine.
  if (call.arg("dropout_p").toDouble() == 0) {
    all.push_back(replicated_except(
        call, {Shard(dim - 1)}, {{2, Shard(call.inputs[2].dim() - 1)}}));
  }
  return all;
}

// Returns true if the plain operator uses the fused kernel of the CPU. LibTorch
// checks more conditions. If it uses another kernel, gradients are copied.
bool is_fused(const OpCall& call) {
  const auto& query = call.inputs[0];
  bool fits = query.dim() == 4 && call.mesh.device_type() == at::kCPU;
  for (size_t i = 0; i <= 2; ++i) {
    const auto sizes = call.inputs[i].sizes();
    fits = fits && sizes.size() == 4 && sizes[0] == query.sizes()[0] &&
        sizes.back() == query.sizes().back() &&
        (is_grouped(call) || sizes[1] == query.sizes()[1]);
  }
  return fits;
}

// Marks calls that the operator itself can run: calls without dropout whose
// keys and values need no selection for the queries.
void note_plain_call(const OpCall& call, Decision& decision) {
  const bool picks = is_grouped(call) &&
      has_more_keys(call, call.mesh.ndim(), [&](size_t i) -> const Spec& {
                       return decision.layout_of(call, i);
                     });
  if (picks) {
    keep_layout(call, decision, 1);
    keep_layout(call, decision, 2);
  }
  decision.is_plain_call = !picks && call.arg("dropout_p").toDouble() == 0 &&
      has_local_elements(decision.layout_of(call, 0)) &&
      has_local_elements(decision.layout_of(call, 1)) &&
      has_local_elements(decision.layout_of(call, 2));
  // In the gradients of the fused kernel, heads are inside of the sequence.
  if (decision.is_plain_call && is_fused(call)) {
    for (size_t i = 0; i <= 2; ++i) {
      const auto sizes = call.inputs[i].sizes();
      const auto row = sizes[1] * sizes[3];
      decision.gradient_dim_orders.push_back(
          {sizes[2] * row, sizes[3], row, 1});
    }
  }
}

} // namespace

DTENSOR_RULES(attention) {
  rules.dim_rule("scaled_dot_product_attention", attention)
      .with_meta(attention_meta)
      .with_localize(note_plain_call)
      .with_local_kernel(boxed(attention_local))
      .with_draws(attention_draws)
      .with_traits({.result_order_varies = true})
      .scalar_values();
}

} // namespace dtensor
