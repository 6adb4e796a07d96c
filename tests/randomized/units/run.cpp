// SPDX-License-Identifier: BSD-3-Clause
#include "run.h"

#include <c10/util/StringUtil.h>
#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/data_parallel/fully_shard.h>
#include <dtensor/data_parallel/replicate.h>
#include <dtensor/data_parallel/unit_impl.h>
#include <dtensor/parallel/distribute_optimizer_state.h>
#include <dtensor/parallel/gradients.h>
#include <dtensor/parallel/linear_styles.h>
#include <dtensor/parallel/tie_weights.h>
#include <dtensor/tensor/dtensor.h>

#include <map>
#include <optional>

#include "net.h"

namespace dtensor::units {
namespace {

// Returns a copy of the full tensor, because gradients and parameters change.
at::Tensor whole(const at::Tensor& t) {
  return t.defined() ? full_tensor(t.detach()).clone() : t;
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    int64_t kind,
    const std::vector<at::Tensor>& parameters) {
  using namespace torch::optim;
  constexpr double kEps = 1e-3; // does not magnify rounding errors
  switch (kind) {
    case 0:
      return std::make_unique<SGD>(
          parameters, SGDOptions(0.1).momentum(0.9).weight_decay(0.01));
    case 1:
      return std::make_unique<Adam>(
          parameters, AdamOptions(1e-2).amsgrad(true).eps(kEps));
    case 2:
      return std::make_unique<AdamW>(parameters, AdamWOptions(1e-2).eps(kEps));
    case 3:
      return std::make_unique<Adagrad>(
          parameters, AdagradOptions(1e-2).eps(kEps));
    default:
      return std::make_unique<RMSprop>(
          parameters,
          RMSpropOptions(1e-2).centered(true).momentum(0.9).eps(kEps));
  }
}

class Run {
 public:
  Run(const Plan& plan, const DeviceMesh* mesh)
      : plan_(plan),
        mesh_(mesh),
        net_(make_net(plan)),
        optimizer_(make_optimizer(plan.optimizer, net_.module->parameters())) {}

  std::vector<Record> records() {
    for (int64_t i = 0; i < plan_.plain_steps; ++i) {
      net_.forward(rows(-1 - i, 0, true), ids(true)).square().mean().backward();
      optimizer_->step();
      optimizer_->zero_grad();
    }
    if (mesh_ != nullptr) {
      spread();
      distribute_optimizer_state(*optimizer_);
    }
    for (size_t i = 0; i < plan_.steps.size(); ++i) {
      take_step(static_cast<int64_t>(i), plan_.steps[i]);
    }
    return std::move(records_);
  }
  std::vector<std::weak_ptr<detail::Unit>> units() const {
    const auto all = detail::units_in(*net_.module);
    return {all.begin(), all.end()};
  }

 private:
  DeviceMesh data() const {
    return plan_.has("repeat") ? (*mesh_)[{"repeat", "shard"}]
                               : (*mesh_)["shard"];
  }
  int64_t all_rows() const {
    return plan_.rows * plan_.data_ranks();
  }
  at::Tensor mine(const at::Tensor& of_all) const {
    return mesh_ == nullptr
        ? of_all
        : of_all.narrow(0, plan_.rows * data_index(plan_, *mesh_), plan_.rows);
  }
  at::Tensor rows(int64_t step, int64_t part, bool all = false) const {
    const auto seed =
        plan_.seed * 1000 + static_cast<uint64_t>(step * 10 + part + 100);
    const auto x = at::rand(
        {all_rows(), plan_.width},
        at::detail::createCPUGenerator(seed),
        at::kDouble);
    return all ? x : mine(x).contiguous();
  }
  at::Tensor ids(bool all = false) const {
    const auto numbers = at::arange(all_rows()) % kVocabulary;
    return all ? numbers : mine(numbers).contiguous();
  }

  void spread();
  void shard();
  void take_step(int64_t number, const StepPlan& step);
  void evaluate(const StepPlan& step, int64_t number);
  void cast(int64_t number);
  void throw_once(int64_t number);
  void differentiate(const StepPlan& step, int64_t number, int64_t part);
  void ask(const at::Tensor& x, const at::Tensor& loss);
  void set_sync(bool syncs);
  void average_plain();
  void check_resharded() const;
  void record(const std::string& what, const at::Tensor& value, bool is_rows) {
    records_.push_back({what, whole(value), is_rows});
  }

  const Plan& plan_;
  const DeviceMesh* mesh_;
  Net net_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::vector<FSDPModule> units_;
  std::optional<ReplicatedModule> replicated_;
  std::vector<Record> records_;
};

void Run::spread() {
  for (const auto* block : blocks_of(net_.module->blocks)) {
    if (block->plan.is_parallel) {
      parallelize_module(
          *block->module,
          (*mesh_)["tp"],
          {{"a", ColwiseParallel()}, {"b", RowwiseParallel()}});
    }
  }
  if (plan_.replicates) {
    replicated_ = replicate(
        *net_.module, data(), {.bucket_cap_bytes = plan_.bucket_bytes});
  } else {
    shard();
  }
}

void Run::shard() {
  FullyShardOptions common{.mesh = data()};
  if (plan_.in_float) {
    common.mp_policy = {.param_dtype = at::kFloat, .reduce_dtype = at::kDouble};
  }
  const auto blocks = blocks_of(net_.module->blocks);
  for (const auto* block : blocks) {
    if (block->plan.kind == Kind::kNumber) {
      common.ignored_params.push_back(block->module->table);
    }
  }
  std::map<const BlockImpl*, FSDPModule> handles;
  for (const auto* block : blocks) {
    if (!block->plan.is_unit) {
      continue;
    }
    auto options = common;
    if (const auto reshards = block->plan.reshards) {
      const auto ranks = plan_.mesh[plan_.has("repeat") ? 1 : 0];
      options.reshard_after_forward = *reshards == 2 && ranks % 2 == 0
          ? ReshardAfterForward(2)
          : ReshardAfterForward(*reshards != 0);
    }
    if (block->plan.cuts_last) {
      options.shard_placement_fn = [](const at::Tensor& p) {
        return std::optional<Placement>(Shard(p.dim() - 1));
      };
    }
    units_.push_back(fully_shard(*block->module, options));
    handles.emplace(block->module.get(), units_.back());
  }
  if (plan_.root_is_unit) {
    units_.push_back(fully_shard(*net_.module, common));
  }
  for (auto& unit : units_) {
    unit.set_reshard_after_backward(!plan_.keeps_after_backward);
  }
  if (plan_.prefetched < 0) {
    return;
  }
  const auto& next = net_.module->blocks[static_cast<size_t>(plan_.prefetched)];
  if (const auto unit = handles.find(next.module.get());
      unit != handles.end()) {
    units_.back().set_modules_to_forward_prefetch({unit->second});
    units_.back().set_modules_to_backward_prefetch({unit->second});
  }
}

void Run::set_sync(bool syncs) {
  for (auto& unit : units_) {
    unit.set_requires_gradient_sync(syncs);
  }
  if (replicated_) {
    replicated_->set_requires_gradient_sync(syncs);
  }
}

// Averages gradients of parameters that no unit has.
void Run::average_plain() {
  if (mesh_ == nullptr || replicated_) {
    return;
  }
  const auto ranks = data();
  for (const auto& parameter : net_.module->parameters()) {
    auto& grad = parameter.mutable_grad();
    if (detail::unit_of(parameter) == nullptr && grad.defined()) {
      for (int64_t m = 0; m < ranks.ndim(); ++m) {
        const auto average = [&](const at::Tensor& t) {
          return get_group(ranks, m).all_reduce(t, ReduceOp::kAvg);
        };
        grad = is_dtensor(grad)
            ? at::Tensor(DTensor::from_local(
                  average(DTensor(grad).to_local().contiguous()),
                  DTensor(grad).device_mesh(),
                  DTensor(grad).placements(),
                  {.shape = grad.sizes().vec(),
                   .stride = grad.strides().vec()}))
            : average(grad);
      }
    }
  }
}

void Run::check_resharded() const {
  if (mesh_ == nullptr || !plan_.root_is_unit || plan_.keeps_after_backward) {
    return; // without a root unit, some units may stay unsharded until the
            // backward pass
  }
  for (const auto& unit : detail::units_in(*net_.module)) {
    TORCH_CHECK(
        !unit->is_gathered(), "unit ", unit->name(), " has its parameters");
  }
}

void Run::evaluate(const StepPlan& step, int64_t number) {
  if (step.evaluations == 1) {
    const torch::NoGradGuard no_grad;
    record("evaluation", net_.forward(rows(number, 8), ids()), true);
  } else if (step.evaluations == 2) {
    const c10::InferenceMode inference;
    record("inference", net_.forward(rows(number, 8), ids()), true);
  }
}

void Run::cast(int64_t number) {
  net_.module->to(at::kFloat);
  {
    const torch::NoGradGuard no_grad;
    const auto y = net_.forward(rows(number, 9).to(at::kFloat), ids());
    record("in float", y, true);
  }
  net_.module->to(at::kDouble);
}

void Run::throw_once(int64_t number) {
  net_.module->throws = true;
  try {
    net_.forward(rows(number, 7).set_requires_grad(true), ids());
  } catch (const c10::Error& e) {
    // A module with hooks prepends its own name to the text.
    if (std::string(e.what_without_backtrace()).rfind("as planned", 0) != 0) {
      throw;
    }
  }
  net_.module->throws = false;
}

void Run::ask(const at::Tensor& x, const at::Tensor& loss) {
  const auto share = mesh_ == nullptr ? 1 : plan_.data_ranks();
  auto inputs = std::vector<at::Tensor>{x};
  if (plan_.root_is_unit && !plan_.replicates) { // else not an average
    inputs.push_back(net_.module->out->weight);
  }
  const auto gradients =
      torch::autograd::grad({loss}, inputs, {}, /*retain_graph=*/true);
  record("asked of rows", gradients[0] / share, true);
  if (gradients.size() > 1) {
    record("asked of out.weight", gradients[1], false);
  }
}

void Run::differentiate(const StepPlan& step, int64_t number, int64_t part) {
  const auto x = rows(number, part).set_requires_grad(true);
  const auto y = net_.forward(x, ids());
  record("result", y, true);
  if (part == 0) {
    evaluate(step, number);
  }
  auto loss = y.square().mean() / step.parts;
  if (step.joins) {
    loss = loss + net_.forward(x * 0.5, ids()).square().mean() / step.parts;
  }
  if (!loss.requires_grad()) {
    return;
  }
  if (step.asks && (step.syncs_each || step.parts == 1)) {
    ask(x, loss);
  }
  if (step.is_repeated) {
    loss.backward({}, /*retain_graph=*/true);
  }
  loss.backward();
  // A rank takes the mean over fewer rows.
  const auto share = mesh_ == nullptr ? 1 : plan_.data_ranks();
  record("gradient of rows", x.grad() / share, true);
  check_resharded();
}

void Run::take_step(int64_t number, const StepPlan& step) {
  net_.module->step = step;
  if (step.casts) {
    cast(number);
  }
  if (step.thrown >= 0) {
    throw_once(number);
  }
  net_.module->zero_grad(step.sets_to_none);
  if (step.unshards && !units_.empty()) {
    units_.front().unshard(/*async_op=*/number % 2 == 0);
  }
  for (int64_t part = 0; part < step.parts; ++part) {
    set_sync(step.syncs_each || part + 1 == step.parts);
    differentiate(step, number, part);
  }
  average_plain();
  for (const auto& item : net_.module->named_parameters()) {
    record("gradient of " + item.key(), item.value().grad(), false);
  }
  if (step.clips && mesh_ != nullptr) {
    clip_grad_norm_(net_.module->parameters(), 0.1);
  } else if (step.clips) {
    torch::nn::utils::clip_grad_norm_(unique_parameters(*net_.module), 0.1);
  }
  optimizer_->step();
  for (const auto& item : net_.module->named_parameters()) {
    record(item.key(), item.value(), false);
  }
}

} // namespace

int64_t data_index(const Plan& plan, const DeviceMesh& mesh) {
  return plan.has("repeat")
      ? mesh.get_local_rank("repeat") * mesh.size("shard") +
          mesh.get_local_rank("shard")
      : mesh.get_local_rank("shard");
}

std::vector<Record> run(const Plan& plan, const DeviceMesh* mesh) {
  std::vector<std::weak_ptr<detail::Unit>> units;
  std::vector<Record> records;
  {
    Run all(plan, mesh);
    records = all.records();
    units = all.units();
  }
  for (const auto& unit : units) {
    TORCH_CHECK(unit.expired(), "a unit lives on");
  }
  return records;
}

} // namespace dtensor::units
