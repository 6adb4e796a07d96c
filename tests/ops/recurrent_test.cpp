// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/parallel/autocast.h>

#include "oracle.h"

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::testing;

const Placements kAll = {
    Replicate(),
    Shard(0),
    Shard(1),
    Partial(ReduceOp::kSum)};
const Placements kVector = {Replicate(), Shard(0)};

Tensors operands(int64_t gates) {
  return {
      variable({5, 3}, 1),
      variable({5, 2}, 2),
      variable({5, 2}, 3),
      variable({gates * 2, 3}, 4),
      variable({gates * 2, 2}, 5),
      variable({gates * 2}, 6),
      variable({gates * 2}, 7)};
}

const std::vector<Placements> kChoices =
    {kAll, kAll, kAll, kAll, kAll, kVector, kVector};

TEST(RecurrentTest, Cells) {
  expect_same_as_plain(
      {"gru_cell",
       operands(3),
       kChoices,
       [](const Tensors& t) {
         return at::gru_cell(t[0], t[1], t[3], t[4], t[5], t[6]) + t[2];
       }},
      8);
  expect_same_as_plain(
      {"rnn_tanh_cell",
       operands(1),
       kChoices,
       [](const Tensors& t) {
         return at::rnn_tanh_cell(t[0], t[1], t[3], t[4], t[5], t[6]) + t[2];
       }},
      8);
  expect_same_as_plain(
      {"lstm_cell",
       operands(4),
       kChoices,
       [](const Tensors& t) {
         const auto [h, c] =
             at::lstm_cell(t[0], {t[1], t[2]}, t[3], t[4], t[5], t[6]);
         return h * 2 + c;
       }},
      8);
}

TEST(RecurrentTest, ABiasOfItsOwnForEachSample) {
  auto all = operands(1);
  all[6] = variable({5, 2}, 7);
  expect_same_as_plain(
      {"rnn_tanh_cell",
       all,
       kChoices,
       [](const Tensors& t) {
         return at::rnn_tanh_cell(t[0], t[1], t[3], t[4], t[5], t[6]) + t[2];
       }},
      8);
}

/// Options of a network of layers.
struct Net {
  bool batch_first = false;
  bool bidirectional = false;
  int64_t layers = 1;
  bool biases = true;
  int64_t samples = 5;
};

// Returns input, hidden state, cell state and parameters.
Tensors operands_of(const Net& net, int64_t gates) {
  const int64_t directions = net.bidirectional ? 2 : 1;
  const int64_t hidden = 2;
  const auto sizes =
      net.batch_first ? Sizes{net.samples, 4, 3} : Sizes{4, net.samples, 3};
  const Sizes state{net.layers * directions, net.samples, hidden};
  Tensors all{variable(sizes, 1), variable(state, 2), variable(state, 3)};
  for (int64_t i = 0; i < net.layers * directions; ++i) {
    const auto seed = static_cast<uint64_t>(10 * i);
    const auto inputs = i < directions ? 3 : hidden * directions;
    all.push_back(variable({gates * hidden, inputs}, seed + 4));
    all.push_back(variable({gates * hidden, hidden}, seed + 5));
    if (net.biases) {
      all.push_back(variable({gates * hidden}, seed + 6));
      all.push_back(variable({gates * hidden}, seed + 7));
    }
  }
  return all;
}

const std::vector<Net> kNets{
    {},
    {.batch_first = true, .layers = 2},
    {.bidirectional = true, .layers = 2, .biases = false},
    {.batch_first = true, .bidirectional = true, .samples = 2}};

void expect_same_layers(
    const Net& net,
    int64_t gates,
    const TensorFunction& fn) {
  SameAsPlainOptions options;
  options.meshes = {{1}, {2}, {3}, {2, 2}, {2, 3}};
  options.layouts = 8;
  options.placements = {kAll, kAll, kAll};
  options.placements[0].push_back(Shard(2));
  const auto all = operands_of(net, gates);
  options.placements.resize(all.size(), {Replicate(), Shard(0)});
  EXPECT_NO_THROW(expect_same_as_plain(fn, all, options));
}

TEST(RecurrentTest, Layers) {
  for (const auto& net : kNets) {
    const auto parameters = [](const Tensors& t) {
      return Tensors(t.begin() + 3, t.end());
    };
    expect_same_layers(net, 4, [&](const Tensors& t) {
      const auto [y, h, c] = at::lstm(
          t[0],
          {t[1], t[2]},
          parameters(t),
          net.biases,
          net.layers,
          0,
          true,
          net.bidirectional,
          net.batch_first);
      return Tensors{y, h, c};
    });
    const auto simple = [&](auto op) {
      return [&, op](const Tensors& t) {
        const auto [y, h] =
            op(t[0],
               t[1],
               parameters(t),
               net.biases,
               net.layers,
               0,
               true,
               net.bidirectional,
               net.batch_first);
        return Tensors{y, h, t[2] * 2};
      };
    };
    using Op = std::tuple<at::Tensor, at::Tensor> (*)(
        const at::Tensor&,
        const at::Tensor&,
        at::TensorList,
        bool,
        int64_t,
        double,
        bool,
        bool,
        bool);
    expect_same_layers(net, 3, simple(static_cast<Op>(at::gru)));
    expect_same_layers(net, 1, simple(static_cast<Op>(at::rnn_tanh)));
    expect_same_layers(net, 1, simple(static_cast<Op>(at::rnn_relu)));
  }
}

// torch::nn's own modules, whose states are created from the input's sizes.
TEST(RecurrentTest, ModulesOnShardedSamplesCommunicateNothing) {
  const auto make = [] {
    torch::manual_seed(5);
    torch::nn::LSTM lstm(
        torch::nn::LSTMOptions(3, 4).num_layers(2).batch_first(true));
    lstm->to(at::kDouble);
    return lstm;
  };
  const auto x = uniform({5, 6, 3}, 1);
  auto plain = make();
  const auto truth = std::get<0>(plain->forward(x));
  truth.pow(2).sum().backward();
  run_ranks(3, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {3});
    auto lstm = make();
    distribute_module(*lstm, mesh);
    Collectives collectives;
    const auto y = std::get<0>(lstm->forward(in_layout(x, mesh, {Shard(0)})));
    EXPECT_EQ(collectives.take(), "");
    EXPECT_TRUE(DTensor(y).placements()[0] == Shard(0));
    EXPECT_TRUE(close(full(y).detach(), truth.detach()));
    y.pow(2).sum().backward();
    for (size_t i = 0; i < lstm->parameters().size(); ++i) {
      EXPECT_TRUE(close(
          full(lstm->parameters()[i].grad()), plain->parameters()[i].grad()));
    }
  });
}

TEST(RecurrentTest, PackedSequencesOfReplicatedTensors) {
  namespace rnn = torch::nn::utils::rnn;
  const auto fn = [](const Tensors& t, const at::Tensor& lengths) {
    const auto packed = rnn::pack_padded_sequence(t[0], lengths, true);
    const auto [data, h] = at::gru(
        packed.data(),
        packed.batch_sizes(),
        t[1],
        {t[2], t[3], t[4], t[5]},
        true,
        1,
        0,
        true,
        false);
    const auto padded = rnn::pad_packed_sequence(
        rnn::PackedSequence(data, packed.batch_sizes()), true);
    return Tensors{std::get<0>(padded), h};
  };
  const Net net{.batch_first = true, .samples = 3};
  auto all = operands_of(net, 3);
  all.erase(all.begin() + 2);
  const auto lengths = at::tensor({4, 2, 1}, at::kLong);
  all.push_back(lengths);
  SameAsPlainOptions options;
  options.placements.resize(all.size(), {Replicate()});
  EXPECT_NO_THROW(expect_same_as_plain(
      [&](const Tensors& t) { return fn(t, t[6]); }, all, options));
}

// Dropout drops the same elements in every layout.
TEST(RecurrentTest, DropoutBetweenLayersIsByGlobalIndex) {
  const Net net{.layers = 2};
  const auto plain = operands_of(net, 1);
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto run = [&](const Placement& layout, bool train) {
      manual_seed(3);
      Tensors t;
      for (const auto& operand : plain) {
        t.push_back(in_layout(
            operand.detach(), mesh, {t.empty() ? layout : Replicate()}));
      }
      return full(std::get<0>(at::rnn_tanh(
          t[0],
          t[1],
          Tensors(t.begin() + 3, t.end()),
          true,
          net.layers,
          0.5,
          train,
          false,
          false)));
    };
    const auto replicated = run(Replicate(), true);
    EXPECT_TRUE(close(run(Shard(1), true), replicated));
    EXPECT_FALSE(close(run(Shard(1), false), replicated));
  });
}

// The second layer passes on its input, so each result is zero or twice the
// first layer's.
TEST(RecurrentTest, DropoutBetweenLayersScalesWhatItKeeps) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    manual_seed(3);
    const auto input = at::arange(1, 73, at::kDouble).view({4, 6, 3}) / 72;
    const auto weight = at::arange(1, 10, at::kDouble).view({3, 3}) / 9;
    const auto none = at::zeros({3}, at::kDouble);
    const auto no_state = at::zeros({3, 3}, at::kDouble);
    const auto pass = at::eye(3, at::kDouble);
    const auto on_all = [&](const at::Tensor& t) {
      return in_layout(t, mesh, {Replicate()});
    };
    Tensors parameters;
    for (const auto& t :
         {weight, no_state, none, none, pass, no_state, none, none}) {
      parameters.push_back(on_all(t));
    }
    const auto result = full(std::get<0>(at::rnn_relu(
        in_layout(input, mesh, {Shard(1)}),
        on_all(at::zeros({2, 6, 3}, at::kDouble)),
        parameters,
        true,
        2,
        0.5,
        true,
        false,
        false)));
    const auto kept = at::isclose(result, 2 * input.matmul(weight.t()));
    EXPECT_TRUE(kept.logical_or(result == 0).all().item<bool>());
    EXPECT_TRUE(kept.any().item<bool>());
    EXPECT_FALSE(kept.all().item<bool>());
  });
}

// Four samples on three ranks: the last rank has none.
TEST(RecurrentTest, RefusesAutocastOnAllRanks) {
  run_ranks(3, [] {
    const auto mesh = init_device_mesh(at::kCPU, {3});
    const auto on_mesh = [&](at::IntArrayRef sizes, const Placement& p) {
      return distribute_tensor(at::ones(sizes), mesh, {p});
    };
    const Tensors parameters = {
        on_mesh({8, 3}, Replicate()),
        on_mesh({8, 2}, Replicate()),
        on_mesh({8}, Replicate()),
        on_mesh({8}, Replicate())};
    const Tensors state(2, on_mesh({1, 4, 2}, Shard(1)));
    const auto call = [&] {
      const Autocast autocast(at::kCPU, at::kBFloat16);
      at::lstm(
          on_mesh({5, 4, 3}, Shard(1)),
          state,
          parameters,
          /*has_biases=*/true,
          /*num_layers=*/1,
          /*dropout=*/0,
          /*train=*/true,
          /*bidirectional=*/false,
          /*batch_first=*/false);
    };
    EXPECT_EQ(
        against_plain::error_of(call),
        "[aten::lstm.input] is not supported under autocast. Turn autocast off "
        "around the call, and convert the module and its input to the dtype of "
        "autocast.");
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
