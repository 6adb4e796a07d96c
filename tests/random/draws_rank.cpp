// SPDX-License-Identifier: BSD-3-Clause
// Program of a rank that prints its draws, a name and a value per line:
//
//   dtensor-run -n 2 dtensor_draws_rank            # all ranks print the same
//   mpirun -n 3 dtensor_draws_rank --seed 4        # same under every launcher
//   dtensor_draws_rank --ranks 2                   # threads
#include <dtensor/dtensor.h>
#include <torch/torch.h>

#include <tests/command_line.h>

#include <iomanip>
#include <iostream>
#include <sstream>

using namespace dtensor;
namespace nn = torch::nn;

namespace {

/// The lines of a rank, printed at once.
class Report {
 public:
  void add(const std::string& name, const at::Tensor& value) {
    const auto whole = full_tensor(value.detach()).to(torch::kDouble);
    text_ << name << " " << std::setprecision(17)
          << (whole.flatten() * torch::arange(1, whole.numel() + 1))
                 .sum()
                 .item<double>()
          << "\n";
  }
  ~Report() {
    std::cout << text_.str() << std::flush;
  }

 private:
  std::ostringstream text_;
};

struct BlockImpl : nn::Module {
  BlockImpl() {
    register_module("q", q);
    register_module("o", o);
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto heads = torch::dropout(q(x), 0.5, is_training());
    return torch::dropout(o(heads), 0.5, is_training());
  }
  nn::Linear q{8, 8};
  nn::Linear o{8, 8};
};
TORCH_MODULE(Block);

// Returns this rank's local tensor in any layout.
at::Tensor mine(const at::Tensor& t) {
  return DTensor(t.detach()).to_local();
}

void draw_dtensors(Report& report, const DeviceMesh& mesh) {
  const auto drawn = randn({5, 3}, mesh, {Replicate()});
  report.add("dtensor", mine(drawn));
  report.add("sharded_dtensor", randn({5, 3}, mesh, {Shard(0)}));
  report.add("dropout_of_dtensor", mine(torch::dropout(drawn, 0.5, true)));
  at::Tensor filled = zeros({4, 4}, mesh, {Replicate()});
  report.add("initialiser", mine(nn::init::xavier_uniform_(filled)));
}

void defer(Report& report, const DeviceMesh& mesh) {
  nn::Linear deferred{nullptr};
  {
    const DeferredInit scope;
    deferred = nn::Linear(6, 4);
  }
  parallelize_module(*deferred, mesh, RowwiseParallel());
  materialize(*deferred);
  report.add("deferred_bias", mine(deferred->bias));
  report.add("deferred_weight", deferred->weight);
}

void train(Report& report, const DeviceMesh& mesh) {
  Block block;
  report.add("weight", block->q->weight);
  parallelize_module(
      *block,
      mesh,
      {{"q", ColwiseParallel({.multiple_of = 2})},
       {"o", RowwiseParallel({.multiple_of = 2})}});
  torch::optim::SGD optimizer(block->parameters(), 0.1);
  for (int i = 0; i < 3; ++i) {
    const auto batch = torch::randn({4, 8});
    report.add("batch" + std::to_string(i), batch);
    optimizer.zero_grad();
    const auto y = block(batch);
    report.add("output" + std::to_string(i), y);
    y.pow(2).mean().backward();
    optimizer.step();
    report.add("gradient" + std::to_string(i), mine(block->o->bias.grad()));
  }
}

void draw(Report& report) {
  const auto mesh = init_device_mesh(torch::kCPU, {get_world_size()}, {"tp"});
  report.add("plain", torch::rand({3}));
  draw_dtensors(report, mesh);
  defer(report, mesh);
  train(report, mesh);
  report.add("dtensor_after", mine(randn({3}, mesh)));
  const auto state = get_random_state();
  report.add("after", torch::rand({3}));
  set_random_state(state);
  report.add("again", torch::rand({3}));
}

} // namespace

int main(int argc, char** argv) {
  CLI::App app("Prints what a rank draws");
  int64_t ranks = 2;
  int64_t seed = -1;
  int64_t worlds = 1;
  app.add_option("--ranks", ranks, "How many threads are ranks");
  app.add_option("--seed", seed, "Of the program; -1: none");
  app.add_option("--worlds", worlds, "How many, one after the other");
  test::parse_or_exit(app, argc, argv);
  at::set_num_threads(1);
  if (seed >= 0) {
    torch::manual_seed(static_cast<uint64_t>(seed));
  }
  for (int64_t i = 0; i < worlds; ++i) {
    run_world(ranks, [] {
      Report report;
      draw(report);
    });
    if (!launched() || launched()->rank > 0) {
      torch::rand({7}); // ranks draw different numbers between worlds
    }
  }
  return 0;
}
