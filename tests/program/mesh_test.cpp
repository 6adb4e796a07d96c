// SPDX-License-Identifier: BSD-3-Clause
// Programs on meshes of two dimensions: a plan on one of them, batches or
// sequences sharded on the other.
#include "exported.h"

#include <dtensor/dtensor.h>
#include <dtensor/testing/expect.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

namespace dtensor {
namespace TEST_SOURCE {

using test_program::exported;
using test_program::python_runs;
using test_program::PythonRun;
using ::testing::HasSubstr;

constexpr double kTolerance = 1e-12;

void expect_close(
    const at::Tensor& ours,
    const at::Tensor& truth,
    const std::string& what) {
  const auto whole = full_tensor(ours).detach();
  ASSERT_EQ(whole.sizes(), truth.sizes()) << what;
  EXPECT_TRUE(at::allclose(whole, truth, kTolerance, kTolerance)) << what;
}

// Numbers of collectives in the forward pass and in the backward pass.
struct Counts {
  int64_t forward = 0;
  int64_t backward = 0;
};

int64_t count(const std::function<void()>& call) {
  const CommDebugMode counted;
  call();
  return counted.get_total_counts();
}

// Expects Python's results for an input in this layout. Gradients must have the
// layouts of their parameters.
Counts expect_as_python(
    Program& program,
    const PythonRun& run,
    const DeviceMesh& mesh,
    const Placements& layout,
    const std::string& result = "") {
  const auto x = distribute_tensor(run.inputs[0], mesh, layout);
  program.module().zero_grad();
  Counts counts;
  at::Tensor y;
  counts.forward = count([&] { y = program({x}); });
  if (!result.empty()) {
    EXPECT_EQ(to_string(DTensor(y).placements()), result);
  }
  expect_close(y, run.outputs[0], "output");
  const auto loss = y.sum();
  counts.backward = count([&] { loss.backward(); });
  for (const auto& item : program.module().named_parameters()) {
    const auto found = run.gradients.find(item.key());
    if (found == run.gradients.end()) {
      continue; // tied to a parameter that is in the list
    }
    const auto& mine = item.value().grad();
    EXPECT_EQ(
        to_string(DTensor(mine).placements()),
        to_string(DTensor(item.value()).placements()))
        << item.key();
    expect_close(mine, found->second, item.key());
  }
  return counts;
}

void on_meshes(
    const std::vector<std::string>& names,
    const std::function<void(const DeviceMesh&)>& fn) {
  for (const auto& shape :
       std::vector<std::vector<int64_t>>{{2, 2}, {3, 2}, {1, 2}, {2, 1}}) {
    run_ranks(shape[0] * shape[1], [&] {
      fn(init_device_mesh(at::kCPU, shape, names));
    });
  }
}

// The batch is sharded over "dp" beside a plan for "tp". The forward pass takes
// no collectives over "dp".
TEST(ProgramMesh, ShardsTheBatchBesideAPlan) {
  const auto path = exported("transformer");
  const auto run = python_runs("transformer")[1]; // 3 sequences of 5
  on_meshes({"dp", "tp"}, [&](const DeviceMesh& mesh) {
    auto program = load_program(path);
    tp_transform(program, mesh);
    const auto counts = expect_as_python(
        program, run, mesh, {Shard(0), Replicate()}, "S(0) S(2)");
    const bool cuts = mesh.size("tp") > 1;
    // One for the embedding, two for each block.
    EXPECT_EQ(counts.forward, cuts ? 1 + 2 * 2 : 0);
    // Over "tp": the inputs of colwise layers and of the head. Over "dp": four
    // biases of rowwise layers, the positions that all sequences share, and all
    // other gradients at once.
    const bool splits = mesh.size("dp") > 1;
    EXPECT_EQ(
        counts.backward, (cuts ? 2 * 2 + 1 : 0) + (splits ? 4 + 1 + 1 : 0));
  });
}

// The attention of nn.TransformerEncoderLayer, which merges batches and heads
// in one dimension and splits them again, keeps the batch sharded.
TEST(ProgramMesh, ShardsTheBatchOfPackedAttention) {
  const auto path = exported("encoder");
  const auto runs = python_runs("encoder"); // with 2 sequences, and with 1
  on_meshes({"dp", "tp"}, [&](const DeviceMesh& mesh) {
    auto program = load_program(path);
    tp_transform(program, mesh);
    const auto counts = expect_as_python(
        program, runs[0], mesh, {Shard(0), Replicate()}, "S(0) R");
    EXPECT_EQ(counts.forward, mesh.size("tp") > 1 ? 4 : 0);
    // A batch of size 1 may be sharded along another dimension in between.
    expect_as_python(program, runs[1], mesh, {Shard(0), Replicate()});
  });
}

// The plan may apply to the first mesh dimension too.
TEST(ProgramMesh, FindsThePlanDimensionByName) {
  const auto path = exported("transformer");
  const auto run = python_runs("transformer")[0];
  run_ranks(6, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {3, 2}, {"model", "data"});
    auto program = load_program(path);
    tp_transform(program, mesh, {.plan_dim = "model"});
    expect_as_python(program, run, mesh, {Replicate(), Shard(0)}, "S(2) S(0)");
    EXPECT_EQ(
        to_string(
            DTensor(program.module().named_parameters()["blocks.0.up.weight"])
                .placements()),
        "S(0) R");
  });
}

// The sequence is sharded over "cp" and heads over "tp". Attention exchanges
// keys of other ranks over "cp". With 3 heads on 2 ranks of "tp", some ranks
// exchange 2 heads by Ulysses, and others 1 head over up to 3 ranks of "cp".
TEST(ProgramMesh, ShardsTheSequenceBesideAPlan) {
  const auto path = exported("causal");
  const auto run = python_runs("causal")[0];
  const ParallelizePlan plan = {
      {"*.[qkv]", ColwiseParallel({.multiple_of = 4})},
      {"*.o", RowwiseParallel({.multiple_of = 4})}};
  on_meshes({"cp", "tp"}, [&](const DeviceMesh& mesh) {
    auto program = load_program(path);
    parallelize_program(program, mesh, plan);
    for (const auto method :
         {RotateMethod::kAllGather,
          RotateMethod::kAllToAll,
          RotateMethod::kUlysses}) {
      const auto scope =
          context_parallel(mesh["cp"], {.rotate_method = method});
      const auto counts = expect_as_python(
          program, run, mesh, {Shard(1), Replicate()}, "S(1) R");
      // Two layers, each with the all-reduce of its rowwise product and the
      // exchanges of attention.
      const auto ranks = mesh.size("cp");
      const int64_t exchanges = ranks == 1     ? 0
          : method == RotateMethod::kAllGather ? 1
          : method == RotateMethod::kAllToAll  ? ranks - 1
                                               : 4;
      EXPECT_EQ(
          counts.forward, 2 * (exchanges + (mesh.size("tp") > 1 ? 1 : 0)));
    }
  });
}

TEST(ProgramMesh, ListsTheDimensionsOfTheMesh) {
  const auto path = exported("transformer");
  run_ranks(4, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2}, {"dp", "mp"});
    auto program = load_program(path);
    try {
      tp_transform(program, mesh);
      ADD_FAILURE() << "no error";
    } catch (const c10::IndexError& error) {
      EXPECT_THAT(error.what_without_backtrace(), HasSubstr("\"tp\""));
      EXPECT_THAT(error.what_without_backtrace(), HasSubstr("mp"));
    }
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
