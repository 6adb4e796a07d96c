// SPDX-License-Identifier: BSD-3-Clause
#include "python_backend.h"

#include <ATen/core/grad_mode.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <stdexcept>
#include <utility>
#include <vector>

namespace dtensor::python {
namespace {

namespace py = pybind11;
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

} // namespace

c10::intrusive_ptr<c10d::Backend>
python_backend(py::object group, int rank, int size, std::string name) {
  return c10::make_intrusive<PythonBackend>(
      std::move(group), rank, size, std::move(name));
}

} // namespace dtensor::python
