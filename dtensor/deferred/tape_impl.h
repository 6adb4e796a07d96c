// SPDX-License-Identifier: BSD-3-Clause
// What was done in a DeferredInit scope: operators in their order, and the
// tensors that they made and wrote. The deferred tensors hold the tape, and it
// goes with the last of them.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/Storage.h>
#include <dtensor/deferred/union_find_impl.h>
#include <dtensor/layout/spec.h>
#include <dtensor/random/sample_impl.h>
#include <dtensor/tensor/become_impl.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

namespace dtensor::detail {

class Tape;

/// Up to this size a new tensor has memory behind it, zeros at first.
constexpr size_t kMostOpenBytes = size_t{16} << 20;

/// Whether this thread is in a DeferredInit scope.
bool is_deferring();

/// Which value of which tape a tensor is. A tensor that takes another one over
/// (set_data(), data()) takes its note along.
struct Deferred final : MetaNote {
  Deferred(std::shared_ptr<Tape> of, size_t number, c10::Device meant_for)
      : MetaNote(meant_for),
        tape(std::move(of)),
        value(number) {}
  std::shared_ptr<Tape> tape;
  size_t value;
};

/// Null for other tensors.
const Deferred* deferred_of(const at::Tensor& t);

/// A tensor that was made, as it was then.
struct TapeValue {
  Sizes sizes;
  Sizes strides;
  at::ScalarType dtype;
  c10::Device device; // that it is meant for
};

/// Where random numbers stood before a call drew for the first time. Whenever
/// it is played, it draws the same ones.
template <class State>
struct FirstDraw {
  std::optional<State> before;
  bool is_done = false; // else the call has failed
};

/// An operator that was called.
struct TapeCall {
  c10::OperatorHandle op;
  /// With a stand-in for each deferred tensor.
  std::vector<c10::IValue> args;
  /// Values, in the order of the tensors among the arguments; kReal: the one
  /// that is there, in version `versions[i]` when it was used.
  std::vector<size_t> inputs;
  std::vector<uint32_t> versions;
  /// Values, in the order of the tensors among the results.
  std::vector<size_t> outputs;
  /// Of the inputs, those whose memory it wrote.
  std::vector<size_t> written;
  /// What a program wrote through a pointer into the memory of a new tensor.
  c10::DataPtr contents;
  FirstDraw<at::Generator> generator; // the rank's, for plain tensors
  FirstDraw<Draw> draw;               // the rank's stream, for DTensors
};

class Tape : public std::enable_shared_from_this<Tape> {
 public:
  static constexpr size_t kReal = static_cast<size_t>(-1);

  /// Does the call whose arguments are the last on the stack on the meta
  /// device, and writes it down. False, with the stack as it was, if it cannot
  /// be done without values.
  bool record(const c10::OperatorHandle& op, torch::jit::Stack* stack);

  std::vector<TapeCall>& calls() {
    return calls_;
  }
  const std::vector<TapeValue>& values() const {
    return values_;
  }
  /// Values of one set share memory.
  const UnionFind& memory() const {
    return memory_;
  }

  /// Takes away the memory behind all new tensors, and keeps what was written
  /// there.
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
  // The first value of each memory, which lives as long as the tape, so that no
  // other gets its address.
  std::map<const c10::StorageImpl*, std::pair<c10::Storage, size_t>> storages_;
  // New tensors with memory behind them, and the call that made them.
  std::map<const c10::StorageImpl*, size_t> open_;
};

/// A value, and what it is to become.
struct Wanted {
  size_t value = 0;
  SpecPtr spec; // null: a plain tensor
};

/// Options that a program takes from a deferred tensor ask for the meta device:
/// puts `device` there.
void ask_for(
    const c10::FunctionSchema& schema,
    c10::IValue* args,
    c10::Device device);

/// Does what leads to them, each rank what its parts need. A result is plain if
/// no spec was given, else a DTensor of that spec. With `all_draws` the rank's
/// default generator stands afterwards where it would without the scope.
std::vector<at::Tensor>
play(Tape& tape, const std::vector<Wanted>& wanted, bool all_draws);

/// The operator on what its deferred arguments, the last on the stack, will be:
/// they are played, plain, and it leaves real results.
void call_on_values(const c10::OperatorHandle& op, torch::jit::Stack* stack);

} // namespace dtensor::detail
