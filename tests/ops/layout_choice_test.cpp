// SPDX-License-Identifier: BSD-3-Clause
// Choices of layouts that programs rely on, and the plans that decisions make.
#include "tests/ops/rule_calls.h"

#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/debug/explain.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/combinations_impl.h>
#include <dtensor/ops/path/op_info_impl.h>
#include <dtensor/redistribute/plan_impl.h>
#include <dtensor/testing/fake_world.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <map>

namespace dtensor::testing {
namespace TEST_SOURCE {

using detail::OpInfo;

SpecPtr spec(const std::string& text) {
  return parse_spec(text).spec();
}

std::string result_of(
    const std::string& op,
    const std::vector<std::string>& operands,
    const std::map<std::string, c10::IValue>& arguments = {}) {
  std::vector<SpecPtr> specs;
  for (const auto& operand : operands) {
    specs.push_back(spec(operand));
  }
  const auto call = explain(op, specs, arguments);
  EXPECT_EQ(call.by, DecidedBy::kRule) << call;
  return to_string(call.results.at(0)->placements());
}

// An all_to_all of the left operand sends 4,096 bytes, and the reduce_scatter
// of the result another 12,288. Gathering the right operand sends 12,288.
TEST(LayoutChoice, CountsTheUseOfPartialResults) {
  EXPECT_EQ(
      result_of(
          "mm", {"f32[64, 64] on (tp=2): S(0)", "f32[64, 96] on (tp=2): S(0)"}),
      "S(0)");
}

TEST(LayoutChoice, KeepsThePairOfTensorParallelism) {
  for (const auto* rows : {"8", "4096", "1048576"}) {
    const auto matrix = [&](const std::string& columns,
                            const std::string& layout) {
      return c10::str("f32[", rows, ", ", columns, "] on (tp=4): ", layout);
    };
    EXPECT_EQ(
        result_of("mm", {matrix("64", "R"), "f32[64, 256] on (tp=4): S(1)"}),
        "S(1)");
    EXPECT_EQ(
        result_of(
            "mm", {matrix("256", "S(1)"), "f32[256, 64] on (tp=4): S(0)"}),
        "P(sum)");
    EXPECT_EQ(
        result_of("add.Tensor", {matrix("64", "P(sum)"), matrix("64", "R")}),
        "P(sum)");
    EXPECT_EQ(
        result_of("add.Tensor", {matrix("64", "P(sum)"), matrix("64", "S(0)")}),
        "S(0)");
  }
}

TEST(LayoutChoice, KeepsTheStepsOfDataParallelism) {
  for (const auto* layout : {"R", "S(0)"}) {
    EXPECT_EQ(
        result_of(
            "mm",
            {"f32[512, 64] on (dp=4): S(0)",
             c10::str("f32[64, 32] on (dp=4): ", layout)}),
        "S(0)");
  }
  // The gradient of the weight.
  EXPECT_EQ(
      result_of(
          "mm",
          {"f32[64, 512] on (dp=4): S(1)", "f32[512, 32] on (dp=4): S(0)"}),
      "P(sum)");
}

TEST(LayoutChoice, ReplicatedOperandsStayReplicated) {
  EXPECT_EQ(
      result_of(
          "mm", {"f32[4096, 64] on (2, 2): R R", "f32[64, 64] on (2, 2): R R"}),
      "R R");
  EXPECT_EQ(result_of("relu", {"f32[4096, 4096] on (2, 2): R S(0)"}), "R S(0)");
}

// A reduce_scatter and the all_gather of the result take two collectives.
TEST(LayoutChoice, APartialOperandBesideReplicatedOnesIsReplicated) {
  EXPECT_EQ(
      result_of(
          "maximum",
          {"f32[64, 64] on (tp=2): P(sum)", "f32[64, 64] on (tp=2): R"}),
      "R");
  EXPECT_EQ(result_of("relu", {"f32[64, 64] on (tp=2): P(sum)"}), "S(0)");
}

// The gradient ends in the layout of the second operand.
TEST(LayoutChoice, GradientsEndInTheLayoutOfTheirTensor) {
  EXPECT_EQ(
      result_of(
          "gelu_backward",
          {"f32[64, 64] on (tp=2): S(0)", "f32[64, 64] on (tp=2): S(1)"}),
      "S(1)");
  EXPECT_EQ(
      result_of(
          "add.Tensor",
          {"f32[64, 64] on (tp=2): S(0)", "f32[64, 64] on (tp=2): S(1)"}),
      "S(0)");
}

// On each mesh dimension alone, sharding dimension 0 costs an all_to_all of one
// operand. On both together it costs three collectives, while S(0) S(1) costs
// one. Ranks of tensor parallelism compute norms of unsharded activations.
// Sharding the work would take a second collective.
TEST(LayoutChoice, GradientsOfReplicatedActivationsAreReduced) {
  for (const auto* rows : {"8", "4096", "1048576"}) {
    const auto activations = c10::str("f32[", rows, ", 64] on (tp=2): ");
    const auto statistics = c10::str("f32[", rows, ", 1] on (tp=2): R");
    EXPECT_EQ(
        result_of(
            "native_layer_norm_backward",
            {activations + "P(sum)",
             activations + "R",
             statistics,
             statistics,
             "f32[64] on (tp=2): R",
             "f32[64] on (tp=2): R"},
            {{"normalized_shape", std::vector<int64_t>{64}},
             {"output_mask", c10::List<bool>({true, true, true})}}),
        "R")
        << rows;
  }
}

TEST(LayoutChoice, CountsTheRedistributionOverAllMeshDimensions) {
  const auto a = spec("f32[64, 64] on (2, 2): S(0) S(1)");
  const auto b = spec("f32[64, 64] on (2, 2): S(1) S(0)");
  const auto call = explain("add.Tensor", {a, b});
  EXPECT_EQ(to_string(call.results.at(0)->placements()), "S(0) S(1)") << call;
  EXPECT_EQ(call.operands.at(1).steps.size(), 1) << call;
}

struct Moving {
  const char* op;
  const char* overload;
  std::vector<Placements> layouts; // of the operands, on three mesh dimensions
};

// A call without communication, and calls whose operands must be redistributed.
std::vector<Moving> moving_calls() {
  const Placement r = Replicate();
  const Placement p = Partial();
  return {
      {"aten::mm", "", {{r, r, r}, {r, r, Shard(1)}}},
      {"aten::mm", "", {{r, r, Shard(0)}, {r, r, Shard(0)}}},
      {"aten::mm", "", {{Shard(0), r, Shard(1)}, {Shard(0), Shard(0), r}}},
      {"aten::add",
       "Tensor",
       {{Shard(0), Shard(1), r}, {Shard(1), Shard(0), r}}},
      {"aten::maximum", "", {{p, p, p}, {r, r, r}}},
      {"aten::maximum", "", {{p, Shard(0), p}, {Shard(1), r, Shard(0)}}}};
}

struct Cold {
  double microseconds;
  size_t plans;
};

// Returns the median time of decisions of a call on new shapes, and the largest
// number of plans in a decision.
Cold measure(const Moving& moving, const DeviceMesh& mesh) {
  const OpInfo info(c10::Dispatcher::singleton().findSchemaOrThrow(
      moving.op, moving.overload));
  Cold cold{0, 0};
  std::vector<double> times;
  for (int64_t i = 0; i < 21; ++i) {
    const int64_t side = 64 + 16 * i;
    torch::jit::Stack args{at::empty({side, side}), at::empty({side, side})};
    std::vector<OpInput> inputs;
    for (int arg = 0; arg < 2; ++arg) {
      inputs.push_back(
          {Spec::make(
               mesh,
               PlacementsRef(moving.layouts[static_cast<size_t>(arg)])
                   .slice(static_cast<size_t>(3 - mesh.ndim())),
               {side, side},
               at::kFloat),
           arg});
    }
    OpCall call(info.op.schema(), args, mesh, std::move(inputs));
    call.outputs = metas_of({args[0]});
    const auto before = detail::cached_plans();
    const auto begin = std::chrono::steady_clock::now();
    int64_t failed = 0;
    detail::choose_layouts(call, *info.rule, {}, failed);
    times.push_back(std::chrono::duration<double, std::micro>(
                        std::chrono::steady_clock::now() - begin)
                        .count());
    cold.plans = std::max(cold.plans, detail::cached_plans() - before);
  }
  std::nth_element(times.begin(), times.begin() + 10, times.end());
  cold.microseconds = times[10];
  return cold;
}

// The bounds leave few of the combinations. All combinations would need
// hundreds of plans. Prints the times.
TEST(LayoutChoice, MakesFewPlans) {
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{8}, {2, 4}, {2, 2, 2}, {4, 4, 4}}) {
    with_fake_world(0, c10::multiply_integers(shape), [&] {
      const auto mesh = init_device_mesh(at::kCPU, shape);
      for (const auto& moving : moving_calls()) {
        const auto cold = measure(moving, mesh);
        std::cout << moving.op << " on " << c10::Join("x", shape) << ": "
                  << cold.microseconds << " us, " << cold.plans << " plans\n";
        EXPECT_LE(cold.plans, 30);
      }
    });
  }
}

} // namespace TEST_SOURCE
} // namespace dtensor::testing
