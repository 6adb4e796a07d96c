// SPDX-License-Identifier: BSD-3-Clause
// Functions and options of units since PyTorch 2.15: finalizing backward
// passes, keeping the memory of unsharded parameters, and dtypes of single
// parameters.
#include <dtensor/data_parallel/fully_shard.h>
#include <dtensor/debug/comm_debug_mode.h>
#include <dtensor/ops/unsharded/unsharded_source_impl.h>
#include <tests/parallel/modules.h>

#include <functional>
#include <utility>

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::test_modules;

void on_ranks(int64_t ranks, const std::function<void(const DeviceMesh&)>& fn) {
  run_ranks(ranks, [&] { fn(init_device_mesh(at::kCPU, {ranks}, {"dp"})); });
}

Mlp make_mlp() {
  return filled(Mlp(6, 10));
}

int64_t count_of(const CommDebugMode& comm, CollectiveKind kind) {
  const auto counts = comm.get_comm_counts();
  const auto found = counts.find(kind);
  return found == counts.end() ? 0 : found->second;
}

// A different input per rank and pass.
at::Tensor input_of(const DeviceMesh& mesh, uint64_t pass) {
  return uniform(
      {4, 6}, 10 * pass + static_cast<uint64_t>(mesh.get_local_rank()));
}

// Gradients of the mean over ranks of the sum of `passes` losses.
void backward_plain(Mlp& plain, const DeviceMesh& mesh, uint64_t passes) {
  for (uint64_t pass = 0; pass < passes; ++pass) {
    for (int64_t rank = 0; rank < mesh.size(); ++rank) {
      const auto x = uniform({4, 6}, 10 * pass + static_cast<uint64_t>(rank));
      (plain(x).square().mean() / mesh.size()).backward();
    }
  }
}

FSDPModule shard_mlp(Mlp& mlp, const DeviceMesh& mesh) {
  fully_shard(*mlp->w1, {.mesh = mesh});
  fully_shard(*mlp->w2, {.mesh = mesh});
  return fully_shard(*mlp, {.mesh = mesh});
}

TEST(ManualFinalization, EndsTheBackwardPasses) {
  for (const bool async_op : {false, true}) {
    on_ranks(2, [&](const DeviceMesh& mesh) {
      auto mlp = make_mlp();
      auto unit = shard_mlp(mlp, mesh);
      unit.set_manual_backward_finalization(true);
      unit.finalize_backward(); // nothing to do yet
      for (int step = 0; step < 2; ++step) {
        mlp->zero_grad();
        mlp(input_of(mesh, 0)).square().mean().backward();
        unit.finalize_backward(async_op).wait();
        auto plain = make_mlp();
        backward_plain(plain, mesh, 1);
        expect_same_gradients(*mlp, *plain, "finalized");
      }
      unit.set_manual_backward_finalization(false);
      mlp->zero_grad();
      mlp(input_of(mesh, 0)).square().mean().backward();
      auto plain = make_mlp();
      backward_plain(plain, mesh, 1);
      expect_same_gradients(*mlp, *plain, "automatic again");
    });
  }
}

// Several backward passes without sync, then one reduction when they are
// finalized.
TEST(ManualFinalization, ReducesWhatAccumulated) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    auto mlp = make_mlp();
    auto unit = shard_mlp(mlp, mesh);
    unit.set_manual_backward_finalization(true);
    for (int step = 0; step < 2; ++step) {
      mlp->zero_grad();
      unit.set_requires_gradient_sync(false);
      {
        const CommDebugMode comm;
        for (uint64_t pass = 0; pass < 3; ++pass) {
          mlp(input_of(mesh, pass)).square().mean().backward();
        }
        EXPECT_EQ(count_of(comm, CollectiveKind::kReduceScatter), 0);
      }
      unit.set_requires_gradient_sync(true);
      const CommDebugMode comm;
      unit.finalize_backward();
      EXPECT_EQ(count_of(comm, CollectiveKind::kReduceScatter), 2);
      auto plain = make_mlp();
      backward_plain(plain, mesh, 3);
      expect_same_gradients(*mlp, *plain, "accumulated");
    }
  });
}

TEST(ManualFinalization, ReducesWhatAccumulatedInReplicas) {
  run_ranks(4, [](int64_t rank) {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2}, {"dr", "dp"});
    const auto x = uniform({8, 6}, 3);
    auto mlp = make_mlp();
    auto plain = make_mlp();
    auto unit = shard_mlp(mlp, mesh);
    unit.set_manual_backward_finalization(true);
    unit.set_requires_all_reduce(false);
    mlp(x.narrow(0, 2 * rank, 2)).square().mean().backward();
    unit.finalize_backward();
    EXPECT_FALSE(mlp->w1->weight.grad().defined());
    unit.set_requires_all_reduce(true);
    unit.finalize_backward();
    plain(x).square().mean().backward();
    expect_same_gradients(*mlp, *plain, "reduced over replicas");
  });
}

// Frozen parameters keep the gradients of earlier passes, as in a plain module.
TEST(ManualFinalization, ReducesGradientsOfFrozenParameters) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    auto mlp = make_mlp();
    auto unit = shard_mlp(mlp, mesh);
    unit.set_manual_backward_finalization(true);
    unit.set_requires_gradient_sync(false);
    mlp(input_of(mesh, 0)).square().mean().backward();
    mlp->w1->weight.set_requires_grad(false);
    for (auto& parameter : mlp->w2->parameters()) {
      parameter.set_requires_grad(false);
    }
    unit.set_requires_gradient_sync(true);
    unit.finalize_backward();
    auto plain = make_mlp();
    backward_plain(plain, mesh, 1);
    expect_same_gradients(*mlp, *plain, "frozen");
  });
}

TEST(ManualFinalization, ChecksTheOrderOfCalls) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    auto mlp = make_mlp();
    auto unit = shard_mlp(mlp, mesh);
    FSDPModule inner(*mlp->w1);
    EXPECT_EQ(
        error_of([&] { unit.finalize_backward(); }),
        "[finalize_backward] unit \"dtensor::test_modules::MlpImpl\" finalizes "
        "backward passes itself. Call set_manual_backward_finalization(true) "
        "before the backward pass.");
    EXPECT_EQ(
        error_of([&] { inner.finalize_backward(); }),
        "[finalize_backward] unit \"w1\" is nested in unit "
        "\"dtensor::test_modules::MlpImpl\". Call it on the outermost unit.");
    unit.set_manual_backward_finalization(true);
    mlp(input_of(mesh, 0)).sum().backward();
    EXPECT_EQ(
        error_of([&] { unit.set_manual_backward_finalization(false); }),
        "[set_manual_backward_finalization] a backward pass of unit "
        "\"dtensor::test_modules::MlpImpl\" has begun. Call "
        "finalize_backward() first.");
    auto handle = unit.finalize_backward(/*async_op=*/true);
    EXPECT_EQ(
        error_of([&] { unit.finalize_backward(); }),
        "[finalize_backward] unit \"dtensor::test_modules::MlpImpl\" still "
        "reduces gradients. Wait for the handle of the last call first.");
    handle.wait();
    handle.wait(); // does nothing
    unit.set_manual_backward_finalization(false);
  });
}

// Returns the address of the unsharded parameter.
const void* address(const at::Tensor& parameter) {
  auto* source = detail::unsharded_source_of(parameter);
  const auto unsharded = source->take_unsharded();
  source->give_back({});
  return unsharded.const_data_ptr();
}

TEST(KeepUnshardedStorage, KeepsAddresses) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    auto mlp = make_mlp();
    auto plain = make_mlp();
    auto unit = fully_shard(*mlp, {.mesh = mesh});
    unit.set_keep_unsharded_storage(true);
    torch::optim::SGD mine(mlp->parameters(), 0.1);
    torch::optim::SGD theirs(plain->parameters(), 0.1);
    unit.unshard();
    const void* const first = address(mlp->w1->weight);
    for (int step = 0; step < 3; ++step) {
      mine.zero_grad();
      theirs.zero_grad();
      mlp(uniform({4, 6}, 3)).square().mean().backward();
      plain(uniform({4, 6}, 3)).square().mean().backward();
      mine.step();
      theirs.step();
      unit.reshard();
      unit.unshard();
      EXPECT_EQ(address(mlp->w1->weight), first) << step;
      expect_same_gradients(*mlp, *plain, "kept memory");
    }
    unit.reshard();
    unit.set_keep_unsharded_storage(false);
    expect_close(mlp(uniform({4, 6}, 3)), plain(uniform({4, 6}, 3)), "freed");
  });
}

// The graph of a step needs the values of that step, so the next step gets
// other memory.
TEST(KeepUnshardedStorage, LeavesValuesToGraphs) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    auto mlp = make_mlp();
    auto unit = fully_shard(*mlp, {.mesh = mesh});
    unit.set_keep_unsharded_storage(true);
    const auto y = mlp(uniform({4, 6}, 3));
    {
      const torch::NoGradGuard no_grad;
      mlp->w1->weight.mul_(2);
    }
    auto plain = make_mlp();
    {
      const torch::NoGradGuard no_grad;
      plain->w1->weight.mul_(2);
    }
    expect_close(mlp(uniform({4, 6}, 3)), plain(uniform({4, 6}, 3)), "new");
    EXPECT_NE(
        error_of([&] {
          y.sum().backward();
        }).find("was changed between forward and backward"),
        std::string::npos);
  });
}

// A module with a weight of another dtype than its activations.
struct GatedImpl : torch::nn::Module {
  GatedImpl()
      : gate(register_module("gate", torch::nn::Linear(6, 3))),
        body(register_module("body", torch::nn::Linear(6, 5))) {}
  at::Tensor forward(const at::Tensor& x) {
    const auto scores = gate(x.to(at::kFloat)).softmax(-1).amax(-1, true);
    return body(x).to(at::kFloat) * scores;
  }
  torch::nn::Linear gate;
  torch::nn::Linear body;
};
TORCH_MODULE(Gated);

Gated make_gated() {
  auto gated = filled(Gated());
  gated->to(at::kFloat);
  return gated;
}

TEST(ParamDtypeOverride, KeepsTheDtypeOfSingleParameters) {
  for (const int64_t ranks : {1, 2, 3}) {
    for (const int64_t dim : {0, 1}) {
      on_ranks(ranks, [&](const DeviceMesh& mesh) {
        auto plain = make_gated();
        plain->body->to(at::kBFloat16);
        auto mine = make_gated();
        const auto gate = mine->gate->weight;
        const auto bias = mine->gate->bias;
        fully_shard(
            *mine,
            {.mesh = mesh,
             .mp_policy =
                 {.param_dtype = at::kBFloat16,
                  .param_dtype_override_fn = [&](const at::Tensor& p)
                      -> std::optional<at::ScalarType> {
                    if (p.is_same(gate) || p.is_same(bias)) {
                      return p.scalar_type();
                    }
                    return std::nullopt;
                  }},
             .shard_placement_fn = [&](const at::Tensor& p) {
               return std::optional(p.dim() == 2 ? Shard(dim) : Shard(0));
             }});
        const auto x = uniform({4, 6}, 3).to(at::kBFloat16);
        for (int pass = 0; pass < 2; ++pass) {
          mine->zero_grad();
          plain->zero_grad();
          const auto y = mine(x);
          const auto expected = plain(x);
          EXPECT_TRUE(at::equal(y, expected)) << y << expected;
          y.sum().backward();
          expected.sum().backward();
          EXPECT_EQ(mine->gate->weight.grad().scalar_type(), at::kFloat);
          expect_close(
              mine->gate->weight.grad(),
              plain->gate->weight.grad(),
              "f32",
              1e-6);
          expect_close(
              mine->body->weight.grad(),
              plain->body->weight.grad().to(at::kFloat),
              "bf16",
              1e-6);
        }
      });
    }
  }
}

// A cast of the module may make dtypes equal or different.
TEST(ParamDtypeOverride, FollowsCastsOfTheModule) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    auto mine = make_gated();
    const auto own = [](const at::Tensor& p) {
      return std::optional(p.scalar_type());
    };
    const auto gate_only = [&](const at::Tensor& p) {
      return p.size(0) == 3 ? own(p) : std::nullopt;
    };
    fully_shard(
        *mine,
        {.mesh = mesh,
         .mp_policy = {
             .param_dtype = at::kBFloat16,
             .param_dtype_override_fn = gate_only}});
    const auto x = uniform({4, 6}, 3).to(at::kBFloat16);
    const auto before = mine(x);
    mine->body->to(at::kDouble);
    EXPECT_TRUE(at::equal(mine(x), before));
    EXPECT_EQ(
        error_of([&] {
          auto other = make_gated();
          fully_shard(
              *other,
              {.mesh = mesh,
               .mp_policy = {
                   .param_dtype = at::kBFloat16,
                   .param_dtype_override_fn = [](const at::Tensor&) {
                     return std::optional(at::kHalf);
                   }}});
        }),
        "[fully_shard] param_dtype_override_fn returned Half for parameter "
        "\"gate.weight\" of dtype Float. Return the parameter's own dtype, or "
        "nullopt.");
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
