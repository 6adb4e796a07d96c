// SPDX-License-Identifier: BSD-3-Clause
#include "model.h"

#include "../pretrained.h"

namespace embed {
namespace {

using torch::Tensor;
using torch::nn::Linear;

// A module without code that holds other modules, for their names.
std::shared_ptr<torch::nn::Module> named(
    std::initializer_list<
        std::pair<std::string, std::shared_ptr<torch::nn::Module>>> children) {
  auto module = std::make_shared<torch::nn::Module>();
  for (const auto& [name, child] : children) {
    module->register_module(name, child);
  }
  return module;
}

torch::nn::LayerNorm norm_of(const Config& c) {
  return torch::nn::LayerNorm(
      torch::nn::LayerNormOptions({c.width}).eps(c.epsilon));
}

} // namespace

EmbeddingsImpl::EmbeddingsImpl(const Config& c)
    : word_embeddings(register_module(
          "word_embeddings",
          torch::nn::Embedding(c.vocabulary, c.width))),
      position_embeddings(register_module(
          "position_embeddings",
          torch::nn::Embedding(c.context, c.width))),
      token_type_embeddings(register_module(
          "token_type_embeddings",
          torch::nn::Embedding(c.types, c.width))),
      norm(register_module("LayerNorm", norm_of(c))) {}

Tensor EmbeddingsImpl::forward(const Tensor& ids) {
  const auto places = torch::arange(ids.size(1));
  return norm(
      word_embeddings(ids) + token_type_embeddings(torch::zeros_like(ids)) +
      position_embeddings(places));
}

SelfImpl::SelfImpl(const Config& c)
    : head_size(c.width / c.heads),
      query(register_module("query", Linear(c.width, c.width))),
      key(register_module("key", Linear(c.width, c.width))),
      value(register_module("value", Linear(c.width, c.width))) {}

Tensor SelfImpl::forward(const Tensor& x, const Tensor& mask) {
  const auto heads = [&](Linear& of) {
    const auto y = of(x); // the number of heads follows from the features
    return y.unflatten(-1, {y.size(-1) / head_size, head_size}).transpose(1, 2);
  };
  const auto y = at::scaled_dot_product_attention(
      heads(query), heads(key), heads(value), mask.unsqueeze(1).unsqueeze(1));
  return y.transpose(1, 2).flatten(2);
}

OutputImpl::OutputImpl(int64_t from, const Config& c)
    : dense(register_module("dense", Linear(from, c.width))),
      norm(register_module("LayerNorm", norm_of(c))) {}

Tensor OutputImpl::forward(const Tensor& y, const Tensor& x) {
  return norm(dense(y) + x);
}

LayerImpl::LayerImpl(const Config& c)
    : self(c),
      attended(c.width, c),
      wide(c.width, c.hidden),
      output(register_module("output", Output(c.hidden, c))) {
  register_module(
      "attention", named({{"self", self.ptr()}, {"output", attended.ptr()}}));
  register_module("intermediate", named({{"dense", wide.ptr()}}));
}

Tensor LayerImpl::forward(const Tensor& x, const Tensor& mask) {
  const auto y = attended(self(x, mask), x);
  return output(torch::gelu(wide(y)), y);
}

BertImpl::BertImpl(const Config& c)
    : embeddings(register_module("embeddings", Embeddings(c))) {
  torch::nn::ModuleList list;
  for (int64_t i = 0; i < c.layers; ++i) {
    layers.emplace_back(c);
    list->push_back(layers.back());
  }
  register_module("encoder", named({{"layer", list.ptr()}}));
  to(c.dtype);
}

Tensor BertImpl::forward(const Tensor& ids, const Tensor& mask) {
  auto x = embeddings(ids);
  for (auto& layer : layers) {
    x = layer(x, mask);
  }
  const auto words = dtensor::full_tensor(x) * mask.unsqueeze(-1);
  return torch::nn::functional::normalize(
      words.sum(1) / mask.sum(1, /*keepdim=*/true));
}

dtensor::ParallelizePlan plan_of(const Config& c, bool sequence_parallel) {
  using namespace dtensor;
  const auto head = c.width / c.heads;
  const auto between = sequence_parallel ? Shard(1) : Replicate();
  const auto rows = [&](const Placement& out, int64_t unit) {
    return RowwiseParallel(
        {.output_layouts = out,
         .use_local_output = !sequence_parallel,
         .multiple_of = unit});
  };
  const auto table = [&](const Placement& out) {
    return RowwiseParallel(
        {.input_layouts = Replicate(),
         .output_layouts = out,
         .use_local_output = !sequence_parallel});
  };
  // Terms stay partial until LayerNorm, which reduce-scatters the sum.
  const auto of_tables = sequence_parallel ? Placement(Partial()) : Replicate();
  ParallelizePlan plan = {
      {"embeddings.word_embeddings", table(of_tables)},
      {"encoder.layer.*.attention.self.*",
       ColwiseParallel({.input_layouts = between, .multiple_of = head})},
      {"encoder.layer.*.attention.output.dense", rows(between, head)},
      {"encoder.layer.*.intermediate.dense",
       ColwiseParallel({.input_layouts = between})},
      {"encoder.layer.*.output.dense", rows(between, 1)}};
  if (sequence_parallel) {
    plan.push_back({"embeddings.token_type_embeddings", table(of_tables)});
    plan.push_back({"embeddings.position_embeddings", table(of_tables)});
    for (const auto* norm :
         {"embeddings.LayerNorm",
          "encoder.layer.*.attention.output.LayerNorm",
          "encoder.layer.*.output.LayerNorm"}) {
      plan.push_back({norm, SequenceParallel()});
    }
  }
  return plan;
}

Bert make_model(
    const Config& config,
    const dtensor::DeviceMesh& mesh,
    const dtensor::WeightFilePtr& file,
    bool sequence_parallel) {
  return pretrained::make<Bert>(
      config,
      mesh,
      plan_of(config, sequence_parallel),
      file,
      {.ignored = {"pooler.*", "embeddings.position_ids"}});
}

} // namespace embed
