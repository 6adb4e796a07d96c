// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/run_world.h>

#include <dtensor/comm/backend/message_of_impl.h>
#include <dtensor/comm/hybrid/run_hybrid_impl.h>
#include <dtensor/comm/processes/launch_env_impl.h>
#include <dtensor/comm/processes/session_impl.h>
#include <dtensor/error.h>

#include <cxxabi.h>

#include <algorithm>

namespace dtensor {
namespace {

void run_processes(
    const std::function<void()>& fn,
    const ProcessGroupOptions& options) {
  init_process_group(options);
  try {
    fn();
  } catch (const std::exception& error) {
    detail::abandon_process_group(detail::message_of(error));
    throw;
  } catch (const abi::__forced_unwind&) { // pthread_exit or cancellation
    detail::abandon_process_group("its thread was terminated by pthread_exit");
    throw;
  } catch (...) {
    detail::abandon_process_group(
        "an exception not derived from std::exception");
    throw;
  }
  destroy_process_group();
}

} // namespace

std::optional<Launched> launched() {
  const auto env = detail::read_launch_env();
  if (env.launcher.empty()) {
    return std::nullopt;
  }
  const int64_t here = std::max<int64_t>(1, env.ranks_per_process);
  return Launched{env.rank * here, env.size * here};
}

void run_world(
    int64_t ranks,
    const std::function<void()>& fn,
    const RunWorldOptions& options) {
  if (!launched()) {
    run_ranks(ranks, fn, options.threads);
    return;
  }
  DTENSOR_CHECK_VALUE(
      options.ranks_per_process >= 0,
      "[run_world] ranks_per_process is {}. Pass the number of ranks (threads) "
      "per process, or leave it out.",
      options.ranks_per_process);
  const int64_t here = options.ranks_per_process > 0
      ? options.ranks_per_process
      : detail::read_launch_env().ranks_per_process;
  if (here > 1) {
    detail::run_hybrid(here, fn, options);
  } else {
    run_processes(fn, options.processes);
  }
}

} // namespace dtensor
