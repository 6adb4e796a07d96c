// SPDX-License-Identifier: BSD-3-Clause
// GroupBackend: interface of the communication between the ranks of one group.
//
// A backend has one function to implement: submit(), which carries out any
// Collective. Most backends derive from BufferBackend (comm/buffer_backend.h)
// instead, which reduces it to seven functions over buffers. Group, the class
// that programs use, checks arguments and the calling rank, and notifies
// observers, so a backend does not need to. To compare the calls of different
// ranks, wrap a backend in checked().
//
// Contract of submit():
// - Only the rank that made the backend calls it. The group has at least two
//   ranks. All members make the same calls in the same order.
// - Inputs are plain, contiguous tensors of one dtype on one device. They must
//   not be changed, unless they belong to the collective: no other code refers
//   to them. They must not be kept after the wait.
// - Results are contiguous and share no memory with inputs that the caller
//   still has. The device's stream orders inputs and results, without host
//   synchronization.
// - Reductions give bitwise equal results on all ranks, in any fixed order.
// - A failure throws on the rank that detects it, in submit() or in the wait.
#pragma once

#include <c10/core/Device.h>
#include <dtensor/api.h>
#include <dtensor/comm/collective.h>
#include <dtensor/comm/in_flight.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace dtensor {

/// Members of a group, and this rank's place among them.
struct GroupMembers {
  /// Global ranks, in group order.
  std::vector<int64_t> ranks;
  /// This rank's position in `ranks`. Collectives use such positions.
  int64_t rank = 0;
  /// Name of the group in messages.
  std::string label;
};

/// Preparation that a backend needs for its calls.
struct BackendNeeds {
  /// True if the backend needs contiguous inputs without autograd; Group then
  /// prepares them.
  bool plain = true;
  /// True if the backend needs sizes and shapes: the ranks exchange those that
  /// the caller does not pass.
  bool sizes = true;
  /// Device for calls without a tensor: barriers, strings, exchanged sizes.
  c10::Device device = c10::Device(c10::kCPU);
};

class DTENSOR_API GroupBackend {
 public:
  explicit GroupBackend(GroupMembers members, BackendNeeds needs = {})
      : members_(std::move(members)),
        needs_(needs) {}
  virtual ~GroupBackend() = default;
  GroupBackend(const GroupBackend&) = delete;
  GroupBackend& operator=(const GroupBackend&) = delete;

  /// Return the members and needs given to the constructor, and this rank's
  /// position, the number of members, and the label.
  const GroupMembers& members() const {
    return members_;
  }
  const BackendNeeds& needs() const {
    return needs_;
  }
  int64_t rank() const {
    return members_.rank;
  }
  int64_t size() const {
    return static_cast<int64_t>(members_.ranks.size());
  }
  const std::string& label() const {
    return members_.label;
  }

  /// Begins `collective`, and may complete it. Unless it is asynchronous, the
  /// caller waits for the result at once.
  virtual InFlight submit(Collective&& collective) = 0;

  /// Returns true if asynchronous collectives progress in the background, by
  /// the backend's own threads or streams. False by default.
  virtual bool progresses_in_background(c10::DeviceType /*device*/) const {
    return false;
  }

  /// See Group::assume(). The default does nothing.
  virtual void assume(const Spec& /*spec*/) {}

  /// Called after an operator on DTensors has failed on this rank. `total` is
  /// the number of such errors so far, on meshes that contain all ranks of the
  /// group; `last` is the text of the last one. A backend that compares calls
  /// also compares these numbers: a rank that catches an error that other ranks
  /// do not have continues at another place of the program. The default does
  /// nothing.
  virtual void set_operator_errors(
      int64_t /*total*/,
      const std::string& /*last*/) {}

  /// Marks this rank as failed, for the reason `why`, although its groups may
  /// still exist. Peers that wait for this rank must get an error. The default
  /// relies on the transport to notice closed connections.
  virtual void abandon(const std::string& /*why*/) {}

 private:
  GroupMembers members_;
  BackendNeeds needs_;
};

using GroupBackendPtr = std::shared_ptr<GroupBackend>; // shared by groups

/// Wraps `backend` so that ranks compare their calls and assumed shapes before
/// each collective. If they differ, all ranks throw ValueError. Costs a small
/// all_gather per call. (Ranks that are threads always compare.)
DTENSOR_API GroupBackendPtr checked(GroupBackendPtr backend);

} // namespace dtensor
