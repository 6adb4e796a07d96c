// SPDX-License-Identifier: BSD-3-Clause
#include "machine.h"

#include <dtensor/dtensor.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <iterator>
#include <set>

#include "operators.h"

namespace dtensor::programs {
namespace {

constexpr int64_t kFeatures = 6;
constexpr int64_t kRows = 8; // rows of an embedding's table

// A module of a few layers for one style each.
struct Block : torch::nn::Module {
  std::function<at::Tensor(const at::Tensor&)> forward;
  /// Layers called individually, instead of forward.
  std::vector<torch::nn::Linear> siblings;
};

void add_siblings(Block& block) {
  for (const auto* name : {"q", "k", "v"}) {
    block.siblings.push_back(
        block.register_module(name, torch::nn::Linear(kFeatures, kFeatures)));
  }
}

std::shared_ptr<Block> make_block(ModuleKind kind) {
  namespace layers = torch::nn;
  auto block = std::make_shared<Block>();
  if (kind == ModuleKind::kNorm) {
    auto norm = block->register_module(
        "norm", layers::LayerNorm(layers::LayerNormOptions({kFeatures})));
    block->forward = [norm](const at::Tensor& x) { return norm->forward(x); };
  } else if (kind == ModuleKind::kEmbedding) {
    auto table =
        block->register_module("table", layers::Embedding(kRows, kFeatures));
    block->forward = [table](const at::Tensor& x) { return table->forward(x); };
  } else if (kind == ModuleKind::kMlp) {
    auto up = block->register_module("up", layers::Linear(kFeatures, 8));
    auto gate = block->register_module("gate", layers::Linear(kFeatures, 8));
    auto down = block->register_module("down", layers::Linear(8, kFeatures));
    block->forward = [=](const at::Tensor& x) {
      return down->forward(up->forward(x).tanh() * gate->forward(x));
    };
  } else if (kind == ModuleKind::kSiblings) {
    add_siblings(*block);
  } else {
    auto linear =
        block->register_module("linear", layers::Linear(kFeatures, kFeatures));
    block->forward = [linear](const at::Tensor& x) {
      return linear->forward(x);
    };
  }
  return block;
}

ParallelizePlan plan_of(ModuleKind kind) {
  switch (kind) {
    case ModuleKind::kColwise:
      return {{"linear", ColwiseParallel({.use_local_output = false})}};
    case ModuleKind::kRowwise:
      return {
          {"linear",
           RowwiseParallel(
               {.input_layouts = Replicate(), .use_local_output = false})}};
    case ModuleKind::kNorm:
      return {{"norm", SequenceParallel()}};
    case ModuleKind::kEmbedding:
      return {
          {"table",
           RowwiseParallel(
               {.input_layouts = Replicate(), .use_local_output = false})}};
    case ModuleKind::kMlp:
      return {
          {"up", ColwiseParallel()},
          {"gate", ColwiseParallel()},
          {"down", RowwiseParallel({.use_local_output = false})}};
    case ModuleKind::kSiblings:
      return {{"[qkv]", ColwiseParallel({.use_local_output = false})}};
  }
  return {};
}

at::Tensor whole(const at::Tensor& t) {
  return is_dtensor(t) ? DTensor(t).full_tensor() : t;
}

// True if `out` overlaps its input and must be resized. LibTorch checks for the
// overlap, then resizes.
bool grows_over(const at::Tensor& out, const at::Tensor& read) {
  return out.sizes() != read.sizes() && out.is_alias_of(read);
}

// Returns the byte offsets of the elements of `t` in its storage.
std::vector<int64_t> places_in_memory(const at::Tensor& t) {
  std::vector<int64_t> places(1, t.storage_offset());
  for (int64_t d = 0; d < t.dim(); ++d) {
    std::vector<int64_t> longer;
    for (const auto place : places) {
      for (int64_t i = 0; i < t.size(d); ++i) {
        longer.push_back(place + i * t.stride(d));
      }
    }
    places = std::move(longer);
  }
  for (auto& place : places) {
    place *= t.itemsize();
  }
  return places;
}

bool have_common(std::vector<int64_t> a, std::vector<int64_t> b) {
  std::sort(a.begin(), a.end());
  std::sort(b.begin(), b.end());
  std::vector<int64_t> common;
  std::set_intersection(
      a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(common));
  return !common.empty();
}

// True if the result depends on a kernel's order of execution: memory is
// written twice, or one element is read where another is written. LibTorch
// refuses some of these calls.
bool depends_on_order(const at::Tensor& out, const at::Tensor& read) {
  const auto written = places_in_memory(out);
  const std::set<int64_t> once(written.begin(), written.end());
  return once.size() < written.size() ||
      (out.is_alias_of(read) && places_in_memory(read) != written &&
       have_common(written, places_in_memory(read)));
}

// Returns this rank's local shard of a full tensor.
at::Tensor part_of(
    const at::Tensor& full,
    const DeviceMesh& mesh,
    const Placements& layout) {
  return to_local(distribute_tensor(full, mesh, layout, std::nullopt));
}

} // namespace

at::Tensor values(const Sizes& sizes, uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  return at::rand(sizes, generator, at::kDouble) * 2 - 1;
}

Machine::Machine(const Program& program, std::optional<DeviceMesh> mesh)
    : program_(program),
      mesh_(std::move(mesh)) {
  for (size_t i = 0; i < program.inputs.size(); ++i) {
    const auto id = static_cast<int>(i);
    const auto& input = program.inputs[i];
    auto t = make_input(input, program.seed * 64 + i);
    if (input.kind == InputKind::kLeaf) {
      t.requires_grad_();
    }
    variables_[id] = t;
    memory_[id] = is_dtensor(t) ? DTensor(t).to_local() : t;
  }
  for (size_t i = 0; i < program.modules.size(); ++i) {
    add_module(program.modules[i], program.seed * 64 + 32 + i);
  }
}

at::Tensor Machine::make_input(const Input& input, uint64_t seed) {
  auto full = values(input.sizes, seed);
  if (input.kind == InputKind::kIds) {
    full = ((full + 1) * (kRows / 2)).to(at::kLong);
  }
  if (!mesh_ || input.kind == InputKind::kPlain) {
    return full;
  }
  auto cuts = input.layout;
  for (int64_t m = 0; m < mesh_->ndim(); ++m) {
    auto& p = cuts[static_cast<size_t>(m)];
    if (p.is_partial()) { // different terms on the ranks
      const auto n = static_cast<double>(mesh_->size(m));
      full = full * (mesh_->get_local_rank(m) == 0 ? n : -1.0);
      p = Replicate();
    }
  }
  FromLocalOptions options;
  options.shape = input.sizes;
  return DTensor::from_local(
      part_of(full, *mesh_, cuts).contiguous(), *mesh_, input.layout, options);
}

void Machine::add_module(ModuleKind kind, uint64_t seed) {
  auto block = make_block(kind);
  block->to(at::kDouble);
  const at::NoGradGuard no_grad;
  for (auto& p : block->parameters()) {
    p.copy_(values(p.sizes().vec(), seed++));
  }
  if (mesh_) {
    parallelize_module(*block, *mesh_, plan_of(kind));
  }
  modules_.push_back(block);
}

bool Machine::can_run(const Step& step) const {
  for (const auto id : step.from) {
    if (!variables_.count(id)) {
      return false;
    }
  }
  if (step.op == "refill" && !mesh_) { // an out may have been resized
    const auto id = step.from[0];
    return memory_.at(id).sizes() ==
        program_.inputs[static_cast<size_t>(id)].sizes;
  }
  const auto* op = find_operator(step.op);
  if (!mesh_ && op != nullptr && op->kind == OperatorKind::kWrite) {
    const auto& out = variables_.at(step.from[0]);
    const auto& read = variables_.at(step.from.back());
    return !depends_on_order(out, read) &&
        (step.op != "add_out" || !grows_over(out, read));
  }
  if (step.op == "call" && mesh_) { // plain tensors would count as shards
    const auto n = static_cast<size_t>(step.numbers[0]) % modules_.size();
    return program_.modules[n] != ModuleKind::kNorm ||
        is_dtensor(variables_.at(step.from[0]));
  }
  return true;
}

std::vector<at::Tensor> Machine::leaves() const {
  std::vector<at::Tensor> all;
  for (size_t i = 0; i < program_.inputs.size(); ++i) {
    const auto it = variables_.find(static_cast<int>(i));
    if (program_.inputs[i].kind == InputKind::kLeaf && it != variables_.end()) {
      all.push_back(it->second);
    }
  }
  for (const auto& block : modules_) {
    for (const auto& p : block->parameters()) {
      all.push_back(p);
    }
  }
  return all;
}

void Machine::clear_gradients() {
  for (auto& leaf : leaves()) {
    leaf.mutable_grad().reset();
  }
}

// Runs one step of gradient descent.
void Machine::descend() {
  const at::NoGradGuard no_grad;
  for (auto& leaf : leaves()) {
    if (leaf.grad().defined()) {
      leaf.sub_(leaf.grad(), 0.1);
    }
  }
}

at::Tensor Machine::squares(const at::Tensor& x) const {
  return whole((x * x).sum());
}

// Writes new values like a data loader: the version counter does not change.
void Machine::refill(int input, int64_t number) {
  const auto& declared = program_.inputs[static_cast<size_t>(input)];
  const auto full = values(
      declared.sizes,
      program_.seed * 64 + 1000 + static_cast<uint64_t>(number) % 16);
  const bool is_whole = !mesh_ || declared.kind == InputKind::kPlain;
  const auto part =
      is_whole ? full : part_of(full, *mesh_, declared.layout).contiguous();
  if (part.numel() > 0) {
    std::memcpy(memory_.at(input).data_ptr(), part.data_ptr(), part.nbytes());
  }
}

at::Tensor Machine::compute(const Step& step) {
  std::vector<at::Tensor> from;
  for (const auto id : step.from) {
    from.push_back(variables_.at(id));
  }
  const auto& n = step.numbers;
  if (const auto* op = find_operator(step.op)) {
    return op->apply(from, n);
  }
  if (step.op == "call") {
    auto& block = static_cast<Block&>(
        *modules_.at(static_cast<size_t>(n[0]) % modules_.size()));
    auto& siblings = block.siblings;
    return siblings.empty()
        ? block.forward(from[0])
        : siblings[static_cast<size_t>(n[1]) % siblings.size()]->forward(
              from[0]);
  }
  if (step.op == "redistribute") {
    if (!is_dtensor(from[0])) {
      return from[0].clone();
    }
    Placements to;
    for (int64_t m = 0; m < mesh_->ndim(); ++m) {
      const auto choice =
          n[static_cast<size_t>(m)] % (std::max<int64_t>(from[0].dim(), 0) + 1);
      to.push_back(
          choice == from[0].dim() ? Placement(Replicate()) : Shard(choice));
    }
    return DTensor(from[0]).redistribute(to).clone();
  }
  TORCH_CHECK(step.op == "gradient", "no such step: ", step.op);
  return torch::autograd::grad(
      {squares(from[0])}, {from[1]}, {}, true, /*create_graph=*/true)[0];
}

void Machine::run(const Step& step) {
  if (step.op == "grad" || step.op == "no_grad" || step.op == "inference") {
    mode_ = step.op == "grad"  ? Mode::kGrad
        : step.op == "no_grad" ? Mode::kNoGrad
                               : Mode::kInference;
    return;
  }
  const c10::InferenceMode inference(mode_ == Mode::kInference);
  const at::AutoGradMode grad(mode_ == Mode::kGrad);
  if (step.op == "backward") {
    squares(variables_.at(step.from[0]))
        .backward({}, /*retain_graph=*/step.numbers[0] % 2 == 0);
  } else if (step.op == "zero_grad") {
    clear_gradients();
  } else if (step.op == "sgd") {
    descend();
  } else if (step.op == "refill") {
    refill(step.from[0], step.numbers[0]);
  } else {
    auto result = compute(step);
    if (result.defined() && step.out >= 0) {
      variables_[step.out] = std::move(result);
    }
  }
}

} // namespace dtensor::programs
