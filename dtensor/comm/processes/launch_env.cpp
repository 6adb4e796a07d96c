// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/processes/launch_env_impl.h>

#include <dtensor/comm/processes/where_impl.h>
#include <dtensor/error.h>

#include <charconv>
#include <cstdlib>
#include <cstring>

namespace dtensor::detail {
namespace {

// The variables by which a kind of launcher says who a process is.
struct Launcher {
  const char* name;
  const char* rank;
  const char* size;
  const char* local_size;
  /// Set in each process that this launcher started, and not around it.
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
    // A shell in an allocation has the other variables too.
    {"Slurm",
     "SLURM_PROCID",
     "SLURM_NTASKS",
     "",
     "SLURM_STEP_ID",
     "SLURM_JOB_ID"},
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
  int64_t number(const char* name) const {
    const std::string value = text(name);
    int64_t result = 0;
    const char* const end = value.data() + value.size();
    const auto [rest, wrong] = std::from_chars(value.data(), end, result);
    DTENSOR_CHECK_VALUE(
        wrong == std::errc() && rest == end && result >= 0,
        kInitProcessGroup,
        name,
        " is not a number: \"",
        value,
        "\". Start the program by a launcher, or set it to a number from 0.");
    return result;
  }
  int64_t number(const char* name, int64_t otherwise) const {
    return has(name) ? number(name) : otherwise;
  }

 private:
  const Lookup& lookup_;
};

void read_who(
    const Variables& variables,
    const Launcher& launcher,
    LaunchEnv& env) {
  DTENSOR_CHECK_VALUE(
      variables.has(launcher.size),
      kInitProcessGroup,
      launcher.rank,
      " is set and ",
      launcher.size,
      " is not. Set both, or start the program by a launcher.");
  env.launcher = launcher.name;
  env.rank = variables.number(launcher.rank);
  env.size = variables.number(launcher.size);
  DTENSOR_CHECK_VALUE(
      env.rank < env.size,
      kInitProcessGroup,
      launcher.rank,
      " is ",
      env.rank,
      " and ",
      launcher.size,
      " is ",
      env.size,
      ". Ranks count from 0 to the size less one.");
  env.job = variables.text(launcher.job);
}

// Slurm says how many hosts a step has.
int64_t local_size(const Variables& variables, const Launcher& launcher) {
  if (std::strcmp(launcher.name, "Slurm") == 0) {
    return variables.number("SLURM_STEP_NUM_NODES", 0) == 1
        ? variables.number(launcher.size)
        : 0;
  }
  return variables.number(launcher.local_size, 0);
}

void read_place(const Variables& variables, LaunchEnv& env) {
  constexpr int64_t kLastPort = 65535;
  env.master_addr = variables.text("MASTER_ADDR");
  const int64_t port = variables.number("MASTER_PORT", 0);
  DTENSOR_CHECK_VALUE(
      env.master_addr.empty() == (port == 0) && port <= kLastPort,
      kInitProcessGroup,
      "MASTER_ADDR is \"",
      env.master_addr,
      "\" and MASTER_PORT ",
      port,
      ". Set both, to where rank 0 can listen, or neither.");
  env.master_port = static_cast<int>(port);
  env.launcher_has_store =
      variables.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  env.attempt = variables.number("TORCHELASTIC_RESTART_COUNT", 0);
}

} // namespace

LaunchEnv read_launch_env(const Lookup& lookup) {
  const Variables variables(lookup);
  LaunchEnv env;
  for (const Launcher& launcher : kLaunchers) {
    if (variables.has(launcher.mark) && variables.has(launcher.rank)) {
      read_who(variables, launcher, env);
      env.local_size = local_size(variables, launcher);
      break;
    }
  }
  read_place(variables, env);
  env.ranks_per_process = variables.number("DTENSOR_RANKS_PER_PROCESS", 1);
  return env;
}

LaunchEnv read_launch_env() {
  return read_launch_env([](const char* name) { return std::getenv(name); });
}

} // namespace dtensor::detail
