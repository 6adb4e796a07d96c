// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/backends.h>

#include <dtensor/comm/processes/gloo_impl.h>
#include <dtensor/error.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <algorithm>
#include <map>
#include <mutex>

namespace dtensor {
namespace {

struct Backends {
  std::mutex mutex;
  std::map<std::string, MakeBackend> by_name{{"gloo", detail::make_gloo}};
};

Backends& backends() {
  static auto* all = new Backends;
  return *all;
}

} // namespace

bool MeetingPlace::is_on_one_host() const {
  return std::all_of(hosts.begin(), hosts.end(), [&](const std::string& host) {
    return host == hosts.front();
  });
}

void register_backend(const std::string& name, MakeBackend make) {
  constexpr const char* kWhere = "register_backend";
  DTENSOR_CHECK_VALUE(
      !name.empty() && name.find_first_of(",:") == std::string::npos,
      kWhere,
      "\"",
      name,
      "\" cannot be a name. Use one without commas and colons.");
  auto& all = backends();
  const std::lock_guard lock(all.mutex);
  DTENSOR_CHECK_VALUE(
      all.by_name.emplace(name, std::move(make)).second,
      kWhere,
      "there is a backend \"",
      name,
      "\" already. Use another name.");
}

std::string detail::backend_names() {
  auto& all = backends();
  const std::lock_guard lock(all.mutex);
  std::string names;
  for (const auto& [name, make] : all.by_name) {
    names += (names.empty() ? "" : ", ") + name;
  }
  return names;
}

MakeBackend detail::find_backend(const std::string& name) {
  auto& all = backends();
  const std::lock_guard lock(all.mutex);
  const auto found = all.by_name.find(name);
  return found == all.by_name.end() ? nullptr : found->second;
}

} // namespace dtensor
