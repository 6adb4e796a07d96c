// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/processes/process_id_impl.h>

#include <pthread.h>
#include <unistd.h>
#include <atomic>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>

namespace dtensor::detail {
namespace {

struct Stat {
  char state = 'X'; // dead
  int64_t started = 0;
};

// Parses /proc/PID/stat after the program's name, which is in parentheses and
// may contain any characters.
Stat stat_of(int64_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  file.ignore(std::numeric_limits<std::streamsize>::max(), '(');
  std::string rest;
  std::getline(file, rest, '\0');
  const size_t name_end = rest.rfind(')');
  if (name_end == std::string::npos) {
    return {};
  }
  // In proc(5), the state is field 3 and the start time is field 22.
  constexpr int kBetween = 22 - 3 - 1;
  std::istringstream fields(rest.substr(name_end + 1));
  Stat stat;
  fields >> stat.state;
  std::string skipped;
  for (int i = 0; i < kBetween; ++i) {
    fields >> skipped;
  }
  fields >> stat.started;
  return stat;
}

std::atomic<int64_t> forks{0};

void count_fork() {
  forks.fetch_add(1, std::memory_order_relaxed);
}

} // namespace

ProcessId this_process() {
  const int64_t pid = getpid();
  return {pid, stat_of(pid).started};
}

bool has_ended(const ProcessId& process) {
  const Stat stat = stat_of(process.pid);
  return stat.state == 'X' || stat.state == 'Z' ||
      stat.started != process.started;
}

int64_t fork_count() {
  static const int counting = pthread_atfork(nullptr, nullptr, count_fork);
  static_cast<void>(counting);
  return forks.load(std::memory_order_relaxed);
}

} // namespace dtensor::detail
