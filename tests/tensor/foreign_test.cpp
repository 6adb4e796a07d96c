// SPDX-License-Identifier: BSD-3-Clause
// DTensors and meshes that are used by another rank, or after their ranks have
// ended. Computing or communicating with them throws at once. Tensors of ranks
// that have ended can still be read.
#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/comm/ranks.h>
#include <dtensor/random/random.h>
#include <dtensor/tensor/dtensor.h>
#include <dtensor/tensor/factories.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <map>

namespace dtensor {
namespace TEST_SOURCE {

using Use = std::function<void(const at::Tensor&)>;

std::string error_of(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "nothing was thrown";
}

DeviceMesh mesh_of_two() {
  return init_device_mesh(at::kCPU, {2}, {"tp"});
}

at::Tensor leaf(const Placement& placement) {
  auto x = distribute_tensor(
      torch::arange(16.0).reshape({4, 4}), mesh_of_two(), {placement});
  x.set_requires_grad(true);
  return x;
}

// Uses of a DTensor that compute or communicate.
const std::map<std::string, Use>& uses() {
  static const std::map<std::string, Use> all = {
      {"a pointwise operator", [](const auto& x) { x + 1; }},
      {"two operands", [](const auto& x) { x.mul(x); }},
      {"a product", [](const auto& x) { x.matmul(x); }},
      {"a linear", [](const auto& x) { at::linear(x, x); }},
      {"a view", [](const auto& x) { x.t(); }},
      {"a composite operator", [](const auto& x) { x.flatten(); }},
      {"a reduction", [](const auto& x) { x.sum(); }},
      {"an operator in place", [](const auto& x) { x.detach().mul_(2); }},
      {"detach", [](const auto& x) { x.detach(); }},
      {"clone", [](const auto& x) { x.clone(); }},
      {"item", [](const auto& x) { x.sum().item(); }},
      {"a comparison", [](const auto& x) { x.equal(x); }},
      {"a list of tensors",
       [](const auto& x) {
         at::cat({x, x});
       }},
      {"foreach", [](const auto& x) { at::_foreach_add({x}, 1); }},
      {"a factory of its kind", [](const auto& x) { at::zeros_like(x); }},
      {"random values", [](const auto& x) { at::rand_like(x); }},
      {"random values in place",
       [](const auto& x) {
         const c10::NoGradGuard no_grad;
         x.uniform_();
       }},
      {"dropout", [](const auto& x) { at::dropout(x, 0.5, true); }},
      {"a loss", [](const auto& x) { at::mse_loss(x, x); }},
      {"out=",
       [](const auto& x) {
         const c10::NoGradGuard no_grad;
         auto out = x;
         at::add_out(out, x, x);
       }},
      {"redistribute to another layout",
       [](const auto& x) { DTensor(x).redistribute({Shard(1)}); }},
      {"redistribute to the same layout",
       [](const auto& x) { DTensor(x).redistribute(DTensor(x).placements()); }},
      {"asynchronous redistribute",
       [](const auto& x) {
         DTensor(x).redistribute({Shard(1)}, {.async_op = true});
       }},
      {"full_tensor", [](const auto& x) { DTensor(x).full_tensor(); }},
      {"distribute_tensor",
       [](const auto& x) {
         const DTensor t(x);
         distribute_tensor(x.detach(), t.device_mesh(), t.placements());
       }},
      {"from_local on its mesh",
       [](const auto& x) {
         DTensor::from_local(
             torch::ones({2, 4}), DTensor(x).device_mesh(), {Shard(0)});
       }},
      {"distribute_tensor on its mesh",
       [](const auto& x) {
         distribute_tensor(
             torch::ones({4, 4}), DTensor(x).device_mesh(), {Shard(0)});
       }},
      {"factories on its mesh",
       [](const auto& x) {
         dtensor::zeros({4}, DTensor(x).device_mesh(), {Shard(0)});
       }},
      {"random factories on its mesh", [](const auto& x) {
         dtensor::randn({4}, DTensor(x).device_mesh(), {Shard(0)});
       }}};
  return all;
}

void expect_refusal(
    const std::string& text,
    const std::string& whose,
    const std::string& use) {
  EXPECT_NE(text.find(" " + whose + ". Build one model per rank"), text.npos)
      << use << ": " << text;
}

TEST(ForeignDTensor, OfAnotherRankIsRefusedByEveryUse) {
  for (const auto& placement : {Placement(Shard(0)), Placement(Replicate())}) {
    for (const auto& entry : uses()) {
      const auto& name = entry.first;
      const auto& use = entry.second;
      at::Tensor of_rank_0;
      std::string text;
      run_ranks(2, [&](int64_t rank) {
        const auto mine = leaf(placement);
        if (rank == 0) {
          of_rank_0 = mine;
        }
        (mine + 1).sum(); // rank 1 has cached these for its own tensors
        get_group(DTensor(mine).device_mesh()).barrier();
        if (rank == 1) {
          text = error_of([&] { use(of_rank_0); });
        }
        get_group(DTensor(mine).device_mesh()).barrier();
      });
      expect_refusal(text, "belongs to rank 0, but this is rank 1", name);
    }
  }
}

TEST(ForeignDTensor, OfEndedRanksIsRefusedByEveryUse) {
  at::Tensor x;
  run_ranks(2, [&](int64_t rank) {
    const auto mine = leaf(Shard(0));
    if (rank == 0) {
      x = mine;
    }
  });
  const std::string whose = "belongs to rank 0 of a run_ranks that has ended";
  for (const auto& entry : uses()) {
    const auto& name = entry.first;
    const auto& use = entry.second;
    expect_refusal(
        error_of([&] { use(x); }),
        whose + ", but this thread is not a rank",
        name);
    std::string text;
    run_ranks(2, [&](int64_t rank) {
      if (rank == 0) {
        text = error_of([&] { use(x); });
      }
    });
    expect_refusal(text, whose + ", but this is rank 0", name);
  }
}

TEST(ForeignDTensor, BesideOnesOwnIsRefused) {
  at::Tensor of_rank_0;
  std::string text;
  run_ranks(2, [&](int64_t rank) {
    const auto mine = leaf(Shard(0));
    if (rank == 0) {
      of_rank_0 = mine;
    }
    get_group(DTensor(mine).device_mesh()).barrier();
    if (rank == 1) {
      text = error_of([&] { mine + of_rank_0; });
    }
    get_group(DTensor(mine).device_mesh()).barrier();
  });
  EXPECT_EQ(
      text,
      "[aten::add.Tensor] f32[4, 4] on (tp=2): S(0) belongs to rank 0, but "
      "this is rank 1. Build one model per rank, in the function that the "
      "ranks run, and return only plain tensors from it.");
}

TEST(ForeignDTensor, ShardsMayBeReadAfterTheRanksHaveEnded) {
  at::Tensor x;
  at::Tensor of_rank_0;
  std::string text;
  run_ranks(2, [&](int64_t rank) {
    const auto mine = leaf(Shard(0));
    if (rank == 0) {
      x = mine;
    }
    get_group(DTensor(mine).device_mesh()).barrier();
    if (rank == 1) {
      text = error_of([&] { DTensor(x).to_local(); });
    }
    get_group(DTensor(mine).device_mesh()).barrier();
  });
  expect_refusal(text, "belongs to rank 0, but this is rank 1", "to_local");
  const DTensor t(x);
  EXPECT_TRUE(t.to_local().equal(torch::arange(8.0).reshape({2, 4})));
  EXPECT_EQ(t.sizes(), (std::vector<int64_t>{4, 4}));
  EXPECT_EQ(t.placements().size(), 1);
  EXPECT_EQ(t.device_mesh().size(), 2);
  std::ostringstream out;
  out << t;
  EXPECT_NE(out.str().find("local on rank 0"), std::string::npos);
}

// A plain tensor's graph may belong to another rank.
TEST(ForeignDTensor, BackwardThroughAnotherRanksGraphIsRefused) {
  std::vector<std::function<at::Tensor(const at::Tensor&)>> graphs = {
      [](const auto& x) { return DTensor(x * 2).to_local().sum(); },
      [](const auto& x) { return DTensor(x).to_local().sum(); },
      [](const auto& x) { return DTensor(x.matmul(x)).to_local().sum(); },
      [](const auto& x) { return DTensor(x).full_tensor().sum(); }};
  for (const auto& graph : graphs) {
    at::Tensor loss;
    std::string text;
    run_ranks(2, [&](int64_t rank) {
      const auto mine = leaf(Shard(0));
      const auto mine_loss = graph(mine);
      if (rank == 0) {
        loss = mine_loss;
      }
      get_group(DTensor(mine).device_mesh()).barrier();
      if (rank == 1) {
        text = error_of([&] { loss.backward({}, /*retain_graph=*/true); });
      }
      get_group(DTensor(mine).device_mesh()).barrier();
    });
    expect_refusal(text, "belongs to rank 0, but this is rank 1", "backward");
    expect_refusal(
        error_of([&] { loss.backward(); }),
        "belongs to rank 0 of a run_ranks that has ended, but this thread is "
        "not a rank",
        "backward");
  }
}

TEST(ForeignDTensor, MadeOutsideOfRanksIsRefusedInside) {
  const auto alone = init_device_mesh(at::kCPU, {1}, {"tp"});
  const auto x = distribute_tensor(torch::ones({4}), alone, {Shard(0)});
  EXPECT_TRUE((x + 1).sum().defined());
  std::string text;
  run_ranks(2, [&](int64_t rank) {
    if (rank == 1) {
      text = error_of([&] { x + 1; });
    }
  });
  expect_refusal(text, "was made outside of ranks, but this is rank 1", "add");
}

TEST(ForeignDTensor, IsNoArgumentOfACollective) {
  std::string texts[2];
  run_ranks(2, [&](int64_t rank) {
    const auto x = leaf(Shard(0));
    texts[rank] = error_of([&] {
      get_group(DTensor(x).device_mesh()).all_reduce(x, ReduceOp::kSum);
    });
  });
  EXPECT_EQ(
      texts[0],
      "[all_reduce] expected a plain tensor, got a DTensor of shape [4, 4]. "
      "Pass its to_local(), or call redistribute() instead.");
  EXPECT_EQ(texts[1], texts[0]);
}

TEST(ForeignDTensor, UnderWayWhenItsRanksEndMayBeRead) {
  at::Tensor x;
  run_ranks(2, [&](int64_t rank) {
    const auto whole =
        DTensor(leaf(Shard(0))).redistribute({Replicate()}, {.async_op = true});
    if (rank == 0) {
      x = whole;
    }
  });
  EXPECT_TRUE(DTensor(x).to_local().equal(torch::arange(16.0).reshape({4, 4})));
}

} // namespace TEST_SOURCE
} // namespace dtensor
