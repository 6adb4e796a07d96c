// SPDX-License-Identifier: BSD-3-Clause
// MPI in this process: when it begins and ends, who may call it, and what keeps
// it going while nobody waits.
#pragma once

#include <mpi.h>

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace dtensor::detail {

/// Throws RuntimeError, "[call] what MPI says of it", if `code` is an error.
void check_mpi(int code, const char* call);

/// What MPI is to go on with though nobody waits for it.
class MpiWork {
 public:
  virtual ~MpiWork() = default;
  /// Lets MPI go on; returns whether it is over. Any thread may call it.
  virtual bool test() noexcept = 0;
};

/// A group that hears of a failure elsewhere in its process.
class MpiFailureListener {
 public:
  virtual ~MpiFailureListener() = default;
  virtual void world_failed() noexcept = 0;
};

class MpiRuntime {
 public:
  /// The one of this process. Not destroyed: see end_at_exit().
  static MpiRuntime& get();

  void begin(int64_t rank, int64_t size);
  void end(bool has_failed);

  /// Held during each call of MPI. Does nothing where MPI serves several
  /// threads at once; ranks' backward passes and the helper below have their
  /// own.
  std::unique_lock<std::mutex> turn();

  /// From now on MPI is not ended, since the others may never come.
  void fail() noexcept;
  bool has_failed();

  /// Whether communicators may still be freed.
  bool is_intact();

  /// Tags of messages go up to this one, which belongs to the library.
  int last_tag() const {
    return last_tag_;
  }
  /// Bytes of one call: MPI counts with int. The environment's
  /// DTENSOR_MPI_MOST_BYTES makes it less, for tests.
  int64_t most_bytes() const {
    return most_bytes_;
  }

  /// A helper thread tests it until it is over: implementations go on within
  /// calls alone, and this rank may be busy elsewhere while others wait for its
  /// part.
  void watch(std::shared_ptr<MpiWork> work);

  void listen(MpiFailureListener* listener);
  void forget(MpiFailureListener* listener);

 private:
  void start_mpi();
  void read_limits();
  void check_place(int64_t rank, int64_t size) const;
  void help();
  void test_watched();
  bool ends_well();
  static void end_at_exit();

  std::mutex turns_;
  bool takes_turns_ = false; // MPI serves one thread at a time
  bool begun_ = false;
  bool is_ours_ = false; // and not the program's
  int last_tag_ = 0;
  int64_t most_bytes_ = 0;

  std::mutex mutex_; // of what follows
  std::condition_variable changed_;
  bool failed_ = false;
  bool world_lives_ = false;
  bool stops_ = false;
  std::vector<std::shared_ptr<MpiWork>> watched_;
  std::vector<MpiFailureListener*> listeners_;
  std::thread helper_;
};

} // namespace dtensor::detail
