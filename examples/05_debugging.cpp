// SPDX-License-Identifier: BSD-3-Clause
// Inspects a program: the shards of each rank, the reason for an operator's
// layouts, and its communication and timing. `05_debugging <folder>` also
// writes the files from which `make pictures` draws the pictures of
// docs/concepts/debugging.md.
#include "arguments.h"
#include "check.h"

#include <dtensor/dtensor.h>
#include <torch/torch.h>

#include <fstream>
#include <iostream>

using namespace dtensor;

// Writes a file. Does nothing if the folder is empty.
void write(
    const std::string& folder,
    const char* name,
    const std::string& text) {
  if (!folder.empty()) {
    std::ofstream(folder + "/" + name) << text;
  }
}

// Layouts are values, so the shards of 8 ranks can be shown without running
// them.
void who_holds_what(const std::string& folder) {
  const auto rows = parse_spec("f32[10, 12] on (dp=2, tp=4): S(0) S(1)").spec();
  const auto sums =
      parse_spec("f32[10, 12] on (dp=2, tp=4): S(0) P(sum)").spec();
  std::cout << visualize_sharding(*rows) << "\n";
  std::cout << visualize_sharding(*sums) << "\n";
  write(folder, "sharding.svg", sharding_svg(*rows, "weight"));
  write(folder, "partial.svg", sharding_svg(*sums, "x @ weight"));
}

// Explains the product of these operands and its alternatives.
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

// Explains an operator in a running program.
void why_in_a_program(const DeviceMesh& mesh) {
  const auto a = distribute_tensor(torch::rand({8, 6}), mesh, {Shard(1)});
  const auto b = distribute_tensor(torch::rand({6, 4}), mesh, {Replicate()});
  const ExplainMode mode;
  const auto y = torch::mm(a, b).relu();
  if (get_rank() == 0) {
    std::cout << mode << "\n";
  }
  CHECK_THAT(mode.calls().size() == 2);
  CHECK_THAT(mode.calls()[1].communicated.count == 1); // relu of a partial sum
}

// Traces a training step on every rank, from a common start time. Skips the
// first step, in which sharding decisions are not cached yet.
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
