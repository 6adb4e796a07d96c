// SPDX-License-Identifier: BSD-3-Clause
// Tests of operators without a rule in an on_missing_rule() scope.
#include <dtensor/ops/explicit_redistribution.h>
#include <dtensor/ops/on_missing_rule.h>
#include <dtensor/ops/register_sharding.h>
#include <tests/warnings_of.h>
#include <torch/library.h>

#include "tests/ops/against_plain.h"

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::against_plain;

at::Tensor thrice(const at::Tensor& t) {
  return t * 3;
}
at::Tensor& thrice_(at::Tensor& t) {
  return t.mul_(3);
}
at::Tensor scaled(const at::Tensor& t, const at::Tensor& number) {
  return t * number;
}
at::Tensor noisy(const at::Tensor& t) {
  return t + at::rand_like(t);
}

TORCH_LIBRARY(on_missing_rule_test, m) {
  m.def("thrice(Tensor t) -> Tensor");
  m.def("thrice_(Tensor(a!) t) -> Tensor(a!)");
  m.def("without_meta(Tensor t) -> Tensor");
  m.def("scaled(Tensor t, Tensor number) -> Tensor");
  m.def("noisy(Tensor t) -> Tensor", {at::Tag::nondeterministic_seeded});
}
// Autograd falls through, so it records the operators that the kernel calls.
TORCH_LIBRARY_IMPL(on_missing_rule_test, AutogradCPU, m) {
  m.impl("thrice", torch::CppFunction::makeFallthrough());
  m.impl("without_meta", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(on_missing_rule_test, CPU, m) {
  m.impl("thrice", thrice);
  m.impl("thrice_", thrice_);
  m.impl("without_meta", thrice);
  m.impl("scaled", scaled);
  m.impl("noisy", noisy);
}

at::Tensor call(const std::string& name, const at::Tensor& t) {
  torch::jit::Stack stack{t};
  c10::Dispatcher::singleton()
      .findSchemaOrThrow(("on_missing_rule_test::" + name).c_str(), "")
      .callBoxed(&stack);
  return stack[0].toTensor();
}

// Checks all layouts on the meshes of check_cases, with gradients.
void expect_as_plain(std::vector<OpCase> cases) {
  for (auto& c : cases) {
    c.fn = [fn = c.fn](const TensorList& in) {
      const auto whole = on_missing_rule(Replicate());
      return fn(in);
    };
  }
  check_cases(cases);
}

TEST(OnMissingRule, PlainNumbersStayPlain) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto full = numbers({4, 3}, 1);
    const torch::NoGradGuard no_grad;
    const auto scope = on_missing_rule(Replicate());
    const auto y =
        c10::Dispatcher::singleton()
            .findSchemaOrThrow("on_missing_rule_test::scaled", "")
            .typed<decltype(scaled)>()
            .call(
                place(full, mesh, {Shard(0)}), at::full({}, 3.0, at::kDouble));
    EXPECT_EQ(DTensor(y).placements()[0], Replicate());
    EXPECT_TRUE(same(full * 3, DTensor(y).full_tensor()));
    EXPECT_EQ(scope.costs().at("on_missing_rule_test::scaled").calls, 1);
  });
}

TEST(OnMissingRule, OperatorsWithAKernelRunReplicated) {
  expect_as_plain({
      unary(
          "pdist",
          numbers({5, 4}, 1),
          [](auto& t) { return at::_pdist_forward(t); }),
      unary(
          "avg_pool2d",
          numbers({3, 2, 4, 5}, 1),
          [](auto& t) { return at::avg_pool2d(t, 2); }),
      {"conv2d",
       {numbers({3, 2, 4, 5}, 1), numbers({4, 2, 3, 3}, 2)},
       [](const TensorList& in) {
         return TensorList{at::conv2d(in[0], in[1])};
       }},
      {"put",
       {numbers({5, 4}, 1), numbers({2}, 2)},
       [](const TensorList& in) {
         const auto where = at::Tensor(in[1].detach()).abs().to(at::kLong);
         return TensorList{at::put(in[0], where.remainder(20), in[1])};
       }},
  });
}

TEST(OnMissingRule, CompositeOperatorsRunReplicated) {
  expect_as_plain({
      unary(
          "trapezoid",
          numbers({5, 4}, 1),
          [](auto& t) { return at::trapezoid(t, 0.3, 0); }),
      unary(
          "avg_pool1d",
          numbers({3, 2, 8}, 1),
          [](auto& t) { return at::avg_pool1d(t, 2); }),
      {"bilinear",
       {numbers({3, 2}, 1), numbers({3, 4}, 2), numbers({5, 2, 4}, 3)},
       [](const TensorList& in) {
         return TensorList{at::bilinear(in[0], in[1], in[2], {})};
       }},
  });
}

TEST(OnMissingRule, OfAnotherLibrary) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto full = numbers({5, 4}, 1);
    const auto x = leaf(place(full, mesh, {Shard(0)}));
    const auto whole = on_missing_rule(Replicate());
    const auto y = call("thrice", x);
    EXPECT_TRUE(same(DTensor(y.detach()).full_tensor(), full * 3));
    (y * y).sum().backward();
    EXPECT_EQ(DTensor(x.grad()).placements(), Placements{Shard(0)});
    EXPECT_TRUE(same(DTensor(x.grad()).full_tensor(), full * 18));
    const torch::NoGradGuard no_grad;
    EXPECT_TRUE(same(DTensor(call("thrice", x)).full_tensor(), full * 3));
  });
}

TEST(OnMissingRule, AnOperatorInPlaceKeepsItsLayout) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto full = numbers({5, 4}, 1);
    const auto index = at::tensor({3, 0}, at::kLong);
    const at::Tensor rows = place(index, mesh, {Replicate()});
    const auto source = numbers({2}, 5);
    const at::Tensor values = place(source, mesh, {Replicate()});
    const auto truth = (full * 2).put_(index, source);
    const auto whole = on_missing_rule(Replicate());
    for (const bool records : {false, true}) {
      const at::AutoGradMode mode(records);
      const auto x = leaf(place(full, mesh, {Shard(0)}));
      const auto y = (x * 2).put_(rows, values);
      EXPECT_EQ(DTensor(y).placements(), Placements{Shard(0)});
      EXPECT_TRUE(same(DTensor(y).full_tensor().detach(), truth));
      if (records) {
        const auto plain = leaf(full);
        (plain * 2).put_(index, source).pow(2).sum().backward();
        y.pow(2).sum().backward();
        EXPECT_TRUE(same(DTensor(x.grad()).full_tensor(), plain.grad()));
      }
    }
    at::Tensor x = place(full, mesh, {Shard(0)});
    const torch::NoGradGuard no_grad;
    call("thrice_", x);
    EXPECT_TRUE(same(DTensor(x).full_tensor(), full * 3));
  });
}

TEST(OnMissingRule, IntoOut) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    at::Tensor out = place(at::zeros({3, 4, 4}, at::kDouble), mesh, {Shard(1)});
    const auto whole = on_missing_rule(Replicate());
    at::avg_pool2d_out(out, place(numbers({3, 8, 8}, 1), mesh, {Shard(0)}), 2);
    EXPECT_EQ(DTensor(out).placements(), Placements{Shard(1)});
    EXPECT_TRUE(same(
        DTensor(out).full_tensor(), at::avg_pool2d(numbers({3, 8, 8}, 1), 2)));
  });
}

// An operator with a rule but no meta kernel runs on replicated operands.
TEST(OnMissingRule, AnOperatorWithoutMetaKernelRunsReplicated) {
  register_sharding(
      "on_missing_rule_test::without_meta", [](const OpCall&, int64_t) {
        return Strategies{{.outputs = {Shard(0)}, .inputs = {Shard(0)}}};
      });
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto full = numbers({5, 4}, 1);
    const auto x = leaf(place(full, mesh, {Shard(1)}));
    const auto refused = error_of([&] { call("without_meta", x); });
    EXPECT_NE(refused.find("(no meta kernel)"), refused.npos) << refused;
    const auto whole = on_missing_rule(Replicate());
    const auto y = call("without_meta", x);
    EXPECT_TRUE(same(DTensor(y.detach()).full_tensor(), full * 3));
    (y * y).sum().backward();
    EXPECT_TRUE(same(DTensor(x.grad()).full_tensor(), full * 18));
    EXPECT_EQ(whole.costs().at("on_missing_rule_test::without_meta").calls, 1);
  });
}

// Decisions made inside the scope are not used outside.
TEST(OnMissingRule, EndsWithItsScope) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const at::Tensor x = place(numbers({4, 4}, 1), mesh, {Shard(0)});
    const auto text =
        "[aten::_pdist_forward] no sharding rule; the operands are f64[4, 4] "
        "on (2): S(0). Redistribute them to Replicate first, or call it on the "
        "local tensors.";
    for (int again = 0; again < 2; ++again) {
      EXPECT_EQ(error_of([&] { at::_pdist_forward(x); }), text);
      const auto whole = on_missing_rule(Replicate());
      EXPECT_TRUE(same(
          DTensor(at::_pdist_forward(x)).full_tensor(),
          at::_pdist_forward(numbers({4, 4}, 1))));
    }
    EXPECT_EQ(error_of([&] { at::_pdist_forward(x); }), text);
  });
}

TEST(OnMissingRule, CountsItsCollectives) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const at::Tensor x = place(numbers({4, 4}, 1), mesh, {Shard(0)});
    const at::Tensor all = place(numbers({4, 4}, 1), mesh, {Replicate()});
    CommDebugMode comm;
    const auto outer = on_missing_rule(Replicate());
    at::_pdist_forward(x);
    {
      const auto inner = on_missing_rule(Replicate());
      at::_pdist_forward(x);
      at::_pdist_forward(all); // replicated operands need no scope
      at::_pdist_forward(leaf(x));
      x.exp(); // has a rule
      const auto& cost = inner.costs().at("aten::_pdist_forward");
      EXPECT_EQ(cost.calls, 2);
      EXPECT_EQ(cost.collectives, 2);
      EXPECT_EQ(inner.costs().size(), 1U);
    }
    const auto& cost = outer.costs().at("aten::_pdist_forward");
    EXPECT_EQ(cost.calls, 3);
    EXPECT_EQ(cost.collectives, comm.get_total_counts());
    EXPECT_EQ(cost.wire_bytes, comm.total().wire_bytes);
    EXPECT_EQ(cost.wire_bytes, 3 * 8 * 8);
  });
}

TEST(OnMissingRule, WarnsOnceForAnOperator) {
  std::vector<std::string> texts;
  run_ranks(2, [&](int64_t) {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const test_text::Warnings warnings;
    const at::Tensor x = place(numbers({2, 2, 3}, 1), mesh, {Shard(0)});
    const at::Tensor half = place(numbers({1, 2, 3}, 2), mesh, {Shard(1)});
    for (int call = 0; call < 3; ++call) {
      const auto whole = on_missing_rule(Replicate());
      at::glu_jvp(half, x, x, 0);
    }
    static std::mutex mutex;
    const std::lock_guard<std::mutex> lock(mutex);
    texts.insert(texts.end(), warnings.texts().begin(), warnings.texts().end());
  });
  ASSERT_EQ(texts.size(), 1U);
  EXPECT_EQ(
      texts[0],
      "[aten::glu_jvp] has no sharding rule: every rank gathers "
      "the operands and computes the full result. Register a rule with "
      "register_sharding().");
}

TEST(OnMissingRule, RandomOperatorsAreRefused) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const at::Tensor x = place(numbers({4, 4}, 1), mesh, {Shard(0)});
    const auto whole = on_missing_rule(Replicate());
    const auto text = error_of([&] { call("noisy", x); });
    EXPECT_NE(text.find("It draws random numbers"), text.npos) << text;
    EXPECT_TRUE(whole.costs().empty());
  });
}

TEST(OnMissingRule, IsImplicitRedistribution) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto x = place(numbers({4, 4}, 1), mesh, {Shard(0)});
    const auto whole = on_missing_rule(Replicate());
    const ExplicitRedistributionContext only_explicit;
    const auto text =
        "[aten::_pdist_forward] Implicit redistribution of argument \"self\" "
        "from "
        "f64[4, 4] on (2): S(0) to R. Redistribute before the call, or allow "
        "it there by an ExplicitRedistributionContext with enable = false.";
    EXPECT_EQ(error_of([&] { at::_pdist_forward(x); }), text);
    EXPECT_EQ(error_of([&] { at::_pdist_forward(leaf(x)); }), text);
    EXPECT_TRUE(whole.costs().empty());
  });
}

TEST(OnMissingRule, AcceptsReplicateOnly) {
  EXPECT_EQ(
      test_text::error_of<c10::ValueError>(
          [] { const auto none = on_missing_rule(Shard(0)); }),
      "[on_missing_rule] operands of an operator without a rule cannot become "
      "S(0): its result on shards is unknown. Pass Replicate().");
  // A scope whose constructor threw has no effect.
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const at::Tensor x = place(numbers({4, 4}, 1), mesh, {Shard(0)});
    EXPECT_THROW(OnMissingRule{Partial()}, c10::ValueError);
    EXPECT_THROW(at::_pdist_forward(x), c10::NotImplementedError);
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
