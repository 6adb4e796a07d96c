// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/processes/built_in_backends_impl.h>

#include <dtensor/comm/backend/decompose_impl.h>
#include <dtensor/error.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>

namespace dtensor::detail {
namespace {

std::string name_of(c10::DeviceType device) {
  return c10::DeviceTypeName(device, /*lower_case=*/true);
}

// Returns the CPU if it has a backend, else the first device.
c10::DeviceType home_of(const std::vector<DeviceBackend>& backends) {
  const bool has_cpu = std::ranges::any_of(backends, [](const auto& backend) {
    return backend.device == c10::kCPU;
  });
  return has_cpu ? c10::kCPU : backends.front().device;
}

class PerDeviceBackend final : public GroupBackend {
 public:
  PerDeviceBackend(
      GroupMembers members,
      const RendezvousInfo& place,
      std::vector<DeviceBackend> backends)
      : GroupBackend(std::move(members), {.device = home_of(backends)}),
        place_(place) {
    for (DeviceBackend& backend : backends) {
      entries_.push_back({std::move(backend), nullptr});
    }
    if (home() == c10::kCPU) {
      made(*find(c10::kCPU));
    }
  }

  InFlight submit(Collective&& collective) override {
    const at::Tensor& tensor = collective.example();
    const bool is_at_home = !tensor.defined() ||
        collective.kind == CollectiveKind::kAllGatherStrings;
    const c10::Device device = is_at_home ? needs().device : tensor.device();
    Entry* const entry = find(device.type());
    if (C10_UNLIKELY(entry == nullptr)) {
      throw_no_backend(collective.function_name(), device);
    }
    GroupBackend& backend = made(*entry);
    if (device.type() != home()) {
      exchange_at_home(collective);
    }
    return backend.submit(std::move(collective));
  }
  bool progresses_in_background(c10::DeviceType device) const override {
    return std::ranges::any_of(entries_, [&](const Entry& entry) {
      return entry.what.device == device && entry.made != nullptr &&
          entry.made->progresses_in_background(device);
    });
  }
  void set_operator_errors(int64_t total, const std::string& last) override {
    errors_ = total;
    last_error_ = last;
    for (const Entry& entry : entries_) {
      if (entry.made != nullptr) {
        entry.made->set_operator_errors(total, last);
      }
    }
  }
  void abandon(const std::string& why) override {
    for (const Entry& entry : entries_) {
      if (entry.made != nullptr) {
        entry.made->abandon(why);
      }
    }
  }

 private:
  struct Entry {
    DeviceBackend what;
    GroupBackendPtr made;
  };

  c10::DeviceType home() const {
    return needs().device.type();
  }

  Entry* find(c10::DeviceType device) {
    const auto found = std::ranges::find_if(entries_, [&](const Entry& entry) {
      return entry.what.device == device;
    });
    return found == entries_.end() ? nullptr : &*found;
  }

  GroupBackend& made(Entry& entry) {
    if (C10_UNLIKELY(entry.made == nullptr)) {
      entry.made = make(entry.what);
      entry.made->set_operator_errors(errors_, last_error_);
    }
    return *entry.made;
  }

  GroupBackendPtr make(const DeviceBackend& what) const {
    for (const Entry& entry : entries_) {
      if (entry.made != nullptr && entry.what.name == what.name) {
        return entry.made;
      }
    }
    RendezvousInfo place = place_;
    // Every further backend of the group needs keys of its own.
    if (what.device != c10::kCPU) {
      place.store = c10::make_intrusive<c10d::PrefixStore>(
          name_of(what.device), place.store);
    }
    return what.make(members(), place);
  }

  [[noreturn]] void throw_no_backend(std::string_view name, c10::Device device)
      const {
    std::string named;
    for (const Entry& entry : entries_) {
      named += c10::str(
          named.empty() ? "" : ",",
          name_of(entry.what.device),
          ":",
          entry.what.name);
    }
    DTENSOR_THROW_VALUE(
        "[{}] no backend for tensors on {} on \"{}\": this world has \"{}\". "
        "Add one to DTENSOR_BACKEND or to the backend of init_process_group, "
        "\"{},{}:...\", or move the tensor.",
        name,
        device,
        label(),
        named,
        named,
        name_of(device.type()));
  }

  // Exchanges sizes over the home backend. The tensor's own backend would have
  // to copy them from its device.
  void exchange_at_home(Collective& c) {
    const auto begin = [this](Collective&& primitive) {
      return made(*find(home())).submit(std::move(primitive));
    };
    if (c.kind == CollectiveKind::kAllToAll && c.shard_dim < 0) {
      if (c.received.empty() && c.shapes.empty()) {
        c.shapes = exchange_shapes(c.name(), *this, begin, c.inputs);
      }
    } else if (
        c.sizes.empty() &&
        (c.kind == CollectiveKind::kAllGather ||
         c.kind == CollectiveKind::kAllToAll)) {
      c.sizes = exchange_sizes(
          c.function_name(), *this, begin, c.input().size(c.dim));
    }
  }

  RendezvousInfo place_;
  std::vector<Entry> entries_;
  int64_t errors_ = 0;
  std::string last_error_;
};

} // namespace

GroupBackendPtr per_device_backend(
    GroupMembers members,
    const RendezvousInfo& place,
    std::vector<DeviceBackend> backends) {
  return std::make_shared<PerDeviceBackend>(
      std::move(members), place, std::move(backends));
}

} // namespace dtensor::detail
