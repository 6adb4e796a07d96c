// SPDX-License-Identifier: BSD-3-Clause
#include "launched.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <sstream>
#include <thread>

namespace launcher {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kPatience = std::chrono::minutes(1);

void read_from(int& fd, std::string& text) {
  char chunk[65536];
  const ssize_t count = ::read(fd, chunk, sizeof(chunk));
  if (count > 0) {
    text.append(chunk, static_cast<size_t>(count));
  } else if (count == 0) {
    ::close(fd);
    fd = -1; // poll() ignores it
  }
}

// Returns true if the process has ended, reaped or not.
bool gone(const std::string& pid) {
  std::ifstream stat("/proc/" + pid + "/stat");
  std::string text;
  std::getline(stat, text);
  const auto name_end = text.rfind(')');
  return name_end == std::string::npos || text.substr(name_end, 3) == ") Z";
}

} // namespace

Launched::Launched(
    const std::vector<std::string>& arguments,
    const std::string& program) {
  std::vector<char*> argv = {const_cast<char*>(program.c_str())};
  for (const auto& argument : arguments) {
    argv.push_back(const_cast<char*>(argument.c_str()));
  }
  argv.push_back(nullptr);
  int out[2];
  int err[2];
  EXPECT_EQ(::pipe2(out, O_CLOEXEC), 0);
  EXPECT_EQ(::pipe2(err, O_CLOEXEC), 0);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, err[1], STDERR_FILENO);
  EXPECT_EQ(
      ::posix_spawnp(
          &pid_, program.c_str(), &actions, nullptr, argv.data(), environ),
      0);
  posix_spawn_file_actions_destroy(&actions);
  ::close(out[1]);
  ::close(err[1]);
  out_fd_ = out[0];
  err_fd_ = err[0];
}

Launched::~Launched() {
  if (pid_ > 0) {
    signal(SIGKILL);
    finish();
  }
}

void Launched::signal(int signal) const {
  ::kill(pid_, signal);
}

void Launched::read_output(bool enabled) {
  reads_output_ = enabled;
}

bool Launched::read_some() {
  const int out = reads_output_ ? out_fd_ : -1;
  pollfd polled[] = {{out, POLLIN, 0}, {err_fd_, POLLIN, 0}};
  ::poll(polled, 2, 100);
  if (polled[0].revents != 0) {
    read_from(out_fd_, out_);
  }
  if (polled[1].revents != 0) {
    read_from(err_fd_, err_);
  }
  return (reads_output_ && out_fd_ >= 0) || err_fd_ >= 0;
}

void Launched::wait_for(const std::string& text) {
  wait_for(text, out_);
}

void Launched::wait_for_error(const std::string& text) {
  wait_for(text, err_);
}

void Launched::wait_for(const std::string& text, const std::string& stream) {
  const auto deadline = Clock::now() + kPatience;
  bool open = true;
  while (stream.find(text) == std::string::npos) {
    ASSERT_TRUE(open && Clock::now() < deadline)
        << "no \"" << text << "\" in \"" << out_ << "\", errors: " << err_;
    open = read_some();
  }
}

int Launched::finish() {
  const auto deadline = Clock::now() + kPatience;
  while (read_some()) {
    if (Clock::now() > deadline) {
      ADD_FAILURE() << "it does not end: " << out_ << err_;
      signal(SIGKILL);
      break;
    }
  }
  int status = 0;
  ::waitpid(std::exchange(pid_, -1), &status, 0);
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

std::vector<std::string> Launched::lines() const {
  std::vector<std::string> lines;
  std::istringstream in(out_);
  for (std::string line; std::getline(in, line);) {
    lines.push_back(line);
  }
  return lines;
}

std::vector<std::string> Launched::values(const std::string& label) const {
  std::vector<std::string> values;
  for (const auto& line : lines()) {
    if (const auto at = line.find(label); at != std::string::npos) {
      values.push_back(line.substr(at + label.size()));
    }
  }
  return values;
}

std::vector<std::string> on_ranks(
    int ranks,
    const std::string& script,
    std::vector<std::string> options) {
  options.insert(options.begin(), {"-n", std::to_string(ranks)});
  options.insert(options.end(), {"sh", "-c", script});
  return options;
}

bool all_gone(const std::vector<std::string>& pids) {
  const auto deadline = Clock::now() + kPatience;
  for (const auto& pid : pids) {
    while (!gone(pid)) {
      if (Clock::now() > deadline) {
        return false;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  return true;
}

std::string host_name() {
  char name[256] = {};
  ::gethostname(name, sizeof(name) - 1);
  return name;
}

} // namespace launcher
