// SPDX-License-Identifier: BSD-3-Clause
// Loaded into Python by write_samples.py: writes every operator that Python
// calls while recording is on, with its arguments, above autograd. Operators
// that these call are not written.
#include "sample_file.h"

#include <ATen/record_function.h>

#include <fstream>
#include <map>
#include <set>

namespace dtensor::nets {
namespace {

constexpr int64_t kMaxElements = 1024;

struct Recorder {
  std::ofstream file;
  std::set<std::string> seen;
  // How many samples an overload may still have with this first dtype; and
  // how many this operator of op_db adds.
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
} // namespace dtensor::nets

extern "C" {

void op_samples_open(const char* path, int per_overload) {
  auto& r = dtensor::nets::recorder();
  r.file.open(path, std::ios::binary);
  r.per_overload = per_overload;
}

// The next entry of op_db, which adds so many samples to each overload.
void op_samples_entry(int per_overload) {
  auto& r = dtensor::nets::recorder();
  r.count_of_entry.clear();
  r.per_overload_and_entry = per_overload;
}

uint64_t op_samples_start() {
  dtensor::nets::recorder().depth = 0;
  return at::addThreadLocalCallback(
      at::RecordFunctionCallback(dtensor::nets::on_begin, dtensor::nets::on_end)
          .needsInputs(true)
          .scopes({at::RecordScope::FUNCTION}));
}

void op_samples_stop(uint64_t handle) {
  at::removeCallback(handle);
}

int op_samples_close() {
  auto& r = dtensor::nets::recorder();
  r.file.close();
  return r.written;
}
}
