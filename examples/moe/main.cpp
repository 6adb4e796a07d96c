// SPDX-License-Identifier: BSD-3-Clause
// A layer of experts that are divided among the ranks. A router sends each
// token to one expert, by an all_to_all, and the result returns the same way.
// On any number of ranks, the losses are those of one rank.
//
//   moe [steps]           20 steps
#include <examples/arguments.h>
#include <examples/losses.h>

#include <torch/torch.h>

using namespace dtensor;
namespace nn = torch::nn;

constexpr int64_t kExperts = 4;
constexpr int64_t kTokens = 24;
constexpr int64_t kFeatures = 6;
constexpr int64_t kHidden = 10;

// Tokens of this rank, in the order of their experts. Each rank has as many
// slots at each expert as it has tokens, so no token is dropped.
struct Slots {
  explicit Slots(const torch::Tensor& expert) : capacity(expert.size(0)) {
    const auto chosen = torch::one_hot(expert, kExperts);
    const auto position = (chosen.cumsum(0) - 1).mul(chosen).sum(1);
    place = expert * capacity + position;
  }
  // (tokens, features) to (experts, slots, features)
  torch::Tensor fill(const torch::Tensor& tokens) const {
    return tokens.new_zeros({kExperts * capacity, tokens.size(1)})
        .index_copy(0, place, tokens)
        .view({kExperts, capacity, tokens.size(1)});
  }
  // (experts, slots, features) to (tokens, features)
  torch::Tensor take(const torch::Tensor& slots) const {
    return slots.flatten(0, 1).index_select(0, place);
  }
  int64_t capacity;
  torch::Tensor place;
};

struct ExpertsImpl : nn::Module {
  ExpertsImpl()
      : router(register_module("router", nn::Linear(kFeatures, kExperts))),
        up(register_parameter(
            "up",
            torch::randn({kExperts, kFeatures, kHidden}) / 3)),
        down(register_parameter(
            "down",
            torch::randn({kExperts, kHidden, kFeatures}) / 3)) {}

  torch::Tensor compute(const torch::Tensor& slots) const {
    return torch::relu(slots.bmm(up)).bmm(down);
  }

  torch::Tensor forward(const torch::Tensor& tokens) { // (tokens, features)
    const auto [weight, expert] = router(tokens).softmax(1).max(1);
    if (!is_dtensor(tokens)) {
      const Slots slots(expert);
      return slots.take(compute(slots.fill(tokens))) * weight.unsqueeze(1);
    }
    const auto mesh = DTensor(tokens).device_mesh();
    const Slots slots(to_local(expert));
    // The slots of all ranks, sharded by rank, and then by expert.
    const DTensor mine(
        DTensor::from_local(slots.fill(to_local(tokens)), mesh, {Shard(1)}));
    const DTensor done(compute(mine.redistribute({Shard(0)}))); // all_to_all
    const auto back = to_local(done.redistribute({Shard(1)}));  // all_to_all
    return DTensor::from_local(slots.take(back), mesh, {Shard(0)}) *
        weight.unsqueeze(1);
  }
  nn::Linear router;
  torch::Tensor up;
  torch::Tensor down;
};
TORCH_MODULE(Experts);

// Replicates the router, and gives each rank its experts and its tokens.
void distribute(
    Experts& model,
    torch::Tensor& tokens,
    torch::Tensor& wanted,
    const DeviceMesh& mesh) {
  distribute_parameter(model->up, mesh, {Shard(0)});
  distribute_parameter(model->down, mesh, {Shard(0)});
  distribute_module(*model, mesh);
  tokens = distribute_tensor(tokens, mesh, {Shard(0)});
  wanted = distribute_tensor(wanted, mesh, {Shard(0)});
}

std::vector<double> train(int64_t steps, const DeviceMesh& mesh) {
  torch::manual_seed(0);
  Experts model;
  model->to(torch::kDouble);
  auto tokens = torch::randn({kTokens, kFeatures}, torch::kDouble);
  auto wanted = tokens.flip(1).sin();
  if (mesh.defined()) {
    distribute(model, tokens, wanted, mesh);
  }
  torch::optim::AdamW optimizer(
      model->parameters(), torch::optim::AdamWOptions(0.02));
  const CommDebugMode comm;
  const auto curve = losses::of_steps(*model, steps, optimizer, [&] {
    return torch::mse_loss(model(tokens), wanted);
  });
  // In each step, tokens go to their experts, results come back, and their
  // gradients go to the experts. The tokens need no gradient.
  CHECK_THAT(
      !mesh.defined() || mesh.size() == 1 ||
      comm.get_comm_counts().at(CollectiveKind::kAllToAll) == 3 * steps);
  return curve;
}

int main(int argc, char** argv) {
  const std::string usage = "[steps, default 20]";
  arguments::check(argc, argv, 1, usage);
  const int64_t steps = arguments::positive(argc, argv, 1, 20, usage);
  const auto alone = losses::of_ranks(1, [&] { return train(steps, {}); });
  losses::print(alone);
  for (const int64_t ranks : {1, 2, 4}) {
    const auto together = losses::of_ranks(ranks, [&] {
      return train(steps, init_device_mesh(torch::kCPU, {ranks}));
    });
    losses::compare(std::to_string(ranks) + " ranks", together, alone);
  }
}
