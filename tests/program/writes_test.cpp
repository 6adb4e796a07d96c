// SPDX-License-Identifier: BSD-3-Clause
// Tests programs that write to memory with views, and operators that need
// replicated operands, with inputs in any layout.
#include "as_python.h"

#include <dtensor/dtensor.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <c10/core/InferenceMode.h>

namespace dtensor {
namespace TEST_SOURCE {

using test_program::expect_as_python;
using test_program::exported;
using test_program::python_runs;
using test_program::PythonRun;

// Runs one program with all inputs, sharded in one layout after the other.
// Remembered layouts of one call must not affect calls in other layouts.
void expect_in_layouts(
    const std::string& name,
    const std::vector<int64_t>& mesh_shape,
    const std::vector<Placements>& layouts) {
  SCOPED_TRACE(c10::str(name, " on ", c10::IntArrayRef(mesh_shape)));
  const auto path = exported(name);
  const auto runs = python_runs(name);
  run_ranks(c10::multiply_integers(mesh_shape), [&] {
    const auto mesh = init_device_mesh(
        at::kCPU,
        mesh_shape,
        mesh_shape.size() == 1 ? std::vector<std::string>{"tp"}
                               : std::vector<std::string>{"dp", "tp"});
    auto program = load_program(path);
    tp_transform(program, mesh);
    for (size_t i = 0; i < layouts.size(); ++i) {
      auto cut = runs;
      for (auto& run : cut) {
        for (size_t j = 0; j < run.inputs.size(); ++j) {
          run.inputs[j] = distribute_tensor(
              run.inputs[j], mesh, layouts[(i + j) % layouts.size()]);
        }
        if (i % 2 == 1) {
          const c10::InferenceMode no_graph;
          program.run({run.inputs.begin(), run.inputs.end()});
        }
      }
      expect_as_python(program, cut);
    }
  });
}

void expect_in_all_layouts(const std::string& name) {
  for (const int64_t ranks : {1, 2, 3, 5}) {
    expect_in_layouts(name, {ranks}, {{Shard(0)}, {Replicate()}, {Shard(1)}});
  }
  expect_in_layouts(
      name,
      {2, 2},
      {{Shard(0), Shard(1)},
       {Replicate(), Shard(0)},
       {Shard(1), Replicate()},
       {Shard(0), Shard(0)}});
  expect_in_layouts(
      name, {3, 1}, {{Shard(1), Replicate()}, {Shard(0), Shard(1)}});
}

TEST(ProgramWrites, ReachAllViewsInAnyLayout) {
  expect_in_all_layouts("writing");
}

// Writes that fit the layout need no redistribution.
TEST(ProgramWrites, StayShardedWhereViewsAre) {
  const auto path = exported("columns");
  const auto runs = python_runs("columns");
  run_ranks(3, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {3}, {"dp"});
    auto program = load_program(path);
    parallelize_program(program, mesh);
    const auto count = [&](const Placement& layout) {
      const auto x = distribute_tensor(runs[0].inputs[0], mesh, {layout});
      const CommDebugMode counted;
      const auto y = program({x});
      const auto collectives = counted.get_total_counts();
      EXPECT_TRUE(at::allclose(full_tensor(y), runs[0].outputs[0]));
      EXPECT_EQ(DTensor(y).placements()[0], Shard(0));
      return collectives;
    };
    EXPECT_EQ(count(Shard(0)), 0);
    EXPECT_EQ(count(Shard(1)), 1); // redistributed once, before the first view
  });
}

TEST(ProgramWrites, ReachAShardedInput) {
  const auto path = exported("user_input");
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    auto program = load_program(path);
    parallelize_program(program, mesh);
    auto truth = at::arange(30, at::kDouble).view({6, 5});
    const auto x = distribute_tensor(truth, mesh, {Shard(0)});
    const auto y = program({x});
    truth[0].add_(1);
    EXPECT_TRUE(at::equal(full_tensor(x), truth));
    EXPECT_TRUE(at::equal(full_tensor(y), truth * 2));
  });
}

TEST(ProgramRefused, IsReplicated) {
  expect_in_all_layouts("rare");
}

// The program itself splits the weight of cross-attention, so this weight is
// not sharded. The surrounding layers are sharded.
TEST(ProgramPlans, ReplicateTheWeightOfCrossAttention) {
  const auto path = exported("decoder");
  const auto runs = python_runs("decoder");
  EXPECT_EQ(
      to_string(find_tp_plan(load_program(path))),
      "self_attn           colwise fused_projections=3 multiple_of=4\n"
      "self_attn.out_proj  rowwise multiple_of=4\n"
      "linear1             colwise\n"
      "linear2             rowwise\n");
  for (const int64_t ranks : {1, 2, 3, 4}) {
    run_ranks(ranks, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {ranks}, {"tp"});
      auto program = load_program(path);
      tp_transform(program, mesh);
      const torch::NoGradGuard no_grad;
      for (int call = 0; call < 2; ++call) {
        const CommDebugMode counted;
        program({runs[0].inputs[0], runs[0].inputs[1]});
        EXPECT_EQ(counted.get_total_counts(), ranks == 1 ? 0 : 2);
      }
      const torch::AutoGradMode with_gradients(true);
      expect_as_python(program, runs);
      EXPECT_TRUE(
          DTensor(program.module()
                      .named_parameters()["multihead_attn.in_proj_weight"])
              .spec()
              ->is_replicated());
    });
  }
  expect_in_layouts(
      "decoder", {2, 2}, {{Shard(0), Replicate()}, {Replicate(), Replicate()}});
}

// The first call reads the weights, also in inference mode.
TEST(ProgramInference, LeavesAProgramThatCanBeTrained) {
  const auto path = exported("transformer");
  const auto runs = python_runs("transformer");
  const auto infer_and_train = [&](Program& program) {
    {
      const c10::InferenceMode no_graph;
      program({runs[0].inputs[0]});
    }
    for (const auto& parameter : program.module().parameters()) {
      EXPECT_FALSE(parameter.is_inference());
    }
    expect_as_python(program, runs);
  };
  auto plain = load_program(path);
  infer_and_train(plain);
  run_ranks(2, [&] {
    auto program = load_program(path);
    tp_transform(program, init_device_mesh(at::kCPU, {2}, {"tp"}));
    infer_and_train(program);
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
