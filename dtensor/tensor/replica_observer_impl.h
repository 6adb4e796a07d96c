// SPDX-License-Identifier: BSD-3-Clause
// ReplicaObserver: receives local tensors that should be replicated according
// to their layout. debug/ installs observers, so no other layer compares
// tensors between ranks.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/layout/mesh.h>
#include <dtensor/layout/placement.h>

#include <atomic>
#include <cstdint>

namespace dtensor::detail {

enum class ReplicaKind : uint8_t {
  kInput,    // input of a module with a parallel style
  kOutput,   // output of a module with a parallel style
  kLocal,    // argument of from_local()
  kGradient, // gradient of a module's output or of a local tensor of to_local()
  kNorm,     // result of clip_grad_norm_()
  kDraw,     // seed and position of a random operator on a DTensor
};

/// A tensor on this rank, with the layout that the library assumes.
struct ReplicaEvent {
  ReplicaKind kind;
  /// A plain tensor, or a DTensor with its own mesh and placements.
  const at::Tensor& tensor;
  const DeviceMesh& mesh;
  PlacementsRef placements;
  /// The mesh dimension of the module's style, or -1.
  int64_t style_dim = -1;
};

class ReplicaObserver {
 public:
  virtual ~ReplicaObserver() = default;
  /// Called in the thread of the rank that owns the tensor. May throw.
  virtual void on_replicas(const ReplicaEvent& event) = 0;
};

/// Installs an observer for this rank while the guard lives. Observers nest,
/// and all of them receive every event.
class ReplicaObserverGuard {
 public:
  explicit ReplicaObserverGuard(ReplicaObserver& observer);
  ~ReplicaObserverGuard();
  ReplicaObserverGuard(const ReplicaObserverGuard&) = delete;
  ReplicaObserverGuard& operator=(const ReplicaObserverGuard&) = delete;

 private:
  ReplicaObserver* observer_;
};

/// Number of observers on all ranks of this process.
inline std::atomic<int64_t> live_replica_observers{0};

/// True if some rank of this process has an observer. Costs a single memory
/// load.
inline bool replicas_observed() {
  return live_replica_observers.load(std::memory_order_relaxed) != 0;
}

/// Notifies the observers of this rank.
void notify_replica_observers(const ReplicaEvent& event);

/// Notifies the observers of this rank of a DTensor.
void notify_replicas(ReplicaKind kind, const at::Tensor& dtensor);

} // namespace dtensor::detail
