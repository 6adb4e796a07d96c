// SPDX-License-Identifier: BSD-3-Clause
#include "supervisor.h"

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <thread>

namespace dtensor::randomized {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kHangs = std::chrono::seconds(60);

// A worker process and its current place.
struct Running {
  Job job;
  pid_t pid = 0;
  uint64_t beats = 0;
  Clock::time_point since;
};

pid_t start(
    const Running& running,
    const Settings& settings,
    SharedTally& tally,
    size_t slot) {
  const auto pid = ::fork();
  TORCH_CHECK(pid >= 0, "cannot fork");
  if (pid > 0) {
    return pid;
  }
  if (!settings.verbose) { // samples cause LibTorch warnings
    TORCH_CHECK(std::freopen("/dev/null", "w", stderr) != nullptr);
  }
  try {
    work(
        running.job.calls,
        running.job.begin,
        settings,
        tally,
        tally.workers[slot]);
  } catch (const std::exception& e) {
    print_line(std::string("worker failed: ") + e.what());
    ::_exit(1);
  }
  ::_exit(0);
}

// Returns the remaining job after a worker ended at `place`.
Job after(Job job, const Place& place) {
  if (place.mesh < 0) {
    job.calls.erase(job.calls.begin() + place.call);
    job.begin.call -= place.call < job.begin.call;
    return job;
  }
  job.begin = place;
  ++job.begin.combination;
  return job;
}

class Supervisor {
 public:
  Supervisor(
      std::vector<Job> jobs,
      size_t processes,
      const Settings& settings,
      SharedTally& tally)
      : jobs_(std::move(jobs)),
        settings_(settings),
        tally_(tally),
        running_(std::min(processes, tally.workers.size())) {
    std::reverse(jobs_.begin(), jobs_.end());
  }

  void run() {
    while (any_left()) {
      for (size_t slot = 0; slot < running_.size(); ++slot) {
        look_after(slot);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }

 private:
  bool any_left() const {
    bool any = !jobs_.empty();
    for (const auto& running : running_) {
      any |= running.pid != 0;
    }
    return any;
  }

  void look_after(size_t slot) {
    auto& running = running_[slot];
    if (running.pid == 0) {
      if (!jobs_.empty()) {
        running.job = std::move(jobs_.back());
        jobs_.pop_back();
        begin(slot);
      }
      return;
    }
    int status = 0;
    if (::waitpid(running.pid, &status, WNOHANG) == running.pid) {
      running.pid = 0;
      if (!(WIFEXITED(status) && WEXITSTATUS(status) == 0)) {
        ended_badly(slot, status);
      }
      return;
    }
    const uint64_t beats = tally_.workers[slot].beats;
    if (beats != running.beats) {
      running.beats = beats;
      running.since = Clock::now();
    } else if (Clock::now() - running.since > kHangs) {
      ::kill(running.pid, SIGKILL);
      running.since = Clock::now();
    }
  }

  void begin(size_t slot) {
    auto& running = running_[slot];
    running.since = Clock::now();
    running.pid = start(running, settings_, tally_, slot);
  }

  void ended_badly(size_t slot, int status) {
    auto& job = running_[slot].job;
    const auto place = tally_.workers[slot].place();
    const auto& call = job.calls.at(static_cast<size_t>(place.call));
    const auto how = WIFSIGNALED(status)
        ? c10::str("ended by signal ", ::strsignal(WTERMSIG(status)))
        : c10::str("ended with status ", WEXITSTATUS(status));
    if (place.mesh < 0) {
      print_line(c10::str("plain ", call.name(), " #", call.number, " ", how));
      ++tally_.skipped;
    } else {
      report_different(
          call,
          c10::str(
              "mesh (",
              c10::Join(", ", meshes()[static_cast<size_t>(place.mesh)]),
              ") | combination ",
              place.combination),
          how,
          settings_,
          tally_);
    }
    job = after(std::move(job), place);
    begin(slot);
  }

  std::vector<Job> jobs_; // the last is the next one
  const Settings& settings_;
  SharedTally& tally_;
  std::vector<Running> running_;
};

} // namespace

void run_jobs(
    std::vector<Job> jobs,
    size_t processes,
    const Settings& settings,
    SharedTally& tally) {
  Supervisor(std::move(jobs), processes, settings, tally).run();
}

} // namespace dtensor::randomized
