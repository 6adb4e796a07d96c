// SPDX-License-Identifier: BSD-3-Clause
// After plain draws for local shards of different sizes, ranks draw the same
// numbers for replicated tensors.
#include <dtensor/parallel/nn_modules.h>

#include "on_each_rank.h"

namespace dtensor {
namespace TEST_SOURCE {

using namespace test_random;
namespace nn = torch::nn;

constexpr int64_t kFeatures = 8;
constexpr int64_t kUnit = 2; // features of each of four heads

// A block with dropout on this rank's heads and on the full output.
struct BlockImpl : nn::Module {
  explicit BlockImpl(double p) : dropout(nn::DropoutOptions(p)) {
    register_module("q", q);
    register_module("o", o);
    register_module("dropout", dropout);
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto heads = dropout(q(x));
    return x + dropout(o(heads));
  }
  nn::Linear q{kFeatures, kFeatures};
  nn::Linear o{kFeatures, kFeatures};
  nn::Dropout dropout;
};
TORCH_MODULE(Block);

Block sharded_block(double p) {
  Block block(p);
  parallelize_module(
      *block,
      line_of_ranks(),
      {{"q", ColwiseParallel({.multiple_of = kUnit})},
       {"o", RowwiseParallel({.multiple_of = kUnit})}});
  return block;
}

TEST(UnevenShards, DropoutOfHeadsLeavesReplicatedActivationsAlike) {
  for (int64_t ranks = 1; ranks <= 5; ++ranks) {
    torch::manual_seed(1);
    expect_alike(ranks, [] {
      auto block = sharded_block(0.5);
      Tensors result;
      for (int i = 0; i < 3; ++i) {
        const auto x = torch::randn({2, 3, kFeatures}).requires_grad_();
        const auto y = block(x);
        result.push_back(y);
        y.square().sum().backward();
        result.push_back(x.grad());
        const auto draws = replicated_draws();
        result.insert(result.end(), draws.begin(), draws.end());
      }
      result.push_back(full_tensor(randn({6}, line_of_ranks())));
      return result;
    });
  }
}

TEST(UnevenShards, RanksTrainOneModel) {
  for (const int64_t ranks : {2, 3, 5}) {
    torch::manual_seed(1);
    expect_alike(ranks, [] {
      auto block = sharded_block(0.3);
      torch::optim::SGD optimizer(block->parameters(), 0.1);
      Tensors losses;
      for (int i = 0; i < 4; ++i) {
        optimizer.zero_grad();
        const auto loss = block(torch::randn({4, kFeatures})).pow(2).mean();
        loss.backward();
        optimizer.step();
        losses.push_back(loss);
      }
      for (const auto& parameter : block->parameters()) {
        losses.push_back(full_tensor(parameter.detach()));
      }
      return losses;
    });
  }
}

using Draw = std::function<void(const at::Tensor& shard)>;

const std::vector<std::pair<const char*, Draw>> kDraws = {
    {"dropout", [](const auto& t) { torch::dropout(t, 0.5, true); }},
    {"dropout_", [](auto t) { torch::dropout_(t, 0.5, true); }},
    {"alpha_dropout",
     [](const auto& t) { torch::alpha_dropout(t, 0.5, true); }},
    {"feature_dropout",
     [](const auto& t) { torch::feature_dropout(t, 0.5, true); }},
    {"feature_alpha_dropout_",
     [](auto t) { torch::feature_alpha_dropout_(t, 0.5, true); }},
    {"native_dropout",
     [](const auto& t) { torch::native_dropout(t, 0.5, true); }},
    {"rand_like", [](const auto& t) { torch::rand_like(t); }},
    {"randn_like", [](const auto& t) { torch::randn_like(t); }},
    {"randint_like", [](const auto& t) { torch::randint_like(t, 9); }},
    {"bernoulli", [](const auto& t) { torch::bernoulli(t * 0.5); }},
    {"bernoulli_p", [](const auto& t) { torch::bernoulli(t, 0.5); }},
    {"bernoulli_", [](const auto& t) { t.clone().bernoulli_(0.5); }},
    {"exponential_",
     [](const auto& t) { torch::empty_like(t).exponential_(); }},
    {"normal_", [](const auto& t) { torch::empty_like(t).normal_(); }},
    {"random_", [](const auto& t) { torch::empty_like(t).random_(0, 7); }},
    {"normal", [](const auto& t) { at::normal(t, 1.0); }},
    {"rand", [](const auto& t) { torch::rand(t.sizes()); }},
    {"randn", [](const auto& t) { torch::randn(t.sizes()); }},
    {"randperm", [](const auto& t) { torch::randperm(t.size(0)); }},
    {"poisson", [](const auto& t) { torch::poisson(t * 3); }},
    {"rrelu", [](const auto& t) { torch::rrelu(-t, 0.1, 0.3, true); }},
    {"gumbel_softmax",
     [](const auto& t) { nn::functional::gumbel_softmax(t); }},
    {"by_handle",
     [](const auto& t) {
       t.clone().uniform_(0, 1, at::detail::getDefaultCPUGenerator());
     }},
};

TEST(UnevenShards, AnyDrawForAShardLeavesLaterDrawsAlike) {
  for (const auto& entry : kDraws) {
    const auto& name = entry.first;
    const auto& draw = entry.second;
    for (const int64_t ranks : {2, 3, 4, 6}) {
      torch::manual_seed(2);
      expect_alike(
          ranks,
          [&] {
            // 5 rows are uneven on all these numbers of ranks; 4 and 6 rows
            // leave ranks empty.
            draw(shard_of_rows(5));
            return replicated_draws();
          },
          name);
    }
  }
}

TEST(UnevenShards, ExplicitGeneratorsAreUsedAsTheyAre) {
  run_ranks(3, [] {
    const auto shard = shard_of_rows(5);
    auto mine = at::detail::createCPUGenerator(4);
    auto other = at::detail::createCPUGenerator(4);
    const auto drawn = shard.clone().uniform_(0, 1, mine);
    EXPECT_TRUE(at::equal(drawn, torch::rand(shard.sizes(), other)));
  });
}

// Three query heads are sharded over the ranks; one key and value head is
// shared.
TEST(UnevenShards, AttentionWithGroupedQueriesMayDropItsWeights) {
  for (const bool shared : {false, true}) {
    for (const int64_t ranks : {1, 2, 3, 4, 5}) {
      torch::manual_seed(3);
      expect_alike(ranks, [shared] {
        nn::Linear q(kFeatures, 6);
        nn::Linear k(kFeatures, 2);
        nn::Linear o(6, kFeatures);
        const auto mesh = line_of_ranks();
        const int64_t users = shared ? 3 : 0;
        parallelize_module(*q, mesh, ColwiseParallel({.multiple_of = 2}));
        parallelize_module(
            *k,
            mesh,
            shared
                ? ColwiseParallel({.multiple_of = 2, .num_query_heads = users})
                : ColwiseParallel({.output_layouts = Replicate()}));
        parallelize_module(*o, mesh, RowwiseParallel({.multiple_of = 2}));
        const auto x = torch::randn({2, 5, kFeatures});
        const auto heads = [](const at::Tensor& t) {
          return t.unflatten(-1, {t.size(-1) / 2, 2}).transpose(1, 2);
        };
        const auto queries = heads(q(x));
        auto keys = heads(k(x));
        if (!shared) {
          keys = keys.expand({2, queries.size(1), 5, 2});
        }
        const auto weights = torch::dropout(
            torch::softmax(queries.matmul(keys.transpose(-1, -2)), -1),
            0.3,
            true);
        const auto mask = torch::rand(queries.sizes()).lt(0.9);
        const auto seen = (weights.matmul(keys) * mask).transpose(1, 2);
        Tensors result = {o(seen.flatten(2))};
        const auto again = torch::scaled_dot_product_attention(
            queries, queries, queries, {}, 0.4);
        result.push_back(o(again.transpose(1, 2).flatten(2)));
        const auto draws = replicated_draws();
        result.insert(result.end(), draws.begin(), draws.end());
        return result;
      });
    }
  }
}

TEST(UnevenShards, OfASequenceMayBeDropped) {
  for (const int64_t ranks : {2, 3, 4}) {
    torch::manual_seed(4);
    expect_alike(ranks, [] {
      const auto mesh = line_of_ranks();
      nn::LayerNorm norm(nn::LayerNormOptions({kFeatures}));
      nn::Linear up(kFeatures, 12);
      nn::Linear down(12, kFeatures);
      nn::Linear head(kFeatures, 6);
      parallelize_module(
          *norm, mesh, SequenceParallel({.use_local_output = true}));
      parallelize_module(
          *up, mesh, ColwiseParallel({.input_layouts = Shard(1)}));
      parallelize_module(
          *down, mesh, RowwiseParallel({.output_layouts = Shard(1)}));
      parallelize_module(
          *head,
          mesh,
          ColwiseParallel(
              {.input_layouts = Shard(1), .output_layouts = Replicate()}));
      const at::Tensor whole = distribute_tensor(
          torch::randn({2, 5, kFeatures}), mesh, {Shard(1)}, std::nullopt);
      // Uneven shards must be DTensors at a module's boundary, because the
      // global size cannot be inferred from a plain local shard.
      const auto shard = [&](const at::Tensor& t) {
        return DTensor::from_local(
            t,
            mesh,
            {Shard(1)},
            {.shape = std::vector<int64_t>{2, 5, t.size(-1)}});
      };
      auto x = norm(whole);
      x = torch::dropout(x, 0.5, true);
      const auto h = torch::dropout(up(shard(x)), 0.5, true);
      x = x + torch::dropout(down(h), 0.5, true);
      const auto y = torch::dropout(head(shard(x)), 0.5, true);
      torch::dropout(x, 0.5, true); // a shard that is still alive
      Tensors result = {y};
      const auto draws = replicated_draws();
      result.insert(result.end(), draws.begin(), draws.end());
      return result;
    });
  }
}

TEST(UnevenShards, OfLocalMapMayDraw) {
  for (const int64_t ranks : {1, 2, 3, 4}) {
    torch::manual_seed(5);
    expect_alike(ranks, [] {
      const auto noisy = local_map(
          [](const at::Tensor& t) {
            return torch::dropout(t, 0.5, true) + torch::rand(t.sizes());
          },
          {Shard(0)},
          {{Shard(0)}},
          {.out_shapes = {std::vector<int64_t>{5, 4}}});
      const auto x = randn({5, 4}, line_of_ranks(), {Shard(0)});
      noisy(x);
      return replicated_draws();
    });
  }
}

TEST(UnevenShards, OfPreparedInputsMayBeDropped) {
  for (const int64_t ranks : {2, 3, 4}) {
    torch::manual_seed(6);
    expect_alike(ranks, [] {
      hooked::Dropout dropout(0.5);
      parallelize_module(
          *dropout,
          line_of_ranks(),
          PrepareModuleInput(
              {.input_layouts = {Replicate()},
               .desired_input_layouts = {Shard(0)},
               .use_local_output = true}));
      const auto y = dropout(torch::ones({5, 4}));
      EXPECT_FALSE(is_dtensor(y));
      return replicated_draws();
    });
  }
}

// Successive calls draw different numbers.
TEST(UnevenShards, CallsDrawDifferentNumbers) {
  torch::manual_seed(7);
  expect_alike(3, [] {
    shard_of_rows(5);
    const auto a = torch::rand({1000});
    const auto b = torch::rand({1000});
    EXPECT_FALSE(at::equal(a, b));
    EXPECT_NEAR(a.mean().item<double>(), 0.5, 0.05);
    EXPECT_NEAR((a * b).mean().item<double>(), 0.25, 0.05);
    EXPECT_NEAR(a.var().item<double>(), 1.0 / 12, 0.01);
    return Tensors{a, b};
  });
}

// Four rows on three ranks are sharded into 2, 2 and 0.
TEST(UnevenShards, ACallTakesOneNumberForAnySize) {
  expect_alike(3, [] {
    torch::manual_seed(8);
    const auto shard = shard_of_rows(4);
    const auto start = get_random_state();
    const auto state_after = [&](const at::Tensor& drawn, int64_t calls) {
      set_random_state(start);
      for (int64_t i = 0; i < calls; ++i) {
        torch::dropout(drawn, 0.5, true);
      }
      return get_random_state();
    };
    const auto one = state_after(shard, 1);
    EXPECT_TRUE(at::equal(state_after(torch::ones({1000}), 1), one));
    EXPECT_TRUE(at::equal(state_after(torch::ones({0}), 1), one));
    const auto two = state_after(shard, 2);
    EXPECT_TRUE(at::equal(state_after(torch::ones({1000}), 2), two));
    EXPECT_FALSE(at::equal(two, one));
    return Tensors{one, two};
  });
}

TEST(UnevenShards, BatchesWithoutDropoutEqualOneRank) {
  const auto batches = [] {
    auto block = sharded_block(0);
    Tensors all;
    for (int i = 0; i < 3; ++i) {
      all.push_back(torch::randn({2, 3, kFeatures}));
      all.push_back(torch::randint(50, {7}));
      const auto y = block(all[all.size() - 2]);
      y.sum().backward();
      all.push_back(nn::Linear(3, 2)->weight);
    }
    return all;
  };
  torch::manual_seed(8);
  const auto truth = expect_alike(1, batches);
  for (const int64_t ranks : {2, 3, 5}) {
    torch::manual_seed(8);
    const auto mine = expect_alike(ranks, batches);
    for (size_t i = 0; i < truth.size(); ++i) {
      EXPECT_TRUE(at::equal(mine[i], truth[i])) << i << " on " << ranks;
    }
  }
}

// Even shards draw the sequence of the generator, like a program without ranks.
TEST(UnevenShards, ShardsOfOneSizeDrawAsAProgramWithoutRanks) {
  torch::manual_seed(9);
  Tensors truth = {torch::dropout(torch::ones({2, 4}), 0.5, true)};
  for (const auto& t : replicated_draws()) {
    truth.push_back(t);
  }
  for (const int64_t ranks : {1, 2, 3}) {
    torch::manual_seed(9);
    const auto mine = expect_alike(ranks, [ranks] {
      Tensors all = {torch::dropout(shard_of_rows(2 * ranks), 0.5, true)};
      const auto draws = replicated_draws();
      all.insert(all.end(), draws.begin(), draws.end());
      return all;
    });
    for (size_t i = 0; i < truth.size(); ++i) {
      EXPECT_TRUE(at::equal(mine[i], truth[i])) << i << " on " << ranks;
    }
  }
}

// Draws with value-dependent counts leave later draws equal, even for even
// shards.
TEST(UnevenShards, DrawsThatDependOnValuesLeaveLaterOnesAlike) {
  const std::vector<Draw> draws = {
      [](const auto& t) { torch::poisson(t); },
      [](const auto& t) { at::_standard_gamma(t); },
      [](const auto& t) { torch::binomial(t, torch::full_like(t, 0.5)); },
      [](const auto& t) { torch::rrelu(t - 30, 0.1, 0.3, true); },
      [](const auto& t) { nn::RReLU()(t - 30); }};
  for (const auto& draw : draws) {
    torch::manual_seed(10);
    expect_alike(3, [&] {
      const auto whole = torch::arange(1, 61, torch::kFloat);
      const DTensor cut(distribute_tensor(whole, line_of_ranks(), {Shard(0)}));
      draw(cut.to_local());
      return replicated_draws();
    });
  }
}

// Saving a state dictionary of local shards, even on a single rank, does not
// change draws.
TEST(UnevenShards, SavingShardsDoesNotChangeDraws) {
  torch::manual_seed(13);
  expect_alike(3, [] {
    auto block = sharded_block(0);
    if (get_rank() == 0) {
      get_model_state_dict(*block, {.local_shards = true});
    }
    return replicated_draws();
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
