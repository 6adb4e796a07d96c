// SPDX-License-Identifier: BSD-3-Clause
// One token, and a prompt of 128 tokens, through eight Llama-shaped blocks.
// Modes: one process with two threads, two ranks with parallelize_module, two
// ranks with hand-written tensor parallelism, and two ranks without
// communication as the ideal.
#include "harness.h"

#include <dtensor/dtensor.h>
#include <torch/torch.h>

#include <algorithm>

namespace {

using namespace dtensor;
using torch::Tensor;
using torch::nn::Linear;
using torch::nn::LinearOptions;

constexpr int64_t kWidth = 576;
constexpr int64_t kHeads = 8;
constexpr int64_t kHidden = 1536;
constexpr int64_t kBlocks = 8;
constexpr int64_t kCalls = 40;
constexpr int64_t kWarmUp = 8;

struct BlockImpl : torch::nn::Module {
  Linear linear(const std::string& name, int64_t in, int64_t out) {
    return register_module(name, Linear(LinearOptions(in, out).bias(false)));
  }
  Tensor norm(const std::string& name) {
    return register_parameter(name, torch::ones({kWidth}));
  }

  // x (1, T, C); the rank's number of heads follows from its weights.
  Tensor forward(Tensor x) {
    const auto y = torch::rms_norm(x, {kWidth}, n1);
    const auto heads = [&](Linear& w) {
      return w(y)
          .view({y.size(0), y.size(1), -1, kWidth / kHeads})
          .transpose(1, 2);
    };
    const auto a = torch::scaled_dot_product_attention(
        heads(q), heads(k), heads(v), {}, 0, /*is_causal=*/x.size(1) > 1);
    x = x + reduce(o(a.transpose(1, 2).reshape({y.size(0), y.size(1), -1})));
    const auto z = torch::rms_norm(x, {kWidth}, n2);
    return x + reduce(w2(torch::silu(w1(z)) * w3(z)));
  }

  Tensor n1 = norm("n1"), n2 = norm("n2");
  Linear q = linear("q", kWidth, kWidth), k = linear("k", kWidth, kWidth),
         v = linear("v", kWidth, kWidth), o = linear("o", kWidth, kWidth),
         w1 = linear("w1", kWidth, kHidden), w3 = linear("w3", kWidth, kHidden),
         w2 = linear("w2", kHidden, kWidth);
  /// Applied after a product with a weight sharded by rows.
  std::function<Tensor(const Tensor&)> reduce = [](const Tensor& t) {
    return t;
  };
};
TORCH_MODULE(Block);

using Blocks = std::vector<Block>;

void shard_by_hand(Blocks& blocks, const DeviceMesh& mesh) {
  for (Block& block : blocks) {
    const auto cut = [&](Linear& linear, int64_t dim) {
      linear->weight.set_data(
          linear->weight.chunk(mesh.size(), dim)[mesh.get_local_rank()]
              .clone());
    };
    for (Linear* columns :
         {&block->q, &block->k, &block->v, &block->w1, &block->w3}) {
      cut(*columns, 0);
    }
    for (Linear* rows : {&block->o, &block->w2}) {
      cut(*rows, 1);
    }
  }
}

void no_communication(Blocks& blocks, const DeviceMesh& mesh) {
  shard_by_hand(blocks, mesh);
}

void by_hand(Blocks& blocks, const DeviceMesh& mesh) {
  shard_by_hand(blocks, mesh);
  for (Block& block : blocks) {
    block->reduce = [&mesh](const Tensor& t) {
      return get_group(mesh).all_reduce(t, ReduceOp::kSum);
    };
  }
}

void tensor_parallel(Blocks& blocks, const DeviceMesh& mesh) {
  for (Block& block : blocks) {
    parallelize_module(
        *block,
        mesh,
        {{"[qkv]", ColwiseParallel()},
         {"w[13]", ColwiseParallel()},
         {"o", RowwiseParallel()},
         {"w2", RowwiseParallel()}});
  }
}

struct Mode {
  std::string name;
  int64_t ranks;
  int intra_op_threads;
  void (*spread)(Blocks& blocks, const DeviceMesh& mesh);
};

const std::vector<Mode> kModes = {
    {"single", 1, 2, nullptr},
    {"tp", 2, 1, tensor_parallel},
    {"hand", 2, 1, by_hand},
    {"no_comm", 2, 1, no_communication}};

// Numbers of tokens per pass.
const std::vector<std::pair<std::string, int64_t>> kLengths = {
    {"decode", 1},
    {"prompt", 128}};

struct Result {
  std::vector<double> us;
  double sum = 0;
};

// Runs on every rank.
Result decode(const Mode& mode, int64_t tokens, const bench::Options& options) {
  const torch::NoGradGuard no_grad;
  dtensor::manual_seed(0);
  const auto mesh = init_device_mesh(torch::kCPU, {mode.ranks});
  Blocks blocks;
  for (int64_t i = 0; i < kBlocks; ++i) {
    blocks.emplace_back();
    for (Tensor& parameter : blocks.back()->parameters()) {
      parameter.requires_grad_(false);
    }
  }
  const auto x = torch::randn({1, tokens, kWidth});
  if (mode.spread != nullptr) {
    mode.spread(blocks, mesh);
  }
  Result result;
  for (int64_t i = 0; i < (options.smoke ? 1 : kCalls + kWarmUp); ++i) {
    const double begin = bench::now();
    Tensor y = x;
    for (Block& block : blocks) {
      y = block(y);
    }
    result.us.push_back((bench::now() - begin) * 1e6);
    result.sum = y.sum().item<double>();
  }
  const auto warm_up = std::min<size_t>(kWarmUp, result.us.size() - 1);
  result.us.erase(
      result.us.begin(),
      result.us.begin() + static_cast<std::ptrdiff_t>(warm_up));
  return result;
}

void run(
    const std::string& name,
    const Mode& mode,
    int64_t tokens,
    const bench::Options& options) {
  if (!options.wants(name)) {
    return;
  }
  Result result;
  run_ranks(
      mode.ranks,
      [&](int64_t rank) {
        auto decoded = decode(mode, tokens, options);
        if (rank == 0) {
          result = std::move(decoded);
        }
      },
      {.intra_op_threads = mode.intra_op_threads});
  bench::report(
      name,
      {{"us", bench::median(result.us)},
       {"sum", result.sum},
       {"spread", bench::spread(result.us, bench::median(result.us))}});
}

} // namespace

int main(int argc, char** argv) {
  const auto options =
      bench::parse(argc, argv, "Tokens through Llama-shaped blocks");
  for (const auto& [length, tokens] : kLengths) {
    for (const Mode& mode : kModes) {
      run(length + "/" + mode.name, mode, tokens, options);
    }
  }
}
