// SPDX-License-Identifier: BSD-3-Clause
// RowwiseParallel in chunks gives the results and gradients of the plain
// module, with one collective per chunk if chunking is possible.
#include <c10/core/InferenceMode.h>
#include <dtensor/debug/comm_debug_mode.h>
#include <dtensor/layout/text.h>
#include <tests/parallel/modules.h>

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::test_modules;

struct Case {
  std::vector<int64_t> sizes;
  Placement output;
  int64_t chunks = 1;
  /// Expected all-reduces or reduce-scatters of the forward pass.
  int64_t collectives = 1;
  bool bias = true;
  bool local = true;

  std::string text() const {
    return c10::str(
        sizes,
        " to ",
        to_string(output),
        " in ",
        chunks,
        bias ? " with bias" : "",
        local ? " local" : "");
  }
};

std::vector<Case> cases() {
  const std::vector<Case> kinds = {
      {{6, 5}, Replicate(), 2, 2},
      {{7, 5}, Replicate(), 3, 3},
      {{7, 5}, Replicate(), 100, 7},
      {{1, 5}, Replicate(), 4, 1},
      {{0, 5}, Replicate(), 4, 1},
      {{6, 5}, Shard(-1), 3, 3},
      {{6, 5}, Shard(0), 3, 1},
      {{6, 5}, Partial(), 3, 0},
      {{2, 6, 5}, Replicate(), 5, 5},
      {{1, 6, 5}, Replicate(), 2, 2},
      {{2, 6, 5}, Shard(1), 2, 2},
      {{3, 7, 5}, Shard(1), 2, 2},
      {{3, 7, 5}, Shard(-1), 2, 2},
      {{1, 6, 5}, Shard(1), 2, 1},
      {{2, 6, 5}, Shard(0), 2, 1},
      {{2, 2, 3, 5}, Shard(2), 2, 2},
      {{2, 6, 5}, Shard(1, 4), 2, 2},
      {{3, 7, 5}, Shard(1, 3), 3, 3}};
  std::vector<Case> all;
  for (Case c : kinds) {
    for (const bool bias : {false, true}) {
      for (const bool local : {false, true}) {
        c.bias = bias;
        c.local = local;
        all.push_back(c);
      }
    }
  }
  return all;
}

torch::nn::Linear linear(const Case& c) {
  return filled(torch::nn::Linear(torch::nn::LinearOptions(5, 7).bias(c.bias)));
}

int64_t reductions(const CommDebugMode& counter) {
  return counter.total({.kind = CollectiveKind::kAllReduce}).count +
      counter.total({.kind = CollectiveKind::kReduceScatter}).count;
}

void check(const Case& c, const DeviceMesh& mesh) {
  const auto what = c.text();
  const auto x = uniform(c.sizes, 7);
  auto plain = linear(c);
  const auto whole_x = x.clone().requires_grad_();
  const auto truth = plain->forward(whole_x);
  const auto weight = uniform(truth.sizes(), 99);
  truth.backward(weight);

  auto mine = linear(c);
  parallelize_module(
      *mine,
      mesh,
      RowwiseParallel(
          {.output_layouts = c.output,
           .use_local_output = c.local,
           .overlap_chunks = c.chunks}));
  const auto input = part(x, mesh, Shard(-1)).requires_grad_();
  at::Tensor y;
  {
    const CommDebugMode counter;
    y = mine->forward(input);
    EXPECT_EQ(reductions(counter), mesh.size() == 1 ? 0 : c.collectives)
        << what;
  }
  ASSERT_EQ(is_dtensor(y), !c.local) << what;
  const DTensor as_one = c.local
      ? DTensor::from_local(y, mesh, {c.output}, {.shape = truth.sizes().vec()})
      : DTensor(y);
  expect_close(as_one, truth, what);
  EXPECT_EQ(as_one.spec(), as_one.spec()->with_placements({c.output})) << what;
  (as_one.full_tensor() * weight).sum().backward();
  expect_same_gradients(*mine, *plain, what);
  expect_close(
      input.grad(), part(whole_x.grad(), mesh, Shard(-1)), what + ": input");

  const torch::NoGradGuard no_grad;
  expect_close(
      c.local ? DTensor::from_local(
                    mine->forward(input),
                    mesh,
                    {c.output},
                    {.shape = truth.sizes().vec()})
              : mine->forward(input),
      truth,
      what + " without a graph");
}

TEST(OverlappedLinear, IsThePlainOne) {
  for (const int64_t ranks : {1, 2, 3}) {
    run_ranks(ranks, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {ranks}, {"tp"});
      for (const auto& c : cases()) {
        check(c, mesh);
      }
    });
  }
}

// Features are sharded between heads of three.
TEST(OverlappedLinear, OfUnitsIsThePlainOne) {
  for (const int64_t ranks : {1, 2, 3, 4}) {
    run_ranks(ranks, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {ranks}, {"tp"});
      for (const auto& output : {Replicate(), Shard(1), Shard(1, 4)}) {
        const auto make = [] { return filled(torch::nn::Linear(9, 4)); };
        auto plain = make();
        auto mine = make();
        parallelize_module(
            *mine,
            mesh,
            RowwiseParallel(
                {.output_layouts = output,
                 .overlap_chunks = 2,
                 .multiple_of = 3}));
        const auto whole = uniform({4, 6, 9}, 7);
        const auto leaf = whole.clone().requires_grad_();
        const auto x = part(whole, mesh, Shard(2, 3)).requires_grad_();
        const auto truth = plain(leaf);
        const CommDebugMode counter;
        const auto y = mine(x);
        EXPECT_EQ(reductions(counter), ranks == 1 ? 0 : 2);
        expect_close(y, part(truth, mesh, output), "output");
        const auto weight = uniform(truth.sizes(), 9);
        truth.backward(weight);
        y.backward(part(weight, mesh, output));
        expect_same_gradients(*mine, *plain, "units");
        expect_close(x.grad(), part(leaf.grad(), mesh, Shard(2, 3)), "input");
      }
    });
  }
}

TEST(OverlappedLinear, TakesTheCollectivesOfOneInTheBackwardPass) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    for (const auto& output : {Replicate(), Shard(1)}) {
      std::vector<std::string> counts;
      for (const int64_t chunks : {1, 2}) {
        auto mine = linear({});
        parallelize_module(
            *mine,
            mesh,
            RowwiseParallel(
                {.output_layouts = output, .overlap_chunks = chunks}));
        const auto y = mine(part(uniform({2, 6, 5}, 7), mesh, Shard(-1)));
        const CommDebugMode counter;
        y.sum().backward();
        counts.push_back(counter.generate_comm_debug_tracing_table());
      }
      EXPECT_EQ(counts[0], counts[1]);
    }
  });
}

TEST(OverlappedLinear, IsTwiceDifferentiable) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    const auto x = uniform({4, 5}, 7);
    const auto second_order = [](const at::Tensor& y, const at::Tensor& input) {
      const auto first = torch::autograd::grad(
          {y.pow(3).sum()}, {input}, {}, true, /*create_graph=*/true)[0];
      return first.pow(2).sum();
    };
    auto plain = linear({});
    const auto whole = x.clone().requires_grad_();
    second_order(plain(whole), whole).backward();

    auto mine = linear({});
    parallelize_module(
        *mine,
        mesh,
        RowwiseParallel({.use_local_output = false, .overlap_chunks = 2}));
    auto input = distribute_tensor(x, mesh, {Shard(1)}).requires_grad_();
    DTensor(second_order(mine(input), input)).full_tensor().backward();
    expect_same_gradients(*mine, *plain, "second order", 1e-10);
    expect_close(input.grad(), whole.grad(), "input", 1e-10);
  });
}

TEST(OverlappedLinear, WorksInInferenceModeAndWithFrozenParameters) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    for (const auto& sizes :
         {std::vector<int64_t>{4, 5}, std::vector<int64_t>{2, 4, 5}}) {
      const auto x = uniform(sizes, 7);
      auto plain = linear({});
      auto mine = linear({});
      parallelize_module(*mine, mesh, RowwiseParallel({.overlap_chunks = 2}));
      {
        const c10::InferenceMode inference;
        expect_close(mine(part(x, mesh, Shard(-1))), plain(x), "inference");
      }
      mine->weight.set_requires_grad(false);
      plain->weight.set_requires_grad(false);
      const auto input = part(x, mesh, Shard(-1)).requires_grad_();
      const auto whole = x.clone().requires_grad_();
      plain(whole).sum().backward();
      mine(input).sum().backward();
      expect_close(input.grad(), part(whole.grad(), mesh, Shard(-1)), "frozen");
      expect_same_gradients(*mine, *plain, "frozen");
      EXPECT_FALSE(mine->weight.grad().defined());
    }
  });
}

TEST(OverlappedLinear, ChunksThatMakeNoSenseAreAnError) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    torch::nn::Linear mine(5, 7);
    EXPECT_EQ(
        error_of([&] {
          parallelize_module(
              *mine, mesh, RowwiseParallel({.overlap_chunks = 0}));
        }),
        "[RowwiseParallel] the root module of type torch::nn::LinearImpl "
        "cannot be computed in 0 chunks. Set overlap_chunks to 1, or to more "
        "for a torch::nn::Linear.");
    torch::nn::Embedding embedding(5, 7);
    EXPECT_EQ(
        error_of([&] {
          parallelize_module(
              *embedding, mesh, RowwiseParallel({.overlap_chunks = 2}));
        }),
        "[RowwiseParallel] the root module of type torch::nn::EmbeddingImpl "
        "cannot be computed in 2 chunks. Set overlap_chunks to 1, or to more "
        "for a torch::nn::Linear.");
  });
}

// Some ranks have no features: Linear(1, 4) on 2 ranks, Linear(2, 4) on 3.
TEST(OverlappedLinear, RanksWithoutFeatures) {
  for (const int64_t features : {1, 2}) {
    run_ranks(features + 1, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {features + 1}, {"tp"});
      auto plain = filled(torch::nn::Linear(features, 4));
      auto mine = filled(torch::nn::Linear(features, 4));
      parallelize_module(*mine, mesh, RowwiseParallel({.overlap_chunks = 2}));
      const auto whole = uniform({2, 3, features}, 5);
      const auto leaf = whole.clone().requires_grad_();
      const auto x = part(whole, mesh, Shard(-1)).requires_grad_();
      const auto truth = plain(leaf);
      const auto y = mine(x);
      expect_close(y, truth, "output");
      truth.sum().backward();
      y.sum().backward();
      expect_same_gradients(*mine, *plain, "no features");
      expect_close(x.grad(), part(leaf.grad(), mesh, Shard(-1)), "input");
    });
  }
}

} // namespace TEST_SOURCE
} // namespace dtensor
