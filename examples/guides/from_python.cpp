// SPDX-License-Identifier: BSD-3-Clause
// C++ counterparts of Python code. Given a file name, it loads a state
// dictionary that torch.save has written.
#include "../arguments.h"
#include "../check.h"
#include "../state_file.h"

#include <dtensor/dtensor.h>
#include <torch/torch.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>

#include <unistd.h>

using namespace dtensor;

// [module]
struct MLPImpl : torch::nn::Module {
  MLPImpl() {
    register_module("w1", w1);
    register_module("w2", w2);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return w2(torch::relu(w1(x)));
  }
  torch::nn::Linear w1{16, 64}, w2{64, 16};
};
TORCH_MODULE(MLP);
// [/module]

// [train]
void train() {
  auto mesh = init_device_mesh(torch::kCPU, {get_world_size()}, {"tp"});
  torch::manual_seed(0);
  MLP model;
  parallelize_module(
      *model,
      mesh,
      {
          {"w1", ColwiseParallel()},
          {"w2", RowwiseParallel()},
      });
  torch::optim::AdamW optimizer(model->parameters(), 1e-3);
  for (int step = 0; step < 10; ++step) {
    auto loss = model(torch::randn({8, 16})).pow(2).mean();
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
  }
  torch::Tensor weight = full_tensor(model->w1->weight);
  if (get_rank() == 0) {
    std::cout << weight.sizes() << "\n";
  }
}
// [/train]

// [tensors]
void tensors(const DeviceMesh& mesh) {
  torch::Tensor x = distribute_tensor(torch::ones({8, 4}), mesh, {Shard(0)});
  torch::Tensor y = x * 2;   // any function that takes tensors takes x
  CHECK_THAT(is_dtensor(y)); // isinstance(y, DTensor)
  CHECK_THAT(DTensor(y).placements() == Placements{Shard(0)}); // y.placements
  CHECK_THAT(to_local(y).size(0) == 8 / mesh.size());          // y.to_local()
}
// [/tensors]

// [scopes]
void scopes(const DeviceMesh& mesh) {
  const auto x = distribute_tensor(torch::ones({8, 4}), mesh, {Shard(0)});
  const CommDebugMode comm; // with CommDebugMode() as comm:
  {
    const auto scope = implicit_replication(); // with implicit_replication():
    const auto y = x + torch::ones({4});
    CHECK_THAT(is_dtensor(y));
  }
  CHECK_THAT(comm.get_total_counts() == 0);
}
// [/scopes]

// [weights]
// Loads a file with one state dictionary, which one rank reads for all.
void load(torch::nn::Module& model, const std::string& path) {
  const auto state = get_rank() == 0 ? load_state(path) : StateDict();
  set_model_state_dict(model, state, {.broadcast_from_rank0 = true});
}
// [/weights]

void weights(const DeviceMesh& mesh, const std::string& path) {
  MLP model;
  parallelize_module(
      *model, mesh, {{"w1", ColwiseParallel()}, {"w2", RowwiseParallel()}});
  load(*model, path);
  const auto x = torch::arange(16.0).view({1, 16}).div(16);
  const auto sum = model(x).sum().item<double>();
  if (get_rank() == 0) {
    std::cout << "sum of the output " << sum << "\n";
  }
}

int main(int argc, char** argv) {
  const char* const usage = "[ranks, default 2] [file of torch.save]";
  arguments::check(argc, argv, 2, usage);
  arguments::refuse_launcher("from_python");
  const int64_t ranks = arguments::positive(argc, argv, 1, 2, usage);
  std::string path = argc > 2 ? argv[2] : "";
  const bool is_given = !path.empty();
  if (!is_given) {
    path = std::filesystem::temp_directory_path() /
        ("from-python-" + std::to_string(getpid()) + ".pt");
    save_state(path, get_model_state_dict(*MLP()));
  }
  run_ranks(ranks, [&] {
    train();
    const auto mesh = init_device_mesh(torch::kCPU, {get_world_size()}, {"tp"});
    tensors(mesh);
    scopes(mesh);
    weights(mesh, path);
  });
  if (!is_given) {
    std::filesystem::remove(path);
  }
}
