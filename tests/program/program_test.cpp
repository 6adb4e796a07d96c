// SPDX-License-Identifier: BSD-3-Clause
// Programs from Python against what Python computes with them.
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

using Tensors = std::vector<at::Tensor>;

Tensors tensors_in(const std::vector<c10::IValue>& values) {
  Tensors tensors;
  for (const auto& value : values) {
    if (value.isTensor()) {
      tensors.push_back(value.toTensor());
    }
  }
  return tensors;
}

// What gradients are taken of.
at::Tensor total_of(const Tensors& outputs) {
  at::Tensor total;
  for (const auto& output : outputs) {
    if (output.is_floating_point()) {
      const auto sum = full_tensor(output).to(at::kDouble).sum();
      total = total.defined() ? total + sum : sum;
    }
  }
  return total;
}

void expect_close(
    const at::Tensor& ours,
    const at::Tensor& truth,
    const std::string& what) {
  const auto whole = full_tensor(ours).detach();
  ASSERT_EQ(whole.sizes(), truth.sizes()) << what;
  ASSERT_EQ(whole.scalar_type(), truth.scalar_type()) << what;
  const double tolerance = truth.scalar_type() == at::kDouble ? 1e-12 : 1e-5;
  EXPECT_TRUE(at::allclose(whole, truth, tolerance, tolerance))
      << what << "\n"
      << whole << "\nPython:\n"
      << truth;
}

// What Python computed, one call after the other; gradients too.
void expect_as_python(Program& program, const std::vector<PythonRun>& runs) {
  for (const auto& truth : runs) {
    program.module().zero_grad();
    const auto outputs =
        tensors_in(program.run({truth.inputs.begin(), truth.inputs.end()}));
    ASSERT_EQ(outputs.size(), truth.outputs.size());
    for (size_t i = 0; i < outputs.size(); ++i) {
      expect_close(outputs[i], truth.outputs[i], c10::str("output ", i));
    }
    if (!truth.gradients.empty()) {
      total_of(outputs).backward();
    }
    const auto parameters = program.module().named_parameters();
    for (const auto& [name, gradient] : truth.gradients) {
      ASSERT_TRUE(parameters.contains(name)) << name;
      const auto mine = parameters[name].grad();
      ASSERT_TRUE(mine.defined()) << name;
      expect_close(mine, gradient, name);
    }
    const auto buffers = program.module().named_buffers();
    for (const auto& [name, value] : truth.buffers) {
      ASSERT_TRUE(buffers.contains(name)) << name;
      expect_close(buffers[name], value, name);
    }
  }
}

class Programs : public ::testing::TestWithParam<const char*> {};

TEST_P(Programs, ComputeWhatPythonDoes) {
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

ParallelizePlan transformer_plan() {
  return {
      {"tokens", RowwiseParallel()},
      {"blocks.*.attn.[qkv]", ColwiseParallel({.unit = 4})},
      {"blocks.*.attn.o", RowwiseParallel({.unit = 4})},
      {"blocks.*.up", ColwiseParallel()},
      {"blocks.*.down", RowwiseParallel()},
      {"head", ColwiseParallel({.output_layouts = Replicate()})}};
}

TEST(ProgramPlans, CutATransformer) {
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
      // The embedding, two of each block, the logits.
      EXPECT_EQ(counted.get_total_counts(), ranks == 1 ? 0 : 1 + 2 * 2 + 1);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(
    All,
    Programs,
    ::testing::Values(
        "mixed",
        "transformer",
        "normed",
        "normed_functional",
        "views"),
    [](const auto& name) { return std::string(name.param); });

} // namespace TEST_SOURCE
} // namespace dtensor
