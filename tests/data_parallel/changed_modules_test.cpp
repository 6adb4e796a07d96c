// SPDX-License-Identifier: BSD-3-Clause
// Changes to a module after fully_shard: casts, loads, copies, and copies of
// its parameters that outlive the change.
#include <dtensor/data_parallel/fully_shard.h>
#include <dtensor/data_parallel/replicate.h>
#include <dtensor/data_parallel/unit_impl.h>
#include <dtensor/parallel/state_dict.h>
#include <tests/parallel/modules.h>

#include <sstream>

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::test_modules;

Mlp make_mlp() {
  return filled(Mlp(6, 7));
}

void on_two_ranks(const std::function<void(const DeviceMesh&)>& fn) {
  run_ranks(2, [&] { fn(init_device_mesh(at::kCPU, {2}, {"dp"})); });
}

const auto x = uniform({4, 6}, 3);

// Runs forward, backward and an optimizer step.
at::Tensor take_step(Mlp& mlp, const at::Tensor& input) {
  torch::optim::SGD optimizer(mlp->parameters(), 0.1);
  optimizer.zero_grad();
  const auto y = mlp(input);
  y.square().mean().backward();
  optimizer.step();
  return y.detach();
}

TEST(ChangedUnits, AreCastAndCastBack) {
  for (const bool with_tp : {false, true}) {
    auto plain = make_mlp();
    std::vector<at::Tensor> expected;
    for (const auto dtype : {at::kDouble, at::kFloat, at::kDouble}) {
      plain->to(dtype);
      expected.push_back(take_step(plain, x.to(dtype)));
    }
    run_ranks(4, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {2, 2}, {"dp", "tp"});
      auto mlp = make_mlp();
      if (with_tp) {
        parallelize_module(*mlp, mesh["tp"], mlp_plan());
      }
      fully_shard(*mlp->w1, {.mesh = mesh["dp"]});
      fully_shard(*mlp, {.mesh = mesh["dp"]});
      size_t step = 0;
      for (const auto dtype : {at::kDouble, at::kFloat, at::kDouble}) {
        mlp->to(dtype);
        const auto y = take_step(mlp, x.to(dtype));
        EXPECT_EQ(y.scalar_type(), dtype);
        EXPECT_EQ(mlp->w1->weight.grad().scalar_type(), dtype);
        expect_close(y, expected[step], c10::str("step ", step), 1e-6);
        ++step;
      }
    });
  }
}

TEST(ChangedUnits, AreCastToTheirOwnDtype) {
  on_two_ranks([](const DeviceMesh& mesh) {
    auto mlp = make_mlp();
    auto plain = make_mlp();
    fully_shard(*mlp, {.mesh = mesh});
    mlp->to(at::kDouble);
    mlp->to(at::kCPU);
    mlp->to(at::kCPU, at::kDouble, /*non_blocking=*/true);
    expect_close(take_step(mlp, x), take_step(plain, x), "result");
    expect_same_parameters(*mlp, *plain);
  });
}

TEST(ChangedUnits, TakeDataOfTheirLayout) {
  on_two_ranks([](const DeviceMesh& mesh) {
    auto mlp = make_mlp();
    auto plain = make_mlp();
    fully_shard(*mlp, {.mesh = mesh});
    for (auto* each : {&mlp, &plain}) {
      (*each)(x); // makes a gather, stale afterwards
      auto& weight = (*each)->w1->weight;
      weight.set_data(weight.detach() * 2);
    }
    expect_close(take_step(mlp, x), take_step(plain, x), "result");
    EXPECT_EQ(
        error_of([&] { mlp->w1->weight.set_data(plain->w1->weight.detach()); }),
        "[fully_shard] parameter \"w1.weight\" of unit "
        "\"dtensor::test_modules::MlpImpl\", f64[7, 6] on (dp=2): S(0), "
        "cannot take the data of f64[7, 6]. Copy values with "
        "set_model_state_dict.");
    expect_close(take_step(mlp, x), take_step(plain, x), "unchanged");
  });
}

TEST(ChangedUnits, HaveOneDtype) {
  on_two_ranks([](const DeviceMesh& mesh) {
    auto mlp = make_mlp();
    fully_shard(*mlp, {.mesh = mesh});
    mlp->w1->to(at::kFloat);
    EXPECT_EQ(
        error_of([&] { mlp(x); }),
        "[fully_shard] parameters of unit \"dtensor::test_modules::MlpImpl\" "
        "were cast to different dtypes: \"w1.weight\" Float, \"w2.weight\" "
        "Double. Cast the whole unit, or set mp_policy.param_dtype.");
    mlp->to(at::kDouble);
    EXPECT_EQ(mlp(x).scalar_type(), at::kDouble);
  });
}

TEST(ChangedUnits, AreNotCastBetweenForwardAndBackward) {
  on_two_ranks([](const DeviceMesh& mesh) {
    auto mlp = make_mlp();
    fully_shard(*mlp, {.mesh = mesh});
    const auto loss = mlp(x).sum();
    mlp->to(at::kFloat);
    mlp->to(at::kDouble);
    EXPECT_NE(
        error_of([&] {
          loss.backward();
        }).find("was changed between forward and backward"),
        std::string::npos);
  });
}

TEST(ChangedUnits, AreNotCloned) {
  on_two_ranks([](const DeviceMesh& mesh) {
    auto linear = filled(torch::nn::Linear(6, 6));
    fully_shard(*linear, {.mesh = mesh});
    EXPECT_EQ(
        error_of([&] { linear->clone(); }),
        "[set_data] cannot assign the data of a fully_shard parameter, f64[6, "
        "6] on (dp=2): S(0), to another tensor, which would not be gathered. "
        "Instead of cloning a module, create a new one, call fully_shard for "
        "it, and then set_model_state_dict.");
    torch::nn::LinearImpl same(*linear); // shares the parameters
    auto plain = filled(torch::nn::Linear(6, 6));
    expect_close(same.forward(x), plain->forward(x), "shared");
  });
}

TEST(ChangedUnits, AreLoadedByStateDictionaries) {
  on_two_ranks([](const DeviceMesh& mesh) {
    auto plain = make_mlp();
    std::stringstream file;
    torch::save(plain, file);
    auto mlp = make_mlp();
    fully_shard(*mlp, {.mesh = mesh});
    const auto text = error_of([&] { torch::load(mlp, file); });
    EXPECT_NE(
        text.find(" To set the values of a model, call set_model_state_dict."),
        text.npos)
        << text;
    expect_close(mlp(x), plain(x), "as it was");
  });
}

TEST(ChangedUnits, ClearGradientsLikeModules) {
  on_two_ranks([](const DeviceMesh& mesh) {
    auto mlp = make_mlp();
    auto plain = make_mlp();
    fully_shard(*mlp, {.mesh = mesh});
    for (const bool to_none : {false, true, false}) {
      for (auto* each : {&mlp, &plain}) {
        (*each)->zero_grad(to_none);
        (*each)(x).square().mean().backward();
      }
      expect_same_gradients(*mlp, *plain, "gradients");
    }
    mlp->zero_grad(/*set_to_none=*/true);
    EXPECT_FALSE(mlp->w1->weight.grad().defined());
  });
}

TEST(ChangedUnits, HaveGradientsFromBeforeAllLayouts) {
  auto plain = make_mlp();
  plain(x).square().mean().backward();
  run_ranks(4, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2}, {"dp", "tp"});
    auto mlp = make_mlp();
    mlp(x).square().mean().backward();
    parallelize_module(*mlp, mesh["tp"], mlp_plan());
    expect_same_gradients(*mlp, *plain, "parallel");
    fully_shard(*mlp, {.mesh = mesh["dp"]});
    expect_same_gradients(*mlp, *plain, "in parts");
    mlp(x).square().mean().backward();
    auto twice = make_mlp();
    (twice(x).square().mean() * 2).backward();
    expect_same_gradients(*mlp, *twice, "accumulated");
  });
}

// A copy of a parameter stands for the unsharded parameter while both have the
// same values.
TEST(ChangedUnits, GiveUnshardedCopies) {
  on_two_ranks([](const DeviceMesh& mesh) {
    auto mlp = make_mlp();
    auto plain = make_mlp();
    fully_shard(*mlp, {.mesh = mesh});
    const auto with_copies = [](Mlp& each) {
      const auto& weight = each->w1->weight;
      return x.matmul(weight.clone().t()) +
          x.to(at::kFloat).matmul(weight.to(at::kFloat).t());
    };
    for (auto* each : {&mlp, &plain}) {
      with_copies(*each).square().mean().backward();
    }
    expect_close(with_copies(mlp), with_copies(plain), "copies", 1e-6);
    expect_same_gradients(*mlp, *plain, "copies", 1e-6);
  });
}

TEST(ChangedUnits, KeepCopiesOfEarlierValues) {
  on_two_ranks([](const DeviceMesh& mesh) {
    const torch::NoGradGuard no_grad;
    auto mlp = make_mlp();
    fully_shard(*mlp, {.mesh = mesh});
    auto copy = mlp->w1->weight.to(at::kFloat);
    copy.mul_(2);
    expect_close(
        x.to(at::kFloat).matmul(copy.t()),
        x.to(at::kFloat).matmul(make_mlp()->w1->weight.to(at::kFloat).t()) * 2,
        "a written copy",
        1e-6);
    const auto early = mlp->w2->weight.clone();
    mlp->w2->weight.mul_(2);
    const auto plain = make_mlp();
    expect_close(copy, plain->w1->weight.to(at::kFloat) * 2, "copy");
    expect_close(early, plain->w2->weight, "early");
    EXPECT_NE(
        error_of([&] {
          at::ones({4, 7}, at::kDouble).matmul(early.t());
        }).find("got mixed plain tensor and DTensor"),
        std::string::npos);
  });
}

// Writes through data(), as in torch::optim::SGD, are detected although data()
// has its own version counter.
TEST(ChangedUnits, SeeWritesToTheirData) {
  const auto write = [](Mlp& each, int64_t how) {
    const torch::NoGradGuard no_grad;
    auto& weight = each->w1->weight;
    switch (how) {
      case 0:
        weight.data().mul_(2);
        break;
      case 1:
        weight.data().view({-1}).mul_(2);
        break;
      case 2:
        weight.data().t().mul_(2);
        break;
      case 3:
        weight.detach().slice(1, 0, 2).mul_(2);
        break;
      case 4:
        weight.set_data(weight.detach());
        weight.data().zero_();
        break;
      case 5:
        torch::nn::init::constant_(weight.data(), 0.5);
        break;
      default:
        weight.copy_(weight * 2);
    }
  };
  on_two_ranks([&](const DeviceMesh& mesh) {
    for (const bool keeps_after_backward : {false, true}) {
      auto mlp = make_mlp();
      auto plain = make_mlp();
      fully_shard(*mlp, {.mesh = mesh})
          .set_reshard_after_backward(!keeps_after_backward);
      for (int64_t how = 0; how < 7; ++how) {
        for (auto* each : {&mlp, &plain}) {
          (*each)->zero_grad();
          (*each)(x).square().mean().backward();
          (*each)(x); // the outermost unit keeps its parameters
          write(*each, how);
        }
        expect_close(mlp(x), plain(x), c10::str("write ", how));
      }
    }
  });
}

TEST(ChangedUnits, ReturnGradientsFromAutogradGrad) {
  on_two_ranks([](const DeviceMesh& mesh) {
    auto mlp = make_mlp();
    auto plain = make_mlp();
    auto unit = fully_shard(*mlp, {.mesh = mesh});
    const auto ask = [](Mlp& each) {
      return torch::autograd::grad(
          {each(x).square().mean()}, {each->w1->weight, each->w2->bias});
    };
    const auto gradients = ask(mlp);
    const auto expected = ask(plain);
    expect_close(gradients[0], expected[0], "w1.weight");
    expect_close(gradients[1], expected[1], "w2.bias");
    EXPECT_FALSE(mlp->w1->weight.grad().defined());
    // Gradients of parameters outside of `inputs` are not accumulated.
    for (const bool syncs : {false, true}) {
      unit.set_requires_gradient_sync(syncs);
      mlp(x).square().mean().backward({}, false, false, {{mlp->w2->weight}});
    }
    (plain(x).square().mean() * 2)
        .backward({}, false, false, {{plain->w2->weight}});
    expect_same_gradients(*mlp, *plain, "of one");
    unit.set_requires_gradient_sync(false);
    mlp(x).square().mean().backward();
    unit.set_requires_gradient_sync(true);
    EXPECT_EQ(
        error_of([&] { ask(mlp); }),
        "[fully_shard] torch::autograd::grad cannot return gradients of unit "
        "\"dtensor::test_modules::MlpImpl\", which accumulate until they are "
        "reduced over ranks (set_requires_gradient_sync, "
        "set_requires_all_reduce). Call backward() until then, or request "
        "gradients of inputs only.");
  });
}

TEST(ChangedUnits, AreFreedWithTheirModule) {
  on_two_ranks([](const DeviceMesh& mesh) {
    std::weak_ptr<detail::Unit> unit;
    {
      auto mlp = make_mlp();
      fully_shard(*mlp, {.mesh = mesh});
      take_step(mlp, x);
      mlp(x);
      unit = detail::unit_of(mlp->w1->weight);
    }
    EXPECT_TRUE(unit.expired());
  });
}

// Other units do not keep memory that a saved view shares: the next step
// gathers again.
TEST(ChangedUnits, AreGatheredAgainAfterViewsWereKept) {
  on_two_ranks([](const DeviceMesh& mesh) {
    auto mlp = make_mlp();
    auto plain = make_mlp();
    fully_shard(*mlp->w1, {.mesh = mesh, .reshard_after_forward = 2});
    fully_shard(*mlp, {.mesh = mesh});
    for (int step = 0; step < 2; ++step) {
      for (auto* each : {&mlp, &plain}) {
        torch::optim::SGD optimizer((*each)->parameters(), 0.1);
        optimizer.zero_grad();
        const auto& bias = (*each)->w1->bias;
        const auto kept = bias.view({-1, 1}).expand({7, 4}) + at::ones({4});
        ((*each)(x).square().mean() + kept.square().mean()).backward();
        optimizer.step();
      }
      expect_same_parameters(*mlp, *plain);
    }
  });
}

TEST(ChangedUnits, ReduceInTheirComputeDtype) {
  on_two_ranks([](const DeviceMesh& mesh) {
    auto mlp = make_mlp();
    mlp->to(at::kFloat);
    auto averaged = make_mlp();
    averaged->to(at::kBFloat16);
    auto plain = make_mlp();
    plain->to(at::kBFloat16);
    fully_shard(
        *mlp, {.mesh = mesh, .mp_policy = {.param_dtype = at::kBFloat16}});
    replicate(*averaged, mesh);
    for (auto* each : {&mlp, &averaged, &plain}) {
      (*each)(x.to(at::kBFloat16)).sum().backward();
    }
    EXPECT_EQ(mlp->w1->weight.grad().scalar_type(), at::kFloat);
    const auto& expected = plain->w1->weight.grad();
    expect_close(mlp->w1->weight.grad(), expected, "in parts", 0);
    expect_close(averaged->w1->weight.grad(), expected, "averaged", 0);
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
