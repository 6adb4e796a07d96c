// SPDX-License-Identifier: BSD-3-Clause
// Cost of a program from Python relative to the same model as torch::nn
// modules: many small operators, plain, on one rank and on two. Results are per
// operator of the graph.
#include "harness.h"

#include <dtensor/dtensor.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

namespace {

using namespace dtensor;
using torch::Tensor;
using torch::nn::LayerNorm;
using torch::nn::LayerNormOptions;
using torch::nn::Linear;

constexpr int64_t kWidth = 16;
constexpr int64_t kLayers = 40;
constexpr int64_t kCalls = 200;
constexpr int64_t kWarmUp = 20;

// Must match benchmarks/anchors/programs.py.
struct LayerImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    const auto h = torch::relu(up(norm(x)));
    return x + down(h * torch::sigmoid(h));
  }
  LayerNorm norm =
      register_module("norm", LayerNorm(LayerNormOptions({kWidth})));
  Linear up = register_module("up", Linear(kWidth, 2 * kWidth));
  Linear down = register_module("down", Linear(2 * kWidth, kWidth));
};
TORCH_MODULE(Layer);

struct ModelImpl : torch::nn::Module {
  ModelImpl() {
    for (int64_t i = 0; i < kLayers; ++i) {
      layers->push_back(Layer());
    }
  }
  Tensor forward(Tensor x) {
    for (const auto& layer : *layers) {
      x = layer->as<Layer>()->forward(x);
    }
    return x;
  }
  torch::nn::ModuleList layers =
      register_module("layers", torch::nn::ModuleList());
};
TORCH_MODULE(Model);

ParallelizePlan plan() {
  return {
      {"layers.*.up", ColwiseParallel()}, {"layers.*.down", RowwiseParallel()}};
}

// Returns the program that the anchor exported; empty if there is no Python
// with PyTorch.
std::string exported(const std::filesystem::path& folder) {
  const auto path = folder / "program.pt2";
  const auto command = std::string(DTENSOR_PYTHON) + " " + DTENSOR_ANCHORS +
      "/programs.py --export " + path.string() + " >/dev/null 2>&1";
  return std::system(command.c_str()) == 0 ? path.string() : "";
}

// `ranks` of 0: no mesh.
void measure(
    const std::string& name,
    int64_t ranks,
    const std::string& path,
    const bench::Options& options) {
  if (!options.wants(name)) {
    return;
  }
  std::vector<double> program_us;
  std::vector<double> plain_us;
  std::vector<double> extra_us;
  run_ranks(
      std::max<int64_t>(ranks, 1),
      [&](int64_t rank) {
        const torch::NoGradGuard no_grad;
        const auto mesh = init_device_mesh(
            torch::kCPU, {std::max<int64_t>(ranks, 1)}, {"tp"});
        auto program = load_program(path);
        Model model;
        if (ranks > 0) {
          parallelize_program(program, mesh, plan());
          parallelize_module(*model, mesh, plan());
        }
        const auto x = torch::randn({4, kWidth});
        const auto operators = static_cast<double>(program.num_operators());
        const auto us = [&](const auto& call) {
          const double begin = bench::now();
          call();
          return (bench::now() - begin) * 1e6 / operators;
        };
        const int64_t calls = options.smoke ? 1 : kCalls + kWarmUp;
        for (int64_t i = 0; i < calls; ++i) {
          const double ours = us([&] { program({x}); });
          const double plain = us([&] { model(x); });
          if (rank == 0 && (i >= kWarmUp || options.smoke)) {
            program_us.push_back(ours);
            plain_us.push_back(plain);
            extra_us.push_back(ours - plain);
          }
        }
      },
      {.intra_op_threads = 1});
  const double extra = bench::median(extra_us);
  bench::report(
      name,
      {{"us", bench::median(program_us)},
       {"plain_us", bench::median(plain_us)},
       {"extra_us", extra},
       {"spread", bench::spread(extra_us, extra)}});
}

} // namespace

int main(int argc, char** argv) {
  const auto options = bench::parse(
      argc,
      argv,
      "An exported program, compared with the same torch::nn modules");
  constexpr int kSkipped = 77;
  const auto folder = std::filesystem::temp_directory_path();
  const auto path = exported(folder);
  if (path.empty()) {
    std::puts("skipped: exporting a program needs a Python with PyTorch");
    return kSkipped;
  }
  measure("program/plain", 0, path, options);
  measure("program/one_rank", 1, path, options);
  measure("program/two_ranks", 2, path, options);
  std::filesystem::remove(path);
}
