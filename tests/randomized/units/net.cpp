// SPDX-License-Identifier: BSD-3-Clause
#include "net.h"

#include <c10/util/StringUtil.h>
#include <dtensor/parallel/module_hooks.h>

namespace dtensor::units {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Activation checkpointing: stores nothing of a block after the forward pass,
// and recomputes it in the backward pass.
struct Recomputed : torch::autograd::Function<Recomputed> {
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& x,
      const at::Tensor& ids,
      const Block* block) {
    context->save_for_backward({x, ids});
    context->saved_data["block"] = reinterpret_cast<int64_t>(block);
    return block->forward(x, ids);
  }
  static variable_list backward(
      AutogradContext* context,
      const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const auto* block =
        reinterpret_cast<const Block*>(context->saved_data["block"].toInt());
    const torch::AutoGradMode with_grad(true);
    const auto x = saved[0].detach().set_requires_grad(true);
    const auto y = block->forward(x, saved[1]);
    torch::autograd::backward({y}, {gradients[0]});
    return {x.grad(), at::Tensor(), at::Tensor()};
  }
};

// Wraps a Sequential, because a Sequential cannot contain another Sequential.
struct TailImpl : torch::nn::Module {
  TailImpl(int64_t from, int64_t to)
      : layers(register_module(
            "layers",
            torch::nn::Sequential(
                torch::nn::Linear(from, to),
                torch::nn::LayerNorm(torch::nn::LayerNormOptions({to}))))) {}
  at::Tensor forward(const at::Tensor& x) {
    return layers->forward(x);
  }
  torch::nn::Sequential layers;
};
TORCH_MODULE(Tail);

bool may_share(const BlockPlan& one, const BlockPlan& other) {
  return one.kind == other.kind &&
      (one.kind == Kind::kLinear || one.kind == Kind::kMlp) &&
      one.hidden == other.hidden && !one.is_parallel && !other.is_parallel;
}

Block make_block(
    const BlockPlan& plan,
    int64_t width,
    const std::vector<Block>& before) {
  const BlockImpl* shared = nullptr;
  for (const auto& other : before) {
    if (plan.shares && may_share(plan, other.plan)) {
      shared = other.module.get();
    }
  }
  Block block;
  block.plan = plan;
  if (plan.is_hooked) {
    const auto module =
        std::make_shared<Hooked<BlockImpl>>(plan, width, shared);
    block.module = module;
    block.forward = [made = module.get()](
                        const at::Tensor& x, const at::Tensor& ids) {
      return made->forward(x, ids);
    };
  } else {
    block.module = std::make_shared<BlockImpl>(plan, width, shared);
    block.forward = [made = block.module.get()](
                        const at::Tensor& x, const at::Tensor& ids) {
      return made->forward(x, ids);
    };
  }
  return block;
}

void freeze(const std::vector<Block>& blocks) {
  for (const auto* block : blocks_of(blocks)) {
    const auto parameters = block->module->parameters();
    if (block->plan.frozen >= 0 &&
        block->plan.frozen < static_cast<int64_t>(parameters.size())) {
      parameters[static_cast<size_t>(block->plan.frozen)].set_requires_grad(
          false);
    }
  }
}

void fill(torch::nn::Module& module, uint64_t seed) {
  const torch::NoGradGuard no_grad;
  module.to(torch::kDouble);
  auto generator = at::detail::createCPUGenerator(seed);
  for (const auto& parameter : module.parameters()) {
    parameter.copy_(at::rand(parameter.sizes(), generator, at::kDouble) - 0.5);
  }
}

} // namespace

at::Tensor Block::operator()(const at::Tensor& x, const at::Tensor& ids) const {
  auto y = x;
  for (int64_t i = 0; i < plan.calls; ++i) {
    y = plan.recomputes && torch::GradMode::is_enabled()
        ? Recomputed::apply(y, ids, this)
        : forward(y, ids);
  }
  return y;
}

std::vector<const Block*> blocks_of(const std::vector<Block>& blocks) {
  std::vector<const Block*> all;
  for (const auto& block : blocks) {
    const auto inner = blocks_of(block.module->inner);
    all.insert(all.end(), inner.begin(), inner.end());
    all.push_back(&block);
  }
  return all;
}

BlockImpl::BlockImpl(
    const BlockPlan& plan,
    int64_t width,
    const BlockImpl* shared)
    : kind(plan.kind),
      hidden(plan.hidden) {
  if (shared != nullptr) {
    a = register_module("a", shared->a);
  }
  make_layers(plan, width);
  for (const auto& each : plan.inner) {
    inner.push_back(make_block(each, width, inner));
    register_module(c10::str("inner", inner.size()), inner.back().module);
  }
}

void BlockImpl::make_layers(const BlockPlan& plan, int64_t width) {
  using namespace torch::nn;
  if (kind == Kind::kLinear && a.is_empty()) {
    a = register_module("a", Linear(width, width));
  } else if (kind == Kind::kMlp) {
    if (a.is_empty()) {
      a = register_module("a", Linear(width, hidden));
    }
    b = register_module("b", Linear(hidden, width));
  } else if (kind == Kind::kNorm) {
    norm = register_module("norm", LayerNorm(LayerNormOptions({width})));
  } else if (kind == Kind::kSequence) {
    sequence = register_module(
        "sequence",
        Sequential(Linear(width, hidden), Tanh(), Tail(hidden, width)));
  } else if (kind == Kind::kConv) {
    conv =
        register_module("conv", Conv1d(Conv1dOptions(1, hidden, 3).padding(1)));
    channels =
        register_module("channels", GroupNorm(GroupNormOptions(1, hidden)));
  } else if (kind == Kind::kEmbedding || kind == Kind::kTied) {
    embedding = register_module("embedding", Embedding(kVocabulary, width));
  } else if (kind == Kind::kGain) {
    table = register_parameter("gain", torch::zeros({1}));
  } else if (kind == Kind::kNumber) {
    table = register_parameter("number", torch::zeros({}));
  } else if (kind == Kind::kViews || kind == Kind::kAlone) {
    table = register_parameter("table", torch::zeros({hidden, width}));
    square = register_parameter("square", torch::zeros({width, width}));
  } else if (kind == Kind::kRecurrent && hidden % 2 == 0) {
    gru = register_module("gru", GRU(width, width));
  } else if (kind == Kind::kRecurrent) {
    lstm = register_module("lstm", LSTM(width, width));
  } else if (kind == Kind::kAttention) {
    attention = register_module(
        "attention",
        TransformerEncoderLayer(TransformerEncoderLayerOptions(width, 2)
                                    .dim_feedforward(plan.hidden)
                                    .dropout(0)));
  }
}

at::Tensor BlockImpl::with_views(const at::Tensor& x) const {
  switch (hidden % 4) {
    case 0:
      return x + table.slice(0, 0, 1) + table.select(0, hidden - 1);
    case 1:
      return x.matmul(square.clone()) + x.matmul(square.t().contiguous());
    case 2:
      return x.matmul(square.view({-1}).view_as(square)) + table[0];
    default:
      return x.matmul(square.to(x.scalar_type()).t()) * table.narrow(0, 1, 1);
  }
}

at::Tensor BlockImpl::recurrent(const at::Tensor& x) {
  const auto steps = x.unsqueeze(0);
  return (gru.is_empty() ? std::get<0>(lstm(steps)) : std::get<0>(gru(steps)))
      .squeeze(0);
}

at::Tensor BlockImpl::forward(const at::Tensor& x, const at::Tensor& ids) {
  switch (kind) {
    case Kind::kLinear:
      return torch::tanh(a(x));
    case Kind::kMlp:
      return b(torch::gelu(a(x)));
    case Kind::kNorm:
      return norm(x);
    case Kind::kSequence:
      return sequence->forward(x);
    case Kind::kConv:
      return channels(conv(x.unsqueeze(1))).mean(1);
    case Kind::kGain:
    case Kind::kNumber:
      return x * table;
    case Kind::kEmbedding:
      return x + embedding(ids);
    case Kind::kTied:
      return torch::softmax(embedding(ids).matmul(embedding->weight.t()), -1)
          .matmul(embedding->weight);
    case Kind::kViews:
      return with_views(x);
    case Kind::kAlone:
      return x * table.pow(2).mean() + square.sum(0);
    case Kind::kRecurrent:
      return recurrent(x);
    case Kind::kAttention:
      return attention(x.unsqueeze(0)).squeeze(0);
    case Kind::kGroup:
      break;
  }
  auto y = x;
  for (const auto& block : inner) {
    const auto result = block(y, ids);
    y = block.plan.is_lost ? y : y + result;
  }
  return y;
}

NetImpl::NetImpl(const Plan& plan) {
  for (const auto& block : plan.blocks) {
    blocks.push_back(make_block(block, plan.width, blocks));
    register_module(c10::str("block", blocks.size()), blocks.back().module);
  }
  out = register_module("out", torch::nn::Linear(plan.width, 3));
  freeze(blocks);
}

at::Tensor NetImpl::forward(const at::Tensor& x, const at::Tensor& ids) {
  auto y = x;
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (static_cast<int64_t>(i) != step.skipped) {
      const auto result = blocks[i](y, ids);
      y = blocks[i].plan.is_lost ? y : torch::tanh(y + result);
    }
    TORCH_CHECK(
        !throws || static_cast<int64_t>(i) != step.thrown, "as planned");
  }
  return out(y);
}

Net make_net(const Plan& plan) {
  Net net;
  if (plan.root_is_hooked) {
    const auto module = std::make_shared<Hooked<NetImpl>>(plan);
    net.module = module;
    net.forward = [made = module.get()](
                      const at::Tensor& x, const at::Tensor& ids) {
      return made->forward(x, ids);
    };
  } else {
    net.module = std::make_shared<NetImpl>(plan);
    net.forward = [made = net.module.get()](
                      const at::Tensor& x, const at::Tensor& ids) {
      return made->forward(x, ids);
    };
  }
  fill(*net.module, plan.seed);
  return net;
}

} // namespace dtensor::units
