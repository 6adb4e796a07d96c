// SPDX-License-Identifier: BSD-3-Clause
// Compares MiniLM and SmolLM2, as exported from the package transformers and
// run on ranks, with Python. Skipped without `make models` and that package.
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

struct Run {
  std::vector<at::Tensor> inputs;
  at::Tensor output;
  at::Tensor exact; // results of the same weights in float64
};

struct Truth {
  std::string path; // path of the program; empty: export failed
  std::vector<Run> runs;
  // Inputs of fine-tuning in float64.
  at::Tensor ids;
  at::Tensor mask;
  double rate = 0;
  at::Tensor losses;
  WeightFilePtr changes;
};

void read_training(
    const c10::impl::GenericDict& saved,
    const Folder& folder,
    Truth& truth) {
  truth.ids = saved.at("ids").toTensor();
  truth.mask = saved.at("mask").toTensor();
  truth.rate = saved.at("rate").toTensor().item<double>();
  truth.losses = saved.at("losses").toTensor();
  truth.changes = open_weights(folder / "changes.safetensors");
}

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
    truth.runs.push_back(
        {test_program::tensors_of(about.at("inputs")),
         about.at("output").toTensor(),
         about.at("exact").toTensor()});
  }
  if (saved.contains("losses")) {
    read_training(saved, folder, truth);
  }
  return truth;
}

// Returns the relative error of all values together. Single float32 values are
// not meaningful: sums over features are added in another order, and Python's
// own float32 values differ as much from those in float64.
double relative_error(const at::Tensor& ours, const at::Tensor& truth) {
  return ((full_tensor(ours) - truth).norm() / truth.norm()).item<double>();
}

// Returns the largest error relative to the largest value.
double largest_error(const at::Tensor& ours, const at::Tensor& truth) {
  const auto off = (full_tensor(ours).to(truth.dtype()) - truth).abs().max();
  return (off / truth.abs().max()).item<double>();
}

std::vector<PlanEntryText> minilm_plan() {
  return parse_plan(
      "model.embeddings.word_embeddings              rowwise\n"
      "model.encoder.layer.*.attention.self.query    colwise multiple_of=32\n"
      "model.encoder.layer.*.attention.self.key      colwise multiple_of=32\n"
      "model.encoder.layer.*.attention.self.value    colwise multiple_of=32\n"
      "model.encoder.layer.*.attention.output.dense  rowwise multiple_of=32\n"
      "model.encoder.layer.*.intermediate.dense      colwise\n"
      "model.encoder.layer.*.output.dense            rowwise\n");
}

std::vector<PlanEntryText> smollm2_plan() {
  return parse_plan(
      "lm.model.embed_tokens               rowwise\n"
      "lm.model.layers.*.self_attn.q_proj  colwise multiple_of=192\n"
      "lm.model.layers.*.self_attn.k_proj  colwise multiple_of=64\n"
      "lm.model.layers.*.self_attn.v_proj  colwise multiple_of=64\n"
      "lm.model.layers.*.self_attn.o_proj  rowwise multiple_of=192\n"
      "lm.model.layers.*.mlp.gate_proj     colwise\n"
      "lm.model.layers.*.mlp.up_proj       colwise\n"
      "lm.model.layers.*.mlp.down_proj     rowwise\n"
      "lm.lm_head                          colwise\n");
}

// Checks results and collectives. Neither the first call nor calls with other
// sizes need more collectives than later calls.
void expect_outputs(
    Program& program,
    const Truth& truth,
    double tolerance,
    int64_t collectives) {
  const torch::NoGradGuard no_grad;
  for (const auto& run : truth.runs) {
    at::Tensor output;
    {
      const CommDebugMode counted;
      output = program(run.inputs);
      EXPECT_LE(counted.get_total_counts(), collectives);
    }
    EXPECT_LE(relative_error(output, run.output), tolerance);
    if (run.output.scalar_type() == at::kFloat) {
      EXPECT_LE(
          largest_error(output, run.exact),
          2 * largest_error(run.output, run.exact));
    }
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
      replicate_tensor(truth.ids.narrow(1, 1, last).flatten()));
}

// Compares each parameter's change in ten steps with Python's, which is stored
// in float32. The gradient of the bias of keys consists of rounding errors
// only.
void expect_changes(Program& program, const Truth& truth, double tolerance) {
  const auto parameters = program.module().named_parameters();
  const auto file = open_weights(truth.path);
  for (const auto& weight : truth.changes->weights()) {
    ASSERT_TRUE(parameters.contains(weight.name)) << weight.name;
    const auto before = file->read(weight.name);
    const auto change = full_tensor(parameters[weight.name]).detach() - before;
    const auto expected = truth.changes->read(weight.name).to(at::kDouble);
    EXPECT_LE(
        (change - expected).norm().item<double>(),
        tolerance * expected.norm().item<double>() +
            1e-14 * before.norm().item<double>())
        << weight.name;
  }
}

void expect_training(
    Program& program,
    const Truth& truth,
    bool lm,
    double tolerance) {
  EXPECT_LT(
      truth.losses[-1].item<double>(), 0.985 * truth.losses[0].item<double>());
  torch::optim::SGD optimizer(program.parameters(), truth.rate);
  for (int64_t step = 0; step < truth.losses.numel(); ++step) {
    optimizer.zero_grad();
    const auto loss = loss_of(program({truth.ids, truth.mask}), truth, lm);
    loss.backward();
    optimizer.step();
    EXPECT_LE(relative_error(loss.detach(), truth.losses[step]), tolerance)
        << "step " << step;
  }
  expect_changes(program, truth, 1e-6);
}

void expect_as_python(
    const std::string& name,
    const std::string& dtype,
    const std::vector<PlanEntryText>& plan,
    int64_t collectives,
    double tolerance,
    const std::vector<int64_t>& on_ranks = {1, 2, 3, 4}) {
  const Folder folder;
  const auto truth = exported_public(folder, name, dtype);
  if (truth.path.empty()) {
    GTEST_SKIP() << "Python has no transformers, or `make models` has not run";
  }
  EXPECT_EQ(to_string(find_tp_plan(load_program(truth.path))), to_string(plan));
  for (const int64_t ranks : on_ranks) {
    SCOPED_TRACE(std::to_string(ranks) + " ranks");
    run_ranks(ranks, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {ranks}, {"tp"});
      const MeshScope here(mesh);
      auto program = load_program(truth.path);
      parallelize_program(program, mesh, make_plan(plan));
      expect_outputs(program, truth, tolerance, collectives);
      // transformers computes the norms of a Llama in float32 for any dtype. A
      // difference in the last bit of float64 may therefore become a difference
      // of float32.
      if (dtype == "f64") {
        const bool lm = name == "smollm2";
        expect_training(program, truth, lm, lm ? 1e-6 : tolerance);
      }
    });
  }
}

TEST(SlowPublicMiniLM, IsPythonsInFloat32) {
  expect_as_python("minilm", "f32", minilm_plan(), 15, 1e-6);
}

TEST(SlowPublicMiniLM, IsPythonsInFloat64) {
  expect_as_python("minilm", "f64", minilm_plan(), 15, 1e-9);
}

TEST(SlowPublicSmolLM2, IsPythonsInFloat32) {
  expect_as_python("smollm2", "f32", smollm2_plan(), 62, 1e-6);
}

// Each number of ranks is a suite of its own, because of its time limit.
void expect_smollm2_as_python(int64_t ranks) {
  expect_as_python("smollm2", "f64", smollm2_plan(), 62, 1e-9, {ranks});
}

TEST(SlowPublicSmolLM2On1, IsPythonsInFloat64) {
  expect_smollm2_as_python(1);
}

TEST(SlowPublicSmolLM2On2, IsPythonsInFloat64) {
  expect_smollm2_as_python(2);
}

TEST(SlowPublicSmolLM2On3, IsPythonsInFloat64) {
  expect_smollm2_as_python(3);
}

TEST(SlowPublicSmolLM2On4, IsPythonsInFloat64) {
  expect_smollm2_as_python(4);
}

} // namespace TEST_SOURCE
} // namespace dtensor
