// SPDX-License-Identifier: BSD-3-Clause
// Random numbers of ranks equal those of a program without ranks. Each case
// runs once outside of run_ranks() and once on every rank, and must give the
// same bits.
#include <dtensor/comm/rank_generator.h>
#include <dtensor/comm/ranks.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <set>
#include <string>
#include <thread>

#include "expect_error.h"

namespace dtensor {
namespace TEST_SOURCE {

using Draw = std::function<at::Tensor()>;

// Operator of a program that draws for each tensor of a list.
at::Tensor noise_for(
    at::TensorList tensors,
    std::optional<at::Generator> generator) {
  at::Tensor sum = torch::zeros({5});
  for (const at::Tensor& tensor : tensors) {
    sum += torch::randn({5}, generator) * tensor.dim();
  }
  return sum;
}

TORCH_LIBRARY(dtensor_rank_generator_test, m) {
  m.def(
      "noise_for(Tensor[] tensors, Generator? generator=None) -> Tensor",
      noise_for);
}

at::Tensor call_noise_for(const std::vector<at::Tensor>& tensors) {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow("dtensor_rank_generator_test::noise_for", "")
      .typed<decltype(noise_for)>()
      .call(tensors, std::nullopt);
}

struct Case {
  const char* name;
  Draw draw;
};

std::ostream& operator<<(std::ostream& os, const Case& c) {
  return os << c.name;
}

const Case kCases[] = {
    {"rand", [] { return torch::rand({20}); }},
    {"rand_f64", [] { return torch::rand({20}, at::kDouble); }},
    {"randn", [] { return torch::randn({5}); }},
    {"randn_large", [] { return torch::randn({100}); }},
    {"randint", [] { return torch::randint(100, {20}); }},
    {"randint_low", [] { return torch::randint(5, 100, {20}); }},
    {"randperm", [] { return torch::randperm(20); }},
    {"rand_like", [] { return torch::rand_like(torch::ones({20})); }},
    {"randn_like", [] { return torch::randn_like(torch::ones({20})); }},
    {"randint_like", [] { return torch::randint_like(torch::ones({20}), 9); }},
    {"normal_scalars", [] { return at::normal(1.0, 2.0, {20}); }},
    {"normal_tensor", [] { return at::normal(torch::ones({20}), 2.0); }},
    {"normal_tensors",
     [] { return at::normal(torch::ones({20}), torch::ones({20})); }},
    {"normal_", [] { return torch::empty({20}).normal_(); }},
    {"uniform_", [] { return torch::empty({20}).uniform_(-1, 1); }},
    {"random_", [] { return torch::empty({20}, at::kLong).random_(); }},
    {"exponential_", [] { return torch::empty({20}).exponential_(); }},
    {"cauchy_", [] { return torch::empty({20}).cauchy_(); }},
    {"log_normal_", [] { return torch::empty({20}).log_normal_(); }},
    {"geometric_", [] { return torch::empty({20}).geometric_(0.3); }},
    {"bernoulli", [] { return torch::bernoulli(torch::full({20}, 0.5)); }},
    {"bernoulli_p", [] { return torch::bernoulli(torch::ones({20}), 0.5); }},
    {"bernoulli_", [] { return torch::empty({20}).bernoulli_(0.5); }},
    {"bernoulli_tensor",
     [] { return torch::empty({20}).bernoulli_(torch::full({20}, 0.5)); }},
    {"multinomial",
     [] { return torch::multinomial(torch::ones({10}), 20, true); }},
    {"multinomial_without",
     [] { return torch::multinomial(torch::ones({10}), 5); }},
    {"poisson", [] { return torch::poisson(torch::full({20}, 4.0)); }},
    {"binomial",
     [] {
       return torch::binomial(torch::full({20}, 9.0), torch::full({20}, 0.5));
     }},
    {"gamma", [] { return at::_standard_gamma(torch::full({20}, 2.0)); }},
    {"dirichlet",
     [] {
       return at::_sample_dirichlet(torch::ones({4, 5}));
     }},
    {"dropout", [] { return torch::dropout(torch::ones({40}), 0.5, true); }},
    {"native_dropout",
     [] {
       return std::get<0>(at::native_dropout(torch::ones({40}), 0.5, true));
     }},
    {"dropout_with_grad",
     [] {
       const at::Tensor x = torch::ones({40}).requires_grad_();
       const at::Tensor y = torch::dropout(x, 0.5, true);
       y.sum().backward();
       EXPECT_TRUE(torch::equal(x.grad(), y.detach()));
       return x.grad();
     }},
    {"alpha_dropout",
     [] { return torch::alpha_dropout(torch::ones({40}), 0.5, true); }},
    {"feature_dropout",
     [] {
       return torch::feature_dropout(torch::ones({4, 9, 2}), 0.5, true);
     }},
    {"rrelu", [] { return torch::rrelu(-torch::ones({20}), 0.1, 0.4, true); }},
    {"attention",
     [] {
       const at::Tensor x = torch::ones({1, 2, 5, 4});
       return at::scaled_dot_product_attention(x, x, x, {}, 0.5);
     }},
    {"lstm_dropout",
     [] {
       torch::nn::LSTM lstm(
           torch::nn::LSTMOptions(3, 4).num_layers(2).dropout(0.5));
       return std::get<0>(lstm->forward(torch::ones({2, 1, 3}))).detach();
     }},
    {"linear", [] { return torch::nn::Linear(7, 5)->weight.detach().clone(); }},
    {"kaiming",
     [] {
       return torch::nn::init::kaiming_normal_(torch::empty({6, 5}));
     }},
    {"inference_mode",
     [] {
       const c10::InferenceMode inference;
       return torch::randn({20});
     }},
    {"own_generator",
     [] {
       at::Generator own = at::detail::createCPUGenerator(5);
       return torch::randn({20}, own);
     }},
    {"list",
     [] {
       return call_noise_for({torch::ones(2), torch::ones(2)});
     }},
    {"list_beside_meta",
     [] {
       return call_noise_for({torch::ones(2), torch::empty(2, at::kMeta)});
     }},
    {"default_generator_by_name",
     [] { return torch::randn({20}, at::detail::getDefaultCPUGenerator()); }},
};

class RankGenerator : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(
    Random,
    RankGenerator,
    testing::ValuesIn(kCases),
    [](const auto& param) { return std::string(param.param.name); });

// Draws twice: the second draw continues from the generator's state after the
// first.
std::vector<at::Tensor> twice(const Draw& draw) {
  at::Tensor first = draw().clone();
  return {first, draw().clone()};
}

TEST_P(RankGenerator, DrawsWhatASingleProgramDraws) {
  const Draw& draw = GetParam().draw;
  torch::manual_seed(42);
  const auto expected = twice(draw);
  const at::Tensor after = torch::rand({3});

  torch::manual_seed(42);
  run_ranks(4, [&](int64_t) {
    const auto got = twice(draw);
    EXPECT_TRUE(torch::equal(got[0], expected[0]));
    EXPECT_TRUE(torch::equal(got[1], expected[1]));
  });
  // The caller's generator continues after the state of the ranks.
  EXPECT_TRUE(torch::equal(torch::rand({3}), after));
}

// The expected numbers are from Python: torch.manual_seed(42); torch.rand(3).
TEST(RankGenerator, DrawsWhatPythonDraws) {
  const auto check = [] {
    torch::manual_seed(42);
    EXPECT_TRUE(torch::allclose(
        torch::rand({3}),
        torch::tensor({0.88226926F, 0.91500395F, 0.38286376F}),
        0,
        1e-7));
  };
  check();
  run_ranks(2, check);
  check();
}

TEST(RankGenerator, IsSeededByManualSeedInTheRankAlone) {
  torch::manual_seed(3);
  const at::Tensor expected = torch::randn({20});
  torch::manual_seed(0);
  const at::Tensor unseeded = torch::randn({20});
  torch::manual_seed(0);
  run_ranks(4, [&](int64_t rank) {
    const GroupPtr group = new_group({0, 1, 2, 3}, "world");
    if (rank == 1) {
      torch::manual_seed(3);
    }
    group->barrier();
    EXPECT_TRUE(
        torch::equal(torch::randn({20}), rank == 1 ? expected : unseeded));
    group->barrier();
    // The same seed restarts the sequence.
    for (int i = 0; i < 2; ++i) {
      i == 0 ? torch::manual_seed(3) : (void)seed_rank_generator(3);
      EXPECT_TRUE(torch::equal(torch::randn({20}), expected));
    }
    EXPECT_EQ(at::detail::getDefaultCPUGenerator().current_seed(), 3U);
  });
}

TEST(RankGenerator, SavesAndRestoresItsStatePerRank) {
  run_ranks(3, [](int64_t rank) {
    torch::manual_seed(static_cast<uint64_t>(rank));
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    const at::Tensor state = generator.get_state();
    const at::Tensor first = torch::randn({9});
    EXPECT_FALSE(torch::equal(torch::randn({9}), first));
    generator.set_state(state);
    EXPECT_TRUE(torch::equal(torch::randn({9}), first));
    torch::manual_seed(static_cast<uint64_t>(rank));
    EXPECT_TRUE(torch::equal(torch::randn({9}), first));
  });
}

TEST(RankGenerator, LeavesTheCallersAloneAfterAFailure) {
  torch::manual_seed(1);
  const at::Tensor expected = torch::rand({3});
  torch::manual_seed(1);
  EXPECT_THROW(
      run_ranks(
          2,
          [] {
            torch::rand({7});
            TORCH_CHECK(false, "stop");
          }),
      c10::Error);
  EXPECT_TRUE(torch::equal(torch::rand({3}), expected));
}

at::Tensor drawn_with(uint64_t seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  return torch::randn({20}, generator);
}

// Handles to the default generator from before the run are valid again
// afterwards.
TEST(RankGenerator, LeavesHandlesOfTheCallerValid) {
  at::Generator held = at::detail::getDefaultCPUGenerator();
  run_ranks(
      2, [&] { EXPECT_FALSE(at::detail::getDefaultCPUGenerator() == held); });
  EXPECT_TRUE(at::detail::getDefaultCPUGenerator() == held);
  held.set_current_seed(5);
  EXPECT_TRUE(torch::equal(torch::randn({20}), drawn_with(5)));
}

// A caller's handle to the default generator refers to the rank's generator
// inside a rank.
TEST(RankGenerator, IsMeantByAHandleOfTheCallerToo) {
  at::Generator held = at::detail::getDefaultCPUGenerator();
  run_ranks(2, [&](int64_t rank) {
    torch::manual_seed(static_cast<uint64_t>(rank));
    EXPECT_TRUE(torch::equal(
        torch::randn({20}, held), drawn_with(static_cast<uint64_t>(rank))));
  });
}

TEST(RankGenerator, IsExchangedWhileAnyRanksRun) {
  const at::Generator held = at::detail::getDefaultCPUGenerator();
  Ranks inner(1);
  Ranks outer(1);
  EXPECT_TRUE(at::detail::getDefaultCPUGenerator() == held);
  outer.run([&] {
    std::thread([&] { inner.run([] { torch::manual_seed(7); }); }).join();
    EXPECT_FALSE(at::detail::getDefaultCPUGenerator() == held);
    torch::manual_seed(8);
    EXPECT_TRUE(torch::equal(torch::randn({20}), drawn_with(8)));
  });
  EXPECT_TRUE(at::detail::getDefaultCPUGenerator() == held);
}

TEST(RankGenerator, StaysTheProcessGeneratorOnRequest) {
  const at::Generator held = at::detail::getDefaultCPUGenerator();
  torch::manual_seed(4);
  const at::Tensor expected = torch::randn({20});
  const at::Tensor after = torch::randn({20});
  torch::manual_seed(4);
  run_ranks(
      1,
      [&] {
        EXPECT_TRUE(at::detail::getDefaultCPUGenerator() == held);
        EXPECT_TRUE(torch::equal(torch::randn({20}), expected));
      },
      {.own_generators = false});
  EXPECT_TRUE(torch::equal(torch::randn({20}), after));
}

// Operators that draw through other operators, or do not draw at all if their
// tensor is empty.
const std::set<std::string> kCounted = {
    "aten::alpha_dropout",
    "aten::alpha_dropout_",
    "aten::dropout",
    "aten::dropout_",
    "aten::feature_alpha_dropout",
    "aten::feature_alpha_dropout_",
    "aten::feature_dropout",
    "aten::feature_dropout_",
    "aten::native_dropout",
    "aten::rand_like",
    "aten::randint_like",
    "aten::randn_like"};

// context_parallel, an optional module, intercepts attention. CheckReplicas
// intercepts the operator with which a backward pass begins.
const std::set<std::string> kInterceptedByOthers = {
    "aten::_native_multi_head_attention",
    "aten::_transformer_encoder_layer_fwd",
    "aten::ones_like",
    "aten::scaled_dot_product_attention"};

TEST(RankGenerator, CoversEveryOperatorThatTakesAGenerator) {
  run_ranks(1, [] {});
  auto& dispatcher = c10::Dispatcher::singleton();
  int64_t covered = 0;
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (!op || name.name.rfind("aten::", 0) != 0 ||
        kInterceptedByOthers.count(name.name) == 1) {
      continue;
    }
    const bool takes_one =
        c10::str(op->schema()).find("Generator? generator") !=
        std::string::npos;
    EXPECT_EQ(
        op->hasKernelForDispatchKey(c10::DispatchKey::DeferredInit),
        takes_one || kCounted.count(name.name) == 1)
        << name;
    covered += takes_one ? 1 : 0;
  }
  EXPECT_GT(covered, 50);
}

TEST(RankGenerator, DrawsASeedOfItsOwn) {
  run_ranks(2, [] {
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    const uint64_t seed = generator.seed();
    EXPECT_EQ(generator.current_seed(), seed);
    EXPECT_TRUE(torch::equal(torch::randn({20}), drawn_with(seed)));
    EXPECT_NE(generator.seed(), seed);
  });
}

std::string error_of_offset() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  return test::error_of([&] { generator.set_offset(4); }) + "; " +
      test::error_of([&] { static_cast<void>(generator.get_offset()); });
}

TEST(RankGenerator, HasNoOffset) {
  const auto expected = error_of_offset();
  run_ranks(2, [&] { EXPECT_EQ(error_of_offset(), expected); });
}

// Removes the stream of DTensors, as in a state without one.
at::Tensor without_stream(const at::Tensor& state) {
  at::Tensor result = state.clone();
  for (int64_t word = 0; word < 5; ++word) {
    result.narrow(0, 24 + 8 * word + 4, 4).zero_();
  }
  return result;
}

TEST(RankGenerator, KeepsItsStreamAtAStateWithoutOne) {
  run_ranks(2, [] {
    torch::manual_seed(5);
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    const at::Tensor state = generator.get_state();
    torch::rand({3});
    generator.set_state(without_stream(state));
    EXPECT_TRUE(torch::equal(generator.get_state(), state));
    EXPECT_FALSE(torch::equal(without_stream(state), state));
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
