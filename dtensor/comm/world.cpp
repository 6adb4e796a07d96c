// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/world_impl.h>

#include <ATen/record_function.h>
#include <c10/util/StringUtil.h>
#include <dtensor/comm/collective_timeout.h>
#include <dtensor/comm/default_world.h>
#include <dtensor/comm/group/owner_impl.h>
#include <dtensor/comm/rank_generator_impl.h>
#include <dtensor/error.h>
#include <dtensor/torch_nodes_impl.h>

#include <algorithm>
#include <set>
#include <shared_mutex>
#include <unordered_map>
#include <utility>

namespace dtensor {
namespace {

class SingleWorld final : public World {
 public:
  constexpr SingleWorld() : World(0, 1, "program without ranks") {}

 protected:
  GroupBackendPtr make_backend(GroupMembers) override {
    TORCH_INTERNAL_ASSERT(false, "a world of one has groups of one");
  }
};

/// Storage of the process's world. Usable before any code runs, and never
/// destroyed, because static objects may hold meshes.
union ImmortalWorld {
  constexpr ImmortalWorld() : world() {}
  ~ImmortalWorld() {}
  SingleWorld world;
};
constinit ImmortalWorld the_process;

/// Threads that are ranks, by the thread id that backward nodes record.
struct RankThreads {
  std::shared_mutex mutex;
  std::unordered_map<uint64_t, World*> worlds;
  /// Number of entries, readable without the lock.
  std::atomic<size_t> count{0};
};

RankThreads& rank_threads() {
  static auto* all = new RankThreads;
  return *all;
}

void enter(World* world) {
  auto& all = rank_threads();
  const std::lock_guard lock(all.mutex);
  all.worlds[at::RecordFunction::currentThreadId()] = world;
  all.count = all.worlds.size();
}

void leave() {
  auto& all = rank_threads();
  const std::lock_guard lock(all.mutex);
  all.worlds.erase(at::RecordFunction::currentThreadId());
  all.count = all.worlds.size();
}

// Returns the rank whose thread made the backward node that this thread runs.
std::shared_ptr<World> world_of_node() {
  auto& all = rank_threads();
  if (all.count.load(std::memory_order_relaxed) == 0) {
    return nullptr;
  }
  const auto node = torch::autograd::get_current_node();
  if (node == nullptr) {
    return nullptr;
  }
  const std::shared_lock lock(all.mutex);
  const auto found = all.worlds.find(node->thread_id());
  return found == all.worlds.end() ? nullptr
                                   : found->second->shared_from_this();
}

std::atomic<World*> default_world{nullptr};

detail::RankLocal<BackendWrapper> backend_wrapper;

// Checks the members of a new group. Returns this rank's position among them.
int64_t check_members(const World& world, const std::vector<int64_t>& ranks) {
  std::set<int64_t> seen;
  for (int64_t member : ranks) {
    DTENSOR_CHECK_VALUE(
        member >= 0 && member < world.size(),
        "[new_group] no rank {} in a world of {}. Use ranks from 0 to {}.",
        member,
        world.size(),
        world.size() - 1);
    DTENSOR_CHECK_VALUE(
        seen.insert(member).second,
        "[new_group] rank {} is listed twice. List every rank once.",
        member);
  }
  DTENSOR_CHECK_VALUE(
      seen.count(world.rank()) == 1,
      "[new_group] the calling rank {} is not among the members [{}]. Call it "
      "on the members only.",
      world.rank(),
      c10::Join(", ", ranks));
  return std::ranges::find(ranks, world.rank()) - ranks.begin();
}

// Throws unless this thread may become the rank of `world`.
void check_may_enter(const World& world) {
  DTENSOR_CHECK_VALUE(
      world.rank() >= 0 && world.rank() < world.size(),
      "[WorldScope] no rank {} in a world of {}. Use ranks from 0 to the world "
      "size minus 1.",
      world.rank(),
      world.size());
  DTENSOR_CHECK(
      !world.has_ended(),
      "[WorldScope] this {} has ended. Make a new world.",
      world.name());
  DTENSOR_CHECK(
      !detail::is_rank() || detail::this_thread.world == &world,
      "[WorldScope] this thread is rank {} of another world. Ranks cannot be "
      "nested: use a thread for each.",
      get_rank());
}

} // namespace

namespace detail {

constinit thread_local ThisThread this_thread{&the_process.world, nullptr};

World& process_world() {
  return the_process.world;
}

std::shared_ptr<World> world_worked_for() {
  if (is_rank()) {
    return nullptr;
  }
  if (auto world = world_of_node()) {
    return world;
  }
  World* const world = default_world.load(std::memory_order_acquire);
  return world == nullptr ? nullptr : world->shared_from_this();
}

RankState& state_of(World& world) {
  RankState* state = world.state_.load();
  if (state == nullptr) {
    auto made = std::make_unique<RankState>();
    if (world.state_.compare_exchange_strong(state, made.get())) {
      state = made.release();
    }
  }
  return *state;
}

} // namespace detail

void set_default_world(World* world) {
  default_world = world;
}

World::~World() {
  delete state_.load();
}

void World::end() {
  ended_ = true;
  detail::state_of(*this).clear();
}

LinkCost World::link_cost(
    const std::vector<int64_t>&,
    c10::DeviceType,
    const std::string&) const {
  return {};
}

GroupBackendPtr World::make_chosen_backend(
    // NOLINTNEXTLINE(performance-unnecessary-value-param): worlds keep it.
    GroupMembers members,
    const std::string& backend) {
  DTENSOR_THROW_VALUE(
      "[new_group] group \"{}\" cannot have the backend \"{}\": this {} has "
      "only one backend. Leave `backend` empty.",
      members.label,
      backend,
      name_);
}

GroupPtr World::new_group(
    const std::vector<int64_t>& ranks,
    const std::string& label,
    const GroupOptions& options) {
  detail::check_owner(
      "new_group", [] { return "the world"; }, this);
  GroupMembers members{ranks, check_members(*this, ranks), label};
  if (ranks.size() == 1) {
    return std::make_shared<Group>(std::move(members));
  }
  GroupBackendPtr backend = options.backend.empty()
      ? make_backend(std::move(members))
      : make_chosen_backend(std::move(members), options.backend);
  if (options.timeout) {
    backend = detail::timed(std::move(backend), *options.timeout);
  }
  const auto& wrap = backend_wrapper.get();
  return std::make_shared<Group>(
      wrap ? wrap(std::move(backend)) : std::move(backend), label);
}

WorldScope::WorldScope(std::shared_ptr<World> world)
    : world_(std::move(world)),
      entered_(detail::this_thread.world != world_.get()) {
  check_may_enter(*world_);
  if (entered_) {
    enter(world_.get());
    detail::this_thread = {world_.get(), &detail::state_of(*world_)};
    watched_draws_ = detail::intercept_random_ops(true);
  }
}

WorldScope::~WorldScope() {
  if (entered_) {
    detail::intercept_random_ops(watched_draws_);
    detail::this_thread = {&the_process.world, nullptr};
    leave();
  }
}

void wrap_backends(BackendWrapper wrapper) {
  backend_wrapper.get() = std::move(wrapper);
}

std::shared_ptr<World> this_world() {
  if (auto world = detail::world_worked_for()) {
    return world;
  }
  World* const world = detail::this_thread.world;
  return detail::is_rank()
      ? world->shared_from_this()
      : std::shared_ptr<World>(std::shared_ptr<void>(), world);
}

World& current_world() {
  return C10_LIKELY(detail::is_rank()) ? *detail::this_thread.world
                                       : *this_world();
}

int64_t get_rank() {
  return current_world().rank();
}

int64_t get_world_size() {
  return current_world().size();
}

GroupPtr new_group(
    const std::vector<int64_t>& ranks,
    const std::string& label,
    const GroupOptions& options) {
  return current_world().new_group(ranks, label, options);
}

} // namespace dtensor
