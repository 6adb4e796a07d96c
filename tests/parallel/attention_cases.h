// SPDX-License-Identifier: BSD-3-Clause
// Attention cases: results and gradients are compared with the plain
// operator's.
#pragma once

#include <dtensor/layout/text.h>
#include <dtensor/parallel/context_parallel.h>
#include <tests/parallel/modules.h>

namespace dtensor::test_modules {

inline constexpr RotateMethod kMethods[] = {
    RotateMethod::kAllGather,
    RotateMethod::kAllToAll,
    RotateMethod::kUlysses};

struct AttentionCase {
  int64_t tokens = 8;
  int64_t heads = 3;
  int64_t key_heads = 3;
  bool causal = true;
  /// Number of keys; -1: equal to the number of queries.
  int64_t keys = -1;
  int64_t features = 4;
  int64_t value_features = 4;
  at::ScalarType dtype = at::kDouble;

  int64_t key_tokens() const {
    return keys < 0 ? tokens : keys;
  }
  bool grouped() const {
    return heads != key_heads;
  }
  std::string text() const {
    return c10::str(
        tokens,
        " tokens and ",
        key_tokens(),
        " keys, ",
        heads,
        " on ",
        key_heads,
        " heads, ",
        causal ? "causal" : "whole");
  }
};

// Returns query, key and value, then the gradient of the result.
inline std::vector<at::Tensor> inputs_of(const AttentionCase& c) {
  const int64_t batch = 2;
  return {
      uniform({batch, c.heads, c.tokens, c.features}, 1).to(c.dtype),
      uniform({batch, c.key_heads, c.key_tokens(), c.features}, 2).to(c.dtype),
      uniform({batch, c.key_heads, c.key_tokens(), c.value_features}, 3)
          .to(c.dtype),
      uniform({batch, c.heads, c.tokens, c.value_features}, 4).to(c.dtype)};
}

inline at::Tensor attend(
    const AttentionCase& c,
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v) {
  return at::scaled_dot_product_attention(
      q, k, v, {}, 0, c.causal, {}, c.grouped());
}

// Returns the result, then the gradients of query, key and value.
inline std::vector<at::Tensor> truth_of(const AttentionCase& c) {
  auto all = inputs_of(c);
  for (size_t i = 0; i < 3; ++i) {
    all[i].requires_grad_();
  }
  const auto out = attend(c, all[0], all[1], all[2]);
  out.backward(all[3]);
  return {out.detach(), all[0].grad(), all[1].grad(), all[2].grad()};
}

inline void expect_truth(
    const std::vector<at::Tensor>& mine,
    const AttentionCase& c,
    const std::string& what,
    double tolerance = 1e-10) {
  const auto truth = truth_of(c);
  const char* names[] = {"out", "query", "key", "value"};
  for (size_t i = 0; i < truth.size(); ++i) {
    expect_close(mine[i], truth[i], what + ": " + names[i], tolerance);
  }
}

inline std::string name_of(RotateMethod method) {
  return method == RotateMethod::kAllGather ? "allgather"
      : method == RotateMethod::kAllToAll   ? "alltoall"
                                            : "ulysses";
}

// Checks plain local shards that the scope shards and restores.
inline void check_parts(
    const AttentionCase& c,
    const DeviceMesh& mesh,
    RotateMethod method,
    double tolerance = 1e-10) {
  const auto all = inputs_of(c);
  std::vector<at::Tensor> results;
  {
    const auto scope = context_parallel(
        mesh,
        {.buffers = all,
         .buffer_seq_dims = {2, 2, -2, 2},
         .rotate_method = method});
    std::vector<at::Tensor> parts;
    for (size_t i = 0; i < 3; ++i) {
      parts.push_back(all[i].clone().requires_grad_());
    }
    const auto out = attend(c, parts[0], parts[1], parts[2]);
    out.backward(all[3]);
    results = {out.detach(), parts[0].grad(), parts[1].grad(), parts[2].grad()};
  }
  expect_truth(
      context_parallel_unshard(mesh, results, {2, 2, 2, 2}),
      c,
      c.text() + " in parts by " + name_of(method),
      tolerance);
}

// Checks DTensors, with the backward pass outside of the scope.
inline void check_dtensors(
    const AttentionCase& c,
    const DeviceMesh& mesh,
    RotateMethod method,
    double tolerance = 1e-10) {
  const auto all = inputs_of(c);
  std::vector<DTensor> cut;
  for (size_t i = 0; i < 4; ++i) {
    cut.push_back(distribute_tensor(all[i], mesh, {Shard(2)}));
    cut[i].requires_grad_(i < 3);
  }
  at::Tensor out;
  {
    const auto scope = context_parallel(mesh, {.rotate_method = method});
    out = attend(c, cut[0], cut[1], cut[2]);
  }
  EXPECT_EQ(layout_of(out), Shard(2));
  out.backward(cut[3]);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(layout_of(cut[i].grad()), Shard(2));
  }
  expect_truth(
      {out, cut[0].grad(), cut[1].grad(), cut[2].grad()},
      c,
      c.text() + " as DTensors by " + name_of(method),
      tolerance);
}

inline void on_cp(
    int64_t ranks,
    const std::function<void(const DeviceMesh&)>& fn) {
  run_ranks(ranks, [&] { fn(init_device_mesh(at::kCPU, {ranks}, {"cp"})); });
}

} // namespace dtensor::test_modules
