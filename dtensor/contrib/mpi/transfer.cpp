// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/contrib/mpi/mpi_group_impl.h>

#include <c10/util/StringUtil.h>
#include <dtensor/comm/collective_timeout.h>
#include <dtensor/comm/spin.h>
#include <dtensor/error.h>

#include <unistd.h>
#include <algorithm>
#include <chrono>
#include <string_view>
#include <thread>

namespace dtensor::mpi {

// Tests requests in order; testing one request lets MPI progress all of them.
bool MpiRequests::test() noexcept {
  const std::lock_guard lock(mutex_);
  const auto turn = MpiRuntime::get().turn();
  while (done_ < all_.size() && code_ == MPI_SUCCESS) {
    int is_done = 0;
    code_ = MPI_Test(&all_[done_], &is_done, MPI_STATUS_IGNORE);
    if (is_done == 0 && code_ == MPI_SUCCESS) {
      return false;
    }
    ++done_;
  }
  return true;
}

void MpiTransfer::wait() {
  if (requests_ == nullptr) {
    return;
  }
  channel_->wait([&] { return requests_->test(); });
  const int code = requests_->code();
  requests_ = nullptr;
  check_mpi(code, "MPI_Test");
}

void MpiTransfer::progress_in_background() {
  is_watched_ = true;
  MpiRuntime::get().watch(requests_);
}

// MPI cannot cancel a collective, so the helper thread must finish it.
MpiTransfer::~MpiTransfer() {
  if (requests_ != nullptr && !is_watched_) {
    MpiRuntime::get().watch(requests_);
  }
}

namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kFailed = "failed"; // a key in the store

// Returns true if this host has a core for each of its members. Counts all
// cores of the host, because a launcher may have bound this rank to a few of
// them.
bool have_cores_each(const GroupMembers& members, const RendezvousInfo& place) {
  const auto& mine = place.hosts[static_cast<size_t>(members.rank)];
  return std::ranges::count(place.hosts, mine) <= sysconf(_SC_NPROCESSORS_ONLN);
}

} // namespace

MpiChannel::MpiChannel(const GroupMembers& members, const RendezvousInfo& place)
    : store_(place.store),
      timeout_(place.timeout),
      one_core_per_member_(have_cores_each(members, place)) {
  meet(members);
  make_communicator(members);
  MpiRuntime::get().listen(this);
}

void MpiChannel::make_communicator(const GroupMembers& members) {
  const auto turn = MpiRuntime::get().turn();
  std::vector<int> ranks;
  for (const int64_t rank : members.ranks) {
    ranks.push_back(static_cast<int>(rank));
  }
  MPI_Group world = MPI_GROUP_NULL;
  MPI_Group mine = MPI_GROUP_NULL;
  check_mpi(MPI_Comm_group(MPI_COMM_WORLD, &world), "MPI_Comm_group");
  check_mpi(
      MPI_Group_incl(
          world, static_cast<int>(ranks.size()), ranks.data(), &mine),
      "MPI_Group_incl");
  check_mpi(
      MPI_Comm_create_group(MPI_COMM_WORLD, mine, 0, &communicator_),
      "MPI_Comm_create_group");
  check_mpi(
      MPI_Comm_set_errhandler(communicator_, MPI_ERRORS_RETURN),
      "MPI_Comm_set_errhandler");
  MPI_Group_free(&mine);
  MPI_Group_free(&world);
}

// First waits for all members in the store, because creating a communicator
// would wait without a timeout for members that never arrive.
void MpiChannel::meet(const GroupMembers& members) {
  std::vector<std::string> keys;
  for (const int64_t rank : members.ranks) {
    keys.push_back(c10::str("here/", rank));
  }
  try {
    store_->set(keys[static_cast<size_t>(members.rank)], "");
    store_->wait(keys, timeout_);
  } catch (const std::exception& error) {
    const std::string_view text = error.what();
    DTENSOR_THROW(
        "[mpi] timed out after {} ms waiting for the {} ranks of \"{}\" to "
        "make "
        "the group: {}. Make the group on every rank, or raise the timeout.",
        timeout_.count(),
        members.ranks.size(),
        members.label,
        // The text, without LibTorch's backtrace.
        text.substr(0, std::min<size_t>(text.find('\n'), 200)));
  }
}

MpiChannel::~MpiChannel() {
  auto& mpi = MpiRuntime::get();
  mpi.forget(this);
  if (mpi.is_intact()) {
    const auto turn = mpi.turn();
    MPI_Comm_free(&communicator_);
  }
}

// Polls, because MPI has no wake-up. Each sleep lasts an eighth of the time
// waited so far, which adds little latency. A rank that waits for a slow peer
// thus leaves the core to this peer.
void MpiChannel::wait(c10::function_ref<bool()> done) {
  constexpr Clock::duration kShortest = std::chrono::microseconds(20);
  constexpr Clock::duration kLongest = std::chrono::milliseconds(1);
  constexpr std::chrono::milliseconds kLookAfter(100);
  auto now = Clock::now();
  const auto begin = now;
  const auto timeout = CollectiveTimeout::in_effect(timeout_);
  const auto deadline = begin + timeout;
  auto next_look = begin + kLookAfter;
  if (spin(one_core_per_member_, done)) {
    return;
  }
  while (!done()) {
    std::this_thread::sleep_for(
        std::clamp((now - begin) / 8, kShortest, kLongest));
    now = Clock::now();
    if (now < next_look) {
      continue;
    }
    next_look = now + kLookAfter;
    const bool is_over = store_->check({kFailed});
    if ((!is_over && now < deadline) || done()) {
      continue;
    }
    DTENSOR_CHECK(!is_over, "[mpi] another rank of the group failed");
    DTENSOR_THROW(
        "[mpi] timed out after {} ms. Call the same collectives on every rank, "
        "or raise the timeout",
        timeout.count());
  }
}

void MpiChannel::report_failure() noexcept {
  try {
    store_->set(kFailed, "");
  } catch (const std::exception&) {
    // The store has ended. The other members notice this as well.
  }
}

} // namespace dtensor::mpi
