// SPDX-License-Identifier: BSD-3-Clause
// World: the ranks that work together, as one of them sees them.
//
// A thread is a rank of a world while a WorldScope says so, and whoever asks
// for a rank, a group or a mesh asks the world of its thread. run_ranks and
// Ranks (comm/ranks.h) make worlds of threads; one of processes, or over
// somebody else's communication, is a class with one function:
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
// A thread that is no rank is rank 0 of the process's world of one. A backward
// node that a rank's thread made is that rank's wherever it runs: in a thread
// of LibTorch's own for a device, or in any that calls backward().
#pragma once

#include <dtensor/api.h>
#include <dtensor/comm/group.h>
#include <dtensor/comm/group_backend.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace dtensor {

namespace detail {
class RankState;
RankState& state_of(World& world);
} // namespace detail

/// What may be said of a group.
struct GroupOptions {
  /// How long its collectives wait for its ranks (comm/collective_timeout.h);
  /// by default as long as the world says.
  std::optional<std::chrono::milliseconds> timeout = std::nullopt;
  /// What carries its tensors, where the world has a choice: a world of
  /// processes takes what init_process_group() does. Empty: what the world has.
  std::string backend = {};
};

/// One rank of a world. Groups, meshes and what is made of them belong to the
/// object, which they keep alive: no other rank may use them, and nobody may
/// communicate with them when it has ended.
class DTENSOR_API World : public std::enable_shared_from_this<World> {
 public:
  virtual ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  /// Which rank this is, and of how many.
  int64_t rank() const {
    return rank_;
  }
  int64_t size() const {
    return size_;
  }
  /// What messages call it: "rank 0 of a run_ranks that has ended".
  const char* name() const {
    return name_;
  }

  /// The group of these global ranks, in this order, of which this rank is one.
  /// Throws ValueError for members that are not there or named twice.
  GroupPtr new_group(
      const std::vector<int64_t>& ranks,
      const std::string& label,
      const GroupOptions& options = {});

  /// Says that this rank will do no more, and drops what it had of its own.
  /// Worlds that have groups end before they are let go: models that a rank
  /// keeps hold groups, and those hold the world.
  void end();
  /// Whether it has been called.
  bool has_ended() const {
    return ended_.load(std::memory_order_relaxed);
  }

  /// get_node_local_rank() of this rank.
  virtual int64_t node_local_rank() const {
    return 0;
  }
  /// The same address for all ranks of one world that live in this process.
  virtual const void* shared() const {
    return this;
  }

 protected:
  /// `name` is a literal.
  constexpr World(int64_t rank, int64_t size, const char* name)
      : rank_(rank),
        size_(size),
        name_(name) {}

  /// What carries tensors in a group of at least two ranks. All of them make it
  /// with the same list, and the same list again is to give the same channel,
  /// or the same backend.
  virtual GroupBackendPtr make_backend(GroupMembers members) = 0;
  /// The same over the backend of that name. By default there is no choice:
  /// throws ValueError.
  virtual GroupBackendPtr make_chosen_backend(
      GroupMembers members,
      const std::string& backend);

 private:
  friend detail::RankState& detail::state_of(World& world);

  int64_t rank_;
  int64_t size_;
  const char* name_;
  std::atomic<bool> ended_{false};
  /// What is the rank's own; made when it is first asked for.
  std::atomic<detail::RankState*> state_{nullptr};
};

/// Makes this thread a rank of `world` while it lives.
/// Throws ValueError for a rank outside of its world, RuntimeError where the
/// thread is a rank of another world, or the world has ended.
class DTENSOR_API WorldScope {
 public:
  explicit WorldScope(std::shared_ptr<World> world);
  ~WorldScope();
  WorldScope(const WorldScope&) = delete;
  WorldScope& operator=(const WorldScope&) = delete;

 private:
  std::shared_ptr<World> world_;
  /// The outermost of the thread.
  bool entered_;
  bool watched_draws_ = false;
};

/// The world of this thread: that which it is a rank of; in a backward node
/// that a rank made, that rank's; else the process's world of one.
DTENSOR_API std::shared_ptr<World> this_world();
/// The same. It lives as long as something that was made in it does.
DTENSOR_API World& current_world();

/// This thread's rank and the number of ranks: 0 of 1 outside of ranks.
DTENSOR_API int64_t get_rank();
DTENSOR_API int64_t get_world_size();

/// The group of these global ranks, in this order, of which the caller is one.
/// All members call it with the same ranks; ranks outside need not. The same
/// list gives the same channel. `label` is how messages call it.
/// Python: torch.distributed.new_group.
DTENSOR_API GroupPtr new_group(
    const std::vector<int64_t>& ranks,
    const std::string& label,
    const GroupOptions& options = {});

} // namespace dtensor
