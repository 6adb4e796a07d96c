// SPDX-License-Identifier: BSD-3-Clause
// scaled_dot_product_attention: batches and heads are independent of each
// other, so those dimensions may be sharded; sequences are whole.
#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/kernels/local_kernels_impl.h>
#include <dtensor/ops/registry.h>
#include <dtensor/ops/rules/pointwise_impl.h>

#include <ATen/ExpandUtils.h>

#include <algorithm>

namespace dtensor {
namespace {

// Batch dimensions broadcast, except the heads of keys and values that are
// shared by groups of query heads.
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

// In memory the dimensions stand in the order of the query's, which is how the
// fused kernels write them.
Sizes output_strides(SizesRef sizes, const OpInput& query) {
  return query.dim() == static_cast<int64_t>(sizes.size())
      ? dense_strides(sizes, query.spec->strides())
      : dtensor::contiguous_strides(sizes);
}

// What the local call cannot be asked: a kernel of ours may stand in for it.
void check_arguments(const OpCall& call) {
  const auto p = call.arg("dropout_p").toDouble();
  DTENSOR_CHECK(
      p >= 0 && p <= 1,
      call.name(),
      "dropout_p must be between 0 and 1, got ",
      p,
      ". Pass such a number.");
  DTENSOR_CHECK(
      call.inputs[0].dim() >= 2 && call.inputs[1].dim() >= 2 &&
          call.inputs[2].dim() >= 2,
      call.name(),
      "query, key and value need two dimensions or more, got ",
      *call.inputs[0].spec,
      ", ",
      *call.inputs[1].spec,
      " and ",
      *call.inputs[2].spec,
      ". Pass (..., length, features).");
}

// Of the parts of ranks a mask of too few might fit.
void check_mask(const OpCall& call, const Sizes& output) {
  const auto* mask = call.input("attn_mask");
  if (mask == nullptr) {
    return;
  }
  auto scores = output;
  const auto k = call.inputs[1].sizes();
  scores.back() = k[k.size() - 2];
  bool fits = mask->sizes().size() <= scores.size();
  for (size_t i = 0; fits && i < mask->sizes().size(); ++i) {
    const auto size = mask->sizes()[i];
    fits =
        size == 1 || size == scores[scores.size() - mask->sizes().size() + i];
  }
  DTENSOR_CHECK(
      fits,
      call.name(),
      "attn_mask, ",
      *mask->spec,
      ", does not expand to the scores, of shape ",
      at::IntArrayRef(scores),
      ". Pass a mask that does.");
}

std::vector<OutputMeta> attention_meta(const OpCall& call) {
  check_arguments(call);
  const auto sizes = output_sizes(call);
  check_mask(call, sizes);
  return {
      {sizes,
       output_strides(sizes, call.inputs[0]),
       call.inputs[0].spec->dtype(),
       true}};
}

// Groups of query heads stay with their key and value head: both head counts
// must divide by the number of ranks that cut them.
bool groups_divide(const OpCall& call, int64_t mesh_dim, int64_t head_dim) {
  int64_t parts = 1;
  for (int64_t m = 0; m < call.mesh.ndim(); ++m) {
    bool cut = m == mesh_dim;
    for (size_t i = 0; i < 3; ++i) {
      cut |= call.inputs[i].placement(m).cuts(head_dim);
    }
    parts *= cut ? call.mesh.size(m) : 1;
  }
  const auto heads = [&](size_t i) {
    return call.inputs[i].sizes()[static_cast<size_t>(head_dim)];
  };
  return heads(0) % parts == 0 && (heads(1) % parts == 0 || heads(1) == 1) &&
      (heads(2) % parts == 0 || heads(2) == 1);
}

// Dimension `d` of the output is cut; where is that in an operand?
Placement operand_placement(
    const OpCall& call,
    size_t operand,
    int64_t d,
    bool grouped_heads) {
  const auto& input = call.inputs[operand];
  const auto own = d - (call.outputs[0].dim() - input.dim());
  const bool shared =
      grouped_heads && own >= 0 && input.sizes()[static_cast<size_t>(own)] != 1;
  return shared
      ? Shard(own)
      : detail::operand_shard(input.sizes(), call.outputs[0].sizes, d);
}

Strategies attention(const OpCall& call, int64_t mesh_dim) {
  const auto dim = call.outputs[0].dim();
  Strategies all;
  for (int64_t d = 0; d + 2 < dim; ++d) {
    const bool grouped_heads = call.bool_arg("enable_gqa") && d == dim - 3;
    if (grouped_heads && !groups_divide(call, mesh_dim, d)) {
      continue;
    }
    Strategy s;
    s.outputs = {Shard(d)};
    for (size_t i = 0; i < call.inputs.size(); ++i) {
      s.inputs.push_back(operand_placement(call, i, d, grouped_heads && i < 3));
    }
    all.push_back(std::move(s));
  }
  return all;
}

bool has_elements(const Spec& layout) {
  const auto sizes = layout.local_sizes();
  return std::find(sizes.begin(), sizes.end(), 0) == sizes.end();
}

// Without dropout the operator itself does it.
void note_plain_call(const OpCall& call, Decision& decision) {
  decision.is_plain_call = call.arg("dropout_p").toDouble() == 0 &&
      has_elements(decision.layout_of(call, 0)) &&
      has_elements(decision.layout_of(call, 1));
}

} // namespace

DTENSOR_RULES(attention) {
  rules.dim_rule("scaled_dot_product_attention", attention)
      .with_meta(attention_meta)
      .with_localize(note_plain_call)
      .with_local_kernel(detail::attention_local)
      .scalar_values()
      .no_strided();
}

} // namespace dtensor
