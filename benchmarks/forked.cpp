// SPDX-License-Identifier: BSD-3-Clause
#include "forked.h"

#include <ATen/Parallel.h>
#include <dtensor/comm/init_process_group.h>

#include <sys/wait.h>
#include <unistd.h>
#include <cstdlib>
#include <filesystem>
#include <vector>

namespace bench {
namespace {

std::filesystem::path meeting_file() {
  static int number = 0;
  return std::filesystem::temp_directory_path() /
      ("dtensor_bench_" + std::to_string(getpid()) + "_" +
       std::to_string(number++));
}

} // namespace

void run_forked(
    int64_t ranks,
    const std::string& backend,
    const std::function<void(int64_t rank)>& fn) {
  const auto meeting = meeting_file();
  std::vector<pid_t> children;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    children.push_back(fork());
    if (children.back() == 0) {
      at::set_num_threads(1);
      dtensor::init_process_group(
          {.backend = backend,
           .init_method = "file://" + meeting.string(),
           .rank = rank,
           .world_size = ranks});
      fn(rank);
      dtensor::destroy_process_group();
      std::_Exit(0);
    }
  }
  bool failed = false;
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    failed = failed || status != 0; // also if killed by a signal
  }
  std::filesystem::remove(meeting);
  if (failed) {
    std::exit(1);
  }
}

} // namespace bench
