// SPDX-License-Identifier: BSD-3-Clause
// Modules that can be units, and their parameters for operators, optimizers and
// state dictionaries.
#include <dtensor/data_parallel/fully_shard.h>
#include <dtensor/debug/comm_debug_mode.h>
#include <dtensor/deferred/deferred_init.h>
#include <dtensor/parallel/module_hooks.h>
#include <dtensor/parallel/state_dict.h>
#include <dtensor/random/random.h>
#include <tests/parallel/modules.h>

#include <functional>

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::test_modules;

void on_ranks(int64_t ranks, const std::function<void(const DeviceMesh&)>& fn) {
  run_ranks(ranks, [&] { fn(init_device_mesh(at::kCPU, {ranks}, {"dp"})); });
}

// Returns this rank's rows of an equal split over `mesh`.
at::Tensor my_rows(const at::Tensor& whole, const DeviceMesh& mesh) {
  const auto rows = whole.size(0) / mesh.size();
  return whole.narrow(0, rows * mesh.get_local_rank(), rows);
}

int64_t count_of(const CommDebugMode& comm, CollectiveKind kind) {
  const auto counts = comm.get_comm_counts();
  const auto found = counts.find(kind);
  return found == counts.end() ? 0 : found->second;
}

// Compares gradients of the mean over all rows with those of a plain module.
template <class Holder>
void expect_same_as_plain(
    const std::function<Holder()>& make,
    const at::Tensor& input,
    const std::function<void(Holder&, const DeviceMesh&)>& shard) {
  auto plain = make();
  plain->forward(input).square().mean().backward();
  for (const int64_t ranks : {1, 2, 4}) {
    on_ranks(ranks, [&](const DeviceMesh& mesh) {
      auto mine = make();
      shard(mine, mesh);
      for (int pass = 0; pass < 2; ++pass) {
        mine->zero_grad();
        mine->forward(my_rows(input, mesh)).square().mean().backward();
        expect_same_gradients(*mine, *plain, c10::str(ranks, " ranks"));
      }
    });
  }
}

Mlp make_mlp() {
  return filled(Mlp(6, 10));
}

TEST(FullyShardUnits, AreLeavesToo) {
  expect_same_as_plain<Mlp>(
      make_mlp, uniform({8, 6}, 3), [](Mlp& mlp, const DeviceMesh& mesh) {
        fully_shard(*mlp->w1, {.mesh = mesh});
        fully_shard(*mlp->w2, {.mesh = mesh});
      });
}

// There may be fewer rows than ranks; columns may be sharded instead.
TEST(FullyShardUnits, MayHaveLessThanRanks) {
  expect_same_as_plain<Mlp>(
      [] { return filled(Mlp(2, 3)); },
      uniform({8, 2}, 3),
      [](Mlp& mlp, const DeviceMesh& mesh) {
        fully_shard(
            *mlp, {.mesh = mesh, .shard_placement_fn = [](const at::Tensor& p) {
                     return std::optional(p.dim() == 2 ? Shard(1) : Shard(0));
                   }});
        EXPECT_EQ(layout_of(mlp->w1->weight), Shard(1));
      });
}

struct EncoderImpl : torch::nn::Module {
  EncoderImpl()
      : layer(register_module(
            "layer",
            torch::nn::TransformerEncoderLayer(
                torch::nn::TransformerEncoderLayerOptions(8, 2)
                    .dim_feedforward(12)
                    .dropout(0)))) {}
  at::Tensor forward(const at::Tensor& x) { // (B, T, 8)
    return layer(x.transpose(0, 1));
  }
  torch::nn::TransformerEncoderLayer layer;
};
TORCH_MODULE(Encoder);

// Attention in the encoder splits one parameter into three.
TEST(FullyShardUnits, AreLayersOfLibTorchAsTheyAre) {
  expect_same_as_plain<Encoder>(
      [] { return filled(Encoder()); },
      uniform({8, 3, 8}, 3),
      [](Encoder& encoder, const DeviceMesh& mesh) {
        fully_shard(*encoder->layer, {.mesh = mesh});
      });
}

TEST(FullyShardUnits, AreConvolutionsAndRecurrentLayers) {
  using Conv = torch::nn::Sequential;
  expect_same_as_plain<Conv>(
      [] {
        return filled(Conv(
            torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 5, 3)),
            torch::nn::GroupNorm(torch::nn::GroupNormOptions(1, 5)),
            torch::nn::PReLU(),
            torch::nn::ConvTranspose2d(
                torch::nn::ConvTranspose2dOptions(5, 2, 3))));
      },
      uniform({8, 2, 6, 6}, 3),
      [](Conv& conv, const DeviceMesh& mesh) {
        fully_shard(*conv, {.mesh = mesh});
      });
}

struct PatchesImpl : torch::nn::Module {
  PatchesImpl()
      : token(register_parameter("token", torch::zeros({1, 1, 4}))),
        positions(register_parameter("positions", torch::zeros({9, 4}))),
        out(register_module("out", torch::nn::Linear(4, 4))) {}
  at::Tensor forward(const at::Tensor& x) { // (B, T, 4)
    const auto all = torch::cat({token.expand({x.size(0), 1, 4}), x}, 1);
    return out(all + positions.slice(0, 0, all.size(1)));
  }
  at::Tensor token;
  at::Tensor positions;
  torch::nn::Linear out;
};
DTENSOR_MODULE(Patches);

struct PlainPatchesImpl : PatchesImpl {};
TORCH_MODULE(PlainPatches);

// A hooked module gets unsharded parameters even if an operator has no other
// operand.
TEST(FullyShardUnits, HaveUnshardedParametersBetweenHooks) {
  expect_same_as_plain<Patches>(
      [] { return filled(Patches()); },
      uniform({8, 5, 4}, 3),
      [](Patches& patches, const DeviceMesh& mesh) {
        fully_shard(*patches, {.mesh = mesh});
      });
}

TEST(FullyShardUnits, GiveUnshardedViewsWithoutHooks) {
  expect_same_as_plain<PlainPatches>(
      [] { return filled(PlainPatches()); },
      uniform({8, 5, 4}, 3),
      [](PlainPatches& patches, const DeviceMesh& mesh) {
        fully_shard(
            *patches,
            {.mesh = mesh, .shard_placement_fn = [](const at::Tensor& p) {
               return std::optional(Shard(p.dim() - 1));
             }});
      });
}

// Uses one Linear twice, and another in the modules of two units.
struct TwiceImpl : torch::nn::Module {
  TwiceImpl()
      : a(register_module("a", Mlp(6, 6))),
        b(register_module("b", torch::nn::Linear(6, 6))) {}
  at::Tensor forward(const at::Tensor& x) {
    return b(a(torch::tanh(a->w1(b(x)))));
  }
  Mlp a;
  torch::nn::Linear b;
};
TORCH_MODULE(Twice);

TEST(FullyShardUnits, MayBeUsedTwice) {
  expect_same_as_plain<Twice>(
      [] { return filled(Twice()); },
      uniform({8, 6}, 3),
      [](Twice& twice, const DeviceMesh& mesh) {
        fully_shard(*twice->a, {.mesh = mesh});
        fully_shard(*twice->b, {.mesh = mesh});
        fully_shard(*twice, {.mesh = mesh});
      });
}

TEST(FullyShardUnits, HaveLayoutsOfBothMeshes) {
  run_ranks(4, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2}, {"dp", "tp"});
    auto mlp = make_mlp();
    parallelize_module(*mlp, mesh["tp"], mlp_plan());
    fully_shard(*mlp, {.mesh = mesh["dp"]});
    const auto layout = [](const at::Tensor& t) {
      return Placements(
          DTensor(t).placements().begin(), DTensor(t).placements().end());
    };
    EXPECT_EQ(
        layout(mlp->w1->weight), (Placements{StridedShard(0, 2), Shard(0)}));
    EXPECT_EQ(
        layout(mlp->w1->bias), (Placements{StridedShard(0, 2), Shard(0)}));
    EXPECT_EQ(layout(mlp->w2->weight), (Placements{Shard(0), Shard(1)}));
    EXPECT_EQ(layout(mlp->w2->bias), (Placements{Shard(0), Replicate()}));
    const auto plain = make_mlp();
    expect_same_parameters(*mlp, *plain);
  });
}

TEST(FullyShardUnits, TakeHeadsThatAreCutUnevenly) {
  const auto input = uniform({4, 6}, 3);
  auto plain = filled(Mlp(6, 9));
  plain(input).square().mean().backward();
  run_ranks(4, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2}, {"dp", "tp"});
    auto mlp = filled(Mlp(6, 9));
    parallelize_module(
        *mlp,
        mesh["tp"],
        {{"w1", ColwiseParallel({.use_local_output = false, .multiple_of = 3})},
         {"w2", RowwiseParallel()}});
    fully_shard(*mlp, {.mesh = mesh["dp"]});
    mlp(my_rows(input, mesh["dp"])).square().mean().backward();
    expect_same_gradients(*mlp, *plain, "units");
  });
}

TEST(FullyShardUnits, LeaveFrozenParametersAlone) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    auto mlp = make_mlp();
    mlp->w1->weight.set_requires_grad(false);
    mlp->w1->bias.set_requires_grad(false);
    fully_shard(*mlp->w1, {.mesh = mesh});
    fully_shard(*mlp->w2, {.mesh = mesh});
    const CommDebugMode comm;
    mlp(uniform({4, 6}, 3)).square().mean().backward();
    EXPECT_FALSE(mlp->w1->weight.grad().defined());
    EXPECT_TRUE(mlp->w2->weight.grad().defined());
    EXPECT_EQ(count_of(comm, CollectiveKind::kReduceScatter), 1);
  });
}

// A parameter that no rank has used gets no gradient. Ranks that have not used
// a parameter contribute zeros.
TEST(FullyShardUnits, DetectUsedParameters) {
  for (const bool by_one : {false, true}) {
    on_ranks(2, [&](const DeviceMesh& mesh) {
      auto mlp = make_mlp();
      fully_shard(*mlp, {.mesh = mesh});
      const auto x = uniform({4, 6}, 3);
      auto y = mlp->w1(x).square().mean();
      if (by_one && mesh.get_rank() == 1) {
        y = y + mlp->w2(uniform({4, 10}, 4)).square().mean();
      }
      y.backward();
      EXPECT_TRUE(mlp->w1->weight.grad().defined());
      ASSERT_EQ(mlp->w2->weight.grad().defined(), by_one);
      if (by_one) {
        auto plain = make_mlp();
        (plain->w2(uniform({4, 10}, 4)).square().mean() / 2).backward();
        expect_close(
            mlp->w2->weight.grad(), plain->w2->weight.grad(), "of one rank");
      }
    });
  }
}

TEST(FullyShardUnits, AreEvaluatedWithNewValues) {
  const auto input = uniform({4, 6}, 3);
  on_ranks(2, [&](const DeviceMesh& mesh) {
    auto mlp = make_mlp();
    auto plain = make_mlp();
    fully_shard(*mlp, {.mesh = mesh});
    for (int step = 0; step < 3; ++step) {
      {
        const torch::NoGradGuard no_grad;
        expect_close(mlp(input), plain(input), "no_grad");
      }
      {
        const c10::InferenceMode inference;
        expect_close(mlp(input), plain(input), "inference");
      }
      const torch::NoGradGuard no_grad;
      mlp->w1->weight.mul_(1.5);
      plain->w1->weight.mul_(1.5);
      mlp->w2->bias.copy_(distribute_tensor(uniform({6}, 9), mesh, {Shard(0)}));
      plain->w2->bias.copy_(uniform({6}, 9));
    }
    const CommDebugMode comm;
    mlp(input);
    mlp(input);
    EXPECT_EQ(comm.get_total_counts(), 1);
    FSDPModule(*mlp).reshard();
    mlp(input);
    EXPECT_EQ(comm.get_total_counts(), 2);
  });
}

TEST(FullyShardUnits, AddUpOverBackwardPassesOfOneGraph) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    auto mlp = make_mlp();
    fully_shard(*mlp, {.mesh = mesh});
    auto plain = make_mlp();
    const auto x = uniform({4, 6}, 3);
    for (auto* model : {&mlp, &plain}) {
      const auto y = (*model)(x).square().mean();
      y.backward({}, /*retain_graph=*/true);
      y.backward();
    }
    expect_same_gradients(*mlp, *plain, "twice");
  });
}

TEST(FullyShardUnits, CarryGradientsThatExist) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    auto mlp = make_mlp();
    auto plain = make_mlp();
    const auto x = uniform({4, 6}, 3);
    mlp(x).square().mean().backward();
    plain(x).square().mean().backward();
    fully_shard(*mlp, {.mesh = mesh});
    expect_same_gradients(*mlp, *plain, "before");
    mlp(x).square().mean().backward();
    plain(x).square().mean().backward();
    expect_same_gradients(*mlp, *plain, "after");
  });
}

TEST(FullyShardUnits, ComputeInOtherDtypes) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    auto mlp = make_mlp();
    mlp->to(at::kFloat);
    auto plain = make_mlp();
    plain->to(at::kBFloat16);
    fully_shard(
        *mlp,
        {.mesh = mesh,
         .mp_policy = {
             .param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat}});
    const auto x = uniform({4, 6}, 3).to(at::kFloat);
    const auto y = mlp(x);
    const auto expected = plain(x.to(at::kBFloat16));
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    EXPECT_TRUE(at::equal(y, expected));
    const CommDebugMode comm;
    y.sum().backward();
    expected.sum().backward();
    EXPECT_EQ(mlp->w1->weight.grad().scalar_type(), at::kFloat);
    expect_close(
        mlp->w1->weight.grad(), plain->w1->weight.grad(), "bfloat16", 0);
  });
}

// Adds the product of its weight and a float32 input to a bfloat16 sum.
struct AddProductImpl : torch::nn::Module {
  AddProductImpl() {
    weight = register_parameter("weight", uniform({4, 4}, 1).to(at::kFloat));
  }
  at::Tensor forward(const at::Tensor& x) {
    const torch::NoGradGuard no_grad;
    return at::zeros({4, 4}, at::kBFloat16).addmm_(weight, x);
  }
  at::Tensor weight;
};
TORCH_MODULE(AddProduct);

TEST(FullyShardUnits, CastOperandsBesideAWrittenOne) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    AddProduct module;
    const auto x = uniform({4, 4}, 2).to(at::kFloat);
    const auto expected =
        at::mm(module->weight.to(at::kBFloat16), x.to(at::kBFloat16));
    fully_shard(
        *module, {.mesh = mesh, .mp_policy = {.param_dtype = at::kBFloat16}});
    EXPECT_TRUE(at::equal(module(x), expected));
  });
}

TEST(FullyShardUnits, CastWhatTheyReturnBetweenHooks) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    Patches patches;
    fully_shard(
        *patches,
        {.mesh = mesh,
         .mp_policy = {
             .param_dtype = at::kBFloat16, .output_dtype = at::kFloat}});
    EXPECT_EQ(patches(at::zeros({2, 5, 4})).scalar_type(), at::kFloat);
  });
}

TEST(FullyShardUnits, DivideSumsByTheirFactor) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    auto mlp = make_mlp();
    auto plain = make_mlp();
    fully_shard(*mlp, {.mesh = mesh}).set_gradient_divide_factor(0.5);
    const auto x = uniform({4, 6}, 3);
    mlp(x).square().mean().backward();
    (plain(x).square().mean() * 4).backward();
    expect_same_gradients(*mlp, *plain, "sums, doubled");
  });
}

TEST(FullyShardUnits, ReduceOverReplicasOnlyIfRequired) {
  run_ranks(4, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2}, {"dr", "dp"});
    auto mlp = make_mlp();
    auto plain = make_mlp();
    auto unit = fully_shard(*mlp, {.mesh = mesh});
    const auto row = mesh.get_rank();
    for (int part = 0; part < 2; ++part) {
      unit.set_requires_all_reduce(part == 1);
      const auto x = uniform({4, 6}, 3 + static_cast<uint64_t>(part));
      const CommDebugMode comm;
      mlp(x.narrow(0, row, 1)).square().mean().backward();
      EXPECT_EQ(count_of(comm, CollectiveKind::kAllReduce), part);
      plain(x).square().mean().backward();
    }
    expect_same_gradients(*mlp, *plain, "repeated");
  });
}

// Sharded materialization yields the same values on any number of ranks.
TEST(FullyShardUnits, AreMaterializedInParts) {
  std::vector<at::Tensor> first;
  for (const int64_t ranks : {1, 3}) {
    on_ranks(ranks, [&](const DeviceMesh& mesh) {
      manual_seed(7);
      auto mlp = [] {
        const DeferredInit scope;
        return Mlp(6, 10);
      }();
      fully_shard(*mlp, {.mesh = mesh});
      EXPECT_TRUE(mlp->w1->weight.is_meta());
      materialize(*mlp);
      EXPECT_EQ(
          DTensor(mlp->w1->weight).to_local().size(0),
          ranks == 1 || mesh.get_rank() < 2 ? (ranks == 1 ? 10 : 4) : 2);
      std::vector<at::Tensor> seen = {mlp(at::ones({4, 6})).detach()};
      for (const auto& p : mlp->parameters()) {
        seen.push_back(full(p));
      }
      if (ranks == 1) {
        first = seen;
      }
      for (size_t i = 0; i < seen.size(); ++i) {
        expect_close(seen[i], first[i], c10::str("tensor ", i), 1e-6);
      }
    });
  }
}

TEST(FullyShardUnits, HaveStateDictionaries) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    auto mlp = make_mlp();
    fully_shard(*mlp, {.mesh = mesh});
    const auto whole = get_model_state_dict(*mlp, {.full_state_dict = true});
    expect_close(whole["w1.weight"], make_mlp()->w1->weight, "full");
    auto other = filled(Mlp(6, 10), 50);
    fully_shard(*other, {.mesh = mesh});
    set_model_state_dict(*other, whole);
    expect_same_parameters(*other, *make_mlp());
    const auto x = uniform({4, 6}, 3);
    expect_close(other(x), make_mlp()(x), "loaded");
  });
}

TEST(FullyShardUnits, PrefetchTheGivenModules) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    auto mlp = make_mlp();
    auto plain = make_mlp();
    auto first =
        fully_shard(*mlp->w1, {.mesh = mesh, .reshard_after_forward = true});
    auto second =
        fully_shard(*mlp->w2, {.mesh = mesh, .reshard_after_forward = true});
    auto all = fully_shard(*mlp, {.mesh = mesh});
    first.set_modules_to_forward_prefetch({second});
    second.set_modules_to_backward_prefetch({first});
    const auto x = uniform({4, 6}, 3);
    {
      const CommDebugMode comm;
      all.unshard();
      first.unshard(/*async_op=*/true);
      mlp(x).square().mean().backward();
      EXPECT_EQ(count_of(comm, CollectiveKind::kAllGather), 3);
    }
    plain(x).square().mean().backward();
    expect_same_gradients(*mlp, *plain, "ahead");
  });
}

TEST(FullyShardUnits, MayOffloadTheirShardsToTheCpu) {
  expect_same_as_plain<Mlp>(
      make_mlp, uniform({8, 6}, 3), [](Mlp& mlp, const DeviceMesh& mesh) {
        fully_shard(*mlp, {.mesh = mesh, .offload_policy = CPUOffloadPolicy()});
        EXPECT_TRUE(mlp->w1->weight.is_cpu());
      });
}

TEST(FullyShardUnits, LeaveOutWhatIsIgnored) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    auto mlp = make_mlp();
    fully_shard(
        *mlp,
        {.mesh = mesh, .ignored_params = {mlp->w1->weight, mlp->w2->bias}});
    EXPECT_FALSE(is_dtensor(mlp->w1->weight));
    EXPECT_TRUE(is_dtensor(mlp->w1->bias));
    const auto x = uniform({4, 6}, 3);
    expect_close(mlp(x), make_mlp()(x), "partly");
  });
}

TEST(FullyShardUnits, GatherAgainWhatTheyDoNotKeep) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    auto mlp = make_mlp();
    fully_shard(*mlp->w1, {.mesh = mesh});
    auto all = fully_shard(*mlp, {.mesh = mesh});
    const auto x = uniform({4, 6}, 3);
    const auto gathers_of_a_step = [&] {
      const CommDebugMode comm;
      mlp(x).square().mean().backward();
      return count_of(comm, CollectiveKind::kAllGather);
    };
    EXPECT_EQ(gathers_of_a_step(), 3); // w1 twice, w2 once
    all.set_reshard_after_forward(false);
    EXPECT_EQ(gathers_of_a_step(), 2);
    all.set_reshard_after_backward(false);
    EXPECT_EQ(gathers_of_a_step(), 2);
    EXPECT_EQ(gathers_of_a_step(), 0);
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
