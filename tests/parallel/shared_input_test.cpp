// SPDX-License-Identifier: BSD-3-Clause
// Siblings share the redistribution of their input: once, not longer than it
// lives, and never a stale one.
#include <tests/parallel/comm_counts.h>
#include <tests/parallel/modules.h>

namespace dtensor {
namespace {

using namespace dtensor::testing;

// x is what siblings share. `make` gives it anew.
using MakeInput = std::function<at::Tensor(const at::Tensor& leaf)>;

struct SiblingsImpl : torch::nn::Module {
  SiblingsImpl()
      : a(register_module("a", torch::nn::Linear(8, 8))),
        b(register_module("b", torch::nn::Linear(8, 8))) {}
  torch::nn::Linear a, b;
};
TORCH_MODULE(Siblings);

Siblings siblings(const DeviceMesh& mesh, const Placement& given = Shard(0)) {
  auto pair = filled(Siblings());
  parallelize_module(
      *pair, mesh, {{"*", ColwiseParallel({.input_layouts = given})}});
  return pair;
}

const std::vector<std::pair<std::string, MakeInput>>& inputs() {
  static const std::vector<std::pair<std::string, MakeInput>> all = {
      {"a leaf", [](const at::Tensor& t) { return t; }},
      {"relu", [](const at::Tensor& t) { return t.relu(); }},
      {"layer_norm",
       [](const at::Tensor& t) { return at::layer_norm(t, {8}); }}};
  return all;
}

at::Tensor leaf_of(const DeviceMesh& mesh, bool distributed) {
  const auto local = uniform({3, 8}, 7);
  return (distributed ? at::Tensor(DTensor::from_local(local, mesh, {Shard(0)}))
                      : local)
      .requires_grad_(true);
}

TEST(SharedInputTest, IsGatheredAndReducedOnce) {
  on_four_ranks([](const DeviceMesh& mesh) {
    for (const bool distributed : {false, true}) {
      for (const auto& [name, make] : inputs()) {
        auto pair = siblings(mesh);
        const auto x = make(leaf_of(mesh, distributed));
        const CommDebugMode comm;
        auto y = pair->a(x) * pair->b(x);
        EXPECT_EQ(counts(comm, false), "1 all_gather") << name;
        y.sum().backward();
        EXPECT_EQ(counts(comm, true), "1 reduce_scatter") << name;
      }
    }
  });
}

c10::weak_intrusive_ptr<c10::StorageImpl> storage_of(const at::Tensor& x) {
  const torch::NoGradGuard no_grad;
  const auto local = is_dtensor(x) ? DTensor(x).to_local() : x;
  return local.storage().getWeakStorageImpl();
}

void expect_nothing_kept(
    const DeviceMesh& mesh,
    bool distributed,
    const Placement& given) {
  for (const auto& [name, make] : inputs()) {
    for (const bool grad_mode : {false, true}) {
      const torch::AutoGradMode guard(grad_mode);
      auto pair = siblings(mesh, given);
      auto x = make(leaf_of(mesh, distributed));
      const auto storage = storage_of(x);
      {
        const auto y = pair->a(x) + pair->b(x);
        EXPECT_FALSE(storage.expired());
      }
      x.reset();
      EXPECT_TRUE(storage.expired()) << name << distributed << grad_mode;
    }
  }
}

// Where the input is replicated, what is shared is the input's own memory.
TEST(SharedInputTest, DiesWithTheTensorAndTheGraph) {
  on_four_ranks([](const DeviceMesh& mesh) {
    expect_nothing_kept(mesh, true, Shard(0));
    expect_nothing_kept(mesh, false, Shard(0));
    expect_nothing_kept(mesh, false, Replicate());
  });
}

TEST(SharedInputTest, IsMadeAnewAfterAChange) {
  on_four_ranks([](const DeviceMesh& mesh) {
    for (const bool distributed : {false, true}) {
      auto pair = siblings(mesh);
      const auto whole = [&](const at::Tensor& x) {
        return distributed ? full(x) : x.detach().repeat({4, 1});
      };
      auto plain = filled(Siblings());
      const torch::NoGradGuard no_grad;
      const auto x = leaf_of(mesh, distributed);
      const auto expected = [&] {
        return part(plain->b(whole(x)), mesh, Shard(-1));
      };
      pair->a(x);
      x.mul_(2);
      expect_close(pair->b(x), expected(), "after a change");
      const torch::AutoGradMode grad(true);
      EXPECT_TRUE(pair->b(x).requires_grad());
      expect_close(pair->b(x), expected(), "in grad mode");
    }
  });
}

TEST(SharedInputTest, IsNotTakenFromAnotherGradMode) {
  on_four_ranks([](const DeviceMesh& mesh) {
    auto pair = siblings(mesh);
    for (const bool distributed : {false, true}) {
      const auto x = leaf_of(mesh, distributed) * 1;
      {
        const torch::NoGradGuard no_grad;
        EXPECT_FALSE(pair->a(x).requires_grad());
      }
      const CommDebugMode comm;
      pair->b(x).sum().backward();
      EXPECT_EQ(counts(comm, false), "1 all_gather");
      EXPECT_EQ(counts(comm, true), "1 reduce_scatter");
    }
  });
}

// Ranks may hold one and the same plain tensor.
TEST(SharedInputTest, IsNotMixedUpBetweenRanks) {
  const auto x = uniform({3, 8}, 7).requires_grad_(true);
  const auto y = x * 1;
  on_four_ranks([&](const DeviceMesh& mesh) {
    auto pair = siblings(mesh);
    auto plain = filled(Siblings());
    for (int i = 0; i < 20; ++i) {
      const auto sum = pair->a(y) + pair->b(y);
      const auto whole = y.detach().repeat({4, 1});
      expect_close(
          sum.detach(),
          part(plain->a(whole) + plain->b(whole), mesh, Shard(-1)),
          "sum");
    }
  });
}

} // namespace
} // namespace dtensor
