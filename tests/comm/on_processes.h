// SPDX-License-Identifier: BSD-3-Clause
// Ranks that are processes sharing memory. The processes are children of the
// test. The test itself computes nothing, so that no thread is lost in the
// fork.
#pragma once

#include <c10/util/StringUtil.h>
#include <dtensor/comm/shared_memory/shared_memory_backend_impl.h>
#include <gtest/gtest.h>
#include <tests/comm/backend_world.h>
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <thread>

namespace dtensor::test {

using StorePtr = c10::intrusive_ptr<c10d::Store>;
using detail::SharedMemoryOptions;

/// Returns options with small blocks, so that small tensors take several, and a
/// timeout that suits a busy machine.
inline SharedMemoryOptions usual_options() {
  return {.timeout = std::chrono::seconds(60), .block_bytes = 8192};
}

inline MakeBackend shared_memory(const SharedMemoryOptions& options) {
  return [=](GroupMembers members, const RendezvousInfo& place) {
    return detail::shared_memory_backend(
        std::move(members), place.store, options);
  };
}

/// Path for a file store; the file is removed with the object.
class StoreFile {
 public:
  StoreFile() {
    static int count = 0;
    path_ = c10::str(
        ::testing::TempDir(), "dtensor_processes_", getpid(), "_", count++);
  }
  ~StoreFile() {
    std::remove(path_.c_str());
  }
  StoreFile(const StoreFile&) = delete;
  StoreFile& operator=(const StoreFile&) = delete;
  const std::string& path() const {
    return path_;
  }

 private:
  std::string path_;
};

/// Runs `body` in a child process. The child exits with 0 unless an expectation
/// failed.
inline pid_t in_child(const std::function<void()>& body) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child != 0) {
    return child;
  }
  at::set_num_threads(1);
  try {
    body();
  } catch (const std::exception& error) {
    ADD_FAILURE() << error.what();
  }
  std::fflush(nullptr);
  _exit(::testing::Test::HasFailure() ? 1 : 0);
}

/// Waits for the child and returns its exit code, or minus the signal that
/// killed it.
inline int end_of(pid_t child) {
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::seconds(100);
  int status = 0;
  while (waitpid(child, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > deadline) {
      ADD_FAILURE() << "process " << child << " hangs";
      kill(child, SIGKILL);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

/// Runs fn(rank, store) in `n` processes. Returns end_of() of each process.
inline std::vector<int> run_processes(
    int64_t n,
    const std::function<void(int64_t, const StorePtr&)>& fn) {
  const StoreFile file;
  std::vector<pid_t> children;
  for (int64_t rank = 0; rank < n; ++rank) {
    children.push_back(in_child([&] {
      // Only the test removes the file.
      fn(rank, c10::make_intrusive<c10d::FileStore>(file.path(), -1));
    }));
  }
  std::vector<int> ends;
  for (const pid_t child : children) {
    ends.push_back(end_of(child));
  }
  return ends;
}

/// Runs fn(rank) as the ranks of a world with this backend. Returns end_of() of
/// each process.
inline std::vector<int> run_world(
    int64_t n,
    const MakeBackend& make,
    const std::function<void(int64_t)>& fn) {
  return run_processes(n, [&](int64_t rank, const StorePtr& store) {
    const auto world = std::make_shared<BackendWorld>(rank, n, store, make);
    const WorldScope scope(world);
    fn(rank);
    world->end();
  });
}

inline std::vector<int> run_world(
    int64_t n,
    const std::function<void(int64_t)>& fn,
    const SharedMemoryOptions& options = usual_options()) {
  return run_world(n, shared_memory(options), fn);
}

/// Expects that every rank exits with 0.
inline void on_processes(
    int64_t n,
    const MakeBackend& make,
    const std::function<void(int64_t)>& fn) {
  EXPECT_EQ(
      run_world(n, make, fn), std::vector<int>(static_cast<size_t>(n), 0));
}

inline void on_processes(
    int64_t n,
    const std::function<void(int64_t)>& fn,
    const SharedMemoryOptions& options = usual_options()) {
  on_processes(n, shared_memory(options), fn);
}

} // namespace dtensor::test
