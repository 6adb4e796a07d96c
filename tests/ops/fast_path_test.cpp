// SPDX-License-Identifier: BSD-3-Clause
// Calls with a cached decision. Each call is repeated until its unboxed kernel
// runs, next to calls that differ from it in a single property.
#include <dtensor/ops/path/decide_impl.h>
#include <gtest/gtest.h>
#include <tests/ops/operands.h>

#include <functional>
#include <map>

namespace dtensor::testing {
namespace TEST_SOURCE {

using Call = std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>;

struct Named {
  const char* name;
  Call call;
};

at::Tensor attention(
    const at::Tensor& a,
    const at::Tensor& b,
    double dropout = 0,
    bool causal = false,
    std::optional<double> scale = std::nullopt) {
  const auto batch = a.unsqueeze(1); // (4, 1, 4)
  return at::scaled_dot_product_attention(
      batch, b.unsqueeze(1), batch, {}, dropout, causal, scale);
}

at::Tensor rows(const at::Tensor& t) {
  return t.select(1, 0).abs().to(at::kLong).remainder(4);
}

// Returns calls of one operator that must not be confused with each other.
const std::vector<Named>& calls() {
  static const std::vector<Named> all = {
      {"add", [](auto& a, auto& b) { return a + b; }},
      {"add alpha", [](auto& a, auto& b) { return a.add(b, 2.5); }},
      {"add int alpha", [](auto& a, auto& b) { return a.add(b, 2); }},
      {"add 1", [](auto& a, auto&) { return a + 1; }},
      {"add 2", [](auto& a, auto&) { return a + 2; }},
      {"add 1.5", [](auto& a, auto&) { return a + 1.5; }},
      {"add scalar tensor",
       [](auto& a, auto&) { return a + at::scalar_tensor(4, at::kLong); }},
      {"add complex",
       [](auto& a, auto&) { return at::real(a + c10::complex<double>(1, 2)); }},
      {"sum", [](auto& a, auto&) { return a.sum(); }},
      {"sum 0", [](auto& a, auto&) { return a.sum(0); }},
      {"sum 1", [](auto& a, auto&) { return a.sum(1); }},
      {"sum -1", [](auto& a, auto&) { return a.sum(-1); }},
      {"sum keepdim", [](auto& a, auto&) { return a.sum(1, true); }},
      {"sum float", [](auto& a, auto&) { return a.sum(1, false, at::kFloat); }},
      {"amax 0", [](auto& a, auto&) { return a.amax(0); }},
      {"amax 1", [](auto& a, auto&) { return a.amax(1); }},
      {"softmax 0", [](auto& a, auto&) { return a.softmax(0); }},
      {"softmax 1", [](auto& a, auto&) { return a.softmax(1); }},
      {"gelu", [](auto& a, auto&) { return at::gelu(a); }},
      {"gelu tanh", [](auto& a, auto&) { return at::gelu(a, "tanh"); }},
      {"slice", [](auto& a, auto&) { return a.slice(1, 0, 2); }},
      {"slice from 1", [](auto& a, auto&) { return a.slice(1, 1, 3); }},
      {"slice step", [](auto& a, auto&) { return a.slice(1, 0, 4, 2); }},
      {"select", [](auto& a, auto&) { return a.select(1, 0); }},
      {"select 3", [](auto& a, auto&) { return a.select(1, 3); }},
      {"transpose", [](auto& a, auto&) { return a.transpose(0, 1); }},
      {"permute",
       [](auto& a, auto&) {
         return a.permute({1, 0});
       }},
      {"permute same",
       [](auto& a, auto&) {
         return a.permute({0, 1});
       }},
      {"unsqueeze 0", [](auto& a, auto&) { return a.unsqueeze(0); }},
      {"unsqueeze 2", [](auto& a, auto&) { return a.unsqueeze(2); }},
      {"expand",
       [](auto& a, auto&) {
         return a.unsqueeze(0).expand({3, 4, 4});
       }},
      {"view",
       [](auto& a, auto&) {
         return a.view({4, 2, 2});
       }},
      {"view same",
       [](auto& a, auto&) {
         return a.view({4, 4});
       }},
      {"mm", [](auto& a, auto& b) { return a.mm(b); }},
      {"matmul", [](auto& a, auto& b) { return a.matmul(b); }},
      {"matmul 3d", [](auto& a, auto& b) { return a.unsqueeze(0).matmul(b); }},
      {"matmul 1d", [](auto& a, auto& b) { return a.matmul(b.select(1, 0)); }},
      {"addmm", [](auto& a, auto& b) { return at::addmm(a, a, b); }},
      {"addmm beta", [](auto& a, auto& b) { return at::addmm(a, a, b, 0.5); }},
      {"linear", [](auto& a, auto& b) { return at::linear(a, b); }},
      {"attention", [](auto& a, auto& b) { return attention(a, b); }},
      {"attention causal",
       [](auto& a, auto& b) { return attention(a, b, 0, true); }},
      {"attention scale",
       [](auto& a, auto& b) { return attention(a, b, 0, false, 3); }},
      {"attention without weights",
       [](auto& a, auto& b) { return attention(a, b, 1); }},
      {"embedding", [](auto& a, auto& b) { return at::embedding(b, rows(a)); }},
      {"embedding matrix",
       [](auto& a, auto& b) {
         return at::embedding(b, rows(a).view({2, 2}));
       }},
      {"linear bias",
       [](auto& a, auto& b) { return at::linear(a, b, b.select(0, 0)); }},
      {"cat 0",
       [](auto& a, auto& b) {
         return at::cat({a, b}, 0);
       }},
      {"cat 1",
       [](auto& a, auto& b) {
         return at::cat({a, b}, 1);
       }},
      {"cat three",
       [](auto& a, auto& b) {
         return at::cat({a, b, a}, 0);
       }},
      {"where", [](auto& a, auto& b) { return at::where(a > 0.5, a, b); }},
      {"masked_fill", [](auto& a, auto&) { return a.masked_fill(a > 0.5, 7); }},
      {"masked_fill 8",
       [](auto& a, auto&) { return a.masked_fill(a > 0.5, 8.5); }},
      {"pow", [](auto& a, auto&) { return a.pow(2); }},
      {"pow 3", [](auto& a, auto&) { return a.pow(3); }},
      {"to float", [](auto& a, auto&) { return a.to(at::kFloat); }},
      {"to same", [](auto& a, auto&) { return a.to(at::kDouble); }},
      {"clone", [](auto& a, auto&) { return a.clone(); }},
      {"layer_norm", [](auto& a, auto&) { return at::layer_norm(a, {4}); }},
      {"layer_norm 2d",
       [](auto& a, auto&) {
         return at::layer_norm(a, {4, 4});
       }},
      {"layer_norm weight",
       [](auto& a, auto& b) {
         return at::layer_norm(a, {4}, b.select(0, 0), b.select(0, 1));
       }},
      {"in place",
       [](auto& a, auto& b) {
         auto c = a.clone();
         c.add_(b).mul_(2).mul_(b).sub_(1.5);
         return c;
       }},
      {"lerp", [](auto& a, auto& b) { return a.lerp(b, 0.25); }},
      {"addcmul", [](auto& a, auto& b) { return a.addcmul(a, b, 3); }},
  };
  return all;
}

const std::vector<Placement> kLayouts = {
    Shard(0),
    Shard(1),
    Replicate(),
    Partial()};

bool same_values(const at::Tensor& mine, const at::Tensor& truth) {
  const auto whole = full(mine.detach());
  return whole.sizes() == truth.sizes() &&
      whole.scalar_type() == truth.scalar_type() &&
      at::allclose(
             whole.to(at::kDouble), truth.detach().to(at::kDouble), 1e-5, 1e-6);
}

// Returns "right", "wrong" or, for layouts that an operator refuses, "refused".
std::string outcome(
    const Call& call,
    const at::Tensor& a,
    const at::Tensor& b,
    const at::Tensor& plain_a,
    const at::Tensor& plain_b) {
  const auto truth = call(plain_a, plain_b);
  at::Tensor mine;
  try {
    mine = call(a, b);
  } catch (const c10::Error&) {
    return "refused";
  }
  bool right = same_values(mine, truth);
  if (truth.requires_grad()) {
    full(mine.sum()).backward();
    truth.sum().backward();
    for (const auto& [d, t] : {std::pair(a, plain_a), std::pair(b, plain_b)}) {
      right &= d.grad().defined() == t.grad().defined() &&
          (!t.grad().defined() || same_values(d.grad(), t.grad()));
    }
  }
  return right ? "right" : "wrong";
}

// Runs all calls three times in turn, on operands of all layouts, so that each
// call finds the decisions of the others in the cache.
void expect_all_right(bool with_grads) {
  Failures failures;
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto x = uniform({4, 4}, 1);
    const auto y = uniform({4, 4}, 2);
    const auto leaf = [&](const at::Tensor& t) {
      return t.detach().requires_grad_(with_grads);
    };
    std::map<std::string, std::string> first;
    for (int round = 0; round < 3; ++round) {
      for (const auto& p : kLayouts) {
        for (const auto& q : kLayouts) {
          for (const auto& [name, call] : calls()) {
            const auto title =
                c10::str(name, " of ", to_string(p), " and ", to_string(q));
            const auto now = outcome(
                call,
                leaf(place(x, mesh, p)),
                leaf(place(y, mesh, q)),
                leaf(x),
                leaf(y));
            const auto& before = first.try_emplace(title, now).first->second;
            if (now == "wrong" || now != before) {
              failures.add(c10::str(title, ", round ", round, ": ", now));
            }
          }
        }
      }
    }
  });
  EXPECT_EQ(failures.text(), "");
}

TEST(FastPath, CallsThatDifferInOneRespectHaveDifferentKeys) {
  const at::NoGradGuard no_grad;
  expect_all_right(false);
}

TEST(FastPath, WithGradients) {
  expect_all_right(true);
}

TEST(FastPath, InInferenceMode) {
  const c10::InferenceMode inference;
  expect_all_right(false);
}

// A region records the call with gradients, and does not record the call
// without, in turn.
TEST(FastPath, RegionsRecordWhenTheyMust) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto x = place(uniform({4, 4}, 1), mesh, Replicate());
    const auto w =
        place(uniform({6, 4}, 2), mesh, Shard(0)).detach().requires_grad_();
    for (int round = 0; round < 3; ++round) {
      EXPECT_TRUE(at::linear(x, w).requires_grad());
      {
        const at::NoGradGuard no_grad;
        EXPECT_FALSE(at::linear(x, w).requires_grad());
      }
      EXPECT_FALSE(at::linear(x, w.detach()).requires_grad());
    }
  });
}

// Writes to a view that is a copy reach the base each time, on the boxed path.
TEST(FastPath, AWriteToACopiedViewReachesTheBaseEachTime) {
  run_ranks(2, [] {
    const at::NoGradGuard no_grad;
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto x = place(uniform({4, 4}, 1), mesh, Shard(0));
    auto truth = uniform({4, 4}, 1);
    for (int round = 0; round < 3; ++round) {
      for (const at::Tensor& t : {at::Tensor(x), truth}) {
        t.select(0, 1).add_(t.select(0, 2)); // of the sharded dimension
        t.select(1, 1).add_(t.select(1, 2));
      }
      EXPECT_TRUE(at::equal(DTensor(x).full_tensor(), truth)) << round;
    }
  });
}

TEST(FastPath, MixedPlainOperandsAreRefusedEachTime) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto x = place(uniform({4, 4}, 1), mesh, Shard(0));
    for (int round = 0; round < 3; ++round) {
      EXPECT_TRUE(is_dtensor(x + x));
      EXPECT_TRUE(is_dtensor(x + at::scalar_tensor(1.0)));
      EXPECT_THROW(x + uniform({4, 4}, 2), c10::Error);
    }
  });
}

// Sums tensors of `shapes` shapes in turn, in several rounds. Returns the
// number of decisions made in the last round.
size_t decisions_of_last_round(int64_t shapes, int64_t rounds) {
  size_t made = 0;
  run_ranks(1, [&] {
    const at::NoGradGuard no_grad;
    const auto mesh = init_device_mesh(at::kCPU, {1});
    for (int64_t round = 0; round < rounds; ++round) {
      const auto before = detail::decision_counts().made;
      for (int64_t n = 1; n <= shapes; ++n) {
        const auto x = DTensor::from_local(at::ones({n}), mesh, {Shard(0)});
        const auto y = x.sum(); // keeps no reference to x
        ASSERT_EQ(DTensor(y).to_local().item<double>(), n);
      }
      made = detail::decision_counts().made - before;
      ASSERT_LE(
          detail::decision_counts().kept,
          static_cast<size_t>(detail::DecisionCache::kCapacity) + 8);
    }
  });
  return made;
}

TEST(FastPath, ChangingShapesNeitherGrowTheCacheNorDefeatIt) {
  constexpr auto kCapacity =
      static_cast<int64_t>(detail::DecisionCache::kCapacity);
  // A few of the shapes may fall into full sets of the cache.
  EXPECT_LE(decisions_of_last_round(100, 2), 5);
  EXPECT_LT(decisions_of_last_round(kCapacity / 2, 3), kCapacity / 20);
  // A loop over more shapes than fit into the cache still finds a third of
  // them.
  EXPECT_LT(decisions_of_last_round(kCapacity * 5 / 4, 5), kCapacity * 5 / 6);
}

} // namespace TEST_SOURCE
} // namespace dtensor::testing
