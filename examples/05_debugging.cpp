// SPDX-License-Identifier: BSD-3-Clause
// Looking at a program: who holds what, why an operator took its layouts, what
// it communicated, and when. `05_debugging <folder>` also writes the files that
// `make pictures` makes the pictures of docs/concepts/debugging.md from.
#include "arguments.h"
#include "check.h"

#include <dtensor/dtensor.h>
#include <torch/torch.h>

#include <fstream>
#include <iostream>

using namespace dtensor;

// Empty: files are not wanted.
void write(
    const std::string& folder,
    const char* name,
    const std::string& text) {
  if (!folder.empty()) {
    std::ofstream(folder + "/" + name) << text;
  }
}

// Layouts are values, so what 8 ranks would hold needs none of them.
void who_holds_what(const std::string& folder) {
  const auto rows = parse_spec("f32[10, 12] on (dp=2, tp=4): S(0) S(1)").spec();
  const auto sums =
      parse_spec("f32[10, 12] on (dp=2, tp=4): S(0) P(sum)").spec();
  std::cout << visualize_sharding(*rows) << "\n";
  std::cout << visualize_sharding(*sums) << "\n";
  write(folder, "sharding.svg", sharding_svg(*rows, "weight"));
  write(folder, "partial.svg", sharding_svg(*sums, "x @ weight"));
}

// What would a product of these do, and what else could it?
void why(const std::string& folder) {
  const auto x = parse_spec("f32[64, 256] on (dp=2, tp=4): S(0) S(1)").spec();
  const auto weight = parse_spec("f32[256, 32] on (dp=2, tp=4): R R").spec();
  const auto product = explain("mm", {x, weight});
  std::cout << product << "\n";
  write(folder, "explain.txt", to_string(product));
  CHECK_THAT(
      to_string(*product.results[0]) ==
      "f32[64, 32] on (dp=2, tp=4): S(0) P(sum)");
}

struct MLPImpl : torch::nn::Module {
  MLPImpl()
      : w1(register_module("w1", torch::nn::Linear(256, 1024))),
        w2(register_module("w2", torch::nn::Linear(1024, 256))) {}
  torch::Tensor forward(const torch::Tensor& x) {
    return w2(torch::gelu(w1(x)));
  }
  torch::nn::Linear w1, w2;
};
TORCH_MODULE(MLP);

// The same of a program that runs.
void why_in_a_program(const DeviceMesh& mesh) {
  const auto a = distribute_tensor(torch::rand({8, 6}), mesh, {Shard(1)});
  const auto b = distribute_tensor(torch::rand({6, 4}), mesh, {Replicate()});
  const ExplainMode mode;
  const auto y = torch::mm(a, b).relu();
  if (get_rank() == 0) {
    std::cout << mode << "\n";
  }
  CHECK_THAT(mode.calls().size() == 2);
  CHECK_THAT(mode.calls()[1].communicated.count == 1); // relu of a sum
}

// A step of training on every rank, from the same moment on; the first one
// would show what is decided once.
void when(const DeviceMesh& mesh, Trace& trace) {
  torch::manual_seed(0);
  MLP model;
  parallelize_module(
      *model, mesh, {{"w1", ColwiseParallel()}, {"w2", RowwiseParallel()}});
  const auto x = torch::randn({128, 256}).requires_grad_();
  model(x).sum().backward();
  get_group(mesh).barrier();
  const TraceMode mode(trace, *model);
  RECORD_USER_SCOPE("step");
  model(x).sum().backward();
}

int main(int argc, char** argv) {
  arguments::check(argc, argv, 1, "[folder for pictures]");
  const std::string folder = argc > 1 ? argv[1] : "";
  who_holds_what(folder);
  why(folder);
  Trace trace;
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(torch::kCPU, {2}, {"tp"});
    why_in_a_program(mesh);
    when(mesh, trace);
  });
  write(folder, "trace.json", trace.to_json());
  CHECK_THAT(trace.to_json().find("all_reduce") != std::string::npos);
}
