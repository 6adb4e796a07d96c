// SPDX-License-Identifier: BSD-3-Clause
// Sharded sequences on 2-D meshes: combined with tensor and data parallelism.
#include <tests/parallel/attention_cases.h>

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::test_modules;
using Case = AttentionCase;

void on_mesh(
    const std::vector<int64_t>& shape,
    const std::vector<std::string>& names,
    const std::function<void(const DeviceMesh&)>& fn) {
  run_ranks(shape[0] * shape[1], [&] {
    fn(init_device_mesh(at::kCPU, shape, names));
  });
}

// Layouts of query, key and value. The result has the query's layout unless
// `out` is given.
struct Layout {
  Placements query;
  Placements key;
  Placements value;
  Placements out = {};
  bool any_out = false;
};

void check(
    const Case& c,
    const DeviceMesh& mesh,
    const Layout& layout,
    RotateMethod method) {
  const auto all = inputs_of(c);
  const std::vector<Placements> given = {
      layout.query, layout.key, layout.value};
  std::vector<DTensor> cut;
  for (size_t i = 0; i < 3; ++i) {
    cut.push_back(distribute_tensor(all[i], mesh, given[i]));
    cut[i].requires_grad_();
  }
  const auto what = c10::str(
      c.text(),
      " by ",
      name_of(method),
      " in ",
      to_string(layout.query),
      " and ",
      to_string(layout.key));
  DTensor out;
  {
    const auto scope = context_parallel(mesh["cp"], {.rotate_method = method});
    out = DTensor(attend(c, cut[0], cut[1], cut[2]));
  }
  if (!layout.any_out) {
    EXPECT_EQ(
        to_string(out.placements()),
        to_string(layout.out.empty() ? layout.query : layout.out))
        << what;
  }
  out.backward(distribute_tensor(all[3], mesh, out.placements()));
  for (size_t i = 0; i < 3; ++i) {
    // Replicated key heads that serve sharded queries get Partial gradients.
    Placements mine(DTensor(cut[i].grad()).placements());
    std::replace(mine.begin(), mine.end(), Partial(), Replicate());
    EXPECT_EQ(to_string(mine), to_string(given[i])) << what;
  }
  expect_truth({out, cut[0].grad(), cut[1].grad(), cut[2].grad()}, c, what);
}

TEST(ContextMesh, CutsHeadsOnTheOtherDimension) {
  for (const auto& shape : {std::vector<int64_t>{2, 2}, {3, 2}}) {
    on_mesh(shape, {"cp", "tp"}, [](const DeviceMesh& mesh) {
      const Placements both = {Shard(2), Shard(1)};
      for (const bool causal : {false, true}) {
        for (const auto method : kMethods) {
          check(
              {.tokens = 13, .heads = 4, .key_heads = 4, .causal = causal},
              mesh,
              {both, both, both},
              method);
          check(
              {.tokens = 12, .heads = 8, .key_heads = 4, .causal = causal},
              mesh,
              {both, both, both},
              method);
          check( // three heads; the second rank has one
              {.tokens = 7, .heads = 3, .key_heads = 3, .causal = causal},
              mesh,
              {both, both, both},
              method);
        }
      }
    });
  }
}

// Queries are redistributed to the ranks of their keys if there are enough key
// heads for all ranks.
TEST(ContextMesh, KeepsQueriesWithTheirKeys) {
  on_mesh({2, 2}, {"cp", "tp"}, [](const DeviceMesh& mesh) {
    const Placements both = {Shard(2), Shard(1)};
    for (const auto method : kMethods) {
      check(
          {.tokens = 9, .heads = 9, .key_heads = 3},
          mesh,
          {both, both, both, {Shard(2), Shard(1, 3)}},
          method);
      check( // one key head on all ranks
          {.tokens = 9, .heads = 6, .key_heads = 1},
          mesh,
          {both, {Shard(2), Replicate()}, {Shard(2), Replicate()}},
          method);
    }
  });
}

TEST(ContextMesh, PicksSharedHeadsOfKeys) {
  on_mesh({2, 4}, {"cp", "tp"}, [](const DeviceMesh& mesh) {
    for (const auto method : kMethods) {
      check(
          {.tokens = 9, .heads = 8, .key_heads = 2},
          mesh,
          {{Shard(2), Shard(1)},
           {Shard(2), Replicate()},
           {Shard(2), Replicate()}},
          method);
    }
  });
}

TEST(ContextMesh, CutsHeadsTwice) {
  run_ranks(8, [] {
    const Case c{.tokens = 5, .heads = 8, .key_heads = 2};
    for (const auto& shape :
         {std::vector<int64_t>{4, 1, 2}, {2, 2, 2}, {1, 4, 2}, {4, 2, 1}}) {
      const auto mesh = init_device_mesh(at::kCPU, shape, {"a", "cp", "b"});
      const Placements heads = {Shard(1), Shard(2), Shard(1)};
      check(
          c,
          mesh,
          {heads,
           {Replicate(), Shard(2), Replicate()},
           {Replicate(), Shard(2), Replicate()},
           {},
           /*any_out=*/true},
          RotateMethod::kAllToAll);
    }
  });
}

TEST(ContextMesh, CutsTheBatchOnTheOtherDimension) {
  on_mesh({2, 3}, {"dp", "cp"}, [](const DeviceMesh& mesh) {
    const Placements both = {Shard(0), Shard(2)};
    for (const auto method : kMethods) {
      check(
          {.tokens = 8, .heads = 4, .key_heads = 2},
          mesh,
          {both, both, both},
          method);
    }
  });
}

// Operands in other layouts are redistributed: only the query is sharded along
// the sequence, only the key is, or the other mesh dimension shards the
// sequence too.
TEST(ContextMesh, BringsTheOthersToTheLayout) {
  on_mesh({2, 2}, {"cp", "tp"}, [](const DeviceMesh& mesh) {
    const Placements both = {Shard(2), Shard(1)};
    const Placements whole = {Replicate(), Replicate()};
    const Placements tokens = {Shard(2), Replicate()};
    const Case c{.tokens = 7, .heads = 4, .key_heads = 2};
    for (const auto method : kMethods) {
      check(c, mesh, {both, whole, whole}, method);
      check(c, mesh, {whole, tokens, both, tokens}, method);
      check(
          c,
          mesh,
          {{Shard(2), Shard(2)}, {Shard(2), Shard(3)}, whole, tokens},
          method);
    }
  });
}

// Attention with projections by a plan, and plain local shards of tokens along
// cp.
struct AttentionBlockImpl : torch::nn::Module {
  AttentionBlockImpl() {
    q = register_module("q", torch::nn::Linear(12, 16));
    k = register_module("k", torch::nn::Linear(12, 8));
    v = register_module("v", torch::nn::Linear(12, 8));
    o = register_module("o", torch::nn::Linear(16, 12));
  }
  static at::Tensor in_heads(const at::Tensor& t) {
    return t.unflatten(-1, {-1, 4}).transpose(1, 2);
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto out = at::scaled_dot_product_attention(
        in_heads(q(x)), in_heads(k(x)), in_heads(v(x)), {}, 0, true, {}, true);
    return o(out.transpose(1, 2).flatten(-2));
  }
  torch::nn::Linear q{nullptr}, k{nullptr}, v{nullptr}, o{nullptr};
};
TORCH_MODULE(AttentionBlock);

TEST(ContextMesh, CutsABlockBesideTensorParallelism) {
  on_mesh({2, 2}, {"cp", "tp"}, [](const DeviceMesh& mesh) {
    const auto x = uniform({2, 11, 12}, 50);
    const auto weights = uniform({2, 11, 12}, 51);
    auto plain = filled(AttentionBlock());
    const auto truth = plain(x);
    (truth * weights).sum().backward();
    for (const auto method : kMethods) {
      auto block = filled(AttentionBlock());
      parallelize_module(
          *block,
          mesh["tp"],
          {{"[qkv]", ColwiseParallel()}, {"o", RowwiseParallel()}});
      auto mine = x.clone();
      auto by = weights.clone();
      const auto scope = context_parallel(
          mesh["cp"],
          {.buffers = {mine, by},
           .buffer_seq_dims = {1, 1},
           .rotate_method = method});
      const auto y = block(mine);
      (y * by).sum().backward();
      expect_close(
          context_parallel_unshard(mesh["cp"], {y}, {1})[0],
          truth,
          "result",
          1e-10);
      // Each rank of cp has the gradient of its own tokens.
      for (const auto& parameter : plain->named_parameters()) {
        const auto grad =
            full(block->named_parameters()[parameter.key()].grad());
        expect_close(
            get_group(mesh, "cp").all_reduce(grad, ReduceOp::kSum),
            parameter.value().grad(),
            parameter.key(),
            1e-10);
      }
    }
  });
}

// Keys have a batch dimension, and the query is the same for all samples.
TEST(ContextMesh, BroadcastsAQueryOverTheBatch) {
  on_mesh({2, 2}, {"cp", "dp"}, [](const DeviceMesh& mesh) {
    const auto q = uniform({1, 2, 8, 4}, 1);
    const auto k = uniform({2, 2, 8, 4}, 2);
    const auto v = uniform({2, 2, 8, 4}, 3);
    const Placements both = {Shard(2), Shard(0)};
    const auto scope = context_parallel(mesh["cp"]);
    const auto out = at::scaled_dot_product_attention(
        distribute_tensor(q, mesh, both),
        distribute_tensor(k, mesh, both),
        distribute_tensor(v, mesh, both));
    expect_close(
        full(out),
        at::scaled_dot_product_attention(q, k, v),
        "broadcast",
        1e-10);
  });
}

TEST(ContextMesh, RefusesOperandsOnDifferentMeshes) {
  on_mesh({2, 1}, {"cp", "dp"}, [](const DeviceMesh& mesh) {
    const auto x = uniform({2, 2, 8, 4}, 1);
    const auto on_both = distribute_tensor(x, mesh, {Shard(2), Replicate()});
    const auto on_one = distribute_tensor(x, mesh["cp"], {Shard(2)});
    const auto scope = context_parallel(mesh["cp"]);
    EXPECT_EQ(
        error_of(
            [&] { at::scaled_dot_product_attention(on_both, on_one, on_one); }),
        "[aten::scaled_dot_product_attention] the operands live on different "
        "meshes: f64[2, 2, 8, 4] on (cp=2, dp=1): S(2) R and f64[2, 2, 8, 4] "
        "on (cp=2): S(2). Bring them to one mesh: "
        "from_local(x.full_tensor(), mesh) replicates x on a mesh.");
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
