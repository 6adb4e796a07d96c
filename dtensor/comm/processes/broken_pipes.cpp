// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/processes/broken_pipes_impl.h>

#include <csignal>
#include <cstdint>
#include <mutex>

namespace dtensor::detail {
namespace {

struct Users {
  std::mutex mutex;
  int64_t count = 0;
  bool is_ours = false; // that it is ignored
};

Users& users() {
  static auto* const all = new Users;
  return *all;
}

void begin() {
  Users& all = users();
  const std::lock_guard lock(all.mutex);
  if (all.count++ == 0) {
    struct sigaction now {};
    sigaction(SIGPIPE, nullptr, &now);
    all.is_ours = now.sa_handler == SIG_DFL;
    if (all.is_ours) {
      std::signal(SIGPIPE, SIG_IGN);
    }
  }
}

} // namespace

IgnoreBrokenPipes::IgnoreBrokenPipes() {
  begin();
}

IgnoreBrokenPipes::~IgnoreBrokenPipes() {
  Users& all = users();
  const std::lock_guard lock(all.mutex);
  if (--all.count == 0 && all.is_ours) {
    std::signal(SIGPIPE, SIG_DFL);
  }
}

void IgnoreBrokenPipes::for_good() {
  begin();
}

} // namespace dtensor::detail
