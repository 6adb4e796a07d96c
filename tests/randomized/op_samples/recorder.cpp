// SPDX-License-Identifier: BSD-3-Clause
// Python extension, loaded by write_samples.py. While recording is on, it
// writes every operator that Python calls, with its arguments, above autograd.
// Operators called by these operators are not written. Uninitialized memory
// (torch.empty) is filled with zeros, so the file is deterministic.
#include "sample_file.h"

#include <ATen/record_function.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <cstring>
#include <fstream>
#include <map>
#include <set>

namespace dtensor::randomized {
namespace {

constexpr int64_t kMaxElements = 1024;

struct Recorder {
  std::ofstream file;
  std::set<std::string> seen;
  // For each overload and first dtype, the number of samples still allowed, and
  // the number that the current operator of op_db may add.
  std::map<std::string, int> count;
  int per_overload = 0;
  int per_overload_and_entry = 0;
  std::map<std::string, int> count_of_entry;
  int depth = 0;
  int written = 0;
};

Recorder& recorder() {
  static Recorder instance;
  return instance;
}

// Fills the memory of each new tensor with zeros.
class ZeroingAllocator final : public c10::Allocator {
 public:
  explicit ZeroingAllocator(c10::Allocator& base) : base_(base) {}

  c10::DataPtr allocate(size_t bytes) override {
    auto memory = base_.allocate(bytes);
    if (bytes > 0) {
      std::memset(memory.get(), 0, bytes);
    }
    return memory;
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return base_.raw_deleter();
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    base_.copy_data(to, from, bytes);
  }

 private:
  c10::Allocator& base_;
};

// Takes effect for the rest of the process.
void zero_new_tensors() {
  constexpr uint8_t kAboveAllOthers = 255;
  static ZeroingAllocator allocator(*c10::GetCPUAllocator());
  c10::SetCPUAllocator(&allocator, kAboveAllOthers);
}

const at::Tensor* first_tensor(c10::ArrayRef<const c10::IValue> arguments) {
  for (const auto& argument : arguments) {
    if (argument.isTensor() && argument.toTensor().defined()) {
      return &argument.toTensor();
    }
  }
  return nullptr;
}

void record(
    const c10::FunctionSchema& schema,
    c10::ArrayRef<const c10::IValue> arguments) {
  auto& r = recorder();
  const auto& name = schema.name();
  const auto& overload = schema.overload_name();
  const auto* first = first_tensor(arguments);
  const auto limited = name + "." + overload + " " +
      (first == nullptr ? "" : c10::toString(first->scalar_type()));
  if (r.count[limited] >= r.per_overload ||
      r.count_of_entry[limited] >= r.per_overload_and_entry) {
    return;
  }
  const auto bytes = to_bytes(name, overload, arguments, kMaxElements);
  const auto signature = signature_of(name, overload, arguments);
  if (!bytes || !r.seen.insert(signature).second) {
    return;
  }
  ++r.count[limited];
  ++r.count_of_entry[limited];
  ++r.written;
  append_to_file(r.file, *bytes);
}

std::unique_ptr<at::ObserverContext> on_begin(const at::RecordFunction& call) {
  auto& r = recorder();
  if (r.depth++ > 0) {
    return nullptr;
  }
  const at::DisableRecordFunctionGuard quiet;
  const auto schema = call.operator_schema();
  if (schema && schema->name().rfind("aten::", 0) == 0) {
    record(*schema, call.inputs());
  }
  return nullptr;
}

void on_end(const at::RecordFunction&, at::ObserverContext*) {
  --recorder().depth;
}

} // namespace
} // namespace dtensor::randomized

extern "C" {

void op_samples_open(const char* path, int per_overload) {
  dtensor::randomized::zero_new_tensors();
  auto& r = dtensor::randomized::recorder();
  r.file.open(path, std::ios::binary);
  r.per_overload = per_overload;
}

// Starts the next entry of op_db, which may add `per_overload` samples to each
// overload.
void op_samples_entry(int per_overload) {
  auto& r = dtensor::randomized::recorder();
  r.count_of_entry.clear();
  r.per_overload_and_entry = per_overload;
}

uint64_t op_samples_start() {
  dtensor::randomized::recorder().depth = 0;
  return at::addThreadLocalCallback(
      at::RecordFunctionCallback(
          dtensor::randomized::on_begin, dtensor::randomized::on_end)
          .needsInputs(true)
          .scopes({at::RecordScope::FUNCTION}));
}

void op_samples_stop(uint64_t handle) {
  at::removeCallback(handle);
}

int op_samples_close() {
  auto& r = dtensor::randomized::recorder();
  r.file.close();
  return r.written;
}
}
