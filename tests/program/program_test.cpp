// SPDX-License-Identifier: BSD-3-Clause
// Compares programs from Python with Python's own results.
#include "as_python.h"

#include <dtensor/dtensor.h>
#include <dtensor/testing/expect.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/error_of.h>
#include <tests/long_texts.h>
#include <torch/torch.h>

namespace dtensor {
namespace TEST_SOURCE {

using test_program::expect_as_python;
using test_program::expect_close;
using test_program::exported;
using test_program::python_runs;
using test_program::Tensors;
using test_program::tensors_in;

class Programs : public ::testing::TestWithParam<const char*> {};

TEST_P(Programs, ComputeTheSameAsPython) {
  auto program = load_program(exported(GetParam()));
  expect_as_python(program, python_runs(GetParam()));
}

TEST_P(Programs, ComputeTheSameReplicatedOnRanks) {
  const auto path = exported(GetParam());
  const auto runs = python_runs(GetParam());
  for (const int64_t ranks : {1, 2, 3}) {
    run_ranks(ranks, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {ranks}, {"tp"});
      auto program = load_program(path);
      parallelize_program(program, mesh);
      expect_as_python(program, runs);
    });
  }
}

// Random numbers are equal on all ranks, although each rank's generator has a
// different state here.
TEST(ProgramRandom, IsTheSameOnAllRanks) {
  const auto path = exported("drawing");
  for (const int64_t ranks : {1, 2, 3}) {
    std::vector<Tensors> drawn(static_cast<size_t>(ranks));
    run_ranks(ranks, [&](int64_t rank) {
      manual_seed(7);
      torch::rand({rank});
      const auto mesh = init_device_mesh(at::kCPU, {ranks}, {"tp"});
      auto program = load_program(path);
      parallelize_program(program, mesh);
      for (int call = 0; call < 2; ++call) {
        for (const auto& t : tensors_in(program.run({torch::ones({3, 4})}))) {
          drawn[static_cast<size_t>(rank)].push_back(DTensor(t).to_local());
        }
      }
    });
    for (const auto& mine : drawn) {
      ASSERT_EQ(mine.size(), 4U);
      EXPECT_FALSE(mine[0].equal(mine[2]));
      for (size_t i = 0; i < mine.size(); ++i) {
        EXPECT_TRUE(mine[i].equal(drawn[0][i])) << ranks << " ranks, " << i;
      }
    }
  }
}

ParallelizePlan transformer_plan() {
  return {
      {"tokens", RowwiseParallel()},
      {"blocks.*.attn.[qkv]", ColwiseParallel({.multiple_of = 4})},
      {"blocks.*.attn.o", RowwiseParallel({.multiple_of = 4})},
      {"blocks.*.up", ColwiseParallel()},
      {"blocks.*.down", RowwiseParallel()},
      {"head", ColwiseParallel({.output_layouts = Replicate()})}};
}

TEST(ProgramPlans, ShardATransformer) {
  const auto path = exported("transformer");
  const auto runs = python_runs("transformer");
  for (const int64_t ranks : {1, 2, 3, 4, 5}) {
    run_ranks(ranks, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {ranks}, {"tp"});
      auto program = load_program(path);
      parallelize_program(program, mesh, transformer_plan());
      expect_as_python(program, runs);
      const torch::NoGradGuard no_grad;
      const CommDebugMode counted;
      program({runs[0].inputs[0]});
      // One for the embedding, two for each block, one for the logits.
      EXPECT_EQ(counted.get_total_counts(), ranks == 1 ? 0 : 1 + 2 * 2 + 1);
    });
  }
}

// Random operators run on sharded inputs, with the program's own plan.
TEST(ProgramPlans, RunRandomOperatorsOnShardedInputs) {
  const std::vector<Placement> layouts = {
      Shard(0), Shard(1), Replicate(), Shard(0, 2)};
  for (const auto* name : {"random_0", "random_1", "random_2", "random_3"}) {
    const auto path = exported(name);
    const auto runs = python_runs(name);
    for (const int64_t ranks : {1, 2, 3}) {
      run_ranks(ranks, [&] {
        const auto mesh = init_device_mesh(at::kCPU, {ranks}, {"tp"});
        auto program = load_program(path);
        tp_transform(program, mesh);
        auto cut = runs;
        for (size_t i = 0; i < layouts.size(); ++i) {
          auto& input = cut[0].inputs[i];
          input = distribute_tensor(input, mesh, {layouts[i]});
        }
        expect_as_python(program, cut);
      });
    }
  }
}

TEST(ProgramPlans, FindTheHandWrittenPlan) {
  const auto path = exported("transformer");
  const auto runs = python_runs("transformer");
  auto looked_at = load_program(path);
  EXPECT_EQ(
      to_string(find_tp_plan(looked_at)),
      "tokens           rowwise\n"
      "blocks.*.attn.q  colwise multiple_of=4\n"
      "blocks.*.attn.k  colwise multiple_of=4\n"
      "blocks.*.attn.v  colwise multiple_of=4\n"
      "blocks.*.attn.o  rowwise multiple_of=4\n"
      "blocks.*.up      colwise\n"
      "blocks.*.down    rowwise\n"
      "head             colwise\n");
  for (const int64_t ranks : {1, 2, 3, 4, 5}) {
    run_ranks(ranks, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {ranks}, {"tp"});
      auto program = load_program(path);
      const auto plan = tp_transform(program, mesh);
      EXPECT_EQ(plan, find_tp_plan(looked_at));
      EXPECT_EQ(c10::str(plan), to_string(plan));
      expect_as_python(program, runs);
      const torch::NoGradGuard no_grad;
      const CommDebugMode counted;
      const auto logits = program({runs[0].inputs[0]});
      EXPECT_EQ(counted.get_total_counts(), ranks == 1 ? 0 : 1 + 2 * 2);
      EXPECT_EQ(DTensor(logits).placements()[0], Shard(2));
    });
  }
}

// A style gathers bfloat16 in a scope of autocast.
TEST(ProgramPlans, ShardWeightsThatAutocastCasts) {
  const auto path = exported("autocast");
  const auto runs = python_runs("autocast");
  for (const int64_t ranks : {2, 3}) {
    run_ranks(ranks, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {ranks}, {"tp"});
      auto program = load_program(path);
      parallelize_program(
          program,
          mesh,
          {{"up", ColwiseParallel({.output_layouts = Replicate()})}});
      // Gradients are rounded sums, so their values depend on the order of the
      // terms.
      const torch::NoGradGuard no_grad;
      const CommDebugMode counted;
      const auto outputs = tensors_in(program.run({runs[0].inputs[0]}));
      const auto table = counted.generate_comm_debug_tracing_table(0);
      for (size_t i = 0; i < outputs.size(); ++i) {
        expect_close(outputs[i], runs[0].outputs[i], c10::str("output ", i));
      }
      // Three calls. The third is in an autocast scope of another device, so it
      // stays in float32.
      EXPECT_EQ(counted.get_total_counts(), 3) << table;
      EXPECT_EQ(counted.total().payload_bytes, 5 * 24 / ranks * (2 + 2 + 4))
          << table;
    });
  }
}

// Plans shard fused weights: queries, keys and values in one weight, gates in
// another.
TEST(ProgramPlans, ShardFusedWeights) {
  const auto encoder = load_program(exported("encoder"));
  EXPECT_EQ(
      to_string(find_tp_plan(encoder)),
      "*.self_attn           colwise fused_projections=3 multiple_of=4\n"
      "*.self_attn.out_proj  rowwise multiple_of=4\n"
      "*.linear1             colwise\n"
      "*.linear2             rowwise\n");
  const auto packed = load_program(exported("packed"));
  EXPECT_EQ(
      to_string(find_tp_plan(packed)),
      "qkv      colwise fused_projections=3 multiple_of=4\n"
      "o        rowwise multiple_of=4\n"
      "gate_up  colwise fused_projections=2\n"
      "down     rowwise\n");
  for (const std::string name : {"encoder", "packed"}) {
    const auto path = exported(name);
    const auto runs = python_runs(name);
    for (const int64_t ranks : {1, 2, 3, 4, 5}) {
      run_ranks(ranks, [&] {
        const auto mesh = init_device_mesh(at::kCPU, {ranks}, {"tp"});
        auto program = load_program(path);
        tp_transform(program, mesh);
        expect_as_python(program, runs);
        const torch::NoGradGuard no_grad;
        const CommDebugMode counted;
        program({runs[0].inputs[0]});
        const int64_t pairs = name == "encoder" ? 4 : 2;
        EXPECT_EQ(counted.get_total_counts(), ranks == 1 ? 0 : pairs);
      });
    }
  }
  run_ranks(2, [&] {
    auto program = load_program(exported("encoder"));
    tp_transform(program, init_device_mesh(at::kCPU, {2}, {"tp"}));
    const auto parameters = program.module().named_parameters();
    EXPECT_EQ(
        to_string(
            DTensor(parameters["0.self_attn.in_proj_weight"]).placements()),
        "SS(0, sf=3, u=4)");
    EXPECT_EQ(
        to_string(DTensor(parameters["0.self_attn.in_proj_bias"]).placements()),
        "SS(0, sf=3, u=4)");
  });
}

// Three operators need the same other layout. This takes only one exchange.
TEST(ProgramLayouts, RedistributeAValueOnce) {
  const auto path = exported("shared");
  const auto runs = python_runs("shared");
  run_ranks(3, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {3}, {"tp"});
    auto program = load_program(path);
    parallelize_program(program, mesh);
    auto cut = runs;
    cut[0].inputs[0] = distribute_tensor(runs[0].inputs[0], mesh, {Shard(1)});
    expect_as_python(program, cut);
    const torch::NoGradGuard no_grad;
    const CommDebugMode counted;
    program({cut[0].inputs[0]});
    EXPECT_EQ(counted.get_total_counts(), 1)
        << counted.generate_comm_debug_tracing_table(2);
  });
}

// The order of redistributions depends on all uses. The value is needed as
// columns first and replicated later; from the second run on, the columns are
// sliced from the gathered value.
TEST(ProgramLayouts, AreChosenByAllUses) {
  const auto path = exported("mixing");
  const auto runs = python_runs("mixing");
  for (const int64_t ranks : {2, 3}) {
    run_ranks(ranks, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {ranks}, {"tp"});
      auto program = load_program(path);
      parallelize_program(program, mesh);
      auto cut = runs;
      cut[0].inputs[0] = distribute_tensor(runs[0].inputs[0], mesh, {Shard(0)});
      const auto collectives = [&] {
        const torch::NoGradGuard no_grad;
        const CommDebugMode counted;
        program({cut[0].inputs[0]});
        return counted.get_total_counts();
      };
      EXPECT_EQ(collectives(), 2); // an exchange, then an all-gather
      EXPECT_EQ(collectives(), 1);
      program({runs[0].inputs[0]}); // the other layout stays cached
      EXPECT_EQ(collectives(), 1);
      expect_as_python(program, cut);
    });
  }
}

// Composite operators redistribute their own operands, so these are not shared.
// Sharing would need two exchanges, because there are two values.
TEST(ProgramLayouts, AreNotSharedWithinComposites) {
  const auto path = exported("einsums");
  const auto runs = python_runs("einsums");
  run_ranks(3, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {3}, {"tp"});
    auto program = load_program(path);
    parallelize_program(program, mesh);
    auto cut = runs;
    cut[0].inputs[0] = distribute_tensor(runs[0].inputs[0], mesh, {Shard(0)});
    expect_as_python(program, cut);
    const torch::NoGradGuard no_grad;
    const CommDebugMode counted;
    program({cut[0].inputs[0]});
    EXPECT_EQ(counted.get_total_counts(), 2)
        << counted.generate_comm_debug_tracing_table(2);
  });
}

// A sequence stays sharded in a context_parallel scope: no rank has the full
// sequence.
TEST(ProgramLayouts, KeepASequenceShardedInAContext) {
  const auto path = exported("causal");
  const auto runs = python_runs("causal");
  for (const int64_t ranks : {1, 2, 3, 4}) {
    run_ranks(ranks, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {ranks}, {"cp"});
      auto program = load_program(path);
      parallelize_program(program, mesh);
      auto cut = runs;
      cut[0].inputs[0] = distribute_tensor(runs[0].inputs[0], mesh, {Shard(1)});
      const auto scope = context_parallel(mesh);
      expect_as_python(program, cut);
      const auto y = program({cut[0].inputs[0]});
      EXPECT_EQ(DTensor(y).placements()[0], Shard(1));
    });
  }
}

TEST(ProgramResults, HavePythonsNames) {
  const auto names = [](const char* model) {
    return load_program(exported(model)).output_names();
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(names("mixed"), (Names{"u", "s.0", "s.1"}));
  EXPECT_EQ(names("causal"), Names{""});
  EXPECT_EQ(
      names("results"),
      (Names{
          "loss",
          "rest.first.0",
          "rest.first.1.0",
          "rest.first.1.1",
          "rest.first.1.2",
          "rest.7"}));
  auto program = load_program(exported("results"));
  const auto x = torch::rand({3, 2});
  const auto results = program.run({x});
  ASSERT_EQ(results.size(), 6U);
  EXPECT_TRUE(results[0].toTensor().equal(x.sum()));
  EXPECT_EQ(results[3].toInt(), 3);
  EXPECT_TRUE(results[4].isNone());
  EXPECT_TRUE(results[5].toTensor().equal(x.sum(0)));
  EXPECT_THAT(c10::str(program), ::testing::HasSubstr("\noutput rest.7"));
}

// Expects an empty plan and unchanged results.
void expect_whole(const std::string& name) {
  const auto path = exported(name);
  const auto runs = python_runs(name);
  EXPECT_EQ(
      c10::str(find_tp_plan(load_program(path))),
      "# no styles: no weight is sharded\n");
  for (const int64_t ranks : {1, 2, 3}) {
    run_ranks(ranks, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {ranks}, {"tp"});
      auto program = load_program(path);
      EXPECT_EQ(
          c10::str(tp_transform(program, mesh)),
          "# no styles: no weight is sharded\n");
      for (const auto& parameter : program.module().named_parameters()) {
        EXPECT_EQ(to_string(DTensor(*parameter).placements()), "R");
      }
      const CommDebugMode counted;
      expect_as_python(program, runs);
      EXPECT_EQ(counted.get_total_counts(), 0);
    });
  }
}

TEST(ProgramPlans, ReplicateProductsWithoutAPair) {
  expect_whole("views");
}

// Expects the plan to be found. With the plan, the program must compute
// Python's results.
void expect_plan(const std::string& name, const std::string& plan) {
  const auto path = exported(name);
  const auto runs = python_runs(name);
  EXPECT_EQ(c10::str(find_tp_plan(load_program(path))), plan);
  for (const int64_t ranks : {1, 2, 3}) {
    run_ranks(ranks, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {ranks}, {"tp"});
      auto program = load_program(path);
      EXPECT_EQ(c10::str(tp_transform(program, mesh)), plan);
      expect_as_python(program, runs);
    });
  }
}

// A weight that would be colwise in one module and rowwise in another is not
// sharded. Modules with tied weights may be sharded if their styles agree.
TEST(ProgramPlans, ShardATiedWeightInOneWay) {
  expect_plan(
      "tied_pairs",
      "good.up     colwise\n"
      "good.down   rowwise\n"
      "alike.up    colwise\n"
      "alike.down  rowwise\n");
}

TEST(ProgramPlans, ShardALayerThatIsCalledSeveralTimes) {
  expect_plan(
      "repeated",
      "layer.up    colwise\n"
      "layer.down  rowwise\n");
}

// Sizes behind an operator without a meta kernel come from the file.
TEST(ProgramPlans, FindPairsBehindOperatorsWithoutARule) {
  expect_plan(
      "behind",
      "a.up    colwise\n"
      "a.down  rowwise\n"
      "b.up    colwise\n"
      "b.down  rowwise\n"
      "c.up    colwise\n"
      "c.down  rowwise\n"
      "up      colwise\n"
      "down    rowwise\n");
  expect_plan(
      "scaled",
      "up    colwise\n"
      "down  rowwise\n");
}

TEST(ProgramPlans, FindPairsAfterDecompositions) {
  expect_plan(
      "decomposed",
      "1.q     colwise multiple_of=4\n"
      "1.k     colwise multiple_of=4\n"
      "1.v     colwise multiple_of=4\n"
      "1.o     rowwise multiple_of=4\n"
      "4.up    colwise\n"
      "4.down  rowwise\n");
}

TEST(ProgramPlans, AreParsedAndPrinted) {
  const auto lines = parse_plan(
      "# remark\n"
      "a.*.q   colwise multiple_of=4  # heads\n"
      "\n"
      "b rowwise output=S(1) multiple_of=2\n"
      "c colwise output=S(0, u=4)\n"
      "n sequence dim=0\n");
  EXPECT_EQ(
      to_string(lines),
      "a.*.q  colwise multiple_of=4\n"
      "b      rowwise output=S(1) multiple_of=2\n"
      "c      colwise output=S(0, u=4)\n"
      "n      sequence dim=0\n");
  EXPECT_EQ(parse_plan(to_string(lines)), lines);
  EXPECT_EQ(make_plan(lines).size(), 4U);
  const auto message = [](const std::string& text) -> std::string {
    try {
      parse_plan(text);
    } catch (const c10::ValueError& error) {
      return error.what_without_backtrace();
    }
    return "no error";
  };
  const std::string styles =
      ". Styles: colwise (multiple_of=n, fused_projections=n, output=S(1)), "
      "rowwise (multiple_of=n, output=S(1)), sequence (dim=n).";
  EXPECT_EQ(
      message("a diagonal"),
      "[parse_plan] \"a diagonal\": unknown style \"diagonal\"" + styles);
  EXPECT_EQ(message("a"), "[parse_plan] \"a \": unknown style \"\"" + styles);
  EXPECT_EQ(
      message("a colwise 4"),
      "[parse_plan] \"a colwise 4\": \"4\" is not an option of this style" +
          styles);
  EXPECT_EQ(
      message("a colwise multiple_of=x"),
      "[parse_plan] \"a colwise multiple_of=x\": multiple_of is not a number" +
          styles);
  EXPECT_EQ(
      message("a sequence multiple_of=2"),
      "[parse_plan] \"a sequence multiple_of=2\": sequence has no option "
      "multiple_of" +
          styles);
  EXPECT_EQ(
      message("a rowwise output=R R"),
      "[parse_plan] \"a rowwise output=R R\": \"R\" is not an option of this "
      "style" +
          styles);
  EXPECT_EQ(
      message("a rowwise multiple_of=2 multiple_of=3"),
      "[parse_plan] \"a rowwise multiple_of=2 multiple_of=3\": multiple_of is "
      "given twice" +
          styles);
  EXPECT_EQ(
      message("a colwise output=R,R"),
      "[parse_plan] \"a colwise output=R,R\": output must be a single "
      "placement" +
          styles);
  EXPECT_EQ(
      message("a colwise fused_projections=0"),
      "[parse_plan] \"a colwise fused_projections=0\": fused_projections must "
      "be positive" +
          styles);
  EXPECT_EQ(
      message(std::string("a colwise\0b", 11)),
      "[parse_plan] the text contains a zero byte at position 9. Remove it.");
}

TEST(PlanText, ErrorsAreShort) {
  const std::string plan =
      "a.*.q colwise multiple_of=4 output=S(1)\n"
      "b rowwise output=S(0, u=2)\n"
      "n sequence dim=1\n";
  for (const auto& text : test_text::with_long_parts(plan)) {
    const auto error =
        test_text::error_of([&] { make_plan(parse_plan(text)); });
    EXPECT_LE(error.size(), test_text::kLongestError) << error;
  }
}

TEST(PlanText, IsInProportionToItsLines) {
  std::string text = std::string(100000, 'a') + " colwise\n";
  for (int i = 0; i < 1000; ++i) {
    text += "b rowwise\n";
  }
  const auto printed = to_string(parse_plan(text));
  EXPECT_LT(printed.size(), 3 * text.size());
  EXPECT_EQ(to_string(parse_plan(printed)), printed);
}

INSTANTIATE_TEST_SUITE_P(
    All,
    Programs,
    ::testing::Values(
        "mixed",
        "transformer",
        "normed",
        "normed_functional",
        "autocast",
        "encoder",
        "packed",
        "views",
        "mixing",
        "shared",
        "writing",
        "columns",
        "rare",
        "decoder",
        "decomposed",
        "tied_pairs",
        "repeated",
        "behind",
        "causal",
        "random_0",
        "random_1",
        "random_2",
        "random_3"),
    [](const auto& name) { return std::string(name.param); });

} // namespace TEST_SOURCE
} // namespace dtensor
