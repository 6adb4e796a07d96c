// SPDX-License-Identifier: BSD-3-Clause
// Compares TorchScript models on ranks with Python's results.
#include "tests/program/exported.h"

#include <dtensor/contrib/torchscript/parallelize_script.h>
#include <dtensor/dtensor.h>
#include <gtest/gtest.h>
#include <torch/script.h>
#include <torch/torch.h>

namespace dtensor {
namespace TEST_SOURCE {

using test_program::exported;
using test_program::python_runs;

ParallelizePlan script_plan() {
  return make_plan(
      parse_plan("tokens             rowwise\n"
                 "blocks.*.attn.[qkv] colwise multiple_of=4\n"
                 "blocks.*.attn.o    rowwise multiple_of=4\n"
                 "blocks.*.up        colwise\n"
                 "blocks.*.down      rowwise\n"
                 "head               colwise\n"));
}

class Scripts : public ::testing::TestWithParam<const char*> {};

TEST_P(Scripts, RunOnRanksAsInPython) {
  auto path = exported(GetParam());
  path.replace(path.size() - 4, 4, ".ts");
  const auto truth = python_runs("script")[0];
  for (const int64_t ranks : {1, 2, 3, 5}) {
    run_ranks(ranks, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {ranks}, {"tp"});
      auto script = torch::jit::load(path);
      const auto modules = parallelize_script(script, mesh, script_plan());
      const auto scope = implicit_replication();
      // TorchScript optimizes its graph in the first calls.
      for (int call = 0; call < 3; ++call) {
        modules->zero_grad();
        const auto logits =
            script.forward({replicate_tensor(truth.inputs[0], mesh)})
                .toTensor();
        EXPECT_TRUE(at::allclose(
            full_tensor(logits).detach(), truth.outputs[0], 1e-12, 1e-12));
        full_tensor(logits).sum().backward();
        for (const auto& item : modules->named_parameters()) {
          EXPECT_TRUE(at::allclose(
              full_tensor(item.value().grad()),
              truth.gradients.at(
                  item.key() == "head.weight" ? "tokens.weight" : item.key()),
              1e-12,
              1e-12))
              << item.key();
        }
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(
    All,
    Scripts,
    ::testing::Values("scripted", "traced"),
    [](const auto& name) { return std::string(name.param); });

} // namespace TEST_SOURCE
} // namespace dtensor
