// SPDX-License-Identifier: BSD-3-Clause
#include "nodes.h"

#include <fmt/format.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <sstream>
#include <vector>

#include "fd.h"
#include "signals.h"

namespace launcher {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kRound = std::chrono::milliseconds(100);
constexpr auto kLeave = std::chrono::seconds(5);

std::string encode(const Outcome& outcome) {
  return fmt::format("{} {:d} {}", outcome.code, outcome.again, outcome.text);
}

Outcome decode(const std::string& text) {
  Outcome outcome;
  std::istringstream in(text);
  in >> outcome.code >> outcome.again;
  if (in.fail() || outcome.code < 0 || outcome.code > 255) {
    return {
        1,
        false,
        "the store at node 0 has no result of this job. The ranks were "
        "terminated."};
  }
  std::getline(in >> std::ws, outcome.text, '\0');
  return outcome;
}

Outcome silent(const std::string& who) {
  return {
      1,
      false,
      fmt::format("{} stopped responding. The ranks were terminated.", who)};
}

} // namespace

struct Nodes::Shared {
  /// Heartbeat of a node: its last count, and the time of the last change.
  struct Beat {
    int64_t count = 0;
    Clock::time_point since;
    bool dead = false;
  };

  Shared(
      std::shared_ptr<Store> its_store,
      int its_node,
      int nodes,
      std::chrono::seconds its_timeout)
      : store(std::move(its_store)),
        node(its_node),
        timeout(its_timeout),
        beats(static_cast<size_t>(nodes)),
        news(checked(
            ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK),
            "cannot make an event")) {}

  void watch();
  void beat();
  void round();
  void publish(int of, const Outcome& outcome);
  void look_for_dead(int of);
  void leave();
  void record_outcome(int of, const Outcome& outcome);
  Outcome no_store() const;
  std::string key(int of) const {
    return fmt::format("outcome/{}", of);
  }

  const std::shared_ptr<Store> store;
  const int node;
  const std::chrono::seconds timeout;
  std::vector<Beat> beats; // of all nodes; filled on node 0
  const Fd news;

  std::mutex mutex;
  std::condition_variable changed;
  int attempt = 0;
  std::optional<Outcome> mine; // not yet published
  std::optional<Outcome> all;
  bool leaving = false;
  bool left = false;
  Clock::time_point answered = Clock::now(); // last answer of the store
};

void Nodes::Shared::watch() {
  try {
    std::unique_lock lock(mutex);
    while (!leaving) {
      lock.unlock();
      round();
      lock.lock();
      answered = Clock::now();
      changed.wait_for(lock, kRound, [&] { return leaving || mine; });
    }
    lock.unlock();
    leave();
  } catch (const std::exception&) {
    const std::lock_guard lock(mutex);
    all = all ? all : no_store();
  }
  const std::lock_guard lock(mutex);
  left = true;
  changed.notify_all();
  ::eventfd_write(news.get(), 1);
}

void Nodes::Shared::beat() {
  store->add(fmt::format("beat/{}", node), 1);
}

// One heartbeat. Calls the store without holding the lock, because a call may
// take long.
void Nodes::Shared::round() {
  std::unique_lock lock(mutex);
  const int of = attempt;
  const auto to_publish = std::exchange(mine, std::nullopt);
  const bool open = !all;
  lock.unlock();
  beat();
  if (to_publish) {
    publish(of, *to_publish);
  }
  if (node == 0) {
    look_for_dead(of);
  }
  if (open && store->has(key(of))) {
    record_outcome(of, decode(store->get(key(of))));
  }
}

// A failure decides the outcome at once. Success is decided by the last node to
// report it.
void Nodes::Shared::publish(int of, const Outcome& outcome) {
  const auto nodes = static_cast<int64_t>(beats.size());
  const bool failed = outcome.code != 0;
  if (failed || store->add(fmt::format("done/{}", of), 1) == nodes) {
    store->set_once(key(of), encode(outcome));
  }
}

// A death that is found after the end of an attempt decides the next attempt,
// because set_once() does not change an outcome.
void Nodes::Shared::look_for_dead(int of) {
  const auto now = Clock::now();
  for (size_t other = 1; other < beats.size(); ++other) {
    auto& beat = beats[other];
    const auto count = store->add(fmt::format("beat/{}", other), 0);
    if (count != beat.count) {
      beat = {count, now};
    } else if (count > 0 && now - beat.since > timeout) {
      beat.dead = true;
      const auto who = fmt::format("the launcher of node {}", other);
      store->set_once(key(of), encode(silent(who)));
    }
  }
}

void Nodes::Shared::leave() {
  const auto alive = std::count_if(
      beats.begin(), beats.end(), [](const Beat& beat) { return !beat.dead; });
  const auto deadline = Clock::now() + kLeave;
  auto count = store->add("left", 1);
  while (node == 0 && count < alive && Clock::now() < deadline) {
    std::this_thread::sleep_for(kRound);
    count = store->add("left", 0);
  }
}

void Nodes::Shared::record_outcome(int of, const Outcome& outcome) {
  const std::lock_guard lock(mutex);
  if (of == attempt) {
    all = outcome;
    ::eventfd_write(news.get(), 1);
  }
}

Outcome Nodes::Shared::no_store() const {
  return silent(fmt::format("node 0 at {}:{}", store->host(), store->port()));
}

Nodes::Nodes(
    std::shared_ptr<Store> store,
    int node,
    int nodes,
    std::chrono::seconds timeout)
    : shared_(
          std::make_shared<Shared>(std::move(store), node, nodes, timeout)) {
  shared_->beat(); // node 0 monitors it from now on
  const AllSignalsBlocked blocked;
  thread_ = std::thread([shared = shared_] { shared->watch(); });
}

Nodes::~Nodes() {
  std::unique_lock lock(shared_->mutex);
  shared_->leaving = true;
  shared_->changed.notify_all();
  const bool left = shared_->changed.wait_for(
      lock, 2 * kLeave, [&] { return shared_->left; });
  lock.unlock();
  if (left) {
    thread_.join();
  } else {
    thread_.detach(); // blocked on an unreachable host
  }
}

int Nodes::news() const {
  return shared_->news.get();
}

void Nodes::begin(int attempt) {
  const std::lock_guard lock(shared_->mutex);
  shared_->attempt = attempt;
  shared_->mine.reset();
  shared_->all.reset();
}

void Nodes::report(const Outcome& outcome) {
  const std::lock_guard lock(shared_->mutex);
  shared_->mine = outcome;
  shared_->changed.notify_all();
}

std::optional<Outcome> Nodes::outcome() {
  eventfd_t seen = 0;
  ::eventfd_read(shared_->news.get(), &seen);
  const std::lock_guard lock(shared_->mutex);
  if (!shared_->all && Clock::now() - shared_->answered > shared_->timeout) {
    shared_->all = shared_->no_store();
  }
  return shared_->all;
}

} // namespace launcher
