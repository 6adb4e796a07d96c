// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/processes/launch_env_impl.h>

#include <dtensor/error.h>
#include <dtensor/shortened_impl.h>

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <utility>

namespace dtensor::detail {
namespace {

// Environment variables in which a launcher describes a process.
struct Launcher {
  const char* name;
  const char* rank;
  const char* size;
  /// Variable with the number of ranks on this host, or with the number of
  /// hosts.
  const char* local_size;
  /// Variable that is set in each process started by this launcher, but not in
  /// the shell that calls the launcher.
  const char* mark;
  const char* job;
};

constexpr Launcher kLaunchers[] = {
    {"torchrun",
     "RANK",
     "WORLD_SIZE",
     "LOCAL_WORLD_SIZE",
     "RANK",
     "TORCHELASTIC_RUN_ID"},
    {"OpenMPI",
     "OMPI_COMM_WORLD_RANK",
     "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_SIZE",
     "OMPI_COMM_WORLD_RANK",
     "PMIX_NAMESPACE"},
    {"PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", "PMI_RANK", "PMI_ID"},
    // A shell inside an allocation also has the other Slurm variables.
    {"Slurm",
     "SLURM_PROCID",
     "SLURM_NTASKS",
     "SLURM_STEP_NUM_NODES",
     "SLURM_STEP_ID",
     "SLURM_JOB_ID"},
};

// Makes a job name that is valid in one line of text and in a socket name.
std::string one_line(std::string job) {
  constexpr size_t kMost = 128;
  if (job.size() > kMost) {
    const size_t hash = std::hash<std::string>()(job);
    job = c10::str(job.substr(0, kMost / 2), "-", hash);
  }
  std::ranges::replace_if(
      job, [](unsigned char c) { return std::iscntrl(c) != 0; }, '_');
  return job;
}

struct Range {
  int64_t first;
  int64_t last;
};

class Variables {
 public:
  explicit Variables(const Lookup& lookup) : lookup_(lookup) {}

  bool has(const char* name) const {
    return lookup_(name) != nullptr;
  }
  std::string text(const char* name) const {
    const char* value = lookup_(name);
    return value == nullptr ? "" : value;
  }
  int64_t number(const char* name, const Range& range) const {
    const std::string value = text(name);
    int64_t result = 0;
    const char* const end = value.data() + value.size();
    const auto [rest, wrong] = std::from_chars(value.data(), end, result);
    DTENSOR_CHECK_VALUE(
        wrong == std::errc() && rest == end && result >= range.first &&
            result <= range.last,
        "[init_process_group] {} is not a number from {} to {}: {}. Start the "
        "program with a launcher, or set it to a number in this range.",
        name,
        range.first,
        range.last,
        quoted(value));
    return result;
  }
  int64_t number(const char* name, const Range& range, int64_t otherwise)
      const {
    return has(name) ? number(name, range) : otherwise;
  }

 private:
  const Lookup& lookup_;
};

// Throws if a launcher's number of ranks is set but its rank is not.
void check_rank_is_set(const Variables& variables) {
  for (const Launcher& launcher : kLaunchers) {
    const bool marks_itself =
        std::strcmp(launcher.mark, launcher.rank) == 0; // false for Slurm
    DTENSOR_CHECK_VALUE(
        !marks_itself || !variables.has(launcher.size),
        "[init_process_group] {} is {} and {} is not set. Set both, start the "
        "program with a launcher, or unset {} to run one rank.",
        launcher.size,
        quoted(variables.text(launcher.size)),
        launcher.rank,
        launcher.size);
  }
}

void read_who(
    const Variables& variables,
    const Launcher& launcher,
    LaunchEnv& env) {
  DTENSOR_CHECK_VALUE(
      variables.has(launcher.size),
      "[init_process_group] {} is set and {} is not. Set both, or start the "
      "program with a launcher.",
      launcher.rank,
      launcher.size);
  env.launcher = launcher.name;
  env.rank = variables.number(launcher.rank, {0, kMostRanks - 1});
  env.size = variables.number(launcher.size, {1, kMostRanks});
  DTENSOR_CHECK_VALUE(
      env.rank < env.size,
      "[init_process_group] {} is {} and {} is {}. Ranks range from 0 to the "
      "size minus 1.",
      launcher.rank,
      env.rank,
      launcher.size,
      env.size);
  env.job = variables.text(launcher.job);
}

// Returns the number of ranks on this host. Slurm provides only the number of
// hosts of a step, so the result is 0 (unknown) for several hosts.
int64_t given_local_size(const Variables& variables, const Launcher& launcher) {
  if (std::strcmp(launcher.name, "Slurm") == 0) {
    return variables.number(launcher.local_size, {1, kMostRanks}, 0) == 1
        ? variables.number(launcher.size, {1, kMostRanks})
        : 0;
  }
  return variables.number(launcher.local_size, {1, kMostRanks}, 0);
}

std::string local_size_text(
    const Variables& variables,
    const Launcher& launcher) {
  const std::string name = launcher.local_size;
  return variables.has(launcher.local_size)
      ? name + " is " + quoted(variables.text(launcher.local_size))
      : name + " is not set";
}

// Fills `env` from the variables of the launcher that started this process, if
// any.
void read_launcher(const Variables& variables, LaunchEnv& env) {
  for (const Launcher& launcher : kLaunchers) {
    if (!variables.has(launcher.mark) || !variables.has(launcher.rank)) {
      continue;
    }
    read_who(variables, launcher, env);
    env.local_size = given_local_size(variables, launcher);
    if (env.size == 1 && env.local_size == 0) {
      env.local_size = 1; // a single process is on one host
    }
    env.local_size_text = local_size_text(variables, launcher);
    DTENSOR_CHECK_VALUE(
        env.local_size <= env.size,
        "[init_process_group] {} is {} and {} is {}. A host cannot have more "
        "ranks than the world.",
        launcher.local_size,
        env.local_size,
        launcher.size,
        env.size);
    if (env.launcher == "Slurm") {
      env.job += "." + variables.text(launcher.mark); // a job has many steps
    }
    env.job = one_line(std::move(env.job));
    return;
  }
  check_rank_is_set(variables);
}

void read_place(const Variables& variables, LaunchEnv& env) {
  env.master_addr = variables.text("MASTER_ADDR");
  const int64_t port = variables.number("MASTER_PORT", {1, kLastPort}, 0);
  DTENSOR_CHECK_VALUE(
      env.master_addr.empty() == (port == 0),
      "[init_process_group] MASTER_ADDR is {} and MASTER_PORT {}. Set both, to "
      "where rank 0 can listen, or neither.",
      quoted(env.master_addr),
      port);
  env.master_port = static_cast<int>(port);
  env.launcher_has_store =
      variables.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  env.attempt = variables.number(
      "TORCHELASTIC_RESTART_COUNT",
      {0, std::numeric_limits<int32_t>::max()},
      0);
}

} // namespace

std::string quoted(const std::string& value) {
  constexpr size_t kMost = 80;
  return detail::format_text("\"{}\"", shortened(value, kMost));
}

void check_world_size(int64_t ranks) {
  DTENSOR_CHECK_VALUE(
      ranks <= kMostRanks,
      "[init_process_group] the world has {} ranks, more than the maximum of "
      "{}. Start fewer ranks.",
      ranks,
      kMostRanks);
}

LaunchEnv read_launch_env(const Lookup& lookup) {
  const Variables variables(lookup);
  LaunchEnv env;
  read_launcher(variables, env);
  read_place(variables, env);
  env.ranks_per_process =
      variables.number("DTENSOR_RANKS_PER_PROCESS", {1, kMostThreadRanks}, 1);
  check_world_size(env.size * env.ranks_per_process);
  return env;
}

LaunchEnv read_launch_env() {
  return read_launch_env([](const char* name) { return std::getenv(name); });
}

} // namespace dtensor::detail
