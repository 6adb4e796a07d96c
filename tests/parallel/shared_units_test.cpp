// SPDX-License-Identifier: BSD-3-Clause
// ColwiseParallel with num_query_heads: key heads of grouped queries on ranks
// with a fraction of a query group, compared with the plain module.
#include <c10/core/InferenceMode.h>
#include <dtensor/deferred/deferred_init.h>
#include <dtensor/layout/shard_math.h>
#include <dtensor/ops/boundary/products_impl.h>
#include <dtensor/parallel/autocast.h>
#include <tests/parallel/comm_counts.h>
#include <tests/parallel/grouped_attention.h>

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::test_modules;
namespace nn = torch::nn;
using detail::SharedUnits;
using Units = std::vector<int64_t>;

SharedUnits shared(int64_t count, int64_t users) {
  return {.unit = kHead, .count = count, .users = users};
}

TEST(SharedUnits, AreUsedByQueriesOfTheRank) {
  const auto of = [](int64_t count, int64_t users, int64_t ranks) {
    std::vector<Units> all;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      all.push_back(shared(count, users).of_rank(ranks, rank));
    }
    return all;
  };
  using All = std::vector<Units>;
  EXPECT_EQ(of(3, 9, 1), (All{{0, 1, 2}}));
  EXPECT_EQ(of(3, 9, 2), (All{{0, 0, 0, 1, 1}, {1, 2, 2, 2}}));
  EXPECT_EQ(of(3, 9, 3), (All{{0}, {1}, {2}}));
  EXPECT_EQ(of(3, 9, 4), (All{{0}, {1}, {2}, {}}));
  EXPECT_EQ(of(3, 9, 5), (All{{0}, {0, 1}, {1}, {2}, {2}}));
  EXPECT_EQ(of(2, 8, 4), (All{{0}, {0}, {1}, {1}}));
  EXPECT_EQ(of(1, 6, 4), (All{{0}, {0}, {0}, {}}));
  EXPECT_EQ(of(2, 12, 3), (All{{0}, {0, 1}, {1}}));
  EXPECT_EQ(of(4, 4, 3), (All{{0, 1}, {2, 3}, {}}));
  EXPECT_TRUE(shared(3, 9).is_sharded_by_units(4));
  EXPECT_FALSE(shared(3, 9).is_sharded_by_units(2));
  EXPECT_FALSE(shared(2, 8).is_sharded_by_units(4));
}

// Query i of n uses key i / (n / keys).
TEST(SharedUnits, AreWhatGroupedAttentionTakes) {
  for (int64_t count = 1; count <= 5; ++count) {
    for (int64_t each = 1; each <= 6; ++each) {
      for (int64_t ranks = 1; ranks <= 7; ++ranks) {
        for (int64_t rank = 0; rank < ranks; ++rank) {
          const auto mine = chunk(count * each, ranks, rank);
          const auto units = shared(count, count * each).of_rank(ranks, rank);
          const auto keys = static_cast<int64_t>(units.size());
          ASSERT_EQ(keys == 0, mine.size() == 0);
          for (int64_t i = 0; i < mine.size(); ++i) {
            ASSERT_EQ(mine.size() % keys, 0);
            const auto key = units[static_cast<size_t>(i * keys / mine.size())];
            EXPECT_EQ(key, (mine.begin + i) / each);
          }
        }
      }
    }
  }
}

struct Case {
  int64_t heads = 0;
  int64_t key_heads = 0;
  bool bias = false;
  bool sequence = false; // activations are sharded along it

  ParallelizePlan plan() const {
    const auto x = sequence ? Shard(1) : Placement(Replicate());
    const ColwiseParallel keys(
        {.input_layouts = x, .multiple_of = kHead, .num_query_heads = heads});
    return {
        {"q", ColwiseParallel({.input_layouts = x, .multiple_of = kHead})},
        {"k", keys},
        {"v", keys},
        {"o", RowwiseParallel({.output_layouts = x, .multiple_of = kHead})}};
  }
  GroupedAttention make() const {
    return filled(GroupedAttention(heads, key_heads, bias));
  }
};

int64_t gradient_reductions(const CommDebugMode& comm) {
  return comm.total({.module = "gradients"}).count;
}

void expect_like_plain(const Case& c, const DeviceMesh& mesh) {
  const auto ranks = mesh.size();
  const auto what = c10::str(
      c.heads,
      ":",
      c.key_heads,
      " on ",
      ranks,
      c.bias ? " with bias" : "",
      c.sequence ? " along the sequence" : "");
  const auto layout = c.sequence ? Shard(1) : Placement(Replicate());
  const auto whole = uniform({2, 2 * ranks, c.heads * kHead}, 7);
  auto plain = c.make();
  const auto x = whole.clone().requires_grad_();
  const auto truth = plain->forward(x);
  const auto weight = uniform(truth.sizes(), 9);
  truth.backward(weight);

  auto module = c.make();
  parallelize_module(*module, mesh, c.plan());
  const auto mine = part(whole, mesh, layout).requires_grad_();
  CommDebugMode comm;
  const auto y = module->forward(mine);
  const std::string sum =
      c.sequence ? "1 all_gather, 1 reduce_scatter" : "1 all_reduce";
  EXPECT_EQ(counts(comm, false), ranks == 1 ? "" : sum) << what;
  expect_close(y, part(truth, mesh, layout), what);
  comm.reset();
  y.backward(part(weight, mesh, layout));
  EXPECT_EQ(counts(comm, true), ranks == 1 ? "" : sum) << what;
  const bool is_sharded_by_units =
      shared(c.key_heads, c.heads).is_sharded_by_units(ranks);
  EXPECT_EQ(layout_of(module->k->weight).is_replicate(), !is_sharded_by_units)
      << what;
  EXPECT_LE(gradient_reductions(comm), 1) << what; // one for all gradients
  expect_same_gradients(*module, *plain, what, 1e-10);
  expect_close(
      mine.grad(), part(x.grad(), mesh, layout), what + ": input", 1e-10);

  const c10::InferenceMode inference;
  expect_close(
      module->forward(part(whole, mesh, layout)),
      part(truth, mesh, layout),
      what + ": in inference mode");
}

TEST(SharedUnits, AttentionIsThePlainOne) {
  for (int64_t ranks = 1; ranks <= 5; ++ranks) {
    run_ranks(ranks, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {ranks}, {"tp"});
      for (const auto& [heads, key_heads] :
           std::vector<std::pair<int64_t, int64_t>>{
               {9, 3}, {8, 2}, {6, 1}, {5, 5}, {12, 2}}) {
        for (const bool bias : {false, true}) {
          for (const bool sequence : {false, true}) {
            expect_like_plain({heads, key_heads, bias, sequence}, mesh);
          }
        }
      }
    });
  }
}

// Products of vectors and of matrices use other operators.
TEST(SharedUnits, OfVectorsAndMatrices) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    const auto rank = mesh.get_local_rank();
    for (const bool bias : {false, true}) {
      const auto make = [&] {
        return filled(nn::Linear(nn::LinearOptions(5, 3 * kHead).bias(bias)));
      };
      auto plain = make();
      auto mine = make();
      parallelize_module(
          *mine,
          mesh,
          ColwiseParallel({.multiple_of = kHead, .num_query_heads = 9}));
      for (const auto& sizes :
           {std::vector<int64_t>{5}, {3, 5}, {0, 5}, {2, 1, 3, 5}}) {
        const auto x = uniform(sizes, 3);
        const auto units = shared(3, 9).of_rank(2, rank);
        expect_close(
            mine(x),
            plain(x)
                .unflatten(-1, {3, kHead})
                .index_select(-2, at::tensor(units))
                .flatten(-2),
            c10::str(sizes));
      }
    }
  });
}

TEST(SharedUnits, TrainLikeThePlainModule) {
  run_ranks(4, [] {
    const auto mesh = init_device_mesh(at::kCPU, {4}, {"tp"});
    const Case c{8, 2, true};
    const auto train = [&](GroupedAttention& module) {
      torch::optim::SGD sgd(module->parameters(), 1e-5);
      for (uint64_t step = 0; step < 3; ++step) {
        sgd.zero_grad();
        module->forward(uniform({2, 5, 8 * kHead}, step))
            .square()
            .sum()
            .backward();
        sgd.step();
      }
    };
    auto plain = c.make();
    auto mine = c.make();
    parallelize_module(*mine, mesh, c.plan());
    train(plain);
    train(mine);
    expect_same_parameters(*mine, *plain);
  });
}

TEST(SharedUnits, AreTwiceDifferentiable) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    const auto second = [](const at::Tensor& y, const at::Tensor& x) {
      torch::autograd::grad(
          {y.pow(3).sum()}, {x}, {}, true, /*create_graph=*/true)[0]
          .pow(2)
          .sum()
          .backward();
    };
    auto plain = filled(nn::Linear(5, 3 * kHead));
    auto mine = filled(nn::Linear(5, 3 * kHead));
    parallelize_module(
        *mine,
        mesh,
        ColwiseParallel({.multiple_of = kHead, .num_query_heads = 9}));
    const auto x = uniform({2, 3, 5}, 7);
    const auto whole = x.clone().requires_grad_();
    const auto input = x.clone().requires_grad_();
    // Units of all ranks.
    const auto units = at::tensor(Units{0, 0, 0, 1, 1, 1, 2, 2, 2});
    second(
        plain(whole).unflatten(-1, {3, kHead}).index_select(-2, units), whole);
    second(mine(input), input);
    expect_same_gradients(*mine, *plain, "second order", 1e-10);
    expect_close(input.grad(), whole.grad(), "input", 1e-10);
  });
}

// Results and dtype under autocast match the plain module's.
TEST(SharedUnits, UnderAutocast) {
  run_ranks(2, [](int64_t rank) {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    for (const bool bias : {false, true}) {
      const auto make = [&] {
        auto linear =
            filled(nn::Linear(nn::LinearOptions(5, 3 * kHead).bias(bias)));
        linear->to(at::kFloat);
        return linear;
      };
      auto plain = make();
      auto mine = make();
      parallelize_module(
          *mine,
          mesh,
          ColwiseParallel({.multiple_of = kHead, .num_query_heads = 9}));
      for (const auto& sizes : {std::vector<int64_t>{2, 5}, {2, 3, 5}}) {
        const auto x = uniform(sizes, 3).to(at::kFloat);
        const Autocast scope(at::kCPU, at::kBFloat16);
        const auto y = mine(x);
        const auto truth = plain(x);
        EXPECT_EQ(y.scalar_type(), truth.scalar_type());
        expect_close(
            y,
            truth.unflatten(-1, {3, kHead})
                .index_select(-2, at::tensor(shared(3, 9).of_rank(2, rank)))
                .flatten(-2),
            c10::str(sizes),
            0.02);
      }
    }
  });
}

TEST(SharedUnits, OfADeferredModel) {
  run_ranks(2, [](int64_t rank) {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    nn::Linear k{nullptr};
    {
      const DeferredInit scope;
      k = nn::Linear(5, 3 * kHead);
    }
    parallelize_module(
        *k,
        mesh,
        ColwiseParallel({.multiple_of = kHead, .num_query_heads = 9}));
    const auto features = rank == 0 ? 5 * kHead : 4 * kHead;
    const auto y = k(at::empty({2, 3, 5}, at::kMeta));
    EXPECT_TRUE(y.is_meta());
    EXPECT_EQ(y.sizes(), at::IntArrayRef({2, 3, features}));
    materialize(*k);
    EXPECT_EQ(k(at::ones({2, 3, 5})).size(-1), features);
  });
}

TEST(SharedUnits, ARankOutsideTheMeshHasNothing) {
  run_ranks(3, [](int64_t rank) {
    const auto mesh = make_device_mesh(at::kCPU, {2}, {0, 1}, {"tp"});
    for (const bool bias : {false, true}) {
      auto mine = filled(nn::Linear(nn::LinearOptions(5, 12).bias(bias)));
      parallelize_module(
          *mine,
          mesh,
          ColwiseParallel({.multiple_of = kHead, .num_query_heads = 9}));
      for (const auto& sizes : {std::vector<int64_t>{2, 5}, {2, 3, 5}}) {
        const auto y = mine(uniform(sizes, 3));
        EXPECT_FALSE(is_dtensor(y));
        EXPECT_EQ(y.numel() == 0, rank == 2);
      }
    }
  });
}

std::string refused(const ColwiseOptions& options, nn::Module& module) {
  const auto mesh = init_device_mesh(at::kCPU, {1}, {"tp"});
  return error_of(
      [&] { parallelize_module(module, mesh, ColwiseParallel(options)); });
}

TEST(SharedUnits, ThatCannotBeAreErrors) {
  run_ranks(1, [] {
    nn::Linear k(5, 12);
    const std::string begin = "[ColwiseParallel] the root module";
    for (const int64_t users : {-3, 2, 10}) {
      EXPECT_EQ(
          refused({.multiple_of = 4, .num_query_heads = users}, *k),
          c10::str(
              begin,
              " has 3 key/value heads of 4 features, which num_query_heads = ",
              users,
              " cannot share evenly. Set num_query_heads to a multiple of 3: "
              "the number of query heads."));
    }
    const std::string plain =
        ": with num_query_heads the output is a plain tensor of the heads that "
        "this rank needs, not ";
    const std::string end =
        ". Leave out either num_query_heads or that layout; attention on "
        "DTensors in R selects the heads itself.";
    EXPECT_EQ(
        refused(
            {.use_local_output = false, .multiple_of = 4, .num_query_heads = 9},
            *k),
        begin + plain + "a DTensor in S(-1)" + end);
    EXPECT_EQ(
        refused(
            {.output_layouts = Replicate(),
             .multiple_of = 4,
             .num_query_heads = 9},
            *k),
        begin + plain + "R" + end);
    EXPECT_EQ(
        refused(
            {.multiple_of = 4, .num_query_heads = 9}, *nn::Embedding(5, 12)),
        "[ColwiseParallel] cannot use num_query_heads for the root module of "
        "type torch::nn::EmbeddingImpl: only torch::nn::Linear is supported. "
        "Leave it out.");
    EXPECT_FALSE(is_dtensor(k->weight));
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
