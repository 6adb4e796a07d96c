// SPDX-License-Identifier: BSD-3-Clause
// Exact communication of parallelized modules, as stated in
// docs/concepts/communication.md.
#include <dtensor/parallel/sequence_parallel.h>
#include <tests/parallel/comm_counts.h>
#include <tests/parallel/modules.h>

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::test_modules;

struct Counted {
  std::string forward;
  std::string backward;
  friend bool operator==(const Counted&, const Counted&) = default;
  friend void PrintTo(const Counted& c, std::ostream* os) {
    *os << "forward: " << c.forward << "; backward: " << c.backward;
  }
};

Counted count(
    const at::Tensor& x,
    const std::function<at::Tensor(const at::Tensor&)>& forward) {
  const CommDebugMode comm;
  const auto y = forward(x);
  (is_dtensor(y) ? DTensor(y).to_local() : y).sum().backward();
  return {counts(comm, false), counts(comm, true)};
}

at::Tensor input(at::IntArrayRef sizes, bool requires_grad = false) {
  return uniform(sizes, 5).requires_grad_(requires_grad);
}

TEST(CommCountsTest, Mlp) {
  on_four_ranks([](const DeviceMesh& mesh) {
    auto mlp = filled(Mlp(8, 16));
    parallelize_module(*mlp, mesh, mlp_plan());
    const auto run = [&](const at::Tensor& x) { return mlp(x); };
    for (const auto& sizes : {std::vector<int64_t>{4, 8}, {2, 4, 8}}) {
      EXPECT_EQ(count(input(sizes), run), (Counted{"1 all_reduce", ""}));
      EXPECT_EQ(
          count(input(sizes, true), run),
          (Counted{"1 all_reduce", "1 all_reduce"}));
    }
  });
}

TEST(CommCountsTest, MlpWithSequenceParallelInputAndOutput) {
  on_four_ranks([](const DeviceMesh& mesh) {
    for (const auto& sizes : {std::vector<int64_t>{1, 8}, {1, 4, 8}}) {
      auto mlp = filled(Mlp(8, 16));
      parallelize_module(
          *mlp,
          mesh,
          {{"w1", ColwiseParallel({.input_layouts = Shard(0)})},
           {"w2", RowwiseParallel({.output_layouts = Shard(0)})}});
      const auto run = [&](const at::Tensor& x) { return mlp(x); };
      EXPECT_EQ(
          count(input(sizes), run),
          (Counted{"1 all_gather, 1 reduce_scatter", "1 all_gather"}));
      mlp->zero_grad();
      EXPECT_EQ(
          count(input(sizes, true), run),
          (Counted{
              "1 all_gather, 1 reduce_scatter",
              "1 all_gather, 1 reduce_scatter"}));
    }
  });
}

TEST(CommCountsTest, RowwiseLinearToShards) {
  on_four_ranks([](const DeviceMesh& mesh) {
    auto linear = filled(torch::nn::Linear(8, 6));
    parallelize_module(
        *linear, mesh, RowwiseParallel({.output_layouts = Shard(0)}));
    EXPECT_EQ(
        count(input({4, 2}), [&](const at::Tensor& x) { return linear(x); }),
        (Counted{"1 reduce_scatter", "1 all_gather"}));
  });
}

TEST(CommCountsTest, RedistributeWithPartialGradients) {
  on_four_ranks([](const DeviceMesh& mesh) {
    const DTensor x(distribute_tensor(input({8, 4}), mesh, {Shard(0)})
                        .requires_grad_(true));
    EXPECT_EQ(
        count(
            x,
            [](const at::Tensor& t) {
              return to_local(
                  DTensor(t).redistribute({Replicate()}),
                  Placements{Partial()});
            }),
        (Counted{"1 all_gather", "1 reduce_scatter"}));
  });
}

TEST(CommCountsTest, SequenceParallelNormsReduceTheirGradientsAtOnce) {
  on_four_ranks([](const DeviceMesh& mesh) {
    torch::nn::Sequential model(
        torch::nn::LayerNorm(torch::nn::LayerNormOptions({8})),
        torch::nn::LayerNorm(torch::nn::LayerNormOptions({8})));
    filled(model);
    parallelize_module(*model, mesh, {{"*", SequenceParallel()}});
    for (int step = 0; step < 2; ++step) {
      const CommDebugMode comm;
      DTensor(model->forward(input({2, 1, 8}, true)))
          .to_local()
          .sum()
          .backward();
      EXPECT_EQ(counts(comm, false), "");
      EXPECT_EQ(counts(comm, true), "");
      EXPECT_EQ(comm.total().count, 1) << comm;
      // Two weights and two biases of 8 float64 each.
      EXPECT_EQ(
          comm.total(
                  {.kind = CollectiveKind::kAllReduce, .module = "gradients"})
              .payload_bytes,
          4 * 8 * 8);
      model->zero_grad();
    }
  });
}

// One transformer layer, written with the local number of heads.
struct BlockImpl : torch::nn::Module {
  BlockImpl(int64_t width, int64_t heads, int64_t ranks)
      : local_heads(heads / ranks) {
    const auto linear = [&](const char* name, int64_t in, int64_t out) {
      return register_module(
          name,
          torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(false)));
    };
    const auto norm = [&](const char* name) {
      return register_module(
          name, torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    };
    n1 = norm("n1");
    wq = linear("wq", width, width);
    wk = linear("wk", width, width);
    wv = linear("wv", width, width);
    wo = linear("wo", width, width);
    n2 = norm("n2");
    gate = linear("gate", width, 4 * width);
    up = linear("up", width, 4 * width);
    down = linear("down", 4 * width, width);
  }

  at::Tensor heads(const at::Tensor& t) const {
    return t.view({t.size(0), t.size(1), local_heads, -1}).transpose(1, 2);
  }

  at::Tensor forward(const at::Tensor& x) {
    const auto h = n1(x);
    const auto a = at::scaled_dot_product_attention(
        heads(wq(h)), heads(wk(h)), heads(wv(h)), {}, 0, /*is_causal=*/true);
    const auto y = x + wo(a.transpose(1, 2).flatten(2));
    const auto z = n2(y);
    return y + down(torch::silu(gate(z)) * up(z));
  }

  int64_t local_heads;
  torch::nn::LayerNorm n1{nullptr}, n2{nullptr};
  torch::nn::Linear wq{nullptr}, wk{nullptr}, wv{nullptr}, wo{nullptr};
  torch::nn::Linear gate{nullptr}, up{nullptr}, down{nullptr};
};
TORCH_MODULE(Block);

ParallelizePlan tensor_parallel() {
  return {
      {"w[qkv]", ColwiseParallel()},
      {"wo", RowwiseParallel()},
      {"gate", ColwiseParallel()},
      {"up", ColwiseParallel()},
      {"down", RowwiseParallel()}};
}

ParallelizePlan sequence_parallel() {
  const ColwiseParallel in({.input_layouts = Shard(1)});
  const RowwiseParallel out(
      {.output_layouts = Shard(1), .use_local_output = false});
  return {
      {"n?", SequenceParallel()},
      {"w[qkv]", in},
      {"wo", out},
      {"gate", in},
      {"up", in},
      {"down", out}};
}

constexpr int64_t kWidth = 16;
constexpr double kActivations = 2 * 8 * kWidth * 8; // (2, 8, 16) in bytes

TEST(CommCountsTest, TransformerLayer) {
  const auto x = uniform({2, 8, kWidth}, 3);
  auto plain = filled(Block(kWidth, 4, 1));
  const auto leaf = x.clone().requires_grad_(true);
  const auto truth = plain(leaf);
  truth.sum().backward();
  for (const bool leaf_input : {true, false}) {
    on_four_ranks([&](const DeviceMesh& mesh) {
      auto block = filled(Block(kWidth, 4, 4));
      parallelize_module(*block, mesh, tensor_parallel());
      const auto mine = x.clone().requires_grad_(true);
      at::Tensor y;
      {
        const CommDebugMode comm;
        y = block(leaf_input ? mine : mine * 1);
        y.sum().backward();
        EXPECT_EQ(counts(comm, false), "2 all_reduce") << comm;
        EXPECT_EQ(counts(comm, true), "2 all_reduce") << comm;
        EXPECT_DOUBLE_EQ(comm.total().wire_bytes, 8 * 3 / 4. * kActivations);
      }
      expect_close(y, truth, "output");
      expect_close(mine.grad(), leaf.grad(), "gradient of the input", 1e-10);
      expect_same_gradients(*block, *plain, "layer", 1e-10);
    });
  }
}

TEST(CommCountsTest, TransformerLayerWithSequenceParallel) {
  const auto x = uniform({2, 8, kWidth}, 3);
  auto plain = filled(Block(kWidth, 4, 1));
  const auto leaf = x.clone().requires_grad_(true);
  const auto truth = plain(leaf);
  truth.sum().backward();
  on_four_ranks([&](const DeviceMesh& mesh) {
    auto block = filled(Block(kWidth, 4, 4));
    parallelize_module(*block, mesh, sequence_parallel());
    const at::Tensor mine = distribute_tensor(x, mesh, {Shard(1)}, std::nullopt)
                                .requires_grad_(true);
    at::Tensor y;
    {
      const CommDebugMode comm;
      y = block(mine);
      DTensor(y).to_local().sum().backward();
      EXPECT_EQ(counts(comm, false), "2 all_gather, 2 reduce_scatter") << comm;
      EXPECT_EQ(counts(comm, true), "2 all_gather, 2 reduce_scatter") << comm;
      const auto gradients = comm.total({.module = "gradients"});
      EXPECT_EQ(gradients.count, 1) << comm;
      EXPECT_EQ(gradients.payload_bytes, 4 * kWidth * 8);
      EXPECT_DOUBLE_EQ(
          comm.total().wire_bytes - gradients.wire_bytes,
          8 * 3 / 4. * kActivations);
    }
    expect_close(y, truth, "output");
    expect_close(mine.grad(), leaf.grad(), "gradient of the input", 1e-10);
    expect_same_gradients(*block, *plain, "layer", 1e-10);
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
