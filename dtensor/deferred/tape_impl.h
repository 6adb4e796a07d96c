// SPDX-License-Identifier: BSD-3-Clause
// The tape of a DeferredInit scope: operators in call order, and the tensors
// that they created and wrote. Deferred tensors share ownership of the tape, so
// the tape is freed with the last of these tensors.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/Storage.h>
#include <dtensor/layout/spec.h>
#include <dtensor/random/sample_impl.h>
#include <dtensor/tensor/tensor_replacement_impl.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

namespace dtensor::detail {

/// A partition of the numbers from 0, initially singletons.
class UnionFind {
 public:
  void add_one() {
    parents_.push_back(parents_.size());
  }
  /// Returns the representative of the set that contains `member`.
  size_t find(size_t member) const {
    while (parents_[member] != member) {
      member = parents_[member] = parents_[parents_[member]];
    }
    return member;
  }
  void unite(size_t a, size_t b) {
    parents_[find(a)] = find(b);
  }

 private:
  mutable std::vector<size_t> parents_; // with path halving in find()
};

class Tape;

/// Maximum size of a new tensor that is backed by memory, initially zeros.
constexpr size_t kMostOpenBytes = size_t{16} << 20;

/// Returns true if this thread is in a DeferredInit scope.
bool is_deferring();

/// A note on a deferred tensor: its tape, and its value on the tape. set_data()
/// and data() copy the note.
struct Deferred final : MetaNote {
  Deferred(std::shared_ptr<Tape> of, size_t number, c10::Device meant_for)
      : MetaNote(meant_for),
        tape(std::move(of)),
        value(number) {}
  std::shared_ptr<Tape> tape;
  size_t value;
};

/// Returns the note of `t`, or null if `t` is not deferred.
const Deferred* deferred_of(const at::Tensor& t);

/// The shape, dtype and device of a created tensor.
struct TapeValue {
  Sizes sizes;
  Sizes strides;
  at::ScalarType dtype;
  c10::Device device; // the intended device
};

/// State of a random generator before a call drew for the first time. Every
/// replay of the call starts from this state.
template <class State>
struct FirstDraw {
  std::optional<State> before;
  bool is_done = false; // false if the call failed
};

/// A recorded call of an operator.
struct TapeCall {
  c10::OperatorHandle op;
  /// Arguments, with a stand-in for each deferred tensor.
  std::vector<c10::IValue> args;
  /// Value of each tensor among the arguments. kReal: a real tensor, stored in
  /// `args`, with version `versions[i]` when the call was recorded.
  std::vector<size_t> inputs;
  std::vector<uint32_t> versions;
  /// Value of each tensor among the results.
  std::vector<size_t> outputs;
  /// Inputs whose memory the call wrote.
  std::vector<size_t> written;
  /// Data that a program wrote through a pointer to a new tensor's memory.
  c10::DataPtr contents;
  FirstDraw<at::Generator> generator; // the rank's, for plain tensors
  FirstDraw<Draw> draw;               // the rank's stream, for DTensors
};

class Tape : public std::enable_shared_from_this<Tape> {
 public:
  static constexpr size_t kReal = static_cast<size_t>(-1);

  /// Runs the call with its arguments on top of the stack on the meta device,
  /// and records it. Returns false, with the stack unchanged, if the call needs
  /// values.
  bool record(const c10::OperatorHandle& op, torch::jit::Stack* stack);

  std::vector<TapeCall>& calls() {
    return calls_;
  }
  const std::vector<TapeValue>& values() const {
    return values_;
  }
  /// Sets of values that share memory.
  const UnionFind& memory() const {
    return memory_;
  }

  /// Releases the memory of all new tensors, and stores its contents in their
  /// calls.
  void close_all();

 private:
  std::optional<TapeCall> described(
      const c10::OperatorHandle& op,
      c10::ArrayRef<c10::IValue> args) const;
  size_t value_of_result(
      const at::Tensor& t,
      const std::vector<at::Tensor>& inputs,
      c10::Device device);
  size_t add_value(const at::Tensor& t, c10::Device device);
  void note_memory(size_t value, const at::Tensor& t);
  void open(size_t call, const at::Tensor& t);
  void close(const c10::StorageImpl* storage);

  std::vector<TapeCall> calls_;
  std::vector<TapeValue> values_;
  UnionFind memory_;
  // The first value of each storage. The tape keeps storages alive so that
  // their addresses are not reused.
  std::map<const c10::StorageImpl*, std::pair<c10::Storage, size_t>> storages_;
  // New tensors that are backed by memory, and the calls that created them.
  std::map<const c10::StorageImpl*, size_t> open_;
};

/// A requested value and its layout.
struct RequestedValue {
  size_t value = 0;
  SpecPtr spec; // null: plain
};

/// Replaces the device argument by `device`: programs that copy options from a
/// deferred tensor would request the meta device.
void set_device_argument(
    const c10::FunctionSchema& schema,
    c10::IValue* args,
    c10::Device device);

/// Plays the calls that the `wanted` values depend on; each rank computes only
/// its local shards where possible. A result is a DTensor of its spec, or plain
/// if its spec is null. With `all_draws`, the rank's default generator ends in
/// the state that it would have reached without the scope.
std::vector<at::Tensor>
play(Tape& tape, const std::vector<RequestedValue>& wanted, bool all_draws);

} // namespace dtensor::detail
