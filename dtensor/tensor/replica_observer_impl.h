// SPDX-License-Identifier: BSD-3-Clause
// ReplicaObserver: hears of local tensors that a layout says are replicated.
// debug/ listens through it, so no other layer compares ranks.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/layout/mesh.h>
#include <dtensor/layout/placement.h>

#include <atomic>
#include <cstdint>

namespace dtensor::detail {

enum class ReplicaKind : uint8_t {
  kInput,    // of a styled module
  kOutput,   // of a styled module
  kLocal,    // the argument of from_local()
  kGradient, // of a module's output, or of a local tensor from to_local()
  kNorm,     // the result of clip_grad_norm_()
  kDraw,     // seed and position of a random operator on a DTensor
};

/// One tensor of this rank, and the layout that the library takes it to have.
struct ReplicaEvent {
  ReplicaKind kind;
  /// A plain tensor, or a DTensor, which has mesh and placements of its own.
  const at::Tensor& tensor;
  const DeviceMesh& mesh;
  PlacementsRef placements;
  /// The mesh dimension that the module's style is about; else -1.
  int64_t style_dim = -1;
};

class ReplicaObserver {
 public:
  virtual ~ReplicaObserver() = default;
  /// Called by the rank whose tensor it is, in its thread. May throw.
  virtual void on_replicas(const ReplicaEvent& event) = 0;
};

/// Installs an observer for this rank while it lives. Observers nest: all of
/// them hear every event.
class ReplicaObserverGuard {
 public:
  explicit ReplicaObserverGuard(ReplicaObserver& observer);
  ~ReplicaObserverGuard();
  ReplicaObserverGuard(const ReplicaObserverGuard&) = delete;
  ReplicaObserverGuard& operator=(const ReplicaObserverGuard&) = delete;

 private:
  ReplicaObserver* observer_;
};

/// Observers of all ranks of this process.
inline std::atomic<int64_t> live_replica_observers{0};

/// False where no rank of this process has an observer: one load of memory.
inline bool replicas_observed() {
  return live_replica_observers.load(std::memory_order_relaxed) != 0;
}

/// Tells the observers of this rank, if any.
void notify_replica_observers(const ReplicaEvent& event);

/// The same for a DTensor.
void notify_replicas(ReplicaKind kind, const at::Tensor& dtensor);

} // namespace dtensor::detail
