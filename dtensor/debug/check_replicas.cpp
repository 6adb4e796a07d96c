// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/debug/check_replicas.h>

#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <dtensor/comm/mesh_scope.h>
#include <dtensor/comm/observer.h>
#include <dtensor/debug/compare_replicas_impl.h>
#include <dtensor/debug/loss_watch_impl.h>
#include <dtensor/error.h>
#include <dtensor/layout/spec_impl.h>
#include <dtensor/parallel/plan/module_names_impl.h>
#include <dtensor/random/random.h>
#include <dtensor/tensor/meta_impl.h>
#include <dtensor/tensor/replica_observer_impl.h>
#include <dtensor/torch_nodes_impl.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace dtensor {
namespace detail {

// The ranks along one dimension of a module's mesh, and facts observed about
// them.
struct StyledRanks {
  ReplicaRanks ranks;
  bool replicates_inputs = false;
  // True if the last output was sharded along another dimension than its last.
  bool shards_rows = false;
};

namespace {

ReplicaRole role_of(ReplicaKind kind) {
  switch (kind) {
    case ReplicaKind::kInput:
      return ReplicaRole::kInput;
    case ReplicaKind::kOutput:
      return ReplicaRole::kOutput;
    case ReplicaKind::kLocal:
      return ReplicaRole::kLocal;
    case ReplicaKind::kGradient:
      return ReplicaRole::kGradient;
    case ReplicaKind::kNorm:
      return ReplicaRole::kNorm;
    default:
      return ReplicaRole::kDraw;
  }
}

bool runs_backward() {
  return torch::autograd::get_current_node() != nullptr;
}

Replica
replica_of(ReplicaRole role, std::string_view name, const at::Tensor& tensor) {
  return {role, name, tensor, digest_of(tensor)};
}

// Replicas to compare along each mesh dimension, in the order of insertion.
class Batches {
 public:
  void add(const ReplicaRanks& ranks, Replica replica) {
    if (ranks.mesh.size(ranks.dim) == 1) {
      return;
    }
    const auto found = std::ranges::find(all_, ranks, &Batch::ranks);
    auto& batch = found == all_.end() ? all_.emplace_back() : *found;
    batch.ranks = ranks;
    batch.replicas.push_back(std::move(replica));
  }
  void add_along(
      const DeviceMesh& mesh,
      PlacementsRef placements,
      const Replica& replica) {
    for (int64_t m = 0; m < mesh.ndim(); ++m) {
      if (placements[static_cast<size_t>(m)].is_replicate()) {
        add({mesh, m}, replica);
      }
    }
  }
  void compare(double tolerance) const {
    for (const auto& batch : all_) {
      compare_replicas(batch.ranks, batch.replicas, tolerance);
    }
  }

 private:
  struct Batch {
    ReplicaRanks ranks;
    std::vector<Replica> replicas;
  };
  std::vector<Batch> all_;
};

bool is_replicated_somewhere(const DeviceMesh& mesh, PlacementsRef placements) {
  for (int64_t m = 0; m < mesh.ndim(); ++m) {
    if (mesh.size(m) > 1 && placements[static_cast<size_t>(m)].is_replicate()) {
      return true;
    }
  }
  return false;
}

} // namespace

class ReplicaChecker final : public ReplicaObserver {
 public:
  ReplicaChecker(
      torch::nn::Module& model,
      DeviceMesh mesh,
      CheckReplicasOptions options)
      : model_(model),
        mesh_(std::move(mesh)),
        options_(std::move(options)) {
    if (options_.losses) {
      loss_watch_.emplace([this](const at::Tensor& loss) { on_loss(loss); });
    }
  }

  void on_replicas(const ReplicaEvent& event) override {
    if (is_busy_ || !event.mesh.contains_this_rank()) {
      return;
    }
    const Busy busy(*this);
    const bool begins = event.kind == ReplicaKind::kInput && !runs_backward();
    if (event.kind == ReplicaKind::kGradient) {
      had_backward_ = true;
    } else if (begins && std::exchange(had_backward_, false)) {
      compare_parameters();
    }
    const auto name = ModuleScope::current();
    Batches batches;
    if (is_replicated_somewhere(event.mesh, event.placements)) {
      const auto& t = event.tensor;
      const auto& local = is_dtensor(t) ? local_of(t) : t;
      batches.add_along(
          event.mesh,
          event.placements,
          counted({role_of(event.kind), name, local, last_digest_.of(t)}));
    }
    if (event.style_dim >= 0) {
      const auto& styled = note_style(event);
      if (begins) {
        add_random_state(batches, styled, name);
      }
    }
    batches.compare(options_.tolerance);
  }

  void finish() {
    const Busy busy(*this);
    last_digest_.forget();
    compare_parameters();
    Batches batches;
    for (const auto& styled : styled_) {
      add_random_state(batches, styled, "");
    }
    batches.compare(options_.tolerance);
  }

  void compare(
      const at::Tensor& tensor,
      const DeviceMesh& mesh,
      const std::string& name) {
    DTENSOR_CHECK_TYPE(
        tensor.defined() && !is_dtensor(tensor),
        "[CheckReplicas] \"{}\" is {}. Pass a plain tensor, such as the result "
        "of to_local().",
        name,
        tensor.defined() ? "a DTensor" : "undefined");
    if (!mesh.contains_this_rank()) {
      return;
    }
    const Busy busy(*this);
    Batches batches;
    batches.add_along(
        mesh,
        replicated_placements(mesh),
        counted(replica_of(ReplicaRole::kNamed, name, tensor)));
    batches.compare(options_.tolerance);
  }

  int64_t compared() const {
    return compared_;
  }

 private:
  // Suspends observation of the checker's own work on this rank.
  class Busy {
   public:
    explicit Busy(ReplicaChecker& checker)
        : checker_(checker),
          outer_(std::exchange(checker.is_busy_, true)) {}
    ~Busy() {
      checker_.is_busy_ = outer_;
    }
    Busy(const Busy&) = delete;
    Busy& operator=(const Busy&) = delete;

   private:
    ReplicaChecker& checker_;
    bool outer_;
    CommObserversPaused no_observers_;
    at::DisableRecordFunctionGuard no_callbacks_;
    c10::NoGradGuard no_grad_;
  };

  Replica counted(Replica replica) {
    ++compared_;
    return replica;
  }

  void add_random_state(
      Batches& batches,
      const StyledRanks& styled,
      std::string_view name) {
    if (styled.replicates_inputs && options_.random_states) {
      batches.add(
          styled.ranks,
          counted(
              replica_of(ReplicaRole::kRandomState, name, get_random_state())));
    }
  }

  StyledRanks& note_style(const ReplicaEvent& event) {
    const ReplicaRanks ranks{event.mesh, event.style_dim};
    const auto found = std::ranges::find(styled_, ranks, &StyledRanks::ranks);
    auto& styled = found == styled_.end() ? styled_.emplace_back() : *found;
    styled.ranks = ranks;
    const auto& p = event.placements[static_cast<size_t>(event.style_dim)];
    if (event.kind == ReplicaKind::kInput) {
      styled.replicates_inputs |= p.is_replicate();
    } else if (event.kind == ReplicaKind::kOutput) {
      const auto last = event.tensor.dim() - 1;
      styled.shards_rows = p.is_sharded() && p.dim() != -1 && p.dim() != last;
    }
    return styled;
  }

  void compare_parameters() {
    Batches batches;
    const auto parameters = model_.named_parameters();
    for (const auto& item : parameters) {
      if (item.value().defined()) {
        add_parameter(batches, item.key(), item.value());
      }
    }
    batches.compare(options_.tolerance);
  }

  // The batches refer to `name`, so it must outlive them.
  void add_parameter(
      Batches& batches,
      const std::string& name,
      const at::Tensor& parameter) {
    if (is_dtensor(parameter)) {
      add_distributed(batches, ReplicaRole::kParameter, name, parameter);
      const auto& grad = parameter.grad();
      if (grad.defined() && is_dtensor(grad)) {
        add_distributed(batches, ReplicaRole::kParameterGradient, name, grad);
      } else {
        add_missing(batches, name, *spec_of(parameter));
      }
    } else if (
        mesh_.defined() && mesh_.contains_this_rank() && !is_local(name)) {
      batches.add_along(
          mesh_,
          replicated_placements(mesh_),
          counted(replica_of(ReplicaRole::kParameter, name, parameter)));
    }
  }
  void add_distributed(
      Batches& batches,
      ReplicaRole role,
      std::string_view name,
      const at::Tensor& t) {
    const auto& spec = *spec_of(t);
    if (spec.mesh().contains_this_rank() &&
        is_replicated_somewhere(spec.mesh(), spec.placements())) {
      batches.add_along(
          spec.mesh(),
          spec.placements(),
          counted(replica_of(role, name, local_of(t))));
    }
  }
  // Adds an undefined replica, so that a gradient that exists on only some
  // ranks is a difference.
  static void
  add_missing(Batches& batches, std::string_view name, const Spec& spec) {
    if (spec.mesh().contains_this_rank()) {
      batches.add_along(
          spec.mesh(),
          spec.placements(),
          {ReplicaRole::kParameterGradient, name, at::Tensor(), 0});
    }
  }

  bool is_local(const std::string& name) const {
    const auto& patterns = options_.local_parameters;
    return std::ranges::any_of(patterns, [&](const auto& pattern) {
      return matches_glob(pattern, name);
    });
  }

  void on_loss(const at::Tensor& loss) {
    const Busy busy(*this);
    had_backward_ = true;
    Batches batches;
    if (is_dtensor(loss)) {
      add_distributed(batches, ReplicaRole::kLoss, "", loss);
    } else {
      const auto replica = replica_of(ReplicaRole::kLoss, "", loss);
      for (const auto& styled : styled_) {
        if (styled.replicates_inputs && !styled.shards_rows) {
          batches.add(styled.ranks, counted(replica));
        }
      }
    }
    batches.compare(options_.tolerance);
  }

  torch::nn::Module& model_;
  DeviceMesh mesh_; // undefined: no mesh
  CheckReplicasOptions options_;
  std::vector<StyledRanks> styled_;
  bool is_busy_ = false;
  bool had_backward_ = false;
  int64_t compared_ = 0;
  LastDigest last_digest_;
  std::optional<LossWatch> loss_watch_;
  ReplicaObserverGuard guard_{*this};
};

} // namespace detail

CheckReplicas::CheckReplicas(
    torch::nn::Module& model,
    const DeviceMesh& mesh,
    CheckReplicasOptions options)
    : checker_(std::make_unique<detail::ReplicaChecker>(
          model,
          mesh.defined() ? mesh : get_current_mesh(),
          std::move(options))) {
  checker_->finish();
}

CheckReplicas::~CheckReplicas() = default;

void CheckReplicas::finish() {
  checker_->finish();
}

void CheckReplicas::compare(
    const at::Tensor& tensor,
    const DeviceMesh& mesh,
    const std::string& name) {
  checker_->compare(tensor, mesh, name);
}

int64_t CheckReplicas::compared() const {
  return checker_->compared();
}

} // namespace dtensor
