// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/ranks.h>

#include <dtensor/comm/threads/rank_threads_impl.h>
#include <dtensor/comm/threads/thread_backend_impl.h>
#include <dtensor/comm/world.h>

#include <memory>
#include <utility>

namespace dtensor {
namespace {

// One rank's view of a world of threads of this process.
class ThreadRank final : public World {
 public:
  ThreadRank(
      std::shared_ptr<detail::ThreadHub> hub,
      int64_t rank,
      const char* name)
      : World(rank, hub->size(), name),
        hub_(std::move(hub)) {}

  const void* shared() const override {
    return hub_.get();
  }

 protected:
  GroupBackendPtr make_backend(GroupMembers members) override {
    return std::make_shared<detail::ThreadBackend>(std::move(members), hub_);
  }

 private:
  std::shared_ptr<detail::ThreadHub> hub_;
};

// Makes the threads of a world without other processes. `name` names the world
// in messages.
std::unique_ptr<detail::RankThreads> make_threads(
    const char* where,
    const char* name,
    int64_t n,
    const RunRanksOptions& options) {
  return std::make_unique<detail::RankThreads>(
      where,
      detail::LocalRanks{0, n, n},
      options,
      [name](std::shared_ptr<detail::ThreadHub> hub, int64_t rank) {
        return std::make_shared<ThreadRank>(std::move(hub), rank, name);
      });
}

} // namespace

Ranks::Ranks(int64_t n, const RunRanksOptions& options)
    : threads_(make_threads("Ranks", "set of Ranks", n, options)) {}

// A forked child has none of the parent's threads. Joining them would never
// end.
Ranks::~Ranks() {
  if (threads_->is_forked()) {
    static_cast<void>(threads_.release());
  }
}

void Ranks::run(const std::function<void()>& fn) {
  run([&fn](int64_t) { fn(); });
}

void Ranks::run(const std::function<void(int64_t)>& fn) {
  if (!threads_->is_forked() && threads_->is_fresh()) {
    detail::ExitGuard::register_after_ranks();
  }
  threads_->run("Ranks::run", fn);
}

int64_t Ranks::size() const {
  return threads_->size();
}

void run_ranks(
    int64_t n,
    const std::function<void(int64_t)>& fn,
    const RunRanksOptions& options) {
  constexpr const char* kWhere = "run_ranks";
  const auto ranks = make_threads(kWhere, kWhere, n, options);
  ranks->run(kWhere, fn);
  ranks->take_over_generator();
}

void run_ranks(
    int64_t n,
    const std::function<void()>& fn,
    const RunRanksOptions& options) {
  run_ranks(
      n, [&fn](int64_t) { fn(); }, options);
}

} // namespace dtensor
