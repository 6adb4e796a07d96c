// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/processes/peers_impl.h>

#include <c10/util/StringUtil.h>
#include <dtensor/comm/backend/call_impl.h>
#include <dtensor/comm/processes/open_store_impl.h>
#include <dtensor/format_text.h>

#include <algorithm>
#include <numeric>
#include <thread>

namespace dtensor::detail {
namespace {

// Time that a rank spends on finding the cause of a failure. A dying process
// closes its connections a moment before it ends.
constexpr auto kMoment = std::chrono::milliseconds(1500);
constexpr auto kRetry = std::chrono::milliseconds(20);

constexpr const char* kHowToCompare =
    "Set TORCH_DISTRIBUTED_DEBUG=DETAIL to compare the collectives of all "
    "ranks";

constexpr const char* kMembersLeft = "left";
constexpr char kCause = 'c';
constexpr char kConsequence = 's';

std::string note_key(int64_t rank) {
  return c10::str("failed/", rank);
}

std::string left_key(int64_t rank) {
  return c10::str("left/", rank);
}

// Runs calls of the store with a deadline. Such calls throw if the store has
// ended, and never return if its process is stopped. `fn` must own all data
// that it uses, because it may outlive this call.
void try_briefly(std::chrono::milliseconds longest, std::function<void()> fn) {
  within_deadline<bool>(
      std::chrono::steady_clock::now() + longest, [fn = std::move(fn)] {
        fn();
        return true;
      });
}

} // namespace

Peers::Peers(int64_t rank, Rendezvous rendezvous)
    : rank_(rank),
      rendezvous_(std::move(rendezvous)) {}

Peers::~Peers() {
  if (rendezvous_.store != nullptr) {
    const auto path = file_of(*rendezvous_.store);
    rendezvous_.store = nullptr;
    if (!path.empty()) {
      remove_finished_meeting_file(path, size());
    }
  }
}

std::string Peers::name(int64_t rank) const {
  return detail::format_text(
      "rank {} (process {} on {})",
      rank,
      of(rank).process.pid,
      of(rank).host_name);
}

std::string Peers::names(const std::vector<int64_t>& ranks) const {
  constexpr size_t kMost = 8; // longer lists show numbers only
  if (ranks.size() > kMost) {
    return rank_list(ranks);
  }
  std::vector<std::string> each;
  for (const int64_t rank : ranks) {
    each.push_back(name(rank));
  }
  return c10::Join(", ", each);
}

int64_t Peers::local_rank() const {
  const auto begin = rendezvous_.peers.begin();
  return std::count_if(begin, begin + rank_, [&](const Peer& peer) {
    return peer.host == host(rank_);
  });
}

void Peers::publish_failure(const std::string& text, bool is_cause) noexcept {
  if (has_published_ || rendezvous_.store == nullptr) {
    return;
  }
  has_published_ = true;
  try {
    std::vector<uint8_t> note(text.begin(), text.end());
    note.insert(note.begin(), is_cause ? kCause : kConsequence);
    try_briefly(
        kMoment, [store = rendezvous_.store, key = note_key(rank_), note] {
          store->set(key, note);
        });
  } catch (const std::exception&) {
    // The store ended together with rank 0. The other ranks detect this
    // themselves.
  }
}

bool Peers::runs(int64_t rank) const {
  if (of(rank).host == host(rank_)) {
    return !has_ended(of(rank).process);
  }
  return !rendezvous_.keeps_store || rendezvous_.store_port == 0 ||
      has_remote_connections(rendezvous_.store_port);
}

bool Peers::has_published_failure(int64_t rank) const {
  return store().check({note_key(rank)});
}

std::string Peers::describe_failures(int64_t rank) const {
  if (has_published_failure(rank)) {
    const auto note = store().get(note_key(rank));
    return note.empty() || note.front() == kConsequence
        ? ""
        : detail::format_text(
              "{} failed: {}",
              name(rank),
              std::string(note.begin() + 1, note.end()));
  }
  if (has_left(rank)) {
    return name(rank) +
        " has left the world: it called destroy_process_group, or its "
        "function in run_world returned";
  }
  return runs(rank) ? "" : name(rank) + " has ended";
}

std::string Peers::causes(const std::vector<int64_t>& ranks) const {
  std::vector<std::string> known;
  for (const int64_t rank : ranks) {
    auto text = rank == rank_ ? "" : describe_failures(rank);
    if (!text.empty()) {
      known.push_back(std::move(text));
    }
  }
  return c10::Join("; ", known);
}

std::vector<int64_t> Peers::silent(const std::vector<int64_t>& ranks) const {
  std::vector<int64_t> result;
  for (const int64_t rank : ranks) {
    if (rank != rank_ && !has_published_failure(rank)) {
      result.push_back(rank);
    }
  }
  return result;
}

// Waits until a cause is known, until all ranks have published a failure, or
// for a moment. If all failures are consequences, the ranks probably called
// different collectives.
std::string Peers::find_failure_causes(
    const std::vector<int64_t>& ranks) const {
  const auto deadline = std::chrono::steady_clock::now() + kMoment;
  std::vector<int64_t> quiet;
  do {
    std::string known = causes(ranks);
    if (!known.empty()) {
      return known;
    }
    std::this_thread::sleep_for(kRetry);
    quiet = silent(ranks);
  } while (!quiet.empty() && std::chrono::steady_clock::now() < deadline);
  return quiet.empty()
      ? c10::str(
            "all of its ranks failed in the same way. They may have called "
            "different collectives. ",
            kHowToCompare)
      : detail::format_text(
            "{}{} not reported an error: busy, hanging, or in another "
            "collective. {}",
            names(quiet),
            quiet.size() == 1 ? " is running but has" : " are running but have",
            kHowToCompare);
}

std::string Peers::describe_failures(
    const std::vector<int64_t>& ranks) const noexcept {
  try {
    const auto known = within_deadline<std::string>(
        std::chrono::steady_clock::now() + 2 * kMoment,
        [self = shared_from_this(), ranks] {
          return self->find_failure_causes(ranks);
        });
    return known ? *known
                 : "the store does not answer, so the process that hosts it, " +
            name(0) + " or the launcher, is stopped or cannot be reached";
  } catch (const std::exception&) {
    return "the store cannot be reached, so the process that hosted it, " +
        name(0) + " or the launcher, has ended";
  }
}

void Peers::await_failure_reports() const {
  std::vector<int64_t> world_group(rendezvous_.peers.size());
  std::iota(world_group.begin(), world_group.end(), 0);
  // Peers report a failure before they look for the cause, which takes them
  // some milliseconds.
  constexpr auto kLook = std::chrono::milliseconds(500);
  const auto deadline = std::chrono::steady_clock::now() + 3 * kMoment;
  const auto lives = [&](int64_t rank) {
    return runs(rank) && !has_left(rank);
  };
  const auto is_awaited = [&](const std::vector<int64_t>& ranks) {
    return std::ranges::any_of(ranks, lives);
  };
  while (is_awaited(silent(world_group)) &&
         std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(kRetry);
  }
  world_group.erase(world_group.begin() + rank_);
  if (is_awaited(world_group)) {
    std::this_thread::sleep_for(kLook);
  }
}

void Peers::linger() const noexcept {
  try {
    try_briefly(4 * kMoment, [self = shared_from_this()] {
      self->await_failure_reports();
    });
  } catch (const std::exception&) {
    // Without a store there is nothing to wait for.
  }
}

bool Peers::has_left(int64_t rank) const {
  return store().check({left_key(rank)});
}

std::vector<int64_t> Peers::staying() const {
  std::vector<int64_t> result;
  for (int64_t rank = 0; rank < size(); ++rank) {
    if (rank != rank_ && !has_left(rank) && !has_published_failure(rank) &&
        runs(rank)) {
      result.push_back(rank);
    }
  }
  return result;
}

// Polls the count of ranks that have left. Checks each rank only occasionally.
void Peers::await_leaving(std::chrono::milliseconds timeout) const {
  constexpr auto kPause = std::chrono::milliseconds(2);
  constexpr auto kLook = std::chrono::milliseconds(100);
  auto now = std::chrono::steady_clock::now();
  const auto deadline = now + timeout;
  auto next_look = now + kLook;
  while (store().add(kMembersLeft, 0) < size() && now < deadline) {
    std::this_thread::sleep_for(kPause);
    now = std::chrono::steady_clock::now();
    if (now >= next_look) {
      if (staying().empty()) {
        await_failure_reports(); // failed ranks may look for the cause
        return;
      }
      next_look = std::chrono::steady_clock::now() + kLook;
    }
  }
}

void Peers::leave(std::chrono::milliseconds timeout) noexcept {
  try {
    try_briefly(timeout + kMoment, [self = shared_from_this(), timeout] {
      self->store().set(left_key(self->rank_), std::vector<uint8_t>{'1'});
      self->store().add(kMembersLeft, 1);
      if (self->rendezvous_.keeps_store) {
        self->await_leaving(timeout);
      }
    });
  } catch (const std::exception&) {
    // The store is gone because its process has ended.
  }
}

} // namespace dtensor::detail
