// SPDX-License-Identifier: BSD-3-Clause
#include "processes.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <cstring>

namespace launcher {
namespace {

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (const auto& text : texts) {
    // execve() takes non-const pointers.
    result.push_back(const_cast<char*>(text.c_str()));
  }
  result.push_back(nullptr);
  return result;
}

// Data for a child, prepared before the fork. Between fork and execve the child
// must not allocate, because another thread may have held malloc's lock.
struct Prepared {
  explicit Prepared(const RankStart& given)
      : start(given),
        arguments(pointers(start.arguments)),
        environment(pointers(start.environment)),
        refused("[dtensor-run] cannot execute " + start.program + ": ") {
    CPU_ZERO(&cpus);
    for (const int cpu : start.cpus) {
      CPU_SET(cpu, &cpus);
    }
  }

  const RankStart& start;
  std::vector<char*> arguments;
  std::vector<char*> environment;
  std::string refused;
  cpu_set_t cpus;
};

void print(const char* text) {
  static_cast<void>(!::write(STDERR_FILENO, text, std::strlen(text)));
}

void redirect(int fd, int target) {
  if (fd >= 0) {
    ::dup2(fd, target);
  }
}

[[noreturn]] void become_rank(const Prepared& prepared, pid_t launcher) {
  ::setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != launcher) {
    ::_exit(1); // the launcher died before prctl()
  }
  if (!prepared.start.cpus.empty()) {
    sched_setaffinity(0, sizeof(prepared.cpus), &prepared.cpus);
  }
  redirect(::open("/dev/null", O_RDONLY | O_CLOEXEC), STDIN_FILENO);
  redirect(prepared.start.out.get(), STDOUT_FILENO);
  redirect(prepared.start.err.get(), STDERR_FILENO);
  std::signal(SIGPIPE, prepared.start.on_broken_pipe);
  sigprocmask(SIG_SETMASK, &prepared.start.signal_mask, nullptr);
  ::execve(
      prepared.start.program.c_str(),
      prepared.arguments.data(),
      prepared.environment.data());
  const int error = errno;
  print(prepared.refused.c_str());
  print(strerrordesc_np(error));
  print(".\n");
  ::_exit(error == ENOENT ? 127 : 126);
}

Exit exit_of(int rank, int status) {
  if (WIFSIGNALED(status)) {
    return {rank, 0, WTERMSIG(status)};
  }
  return {rank, WEXITSTATUS(status), 0};
}

} // namespace

std::string Exit::text() const {
  if (signal == 0) {
    return fmt::format("exited with code {}", code);
  }
  return fmt::format(
      "was killed by signal {} ({})", signal, ::strsignal(signal));
}

Processes::~Processes() {
  signal(SIGKILL);
  for (const auto& [pid, rank] : ranks_) {
    ::waitpid(pid, nullptr, 0);
  }
}

void Processes::start(int rank, const RankStart& start) {
  const Prepared prepared(start);
  const pid_t launcher = ::getpid();
  const pid_t pid = checked(::fork(), "cannot start a process");
  if (pid == 0) {
    become_rank(prepared, launcher);
  }
  ::setpgid(pid, pid); // in both processes, to avoid a race
  guard_.watch(pid);
  ranks_[pid] = rank;
}

void Processes::signal(int signal) const {
  for (const auto& [pid, rank] : ranks_) {
    ::kill(-pid, signal);
  }
}

std::vector<Exit> Processes::reap() {
  std::vector<Exit> ended;
  for (auto it = ranks_.begin(); it != ranks_.end();) {
    const auto [pid, rank] = *it;
    siginfo_t info = {};
    ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT);
    if (info.si_pid == 0) {
      ++it;
      continue;
    }
    // The number belongs to this group until the leader is reaped.
    ::kill(-pid, SIGKILL);
    guard_.forget(pid);
    int status = 0;
    ::waitpid(pid, &status, 0);
    ended.push_back(exit_of(rank, status));
    it = ranks_.erase(it);
  }
  return ended;
}

} // namespace launcher
