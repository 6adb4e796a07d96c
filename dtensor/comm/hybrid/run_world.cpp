// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/run_world.h>

#include <dtensor/comm/processes/launch_env_impl.h>
#include <dtensor/comm/processes/session_impl.h>

namespace dtensor {

std::optional<Launched> launched() {
  const auto env = detail::read_launch_env();
  if (env.launcher.empty()) {
    return std::nullopt;
  }
  return Launched{env.rank, env.size};
}

void run_world(
    int64_t ranks,
    const std::function<void()>& fn,
    const RunWorldOptions& options) {
  if (!launched()) {
    run_ranks(ranks, fn, options.threads);
    return;
  }
  init_process_group(options.processes);
  try {
    fn();
  } catch (const std::exception& error) {
    detail::abandon_process_group(error);
    throw;
  }
  destroy_process_group();
}

} // namespace dtensor
