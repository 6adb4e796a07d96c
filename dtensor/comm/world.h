// SPDX-License-Identifier: BSD-3-Clause
// World: one rank's view of the ranks that work together.
//
// A WorldScope makes its thread a rank of a world. get_rank(), new_group() and
// init_device_mesh() use the world of the calling thread. run_ranks and Ranks
// (comm/ranks.h) make worlds of threads. A world over any other transport is a
// class with one function:
//
//   class MyWorld final : public World {
//    public:
//     MyWorld(int64_t rank, int64_t size) : World(rank, size, "my world") {}
//    protected:
//     GroupBackendPtr make_backend(GroupMembers members) override;
//   };
//
//   const auto world = std::make_shared<MyWorld>(rank, size);
//   const WorldScope scope(world);   // this thread is that rank
//   auto mesh = init_device_mesh(torch::kCPU, {size});
//
// Without any WorldScope, a thread is rank 0 of a world of one rank, which
// every process has. A node of the autograd graph belongs to the rank whose
// thread made it. The node may run in one of LibTorch's device threads, or in
// any thread that calls backward().
#pragma once

#include <dtensor/api.h>
#include <dtensor/comm/group.h>
#include <dtensor/comm/group_backend.h>
#include <dtensor/layout/cost.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace dtensor {

namespace detail {
class RankState;
RankState& state_of(World& world);
} // namespace detail

/// Options for new_group().
struct GroupOptions {
  /// Longest time that a collective of the group waits for a rank
  /// (comm/collective_timeout.h); by default that of the world.
  std::optional<std::chrono::milliseconds> timeout = std::nullopt;
  /// Backend name. Worlds of processes accept the names that
  /// init_process_group() accepts; other worlds have only one backend. Empty:
  /// the world's backend.
  std::string backend = {};
};

/// One rank of a world. Groups, meshes and objects made from them belong to it
/// and keep it alive. No other rank may use them, and they cannot communicate
/// once the world has ended.
class DTENSOR_API World : public std::enable_shared_from_this<World> {
 public:
  virtual ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  /// Return this rank, and the number of ranks in the world.
  int64_t rank() const {
    return rank_;
  }
  int64_t size() const {
    return size_;
  }
  /// Name of the world in messages: "run_ranks" in "rank 0 of a run_ranks that
  /// has ended".
  const char* name() const {
    return name_;
  }

  /// Makes the group of these global ranks, in this order; this rank must be a
  /// member. Throws ValueError for ranks out of range or repeated.
  GroupPtr new_group(
      const std::vector<int64_t>& ranks,
      const std::string& label,
      const GroupOptions& options = {});

  /// Ends this rank and frees its state. A world that has made groups must be
  /// ended explicitly, because these groups, and the models that use them, keep
  /// the world alive.
  void end();
  /// Returns true once end() has been called.
  bool has_ended() const {
    return ended_.load(std::memory_order_relaxed);
  }

  /// Returns the value of get_node_local_rank() on this rank.
  virtual int64_t node_local_rank() const {
    return 0;
  }
  /// Returns the modelled cost of collectives among these global ranks, for
  /// tensors on `device` and the backend `backend` (GroupOptions::backend). The
  /// result must be the same on every rank of the world, member or not. The
  /// default is the cost between threads.
  virtual LinkCost link_cost(
      const std::vector<int64_t>& ranks,
      c10::DeviceType device,
      const std::string& backend) const;

  /// Returns an address that is equal for all ranks of the world in this
  /// process.
  virtual const void* shared() const {
    return this;
  }

 protected:
  /// `name` is a literal.
  constexpr World(int64_t rank, int64_t size, const char* name)
      : rank_(rank),
        size_(size),
        name_(name) {}

  /// Makes the backend of a group of at least two ranks. All members call it
  /// with the same list. If they call it again with an equal list, the result
  /// must be the same backend, or a backend that communicates over the same
  /// channel.
  virtual GroupBackendPtr make_backend(GroupMembers members) = 0;
  /// Makes a group's backend of the given name. The default throws ValueError,
  /// for a world with only one backend.
  virtual GroupBackendPtr make_chosen_backend(
      GroupMembers members,
      const std::string& backend);

 private:
  friend detail::RankState& detail::state_of(World& world);

  int64_t rank_;
  int64_t size_;
  const char* name_;
  std::atomic<bool> ended_{false};
  /// The rank's RankLocal values; made on first use.
  std::atomic<detail::RankState*> state_{nullptr};
};

/// Scope in which this thread is a rank of `world`.
/// Throws ValueError for a rank out of range, and RuntimeError if the thread is
/// a rank of another world or the world has ended.
class DTENSOR_API WorldScope {
 public:
  explicit WorldScope(std::shared_ptr<World> world);
  ~WorldScope();
  WorldScope(const WorldScope&) = delete;
  WorldScope& operator=(const WorldScope&) = delete;

 private:
  std::shared_ptr<World> world_;
  /// True for the outermost scope of the thread.
  bool entered_;
  bool watched_draws_ = false;
};

/// Function that wraps the backend of a group.
using BackendWrapper = std::function<GroupBackendPtr(GroupBackendPtr)>;

/// Wraps the backend of each group that this rank makes from now on, including
/// groups of meshes. A null function ends this. The backend that `wrapper`
/// returns gets each collective of its group in submit(). Groups of one rank
/// have no backend.
DTENSOR_API void wrap_backends(BackendWrapper wrapper);

/// Returns the world of this thread's rank. Inside a node of the autograd
/// graph, returns the world of the rank that made the node. In other threads,
/// returns the process's world of one rank.
DTENSOR_API std::shared_ptr<World> this_world();
/// Returns this_world() by reference. The world exists as long as any object
/// made in it.
DTENSOR_API World& current_world();

/// Return this thread's rank, and the number of ranks. A thread that is not a
/// rank gets 0 and 1.
/// Python: torch.distributed.get_rank, get_world_size.
DTENSOR_API int64_t get_rank();
DTENSOR_API int64_t get_world_size();

/// Makes the group of these global ranks, in this order; the caller must be one
/// of them. All members call it with the same ranks; other ranks need not.
/// Groups with equal lists communicate over the same channel. `label` names the
/// group in messages. Throws ValueError for ranks that are repeated or out of
/// range, and on a rank that is not a member.
/// Python: torch.distributed.new_group.
DTENSOR_API GroupPtr new_group(
    const std::vector<int64_t>& ranks,
    const std::string& label,
    const GroupOptions& options = {});

} // namespace dtensor
