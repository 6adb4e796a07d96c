// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/contrib/mpi/runtime_impl.h>

#include <dtensor/contrib/mpi/mpi_group_impl.h>
#include <dtensor/error.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <climits>
#include <cstdlib>

namespace dtensor::mpi {
namespace {

// Returns the first line of the version text, which names the implementation.
std::string library_version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  std::string all(text.data(), static_cast<size_t>(length));
  std::ranges::replace(all, '\t', ' '); // "MPICH Version:\t4.0"
  return all.substr(0, all.find_first_of(",\n"));
}

} // namespace

void check_mpi(int code, const char* call) {
  if (code == MPI_SUCCESS) {
    return;
  }
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  DTENSOR_THROW("[{}] {}", call, text.data());
}

MpiRuntime& MpiRuntime::get() {
  static auto* const only = new MpiRuntime;
  return *only;
}

void MpiRuntime::begin(int64_t rank, int64_t size) {
  if (!begun_) {
    start_mpi();
    read_limits();
    begun_ = true;
  }
  check_place(rank, size);
  const std::lock_guard lock(mutex_);
  world_lives_ = true;
}

void MpiRuntime::start_mpi() {
  int is_begun = 0;
  check_mpi(MPI_Initialized(&is_begun), "MPI_Initialized");
  int level = MPI_THREAD_SINGLE;
  if (is_begun != 0) {
    check_mpi(MPI_Query_thread(&level), "MPI_Query_thread");
  } else {
    check_mpi(
        MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level),
        "MPI_Init_thread");
    is_ours_ = true;
    // For errors during the creation of communicators. Communicators have their
    // own handlers.
    check_mpi(
        MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN),
        "MPI_Comm_set_errhandler");
  }
  // A helper thread is not allowed below MPI_THREAD_SERIALIZED.
  if (level >= MPI_THREAD_SERIALIZED) {
    helper_ = std::thread([this] { help(); });
  }
  std::atexit(end_at_exit);
}

void MpiRuntime::read_limits() {
  int is_set = 0;
  int* last_tag = nullptr;
  check_mpi(
      MPI_Comm_get_attr(
          MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void*>(&last_tag), &is_set),
      "MPI_Comm_get_attr");
  constexpr int kLeastLastTag = 32767; // minimum of the standard
  last_tag_ = is_set != 0 ? *last_tag : kLeastLastTag;
  const char* most = std::getenv("DTENSOR_MPI_MOST_BYTES");
  constexpr int64_t kLargestElement = 16;
  most_bytes_ = most == nullptr
      ? INT_MAX
      : std::clamp<int64_t>(std::atoll(most), kLargestElement, INT_MAX);
}

void MpiRuntime::check_place(int64_t rank, int64_t size) const {
  int mpi_rank = 0;
  int mpi_size = 0;
  check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &mpi_rank), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &mpi_size), "MPI_Comm_size");
  DTENSOR_CHECK(
      mpi_rank == rank && mpi_size == size,
      "[mpi] this process is rank {} of {}, but {} reports rank {} of {}. "
      "Start all ranks with the mpirun of this MPI, or use \"gloo\".",
      rank,
      size,
      library_version(),
      mpi_rank,
      mpi_size);
}

std::unique_lock<std::mutex> MpiRuntime::turn() {
  return std::unique_lock(turns_);
}

void MpiRuntime::fail() noexcept {
  const std::lock_guard lock(mutex_);
  failed_ = true;
}

bool MpiRuntime::is_intact() {
  int has_ended = 0;
  const std::lock_guard lock(mutex_);
  return MPI_Finalized(&has_ended) == MPI_SUCCESS && has_ended == 0 && !failed_;
}

void MpiRuntime::end(bool has_failed) {
  const std::lock_guard lock(mutex_);
  world_lives_ = false;
  if (has_failed) {
    failed_ = true;
    for (MpiChannel* const channel : channels_) {
      channel->report_failure();
    }
  }
}

void MpiRuntime::listen(MpiChannel* channel) {
  const std::lock_guard lock(mutex_);
  channels_.push_back(channel);
}

void MpiRuntime::forget(MpiChannel* channel) {
  const std::lock_guard lock(mutex_);
  std::erase(channels_, channel);
}

void MpiRuntime::watch(std::shared_ptr<MpiRequests> requests) {
  const std::lock_guard lock(mutex_);
  watched_.push_back(std::move(requests));
  changed_.notify_all();
}

void MpiRuntime::help() {
  constexpr std::chrono::microseconds kPause(200);
  std::unique_lock lock(mutex_);
  while (!stops_) {
    changed_.wait(lock, [&] { return stops_ || !watched_.empty(); });
    test_watched();
    changed_.wait_for(lock, kPause, [&] { return stops_; });
  }
}

// Requires mutex_.
void MpiRuntime::test_watched() {
  std::erase_if(
      watched_, [](const auto& requests) { return requests->test(); });
}

// Waits for outstanding work; returns true if all worlds ended without failure.
bool MpiRuntime::ends_well() {
  constexpr std::chrono::milliseconds kPause(1);
  constexpr std::chrono::seconds kPatience(10);
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  const std::lock_guard lock(mutex_);
  while (!failed_ && !watched_.empty() &&
         std::chrono::steady_clock::now() < deadline) {
    test_watched();
    std::this_thread::sleep_for(kPause);
  }
  return !failed_ && !world_lives_ && watched_.empty();
}

// Finalizes MPI if all worlds ended without failure, because all ranks then
// call this function. After a failure, MPI_Finalize could wait forever for a
// missing rank, so it is not called.
void MpiRuntime::end_at_exit() {
  MpiRuntime& mine = get();
  {
    const std::lock_guard lock(mine.mutex_);
    mine.stops_ = true;
    mine.changed_.notify_all();
  }
  if (mine.helper_.joinable()) {
    mine.helper_.join();
  }
  if (mine.is_ours_ && mine.ends_well()) {
    int has_ended = 0; // finalized by the program
    MPI_Finalized(&has_ended);
    if (has_ended == 0) {
      MPI_Finalize();
    }
  }
}

} // namespace dtensor::mpi
