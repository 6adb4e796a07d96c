// SPDX-License-Identifier: BSD-3-Clause
// explain: predictions agree with the operators' actual behavior.
#include <ATen/record_function.h>
#include <dtensor/debug/explain_call_impl.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/implicit_replication.h>
#include <dtensor/ops/on_missing_rule.h>
#include <dtensor/ops/path/decide_impl.h>
#include <dtensor/parallel/autocast.h>
#include <dtensor/parallel/context_parallel.h>
#include <tests/parallel/modules.h>
#include <tests/redistribute/layouts.h>

#include <algorithm>
#include <optional>
#include <random>
#include <sstream>

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::test_modules;
using Texts = std::vector<std::string>;

SpecPtr layout(const std::string& text) {
  return parse_spec(text).spec();
}

// Explains mm on two ranks.
ExplainedCall explain_mm(const std::string& a, const std::string& b) {
  const auto spec = [](const char* shape, const std::string& placement) {
    return layout(shape + (" on (tp=2): " + placement));
  };
  return explain("mm", {spec("f32[8, 6]", a), spec("f32[6, 4]", b)});
}

const ExplainedStrategy& taken(const ExplainedMeshDim& dim) {
  const ExplainedStrategy* found = nullptr;
  for (const auto& option : dim.strategies) {
    if (option.taken) {
      EXPECT_EQ(found, nullptr) << "two of " << dim.mesh_dim;
      found = &option;
    }
  }
  TORCH_CHECK(found != nullptr, "none of ", dim.mesh_dim);
  return *found;
}

const std::string& why_taken(const ExplainedCall& call) {
  return taken(call.mesh_dims.at(0)).why;
}

// Returns the reason for the strategy with these inputs.
std::string why(const ExplainedCall& call, const Placements& inputs) {
  for (const auto& option : call.mesh_dims.at(0).strategies) {
    if (option.strategy.inputs == inputs) {
      return option.why;
    }
  }
  return "not listed";
}

std::string message(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const c10::Error& e) {
    return e.what_without_backtrace();
  }
  return "no error";
}

template <class Fn>
void on_two_ranks(const Fn& fn) {
  run_ranks(2, [&] { fn(init_device_mesh(at::kCPU, {2}, {"tp"})); });
}

const ExplainedCall& only(const ExplainMode& mode) {
  EXPECT_EQ(mode.calls().size(), 1) << to_string(mode);
  return mode.calls().at(0);
}

// Explanations of layouts, without data.

TEST(Explain, PrintsATable) {
  EXPECT_EQ(
      to_string(explain_mm("S(1)", "R")),
      "aten::mm on (tp=2), by its rule\n"
      "  operand  layout          becomes  by     bytes\n"
      "  self     f32[8, 6] S(1)                      0\n"
      "  mat2     f32[6, 4] R     S(0)     slice      0\n"
      "  tp  inputs -> results        us  changed\n"
      "      S(0) R -> S(0)       2.0048        1  takes longer\n"
      "  *   S(1) S(0) -> P(sum)       0        1  least time\n"
      "      R S(1) -> S(1)       2.0096        2  takes longer\n"
      "      P(sum) R -> P(sum)   2.0064        1  takes longer\n"
      "      R P(sum) -> P(sum)    4.016        2  takes longer\n"
      "      R R -> R               2.02        1  takes longer\n"
      "  result  f32[8, 4] P(sum)\n");
}

TEST(Explain, GivesAReasonForEachStrategy) {
  EXPECT_EQ(
      why_taken(explain_mm("S(0)", "R")),
      "the inputs already have these layouts");
  EXPECT_EQ(
      why_taken(explain_mm("R", "R")), "the inputs already have these layouts");
  const auto call = explain_mm("S(1)", "R");
  EXPECT_EQ(why_taken(call), "least time");
  EXPECT_EQ(why(call, {Shard(0), Replicate()}), "takes longer");
  // An all-gather of 192 bytes, in which a rank sends 96, takes 2.0096 us. Two
  // ranks then read 192 + 96 bytes and write 128. Half of this work is done by
  // both ranks.
  EXPECT_EQ(call.mesh_dims[0].strategies.back().microseconds, 2.0096 + 0.0104);
  EXPECT_EQ(
      why(explain_mm("R", "R"), {Shard(0), Replicate()}),
      "all inputs are replicated, and stay so");
}

TEST(Explain, TheWrittenTensorKeepsItsLayout) {
  const auto add = [](const std::string& self) {
    return explain(
        "add_.Tensor",
        {layout("f32[8] on (tp=2): " + self),
         layout("f32[8] on (tp=2): S(0)")});
  };
  EXPECT_EQ(
      why(add("R"), {Shard(0), Shard(0)}),
      "would change self, which is written");
  EXPECT_EQ(
      why_taken(add("R")),
      "the only one in which self, which is written, keeps its layout");
  // Writing would change the layout, so no strategy is possible.
  const auto refused = explain(
      "mul_.Tensor",
      {layout("f32[8] on (tp=2): P(max)"), layout("f32[8] on (tp=2): S(0)")});
  EXPECT_EQ(refused.by, DecidedBy::kUnsupported);
  EXPECT_EQ(refused.note.find("[aten::mul_.Tensor] the in-place operator"), 0);
  EXPECT_EQ(refused.mesh_dims.size(), 1);
  EXPECT_TRUE(refused.results.empty());
  const auto on_second = explain(
      "mul_.Tensor",
      {layout("f32[8] on (dp=2, tp=2): S(0) P(max)"),
       layout("f32[8] on (dp=2, tp=2): S(0) R")});
  EXPECT_EQ(on_second.by, DecidedBy::kUnsupported);
  EXPECT_NE(on_second.note.find(" on mesh dim \"tp\""), std::string::npos)
      << on_second.note;
  EXPECT_EQ(on_second.mesh_dims.at(0).mesh_dim, "tp");
}

TEST(Explain, AvoidsShardingFewElements) {
  const auto call = explain(
      "mm",
      {layout("f32[2, 64] on (tp=4): S(1)"),
       layout("f32[64, 2] on (tp=4): R")});
  EXPECT_EQ(
      why(call, {Shard(0), Replicate()}), "shards fewer elements than ranks");
}

// Every choice has a reason text, including rare ones.
TEST(Explain, HasWordsForEveryChoice) {
  const auto option = [](Feasibility feasibility,
                         double microseconds,
                         int changes,
                         int not_sharded = 0) {
    return ScoredStrategy{{}, feasibility, microseconds, changes, not_sharded};
  };
  const auto reasons = [](const Choice& choice, const std::string& written) {
    Texts texts;
    const auto dim = detail::explain_choice(choice, "tp", written);
    for (const auto& strategy : dim.strategies) {
      texts.push_back(strategy.why);
    }
    return texts;
  };
  const auto possible = Feasibility::kPossible;
  EXPECT_EQ(
      reasons({{option(possible, 8, 2), option(possible, 8, 1)}, 1}, ""),
      (Texts{
          "equal time, changes more inputs",
          "least time, then fewest changed inputs"}));
  EXPECT_EQ(
      reasons({{option(possible, 8, 1), option(possible, 8, 1)}, 0}, ""),
      (Texts{"equal cost, listed first", "equal cost, listed later"}));
  EXPECT_EQ(
      reasons({{option(possible, 8, 1), option(possible, 8, 1, 1)}, 0}, ""),
      (Texts{"equal time, result sharded", "equal time, result not sharded"}));
  EXPECT_EQ(
      reasons({{option(possible, 0, 0)}, 0}, ""),
      (Texts{"everything replicated: always possible"}));
  EXPECT_EQ(
      reasons(
          {{option(Feasibility::kMixesReductions, 0, 0),
            option(Feasibility::kUnreachable, 0, 1),
            option(possible, 8, 1)},
           2},
          ""),
      (Texts{
          "a layout would have two reductions",
          "cannot convert one reduction to another",
          "the only one possible"}));
  EXPECT_EQ(
      reasons(
          {{option(Feasibility::kLastResort, 0, 1), option(possible, 8, 1)}, 1},
          ""),
      (Texts{
          "shards fewer elements than ranks",
          "the only one that gives every rank elements"}));
  EXPECT_EQ(
      reasons(
          {{option(Feasibility::kChangesWritten, 0, 1)}, std::nullopt}, "self"),
      (Texts{"would change self, which is written"}));
}

TEST(Explain, TakesOtherArgumentsByName) {
  const auto x = layout("f32[8, 6] on (tp=2): S(0)");
  const auto sum =
      explain("sum.dim_IntList", {x}, {{"dim", std::vector<int64_t>{0}}});
  ASSERT_EQ(sum.results.size(), 1);
  EXPECT_EQ(to_string(*sum.results[0]), "f32[6] on (tp=2): P(sum)");
  const auto cat = explain("cat", {x, x, x}, {{"dim", 1}});
  EXPECT_EQ(to_string(*cat.results.at(0)), "f32[8, 18] on (tp=2): S(0)");
  EXPECT_EQ(cat.operands.at(2).name, "tensors[2]");
  const auto norm = explain(
      "native_layer_norm",
      {x, layout("f32[6] on (tp=2): R")},
      {{"normalized_shape", std::vector<int64_t>{6}}, {"eps", 1e-5}});
  EXPECT_EQ(norm.operands.size(), 2);
  EXPECT_EQ(norm.operands[1].name, "weight");
  EXPECT_EQ(norm.results.size(), 3);
}

TEST(Explain, ReportsHowCallsAreDecided) {
  const auto whole = layout("f32[4, 6] on (tp=2): R");
  const auto rows = layout("f32[4, 6] on (tp=2): S(0)");
  EXPECT_EQ(
      explain("_pdist_forward", {whole}).by, DecidedBy::kReplicatedOperands);
  EXPECT_EQ(explain("_pdist_forward", {rows}).by, DecidedBy::kUnsupported);
  EXPECT_EQ(
      explain("_pdist_forward", {rows}).note,
      "[aten::_pdist_forward] no sharding rule; the operands are f32[4, 6] on "
      "(tp=2): S(0). Redistribute them to Replicate first, or call it on the "
      "local tensors.");
  EXPECT_EQ(explain("nonzero", {rows}).by, DecidedBy::kKernel);
  EXPECT_EQ(explain("rot90", {rows}).by, DecidedBy::kOperators);
  const auto view =
      explain("view", {rows}, {{"size", std::vector<int64_t>{24}}});
  EXPECT_EQ(view.by, DecidedBy::kViewRule);
  EXPECT_TRUE(view.mesh_dims.empty());
  EXPECT_EQ(to_string(*view.results.at(0)), "f32[24] on (tp=2): S(0)");
  const auto scope = on_missing_rule(Replicate());
  EXPECT_EQ(
      explain("_pdist_forward", {rows}).by, DecidedBy::kReplicatedFallback);
}

TEST(Explain, RefusesWhatLibTorchDoesNotHave) {
  const auto x = layout("f32[8, 6] on (tp=2): S(0)");
  EXPECT_EQ(
      message([&] { explain("mmm", {x}); }),
      "[explain] LibTorch has no operator \"mmm\". Name it with its overload, "
      "if it has one: \"mm\", \"add.Tensor\".");
  EXPECT_EQ(
      message([&] { explain("mm", {x}); }),
      "[explain] 1 layout does not fit the tensors of aten::mm(Tensor self, "
      "Tensor mat2) -> Tensor. Pass one for each of them.");
  EXPECT_EQ(
      message([&] {
        explain("mm", {x, x, x});
      }),
      "[explain] 3 layouts do not fit the tensors of aten::mm(Tensor self, "
      "Tensor mat2) -> Tensor. Pass one for each of them.");
  EXPECT_EQ(message([&] { explain("mm", {}); }).find("[explain] 0 layouts"), 0);
  EXPECT_EQ(
      message([&] { explain("cumsum", {x}); }),
      "[explain] aten::cumsum needs a value for \"dim\". Pass it by name, next "
      "to the layouts.");
  EXPECT_EQ(
      message([&] {
        explain("relu", {x}, {{"dim", 0}});
      }),
      "[explain] no argument \"dim\" in aten::relu(Tensor self) -> Tensor. "
      "Pass arguments of that schema.");
}

// Explanations of calls that run.

struct Problem {
  const char* op;
  std::vector<std::vector<int64_t>> shapes;
  std::function<at::Tensor(const std::vector<at::Tensor>&)> call;
};

std::vector<Problem> problems() {
  using T = std::vector<at::Tensor>;
  return {
      {"mm", {{8, 4}, {4, 12}}, [](const T& t) { return t[0].mm(t[1]); }},
      {"bmm",
       {{4, 8, 4}, {4, 4, 8}},
       [](const T& t) { return t[0].bmm(t[1]); }},
      {"add.Tensor", {{8, 4}, {8, 4}}, [](const T& t) { return t[0] + t[1]; }},
      {"mul.Tensor", {{8, 4}, {4}}, [](const T& t) { return t[0] * t[1]; }},
      {"maximum",
       {{8, 4}, {8, 4}},
       [](const T& t) { return at::maximum(t[0], t[1]); }},
      {"sum", {{8, 4}}, [](const T& t) { return t[0].sum(); }},
      {"relu", {{8, 4}}, [](const T& t) { return t[0].relu(); }},
      {"t", {{8, 4}}, [](const T& t) { return t[0].t(); }},
  };
}

Placement draw(int64_t ndim, std::mt19937& random) {
  const auto kind = static_cast<int64_t>(random() % 4);
  return kind == 0 ? Placement(Partial())
      : kind == 1  ? Placement(Replicate())
                   : Shard(static_cast<int64_t>(random()) % ndim);
}

at::Tensor placed(
    const std::vector<int64_t>& sizes,
    const DeviceMesh& mesh,
    std::mt19937& random) {
  Placements placements;
  for (int64_t m = 0; m < mesh.ndim(); ++m) {
    placements.push_back(draw(static_cast<int64_t>(sizes.size()), random));
  }
  const auto spec = Spec::make(mesh, placements, sizes, at::kFloat);
  FromLocalOptions options;
  options.shape = sizes;
  return DTensor::from_local(
      at::ones(spec->local_sizes()), mesh, placements, options);
}

std::vector<at::Tensor> operands_of(
    const Problem& problem,
    const DeviceMesh& mesh,
    std::mt19937& random) {
  std::vector<at::Tensor> operands;
  for (const auto& shape : problem.shapes) {
    operands.push_back(placed(shape, mesh, random));
  }
  return operands;
}

std::vector<SpecPtr> specs_of(const std::vector<at::Tensor>& operands) {
  std::vector<SpecPtr> specs;
  for (const auto& t : operands) {
    specs.push_back(DTensor(t).spec());
  }
  return specs;
}

double bytes_of_ways(const ExplainedCall& call) {
  double bytes = 0;
  for (const auto& operand : call.operands) {
    bytes += operand.wire_bytes;
  }
  return bytes;
}

double time_of_ways(const ExplainedCall& call) {
  double time = 0;
  for (const auto& operand : call.operands) {
    time +=
        operand.becomes ? redistribute_cost(operand.spec, operand.becomes) : 0;
  }
  return time;
}

bool sends_unevenly(const ExplainedCall& call) {
  return std::any_of(
      call.operands.begin(), call.operands.end(), [](const auto& operand) {
        return testing::sends_unevenly(operand.steps);
      });
}

// Compares a call with its record in a mode and with its prediction.
void expect_as_explained(
    const Problem& problem,
    const DeviceMesh& mesh,
    std::mt19937& random) {
  const auto operands = operands_of(problem, mesh, random);
  const auto told = explain(problem.op, specs_of(operands));
  const CommDebugMode comm;
  const ExplainMode mode;
  const auto y = problem.call(operands);
  const auto& call = only(mode);
  const auto what = to_string(mode);
  ASSERT_EQ(call.results.size(), 1) << what;
  EXPECT_EQ(call.results[0], DTensor(y).spec()) << what;
  EXPECT_EQ(told.results, call.results) << what << told;
  EXPECT_EQ(told.mesh_dims, call.mesh_dims) << what << told;
  EXPECT_EQ(told.operands, call.operands) << what << told;
  EXPECT_EQ(call.communicated, comm.total()) << what;
  if (!sends_unevenly(call)) {
    EXPECT_DOUBLE_EQ(bytes_of_ways(call), comm.total().wire_bytes) << what;
  }
  for (size_t m = 0; m < call.mesh_dims.size(); ++m) {
    EXPECT_EQ(
        taken(call.mesh_dims[m]).strategy.outputs.at(0),
        DTensor(y).placements()[m])
        << what;
  }
  if (mesh.ndim() == 1 && !call.mesh_dims.empty()) {
    const auto time = taken(call.mesh_dims[0]).microseconds;
    const auto moving = time_of_ways(call);
    EXPECT_TRUE(moving == 0 ? time == 0 : time >= moving) << what;
  }
}

void expect_all_as_explained(const DeviceMesh& mesh) {
  std::mt19937 random(7); // the same on every rank
  for (const auto& problem : problems()) {
    for (int i = 0; i < 40; ++i) {
      expect_as_explained(problem, mesh, random);
    }
  }
}

TEST(ExplainMode, OneMeshDimensionIsAsExplained) {
  on_two_ranks(expect_all_as_explained);
}

TEST(ExplainMode, TwoMeshDimensionsAreAsExplained) {
  run_ranks(4, [] {
    expect_all_as_explained(init_device_mesh(at::kCPU, {2, 2}, {"dp", "tp"}));
  });
}

TEST(ExplainMode, DoesNotChangeDecisions) {
  on_two_ranks([](const DeviceMesh& mesh) {
    const auto a = distribute_tensor(uniform({4, 6}, 1), mesh, {Shard(1)});
    const auto b = distribute_tensor(uniform({6, 2}, 2), mesh, {Replicate()});
    const auto plain = at::mm(a, b);
    const auto made = detail::decision_counts();
    const ExplainMode mode;
    const auto explained = at::mm(a, b);
    EXPECT_EQ(detail::decision_counts().made, made.made);
    EXPECT_EQ(detail::decision_counts().kept, made.kept);
    EXPECT_EQ(DTensor(plain).spec(), DTensor(explained).spec());
    EXPECT_TRUE(
        at::equal(DTensor(plain).to_local(), DTensor(explained).to_local()));
  });
}

TEST(ExplainMode, EqualCallsAreOneUntilTheyAreForgotten) {
  on_two_ranks([](const DeviceMesh& mesh) {
    const auto a = distribute_tensor(uniform({4, 6}, 1), mesh, {Shard(0)});
    const auto b = distribute_tensor(uniform({4, 6}, 1), mesh, {Shard(1)});
    ExplainMode mode;
    for (int i = 0; i < 3; ++i) {
      a.relu();
    }
    b.relu();
    at::rand({4}).relu(); // not a DTensor
    ASSERT_EQ(mode.calls().size(), 2);
    EXPECT_EQ(mode.calls()[0].count, 3);
    EXPECT_EQ(mode.calls()[1].count, 1);
    mode.reset();
    EXPECT_TRUE(mode.calls().empty());
  });
}

TEST(ExplainMode, RecordsTheBackwardPass) {
  on_two_ranks([](const DeviceMesh& mesh) {
    auto a = distribute_tensor(uniform({4, 6}, 1), mesh, {Shard(0)});
    a.requires_grad_();
    const auto b = distribute_tensor(uniform({6, 2}, 2), mesh, {Replicate()});
    const ExplainMode mode;
    at::mm(a, b).sum().backward();
    const auto text = to_string(mode);
    const auto found = std::find_if(
        mode.calls().begin(), mode.calls().end(), [](const auto& call) {
          return call.name == "aten::mm" && call.backward;
        });
    ASSERT_NE(found, mode.calls().end()) << text;
    EXPECT_EQ(found->results.at(0), DTensor(a.grad()).spec()) << text;
    EXPECT_NE(text.find("aten::mm on (tp=2), by its rule\n"), text.npos);
    EXPECT_NE(text.find("aten::mm on (tp=2), backward, by its"), text.npos);
  });
}

TEST(ExplainMode, AStyledModuleComputesInTheLayoutsOfItsStyle) {
  on_two_ranks([](const DeviceMesh& mesh) {
    auto mlp = filled(Mlp(4, 8));
    parallelize_module(*mlp, mesh, mlp_plan());
    const ExplainMode mode;
    const CommDebugMode comm;
    mlp(uniform({3, 4}, 3).requires_grad_()).sum().backward();
    const auto of_module = [&](const std::string& name) {
      return *std::find_if(
          mode.calls().begin(), mode.calls().end(), [&](const auto& call) {
            return call.module == name;
          });
    };
    const auto w2 = of_module("w2");
    EXPECT_EQ(to_string(*w2.operands.at(1).spec), "f64[3, 8] on (tp=2): S(1)");
    EXPECT_EQ(
        taken(w2.mesh_dims.at(0)).strategy.outputs, Placements{Partial()});
    EXPECT_EQ(w2.results, std::vector<SpecPtr>{nullptr}); // a local tensor
    EXPECT_EQ(w2.communicated.count, 1);
    EXPECT_EQ(of_module("w1").communicated.count, 0);
    EXPECT_EQ(mode.communicated_outside().count, 1); // backward, of w1
    auto total = mode.communicated_outside().count;
    for (const auto& call : mode.calls()) {
      total += call.communicated.count;
    }
    EXPECT_EQ(total, comm.get_total_counts());
  });
}

TEST(ExplainMode, ScopesThatChangeOperandsAreRespected) {
  on_two_ranks([](const DeviceMesh& mesh) {
    const auto a = distribute_tensor(uniform({4, 6}, 1), mesh, {Shard(0)});
    const auto plain = uniform({4, 6}, 2);
    const auto implicit = implicit_replication();
    const ExplainMode mode;
    const auto y = a + plain;
    EXPECT_EQ(only(mode).by, DecidedBy::kRule) << to_string(mode);
    EXPECT_EQ(only(mode).operands.at(1).becomes, DTensor(a).spec());
    EXPECT_EQ(only(mode).results.at(0), DTensor(y).spec());
  });
}

TEST(ExplainMode, AttentionInAContextUsesNoRule) {
  on_two_ranks([](const DeviceMesh& mesh) {
    const auto q =
        distribute_tensor(uniform({1, 2, 8, 4}, 1), mesh, {Shard(2)});
    const auto scope = context_parallel(mesh);
    const ExplainMode mode;
    const auto y = at::scaled_dot_product_attention(q, q, q);
    const auto& call = only(mode);
    EXPECT_EQ(call.by, DecidedBy::kKernel) << to_string(mode);
    EXPECT_EQ(
        call.note,
        "in a context_parallel scope, which keeps the sequence sharded");
    EXPECT_EQ(call.communicated.count, 1);
    EXPECT_EQ(call.results.at(0), DTensor(y).spec());
    EXPECT_EQ(DTensor(y).placements()[0], Shard(2));
  });
}

TEST(ExplainMode, AutocastCallsTheSameOperatorOnOthers) {
  on_two_ranks([](const DeviceMesh& mesh) {
    const auto a = distribute_tensor(at::rand({4, 6}), mesh, {Shard(0)});
    const auto b = distribute_tensor(at::rand({6, 2}), mesh, {Replicate()});
    const Autocast scope(torch::kCPU, torch::kBFloat16);
    const ExplainMode mode;
    at::mm(a, b);
    const auto& call = only(mode);
    EXPECT_EQ(call.by, DecidedBy::kOperators);
    ASSERT_FALSE(call.calls.empty());
    EXPECT_EQ(call.calls.back().name, "aten::mm");
    EXPECT_EQ(call.calls.back().by, DecidedBy::kRule);
    EXPECT_EQ(call.calls.back().results, call.results);
  });
}

TEST(ExplainMode, AnErrorIsExplained) {
  on_two_ranks([](const DeviceMesh& mesh) {
    const auto a = distribute_tensor(uniform({4, 6}, 1), mesh, {Shard(0)});
    auto b = distribute_tensor(uniform({4, 6}, 1), mesh, {Replicate()});
    const ExplainMode mode;
    const auto error = message([&] { at::_pdist_forward(a); });
    EXPECT_EQ(only(mode).by, DecidedBy::kUnsupported);
    EXPECT_EQ(only(mode).note, error);
    EXPECT_TRUE(only(mode).results.empty());
  });
}

TEST(ExplainMode, OperatorsThatCallOthersAreTrees) {
  on_two_ranks([](const DeviceMesh& mesh) {
    const auto a = distribute_tensor(uniform({4, 6}, 1), mesh, {Shard(0)});
    ExplainMode mode;
    auto out =
        distribute_tensor(at::zeros({4, 6}, at::kDouble), mesh, {Shard(1)});
    mode.reset();
    at::add_out(out, a, a);
    EXPECT_EQ(only(mode).by, DecidedBy::kOperators);
    EXPECT_EQ(only(mode).results.at(0), DTensor(out).spec());
    EXPECT_EQ(only(mode).calls.at(0).name, "aten::add.Tensor");
    mode.reset();
    at::_foreach_add({a, a}, 1);
    EXPECT_EQ(only(mode).results.size(), 2);
    EXPECT_EQ(only(mode).calls.at(0).count, 2);
    mode.reset();
    a.equal(a);
    EXPECT_EQ(only(mode).by, DecidedBy::kKernel);
    EXPECT_TRUE(only(mode).results.empty());
    EXPECT_GT(only(mode).communicated.count, 0);
    EXPECT_NE(
        to_string(mode).find("aten::equal on (tp=2), by its own kernel"),
        std::string::npos);
  });
}

TEST(ExplainMode, IsPrinted) {
  on_two_ranks([](const DeviceMesh& mesh) {
    const auto a = distribute_tensor(uniform({4, 6}, 1), mesh, {Shard(0)});
    const ExplainMode mode;
    for (int i = 0; i < 3; ++i) {
      a.relu();
    }
    DTensor(a).redistribute({Replicate()});
    const auto call = to_string(only(mode));
    EXPECT_TRUE(
        call.starts_with("aten::relu on (tp=2), 3 times, by its rule\n"))
        << call;
    std::ostringstream text;
    text << only(mode) << mode;
    EXPECT_EQ(
        text.str(),
        call + call + "\noutside of operators: 1 collective, 96 bytes sent\n");
  });
}

TEST(ExplainMode, ModulesAreNamed) {
  on_two_ranks([](const DeviceMesh& mesh) {
    auto mlp = filled(Mlp(4, 8));
    parallelize_module(*mlp, mesh, mlp_plan());
    const ExplainMode mode;
    mlp(uniform({3, 4}, 3));
    EXPECT_NE(
        to_string(mode).find("on (tp=2), in module \"w2\", by"),
        std::string::npos)
        << mode;
  });
}

TEST(Explain, HasWordsForEveryDecision) {
  const std::vector<std::pair<DecidedBy, std::string_view>> all = {
      {DecidedBy::kRule, "by its rule"},
      {DecidedBy::kViewRule, "by the view rule"},
      {DecidedBy::kKernel, "by its own kernel"},
      {DecidedBy::kOperators, "by other operators"},
      {DecidedBy::kReplicatedOperands, "replicated on every rank"},
      {DecidedBy::kReplicatedFallback, "replicated by on_missing_rule()"},
      {DecidedBy::kUnsupported, "an error"}};
  for (const auto& [by, words] : all) {
    EXPECT_EQ(to_string(by), words);
  }
}

// A program may open ranges of its own, and modes and resets may be in them.
TEST(ExplainMode, RangesOfAProgramAreNotCalls) {
  on_two_ranks([](const DeviceMesh& mesh) {
    const auto a = distribute_tensor(uniform({4, 6}, 1), mesh, {Shard(0)});
    const std::vector<c10::IValue> inputs = {a};
    ExplainMode outer;
    std::optional<ExplainMode> inner;
    {
      RECORD_FUNCTION("test::range", inputs);
      a.relu();
      inner.emplace();
      outer.reset();
      a.abs();
    }
    EXPECT_EQ(only(outer).name, "aten::abs");
    EXPECT_EQ(only(*inner).name, "aten::abs");
  });
}

// A tensor without dimensions cannot have the layout of the style.
TEST(ExplainMode, InputsThatAStyleRefusesAreErrors) {
  on_two_ranks([](const DeviceMesh& mesh) {
    torch::nn::Linear linear(4, 4);
    parallelize_module(*linear, mesh, RowwiseParallel());
    const auto call = [&] { linear(at::ones({})); };
    const auto error = message(call);
    EXPECT_NE(error, "no error");
    const ExplainMode mode;
    EXPECT_EQ(message(call), error);
    ASSERT_FALSE(mode.calls().empty());
    EXPECT_EQ(mode.calls().back().by, DecidedBy::kUnsupported);
    EXPECT_EQ(
        mode.calls().back().note,
        "[Spec] S(-1) on mesh dim \"tp\" shards a dimension that the tensor "
        "does not have: its number of dimensions is 0. Use R.");
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
