// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/processes/write_signals_impl.h>

#include <array>
#include <csignal>
#include <cstdint>
#include <mutex>

namespace dtensor::detail {
namespace {

struct Ignored {
  int signal;
  bool is_ours = false; // ignored by this library
};

struct SignalUsers {
  std::mutex mutex;
  int64_t count = 0;
  std::array<Ignored, 2> signals = {Ignored{SIGPIPE}, Ignored{SIGXFSZ}};
};

SignalUsers& signal_users() {
  static auto* const all = new SignalUsers;
  return *all;
}

using Handler = void (*)(int);

Handler handler_of(int signal) {
  struct sigaction now {};
  sigaction(signal, nullptr, &now);
  return now.sa_handler;
}

} // namespace

IgnoreWriteSignals::IgnoreWriteSignals() {
  SignalUsers& all = signal_users();
  const std::lock_guard lock(all.mutex);
  if (all.count++ > 0) {
    return;
  }
  for (Ignored& one : all.signals) {
    one.is_ours = handler_of(one.signal) == SIG_DFL;
    if (one.is_ours) {
      std::signal(one.signal, SIG_IGN);
    }
  }
}

IgnoreWriteSignals::~IgnoreWriteSignals() {
  SignalUsers& all = signal_users();
  const std::lock_guard lock(all.mutex);
  if (--all.count > 0) {
    return;
  }
  for (const Ignored& one : all.signals) {
    // The program may have installed its own handler meanwhile.
    if (one.is_ours && handler_of(one.signal) == SIG_IGN) {
      std::signal(one.signal, SIG_DFL);
    }
  }
}

void IgnoreWriteSignals::for_good() {
  [[maybe_unused]] static const auto* const permanent = new IgnoreWriteSignals;
}

} // namespace dtensor::detail
