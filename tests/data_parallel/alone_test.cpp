// SPDX-License-Identifier: BSD-3-Clause
// Parameters of a unit that are the only operand of an operator (without an
// activation), in modules without hooks. Results are compared with the plain
// module on all rows.
#include <dtensor/data_parallel/fully_shard.h>
#include <dtensor/data_parallel/replicate.h>
#include <dtensor/data_parallel/unit_impl.h>
#include <dtensor/debug/comm_debug_mode.h>
#include <dtensor/parallel/module_hooks.h>
#include <tests/parallel/modules.h>

#include <functional>

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::test_modules;

struct UserImpl;
using Use = std::function<at::Tensor(UserImpl&, const at::Tensor&)>;

struct UserImpl : torch::nn::Module {
  explicit UserImpl(Use u)
      : use(std::move(u)),
        w(register_parameter("w", torch::zeros({6, 6}))),
        q(register_parameter("q", torch::zeros({3, 6}))),
        k(register_parameter("k", torch::zeros({3, 6}))),
        a(register_parameter("a", torch::zeros({2, 6}))),
        b(register_parameter("b", torch::zeros({6, 2}))),
        gain(register_parameter("gain", torch::zeros({6}))),
        scale(register_parameter("scale", torch::zeros({1}))),
        mask(register_buffer("mask", torch::zeros({6, 6}))) {}
  at::Tensor forward(const at::Tensor& x) { // (B, 6)
    return use(*this, x);
  }
  Use use;
  at::Tensor w, q, k, a, b, gain, scale, mask;
};
TORCH_MODULE(User);

User make_user(const Use& use) {
  auto user = filled(User(use));
  user->mask.copy_(uniform({6, 6}, 90).gt(0));
  return user;
}

struct Case {
  const char* name;
  Use use;
};

using M = UserImpl;
using X = const at::Tensor&;

std::vector<Case> arithmetic() {
  return {
      {"gemma", [](M& m, X x) { return x * (1 + m.gain); }},
      {"mamba", [](M& m, X x) { return x * torch::exp(-torch::exp(m.gain)); }},
      {"softplus", [](M& m, X x) { return x * torch::softplus(m.gain); }},
      {"scaled", [](M& m, X x) { return x.matmul((m.w * 0.3 - 1).t()); }},
      {"scalar", [](M& m, X x) { return x * torch::sigmoid(m.scale); }},
      {"both", [](M& m, X x) { return x * (m.gain * m.scale + m.gain); }},
      {"masked", [](M& m, X x) { return x.matmul(m.w.tanh() * m.mask); }},
      {"chosen",
       [](M& m, X x) {
         return x.matmul(torch::where(m.w > 0, m.w, torch::zeros_like(m.w)));
       }},
      {"dtype",
       [](M& m, X x) {
         return x.to(at::kFloat).matmul(m.w.to(at::kFloat)).to(at::kDouble);
       }},
      {"detached", [](M& m, X x) { return x * (m.gain + m.gain.detach()); }},
      {"constant",
       [](M& m, X x) { return x * torch::full({}, 3., at::kDouble) * m.gain; }},
      {"number",
       [](M& m, X x) {
         const auto number = torch::full({}, 3., at::kDouble);
         return x * (m.gain * number - number);
       }},
      {"without a rule", [](M& m, X x) { return x * torch::pdist(m.q).sum(); }},
      {"constant first",
       [](M& m, X x) {
         return x * (m.gain.sum() + torch::full({}, 3., at::kDouble));
       }},
  };
}

std::vector<Case> products() {
  return {
      {"lora",
       [](M& m, X x) {
         return torch::linear(x, m.w + torch::mm(m.b, m.a) * 0.5);
       }},
      {"lora matmul",
       [](M& m, X x) { return torch::linear(x, m.w + m.b.matmul(m.a)); }},
      {"einsum",
       [](M& m, X x) {
         return x.matmul(torch::einsum("or,ri->oi", {m.b, m.a}));
       }},
      {"heads",
       [](M& m, X x) {
         return x.matmul(torch::cat({m.q, m.k}).t());
       }},
      {"stack",
       [](M& m, X x) {
         return x.matmul(torch::stack({m.q, m.k}).view({6, 6}).t());
       }},
      {"symmetric", [](M& m, X x) { return x.matmul(m.w + m.w.t()); }},
      {"orthogonal",
       [](M& m, X x) {
         const auto skew = m.w - m.w.t();
         return x.matmul(torch::matrix_exp(skew));
       }},
      {"block",
       [](M& m, X x) {
         return x.matmul(
             torch::block_diag({m.q.slice(1, 0, 3), m.k.slice(1, 0, 3)}));
       }},
  };
}

std::vector<Case> norms() {
  return {
      {"weight norm", [](M& m, X x) { return x.matmul(m.w / m.w.norm()); }},
      {"rows",
       [](M& m, X x) {
         return x.matmul(m.w / m.w.norm(2, {1}, /*keepdim=*/true));
       }},
      {"normalize",
       [](M& m, X x) {
         return x.matmul(torch::nn::functional::normalize(
             m.w, torch::nn::functional::NormalizeFuncOptions().dim(1)));
       }},
      {"softmax", [](M& m, X x) { return x.matmul(torch::softmax(m.w, 0)); }},
      {"centered", [](M& m, X x) { return x.matmul(m.w - m.w.mean()); }},
      {"deviation",
       [](M& m, X x) {
         return x.matmul(m.w / (m.w.var(1, false, true) + 1).sqrt());
       }},
      {"largest", [](M& m, X x) { return x.matmul(m.w / m.w.abs().max()); }},
      {"sum", [](M& m, X x) { return x * m.w.sum(); }},
      {"cumsum", [](M& m, X x) { return x * m.gain.cumsum(0); }},
      {"sorted", [](M& m, X x) { return x * std::get<0>(m.gain.sort()); }},
  };
}

std::vector<Case> views() {
  return {
      {"t", [](M& m, X x) { return x.matmul(m.w.t()); }},
      {"tril", [](M& m, X x) { return x.matmul(m.w.tril()); }},
      {"view",
       [](M& m, X x) {
         return x.matmul(m.w.view({2, 3, 6})[0].t());
       }},
      {"reshape",
       [](M& m, X x) { return x * m.w.reshape({-1}).slice(0, 6, 12); }},
      {"flat", [](M& m, X x) { return x * m.w.flatten().narrow(0, 2, 6); }},
      {"row", [](M& m, X x) { return x * m.w[0]; }},
      {"row after", [](M& m, X x) { return x * (m.w + 1)[4]; }},
      {"diagonal", [](M& m, X x) { return x * m.w.diagonal(); }},
      {"chunk",
       [](M& m, X x) {
         const auto parts = m.w.chunk(3);
         return x.matmul(parts[0].t()).repeat({1, 3}) * torch::cat({m.gain});
       }},
      {"split",
       [](M& m, X x) {
         const auto parts = (m.w * 2).split(4, /*dim=*/1);
         return x.matmul(torch::cat({parts[1], parts[0]}, 1));
       }},
      {"unbind",
       [](M& m, X x) {
         const auto rows = m.w.unbind();
         return x * rows[1] + x * rows[5];
       }},
      {"index",
       [](M& m, X x) {
         return x * m.w.index_select(0, torch::tensor({3})).squeeze(0);
       }},
      {"view of made",
       [](M& m, X x) {
         return x.matmul((m.w + 1).view({3, 2, 6})[1].t()).repeat({1, 3});
       }},
      {"flip", [](M& m, X x) { return x.matmul(m.w.flip(0)); }},
      {"roll", [](M& m, X x) { return x.matmul(m.w.roll(1, 0)); }},
      {"expand",
       [](M& m, X x) {
         return x * (m.gain.exp()).expand({2, 6})[1];
       }},
      {"pad",
       [](M& m, X x) {
         return x * torch::constant_pad_nd(m.gain, {1, 0}).slice(0, 0, 6);
       }},
  };
}

std::vector<Case> writes() {
  return {
      {"in place",
       [](M& m, X x) {
         auto made = m.gain * 2;
         made.add_(1).mul_(3);
         return x * made;
       }},
      {"clone",
       [](M& m, X x) {
         auto copy = m.w.clone();
         copy.clamp_(-0.5, 0.5);
         return x.matmul(copy);
       }},
      {"of another",
       [](M& m, X x) {
         auto made = m.gain * 3;
         made.add_(m.gain);
         const auto before = made + 1;
         made.zero_();
         return x * before + x * made;
       }},
  };
}

at::Tensor rows_of(const at::Tensor& whole, const DeviceMesh& mesh) {
  const auto rows = whole.size(0) / mesh.size();
  return whole.narrow(0, rows * mesh.get_local_rank(), rows);
}

const auto input = uniform({12, 6}, 3);

struct Seen {
  at::Tensor evaluated;
  at::Tensor inferred;
  at::Tensor output;
};

// Takes training steps, then evaluates without gradients and in inference mode.
Seen take_step(User& user, const at::Tensor& x) {
  Seen seen;
  torch::optim::AdamW optimizer(
      user->parameters(), torch::optim::AdamWOptions(1e-2));
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    seen.output = user(x);
    seen.output.square().mean().backward();
    optimizer.step();
  }
  {
    const torch::NoGradGuard no_grad;
    seen.evaluated = user(x);
  }
  const c10::InferenceMode inference;
  seen.inferred = user(x).clone();
  return seen;
}

// Some cases multiply matrices in f32, whose rounding depends on the processor
// and on the number of rows.
constexpr double kTolerance = 1e-6;

void expect_as_plain(const Case& c, int64_t ranks, bool reshards) {
  const auto what =
      c10::str(c.name, ", ", ranks, " ranks, reshards ", reshards);
  auto plain = make_user(c.use);
  const auto truth = take_step(plain, input);
  run_ranks(ranks, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {ranks}, {"dp"});
    auto mine = make_user(c.use);
    fully_shard(*mine, {.mesh = mesh, .reshard_after_forward = reshards});
    const auto seen = take_step(mine, rows_of(input, mesh));
    ASSERT_FALSE(is_dtensor(seen.output)) << what;
    if (truth.output.dim() == 2) {
      const auto rows = truth.output.size(0) == 12
          ? rows_of(truth.evaluated, mesh)
          : truth.evaluated;
      expect_close(seen.evaluated, rows, what, kTolerance);
      expect_close(seen.inferred, rows, what, kTolerance);
    }
    expect_same_gradients(*mine, *plain, what, kTolerance);
    for (const auto& item : mine->named_parameters()) {
      expect_close(
          item.value(),
          plain->named_parameters()[item.key()],
          what + ": " + item.key(),
          kTolerance);
    }
  });
}

void expect_all_as_plain(const std::vector<Case>& cases) {
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    try {
      expect_as_plain(c, 2, true);
      expect_as_plain(c, 3, false);
      expect_as_plain(c, 1, true);
    } catch (const c10::Error& e) {
      ADD_FAILURE() << c.name << ": " << e.what_without_backtrace();
    }
  }
}

TEST(AloneParameters, AreUnshardedAfterArithmetic) {
  expect_all_as_plain(arithmetic());
}

TEST(AloneParameters, AreUnshardedAfterProducts) {
  expect_all_as_plain(products());
}

TEST(AloneParameters, AreUnshardedAfterNorms) {
  expect_all_as_plain(norms());
}

TEST(AloneParameters, AreUnshardedInViews) {
  expect_all_as_plain(views());
}

TEST(AloneParameters, AreUnshardedAfterWrites) {
  expect_all_as_plain(writes());
}

struct OuterImpl : torch::nn::Module {
  explicit OuterImpl(const Use& use)
      : inner(register_module("inner", User(use))),
        out(register_module("out", torch::nn::Linear(6, 6))) {}
  at::Tensor forward(const at::Tensor& x) {
    return out(inner(x));
  }
  User inner;
  torch::nn::Linear out;
};
TORCH_MODULE(Outer);

struct HookedUserImpl : torch::nn::Module {
  HookedUserImpl()
      : gain(register_parameter("gain", torch::zeros({6}))),
        w(register_parameter("w", torch::zeros({6, 6}))) {}
  at::Tensor forward(const at::Tensor& x) {
    sees_plain = !is_dtensor(w / w.norm());
    return (x * (1 + gain)).matmul(w / w.norm());
  }
  at::Tensor gain;
  at::Tensor w;
  bool sees_plain = false;
};
DTENSOR_MODULE(HookedUser);

struct AroundHookedImpl : torch::nn::Module {
  AroundHookedImpl()
      : inner(register_module("inner", HookedUser())),
        gain(register_parameter("gain", torch::zeros({6}))) {}
  at::Tensor forward(const at::Tensor& x) {
    return inner(x) * gain.exp();
  }
  HookedUser inner;
  at::Tensor gain;
};
TORCH_MODULE(AroundHooked);

// A hooked module gets plain parameters inside a unit without hooks.
TEST(AloneParameters, ArePlainInAHookedModuleInside) {
  auto plain = filled(AroundHooked());
  plain(input).square().mean().backward();
  for (const int64_t ranks : {1, 2, 3}) {
    run_ranks(ranks, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {ranks}, {"dp"});
      auto mine = filled(AroundHooked());
      fully_shard(*mine, {.mesh = mesh, .reshard_after_forward = true});
      const CommDebugMode comm;
      mine(rows_of(input, mesh)).square().mean().backward();
      EXPECT_EQ(comm.get_total_counts(), ranks == 1 ? 0 : 2);
      EXPECT_TRUE(mine->inner->sees_plain);
      expect_same_gradients(*mine, *plain, c10::str(ranks, " ranks"));
    });
  }
}

// A hooked module inside a unit gets parameters and inputs in param_dtype.
TEST(AloneParameters, CastInputsOfAHookedModuleInside) {
  auto plain = filled(AroundHooked());
  plain->to(at::kFloat);
  const auto expected = plain(input.to(at::kFloat));
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"dp"});
    auto mine = filled(AroundHooked());
    fully_shard(
        *mine, {.mesh = mesh, .mp_policy = {.param_dtype = at::kFloat}});
    const auto y = mine(input);
    EXPECT_EQ(y.scalar_type(), at::kFloat);
    EXPECT_TRUE(at::allclose(y, expected, 1e-5, 1e-6));
  });
}

// A parameter that several units use in several ways is gathered correctly.
TEST(AloneParameters, AreUnshardedInNestedUnits) {
  const auto lora = products()[0].use;
  auto plain = filled(Outer(lora));
  plain(input).square().mean().backward();
  for (const bool reshards : {true, false}) {
    run_ranks(2, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {2}, {"dp"});
      auto mine = filled(Outer(lora));
      const FullyShardOptions options{
          .mesh = mesh, .reshard_after_forward = reshards};
      fully_shard(*mine->inner, options);
      fully_shard(*mine, options);
      for (int pass = 0; pass < 2; ++pass) {
        mine->zero_grad();
        mine(rows_of(input, mesh)).square().mean().backward();
        expect_same_gradients(*mine, *plain, c10::str("reshards ", reshards));
      }
    });
  }
}

TEST(AloneParameters, AreReplicatedAndShardedAlongOtherDimensions) {
  for (const auto& c : products()) {
    auto plain = make_user(c.use);
    plain(input).square().mean().backward();
    run_ranks(4, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {2, 2}, {"dr", "dp"});
      auto mine = make_user(c.use);
      fully_shard(
          *mine, {.mesh = mesh, .shard_placement_fn = [](const at::Tensor& p) {
                    return p.dim() == 0 ? std::nullopt
                                        : std::optional(Shard(p.dim() - 1));
                  }});
      const auto flat =
          mesh.get_local_rank("dr") * 2 + mesh.get_local_rank("dp");
      mine(input.narrow(0, 3 * flat, 3)).square().mean().backward();
      expect_same_gradients(*mine, *plain, c.name);
    });
  }
}

TEST(AloneParameters, ComputeInOtherDtypes) {
  const auto gemma = arithmetic()[0].use;
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"dp"});
    auto mine = make_user(gemma);
    mine->to(at::kFloat);
    auto plain = make_user(gemma);
    plain->to(at::kBFloat16);
    fully_shard(
        *mine, {.mesh = mesh, .mp_policy = {.param_dtype = at::kBFloat16}});
    const auto x = input.to(at::kBFloat16);
    EXPECT_TRUE(at::equal(mine(x), plain(x)));
  });
}

// An explicit cast in the program keeps its dtype.
TEST(AloneParameters, KeepADtypeThatTheProgramChose) {
  const Use up = [](M& m, X x) { return x * (1 + m.gain.to(at::kFloat)); };
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"dp"});
    auto mine = make_user(up);
    mine->to(at::kFloat);
    fully_shard(
        *mine, {.mesh = mesh, .mp_policy = {.param_dtype = at::kBFloat16}});
    EXPECT_EQ(mine(input.to(at::kFloat)).scalar_type(), at::kFloat);
  });
}

// A result that meets no activation stays a DTensor, with second derivatives.
TEST(AloneParameters, AreDTensorsWithoutAnActivation) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"dp"});
    auto mine = make_user(arithmetic()[0].use);
    auto plain = make_user(arithmetic()[0].use);
    fully_shard(*mine, {.mesh = mesh});
    const auto second = [](User& user) {
      const auto first = torch::autograd::grad(
          {user->w.pow(3).sum()}, {user->w}, {}, std::nullopt, true)[0];
      return torch::autograd::grad({first.pow(2).sum()}, {user->w})[0];
    };
    EXPECT_TRUE(is_dtensor(mine->w.pow(3).sum()));
    expect_close(second(mine), second(plain), "second derivative");
  });
}

// A result computed before a write to its parameter is not gathered.
TEST(AloneParameters, StaleResultsAreNotUnsharded) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"dp"});
    auto mine = make_user(arithmetic()[0].use);
    fully_shard(*mine, {.mesh = mesh});
    const torch::NoGradGuard no_grad;
    const auto made = mine->gain + 1;
    mine->gain.mul_(2);
    EXPECT_THAT(
        error_of([&] { input* made; }),
        testing::HasSubstr("got mixed plain tensor and DTensor"));
    const auto later = mine->gain + 1;
    auto view = later.slice(0, 0, 6);
    view.mul_(2);
    EXPECT_THAT(
        error_of([&] { input* later; }),
        testing::HasSubstr("got mixed plain tensor and DTensor"));
  });
}

// A view that shards cannot represent is a copy, which rejects writes.
// A result cannot be computed again once a number that it was computed with has
// changed.
TEST(AloneParameters, ResultsOfChangedNumbersAreNotUnsharded) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"dp"});
    auto mine = make_user([](M& m, X x) {
      const auto number = torch::full({}, 3., at::kDouble);
      const auto shifted = m.gain + number;
      number.fill_(5.);
      return x * shifted;
    });
    fully_shard(*mine, {.mesh = mesh});
    EXPECT_THAT(
        error_of([&] { mine(input); }),
        testing::HasSubstr("got mixed plain tensor and DTensor"));
  });
}

// A tensor that gets the data of a result is not that result.
TEST(AloneParameters, ResultsAsDataAreDTensors) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"dp"});
    auto mine = make_user(arithmetic()[0].use);
    const auto gain = mine->gain.detach().clone();
    fully_shard(*mine, {.mesh = mesh});
    const torch::NoGradGuard no_grad;
    auto other = distribute_tensor(torch::zeros_like(gain), mesh, {Shard(0)});
    other.set_data(mine->gain + 1);
    expect_close(other, gain + 1, "data");
    EXPECT_THAT(
        error_of([&] { input* other; }),
        testing::HasSubstr("got mixed plain tensor and DTensor"));
  });
}

TEST(AloneParameters, AreNotWrittenThroughViewsThatAreCopies) {
  run_ranks(3, [] {
    const auto mesh = init_device_mesh(at::kCPU, {3}, {"dp"});
    auto mine = make_user(arithmetic()[0].use);
    fully_shard(*mine, {.mesh = mesh});
    const torch::NoGradGuard no_grad;
    auto view = mine->w.view({2, 3, 6});
    expect_close(view, uniform({6, 6}, 1).view({2, 3, 6}), "view");
    EXPECT_THAT(
        error_of([&] { view.mul_(2); }),
        testing::HasSubstr("the write would not reach that tensor"));
    mine->w.mul_(2);
    EXPECT_THAT(
        error_of([&] { view.sum(); }), testing::HasSubstr("is out of date"));
  });
}

// Optimizer states made from parameters are ordinary DTensors.
TEST(AloneParameters, CreateDTensorOptimizerState) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"dp"});
    auto mine = make_user(arithmetic()[0].use);
    fully_shard(*mine, {.mesh = mesh});
    const torch::NoGradGuard no_grad;
    auto state = torch::zeros_like(mine->w);
    state.mul_(0.9).add_(torch::ones_like(DTensor(mine->w).detach()) * 2);
    const auto gradient =
        distribute_tensor(uniform({6, 6}, 5), mesh, {Shard(0)}, std::nullopt);
    state.add_(gradient);
    EXPECT_EQ(detail::unsharded_source_of(state), nullptr);
    expect_close(state, uniform({6, 6}, 5) + 2, "state");
  });
}

double loss_with_penalty(
    User& user,
    const at::Tensor& x,
    const std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>&
        add) {
  user->zero_grad();
  const auto penalty = user->w.pow(2).sum() + user->gain.pow(2).sum();
  const auto loss = add(user(x).square().mean(), penalty);
  loss.backward();
  return full(loss).item<double>();
}

const auto kScaled = [](M& m, X x) { return (x * m.gain).matmul(m.w.t()); };

// loss + 0.1 * penalty is correct for parameters that the model also uses.
TEST(RegularisedLoss, IsThePlainOneUnderFullyShard) {
  using Add = std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>;
  const std::vector<Add> ways = {
      [](const at::Tensor& loss, const at::Tensor& penalty) {
        return loss + 0.1 * full_tensor(penalty);
      },
      [](const at::Tensor& loss, const at::Tensor& penalty) {
        return loss + 0.1 * penalty;
      },
      [](const at::Tensor& loss, const at::Tensor& penalty) {
        return torch::stack({loss, penalty * 0.1}).sum();
      }};
  for (size_t way = 0; way < ways.size(); ++way) {
    for (const int64_t ranks : {1, 2, 3}) {
      auto plain = make_user(kScaled);
      loss_with_penalty(plain, input, ways[way]);
      run_ranks(ranks, [&] {
        const auto mesh = init_device_mesh(at::kCPU, {ranks}, {"dp"});
        for (const bool reshards : {true, false}) {
          auto mine = make_user(kScaled);
          fully_shard(*mine, {.mesh = mesh, .reshard_after_forward = reshards});
          for (int pass = 0; pass < 2; ++pass) {
            auto alone = make_user(kScaled);
            EXPECT_NEAR(
                loss_with_penalty(mine, rows_of(input, mesh), ways[way]),
                loss_with_penalty(alone, rows_of(input, mesh), ways[way]),
                1e-12);
            expect_same_gradients(
                *mine, *plain, c10::str("way ", way, ", ", ranks, " ranks"));
          }
        }
      });
    }
  }
}

TEST(RegularisedLoss, IsThePlainOneWithTensorParallelism) {
  const auto loss_of = [](Mlp& mlp, const at::Tensor& x) {
    mlp->zero_grad();
    auto penalty = mlp->w1->weight.pow(2).sum() + mlp->w1->bias.pow(2).sum();
    penalty = penalty + mlp->w2->weight.pow(2).sum();
    (mlp(x).square().mean() + 0.1 * full_tensor(penalty)).backward();
  };
  for (const bool shards : {false, true}) {
    for (const int64_t dp : {1, 2, 3}) {
      auto plain = filled(Mlp(6, 10));
      loss_of(plain, input);
      run_ranks(2 * dp, [&] {
        const auto mesh = init_device_mesh(at::kCPU, {dp, 2}, {"dp", "tp"});
        auto mine = filled(Mlp(6, 10));
        parallelize_module(*mine, mesh["tp"], mlp_plan());
        if (shards) {
          fully_shard(*mine, {.mesh = mesh["dp"]});
        } else {
          replicate(*mine, mesh["dp"]);
        }
        loss_of(mine, rows_of(input, mesh["dp"]));
        expect_same_gradients(*mine, *plain, c10::str(dp, " x 2, ", shards));
      });
    }
  }
}

TEST(RegularisedLoss, IsThePlainOneWithReplicas) {
  for (const int64_t ranks : {1, 2, 3}) {
    auto plain = make_user(kScaled);
    const auto add = [](const at::Tensor& loss, const at::Tensor& penalty) {
      return loss + 0.1 * full_tensor(penalty);
    };
    loss_with_penalty(plain, input, add);
    run_ranks(ranks, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {ranks}, {"dp"});
      auto mine = make_user(kScaled);
      replicate(*mine, mesh);
      loss_with_penalty(mine, rows_of(input, mesh), add);
      expect_same_gradients(*mine, *plain, c10::str(ranks, " ranks"));
    });
  }
}

struct ManyImpl : torch::nn::Module {
  explicit ManyImpl(int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      all.push_back(register_parameter(c10::str("p", i), torch::ones({2})));
    }
  }
  std::vector<at::Tensor> all;
};
TORCH_MODULE(Many);

// Counts the parameter states that forward and backward calls read.
int64_t states_read_by_calls(int64_t parameters) {
  int64_t read = 0;
  run_ranks(1, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {1}, {"dp"});
    Many many(parameters);
    fully_shard(*many, {.mesh = mesh});
    const auto unit = detail::unit_of(many->all[0]);
    auto sum = many->all[0] * torch::ones({2}); // gathers
    const auto before = unit->state_read_count();
    for (size_t i = 1; i < 9; ++i) {
      sum = sum + many->all[i] * torch::ones({2});
    }
    sum.sum().backward();
    read = unit->state_read_count() - before;
  });
  return read;
}

TEST(UnitCalls, CheckOnlyTheirOwnParameter) {
  EXPECT_EQ(states_read_by_calls(20), states_read_by_calls(500));
  EXPECT_LE(states_read_by_calls(500), 40);
}

// A change of another parameter is detected when that parameter is used.
TEST(UnitCalls, SeeChangesOfEveryParameter) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"dp"});
    auto mine = make_user(kScaled);
    auto plain = make_user(kScaled);
    fully_shard(*mine, {.mesh = mesh}).set_reshard_after_backward(false);
    for (int step = 0; step < 3; ++step) {
      for (auto* each : {&mine, &plain}) {
        (*each)->zero_grad();
        (*each)(input).square().mean().backward();
        const torch::NoGradGuard no_grad;
        (*each)->w.data().mul_(1.5); // through an alias, one of two parameters
      }
      expect_close(mine(input), plain(input), c10::str("step ", step));
      expect_same_gradients(*mine, *plain, c10::str("step ", step));
    }
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
