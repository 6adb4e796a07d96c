// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/processes/peers_impl.h>

#include <c10/util/StringUtil.h>
#include <dtensor/comm/call_impl.h>

#include <algorithm>
#include <numeric>
#include <thread>

namespace dtensor::detail {
namespace {

// How long a rank looks for the cause of a failure. A process that dies closes
// its connections first, and is gone a moment later.
constexpr auto kMoment = std::chrono::milliseconds(1500);
constexpr auto kRetry = std::chrono::milliseconds(20);

constexpr char kCause = 'c';
constexpr char kConsequence = 's';

std::string note_key(int64_t rank) {
  return c10::str("failed/", rank);
}

} // namespace

Peers::Peers(int64_t rank, Rendezvous rendezvous)
    : rank_(rank),
      rendezvous_(std::move(rendezvous)) {}

std::string Peers::name(int64_t rank) const {
  return c10::str(
      "rank ",
      rank,
      " (process ",
      of(rank).process.pid,
      " on ",
      of(rank).host_name,
      ")");
}

std::string Peers::names(const std::vector<int64_t>& ranks) const {
  constexpr size_t kMost = 8; // that somebody reads
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

void Peers::tell(const std::string& text, bool is_cause) noexcept {
  if (has_told_ || rendezvous_.store == nullptr) {
    return;
  }
  has_told_ = true;
  try {
    std::vector<uint8_t> note(text.begin(), text.end());
    note.insert(note.begin(), is_cause ? kCause : kConsequence);
    store().set(note_key(rank_), note);
  } catch (const std::exception&) {
    // The store is gone with rank 0, which the others notice too.
  }
}

bool Peers::runs(int64_t rank) const {
  return of(rank).host != host(rank_) || !has_ended(of(rank).process);
}

bool Peers::has_told(int64_t rank) const {
  return store().check({note_key(rank)});
}

std::string Peers::what_became_of(int64_t rank) const {
  if (has_told(rank)) {
    const auto note = store().get(note_key(rank));
    return note.front() == kConsequence
        ? ""
        : c10::str(
              name(rank),
              " failed: ",
              std::string(note.begin() + 1, note.end()));
  }
  return runs(rank) ? "" : name(rank) + " has ended";
}

std::string Peers::causes(const std::vector<int64_t>& ranks) const {
  std::vector<std::string> known;
  for (const int64_t rank : ranks) {
    auto text = rank == rank_ ? "" : what_became_of(rank);
    if (!text.empty()) {
      known.push_back(std::move(text));
    }
  }
  return c10::Join("; ", known);
}

std::vector<int64_t> Peers::silent(const std::vector<int64_t>& ranks) const {
  std::vector<int64_t> result;
  for (const int64_t rank : ranks) {
    if (rank != rank_ && !has_told(rank)) {
      result.push_back(rank);
    }
  }
  return result;
}

std::string Peers::what_became_of(
    const std::vector<int64_t>& ranks) const noexcept {
  const auto deadline = std::chrono::steady_clock::now() + kMoment;
  try {
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
        ? "all of its ranks failed alike. They may have called different "
          "collectives: TORCH_DISTRIBUTED_DEBUG=DETAIL compares them"
        : names(quiet) +
            (quiet.size() == 1 ? " runs and says" : " run and say") +
            " nothing: busy, hanging, or in another collective";
  } catch (const std::exception&) {
    return "the store cannot be reached, so the process that kept it, " +
        name(0) + " or the launcher, has ended";
  }
}

void Peers::linger() const noexcept {
  std::vector<int64_t> everybody(rendezvous_.peers.size());
  std::iota(everybody.begin(), everybody.end(), 0);
  // They tell before they look, and look for some milliseconds.
  constexpr auto kLook = std::chrono::milliseconds(500);
  const auto deadline = std::chrono::steady_clock::now() + 3 * kMoment;
  try {
    while (!silent(everybody).empty() &&
           std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(kRetry);
    }
    std::this_thread::sleep_for(kLook);
  } catch (const std::exception&) {
    // No store, nobody to wait for.
  }
}

} // namespace dtensor::detail
