// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/parallel/attention/ring_attention_impl.h>

#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/comm/observer.h>
#include <dtensor/error.h>
#include <dtensor/parallel/attention/attention_block_impl.h>
#include <dtensor/parallel/attention/key_value_blocks_impl.h>
#include <dtensor/tensor/layout_steps_impl.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>
#include <dtensor/torch_nodes_impl.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

namespace dtensor::detail {
namespace {

using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

at::Tensor rows_of(const at::Tensor& t, Interval rows) {
  return t.narrow(2, rows.begin, rows.size());
}

// Number of query rows per kernel call. The kernel's output is a temporary, so
// it is limited to a quarter of all rows, but not below an efficient size.
int64_t rows_at_once(const at::Tensor& query) {
  return std::max<int64_t>(256, (query.size(2) + 3) / 4);
}

// Returns the pieces of attention between this rank's queries and its block in
// `step`.
std::vector<AttentionPiece> pieces_in(
    const RingCall& call,
    const BlockShapes& shapes,
    const at::Tensor& query,
    int64_t step) {
  if (query.size(0) == 0 || query.size(1) == 0) {
    return {};
  }
  const auto me = static_cast<size_t>(shapes.owner(0));
  const auto owner = static_cast<size_t>(shapes.owner(step));
  return pieces_of(
      call.queries[me], call.keys[owner], call.causal, rows_at_once(query));
}

AttentionBlock block_of(
    const at::Tensor& query,
    const KeyValue& held,
    const AttentionPiece& piece,
    double scale) {
  return {
      .query = rows_of(query, piece.queries),
      .key = rows_of(held.key, piece.keys),
      .value = rows_of(held.value, piece.keys),
      .scale = scale,
      .causal = piece.causal};
}

AttentionRows ring_forward(
    const at::Tensor& query,
    const KeyValue& mine,
    const RingCall& call) {
  Group& group = get_group(call.ranks.mesh, call.ranks.dim);
  const BlockShapes shapes(group, mine, lengths_of(call.keys));
  const auto source = key_value_source(group, shapes, mine, call.method);
  MergedRows rows(query, mine.value.size(-1));
  for (int64_t step = 0; step < group.size(); ++step) {
    const auto held = source->take_block(step);
    for (const auto& piece : pieces_in(call, shapes, query, step)) {
      rows.add(piece.queries, attend(block_of(query, held, piece, call.scale)));
    }
  }
  return rows.take_rows();
}

// Sum of the gradients of this rank's queries.
class QueryGradient {
 public:
  explicit QueryGradient(const at::Tensor& query) : query_(query) {}

  void add(Interval rows, const at::Tensor& more) {
    const auto dtype = sum_dtype(query_.scalar_type());
    if (!sum_.defined() && rows.size() == query_.size(2)) {
      sum_ = more.to(dtype);
      return;
    }
    if (!sum_.defined()) {
      sum_ = at::zeros_like(query_, query_.options().dtype(dtype));
    }
    rows_of(sum_, rows).add_(more);
  }
  at::Tensor take_sum() const {
    return sum_.defined() ? sum_.to(query_.scalar_type())
                          : at::zeros_like(query_);
  }

 private:
  at::Tensor query_;
  at::Tensor sum_;
};

// Values saved for the backward pass.
struct Seen {
  at::Tensor query;
  KeyValue mine;
  AttentionRows rows;
};

// Receives the blocks again and recomputes their weights from lse, as flash
// attention does. If gradients of keys and values are needed, the sink passes
// them around the ring.
variable_list ring_backward(
    const Seen& seen,
    const at::Tensor& grad,
    const RingCall& call,
    bool wants_keys) {
  const auto& [query, mine, rows] = seen;
  Group& group = get_group(call.ranks.mesh, call.ranks.dim);
  const BlockShapes shapes(group, mine, lengths_of(call.keys));
  const auto source = key_value_source(group, shapes, mine, call.method);
  const auto dtype = mine.key.scalar_type();
  const auto options = mine.key.options().dtype(sum_dtype(dtype));
  const auto sink = wants_keys
      ? key_value_sink(group, shapes, options, call.method)
      : nullptr;
  QueryGradient of_query(query);
  for (int64_t step = 0; step < group.size(); ++step) {
    const auto held = source->take_block(step);
    for (const auto& piece : pieces_in(call, shapes, query, step)) {
      const auto more = gradients_of(
          block_of(query, held, piece, call.scale),
          {rows_of(rows.out, piece.queries), rows_of(rows.lse, piece.queries)},
          rows_of(grad, piece.queries));
      of_query.add(piece.queries, more.query);
      if (sink != nullptr) {
        const auto to = sink->at(step);
        rows_of(to.key, piece.keys).add_(more.key);
        rows_of(to.value, piece.keys).add_(more.value);
      }
    }
    if (sink != nullptr) {
      sink->end(step);
    }
  }
  if (sink == nullptr) {
    return {of_query.take_sum(), {}, {}};
  }
  const auto own = sink->own_gradients();
  return {of_query.take_sum(), own.key.to(dtype), own.value.to(dtype)};
}

struct RingAttentionBackward final : Node {
  RingAttentionBackward(
      const at::Tensor& q,
      const KeyValue& mine,
      const AttentionRows& rows,
      RingCall the_call)
      : query(q, /*is_output=*/false),
        key(mine.key, /*is_output=*/false),
        value(mine.value, /*is_output=*/false),
        // Saves an alias, because a node that saved its own output would own
        // itself.
        out(rows.out.detach(), /*is_output=*/false),
        lse(rows.lse, /*is_output=*/false),
        call(std::move(the_call)) {}

  variable_list apply(variable_list&& grads) override {
    DTENSOR_CHECK_NOT_IMPLEMENTED(
        !c10::GradMode::is_enabled(),
        "[context_parallel] second derivatives of attention over a sharded "
        "sequence are not supported. Call backward() without create_graph.");
    const ModuleScope scope(module, /*backward=*/true);
    const Seen seen{
        query.unpack(),
        {key.unpack(), value.unpack()},
        {out.unpack(), lse.unpack()}};
    // Other ranks wait for this rank's blocks even if no gradient is needed
    // here.
    const auto grad =
        grads[0].defined() ? grads[0] : at::zeros_like(seen.rows.out);
    return ring_backward(
        seen,
        grad,
        call,
        task_should_compute_output(1) || task_should_compute_output(2));
  }
  void release_variables() override {
    for (auto* saved : {&query, &key, &value, &out, &lse}) {
      saved->reset_data();
    }
  }
  std::string name() const override {
    return "RingAttentionBackward";
  }

  SavedVariable query;
  SavedVariable key;
  SavedVariable value;
  SavedVariable out;
  SavedVariable lse;
  RingCall call;
  std::string_view module = ModuleScope::current();
};

} // namespace

at::Tensor ring_attention(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const RingCall& call) {
  AttentionRows rows;
  {
    const c10::NoGradGuard no_grad;
    rows = ring_forward(query, {key, value}, call);
  }
  if (records(query) || records(key) || records(value)) {
    auto node = make_node<RingAttentionBackward>(
        query, KeyValue{key, value}, rows, call);
    node->set_next_edges(
        torch::autograd::collect_next_edges(query, key, value));
    torch::autograd::set_history(rows.out, std::move(node));
  }
  return rows.out;
}

} // namespace dtensor::detail
