// SPDX-License-Identifier: BSD-3-Clause
// Reads any launch variables, given as lines of NAME=VALUE. Expects a valid
// rank of a valid world, or a ValueError.
#include <dtensor/comm/processes/launch_env_impl.h>

#include <map>
#include <sstream>
#include <string>

#include "fuzz.h"

namespace {

using Variables = std::map<std::string, std::string>;

Variables variables_of(const std::string& text) {
  Variables variables;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const size_t sign = line.find('=');
    if (sign != line.npos) {
      // Values end at a zero byte, as in an environment.
      variables[line.substr(0, sign)] = line.substr(sign + 1).c_str();
    }
  }
  return variables;
}

bool is_sound(const dtensor::detail::LaunchEnv& env) {
  using namespace dtensor::detail;
  return env.rank >= 0 && env.rank < env.size &&
      env.size * env.ranks_per_process <= kMostRanks &&
      env.ranks_per_process >= 1 && env.ranks_per_process <= kMostThreadRanks &&
      env.local_size >= 0 && env.local_size <= env.size &&
      env.master_addr.empty() == (env.master_port == 0) &&
      env.master_port >= 0 && env.master_port <= kLastPort &&
      env.attempt >= 0 && env.job.size() <= 256 &&
      env.job.find('\n') == env.job.npos;
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t count) {
  using namespace dtensor;
  const auto variables =
      variables_of({reinterpret_cast<const char*>(bytes), count});
  // Errors quote values, so they may contain any text.
  try {
    const auto env = detail::read_launch_env([&](const char* name) {
      const auto found = variables.find(name);
      return found == variables.end() ? nullptr : found->second.c_str();
    });
    if (!is_sound(env)) {
      fuzz::fail("a world that cannot be", env.launcher);
    }
  } catch (const c10::ValueError& error) {
    const std::string text = error.what_without_backtrace();
    if (!text.starts_with("[init_process_group] ")) {
      fuzz::fail("an error without [where]", text);
    }
  }
  return 0;
}
