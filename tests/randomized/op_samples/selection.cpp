// SPDX-License-Identifier: BSD-3-Clause
#include "selection.h"

#include "twin.h"

#include <array>
#include <functional>

namespace dtensor::randomized {
namespace {

uint64_t
mix(const Settings& settings, const Call& call, int64_t mesh, size_t k) {
  uint64_t h = std::hash<std::string>{}(call.name());
  for (const auto word :
       {settings.seed,
        static_cast<uint64_t>(call.number),
        static_cast<uint64_t>(mesh),
        static_cast<uint64_t>(k)}) {
    h = (h ^ word) * 0x9E3779B97F4A7C15ULL;
    h ^= h >> 29;
  }
  return h;
}

bool has_partial(const Combination& combination) {
  for (const auto& layout : combination) {
    for (const auto& p : layout) {
      if (p.is_partial()) {
        return true;
      }
    }
  }
  return false;
}

// Selects few combinations. Calls with twins get a partial layout, because a
// number matters most to the terms of a sum. They run on two meshes, and thus
// in both orders.
std::set<size_t> selected_in_brief(
    const Settings& settings,
    const Trial& trial,
    int64_t mesh,
    const std::vector<Combination>& all) {
  std::set<size_t> chosen;
  const auto draw = mix(settings, trial.call, 0, 0);
  if (mesh == 0) {
    chosen.insert(0);
  }
  if ((mesh == 0 || mesh == 1 + static_cast<int64_t>(draw % 2)) &&
      all.size() > 1) {
    chosen.insert(1 + mix(settings, trial.call, mesh, 0) % (all.size() - 1));
  }
  std::vector<size_t> partial;
  for (size_t k = 0; k < all.size(); ++k) {
    if (has_partial(all[k])) {
      partial.push_back(k);
    }
  }
  if (!trial.twins.empty() && mesh < 2 && !partial.empty()) {
    chosen.insert(partial[mix(settings, trial.call, mesh, 1) % partial.size()]);
  }
  return chosen;
}

} // namespace

std::set<size_t> drawn_in_brief(
    const std::vector<Call>& calls,
    const Settings& settings) {
  std::array<std::vector<size_t>, 3> groups;
  for (const auto& call : calls) {
    groups[0].push_back(call.number);
    if (!twins_of(call).empty()) {
      groups[is_complex(call) ? 2 : 1].push_back(call.number);
    }
  }
  std::set<size_t> drawn;
  const auto draw = std::hash<std::string>{}(calls[0].name()) ^ settings.seed;
  for (const auto& group : groups) {
    if (!group.empty()) {
      drawn.insert(group[draw % group.size()]);
    }
  }
  return drawn;
}

uint64_t seed_of(const Settings& settings, const Call& call, int64_t mesh) {
  return mix(settings, call, mesh, 0);
}

std::set<size_t> selected(
    const Settings& settings,
    const Trial& trial,
    int64_t mesh,
    const std::vector<Combination>& all) {
  if (settings.brief) {
    return selected_in_brief(settings, trial, mesh, all);
  }
  std::set<size_t> chosen;
  for (size_t k = 0; k < all.size(); ++k) {
    const auto h = mix(settings, trial.call, mesh, k + 1) >> 11;
    if (static_cast<double>(h) * 0x1p-53 < settings.fraction) {
      chosen.insert(k);
    }
  }
  return chosen;
}

} // namespace dtensor::randomized
