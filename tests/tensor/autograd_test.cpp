// SPDX-License-Identifier: BSD-3-Clause
// Autograd treats a DTensor as a tensor: typical uses of gradients.
#include "support.h"

#include <functional>
#include <thread>

namespace dtensor {
namespace TEST_SOURCE {

using namespace test;

class Autograd : public testing::Test {
 protected:
  // Runs `fn` on 1, 2 and 3 ranks, with a distributed leaf of 5 rows and its
  // plain counterpart.
  template <typename Fn>
  static void each(const Fn& fn) {
    on_meshes({{1}, {2}, {3}}, [&](const DeviceMesh& mesh) {
      for (const auto& p : {Replicate(), Shard(0), Shard(1)}) {
        auto truth = counting({5, 3}).requires_grad_();
        fn(placed(counting({5, 3}), mesh, {p}, true), truth, mesh);
      }
    });
  }
  static void expect_grad(const at::Tensor& d, const at::Tensor& truth) {
    ASSERT_TRUE(d.grad().defined());
    expect_same(whole(d.grad()), truth.grad());
  }
};

TEST_F(Autograd, GradientsAccumulate) {
  each([](DTensor d, at::Tensor truth, const DeviceMesh&) {
    for (int i = 0; i < 2; ++i) {
      whole(d.pow(2).sum()).backward();
      truth.pow(2).sum().backward();
      expect_grad(d, truth);
    }
    d.mutable_grad().zero_();
    expect_same(whole(d.grad()), at::zeros({5, 3}, at::kDouble));
    d.mutable_grad().reset();
    EXPECT_FALSE(d.grad().defined());
  });
}

TEST_F(Autograd, GradOfSeveralWithUnused) {
  each([](DTensor d, at::Tensor, const DeviceMesh& mesh) {
    auto unused = placed(counting({2}), mesh, {Replicate()}, true);
    const auto grads = torch::autograd::grad(
        {whole((d * d).sum())},
        {d, unused},
        {},
        /*retain_graph=*/false,
        /*create_graph=*/false,
        /*allow_unused=*/true);
    expect_same(whole(grads[0]), 2 * counting({5, 3}));
    EXPECT_FALSE(grads[1].defined());
    EXPECT_FALSE(d.grad().defined());
  });
}

TEST_F(Autograd, RetainGrad) {
  each([](DTensor d, at::Tensor truth, const DeviceMesh&) {
    auto middle = d * 2;
    middle.retain_grad();
    whole(middle.pow(2).sum()).backward();
    auto truth_middle = truth * 2;
    truth_middle.retain_grad();
    truth_middle.pow(2).sum().backward();
    expect_grad(middle, truth_middle);
    expect_grad(d, truth);
  });
}

TEST_F(Autograd, HooksSeeDTensors) {
  each([](DTensor d, at::Tensor truth, const DeviceMesh&) {
    int calls = 0;
    d.register_hook([&](const at::Tensor& grad) {
      ++calls;
      EXPECT_TRUE(is_dtensor(grad));
      return grad * 2;
    });
    whole(d.sum()).backward();
    EXPECT_EQ(calls, 1);
    (truth * 2).sum().backward();
    expect_grad(d, truth);
  });
}

TEST_F(Autograd, DetachAndNoGrad) {
  each([](DTensor d, at::Tensor, const DeviceMesh&) {
    const auto detached = d.detach();
    EXPECT_TRUE(is_dtensor(detached));
    EXPECT_FALSE(detached.requires_grad());
    EXPECT_TRUE(DTensor(detached).to_local().is_alias_of(
        DTensor(d.detach()).to_local()));
    const at::NoGradGuard no_grad;
    const auto out = d * 2;
    EXPECT_FALSE(out.requires_grad());
    EXPECT_TRUE(is_dtensor(out));
    expect_same(whole(out), counting({5, 3}) * 2);
  });
}

TEST_F(Autograd, RequiresGradOfAPlainLeaf) {
  each([](const DTensor& d, at::Tensor truth, const DeviceMesh&) {
    auto leaf = d.detach();
    EXPECT_FALSE((leaf * 2).requires_grad());
    leaf.requires_grad_();
    EXPECT_TRUE(leaf.is_leaf());
    whole((leaf * 2).sum()).backward();
    (truth * 2).sum().backward();
    expect_grad(leaf, truth);
  });
}

TEST_F(Autograd, WritingIntoAView) {
  each([](DTensor d, at::Tensor truth, const DeviceMesh&) {
    auto copy = d * 1;
    auto column = copy.select(1, 0); // sharded if the columns are
    auto truth_copy = truth * 1;
    try {
      column.mul_(3);
    } catch (const c10::Error& e) {
      const std::string text = e.what_without_backtrace();
      EXPECT_NE(text.find("is a copied view of"), std::string::npos) << text;
      return;
    }
    truth_copy.select(1, 0).mul_(3);
    expect_same(whole(copy), truth_copy);
    whole(copy.pow(2).sum()).backward();
    truth_copy.pow(2).sum().backward();
    expect_grad(d, truth);
  });
}

TEST_F(Autograd, InPlaceOperatorsCountVersions) {
  each([](DTensor d, at::Tensor, const DeviceMesh&) {
    auto copy = d * 1;
    const auto square = copy * copy;
    const auto before = copy._version();
    copy.add_(1);
    EXPECT_GT(copy._version(), before);
    EXPECT_THROW(whole(square.sum()).backward(), c10::Error);
  });
}

TEST_F(Autograd, InPlaceOnALeafIsRefused) {
  each([](DTensor d, at::Tensor, const DeviceMesh&) {
    EXPECT_THROW(d.add_(1), c10::Error);
    const at::NoGradGuard no_grad;
    d.add_(1);
    expect_same(whole(d), counting({5, 3}) + 1);
  });
}

TEST_F(Autograd, CloneCopies) {
  each([](DTensor d, at::Tensor truth, const DeviceMesh&) {
    auto copy = d.clone();
    EXPECT_EQ(spec_text(copy), spec_text(d));
    EXPECT_FALSE(DTensor(copy.detach())
                     .to_local()
                     .is_alias_of(DTensor(d.detach()).to_local()));
    whole(copy.sum()).backward();
    truth.clone().sum().backward();
    expect_grad(d, truth);
  });
}

TEST_F(Autograd, BFloat16) {
  on_meshes({{2}, {3}}, [](const DeviceMesh& mesh) {
    const auto full = counting({6, 3}, at::kBFloat16);
    auto d = placed(full, mesh, {Shard(0)}, true);
    auto truth = full.clone().requires_grad_();
    whole((d * d).sum(1)).backward(at::ones({6}, at::kBFloat16));
    (truth * truth).sum(1).backward(at::ones({6}, at::kBFloat16));
    EXPECT_EQ(d.grad().scalar_type(), at::kBFloat16);
    expect_same(whole(d.grad()), truth.grad());
  });
}

TEST_F(Autograd, InferenceMode) {
  on_meshes({{1}, {2}, {3}}, [](const DeviceMesh& mesh) {
    const auto full = counting({5, 3});
    const auto before = placed(full, mesh, {Shard(0)}, true);
    const c10::InferenceMode inference;
    const auto made = placed(full, mesh, {Shard(0)});
    EXPECT_TRUE(made.is_inference());
    for (const auto& d : {before, made}) {
      expect_same(whole(d.matmul(d.t())), full.matmul(full.t()));
      expect_same(whole(d * 2 + d), full * 3);
      expect_same(full_tensor(redistribute(d, {Shard(1)})), full);
      EXPECT_FALSE((d * 2).requires_grad());
    }
    auto changed = made * 1;
    changed.add_(1);
    expect_same(whole(changed), full + 1);
  });
}

TEST_F(Autograd, BackwardRunsInTheRanksThread) {
  run_ranks(2, [] {
    auto d = placed(counting({4}), mesh_of({2}), {Shard(0)}, true);
    std::thread::id seen;
    d.register_hook([&](const at::Tensor& grad) {
      seen = std::this_thread::get_id();
      return grad;
    });
    whole(d.sum()).backward();
    EXPECT_EQ(seen, std::this_thread::get_id());
  });
}

// A gradient that flows into several leaves must not become shared memory,
// because an in-place operator on one gradient would change the other.
TEST(Gradients, OfDifferentLeavesDoNotShareMemory) {
  run_ranks(2, [] {
    const auto mesh = mesh_of({2});
    const auto leaf = [&](const Placement& p) {
      return at::Tensor(placed(counting({4, 4}), mesh, {p}))
          .detach()
          .requires_grad_();
    };
    const auto expect_apart = [](const at::Tensor& sum,
                                 const at::Tensor& a,
                                 const at::Tensor& b,
                                 double grad) {
      (sum * 3).sum().backward();
      b.grad().mul_(100);
      const auto mine = is_dtensor(a) ? DTensor(a.grad()).to_local() : a.grad();
      EXPECT_TRUE(mine.eq(grad).all().item<bool>()) << mine;
    };
    for (const auto& p : {Placement(Shard(0)), Placement(Replicate())}) {
      const auto a = leaf(p), b = leaf(p);
      expect_apart(DTensor(a).to_local() + DTensor(b).to_local(), a, b, 3);
      const auto c = leaf(p), d = leaf(p);
      expect_apart(DTensor(c).to_local() + DTensor(d).to_local() * 1, c, d, 3);
      const auto e = counting({2, 4}).requires_grad_();
      const auto f = counting({2, 4}).requires_grad_();
      expect_apart(
          DTensor::from_local(e, mesh, {p}) + DTensor::from_local(f, mesh, {p}),
          e,
          f,
          3);
      const auto g = leaf(p), h = leaf(p);
      expect_apart(g + h, g, h, 3);
    }
  });
}

// Gradients that a program passes to backward() or returns from hooks.
class GivenGradients : public testing::Test {
 protected:
  static constexpr const char* kPlain =
      "[backward] the gradient of a DTensor, f64[4] on (a=2): S(0), is a plain "
      "tensor of shape [4]. Pass backward() a DTensor, and return DTensors "
      "from hooks.";
  static void on_two(const std::function<void(const DeviceMesh&)>& fn) {
    run_ranks(2, [&] { fn(mesh_of({2})); });
  }
  static at::Tensor leaf(const DeviceMesh& mesh) {
    return distribute_tensor(counting({4}), mesh, {Shard(0)}).requires_grad_();
  }
};

TEST_F(GivenGradients, PlainGradientsOfALeafAreAnError) {
  on_two([](const DeviceMesh& mesh) {
    auto x = leaf(mesh);
    x.register_hook([](const at::Tensor& grad) { return whole(grad); });
    const auto loss = whole((x * 2).sum());
    EXPECT_EQ(error_of<c10::TypeError>([&] { loss.backward(); }), kPlain);
    EXPECT_FALSE(x.grad().defined());
  });
}

TEST_F(GivenGradients, PlainGradientsOfAResultAreAnError) {
  on_two([](const DeviceMesh& mesh) {
    auto x = leaf(mesh);
    const auto y = DTensor(x * 2).redistribute({Replicate()});
    EXPECT_EQ(
        error_of<c10::TypeError>(
            [&] { y.backward(at::ones({4}, at::kDouble)); }),
        kPlain);
    const auto local = at::ones({2}, at::kDouble).requires_grad_();
    const auto z = DTensor::from_local(local, mesh, {Shard(0)});
    EXPECT_EQ(
        error_of<c10::TypeError>(
            [&] { z.backward(at::ones({4}, at::kDouble)); }),
        kPlain);
  });
}

TEST_F(GivenGradients, DTensorGradientsOfALocalTensorAreAnError) {
  on_two([](const DeviceMesh& mesh) {
    auto x = leaf(mesh);
    const auto whole_x = whole(x);
    EXPECT_EQ(
        error_of<c10::TypeError>([&] {
          whole_x.backward(placed(counting({4}), mesh, {Replicate()}));
        }),
        "[backward] the gradient of a local tensor is a DTensor, f64[4] on "
        "(a=2): R. Pass backward() the local tensor, and return local tensors "
        "from hooks.");
  });
}

TEST_F(GivenGradients, APlainNumberIsTheSameOnEveryRank) {
  on_two([](const DeviceMesh& mesh) {
    auto x = leaf(mesh);
    DTensor((x * x).sum())
        .redistribute({Replicate()})
        .backward(at::scalar_tensor(3, at::kDouble));
    expect_same(whole(x.grad()), 6 * counting({4}));
    auto one = distribute_tensor(at::ones({1}, at::kDouble), mesh, {Shard(0)})
                   .requires_grad_();
    one.register_hook([](const at::Tensor& grad) { return whole(grad) * 5; });
    whole((one * 2).sum()).backward();
    ASSERT_TRUE(is_dtensor(one.grad()));
    expect_same(whole(one.grad()), at::full({1}, 10.0, at::kDouble));
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
