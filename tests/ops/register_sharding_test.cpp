// SPDX-License-Identifier: BSD-3-Clause
// Tests of rules that programs register: for their own operators, and in place
// of built-in rules.
#include "tests/ops/against_plain.h"

#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/install/kernels_impl.h>
#include <dtensor/ops/register_sharding.h>
#include <tests/error_of.h>
#include <torch/library.h>

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::against_plain;

OpRule by_dim(DimRule dim_rule) {
  OpRule rule;
  rule.dim_rule = std::move(dim_rule);
  return rule;
}

// Replaces a built-in rule until the end of the test.
class Overridden {
 public:
  Overridden(std::string name, OpRule rule)
      : name_(std::move(name)),
        ours_(*RuleRegistry::global().find(parse_operator_name(name_))) {
    register_sharding(name_, std::move(rule));
  }
  Overridden(std::string name, DimRule rule)
      : Overridden(std::move(name), by_dim(std::move(rule))) {}
  // Restores the registry directly, because register_sharding() would keep
  // shapes and traits of the other rule.
  ~Overridden() {
    detail::registered_rules().replace(name_, ours_);
    const auto name = parse_operator_name(name_);
    auto& dispatcher = c10::Dispatcher::singleton();
    detail::reinstall_kernels(*dispatcher.findSchema(name));
    if (const auto in_place =
            dispatcher.findSchema({name.name + "_", name.overload_name})) {
      detail::reinstall_kernels(*in_place);
    }
  }
  Overridden(const Overridden&) = delete;
  Overridden& operator=(const Overridden&) = delete;

 private:
  std::string name_;
  OpRule ours_;
};

Strategies nothing_cut(const OpCall&, int64_t) {
  return {};
}

Placement layout_of(const at::Tensor& t) {
  return DTensor(t).placements()[0];
}

at::Tensor rows(const DeviceMesh& mesh) {
  return place(numbers({4, 3}, 1), mesh, {Shard(0)});
}

TEST(RegisterSharding, ReplacesALibraryRule) {
  const auto layout = [] {
    Placement found;
    run_ranks(2, [&](int64_t rank) {
      const auto mesh = init_device_mesh(at::kCPU, {2});
      const torch::NoGradGuard no_grad;
      at::relu(rows(mesh));
      const auto warm = at::relu(rows(mesh));
      EXPECT_TRUE(same(numbers({4, 3}, 1).relu(), DTensor(warm).full_tensor()));
      if (rank == 0) {
        found = layout_of(warm);
      }
    });
    return found;
  };
  EXPECT_EQ(layout(), Shard(0));
  {
    const Overridden relu("relu", nothing_cut);
    EXPECT_EQ(layout(), Replicate());
  }
  EXPECT_EQ(layout(), Shard(0));
}

TEST(RegisterSharding, ClearsCachedDecisionsOfThisThread) {
  const auto mesh = init_device_mesh(at::kCPU, {1});
  const auto x = rows(mesh);
  const torch::NoGradGuard no_grad;
  for (int again = 0; again < 2; ++again) {
    EXPECT_EQ(layout_of(at::softmax(x, 1)), Shard(0));
  }
  const Overridden softmax("_softmax", nothing_cut);
  EXPECT_EQ(layout_of(at::softmax(x, 1)), Replicate());
}

TEST(RegisterSharding, AppliesToTheInPlaceForm) {
  const Overridden relu("relu", nothing_cut);
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const torch::NoGradGuard no_grad;
    auto whole = at::Tensor(place(numbers({4, 3}, 1), mesh, {Replicate()}));
    EXPECT_TRUE(
        same(numbers({4, 3}, 1).relu(), DTensor(whole.relu_()).full_tensor()));
    // A sharded self is redistributed to Replicate, and copied back.
    for (int round = 0; round < 2; ++round) {
      auto cut = at::Tensor(place(numbers({4, 3}, 1), mesh, {Shard(0)}));
      const CountCollectives collectives;
      cut.relu_();
      EXPECT_EQ(collectives.count(), 1);
      EXPECT_EQ(layout_of(cut), Shard(0));
      EXPECT_TRUE(same(numbers({4, 3}, 1).relu(), DTensor(cut).full_tensor()));
    }
  });
}

// A replaced rule keeps the traits of the operator: see OpTraits.
TEST(RegisterSharding, KeepsTheTraitsOfTheOperator) {
  const Overridden prod("prod", nothing_cut);
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    auto whole = numbers({4}, 1);
    whole[2] = 0; // where the formula makes plain tensors
    whole.set_requires_grad(true);
    auto replicated =
        at::Tensor(place(whole.detach(), mesh, {Replicate()})).detach();
    replicated.set_requires_grad(true);
    whole.prod().backward();
    replicated.prod().backward();
    EXPECT_TRUE(same(whole.grad(), DTensor(replicated.grad()).full_tensor()));
  });
  const auto traits = [](OpRule rule) {
    register_sharding("prod", std::move(rule));
    return RuleRegistry::global().find(parse_operator_name("prod"))->traits;
  };
  OpRule rule;
  rule.dim_rule = nothing_cut;
  EXPECT_TRUE(traits(rule).gradient_makes_plain);
  EXPECT_TRUE(traits(rule.with_traits({.formula = true})).formula);
  EXPECT_FALSE(traits(rule).gradient_makes_plain);
}

// A rule replaces built-in rules of any form. (In Python, rules of one kind
// stay in effect.)
TEST(RegisterSharding, ReplacesRulesOfAnyForm) {
  const std::vector<std::pair<std::string, TensorFn>> forms{
      {"add.Tensor", // unboxed
       [](const TensorList& in) { return TensorList{in[0] + in[1]}; }},
      {"mm", // an einsum
       [](const TensorList& in) { return TensorList{in[0].mm(in[1])}; }},
      {"matmul", // a region
       [](const TensorList& in) {
         return TensorList{at::matmul(in[0].unsqueeze(0), in[1])};
       }},
      {"linalg_vector_norm", // a kernel
       [](const TensorList& in) {
         return TensorList{
             at::linalg_vector_norm(in[0], 2, at::IntArrayRef{1}), in[1] * 1};
       }},
      {"expand", // for the full mesh
       [](const TensorList& in) {
         return TensorList{in[0].unsqueeze(2).expand({4, 4, 2}), in[1] * 1};
       }},
  };
  for (const auto& entry : forms) {
    const auto& name = entry.first;
    const auto& fn = entry.second;
    const Overridden rule(name, nothing_cut);
    run_ranks(2, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {2});
      const auto full = numbers({4, 4}, 1).abs() + 1;
      const OpCase c{name, {full, full}, fn};
      Failures failures;
      for (int again = 0; again < 2; ++again) {
        check_layouts(c, mesh, {{Shard(0)}, {Shard(0)}}, 0, failures);
        const auto x = place(full, mesh, {Shard(0)});
        EXPECT_EQ(layout_of(fn({x, x})[0]), Replicate()) << name;
      }
      EXPECT_EQ(failures.text(), "");
    });
  }
}

at::Tensor halve(const at::Tensor& t) {
  return t / 2;
}
// (n, m) times (n, 1), plus (m).
at::Tensor weigh(
    const at::Tensor& x,
    const at::Tensor& scale,
    const std::optional<at::Tensor>& offset) {
  const auto y = x * scale;
  return offset ? y + *offset : y;
}

TORCH_LIBRARY(register_sharding_test, m) {
  m.def("halve(Tensor t) -> Tensor");
  m.def("weigh(Tensor x, *, Tensor scale, Tensor? offset=None) -> Tensor");
}
// Autograd falls through, so it records the operators that the kernel calls.
TORCH_LIBRARY_IMPL(register_sharding_test, AutogradCPU, m) {
  m.impl("weigh", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(register_sharding_test, CPU, m) {
  m.impl("halve", halve);
  m.impl("weigh", weigh);
}
TORCH_LIBRARY_IMPL(register_sharding_test, Meta, m) {
  m.impl("weigh", weigh);
}

at::Tensor call_weigh(
    const at::Tensor& x,
    const at::Tensor& scale,
    const std::optional<at::Tensor>& offset) {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow("register_sharding_test::weigh", "")
      .typed<decltype(weigh)>()
      .call(x, scale, offset);
}

Strategies weigh_strategies(const OpCall& call, int64_t) {
  Strategies all{
      {.outputs = {Shard(0)}, .inputs = {Shard(0), Shard(0)}},
      {.outputs = {Shard(1)}, .inputs = {Shard(1), Replicate()}}};
  if (call.input("offset") != nullptr) {
    all[0].inputs.push_back(Replicate());
    all[1].inputs.push_back(Shard(0));
  }
  return all;
}

// Keyword tensors are redistributed like others, with correct values and
// gradients in all layouts.
TEST(RegisterSharding, OfTensorsThatAreKeywordArguments) {
  register_sharding("register_sharding_test::weigh", weigh_strategies);
  const auto x = numbers({5, 4}, 1);
  const auto scale = numbers({5, 1}, 2);
  check_cases({
      {"weigh",
       {x, scale, numbers({4}, 3)},
       [](const TensorList& in) {
         return TensorList{call_weigh(in[0], in[1], in[2])};
       }},
      {"weigh without offset",
       {x, scale},
       [](const TensorList& in) {
         return TensorList{call_weigh(in[0], in[1], std::nullopt)};
       }},
  });
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    CountCollectives collectives;
    const auto y = call_weigh(
        place(x, mesh, {Shard(1)}),
        place(scale, mesh, {Replicate()}),
        place(numbers({4}, 3), mesh, {Shard(0)}));
    EXPECT_EQ(layout_of(y), Shard(1));
    EXPECT_EQ(collectives.count(), 0);
    call_weigh(
        place(x, mesh, {Shard(1)}),
        place(scale, mesh, {Shard(0)}),
        place(numbers({4}, 3), mesh, {Shard(0)}));
    EXPECT_EQ(collectives.count(), 1); // the scale is gathered
  });
}

// For an operator without a meta kernel, the rule gives the result shapes.
TEST(RegisterSharding, OfAnOperatorWithoutMetaKernel) {
  OpRule rule;
  rule.dim_rule = [](const OpCall& call, int64_t) {
    Strategies all;
    for (int64_t d = 0; d < call.inputs[0].dim(); ++d) {
      all.push_back({.outputs = {Shard(d)}, .inputs = {Shard(d)}});
    }
    return all;
  };
  rule.meta = [](const OpCall& call) {
    const auto& in = *call.inputs[0].spec;
    OutputMeta out;
    out.sizes.assign(in.sizes().begin(), in.sizes().end());
    out.strides.assign(in.strides().begin(), in.strides().end());
    out.dtype = in.dtype();
    return std::vector<OutputMeta>{std::move(out)};
  };
  register_sharding("register_sharding_test::halve", std::move(rule));
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const torch::NoGradGuard no_grad;
    const auto half =
        c10::Dispatcher::singleton()
            .findSchemaOrThrow("register_sharding_test::halve", "")
            .typed<at::Tensor(const at::Tensor&)>()
            .call(rows(mesh));
    EXPECT_EQ(layout_of(half), Shard(0));
    EXPECT_TRUE(same(numbers({4, 3}, 1) / 2, DTensor(half).full_tensor()));
  });
}

// Returns the error of a call of relu with this rule.
std::string error_by(OpRule rule) {
  const auto mesh = init_device_mesh(at::kCPU, {1}, {"tp"});
  const auto x = rows(mesh);
  const Overridden relu("relu", std::move(rule));
  const torch::NoGradGuard no_grad;
  try {
    at::relu(x);
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  } catch (const c10::IndexError& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

std::string error_by(const Strategy& strategy) {
  return error_by(
      by_dim([=](const OpCall&, int64_t) { return Strategies{strategy}; }));
}

std::string error_by(const MeshStrategy& strategy) {
  OpRule rule;
  rule.mesh_rule = [=](const OpCall&) { return strategy; };
  return error_by(std::move(rule));
}

TEST(RegisterSharding, OfRulesThatDoNotFitTheCall) {
  const std::string fits =
      ", but the call has 1 and 1. Return one layout for each tensor, "
      "including each tensor of a list.";
  const Placements cut{Shard(0)};
  EXPECT_EQ(
      error_by(Strategy{cut, {}}),
      "[aten::relu] its rule gives layouts for 0 inputs and 1 output" + fits);
  EXPECT_EQ(
      error_by(Strategy{{Shard(0), Shard(0)}, cut}),
      "[aten::relu] its rule gives layouts for 1 input and 2 outputs" + fits);
  EXPECT_EQ(
      error_by(MeshStrategy{{}, {cut}}),
      "[aten::relu] its rule gives layouts for 1 input and 0 outputs" + fits);
  EXPECT_EQ(
      error_by(MeshStrategy{{cut}, {{}}}),
      "[aten::relu] 0 placements for a mesh of 1 dimension: [] on (tp=1). Pass "
      "one placement per mesh dimension.");
  const std::string no_dim =
      "[aten::relu] S(5) on mesh dim \"tp\" shards a dimension that the tensor "
      "does not have: its number of dimensions is 2. Use a dimension from -2 "
      "to 1.";
  EXPECT_EQ(error_by(Strategy{{Shard(5)}, {Shard(5)}}), no_dim);
  EXPECT_EQ(error_by(MeshStrategy{{{Shard(5)}}, {cut}}), no_dim);
}

// Returns a rule with an undefined result.
OpRule without_result() {
  auto rule = by_dim(nothing_cut);
  rule.meta = [](const OpCall&) {
    OutputMeta undefined;
    undefined.defined = false;
    return std::vector<OutputMeta>{undefined};
  };
  return rule;
}

// Results that differ from the rule's description are an error.
TEST(RegisterSharding, OfLocalKernelsThatReturnSomethingElse) {
  const auto rule = [](const at::Tensor& result) {
    auto returns = by_dim(nothing_cut);
    returns.local_kernel = [=](const c10::OperatorHandle&,
                               const Decision&,
                               torch::jit::Stack* s) { s->back() = result; };
    return returns;
  };
  const std::string end =
      " does not match f64[4, 3] on (tp=1): R; this rank has f64[4, 3] of it. "
      "If you registered a rule or local kernel, return the shape and dtype of "
      "the layout from it; otherwise, please report this.";
  EXPECT_EQ(
      error_by(rule(numbers({2, 3}, 1))),
      "[DTensor] local tensor f64[2, 3]" + end);
  EXPECT_EQ(
      error_by(rule(numbers({4, 3}, 1).to(at::kFloat))),
      "[DTensor] local tensor f32[4, 3]" + end);
  EXPECT_EQ(
      error_by(without_result()),
      "[aten::relu] its rule gives no layout for result 0. If you registered a "
      "local kernel, return the results that its MetaRule describes; "
      "otherwise, please report this.");
}

TEST(RegisterSharding, OfRulesThatReadMissingArguments) {
  EXPECT_EQ(
      error_by(by_dim([](const OpCall& call, int64_t) {
        call.arg("dim");
        return Strategies();
      })),
      "[aten::relu] its rule reads an argument \"dim\", but its schema is "
      "aten::relu(Tensor self) -> Tensor. Use a name from the schema, or check "
      "has_arg() first.");
  auto rule = without_result();
  rule.traits.size_arg = "self";
  EXPECT_EQ(
      error_by(rule),
      "[aten::relu] its rule sets the argument \"self\" to the sizes of the "
      "first result, but the call has no result. Leave OpTraits::size_arg "
      "out.");
}

TEST(RegisterSharding, Mistakes) {
  using test_text::error_of;
  EXPECT_EQ(
      error_of<c10::ValueError>(
          [] { register_sharding("mylib::nothing", nothing_cut); }),
      "[register_sharding] no library has registered an operator "
      "\"mylib::nothing\". Register it first, and name it "
      "\"library::operator.overload\".");
  EXPECT_EQ(
      error_of<c10::ValueError>([] { register_sharding("relu", OpRule()); }),
      "[register_sharding] the rule of \"relu\" is empty. Set its dim_rule, "
      "mesh_rule or kernel.");
  std::string inside;
  run_ranks(1, [&] {
    inside =
        error_of<c10::Error>([] { register_sharding("relu", nothing_cut); });
  });
  EXPECT_EQ(
      inside,
      "[register_sharding] cannot register a rule for \"relu\" inside a rank: "
      "other ranks may be calling it. Register it before the ranks start.");
}

} // namespace TEST_SOURCE
} // namespace dtensor
