// SPDX-License-Identifier: BSD-3-Clause
#include "environment.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <map>

namespace launcher {

std::vector<std::string> environment_of(
    const Options& options,
    const JobFacts& job,
    int attempt,
    int local) {
  const auto text = [](int number) { return std::to_string(number); };
  std::map<std::string, std::string> variables = {
      {"RANK", text(options.node * options.ranks + local)},
      {"WORLD_SIZE", text(options.world_size())},
      {"LOCAL_RANK", text(local)},
      {"LOCAL_WORLD_SIZE", text(options.ranks)},
      {"GROUP_RANK", text(options.node)},
      {"GROUP_WORLD_SIZE", text(options.nodes)},
      {"MASTER_ADDR", job.host},
      {"MASTER_PORT", text(job.port)},
      {"TORCHELASTIC_RUN_ID", job.key},
      {"TORCHELASTIC_RESTART_COUNT", text(attempt)},
      {"TORCHELASTIC_MAX_RESTARTS", text(options.max_restarts)},
      {"TORCHELASTIC_USE_AGENT_STORE", "True"},
  };
  // torchrun sets OMP_NUM_THREADS to 1, which leaves most cores idle if a rank
  // has several.
  if (options.ranks > 1 && std::getenv("OMP_NUM_THREADS") == nullptr) {
    variables["OMP_NUM_THREADS"] = text(job.threads);
  }
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string inherited = *entry;
    if (!variables.contains(inherited.substr(0, inherited.find('=')))) {
      environment.push_back(inherited);
    }
  }
  for (const auto& [name, value] : variables) {
    environment.push_back(fmt::format("{}={}", name, value));
  }
  return environment;
}

} // namespace launcher
