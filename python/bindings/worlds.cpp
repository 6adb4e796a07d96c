// SPDX-License-Identifier: BSD-3-Clause
// Worlds of a Python process: groups of torch.distributed's process groups, the
// engine's own groups, which torch.distributed can use as a backend, and ranks
// that are threads.
#include "parts.h"

#include "convert.h"
#include "without_gil.h"

#include <ATen/core/grad_mode.h>
#include <dtensor/comm/backend_layer.h>
#include <dtensor/comm/c10d_backend.h>
#include <dtensor/comm/c10d_group.h>
#include <dtensor/comm/default_world.h>
#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/comm/init_process_group.h>
#include <dtensor/comm/ranks.h>
#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <utility>
#include <vector>

namespace dtensor::python {
namespace {

using ProcessGroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;
using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

/// A Python object that code without the GIL may hold and destroy.
class SharedObject {
 public:
  explicit SharedObject(py::object object) : object_(std::move(object)) {}
  SharedObject(const SharedObject&) = delete;
  SharedObject& operator=(const SharedObject&) = delete;
  ~SharedObject() {
    if (Py_IsInitialized() == 0) { // the interpreter has ended
      object_.release();
      return;
    }
    const py::gil_scoped_acquire gil;
    object_ = {};
  }

  /// Calls a method; `convert` makes the result from the returned object.
  /// Exceptions become std::runtime_error, because other threads may hold and
  /// destroy them.
  template <class Convert, class... Args>
  auto call(const char* method, Convert convert, Args&&... args) const {
    const at::NoGradGuard no_grad;
    const py::gil_scoped_acquire gil;
    try {
      return convert(object_.attr(method)(std::forward<Args>(args)...));
    } catch (const py::error_already_set& error) {
      throw std::runtime_error(error.what());
    }
  }

 private:
  py::object object_;
};

/// Work that a Python method returned. Waiting calls Python, which releases the
/// GIL, because the work may be that of a Python thread.
class PythonWork final : public c10d::Work {
 public:
  explicit PythonWork(py::object work) : work_(std::move(work)) {}

  bool isCompleted() override {
    return work_.call(
        "is_completed", [](py::object done) { return done.cast<bool>(); });
  }
  bool wait(std::chrono::milliseconds /*timeout*/) override {
    work_.call("wait", [](const py::object&) {});
    return true;
  }

 private:
  SharedObject work_;
};

/// A backend of a PythonGroup (dtensor/python_groups.py). Its collectives, and
/// the waits for them, take the GIL.
class PythonBackend final : public c10d::Backend {
 public:
  PythonBackend(py::object group, int rank, int size, std::string name)
      : Backend(rank, size),
        group_(std::move(group)),
        name_(std::move(name)) {}

  const std::string getBackendName() const override {
    return name_;
  }
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts)
      override {
    return begin("allreduce", tensors, opts);
  }
  WorkPtr _allgather_base(
      at::Tensor& output,
      at::Tensor& input,
      const c10d::AllgatherOptions& opts) override {
    return begin("allgather", output, input, opts);
  }
  WorkPtr alltoall_base(
      at::Tensor& output,
      at::Tensor& input,
      std::vector<int64_t>& output_sizes,
      std::vector<int64_t>& input_sizes,
      const c10d::AllToAllOptions& opts) override {
    return begin("alltoall", output, input, output_sizes, input_sizes, opts);
  }
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts)
      override {
    return begin("broadcast", tensors, opts);
  }
  WorkPtr send(Tensors& tensors, int to, int tag) override {
    return begin("send", tensors, to, tag);
  }
  WorkPtr recv(Tensors& tensors, int from, int tag) override {
    return begin("recv", tensors, from, tag);
  }
  WorkPtr barrier(const c10d::BarrierOptions& opts) override {
    return begin("barrier", opts);
  }

 private:
  template <class... Args>
  WorkPtr begin(const char* method, const Args&... args) {
    return group_.call(
        method,
        [](py::object work) -> WorkPtr {
          if (work.is_none()) {
            return {};
          }
          return c10::make_intrusive<PythonWork>(std::move(work));
        },
        args...);
  }

  SharedObject group_;
  std::string name_;
};

/// Calls `f` without the GIL. This thread may or may not have the GIL.
template <class F>
auto released(F&& f) {
  if (Py_IsInitialized() == 0 || PyGILState_Check() == 0) {
    return std::forward<F>(f)();
  }
  const pybind11::gil_scoped_release release;
  return std::forward<F>(f)();
}

class ReleasedBackend final : public BackendLayer {
 public:
  using BackendLayer::BackendLayer;

  InFlight submit(Collective&& collective) override {
    return released([&] { return BackendLayer::submit(std::move(collective)); })
        .around([](const InFlight::Wait& wait) { return released(wait); });
  }
};

/// Returns a backend that never holds the GIL while it waits. Some functions of
/// PyTorch call operators with the GIL, such as x[i]; the collectives of these
/// operators release the GIL. A peer, or the transport, may depend on another
/// thread of this process that needs the GIL.
GroupBackendPtr releasing_gil(GroupBackendPtr backend) {
  return std::make_shared<ReleasedBackend>(std::move(backend));
}

/// Returns the backend of a process group, or its methods if it is written in
/// Python.
c10::intrusive_ptr<c10d::Backend> carrier_of(
    const py::object& process_group,
    const GroupMembers& members,
    c10::Device device) {
  const auto cls = py::type::of(process_group);
  if (!cls.is(py::type::of<c10d::ProcessGroup>())) {
    py::object methods = python_names().python_group(process_group);
    if (!methods.is_none()) {
      return c10::make_intrusive<PythonBackend>(
          std::move(methods),
          static_cast<int>(members.rank),
          static_cast<int>(members.ranks.size()),
          cls.attr("__name__").cast<std::string>());
    }
  }
  return process_group.cast<ProcessGroupPtr>()->getBackend(device.type());
}

GroupBackendPtr backend_over(
    const py::object& process_group,
    GroupMembers members,
    c10::Device device) {
  auto carrier = carrier_of(process_group, members, device);
  return c10d_group(std::move(carrier), std::move(members), device);
}

/// The world whose communication goes through torch.distributed's process
/// groups.
class TorchWorld final : public World {
 public:
  TorchWorld(int64_t rank, int64_t size)
      : World(rank, size, "torch.distributed") {}
  ~TorchWorld() override {
    leave_threads();
  }

  /// Makes all threads of the process that are no ranks work for this world.
  void enter_threads() {
    set_default_world(this);
    worked_for_ = this;
  }
  void leave_threads() {
    const TorchWorld* expected = this;
    if (worked_for_.compare_exchange_strong(expected, nullptr)) {
      set_default_world(nullptr);
    }
  }

 protected:
  GroupBackendPtr make_backend(GroupMembers members) override {
    const py::gil_scoped_acquire gil;
    const py::object process_group = python_names().new_group(members.ranks);
    return backend_over(process_group, std::move(members), c10::kCPU);
  }

 private:
  /// The world that such threads work for.
  static inline std::atomic<const TorchWorld*> worked_for_{nullptr};
};

GroupPtr group_over(
    const py::object& process_group,
    GroupMembers members,
    c10::Device device) {
  if (members.ranks.size() == 1) {
    return std::make_shared<Group>(std::move(members));
  }
  const std::string label = members.label;
  return std::make_shared<Group>(
      releasing_gil(backend_over(process_group, std::move(members), device)),
      label);
}

/// Makes the engine's mesh over the process groups of a DeviceMesh, one for
/// each mesh dimension. Without process groups, makes groups of this world.
Mesh make_mesh(
    c10::Device device,
    const std::vector<int64_t>& shape,
    const std::vector<int64_t>& ranks,
    const std::vector<std::string>& names,
    const std::vector<std::pair<py::object, std::vector<int64_t>>>&
        process_groups) {
  if (process_groups.empty()) {
    return {
        without_gil([&] {
          return make_device_mesh(device.type(), shape, ranks, names);
        }),
        &current_world()};
  }
  std::vector<GroupPtr> groups;
  for (const auto& [process_group, members] : process_groups) {
    const size_t dim = groups.size();
    const auto here = std::find(members.begin(), members.end(), get_rank());
    groups.push_back(group_over(
        process_group,
        {members,
         here - members.begin(),
         names.empty() ? std::to_string(dim) : names[dim]},
        device));
  }
  return {
      from_group(groups, device.type(), shape, ranks, names), &current_world()};
}

/// Makes this process a rank of the engine's own world. Its ranks rendezvous in
/// `store`.
void join_world(
    const std::string& backend,
    const c10::intrusive_ptr<c10d::Store>& store,
    int64_t rank,
    int64_t size,
    std::chrono::milliseconds timeout) {
  ProcessGroupOptions options;
  options.backend = backend;
  options.rank = rank;
  options.world_size = size;
  options.store = store;
  options.timeout = timeout;
  without_gil([&] {
    init_process_group(options);
    wrap_backends(releasing_gil);
  });
}

/// Calls fn(rank) on each rank. If a rank raises, all ranks end.
void run_python_ranks(int64_t ranks, const py::function& fn) {
  without_gil([&] {
    run_ranks(ranks, [&](int64_t rank) {
      wrap_backends(releasing_gil);
      const py::gil_scoped_acquire gil;
      try {
        fn(rank);
      } catch (const py::error_already_set& error) {
        // The caller's thread must not hold an exception of this thread.
        throw std::runtime_error(error.what());
      }
    });
  });
}

} // namespace

void bind_worlds(py::module_& module) {
  py::class_<Mesh>(module, "Mesh");
  py::class_<TorchWorld, std::shared_ptr<TorchWorld>>(module, "TorchWorld")
      .def(py::init<int64_t, int64_t>(), py::arg("rank"), py::arg("size"))
      .def("enter_threads", &TorchWorld::enter_threads)
      .def("end", [](TorchWorld& world) {
        world.leave_threads();
        forget_world(world);
        without_gil([&] { world.end(); });
      });
  py::class_<WorldScope>(module, "EnteredWorld")
      .def(py::init([](const std::shared_ptr<TorchWorld>& world) {
        auto entered = std::make_unique<WorldScope>(world);
        wrap_backends(releasing_gil);
        return entered;
      }));
  module.def("join_world", &join_world);
  module.def("leave_world", [] {
    forget_world(current_world());
    without_gil([] { destroy_process_group(); });
  });
  module.def("forget_world", [] { forget_world(current_world()); });
  module.def("in_own_world", [] { return is_initialized(); });
  module.def("get_rank", &get_rank);
  module.def("get_world_size", &get_world_size);
  module.def("make_mesh", &make_mesh);
  module.def("run_ranks", &run_python_ranks);
  module.def("c10d_backend", [](const std::vector<int64_t>& ranks) {
    return without_gil(
        [&] { return c10d_backend(new_group(ranks, "process group")); });
  });
}

void bind_names(py::module_& module) {
  module.def("set_python_names", [](const py::dict& given) {
    PythonNames& names = python_names();
    names.shard = given["Shard"];
    names.replicate = given["Replicate"];
    names.partial = given["Partial"];
    names.strided_shard = given["StridedShard"];
    names.unit_shard = given["UnitShard"];
    names.unit_strided_shard = given["UnitStridedShard"];
    names.replicate_value = names.replicate();
    names.plain_placement = given["plain_placement"];
    names.engine_mesh = given["engine_mesh"];
    names.current_mesh = given["current_mesh"];
    names.new_group = given["new_group"];
    names.python_group = given["python_group"];
    names.make_spec = given["make_spec"];
  });
}

} // namespace dtensor::python
