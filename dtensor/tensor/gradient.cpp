// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/tensor/gradient_impl.h>

#include <ATen/DTensorState.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/flatten_dense_tensors.h>
#include <ATen/ops/zeros.h>
#include <dtensor/comm/group/shard_buffers_impl.h>
#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/comm/observer.h>
#include <dtensor/comm/rank/rank_local_impl.h>
#include <dtensor/comm/world.h>
#include <dtensor/error.h>
#include <dtensor/layout/shard_math.h>
#include <dtensor/layout/spec_impl.h>
#include <dtensor/layout/text.h>
#include <dtensor/redistribute/execute.h>
#include <dtensor/tensor/autograd_impl.h>
#include <dtensor/tensor/dispatch_keys_impl.h>
#include <dtensor/tensor/meta_impl.h>
#include <dtensor/tensor/wrap_impl.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>

namespace dtensor::detail {
namespace {

// Keeps a leaf's gradient distributed. Accumulation accepts any tensor, so the
// gradient could become plain. A later step would use a plain gradient as this
// rank's local tensor.
struct DistributedGradHook final : torch::autograd::PostAccumulateGradHook {
  void operator()(const at::Tensor& leaf) override {
    if (is_dtensor(leaf)) {
      make_gradient_distributed(leaf);
    }
  }
};

// Distributes a full gradient, equal on all ranks, in the layout of its
// operand.
at::Tensor distributed(const at::Tensor& plain, const Spec& operand) {
  const auto full = plain._is_zerotensor()
      ? at::zeros(plain.sizes(), plain.options())
      : plain;
  const auto spec = replicated_spec(operand, full);
  const auto replicated = from_local_autograd(
      operand.mesh().contains_this_rank() ? full : full.new_empty({0}), spec);
  return full.sizes() == operand.sizes()
      ? redistribute_autograd(
            replicated,
            spec->with_placements(without_partial(operand.placements())))
      : replicated;
}

struct PlainGradientsDistributed final : torch::autograd::FunctionPostHook {
  explicit PlainGradientsDistributed(std::vector<SpecPtr> s)
      : operands(std::move(s)) {}
  torch::autograd::variable_list operator()(
      const torch::autograd::variable_list& gradients,
      const torch::autograd::variable_list&) override {
    auto result = gradients;
    for (size_t i = 0; i < result.size() && i < operands.size(); ++i) {
      auto& grad = result[i];
      if (operands[i] != nullptr && grad.defined() && !is_dtensor(grad)) {
        grad = distributed(grad, *operands[i]);
      }
    }
    return result;
  }
  std::vector<SpecPtr> operands;
};

// True if every rank's local tensor has the same shape in both layouts.
bool parts_are_alike(const Spec& spec, PlacementsRef other) {
  const auto shape = spec.mesh().shape();
  for (int64_t rank = 0; rank < spec.mesh().size(); ++rank) {
    const auto coordinate = spec.mesh().coordinate_of(rank);
    if (local_sizes(spec.sizes(), shape, other, coordinate) !=
        local_sizes(spec.sizes(), shape, spec.placements(), coordinate)) {
      return false;
    }
  }
  return true;
}

// Returns the node of a missing derivative that computed `grad`; null if there
// is none. The padding of an operand, or a selection from it, adds a few nodes.
torch::autograd::NotImplemented* missing_derivative(const at::Tensor& grad) {
  constexpr int kMostNodes = 4;
  auto node = grad.grad_fn();
  for (int i = 0; node != nullptr && i < kMostNodes; ++i) {
    if (auto* missing =
            dynamic_cast<torch::autograd::NotImplemented*>(node.get())) {
      return missing;
    }
    if (node->num_outputs() != 1) {
      return nullptr;
    }
    node = node->next_edge(0).function;
  }
  return nullptr;
}

using Bucket = std::vector<at::Tensor>;

// Parameters to reduce at the end of each running backward pass on this rank.
// The pass owns its bucket, so the bucket of a pass that throws is freed.
using Buckets = std::map<int, std::weak_ptr<Bucket>>;

RankLocal<Buckets> under_way;

void set_gradient(at::Tensor& parameter, at::Tensor local) {
  parameter.mutable_grad() = wrap(
      std::move(local),
      spec_of(parameter)->with_dtype(parameter.grad().scalar_type()));
}

// Returns the only mesh dimension on which gradient and parameter differ, if
// the gradient is Partial(sum) and the parameter replicated there; else -1.
int64_t summed_dim(const Spec& grad, const Spec& parameter) {
  int64_t found = -1;
  for (int64_t m = 0; m < grad.mesh().ndim(); ++m) {
    const auto& from = grad.placements()[static_cast<size_t>(m)];
    const auto& to = parameter.placements()[static_cast<size_t>(m)];
    if (from == to) {
      continue;
    }
    if (found >= 0 || !from.is_partial(ReduceOp::kSum) || !to.is_replicate()) {
      return -1;
    }
    found = m;
  }
  return found;
}

void reduce_bucket(Bucket& parameters, const DeviceMesh& mesh, int64_t dim) {
  std::vector<at::Tensor> parts;
  for (const auto& p : parameters) {
    parts.push_back(local_of(p.grad()));
  }
  const auto sums = out_of_buffer(
      get_group(mesh, dim).all_reduce(
          at::flatten_dense_tensors(parts), ReduceOp::kSum),
      shapes_of(parts));
  for (size_t i = 0; i < parts.size(); ++i) {
    set_gradient(parameters[i], sums[i]);
  }
}

// Reduces gradients in buckets. All ranks have the same buckets, because the
// order of parameters is the order of the backward pass, which is equal on all
// ranks.
void reduce_gradients(Bucket& parameters) {
  const c10::NoGradGuard no_grad;
  const ModuleScope scope("gradients", /*backward=*/true);
  using Key = std::tuple<const void*, int64_t, at::ScalarType>;
  std::vector<std::pair<Key, Bucket>> buckets;
  for (auto& p : parameters) {
    const auto& grad = spec_of(p.grad());
    const auto dim = summed_dim(*grad, *spec_of(p));
    if (dim < 0) {
      const auto to = spec_of(p)->with_dtype(grad->dtype());
      set_gradient(p, redistribute_local(local_of(p.grad()), grad, to));
      continue;
    }
    const Key key{grad->mesh().identity(), dim, grad->dtype()};
    auto it = std::ranges::find_if(
        buckets, [&](const auto& b) { return b.first == key; });
    if (it == buckets.end()) {
      it = buckets.insert(buckets.end(), {key, {}});
    }
    it->second.push_back(p);
  }
  for (auto& [key, bucket] : buckets) {
    const auto mesh = spec_of(bucket[0])->mesh();
    reduce_bucket(bucket, mesh, std::get<1>(key));
  }
}

struct KeepLayout final : torch::autograd::PostAccumulateGradHook {
  void operator()(const at::Tensor& parameter) override {
    if (!is_dtensor(parameter) || !parameter.grad().defined()) {
      return;
    }
    make_gradient_distributed(parameter);
    if (spec_of(parameter.grad())->placements() !=
        spec_of(parameter)->placements()) {
      parameters_of_pass()->push_back(parameter);
    }
  }

 private:
  static std::shared_ptr<Bucket> parameters_of_pass() {
    const int task = torch::autograd::get_current_graph_task_id();
    Buckets& passes = under_way.get();
    if (auto known = passes[task].lock()) {
      return known;
    }
    std::erase_if(passes, [](const auto& p) { return p.second.expired(); });
    auto bucket = std::make_shared<Bucket>();
    passes[task] = bucket;
    // The callback captures the world, because it runs outside of any node,
    // possibly on a thread that belongs to no rank.
    torch::autograd::Engine::get_default_engine().queue_callback(
        [bucket, world = this_world()] {
          const WorldScope scope(world);
          reduce_gradients(*bucket);
        });
    return bucket;
  }
};

} // namespace

at::Tensor gradient_as_dtensor(const at::Tensor& grad, const Spec& spec) {
  if (is_dtensor(grad)) {
    return grad;
  }
  DTENSOR_CHECK_TYPE(
      grad.numel() <= 1 || at::get_dtensor_allow_implicit_replication() ||
          in_implicit_replication(),
      "[backward] the gradient of a DTensor, {}, is a plain tensor of shape "
      "{}. Pass backward() a DTensor, and return DTensors from hooks.",
      spec,
      grad.sizes());
  return from_local_autograd(grad, replicated_spec(spec, grad));
}

void check_plain_gradient(const at::Tensor& grad) {
  DTENSOR_CHECK_TYPE(
      !is_dtensor(grad),
      "[backward] the gradient of a local tensor is a DTensor, {}. Pass "
      "backward() the local tensor, and return local tensors from hooks.",
      *spec_of(grad));
}

void keep_gradient_distributed(const at::Tensor& dtensor) {
  if (!dtensor.is_inference()) {
    torch::autograd::impl::set_post_acc_grad_hooks(
        dtensor, std::make_unique<DistributedGradHook>());
  }
}

void make_gradient_distributed(const at::Tensor& leaf) {
  if (leaf.grad().defined() && !is_dtensor(leaf.grad())) {
    const at::Tensor plain = std::exchange(leaf.mutable_grad(), at::Tensor());
    leaf.mutable_grad() = gradient_as_dtensor(plain, *spec_of(leaf));
  }
}

void make_gradients_distributed(
    const at::Tensor& result,
    std::vector<SpecPtr> operands) {
  const auto& node = result.grad_fn();
  if (node != nullptr) {
    node->add_post_hook(
        std::make_unique<PlainGradientsDistributed>(std::move(operands)));
  }
}

Placements checked_grad_placements(
    const Spec& spec,
    PlacementsRef grad_placements,
    const char* where) {
  auto layout =
      normalize_placements(spec.mesh(), grad_placements, spec.dim(), where);
  DTENSOR_CHECK_VALUE(
      parts_are_alike(spec, layout),
      "[{}] grad_placements {} do not fit {}: a rank's gradient has the shape "
      "of its local tensor, and these placements give it another shape. Shard "
      "the same dimensions as the tensor's layout.",
      where,
      to_string(PlacementsRef(layout)),
      spec);
  return layout;
}

// The gradient's node holds the text of the error that autograd throws.
void name_missing_derivative(const at::Tensor& grad) {
  auto* missing = missing_derivative(grad);
  constexpr std::string_view begin = "derivative for ";
  constexpr std::string_view end = " is not implemented";
  if (missing == nullptr || !missing->msg.starts_with(begin) ||
      !missing->msg.ends_with(end)) {
    return; // its message was replaced already
  }
  const auto op = missing->msg.substr(
      begin.size(), missing->msg.size() - begin.size() - end.size());
  missing->msg = "[" + op +
      "] LibTorch has no derivative for this operator, so the gradients that "
      "it computes cannot be differentiated again. Choose a kernel that has "
      "one (for attention, disable flash attention: "
      "at::globalContext().setSDPUseFlash(false) in C++, "
      "torch.backends.cuda.enable_flash_sdp(False) in Python), or call "
      "backward() without create_graph.";
}

// Appends the hook behind all HookBefore hooks, unless the hook already exists.
void keep_gradient_in_layout(const at::Tensor& parameter) {
  auto* meta = torch::autograd::impl::materialize_autograd_meta(parameter);
  auto* place = &meta->post_acc_grad_hooks_;
  while (dynamic_cast<KeepLayout*>(place->get()) == nullptr) {
    auto* before = dynamic_cast<HookBefore*>(place->get());
    if (before == nullptr) {
      *place = std::make_unique<KeepLayout>();
      return;
    }
    place = &before->next;
  }
}

void check_not_replicated(const at::Tensor& parameter, const char* where) {
  const auto* meta = torch::autograd::impl::get_autograd_meta(parameter);
  DTENSOR_CHECK_VALUE(
      meta == nullptr ||
          dynamic_cast<HookBefore*>(meta->post_acc_grad_hooks_.get()) ==
              nullptr,
      "[{}] a parameter of shape {} is already replicated by replicate(). "
      "Distribute parameters before that call.",
      where,
      parameter.sizes());
}

} // namespace dtensor::detail
