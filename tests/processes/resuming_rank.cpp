// SPDX-License-Identifier: BSD-3-Clause
// A rank that trains, saves after each step, and resumes from the last
// checkpoint, for restarts_test.cpp. With `--dies-after N`, rank 1 is killed
// after N steps unless the launcher has restarted the job.
#include <ATen/Parallel.h>
#include <dtensor/dtensor.h>
#include <tests/command_line.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

namespace {

using namespace dtensor;

constexpr int64_t kSteps = 8;

struct Options {
  std::string folder;
  int64_t dies_after = 0;
};

bool is_first_attempt() {
  const char* restarts = std::getenv("TORCHELASTIC_RESTART_COUNT");
  return restarts == nullptr || std::string(restarts) == "0";
}

torch::nn::Linear make_model(const DeviceMesh& mesh) {
  torch::nn::Linear model(4, 6);
  const torch::NoGradGuard no_grad;
  for (auto& parameter : model->parameters()) {
    parameter.copy_(
        torch::linspace(-1, 1, parameter.numel()).view(parameter.sizes()));
  }
  parallelize_module(
      *model, mesh, ColwiseParallel({.output_layouts = Replicate()}));
  return model;
}

at::Tensor loss_of(torch::nn::Linear& model, int64_t step) {
  const auto x =
      torch::linspace(0, 1, 12).view({3, 4}) + 0.1 * static_cast<double>(step);
  return model(x).square().mean();
}

void train(const Options& options) {
  const auto mesh = init_device_mesh(torch::kCPU, {get_world_size()}, {"tp"});
  auto model = make_model(mesh);
  torch::optim::AdamW optimizer(model->parameters(), 0.05);
  CheckpointExtra extra = {{"step", int64_t{0}}};
  const CheckpointState state = {
      .model = model.get(), .optimizer = &optimizer, .extra = &extra};
  if (const auto last = latest_checkpoint(options.folder)) {
    load_checkpoint(*last, state);
  }
  const auto begun = std::get<int64_t>(extra["step"]);
  double loss = 0;
  for (int64_t step = begun + 1; step <= kSteps; ++step) {
    optimizer.zero_grad();
    const auto l = loss_of(model, step);
    l.backward();
    optimizer.step();
    loss = l.item<double>();
    if (step == options.dies_after && get_rank() == 1 && is_first_attempt()) {
      std::raise(SIGKILL);
    }
    extra["step"] = step;
    save_checkpoint(options.folder + "/step_" + std::to_string(step), state);
    keep_last(options.folder, 2);
  }
  std::printf(
      "rank %d began after step %d and ended with loss %.17g\n",
      static_cast<int>(get_rank()),
      static_cast<int>(begun),
      loss);
}

} // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("A rank that goes on from what was saved");
  app.add_option("folder", options.folder, "Of checkpoints")->required();
  app.add_option("--dies-after", options.dies_after, "Steps of rank 1");
  test::parse_or_exit(app, argc, argv);
  at::set_num_threads(1);
  RunWorldOptions world;
  world.processes.timeout = std::chrono::seconds(60);
  run_world(
      2, [&] { train(options); }, world);
}
