// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/parallel/hook_list.h>

#include <dtensor/comm/rank/rank_local_impl.h>
#include <dtensor/error.h>
#include <dtensor/ops/boundary/boundaries_impl.h>

#include <c10/util/StringUtil.h>

#include <atomic>
#include <cstdint>

namespace dtensor {
namespace {

constexpr std::string_view kLeft = "dtensor_hooks_";

detail::RankLocal<std::map<std::string, ModuleHooks>> left_hooks; // by name

} // namespace

void ModuleHooks::add_forward_pre_hook(Hook hook) {
  before_.push_back(std::move(hook));
}

void ModuleHooks::add_forward_hook(Hook hook) {
  after_.push_back(std::move(hook));
}

void ModuleHooks::add_forward_scope(Scope scope) {
  scopes_.push_back(std::move(scope));
}

void ModuleHooks::record_style(
    const std::string& style,
    const std::string& module_name,
    const std::string& layouts) {
  name_ = detail::keep_module_name(module_name);
  styles_.emplace(style, layouts);
}

std::vector<std::shared_ptr<void>> ModuleHooks::open_scopes() const {
  std::vector<std::shared_ptr<void>> opened;
  for (const auto& open : scopes_) {
    opened.push_back(open());
  }
  return opened;
}

std::string ModuleHooks::stash_hooks() const {
  // One counter for all ranks, so that no rank has hooks under the name of
  // another rank's clone.
  static std::atomic<uint64_t> next{0};
  auto name = c10::str(kLeft, next++);
  left_hooks.get().emplace(name, *this);
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
  auto left = left_hooks.get().extract(name);
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
