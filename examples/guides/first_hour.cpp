// SPDX-License-Identifier: BSD-3-Clause
// Habits from single-device programs that throw here, and the code to write
// instead.
#include "../arguments.h"
#include "../check.h"

#include <dtensor/dtensor.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <sstream>
#include <string>

#include <unistd.h>

using namespace dtensor;
using torch::Tensor;

template <class Function>
std::string error_of(const Function& function) {
  try {
    function();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

template <class Function>
void throws(const Function& function, const std::string& text) {
  const std::string error = error_of(function);
  if (error.find(text) == std::string::npos) {
    std::cerr << "expected \"" << text << "\", got: " << error << "\n";
    std::abort();
  }
}

void plain_operands(const DeviceMesh& mesh) {
  Tensor x = distribute_tensor(torch::ones({4, 6}), mesh, {Shard(0)});
  Tensor bias = torch::ones({6});
  throws([&] { return x + bias; }, "got mixed plain tensor and DTensor");
  // [plain]
  Tensor y = x + replicate_tensor(bias, mesh); // bias is equal on all ranks
  {
    const auto scope = implicit_replication(); // for a block of code
    y = x + bias;
  }
  // [/plain]
  CHECK_THAT(torch::equal(full_tensor(y), torch::full({4, 6}, 2.0)));
}

void values(const DeviceMesh& mesh) {
  Tensor x = distribute_tensor(torch::ones({4, 6}), mesh, {Shard(0)});
  std::ostringstream out;
  throws([&] { return x.data_ptr(); }, "data_ptr() and storage() do not exist");
  throws([&] { out << x; }, "print DTensor(t)");
  // [values]
  out << DTensor(x);                     // the layout, then the local shard
  Tensor unsharded = full_tensor(x);     // plain, all values, on every rank
  Tensor local = DTensor(x).to_local();  // plain, the local shard
  double total = x.sum().item<double>(); // the sum over all ranks
  // [/values]
  CHECK_THAT(unsharded.size(0) == 4);
  CHECK_THAT(local.size(0) <= 4);
  CHECK_THAT(total == 24);
}

void writes(const DeviceMesh& mesh) {
  // [writes]
  Tensor x = distribute_tensor(torch::ones({4, 6}), mesh, {Shard(0)});
  Tensor rows = x.narrow(0, 1, 2); // a copy
  rows.mul_(3);                    // also writes the rows of `x`
  x[1].zero_();                    // to_local(rows) would throw now
  Tensor sum = rows.sum();         // copies the values again: 18
  // [/writes]
  CHECK_THAT(sum.item<double>() == 18);
  CHECK_THAT(x.sum().item<double>() == 30);
}

// [operator]
Tensor invert(const Tensor& a) {
  return torch::linalg_inv(a);
}

TORCH_LIBRARY(solvers, library) { // <torch/library.h>
  library.def("invert(Tensor a) -> Tensor");
  library.impl("invert", c10::DispatchKey::CPU, invert);
}
// [/operator]

void missing_rules(const DeviceMesh& mesh) {
  Tensor x = distribute_tensor(torch::eye(4), mesh, {Shard(0)});
  // [missing]
  const auto solve = [](const Tensor& a) { // calls the operator
    return c10::Dispatcher::singleton()
        .findSchemaOrThrow("solvers::invert", "")
        .typed<Tensor(const Tensor&)>()
        .call(a);
  };
  // 1. Replicate the operands: each rank computes all of the result.
  Tensor y = solve(DTensor(x).redistribute({Replicate()}));
  // 2. Replicate for every operator without a rule in a block, with a warning.
  {
    const auto scope = on_missing_rule(Replicate());
    y = solve(x);
  }
  // 3. Samples are independent of each other: compute on local shards.
  const auto solve_each = local_map(
      [&](const Tensor& local) { return solve(local); },
      {Shard(0)},    // layout of the result
      {{Shard(0)}}); // layout of the argument
  Tensor batch = distribute_tensor(
      torch::eye(4).expand({8, 4, 4}).contiguous(), mesh, {Shard(0)});
  Tensor z = solve_each(batch);
  // [/missing]
  throws([&] { return solve(x); }, "no sharding rule");
  CHECK_THAT(torch::allclose(full_tensor(y), torch::eye(4)));
  CHECK_THAT(torch::allclose(full_tensor(z), full_tensor(batch)));
}

struct TiedImpl : torch::nn::Module {
  TiedImpl() {
    register_module("embedding", embedding);
    register_module("head", head);
  }
  torch::nn::Embedding embedding{8, 4};
  torch::nn::Linear head{torch::nn::LinearOptions(4, 8).bias(false)};
};
TORCH_MODULE(Tied);

void tied_weights(const DeviceMesh& mesh) {
  Tied wrong;
  wrong->head->weight = wrong->embedding->weight;
  throws(
      [&] {
        parallelize_module(*wrong, mesh, {{"embedding", RowwiseParallel()}});
      },
      "tie_weights");
  // [tied]
  Tied model;
  tie_weights(*model->head, *model->embedding);
  // [/tied]
  CHECK_THAT(model->head->named_parameters()["weight"].is_same(
      model->embedding->weight));
}

void one_model_per_rank() {
  torch::nn::Linear shared(4, 4);
  throws(
      [&] {
        run_ranks(2, [&] {
          const auto mesh = init_device_mesh(torch::kCPU, {2}, {"tp"});
          parallelize_module(*shared, mesh, ColwiseParallel());
        });
      },
      "Build one model per rank");
  // [models]
  double first = 0; // plain values are passed out by reference
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(torch::kCPU, {2}, {"tp"});
    torch::manual_seed(0);
    torch::nn::Linear model(4, 4); // inside: one model per rank
    parallelize_module(
        *model, mesh, ColwiseParallel({.output_layouts = Replicate()}));
    const Tensor loss = model(torch::ones({2, 4})).sum();
    if (get_rank() == 0) {
      first = loss.item<double>();
    }
  });
  // [/models]
  torch::manual_seed(0);
  torch::nn::Linear plain(4, 4);
  const auto expected = plain(torch::ones({2, 4})).sum().item<double>();
  CHECK_THAT(std::abs(first - expected) < 1e-5);
}

void evaluate_on_rank_0(const DeviceMesh& mesh) {
  torch::manual_seed(0);
  torch::nn::Linear model(4, 4);
  parallelize_module(
      *model, mesh, ColwiseParallel({.output_layouts = Replicate()}));
  // [rank0]
  // Wrong: if (get_rank() == 0) std::cout << model(x).sum();
  // All ranks compute, one prints.
  const auto sum = model(torch::ones({2, 4})).sum().item<double>();
  if (get_rank() == 0) {
    std::cout << "sum of the output " << sum << "\n";
  }
  // [/rank0]
}

void files(const DeviceMesh& mesh, const std::string& folder) {
  torch::nn::Linear model(4, 4);
  parallelize_module(*model, mesh, ColwiseParallel());
  throws(
      [&] {
        std::ostringstream out;
        torch::save(model, out);
      },
      "save_checkpoint");
  // [files]
  save_checkpoint(folder, {.model = model.get()}); // all ranks call it
  load_checkpoint(folder, {.model = model.get()});
  // [/files]
}

void gradients(const DeviceMesh& mesh) {
  torch::nn::Linear model(4, 4);
  parallelize_module(*model, mesh, ColwiseParallel());
  model(torch::ones({2, 4})).sum().backward();
  // [clip]
  dtensor::clip_grad_norm_(model->parameters(), 1.0);
  // [/clip]
}

int main(int argc, char** argv) {
  const std::string usage = "[RANKS]";
  arguments::check(argc, argv, 1, usage);
  arguments::refuse_launcher("first_hour");
  const int64_t ranks = arguments::positive(argc, argv, 1, 2, usage);
  const std::string folder = std::filesystem::temp_directory_path() /
      ("first-hour-" + std::to_string(getpid()));
  run_ranks(ranks, [&] {
    const auto mesh = init_device_mesh(torch::kCPU, {get_world_size()}, {"tp"});
    plain_operands(mesh);
    values(mesh);
    writes(mesh);
    missing_rules(mesh);
    tied_weights(mesh);
    evaluate_on_rank_0(mesh);
    files(mesh, folder);
    gradients(mesh);
  });
  one_model_per_rank();
  std::filesystem::remove_all(folder);
}
