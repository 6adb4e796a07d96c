// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/data_parallel/replicate.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/comm/mesh_scope.h>
#include <dtensor/comm/observer.h>
#include <dtensor/comm/world.h>
#include <dtensor/data_parallel/replication_impl.h>
#include <dtensor/error.h>
#include <dtensor/layout/mesh_state_impl.h>
#include <dtensor/layout/text.h>
#include <dtensor/parallel/plan/module_claim_impl.h>
#include <dtensor/parallel/state/module_members_impl.h>
#include <dtensor/tensor/gradient_impl.h>
#include <dtensor/tensor/meta_impl.h>
#include <dtensor/tensor/wrap_impl.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

namespace dtensor {
namespace detail {
namespace {

struct TakeGradient final : HookBefore {
  TakeGradient(std::shared_ptr<Replication> r, size_t i)
      : replication(std::move(r)),
        index(i) {}
  void operator()(const at::Tensor& parameter) override {
    if (!replication->take_gradient(index)) {
      go_on(parameter);
    }
  }
  void go_on(const at::Tensor& parameter) const {
    if (next != nullptr) {
      (*next)(parameter);
    }
  }
  std::shared_ptr<Replication> replication;
  size_t index;
};

TakeGradient* hook_of(const at::Tensor& parameter) {
  auto* meta = torch::autograd::impl::get_autograd_meta(parameter);
  return meta == nullptr
      ? nullptr
      : dynamic_cast<TakeGradient*>(meta->post_acc_grad_hooks_.get());
}

SpecPtr spec_if_distributed(const at::Tensor& t) {
  return is_dtensor(t) ? spec_of(t) : nullptr;
}

// Returns the local shard of a parameter, detached.
at::Tensor detached_shard(const at::Tensor& parameter) {
  return is_dtensor(parameter) ? local_of(parameter) : parameter.detach();
}

// Returns the parameters to average, now or once they are unfrozen. Frozen
// parameters may be distributed over ranks of `mesh`, or replicated already.
NamedParameters parameters_of(
    const torch::nn::Module& module,
    const DeviceMesh& mesh) {
  NamedParameters found;
  for (const auto& [name, parameter] : unique_parameters(module)) {
    const auto spec = spec_if_distributed(parameter);
    const bool shares = spec != nullptr && share_others(spec->mesh(), mesh);
    const bool is_replicated = hook_of(parameter) != nullptr;
    if (!torch::autograd::isDifferentiableType(parameter.scalar_type()) ||
        (!parameter.requires_grad() && (shares || is_replicated))) {
      continue;
    }
    DTENSOR_CHECK_VALUE(
        !shares,
        "[{}] parameter \"{}\" is {}, distributed over ranks of {}. Pass the "
        "mesh dimension over which models are replicated.",
        kReplicate,
        name,
        *spec,
        mesh);
    DTENSOR_CHECK_VALUE(
        !is_replicated,
        "[{}] parameter \"{}\" is replicated already. Call replicate() once "
        "for a module.",
        kReplicate,
        name);
    found.emplace_back(name, parameter);
  }
  return found;
}

} // namespace

Replication::Replication(
    GroupPtr group,
    const NamedParameters& parameters,
    int64_t bucket_bytes,
    std::optional<at::ScalarType> reduce_dtype)
    : group_(std::move(group)),
      bucket_bytes_(bucket_bytes),
      reduce_dtype_(reduce_dtype) {
  for (const auto& [name, parameter] : parameters) {
    parameters_.emplace_back(name, parameter);
  }
}

at::Tensor Replication::Parameter::tensor() const {
  auto impl = weak.lock();
  DTENSOR_CHECK(
      impl != nullptr,
      "[{}] parameter \"{}\" was destroyed. Replace modules and parameters "
      "before replicate().",
      kReplicate,
      name);
  return at::Tensor(std::move(impl));
}

// Fills buckets from the last parameter to the first, as backward passes
// usually do. Parameters stay in buckets when they are frozen.
void Replication::fill_buckets() {
  bool has_new = false;
  for (auto& parameter : parameters_) {
    const bool learns = parameter.tensor().requires_grad();
    has_new |= learns && !parameter.learns;
    parameter.learns |= learns;
  }
  if (!has_new) {
    return;
  }
  buckets_.clear();
  int64_t bytes = 0;
  auto dtype = at::ScalarType::Undefined;
  for (size_t i = parameters_.size(); i-- > 0;) {
    if (!parameters_[i].learns) {
      continue;
    }
    const auto part = detached_shard(parameters_[i].tensor());
    const auto mine = static_cast<int64_t>(part.nbytes());
    if (buckets_.empty() || bytes + mine > bucket_bytes_ ||
        part.scalar_type() != dtype) {
      buckets_.emplace_back();
      bytes = 0;
      dtype = part.scalar_type();
    }
    bytes += mine;
    parameters_[i].bucket = buckets_.size() - 1;
    buckets_.back().parameters.push_back(i);
  }
}

// True inside a nested backward pass. Activation checkpointing, for example,
// recomputes operators of the forward pass inside a node.
bool Replication::is_inside() const {
  return !alive_.expired() &&
      torch::autograd::get_current_graph_task_id() != pass_;
}

// Begins a pass unless one is running. The callback of the graph task owns
// `alive`, so `alive_` expires when the pass ends, normally or by an error.
// After an error, drops the gradients that zero_grad() cannot reach.
void Replication::begin_pass() {
  if (!alive_.expired()) {
    return;
  }
  fill_buckets();
  pass_ = torch::autograd::get_current_graph_task_id();
  const auto alive = std::make_shared<int>(pass_);
  alive_ = alive;
  next_ = 0;
  for (auto& parameter : parameters_) {
    parameter.is_counted = false;
    if (!is_finished_) {
      parameter.waiting = {};
    }
  }
  is_finished_ = false;
  for (auto& bucket : buckets_) {
    bucket.missing = static_cast<int64_t>(bucket.parameters.size());
    bucket.averages = nullptr;
  }
  torch::autograd::Engine::get_default_engine().queue_callback(
      [self = weak_from_this(), world = this_world(), alive] {
        const WorldScope scope(world);
        if (const auto replication = self.lock()) {
          replication->finish();
        }
      });
}

at::ScalarType Replication::dtype_of_sum(at::ScalarType dtype) const {
  return reduce_dtype_ ? c10::promoteTypes(dtype, *reduce_dtype_) : dtype;
}

// Adds the parameter's gradient to the gradients of earlier, unaveraged passes.
LocalGradient Replication::gradient_of(const Parameter& parameter) const {
  const auto tensor = parameter.tensor();
  const auto dtype = dtype_of_sum(tensor.scalar_type());
  return sum_of(
      parameter.waiting,
      local_gradient(tensor.grad(), spec_if_distributed(tensor), dtype));
}

// Moves `.grad` to `waiting` if sums have a wider dtype. In bfloat16, a sum
// would stop growing at about 256 times the size of its terms.
void Replication::accumulate_in_wider_dtype(Parameter& parameter) const {
  const auto tensor = parameter.tensor();
  const auto dtype = dtype_of_sum(tensor.scalar_type());
  if (dtype == tensor.scalar_type() || !tensor.grad().defined()) {
    return;
  }
  const c10::NoGradGuard no_grad;
  parameter.waiting = gradient_of(parameter);
  parameter.waiting.value = parameter.waiting.value.to(dtype);
  tensor.mutable_grad() = at::Tensor();
}

bool Replication::take_gradient(size_t i) {
  begin_pass();
  auto& parameter = parameters_[i];
  parameter.is_changed = true;
  accumulate_in_wider_dtype(parameter);
  if (!requires_sync_) {
    return false;
  }
  const c10::NoGradGuard no_grad;
  DTENSOR_CHECK_NOT_IMPLEMENTED(
      parameter.bucket >= next_,
      "[{}] a parameter of shape {} got another gradient from a nested "
      "backward pass, and the average of the first is in flight. Use "
      "average_gradients for modules that recompute activations with shared "
      "parameters.",
      kReplicate,
      parameter.tensor().sizes());
  if (!parameter.is_counted && !is_inside()) { // a nested pass may add more
    parameter.is_counted = true;
    --buckets_[parameter.bucket].missing;
  }
  send_complete();
  return true;
}

void Replication::send_complete() {
  while (next_ < buckets_.size() && buckets_[next_].missing == 0) {
    send(buckets_[next_++]);
  }
}

// Sends a bucket. A header has two numbers per gradient, as in Reduction: the
// number of ranks on which the gradient has changed, and the number of ranks on
// which it is Partial.
void Replication::send(Bucket& bucket) {
  const ModuleScope scope("gradients", /*backward=*/true);
  std::vector<double> header;
  std::vector<at::Tensor> values(1);
  for (const auto i : bucket.parameters) {
    const auto& parameter = parameters_[i];
    const auto part = detached_shard(parameter.tensor());
    const auto options = part.options().dtype(dtype_of_sum(part.scalar_type()));
    const auto [value, is_partial_sum_term] = gradient_of(parameter);
    values.push_back(
        value.defined() ? value.reshape({-1}).to(options.dtype())
                        : at::zeros({part.numel()}, options));
    header.push_back(parameter.is_changed && value.defined() ? 1 : 0);
    header.push_back(is_partial_sum_term ? 1 : 0);
  }
  values[0] = at::tensor(header, at::kDouble).to(values[1].options());
  bucket.averages = group_->all_reduce_async(at::cat(values), ReduceOp::kAvg);
}

void Replication::finish() {
  if (!requires_sync_) {
    end_pass();
    return;
  }
  const c10::NoGradGuard no_grad;
  for (; next_ < buckets_.size(); ++next_) {
    send(buckets_[next_]);
  }
  for (const auto& bucket : buckets_) {
    receive(bucket);
  }
  end_pass();
  if (shared_buffers_) {
    shared_buffers_->share();
    buffers_may_differ_ = false;
  }
}

void Replication::receive(const Bucket& bucket) {
  const auto averages = bucket.averages->wait();
  const auto count = static_cast<int64_t>(bucket.parameters.size());
  const auto header = averages.narrow(0, 0, 2 * count).to(at::kDouble).cpu();
  auto begin = 2 * count;
  for (int64_t k = 0; k < count; ++k) {
    auto& parameter = parameters_[bucket.parameters[static_cast<size_t>(k)]];
    const auto tensor = parameter.tensor();
    const auto part = detached_shard(tensor);
    const auto mine = averages.narrow(0, begin, part.numel());
    begin += part.numel();
    parameter.is_changed = false;
    parameter.waiting = {};
    if (header[2 * k].item<double>() == 0) {
      continue;
    }
    // Detaches the view, because optimizers detach gradients in place, which is
    // impossible for views.
    auto average =
        mine.view(part.sizes()).to(part.scalar_type()).variable_data();
    if (const auto spec = spec_if_distributed(tensor)) {
      average = wrap(
          std::move(average),
          gradient_layout(spec, header[2 * k + 1].item<double>() != 0));
    }
    tensor.mutable_grad() = std::move(average);
    if (const auto* hook = hook_of(tensor)) {
      hook->go_on(tensor);
    }
  }
}

} // namespace detail

ReplicatedModule::ReplicatedModule(
    std::shared_ptr<detail::Replication> replication)
    : replication_(std::move(replication)) {}

void ReplicatedModule::set_requires_gradient_sync(bool requires_sync) {
  replication_->set_requires_gradient_sync(requires_sync);
}

ReplicatedModule replicate(
    torch::nn::Module& module,
    const DeviceMesh& given,
    const ReplicateOptions& options) {
  const auto mesh = detail::mesh_or_current(given, detail::kReplicate);
  DTENSOR_CHECK_VALUE(
      mesh.ndim() == 1,
      "[{}] models are replicated over one mesh dimension, but the mesh is "
      "{}. Pass a slice, such as mesh[\"dp\"].",
      detail::kReplicate,
      mesh);
  const detail::ModuleClaim claim(detail::kReplicate, module);
  const auto parameters = detail::parameters_of(module, mesh);
  const auto replication = std::make_shared<detail::Replication>(
      get_all_groups(mesh)[0],
      parameters,
      options.bucket_cap_bytes,
      options.reduce_dtype);
  if (options.broadcast_buffers) {
    replication->share_buffers(mesh, module);
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    auto hook = std::make_unique<detail::TakeGradient>(replication, i);
    auto& place =
        torch::autograd::impl::materialize_autograd_meta(parameters[i].second)
            ->post_acc_grad_hooks_;
    hook->next = std::move(place);
    place = std::move(hook);
  }
  return ReplicatedModule(replication);
}

} // namespace dtensor
