// SPDX-License-Identifier: BSD-3-Clause
// MiniLM and SmolLM2 as the package transformers has them, exported and run on
// ranks, against Python. They skip without `make models` and that package.
#include "exported.h"
#include "tests/weights/files.h"

#include <dtensor/dtensor.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <sys/wait.h>

#include <cstdlib>

namespace dtensor {
namespace TEST_SOURCE {

using test_weights::Folder;

struct Truth {
  std::string path; // of the program; empty: it could not be made
  std::vector<std::pair<std::vector<at::Tensor>, at::Tensor>> runs;
  at::Tensor ids;
  at::Tensor mask;
  double rate = 0;
  at::Tensor losses;
};

Truth exported_public(
    const Folder& folder,
    const std::string& name,
    const std::string& dtype) {
  const auto command = std::string(DTENSOR_PYTHON) + " " + DTENSOR_TESTS_DIR +
      "/program/export_public.py " + name + " " + dtype + " " + DTENSOR_MODELS +
      " " + (folder / "");
  const int status = std::system(command.c_str());
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
    return {};
  }
  TORCH_CHECK(status == 0, command, " failed: ", status);
  Truth truth;
  truth.path = folder / "model.pt2";
  const auto saved =
      test_program::unpickled(folder / "model.pt").toGenericDict();
  const auto runs = saved.at("runs");
  for (const auto& run : runs.toListRef()) {
    const auto about = run.toGenericDict();
    truth.runs.emplace_back(
        test_program::tensors_of(about.at("inputs")),
        about.at("output").toTensor());
  }
  truth.ids = saved.at("ids").toTensor();
  truth.mask = saved.at("mask").toTensor();
  truth.rate = saved.at("rate").toTensor().item<double>();
  truth.losses = saved.at("losses").toTensor();
  return truth;
}

// Of all values together: single ones of float32 differ by up to 3e-6 of the
// largest, as sums over features are taken in another order.
double relative_error(const at::Tensor& ours, const at::Tensor& truth) {
  return ((full_tensor(ours) - truth).norm() / truth.norm()).item<double>();
}

std::vector<PlanLine> minilm_plan() {
  return parse_plan(
      "model.embeddings.word_embeddings              rowwise\n"
      "model.encoder.layer.*.attention.self.query    colwise unit=32\n"
      "model.encoder.layer.*.attention.self.key      colwise unit=32\n"
      "model.encoder.layer.*.attention.self.value    colwise unit=32\n"
      "model.encoder.layer.*.attention.output.dense  rowwise unit=32\n"
      "model.encoder.layer.*.intermediate.dense      colwise\n"
      "model.encoder.layer.*.output.dense            rowwise\n");
}

std::vector<PlanLine> smollm2_plan() {
  return parse_plan(
      "lm.model.embed_tokens               rowwise\n"
      "lm.model.layers.*.self_attn.q_proj  colwise unit=192\n"
      "lm.model.layers.*.self_attn.k_proj  colwise unit=64\n"
      "lm.model.layers.*.self_attn.v_proj  colwise unit=64\n"
      "lm.model.layers.*.self_attn.o_proj  rowwise unit=192\n"
      "lm.model.layers.*.mlp.gate_proj     colwise\n"
      "lm.model.layers.*.mlp.up_proj       colwise\n"
      "lm.model.layers.*.mlp.down_proj     rowwise\n"
      "lm.lm_head                          colwise\n");
}

// The first call, and those of other sizes, take no more than later ones.
void expect_outputs(
    Program& program,
    const Truth& truth,
    double tolerance,
    int64_t collectives) {
  const torch::NoGradGuard no_grad;
  for (const auto& [inputs, truth_of_it] : truth.runs) {
    at::Tensor output;
    {
      const CommDebugMode counted;
      output = program(inputs);
      EXPECT_LE(counted.get_total_counts(), collectives);
    }
    EXPECT_LE(relative_error(output, truth_of_it), tolerance);
  }
}

at::Tensor loss_of(const at::Tensor& output, const Truth& truth, bool lm) {
  if (!lm) {
    return (output * output).mean();
  }
  namespace F = torch::nn::functional;
  const auto last = truth.ids.size(1) - 1;
  return F::cross_entropy(
      output.narrow(1, 0, last).flatten(0, 1),
      replicate(truth.ids.narrow(1, 1, last).flatten()));
}

void expect_training(
    Program& program,
    const Truth& truth,
    bool lm,
    double tolerance) {
  torch::optim::SGD optimizer(program.parameters(), truth.rate);
  for (int64_t step = 0; step < truth.losses.numel(); ++step) {
    optimizer.zero_grad();
    const auto loss = loss_of(program({truth.ids, truth.mask}), truth, lm);
    loss.backward();
    optimizer.step();
    EXPECT_LE(relative_error(loss.detach(), truth.losses[step]), tolerance)
        << "step " << step;
  }
}

void expect_as_python(
    const std::string& name,
    const std::string& dtype,
    const std::vector<PlanLine>& plan,
    int64_t collectives,
    double tolerance) {
  const Folder folder;
  const auto truth = exported_public(folder, name, dtype);
  if (truth.path.empty()) {
    GTEST_SKIP() << "Python has no transformers, or `make models` has not run";
  }
  EXPECT_EQ(to_string(find_tp_plan(load_program(truth.path))), to_string(plan));
  for (const int64_t ranks : {1, 2, 3, 4}) {
    SCOPED_TRACE(std::to_string(ranks) + " ranks");
    run_ranks(ranks, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {ranks}, {"tp"});
      const MeshScope here(mesh);
      auto program = load_program(truth.path);
      parallelize_program(program, mesh, make_plan(plan));
      expect_outputs(program, truth, tolerance, collectives);
      // transformers computes the norms of a Llama in float32 whatever it is,
      // so that the last bit of a sum may become one of float32 there.
      if (dtype == "f64") {
        const bool lm = name == "smollm2";
        expect_training(program, truth, lm, lm ? 1e-6 : tolerance);
      }
    });
  }
}

TEST(SlowPublicPrograms, MiniLM) {
  expect_as_python("minilm", "f32", minilm_plan(), 15, 1e-6);
  expect_as_python("minilm", "f64", minilm_plan(), 15, 1e-9);
}

TEST(SlowPublicPrograms, SmolLM2) {
  expect_as_python("smollm2", "f32", smollm2_plan(), 62, 1e-6);
  expect_as_python("smollm2", "f64", smollm2_plan(), 62, 1e-9);
}

} // namespace TEST_SOURCE
} // namespace dtensor
