// SPDX-License-Identifier: BSD-3-Clause
// Modules of torch::nn with replicated parameters and inputs give the same
// results as plain modules, including gradients.
#include <gtest/gtest.h>
#include <tests/ops/operands.h>

#include <dtensor/parallel/distribute_module.h>

namespace dtensor::testing {
namespace TEST_SOURCE {

using Tensors = std::vector<at::Tensor>;
using Inputs = std::vector<at::Tensor>;

Placements everywhere(const DeviceMesh& mesh) {
  return Placements(static_cast<size_t>(mesh.ndim()), Replicate());
}

at::Tensor replicate_like(const at::Tensor& t, const DeviceMesh& mesh) {
  return distribute_tensor(t.detach(), mesh, everywhere(mesh), std::nullopt);
}

at::Tensor leaf(const at::Tensor& t) {
  return t.detach().requires_grad_(t.is_floating_point());
}

// Returns the outputs of `call`, and the gradients of inputs and parameters.
template <class Module, class Call>
Tensors run(Module module, const Call& call, Inputs inputs) {
  for (auto& t : inputs) {
    t = leaf(t);
  }
  Tensors all = call(module, inputs);
  at::Tensor loss;
  for (size_t i = 0; i < all.size(); ++i) {
    const auto term = (all[i] * all[i]).sum();
    loss = i == 0 ? term : loss + term;
  }
  loss.backward();
  for (const auto& t : inputs) {
    all.push_back(t.grad());
  }
  for (const auto& p : module->parameters()) {
    all.push_back(p.grad());
  }
  return all;
}

template <class MakeModule, class Call>
void check_module(
    const std::string& name,
    const MakeModule& make,
    const Call& call,
    const Inputs& inputs) {
  for (const auto& shape :
       std::vector<std::vector<int64_t>>{{2}, {3}, {2, 2}}) {
    Failures failures;
    run_ranks(c10::multiply_integers(shape), [&] {
      const auto mesh = init_device_mesh(at::kCPU, shape);
      const auto build = [&] {
        torch::manual_seed(7);
        auto module = make();
        module->to(at::kDouble);
        return module;
      };
      try {
        const auto expected = run(build(), call, inputs);
        auto module = build();
        distribute_module(*module, mesh);
        Inputs placed;
        for (const auto& t : inputs) {
          placed.push_back(replicate_like(t, mesh));
        }
        const auto got = run(module, call, placed);
        for (size_t i = 0; i < expected.size(); ++i) {
          if (expected[i].defined() != got[i].defined() ||
              (got[i].defined() && !close(full(got[i]), expected[i])) ||
              (got[i].defined() && !is_dtensor(got[i]))) {
            failures.add(name + ": tensor " + std::to_string(i));
          }
        }
      } catch (const std::exception& e) {
        failures.add(name + " threw " + first_line(e));
      }
    });
    EXPECT_EQ(failures.text(), "");
  }
}

namespace nn = torch::nn;

const auto kCallOne = [](auto& module, const Inputs& in) {
  return Tensors{module->forward(in[0])};
};
const auto kCallRnn = [](auto& module, const Inputs& in) {
  const auto [y, h] = module->forward(in[0]);
  return Tensors{y, h};
};
const auto kCallLstm = [](auto& module, const Inputs& in) {
  const auto [y, state] = module->forward(in[0]);
  return Tensors{y, std::get<0>(state), std::get<1>(state)};
};

TEST(ReplicatedModules, RecurrentNetworksWithoutAState) {
  const auto x = uniform({5, 2, 4}, 1);
  check_module(
      "RNN",
      [] { return nn::RNN(nn::RNNOptions(4, 3).num_layers(2)); },
      kCallRnn,
      {x});
  check_module(
      "GRU",
      [] { return nn::GRU(nn::GRUOptions(4, 3).bidirectional(true)); },
      kCallRnn,
      {x});
  check_module(
      "LSTM",
      [] { return nn::LSTM(nn::LSTMOptions(4, 3).num_layers(2)); },
      kCallLstm,
      {x});
  check_module( // no dropout in evaluation, so nothing is drawn
      "LSTM with dropout",
      [] {
        nn::LSTM lstm(nn::LSTMOptions(4, 3).num_layers(2).dropout(0.5));
        lstm->eval();
        return lstm;
      },
      kCallLstm,
      {x});
  check_module(
      "LSTM in batches",
      [] { return nn::LSTM(nn::LSTMOptions(4, 3).batch_first(true)); },
      kCallLstm,
      {x});
}

TEST(ReplicatedModules, RecurrentCellsWithoutAState) {
  const auto x = uniform({2, 4}, 1);
  check_module("RNNCell", [] { return nn::RNNCell(4, 3); }, kCallOne, {x});
  check_module("GRUCell", [] { return nn::GRUCell(4, 3); }, kCallOne, {x});
  check_module(
      "LSTMCell",
      [] { return nn::LSTMCell(4, 3); },
      [](auto& module, const Inputs& in) {
        const auto [h, c] = module->forward(in[0]);
        return Tensors{h, c};
      },
      {x});
}

TEST(ReplicatedModules, RecurrentNetworksWithAState) {
  check_module(
      "LSTM",
      [] { return nn::LSTM(4, 3); },
      [](auto& module, const Inputs& in) {
        const auto [y, state] =
            module->forward(in[0], std::make_tuple(in[1], in[2]));
        return Tensors{y, std::get<0>(state)};
      },
      {uniform({5, 2, 4}, 1), uniform({1, 2, 3}, 2), uniform({1, 2, 3}, 3)});
}

TEST(ReplicatedModules, PackedSequences) {
  check_module(
      "LSTM",
      [] { return nn::LSTM(4, 3); },
      [](auto& module, const Inputs& in) {
        const auto packed = nn::utils::rnn::pack_padded_sequence(in[0], in[1]);
        const auto [y, state] = module->forward_with_packed_input(packed);
        return Tensors{y.data(), std::get<0>(state)};
      },
      {uniform({5, 3, 4}, 1), at::tensor({5, 3, 2}, at::kLong)});
  check_module(
      "LSTM",
      [] { return nn::LSTM(4, 3); },
      [](auto& module, const Inputs& in) {
        const auto packed = nn::utils::rnn::pack_padded_sequence(
            in[0], in[1], /*batch_first=*/false, /*enforce_sorted=*/false);
        const auto [y, state] = module->forward_with_packed_input(packed);
        return Tensors{
            std::get<0>(nn::utils::rnn::pad_packed_sequence(y)),
            std::get<0>(state)};
      },
      {uniform({5, 3, 4}, 1), at::tensor({3, 5, 2}, at::kLong)});
}

TEST(ReplicatedModules, EmbeddingBags) {
  const auto ids = torch::tensor({{1, 2, 4}, {4, 3, 2}}, at::kLong);
  for (const auto& mode : {0, 1, 2}) {
    check_module(
        "EmbeddingBag",
        [&] {
          auto options = nn::EmbeddingBagOptions(6, 3);
          if (mode == 0) {
            options.mode(torch::kSum);
          } else if (mode == 1) {
            options.mode(torch::kMean);
          } else {
            options.mode(torch::kMax);
          }
          return nn::EmbeddingBag(options);
        },
        kCallOne,
        {ids});
  }
}

TEST(ReplicatedModules, PoolingAndConvolution) {
  check_module(
      "MaxPool1d",
      [] { return nn::MaxPool1d(2); },
      kCallOne,
      {uniform({2, 3, 8}, 1)});
  check_module(
      "MaxPool1d with indices",
      [] { return nn::MaxPool1d(2); },
      [](auto& module, const Inputs& in) {
        return Tensors{std::get<0>(module->forward_with_indices(in[0]))};
      },
      {uniform({2, 3, 8}, 1)});
  check_module(
      "Conv2d, circular",
      [] {
        return nn::Conv2d(nn::Conv2dOptions(3, 4, 3).padding(1).padding_mode(
            torch::kCircular));
      },
      kCallOne,
      {uniform({2, 3, 6, 6}, 1)});
  check_module(
      "GroupNorm",
      [] { return nn::GroupNorm(2, 4); },
      kCallOne,
      {uniform({2, 4, 3}, 1)});
  check_module(
      "Upsample",
      [] {
        return nn::Upsample(nn::UpsampleOptions()
                                .scale_factor(std::vector<double>{2, 2})
                                .mode(torch::kBilinear)
                                .align_corners(false));
      },
      kCallOne,
      {uniform({2, 3, 4, 4}, 1)});
}

TEST(ReplicatedModules, CtcLoss) {
  check_module(
      "CTCLoss",
      [] { return nn::CTCLoss(); },
      [](auto& module, const Inputs& in) {
        return Tensors{
            module->forward(in[0].log_softmax(2), in[1], in[2], in[3])};
      },
      {uniform({6, 2, 4}, 1),
       torch::tensor({{1, 2, 3}, {3, 1, 2}}, at::kLong),
       at::tensor({6, 5}, at::kLong),
       at::tensor({3, 2}, at::kLong)});
}

TEST(ReplicatedModules, Attention) {
  check_module(
      "MultiheadAttention",
      [] { return nn::MultiheadAttention(4, 2); },
      [](auto& module, const Inputs& in) {
        const auto [y, weights] = module->forward(in[0], in[0], in[0]);
        return Tensors{y, weights};
      },
      {uniform({5, 2, 4}, 1)});
  check_module(
      "TransformerEncoderLayer",
      [] {
        return nn::TransformerEncoderLayer(
            nn::TransformerEncoderLayerOptions(4, 2).dim_feedforward(8).dropout(
                0));
      },
      kCallOne,
      {uniform({5, 2, 4}, 1)});
  check_module(
      "TransformerDecoderLayer",
      [] {
        return nn::TransformerDecoderLayer(
            nn::TransformerDecoderLayerOptions(4, 2).dim_feedforward(8).dropout(
                0));
      },
      [](auto& module, const Inputs& in) {
        return Tensors{module->forward(in[0], in[1])};
      },
      {uniform({5, 2, 4}, 1), uniform({3, 2, 4}, 2)});
}

// All ranks drop the same elements, drawn from the DTensors' own stream.
TEST(ReplicatedModules, DropoutBetweenLayersIsTheSameOnAllRanks) {
  run_ranks(2, [](int64_t rank) {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    torch::manual_seed(7);
    nn::LSTM lstm(nn::LSTMOptions(4, 8).num_layers(2).dropout(0.5));
    distribute_module(*lstm, mesh);
    at::rand({rank + 1}); // ranks' states for plain tensors differ
    const auto x = replicate_like(at::ones({5, 2, 4}), mesh);
    const auto y = std::get<0>(lstm->forward(x));
    const auto mine = DTensor(y).to_local().detach();
    const auto sum =
        get_group(mesh, int64_t{0}).all_reduce(mine, ReduceOp::kMax);
    EXPECT_TRUE(at::equal(mine, sum));
    lstm->eval();
    const auto without = std::get<0>(lstm->forward(x));
    EXPECT_FALSE(at::equal(full(without).detach(), mine));
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor::testing
