// SPDX-License-Identifier: BSD-3-Clause
// MPI in this process: initialization and finalization, thread safety, and
// progress while no rank waits.
#pragma once

#include <mpi.h>

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace dtensor::mpi {

/// Throws RuntimeError, "[call] MPI's error text", if `code` is an error.
void check_mpi(int code, const char* call);

class MpiChannel;
class MpiRequests;

class MpiRuntime {
 public:
  /// Returns the instance of this process. Never destroyed: see end_at_exit().
  static MpiRuntime& get();

  void begin(int64_t rank, int64_t size);
  void end(bool has_failed);

  /// Lock to hold during each MPI call: one thread calls at a time, also under
  /// MPI_THREAD_MULTIPLE. Open MPI 4.1 sometimes never ends a non-blocking
  /// collective if two threads progress thousands of them at once. Ranks'
  /// backward passes and the helper thread call MPI from threads of their own.
  /// The helper thread takes turns while it holds mutex_, so code that holds a
  /// turn must not call functions that lock mutex_.
  std::unique_lock<std::mutex> turn();

  /// Records a failure. MPI is then not finalized, because other ranks may
  /// never join.
  void fail() noexcept;

  /// Returns true if communicators may still be freed: nothing has failed.
  bool is_intact();

  /// Largest tag of messages, reserved for the library.
  int last_tag() const {
    return last_tag_;
  }
  /// Maximum number of bytes of one call, because MPI counts with int. The
  /// environment variable DTENSOR_MPI_MOST_BYTES lowers it, for tests.
  int64_t most_bytes() const {
    return most_bytes_;
  }

  /// Hands `requests` to a helper thread, which tests them until they have
  /// ended. MPI implementations make progress only inside calls, and this rank
  /// may be busy elsewhere while others wait for its data.
  void watch(std::shared_ptr<MpiRequests> requests);

  /// Reports a failure elsewhere in this process to the channel's other
  /// members, until forget().
  void listen(MpiChannel* channel);
  void forget(MpiChannel* channel);

 private:
  void start_mpi();
  void read_limits();
  void check_place(int64_t rank, int64_t size) const;
  void help();
  void test_watched();
  bool ends_well();
  static void end_at_exit();

  std::mutex turns_;
  bool begun_ = false;
  bool is_ours_ = false; // MPI was initialized here, not by the program
  int last_tag_ = 0;
  int64_t most_bytes_ = 0;

  std::mutex mutex_; // guards the members below
  std::condition_variable changed_;
  bool failed_ = false;
  bool world_lives_ = false;
  bool stops_ = false;
  std::vector<std::shared_ptr<MpiRequests>> watched_;
  std::vector<MpiChannel*> channels_;
  std::thread helper_;
};

} // namespace dtensor::mpi
