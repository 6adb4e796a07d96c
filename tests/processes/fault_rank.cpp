// SPDX-License-Identifier: BSD-3-Clause
// A rank that behaves incorrectly on purpose, for faults_test.cpp:
//
//   dtensor_fault_rank --fault kill --culprit 1 --backend gloo
//
// Prints the error that it gets and exits with 7.
#include <ATen/Parallel.h>
#include <ATen/ops/ones.h>
#include <c10/util/Exception.h>
#include <dtensor/comm/collective_timeout.h>
#include <dtensor/comm/run_world.h>
#include <tests/command_line.h>
#include <tests/exit_thread.h>
#include <tests/listening.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

namespace gloo {

// Has the name of Gloo's exception, which LibTorch does not declare.
struct IoException : std::runtime_error {
  using std::runtime_error::runtime_error;
};

} // namespace gloo

namespace {

constexpr int kRounds = 20;

struct Options {
  std::string fault;
  int64_t culprit = 1;
  int round = 5;
  bool keeps = false;
  bool shows_listeners = false;
  // Timeouts that replace the world's.
  std::optional<std::chrono::milliseconds> of_group;
  std::optional<std::chrono::milliseconds> of_call;
  int times = 1;
  dtensor::RunWorldOptions world;
};

// Group that outlives the rank's function, as the group of a model does.
dtensor::GroupPtr kept;

// Addresses of the launcher's sockets, which MPICH's ranks inherit.
std::vector<std::string> inherited;

// Makes a forked child use the group, which only its parent may do; the child
// then exits.
void use_in_child(dtensor::Group& group) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(30);
    try {
      group.barrier();
    } catch (const c10::Error& error) {
      std::cout << error.what_without_backtrace() << std::endl;
    }
    dtensor::destroy_process_group();
    std::exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  std::cout << "the child ended with " << status << std::endl;
}

void do_wrong(const Options& options, const dtensor::GroupPtr& group) {
  kept = options.keeps ? group : nullptr;
  if (options.fault == "throw") {
    TORCH_CHECK(false, "no such row");
  } else if (options.fault == "kill") {
    std::raise(SIGKILL);
  } else if (options.fault == "segv") {
    std::signal(SIGSEGV, SIG_DFL);
    std::raise(SIGSEGV);
  } else if (options.fault == "exit") {
    _exit(3);
  } else if (options.fault == "long") {
    group->all_reduce(at::ones({700'000}), dtensor::ReduceOp::kSum);
  } else if (options.fault == "short") {
    group->all_reduce(at::ones({1}), dtensor::ReduceOp::kSum);
  } else if (options.fault == "int") {
    throw 7;
  } else if (options.fault == "pthread_exit") {
    dtensor::test::exit_thread();
  } else if (options.fault == "stop") {
    std::raise(SIGSTOP);
  } else if (options.fault == "fork") {
    use_in_child(*group);
  } else if (options.fault == "hang") {
    std::this_thread::sleep_for(std::chrono::hours(1));
  } else if (options.fault == "gloo_thread") {
    std::thread([] { throw gloo::IoException("writev: no route"); }).detach();
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  } else if (options.fault == "other") {
    group->broadcast(at::ones({7}), 0);
  }
}

void steps(const Options& options) {
  std::vector<int64_t> ranks;
  for (int64_t rank = 0; rank < dtensor::get_world_size(); ++rank) {
    ranks.push_back(rank);
  }
  const bool is_culprit = dtensor::get_rank() == options.culprit;
  if (options.round < 0 && is_culprit) {
    do_wrong(options, nullptr);
  }
  const auto group =
      dtensor::new_group(ranks, "tp", {.timeout = options.of_group});
  if (options.shows_listeners) {
    for (const auto& address : dtensor::test::listening_addresses()) {
      // One write, because mpirun's ranks share their output.
      if (std::count(inherited.begin(), inherited.end(), address) == 0) {
        std::cout << "listens at " + address + "\n" << std::flush;
      }
    }
  }
  std::optional<dtensor::CollectiveTimeout> limit;
  if (options.of_call) {
    limit.emplace(*options.of_call);
  }
  const auto large = at::ones({300'000});
  for (int round = 0; round < kRounds; ++round) {
    if (round == options.round && is_culprit) {
      do_wrong(options, group);
    }
    group->all_reduce(at::ones({3}), dtensor::ReduceOp::kSum);
    group->all_gather(large, 0);
  }
  if (options.round >= kRounds && is_culprit) {
    do_wrong(options, group); // before destroy_process_group()
  }
}

} // namespace

int main(int argc, char** argv) {
  Options options;
  int64_t timeout_ms = 4000;
  CLI::App app("A rank that does wrong");
  app.add_option("--fault", options.fault, "What it does")->required();
  app.add_option("--culprit", options.culprit, "The rank that does it");
  app.add_option("--round", options.round, "When; -1: before the group");
  app.add_flag(
      "--keep", options.keeps, "It keeps the group, and goes on a while");
  app.add_flag(
      "--show-listeners",
      options.shows_listeners,
      "It prints the addresses at which it listens");
  int64_t file_bytes = -1;
  app.add_option("--file-bytes", file_bytes, "As ulimit -f, in bytes");
  app.add_option("--times", options.times, "Worlds, one after the other");
  app.add_option("--timeout-ms", timeout_ms, "Of a collective");
  int64_t of_group = 0;
  int64_t of_call = 0;
  app.add_option("--group-timeout-ms", of_group, "Of those of the group");
  app.add_option("--call-timeout-ms", of_call, "Of the calls");
  app.add_option("--backend", options.world.processes.backend, "By name");
  app.add_option(
      "--init-method", options.world.processes.init_method, "Where to meet");
  app.add_option(
      "--ranks-per-process",
      options.world.ranks_per_process,
      "Threads that are ranks");
  dtensor::test::parse_or_exit(app, argc, argv);
  options.world.processes.timeout = std::chrono::milliseconds(timeout_ms);
  const auto given = [](int64_t ms) {
    return ms > 0 ? std::optional(std::chrono::milliseconds(ms)) : std::nullopt;
  };
  options.of_group = given(of_group);
  options.of_call = given(of_call);
  at::set_num_threads(1);
  inherited = dtensor::test::listening_addresses();
  if (file_bytes >= 0) {
    rlimit limit{};
    limit.rlim_cur = static_cast<rlim_t>(file_bytes);
    limit.rlim_max = limit.rlim_cur;
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  if (options.fault == "absent" &&
      dtensor::launched()->rank == options.culprit) {
    return 3;
  }
  if (options.fault == "late" && dtensor::launched()->rank == options.culprit) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2 * timeout_ms));
  }
  try {
    for (int i = 0; i < options.times; ++i) {
      dtensor::run_world(
          1, [&] { steps(options); }, options.world);
    }
  } catch (const c10::Error& error) {
    std::cout << error.what_without_backtrace() << std::endl;
    if (kept != nullptr) {
      std::this_thread::sleep_for(std::chrono::milliseconds(3 * timeout_ms));
    }
    return 7;
  } catch (int) {
    return 8;
  }
  return 0;
}
