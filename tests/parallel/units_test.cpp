// SPDX-License-Identifier: BSD-3-Clause
// Styles that shard between heads: 9 query heads, and 3 key and value heads, on
// any number of ranks, compared with the plain module.
#include <tests/parallel/comm_counts.h>
#include <tests/parallel/grouped_attention.h>

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::test_modules;
namespace nn = torch::nn;

ParallelizePlan plan_of(int64_t group, bool local) {
  return {
      {"q",
       ColwiseParallel(
           {.use_local_output = local, .multiple_of = group * kHead})},
      {"k", ColwiseParallel({.use_local_output = local, .multiple_of = kHead})},
      {"v", ColwiseParallel({.use_local_output = local, .multiple_of = kHead})},
      {"o", RowwiseParallel({.multiple_of = group * kHead})}};
}

void expect_like_plain(
    int64_t heads,
    int64_t key_heads,
    int64_t ranks,
    bool local) {
  run_ranks(ranks, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {ranks}, {"tp"});
    const auto what = c10::str(
        heads, ":", key_heads, " on ", ranks, local ? "" : ", as DTensors");
    const auto whole = uniform({2, 3, heads * kHead}, 7);
    auto plain = filled(GroupedAttention(heads, key_heads));
    const auto x = whole.clone().requires_grad_();
    const auto truth = plain->forward(x);
    truth.square().sum().backward();

    auto module = filled(GroupedAttention(heads, key_heads));
    parallelize_module(*module, mesh, plan_of(heads / key_heads, local));
    const auto mine = whole.clone().requires_grad_();
    CommDebugMode comm;
    const auto y = module->forward(mine);
    EXPECT_EQ(counts(comm, false), ranks == 1 ? "" : "1 all_reduce") << what;
    expect_close(y, truth, what);
    comm.reset();
    y.square().sum().backward();
    EXPECT_EQ(counts(comm, true), ranks == 1 ? "" : "1 all_reduce") << what;
    expect_same_gradients(*module, *plain, what, 1e-10);
    expect_close(
        mine.grad(), x.grad(), what + ": gradient of the input", 1e-10);
  });
}

TEST(Units, AttentionIsThePlainOne) {
  for (const bool local : {true, false}) {
    for (int64_t ranks = 1; ranks <= 5; ++ranks) {
      expect_like_plain(9, 3, ranks, local); // the last rank may have none
      expect_like_plain(9, 9, ranks, local);
      expect_like_plain(10, 5, ranks, local);
    }
  }
}

TEST(Units, ShardsAtMultiplesOfTheUnit) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    auto module = filled(GroupedAttention(9, 3));
    parallelize_module(*module, mesh, plan_of(3, true));
    EXPECT_EQ(layout_of(module->q->weight), Shard(0, 12));
    EXPECT_EQ(layout_of(module->q->bias), Shard(0, 12));
    EXPECT_EQ(layout_of(module->k->weight), Shard(0, 4));
    EXPECT_EQ(layout_of(module->o->weight), Shard(1, 12));
    const auto first = mesh.get_local_rank() == 0;
    EXPECT_EQ(DTensor(module->q->weight).to_local().size(0), first ? 24 : 12);
    EXPECT_EQ(DTensor(module->k->weight).to_local().size(0), first ? 8 : 4);
    const auto q = module->q(uniform({2, 36}, 3));
    EXPECT_EQ(q.size(1), first ? 24 : 12);
  });
}

// One weight for gate and up projections, of 9 features each in units of 3.
struct GatedImpl : nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    const auto parts = both(x).chunk(2, -1);
    return down(torch::silu(parts[0]) * parts[1]);
  }
  nn::Linear both = register_module("both", nn::Linear(6, 18));
  nn::Linear down = register_module("down", nn::Linear(9, 6));
};
TORCH_MODULE(Gated);

TEST(Units, OfFusedProjections) {
  for (const bool local : {true, false}) {
    for (int64_t ranks = 1; ranks <= 4; ++ranks) {
      run_ranks(ranks, [&] {
        const auto mesh = init_device_mesh(at::kCPU, {ranks}, {"tp"});
        const auto whole = uniform({2, 3, 6}, 7);
        auto plain = filled(Gated());
        const auto truth = plain->forward(whole);
        truth.square().sum().backward();
        auto module = filled(Gated());
        parallelize_module(
            *module,
            mesh,
            {{"both",
              ColwiseParallel(
                  {.use_local_output = local,
                   .multiple_of = 3,
                   .fused_projections = 2})},
             {"down", RowwiseParallel({.multiple_of = 3})}});
        CommDebugMode comm;
        const auto y = module->forward(whole);
        const auto what = c10::str(ranks, local ? "" : ", as DTensors");
        EXPECT_EQ(counts(comm, false), ranks == 1 ? "" : "1 all_reduce")
            << what;
        expect_close(y, truth, what);
        y.square().sum().backward();
        expect_same_gradients(*module, *plain, what, 1e-10);
        if (ranks == 2) {
          EXPECT_EQ(layout_of(module->both->weight), StridedShard(0, 2, 3));
        }
      });
    }
  }
}

TEST(Units, OfAnEmbedding) {
  for (const int64_t ranks : {2, 4}) {
    run_ranks(ranks, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {ranks}, {"tp"});
      const auto ids = at::arange(10, at::kLong).reshape({2, 5});
      auto plain = filled(nn::Embedding(10, 9));
      const auto truth = plain(ids);
      truth.square().sum().backward();
      auto columns = filled(nn::Embedding(10, 9));
      parallelize_module(*columns, mesh, ColwiseParallel({.multiple_of = 3}));
      const auto y = columns(ids);
      expect_close(y, part(truth, mesh, Shard(2, 3)), "columns");
      y.square().sum().backward();
      expect_same_gradients(*columns, *plain, "columns");
      auto rows = filled(nn::Embedding(10, 9));
      parallelize_module(*rows, mesh, RowwiseParallel({.multiple_of = 5}));
      EXPECT_EQ(layout_of(rows->weight), ranks == 2 ? Shard(0) : Shard(0, 5));
      const auto z = rows(ids);
      expect_close(z, truth, "rows");
      z.square().sum().backward();
      expect_same_gradients(*rows, *plain, "rows");
    });
  }
}

TEST(Units, ThatDoNotDivideAreAnError) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    GroupedAttention module(9, 3);
    EXPECT_EQ(
        error_of([&] {
          parallelize_module(
              *module, mesh, {{"q", ColwiseParallel({.multiple_of = 64})}});
        }),
        "[ColwiseParallel] module \"q\" has a dimension of 36 to shard, which "
        "is not a multiple of multiple_of = 64. Set multiple_of to a divisor "
        "of it, such as the features of a head.");
    EXPECT_EQ(
        error_of([&] {
          parallelize_module(
              *module, mesh, {{"o", RowwiseParallel({.multiple_of = 0})}});
        }),
        "[RowwiseParallel] module \"o\" has a dimension of 36 to shard, which "
        "is not a multiple of multiple_of = 0. Set multiple_of to a divisor "
        "of it, such as the features of a head.");
    EXPECT_FALSE(is_dtensor(module->q->weight));
  });
}

// An input that is sharded at other boundaries than the weight is an error.
TEST(Units, OfAnInputMatchTheWeight) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    nn::Linear o(9, 2);
    parallelize_module(*o, mesh, RowwiseParallel({.multiple_of = 3}));
    EXPECT_EQ(
        error_of([&] {
          o(at::ones({1, 5}));
        }),
        c10::str(
            "[boundary] the input of the root module, f32[1, 5], has 5 "
            "features, but this rank's local tensor of 9 features in S(-1, "
            "u=3) should have ",
            mesh.get_local_rank() == 0 ? 6 : 3,
            ". Set output_layouts of the preceding module to input_layouts of "
            "this module."));
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
