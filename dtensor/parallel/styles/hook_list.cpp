// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/parallel/hook_list.h>

#include <dtensor/comm/rank/rank_local_impl.h>
#include <dtensor/error.h>
#include <dtensor/ops/boundary/boundaries_impl.h>

#include <c10/util/StringUtil.h>

#include <map>
#include <string_view>

namespace dtensor {
namespace {

constexpr std::string_view kLeft = "dtensor_hooks_";

struct StashedHooks {
  std::map<std::string, ModuleHooks> all;
  uint64_t next = 0;
};

detail::RankLocal<StashedHooks> left_hooks;

} // namespace

std::string ModuleHooks::stash_hooks() const {
  auto& left = left_hooks.get();
  auto name = c10::str(kLeft, left.next++);
  left.all.emplace(name, *this);
  return name;
}

void ModuleHooks::name_module_in(c10::Error& error) const {
  std::string styles;
  for (const auto& [style, layouts] : styles_) {
    styles += (styles.empty() ? " (" : "; ") + style +
        (layouts.empty() ? "" : ": " + layouts);
  }
  detail::name_module(
      error,
      detail::describe_module(name_) + styles + (styles.empty() ? "" : ")"));
}

bool ModuleHooks::restore_hooks(const std::string& name) {
  if (!name.starts_with(kLeft)) {
    return false;
  }
  auto left = left_hooks.get().all.extract(name);
  if (!has_hooks()) {
    DTENSOR_CHECK(
        !left.empty(),
        "[clone] a module with hooks was cloned on another rank. Clone the "
        "module on the rank that calls the clone.");
    *this = left.mapped();
  }
  return true;
}

} // namespace dtensor
