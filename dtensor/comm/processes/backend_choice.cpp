// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/processes/backend_choice_impl.h>

#include <dtensor/comm/processes/built_in_backends_impl.h>
#include <dtensor/comm/processes/launch_env_impl.h>
#include <dtensor/error.h>

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <cstdlib>

namespace dtensor::detail {
namespace {

constexpr const char* kFake = "fake";
constexpr const char* kNccl = "nccl";

// Checks for compiled-in CUDA support only. Querying a GPU would initialize
// CUDA in programs that use none.
bool torch_has_cuda() {
  return c10::impl::hasDeviceGuardImpl(c10::kCUDA);
}

std::string lower(c10::DeviceType device) {
  return c10::DeviceTypeName(device, /*lower_case=*/true);
}

// Returns the only device type that the named built-in backend supports;
// nullopt if it is not restricted.
std::optional<c10::DeviceType> only_device(const std::string& name) {
  if (name == "shm" || name == "hierarchical" || uses_mpi(name)) {
    return c10::kCPU;
  }
  return name == kNccl ? std::optional(c10::kCUDA) : std::nullopt;
}

void check_name(const std::string& name, const std::string& text) {
  DTENSOR_CHECK_VALUE(
      !name.empty(),
      "[init_process_group] a backend name is missing in {}. Write \"gloo\", "
      "or \"cpu:gloo,cuda:nccl\".",
      quoted(text));
  DTENSOR_CHECK_VALUE(
      find_backend(name) != nullptr,
      "[init_process_group] unknown backend {}. Use one of: {}.",
      quoted(name),
      backend_names());
  DTENSOR_CHECK_VALUE(
      name != kNccl || has_nccl(),
      "[init_process_group] {} is not available: dtensor was built with a "
      "LibTorch without NCCL. Build it with a LibTorch for CUDA, or use "
      "\"gloo\".",
      quoted(text));
}

c10::DeviceType device_named(const std::string& name, const std::string& text) {
  try {
    return c10::Device(name).type();
  } catch (const c10::Error&) {
    DTENSOR_THROW_VALUE(
        "[init_process_group] unknown device type {} in {}. Write "
        "\"cpu:gloo,cuda:nccl\".",
        quoted(name),
        quoted(text));
  }
}

// Returns the backend that "auto" selects for a device type.
std::string best_for(c10::DeviceType device) {
  if (device == c10::kCPU) {
    return "auto";
  }
  DTENSOR_CHECK_VALUE(
      device == c10::kCUDA && torch_has_cuda(),
      "[init_process_group] \"auto\" has no backend for {}{}. Specify one: "
      "\"{}:...\".",
      lower(device),
      device == c10::kCUDA ? ", as this LibTorch is built for the CPU" : "",
      lower(device));
  return has_nccl() ? kNccl : "gloo";
}

// Parses one item ("cuda:nccl") of the longer `text`.
ChosenBackend parse_item(const std::string& item, const std::string& text) {
  const size_t colon = item.find(':');
  DTENSOR_CHECK_VALUE(
      colon != std::string::npos,
      "[init_process_group] {} in {} has no device type. Write "
      "\"cpu:gloo,cuda:nccl\".",
      quoted(item),
      quoted(text));
  const auto device = device_named(item.substr(0, colon), text);
  std::string name = item.substr(colon + 1);
  check_name(name, text);
  const auto only = only_device(name);
  DTENSOR_CHECK_VALUE(
      !only || *only == device,
      "[init_process_group] {} supports only {} tensors: {}. Specify another "
      "backend for {}.",
      quoted(name),
      lower(only.value_or(device)),
      quoted(text),
      lower(device));
  return {device, name == "auto" ? best_for(device) : std::move(name)};
}

ChosenBackends parse_list(const std::string& text) {
  ChosenBackends chosen;
  std::string rest = text + ",";
  for (size_t end = rest.find(','); end != std::string::npos;
       rest = rest.substr(end + 1), end = rest.find(',')) {
    ChosenBackend next = parse_item(rest.substr(0, end), text);
    DTENSOR_CHECK_VALUE(
        std::ranges::none_of(
            chosen,
            [&](const auto& known) { return known.device == next.device; }),
        "[init_process_group] {} has two backends in {}. Specify one.",
        lower(*next.device),
        quoted(text));
    chosen.push_back(std::move(next));
  }
  DTENSOR_CHECK_VALUE(
      are_fake(chosen) ||
          std::ranges::none_of(
              chosen, [](const auto& one) { return one.name == kFake; }),
      "[init_process_group] {} combines the fake backend with others. Use "
      "\"fake\" alone: it supports tensors on every device.",
      quoted(text));
  return chosen;
}

} // namespace

ChosenBackends choose_backends(const std::string& given) {
  const char* otherwise = std::getenv("DTENSOR_BACKEND");
  std::string text = given.empty() && otherwise != nullptr ? otherwise : given;
  if (text.empty()) {
    text = "auto";
  }
  if (text.find_first_of(",:") != std::string::npos) {
    return parse_list(text);
  }
  check_name(text, text);
  if (text == kNccl) {
    return {{c10::kCUDA, kNccl}};
  }
  if (text == "auto" && torch_has_cuda()) {
    return {{c10::kCPU, text}, {c10::kCUDA, best_for(c10::kCUDA)}};
  }
  return {{std::nullopt, text}};
}

bool are_fake(const ChosenBackends& chosen) {
  return std::ranges::all_of(
      chosen, [](const auto& one) { return one.name == kFake; });
}

// The numbers are rounded from docs/performance.md and benchmarks of typical
// networks; programs set their own in MeshOptions::cost.
LinkCost typical_cost(
    const ChosenBackends& chosen,
    c10::DeviceType device,
    bool is_on_one_host) {
  constexpr LinkCost kShmCost{2, 5};
  constexpr LinkCost kTcpCost{200, 1};
  constexpr LinkCost kMpiCost{10, 5};
  constexpr LinkCost kGpuCost{15, 100};
  const auto carries = [&](const ChosenBackend& one) {
    return !one.device || one.device == device;
  };
  const auto found = std::ranges::find_if(chosen, carries);
  const std::string name = found == chosen.end() ? "" : found->name;
  if (name == kNccl) {
    return kGpuCost;
  }
  if (name == "gloo") {
    return kTcpCost;
  }
  if (is_on_one_host) {
    return kShmCost;
  }
  return uses_mpi(name) ? kMpiCost : kTcpCost;
}

GroupBackendPtr make_chosen(
    const ChosenBackends& chosen,
    GroupMembers members,
    const RendezvousInfo& place) {
  const auto& first = chosen.front();
  const auto device = first.device.value_or(c10::kCPU);
  // The backend needs no per-device wrapper, because no tensor of another
  // device type can occur.
  const bool is_alone = chosen.size() == 1 &&
      (!first.device || (device == c10::kCPU && !torch_has_cuda()));
  if (is_alone) {
    return find_backend(first.name)(std::move(members), place);
  }
  std::vector<DeviceBackend> backends;
  for (const ChosenBackend& one : chosen) {
    backends.push_back({*one.device, one.name, find_backend(one.name)});
  }
  return per_device_backend(std::move(members), place, std::move(backends));
}

} // namespace dtensor::detail
