// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/per_device_backend_impl.h>

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
  const bool has_cpu =
      std::any_of(backends.begin(), backends.end(), [](const auto& backend) {
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

  at::Tensor all_reduce(const at::Tensor& input, ReduceOp op) override {
    return of("all_reduce", input).all_reduce(input, op);
  }
  at::Tensor all_gather(const at::Tensor& input, SizesRef counts) override {
    return of("all_gather", input).all_gather(input, counts);
  }
  at::Tensor reduce_scatter(
      const at::Tensor& input,
      SizesRef counts,
      ReduceOp op) override {
    return of("reduce_scatter", input).reduce_scatter(input, counts, op);
  }
  at::Tensor all_to_all(
      const at::Tensor& input,
      SizesRef sent,
      SizesRef received) override {
    return of("all_to_all", input).all_to_all(input, sent, received);
  }
  at::Tensor broadcast(const at::Tensor& input, int64_t root) override {
    return of("broadcast", input).broadcast(input, root);
  }
  void send(const at::Tensor& input, int64_t to, int64_t tag) override {
    of("send", input).send(input, to, tag);
  }
  at::Tensor recv(const at::Tensor& like, int64_t from, int64_t tag) override {
    return of("recv", like).recv(like, from, tag);
  }

  at::Tensor gather_along(const at::Tensor& input, int64_t dim, SizesRef sizes)
      override {
    return of("all_gather", input)
        .gather_along(input, dim, known(input, dim, sizes));
  }
  at::Tensor reduce_scatter_along(
      const at::Tensor& input,
      int64_t dim,
      SizesRef sizes,
      ReduceOp op) override {
    return of("reduce_scatter", input)
        .reduce_scatter_along(input, dim, sizes, op);
  }
  at::Tensor shard_dim_alltoall(
      const at::Tensor& input,
      int64_t gather_dim,
      int64_t shard_dim,
      SizesRef sizes) override {
    return of("shard_dim_alltoall", input)
        .shard_dim_alltoall(
            input, gather_dim, shard_dim, known(input, gather_dim, sizes));
  }
  Tensors exchange_parts(const Tensors& inputs, Shapes shapes) override {
    GroupBackend& backend = of("all_to_all", inputs.front());
    const bool asks = shapes.empty() && asks_at_home(inputs.front());
    return asks ? backend.exchange_parts(inputs, exchange_shapes(inputs))
                : backend.exchange_parts(inputs, shapes);
  }
  at::Tensor scatter(
      const Tensors& inputs,
      const at::Tensor& like,
      int64_t root) override {
    return of("scatter", rank() == root ? inputs.front() : like)
        .scatter(inputs, like, root);
  }
  Tensors gather(const at::Tensor& input, Shapes shapes, int64_t root)
      override {
    return of("gather", input).gather(input, shapes, root);
  }
  void barrier() override {
    made(*find(home())).barrier();
  }
  std::vector<std::string> all_gather_strings(
      const std::string& mine) override {
    return made(*find(home())).all_gather_strings(mine);
  }
  PendingPtr start(AsyncCollective collective) override {
    const std::string_view name = to_string(collective.kind);
    GroupBackend& backend = of(name, collective.input);
    if (collective.received.empty() &&
        (collective.kind == CollectiveKind::kAllGather ||
         collective.kind == CollectiveKind::kAllToAll)) {
      collective.sizes =
          known(collective.input, collective.dim, collective.sizes);
    }
    return backend.start(std::move(collective));
  }
  bool progresses_in_background(c10::DeviceType device) const override {
    return std::any_of(
        entries_.begin(), entries_.end(), [&](const Entry& entry) {
          return entry.what.device == device && entry.made != nullptr &&
              entry.made->progresses_in_background(device);
        });
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
    const auto found =
        std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
          return entry.what.device == device;
        });
    return found == entries_.end() ? nullptr : &*found;
  }

  GroupBackend& of(std::string_view name, const at::Tensor& tensor) {
    Entry* const entry = find(tensor.device().type());
    if (C10_UNLIKELY(entry == nullptr)) {
      throw_no_backend(name, tensor.device());
    }
    return made(*entry);
  }

  GroupBackend& made(Entry& entry) {
    if (C10_UNLIKELY(entry.made == nullptr)) {
      entry.made = make(entry.what);
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
    // A second backend of the group must not share the first one's keys.
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
        "Add one in DTENSOR_BACKEND or ProcessGroupOptions::backend, "
        "\"{},{}:...\", or move the tensor.",
        name,
        device,
        label(),
        named,
        named,
        name_of(device.type()));
  }

  // Returns true if sizes should be exchanged over the home backend: the
  // tensor's own backend would have to fetch them from its device.
  bool asks_at_home(const at::Tensor& tensor) const {
    return tensor.device().type() != home();
  }
  Sizes known(const at::Tensor& input, int64_t dim, SizesRef sizes) {
    return sizes.empty() && asks_at_home(input)
        ? exchange_sizes(input.size(dim))
        : Sizes(sizes);
  }

  RendezvousInfo place_;
  std::vector<Entry> entries_;
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
