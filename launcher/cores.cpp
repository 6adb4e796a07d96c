// SPDX-License-Identifier: BSD-3-Clause
#include "cores.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <fstream>
#include <tuple>

namespace launcher {
namespace {

struct Cpu {
  int socket = 0;
  int core = 0; // within the socket
  int number = 0;

  std::tuple<int, int, int> key() const {
    return {socket, core, number};
  }
};

// Returns a number from the kernel's CPU topology, or `otherwise` if it is
// unavailable.
int topology(int cpu, const char* what, int otherwise) {
  std::ifstream file(
      fmt::format("/sys/devices/system/cpu/cpu{}/topology/{}", cpu, what));
  int value = 0;
  return file >> value ? value : otherwise;
}

std::vector<Cpu> allowed_cpus() {
  cpu_set_t allowed;
  std::vector<Cpu> cpus;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) {
    return cpus;
  }
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &allowed)) {
      const int socket = topology(cpu, "physical_package_id", 0);
      cpus.push_back({socket, topology(cpu, "core_id", cpu), cpu});
    }
  }
  std::sort(cpus.begin(), cpus.end(), [](const Cpu& a, const Cpu& b) {
    return a.key() < b.key();
  });
  return cpus;
}

using Units = std::vector<std::vector<int>>;

Units by_core(const std::vector<Cpu>& cpus) {
  Units cores;
  for (size_t i = 0; i < cpus.size(); ++i) {
    const bool same = i > 0 && cpus[i].socket == cpus[i - 1].socket &&
        cpus[i].core == cpus[i - 1].core;
    if (!same) {
      cores.emplace_back();
    }
    cores.back().push_back(cpus[i].number);
  }
  return cores;
}

Units by_cpu(const std::vector<Cpu>& cpus) {
  Units units;
  for (const auto& cpu : cpus) {
    units.push_back({cpu.number});
  }
  return units;
}

} // namespace

CoreShares share_cores(int ranks) {
  const auto n = static_cast<size_t>(ranks);
  const auto cpus = allowed_cpus();
  auto units = by_core(cpus);
  CoreShares shares;
  shares.threads = std::max(1, static_cast<int>(units.size() / n));
  if (cpus.size() < n) {
    return shares;
  }
  if (units.size() < n) {
    units = by_cpu(cpus);
  }
  shares.cpus.resize(n);
  for (size_t rank = 0; rank < n; ++rank) {
    const size_t end = (rank + 1) * units.size() / n;
    for (size_t i = rank * units.size() / n; i < end; ++i) {
      auto& mine = shares.cpus[rank];
      mine.insert(mine.end(), units[i].begin(), units[i].end());
    }
  }
  return shares;
}

} // namespace launcher
