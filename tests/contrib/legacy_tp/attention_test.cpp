// SPDX-License-Identifier: BSD-3-Clause
// TensorParallelMultiheadAttention compared with torch::nn::MultiheadAttention.
// The parallelized module is compared with the same module on one rank.
#include <dtensor/contrib/legacy_tp/torch_2_0.h>
#include <dtensor/contrib/legacy_tp/torch_2_0_attention.h>
#include <dtensor/layout/shard_math.h>
#include <dtensor/random/random.h>
#include <tests/comm/expect_error.h>
#include <tests/parallel/comm_counts.h>
#include <tests/parallel/modules.h>

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::test_modules;
using torch::nn::MultiheadAttention;
using torch::nn::MultiheadAttentionOptions;
using torch_2_0::AttentionOptions;
using torch_2_0::PairwiseParallel;
using torch_2_0::SequenceParallel;
using torch_2_0::TensorParallelMultiheadAttention;

template <class Fn>
void on_ranks(const Fn& fn) {
  for (const int64_t ranks : {1, 2, 3}) {
    run_ranks(ranks, [&] { fn(init_device_mesh(at::kCPU, {ranks}, {"tp"})); });
  }
}

constexpr int64_t kWidth = 12;
constexpr int64_t kHeads = 6;

TensorParallelMultiheadAttention attention(
    const AttentionOptions& options = {.add_bias_kv = true}) {
  return filled(TensorParallelMultiheadAttention(kWidth, kHeads, options));
}

// Converts (batch, sequence, features) to torch::nn's (s, b, f) and back.
at::Tensor attend(
    MultiheadAttention& module,
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v) {
  const auto turned = [](const at::Tensor& t) { return t.transpose(0, 1); };
  return turned(std::get<0>(module->forward(turned(q), turned(k), turned(v))));
}

TEST(Torch20AttentionTest, ACopyGivesWhatTheOriginalDoes) {
  for (const bool bias : {true, false}) {
    for (const bool self : {true, false}) {
      auto original = filled(MultiheadAttention(
          MultiheadAttentionOptions(kWidth, kHeads).bias(bias)));
      TensorParallelMultiheadAttention copy(
          kWidth, kHeads, AttentionOptions{.self_attention = self});
      copy->copy(original);
      const auto q = uniform({2, 5, kWidth}, 3).requires_grad_(true);
      const auto kv = self ? q : uniform({2, 4, kWidth}, 4);
      const auto truth = attend(original, q, kv, kv);
      const auto gradient = uniform(truth.sizes(), 9);
      truth.backward(gradient);
      const auto of_original = q.grad().clone();
      q.mutable_grad().reset();
      const auto y = copy(q, kv, kv);
      y.backward(gradient);
      expect_close(y, truth, "output");
      expect_close(q.grad(), of_original, "gradient");
      EXPECT_EQ(copy->parameters().size(), (self ? 2u : 4u) * (bias ? 2 : 1));
    }
  }
}

TEST(Torch20AttentionTest, ACopyIsNoAlias) {
  auto original = filled(MultiheadAttention(kWidth, kHeads));
  auto copy = attention();
  copy->copy(original);
  const auto before = original->out_proj->weight.clone();
  {
    const torch::NoGradGuard no_grad;
    copy->proj->weight.zero_();
    copy->qkv->weight.zero_();
  }
  expect_close(original->out_proj->weight, before, "weight");
  EXPECT_EQ(copy->qkv->weight.scalar_type(), at::kDouble);
}

struct Run {
  std::string what;
  Placement layout = Replicate();
  std::string forward = "1 all_reduce";
  std::string backward = "1 all_reduce";
};

// Same check as in tests/contrib/legacy_tp/styles_test.cpp.
void expect_like_one_rank(
    TensorParallelMultiheadAttention& mine,
    TensorParallelMultiheadAttention& plain,
    const at::Tensor& whole,
    const DeviceMesh& mesh,
    const Run& run) {
  const auto leaf = whole.clone().requires_grad_(true);
  const auto truth = plain(leaf);
  const auto weight = uniform(truth.sizes(), 99);
  truth.backward(weight);
  const auto x = part(whole, mesh, run.layout).requires_grad_(true);
  const auto gradient = part(weight, mesh, run.layout);
  const CommDebugMode comm;
  const auto y = mine(x);
  y.backward(gradient);
  const bool alone = mesh.size() == 1;
  EXPECT_EQ(counts(comm, false), alone ? "" : run.forward) << run.what << comm;
  EXPECT_EQ(counts(comm, true), alone ? "" : run.backward) << run.what << comm;
  ASSERT_FALSE(is_dtensor(y)) << run.what;
  expect_close(y, part(truth, mesh, run.layout), run.what);
  expect_close(x.grad(), part(leaf.grad(), mesh, run.layout), run.what);
  expect_same_gradients(*mine, *plain, run.what);
}

TEST(Torch20AttentionTest, IsParallelByHeads) {
  on_ranks([](const DeviceMesh& mesh) {
    for (const bool bias : {true, false}) {
      const AttentionOptions options{.bias = bias, .add_bias_kv = bias};
      auto plain = attention(options);
      auto mine = attention(options);
      torch_2_0::parallelize_module(*mine, mesh, PairwiseParallel());
      EXPECT_EQ(layout_of(mine->qkv->weight), Shard(0));
      EXPECT_EQ(layout_of(mine->proj->weight), Shard(1));
      const auto x = uniform({2, 5, kWidth}, 3);
      expect_like_one_rank(mine, plain, x, mesh, {"heads"});
      expect_close(mine(x, x, x), plain(x, x, x), "three times");
    }
  });
}

TEST(Torch20AttentionTest, IsParallelWithPartsOfItsInput) {
  on_ranks([](const DeviceMesh& mesh) {
    auto plain = attention();
    auto mine = attention();
    torch_2_0::parallelize_module(*mine, mesh, SequenceParallel());
    expect_like_one_rank(
        mine,
        plain,
        uniform({6, 5, kWidth}, 3),
        mesh,
        {"parts",
         Shard(0),
         "1 all_gather, 1 reduce_scatter",
         "1 all_gather, 1 reduce_scatter"});
  });
}

TEST(Torch20AttentionTest, OfThreeInputsIsParallelToo) {
  on_ranks([](const DeviceMesh& mesh) {
    const AttentionOptions options{.self_attention = false};
    auto plain = attention(options);
    auto mine = attention(options);
    torch_2_0::parallelize_module(*mine, mesh, PairwiseParallel());
    const auto inputs = [](bool grad) {
      return std::vector<at::Tensor>{
          uniform({2, 5, kWidth}, 3).requires_grad_(grad),
          uniform({2, 4, kWidth}, 4).requires_grad_(grad),
          uniform({2, 4, kWidth}, 5).requires_grad_(grad)};
    };
    const auto a = inputs(true);
    const auto b = inputs(true);
    const auto truth = plain(a[0], a[1], a[2]);
    const auto gradient = uniform(truth.sizes(), 9);
    truth.backward(gradient);
    const auto y = mine(b[0], b[1], b[2]);
    y.backward(gradient);
    expect_close(y, truth, "output");
    for (size_t i = 0; i < 3; ++i) {
      expect_close(b[i].grad(), a[i].grad(), c10::str("gradient ", i));
    }
    expect_same_gradients(*mine, *plain, "three inputs");
  });
}

TEST(Torch20AttentionTest, ARankOutsideTheMeshHasNothing) {
  run_ranks(3, [](int64_t rank) {
    const auto mesh = make_device_mesh(at::kCPU, {2}, {0, 1}, {"tp"});
    auto plain = attention();
    auto mine = attention();
    torch_2_0::parallelize_module(*mine, mesh, PairwiseParallel());
    const auto x = uniform({2, 5, kWidth}, 3);
    const auto y = mine(x);
    if (rank < 2) {
      expect_close(y, plain(x), "output");
    } else {
      EXPECT_EQ(y.numel(), 0);
    }
  });
}

struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    register_module("attn", attn);
    register_module("mlp", mlp);
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto y = x + attn(x);
    return y + mlp(y);
  }
  TensorParallelMultiheadAttention attn{kWidth, kHeads};
  Mlp mlp{kWidth, 7};
};
TORCH_MODULE(Block);

TEST(Torch20AttentionTest, ABlockTrainsLikeThePlainOne) {
  run_ranks(6, [](int64_t) {
    const auto mesh = init_device_mesh(at::kCPU, {2, 3}, {"dp", "tp"});
    const auto train = [](Block& block) {
      torch::optim::Adam adam(block->parameters(), 0.01);
      for (uint64_t step = 0; step < 3; ++step) {
        adam.zero_grad();
        block(uniform({2, 4, kWidth}, step)).square().sum().backward();
        adam.step();
      }
    };
    auto plain = filled(Block());
    auto mine = filled(Block());
    torch_2_0::parallelize_module(*mine, mesh, PairwiseParallel(), 1);
    EXPECT_EQ(DTensor(mine->attn->qkv->weight).device_mesh(), mesh["tp"]);
    train(plain);
    train(mine);
    expect_same_parameters(*mine, *plain);
  });
}

TEST(Torch20AttentionTest, ClonesAreParallel) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    auto plain = attention();
    auto mine = attention();
    torch_2_0::parallelize_module(*mine, mesh, PairwiseParallel());
    TensorParallelMultiheadAttention clone(
        std::dynamic_pointer_cast<
            torch_2_0::TensorParallelMultiheadAttentionImpl>(mine->clone()));
    ASSERT_FALSE(clone->qkv->weight.is_same(mine->qkv->weight));
    expect_like_one_rank(
        clone, plain, uniform({2, 5, kWidth}, 3), mesh, {"clone"});
  });
}

TEST(Torch20AttentionTest, StandsInASequential) {
  auto module = attention();
  torch::nn::Sequential model(module, torch::nn::GELU());
  const auto x = uniform({2, 5, kWidth}, 3);
  expect_close(model->forward(x), torch::gelu(module(x)), "sequential");
}

// Dropout depends on global indices only.
TEST(Torch20AttentionTest, DropsTheSameOnAnyNumberOfRanks) {
  const auto x = uniform({2, 5, kWidth}, 3);
  std::vector<at::Tensor> outputs(6);
  for (const int64_t ranks : {1, 2, 3, 4, 5}) {
    run_ranks(ranks, [&](int64_t rank) {
      const auto mesh = init_device_mesh(at::kCPU, {ranks}, {"tp"});
      auto mine = attention({.dropout = 0.5, .add_bias_kv = true});
      torch_2_0::parallelize_module(*mine, mesh, PairwiseParallel());
      dtensor::manual_seed(5);
      const auto y = mine(x);
      mine->eval();
      expect_close(mine(x), attention()(x), "eval");
      if (rank == 0) {
        outputs[static_cast<size_t>(ranks)] = y.detach();
      }
    });
  }
  for (size_t ranks = 2; ranks <= 5; ++ranks) {
    expect_close(outputs[ranks], outputs[1], c10::str(ranks, " ranks"));
  }
  EXPECT_GT((outputs[1] - attention()(x)).abs().max().item<double>(), 0.01);
}

void expect_uneven_heads(
    int64_t heads,
    const DeviceMesh& mesh,
    const ParallelStyle& style,
    const Run& run) {
  const auto make = [&] {
    return filled(TensorParallelMultiheadAttention(
        2 * heads, heads, AttentionOptions{.add_bias_kv = true}));
  };
  auto plain = make();
  auto mine = make();
  torch_2_0::parallelize_module(*mine, mesh, style);
  const auto here = chunk(heads, mesh.size(), mesh.get_local_rank()).size();
  EXPECT_EQ(DTensor(mine->qkv->weight).to_local().size(0), 6 * here);
  EXPECT_EQ(DTensor(mine->proj->weight).to_local().size(1), 2 * here);
  expect_like_one_rank(
      mine, plain, uniform({mesh.size(), 5, 2 * heads}, 3), mesh, run);
}

// Six heads on 4 and 5 ranks leave one or two ranks without heads.
TEST(Torch20AttentionTest, HeadsNeedNotDivide) {
  for (const int64_t heads : {6, 5}) {
    for (const int64_t ranks : {2, 3, 4, 5}) {
      run_ranks(ranks, [&] {
        const auto mesh = init_device_mesh(at::kCPU, {ranks}, {"tp"});
        const auto what = c10::str(heads, " heads on ", ranks);
        expect_uneven_heads(heads, mesh, PairwiseParallel(), {what});
        const std::string both = "1 all_gather, 1 reduce_scatter";
        expect_uneven_heads(
            heads, mesh, SequenceParallel(), {what, Shard(0), both, both});
      });
    }
  }
}

TEST(Torch20AttentionTest, HeadsOfThreeInputsNeedNotDivide) {
  run_ranks(4, [] {
    const auto mesh = init_device_mesh(at::kCPU, {4}, {"tp"});
    const AttentionOptions options{.self_attention = false};
    auto plain = attention(options);
    auto mine = attention(options);
    torch_2_0::parallelize_module(*mine, mesh, PairwiseParallel());
    EXPECT_EQ(
        DTensor(mine->key->weight).to_local().size(0),
        mesh.get_local_rank() == 3 ? 0 : 4);
    const auto x = uniform({2, 5, kWidth}, 3);
    expect_close(mine(x, x, x), plain(x, x, x), "three inputs");
  });
}

TEST(Torch20AttentionTest, WrongSizesAreErrors) {
  EXPECT_EQ(
      test::error_of<c10::ValueError>(
          [] { TensorParallelMultiheadAttention(10, 4); }),
      "[TensorParallelMultiheadAttention] embed_dim 10 is not divisible by "
      "num_heads 4. Pass an embed_dim that is a multiple of num_heads.");
  EXPECT_EQ(
      test::error_of<c10::ValueError>([] {
        TensorParallelMultiheadAttention(8, 4, AttentionOptions{.tp_size = 0});
      }),
      "[TensorParallelMultiheadAttention] tp_size must be positive, got 0. "
      "Leave it out: the mesh determines the number of ranks.");
}

TEST(Torch20AttentionTest, WrongInputsAreErrors) {
  auto self = attention();
  auto other = attention({.self_attention = false});
  const auto x = uniform({2, 5, kWidth}, 3);
  EXPECT_EQ(
      test::error_of<c10::ValueError>([&] { self(x[0]); }),
      "[TensorParallelMultiheadAttention] the number of dimensions of an input "
      "is 2. Pass (batch, sequence, embed_dim).");
  EXPECT_EQ(
      test::error_of<c10::ValueError>([&] { self(x, x.clone(), x); }),
      "[TensorParallelMultiheadAttention] self-attention got different "
      "tensors. Pass only the query, or make the module with self_attention = "
      "false.");
  EXPECT_EQ(
      test::error_of<c10::ValueError>([&] { other(x, x); }),
      "[TensorParallelMultiheadAttention] the number of dimensions of an input "
      "is 0. Pass (batch, sequence, embed_dim) for query, key and value each.");
}

TEST(Torch20AttentionTest, CopiesOfSomethingElseAreErrors) {
  auto mine = attention();
  EXPECT_EQ(
      test::error_of<c10::ValueError>(
          [&] { mine->copy(MultiheadAttention(kWidth, 3)); }),
      "[TensorParallelMultiheadAttention] cannot copy() from 3 heads of "
      "embed_dim 12 to 6 heads of embed_dim 12. Make the module with the same "
      "num_heads and embed_dim.");
  const std::string not_taken =
      "[TensorParallelMultiheadAttention] cannot copy() from a module with "
      "kdim, vdim, add_bias_kv or add_zero_attn. Only embed_dim, num_heads, "
      "bias and dropout are supported.";
  for (const auto& other :
       {MultiheadAttentionOptions(kWidth, kHeads).kdim(5),
        MultiheadAttentionOptions(kWidth, kHeads).add_bias_kv(true),
        MultiheadAttentionOptions(kWidth, kHeads).add_zero_attn(true)}) {
    EXPECT_EQ(
        test::error_of<c10::NotImplementedError>(
            [&] { mine->copy(MultiheadAttention(other)); }),
        not_taken);
  }
  const auto mesh = init_device_mesh(at::kCPU, {1}, {"tp"});
  torch_2_0::parallelize_module(*mine, mesh, PairwiseParallel());
  EXPECT_EQ(
      test::error_of([&] { mine->copy(MultiheadAttention(kWidth, kHeads)); }),
      "[TensorParallelMultiheadAttention] cannot copy() from or to a module "
      "that is already parallelized. Call copy() before parallelize_module.");
}

} // namespace TEST_SOURCE
} // namespace dtensor
