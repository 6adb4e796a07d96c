// SPDX-License-Identifier: BSD-3-Clause
#include "job.h"

#include "rank.h"
#include "tests/free_port.h"

#include <c10/util/StringUtil.h>

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <sstream>
#include <thread>

namespace dtensor::process_faults {
namespace {

using namespace std::chrono_literals;

// Limit for the start and everything before a fault.
constexpr auto kMostOfAll = std::chrono::seconds(100);

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::filesystem::path output_of(
    const std::filesystem::path& folder,
    size_t process) {
  return folder / ("out" + std::to_string(process));
}

// Starts a child process with its output in a file.
template <typename Body>
pid_t start(const std::filesystem::path& output, const Body& body) {
  std::cout << std::flush;
  const pid_t pid = fork();
  if (pid == 0) {
    if (std::freopen(output.c_str(), "w", stdout) == nullptr) {
      _exit(100);
    }
    dup2(STDOUT_FILENO, STDERR_FILENO);
    std::exit(body());
  }
  return pid;
}

void set_variable(const char* name, const std::string& value) {
  setenv(name, value.c_str(), /*overwrite=*/1);
}

std::vector<pid_t> start_processes(
    const World& world,
    const Case& fault,
    const std::filesystem::path& folder) {
  const int port = free_port();
  std::vector<pid_t> pids;
  for (int64_t process = 0; process < world.processes; ++process) {
    pids.push_back(start(output_of(folder, static_cast<size_t>(process)), [&] {
      set_variable("RANK", std::to_string(process));
      set_variable("WORLD_SIZE", std::to_string(world.processes));
      set_variable("MASTER_ADDR", "127.0.0.1");
      set_variable("MASTER_PORT", std::to_string(port));
      return run_rank(world, fault);
    }));
  }
  return pids;
}

std::vector<pid_t> start_launcher(
    const World& world,
    const Case& fault,
    const std::filesystem::path& folder,
    const std::string& program) {
  const std::string command = c10::str(
      "exec ",
      world.launcher,
      " -n ",
      world.processes,
      " ",
      program,
      " --as-rank --backend ",
      world.backend,
      " --kind ",
      static_cast<int>(fault.kind),
      " --culprit ",
      fault.culprit,
      " --place ",
      fault.place,
      " --point ",
      fault.point,
      fault.compares ? " --compares" : "");
  return {start(output_of(folder, 0), [&] {
    return execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
  })};
}

class Waiting {
 public:
  Waiting(std::vector<pid_t> pids, JobResult& result)
      : pids_(std::move(pids)),
        result_(result) {
    result_.processes.resize(pids_.size());
  }

  // Waits until all but `apart` processes have ended, or until the deadline.
  void until_ended(size_t apart, Clock::time_point deadline) {
    while (!have_ended(apart) && Clock::now() < deadline) {
      look();
      std::this_thread::sleep_for(5ms);
    }
    result_.hung = result_.hung || !have_ended(apart);
  }

  void kill_all() {
    for (const pid_t pid : pids_) {
      if (pid > 0) {
        kill(pid, SIGKILL);
      }
    }
    while (!have_ended(pids_.size())) {
      look();
      std::this_thread::sleep_for(5ms);
    }
  }

 private:
  bool have_ended(size_t apart) const {
    for (size_t i = 0; i < pids_.size(); ++i) {
      if (i != apart && pids_[i] > 0) {
        return false;
      }
    }
    return true;
  }

  void look() {
    for (size_t i = 0; i < pids_.size(); ++i) {
      int status = 0;
      if (pids_[i] > 0 && waitpid(pids_[i], &status, WNOHANG) == pids_[i]) {
        pids_[i] = 0;
        auto& ended = result_.processes[i];
        ended.code =
            WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        ended.when = Clock::now();
      }
    }
  }

  std::vector<pid_t> pids_; // 0: ended
  JobResult& result_;
};

Clock::time_point time_of_fault(const std::string& output) {
  const auto begin = output.find(kFaultAt);
  const int64_t ms = begin == std::string::npos
      ? 0
      : std::atoll(output.c_str() + begin + std::string(kFaultAt).size());
  return Clock::time_point(std::chrono::milliseconds(ms));
}

} // namespace

JobResult run_job(
    const World& world,
    const Case& fault,
    const std::filesystem::path& folder,
    const std::string& program) {
  set_variable("DTENSOR_FLIGHT_RECORD", folder.string());
  set_variable("GLOO_SOCKET_IFNAME", "lo");
  JobResult result;
  const bool is_alone = world.launcher.empty();
  Waiting waiting(
      is_alone ? start_processes(world, fault, folder)
               : start_launcher(world, fault, folder, program),
      result);
  const auto count = result.processes.size();
  const auto culprit =
      static_cast<size_t>(std::max<int64_t>(fault.culprit, 0) / world.threads);
  const auto deadline = Clock::now() + kMostOfAll;
  if (is_alone && fault.culprit >= 0 && fault.kind == Kind::kHangs) {
    waiting.until_ended(culprit, deadline);
  } else {
    waiting.until_ended(count, deadline);
  }
  waiting.kill_all();
  for (size_t i = 0; i < count; ++i) {
    result.processes[i].output = read_file(output_of(folder, i));
  }
  result.fault_at =
      time_of_fault(result.processes[is_alone ? culprit : 0].output);
  return result;
}

} // namespace dtensor::process_faults
