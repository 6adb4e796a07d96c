// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/deferred/tape_impl.h>

#include <dtensor/error.h>
#include <dtensor/ops/path/stack_impl.h>
#include <dtensor/tensor/is_dtensor.h>
#include <dtensor/tensor/meta_impl.h>

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace dtensor::detail {
namespace {

constexpr auto kMeta = c10::DeviceType::Meta;

// Stands in for a deferred tensor in recorded arguments. The tape must not hold
// deferred tensors, which hold the tape.
const at::Tensor& stand_in() {
  static const auto* t =
      new at::Tensor(at::empty({0}, at::TensorOptions().device(kMeta)));
  return *t;
}

const c10::StorageImpl* storage_of(const at::Tensor& t) {
  return t.storage().unsafeGetStorageImpl();
}

// Returns null if the operator has no argument called `name`.
template <class Value>
Value*
argument(const c10::FunctionSchema& schema, const char* name, Value* args) {
  const auto at = schema.argumentIndexWithName(name);
  return at ? args + *at : nullptr;
}

// Converts the arguments to the meta device. Returns the device that the call
// requested, if any.
std::optional<c10::Device> to_meta(
    const c10::FunctionSchema& schema,
    torch::jit::Stack& args) {
  map_tensors(args.data(), args.size(), [](const at::Tensor& t, size_t) {
    return deferred_of(t) == nullptr ? empty_twin(t, kMeta) : t;
  });
  if (auto* pin_memory = argument(schema, "pin_memory", args.data())) {
    *pin_memory = c10::IValue();
  }
  auto* device = argument(schema, "device", args.data());
  if (device == nullptr) {
    return std::nullopt;
  }
  const auto requested_device = std::exchange(*device, c10::Device(kMeta));
  return requested_device.isDevice() && !requested_device.toDevice().is_meta()
      ? std::make_optional(requested_device.toDevice())
      : std::nullopt;
}

// True for randperm, which has no meta kernel in LibTorch.
bool is_randperm(const c10::OperatorHandle& op, const torch::jit::Stack& args) {
  return op.schema().name() == "aten::randperm" && args[0].isInt() &&
      args[0].toInt() >= 0 && op.schema().argumentIndexWithName("device");
}

at::Tensor randperm_on_meta(
    const c10::FunctionSchema& schema,
    const torch::jit::Stack& args) {
  const auto& dtype = *argument(schema, "dtype", args.data());
  return at::empty(
      {args[0].toInt()},
      at::TensorOptions(kMeta).dtype(
          dtype.isNone() ? at::kLong : dtype.toScalarType()));
}

// True for operators such as "relu_", which return their first argument in its
// shape. (In-place operators that change the shape have meta kernels.)
bool is_in_place(const c10::FunctionSchema& schema) {
  const auto& arguments = schema.arguments();
  return schema.name().ends_with('_') && schema.returns().size() == 1 &&
      is_written(schema.returns()[0]) && is_written(arguments[0]) &&
      std::none_of(arguments.begin() + 1, arguments.end(), is_written);
}

// Runs the call, with its arguments on the stack, on the meta device. Returns
// false if the call needs values.
bool runs(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const auto self = stack.empty() ? c10::IValue() : stack[0];
  try {
    if (is_randperm(op, stack)) {
      stack = {randperm_on_meta(op.schema(), stack)};
      return true;
    }
    op.callBoxed(&stack);
  } catch (const c10::NotImplementedError&) {
    if (!is_in_place(op.schema())) {
      return false;
    }
    stack = {self};
  } catch (const c10::Error&) {
    return false;
  }
  const auto results = tensors_in(stack);
  return std::ranges::all_of(
      results, [](const auto& t) { return t.is_meta(); });
}

bool all_zero(const void* data, size_t bytes) {
  const auto* first = static_cast<const char*>(data);
  return bytes == 0 ||
      (*first == 0 && std::memcmp(first, first + 1, bytes - 1) == 0);
}

} // namespace

const Deferred* deferred_of(const at::Tensor& t) {
  return t.defined() && t.is_meta() && !is_dtensor(t)
      ? dynamic_cast<const Deferred*>(
            t.unsafeGetTensorImpl()->get_backend_meta())
      : nullptr;
}

// Records the storage of a value. Also called after an operator replaced the
// tensor's storage.
void Tape::note_memory(size_t value, const at::Tensor& t) {
  const auto [known, is_new] =
      storages_.try_emplace(storage_of(t), t.storage(), value);
  if (!is_new) {
    memory_.unite(value, known->second.second);
  }
}

size_t Tape::add_value(const at::Tensor& t, c10::Device device) {
  const auto value = values_.size();
  values_.push_back(
      {Sizes(t.sizes()), Sizes(t.strides()), t.scalar_type(), device});
  memory_.add_one();
  note_memory(value, t);
  t.unsafeGetTensorImpl()->set_backend_meta(
      c10::make_intrusive<Deferred>(shared_from_this(), value, device));
  return value;
}

void Tape::open(size_t call, const at::Tensor& t) {
  const auto bytes = t.storage().nbytes();
  if (bytes == 0 || bytes > kMostOpenBytes) {
    return;
  }
  auto* memory = std::calloc(bytes, 1);
  DTENSOR_CHECK(
      memory != nullptr,
      "[DeferredInit] cannot allocate {} bytes. Free some memory.",
      bytes);
  t.storage().set_data_ptr_noswap(
      {memory, memory, &std::free, c10::Device(kMeta)});
  open_.emplace(storage_of(t), call);
}

void Tape::close(const c10::StorageImpl* storage) {
  const auto found = open_.find(storage);
  if (found == open_.end()) {
    return;
  }
  const auto& held = storages_.at(storage).first;
  auto data = held.set_data_ptr({nullptr, c10::Device(kMeta)});
  if (!all_zero(data.get(), held.nbytes())) {
    calls_[found->second].contents = std::move(data);
  }
  open_.erase(found);
}

void Tape::close_all() {
  while (!open_.empty()) {
    close(open_.begin()->first);
  }
}

// Returns the call before it runs; empty if the call writes a real tensor.
std::optional<TapeCall> Tape::described(
    const c10::OperatorHandle& op,
    c10::ArrayRef<c10::IValue> args) const {
  TapeCall call{op, args.vec(), {}, {}, {}, {}, {}, {}, {}};
  bool writes_real = false;
  visit_tensors(args, [&](const at::Tensor& t, size_t arg, int) {
    const auto* note = deferred_of(t);
    const bool writes = is_written(op.schema().arguments()[arg]);
    call.inputs.push_back(note == nullptr ? kReal : note->value);
    call.versions.push_back(note == nullptr ? version_of(t) : 0);
    writes_real |= note == nullptr && writes;
    if (note != nullptr && writes) {
      call.written.push_back(note->value);
    }
  });
  map_tensors(
      call.args.data(), args.size(), [&](const at::Tensor& t, size_t i) {
        return call.inputs[i] == kReal ? t : stand_in();
      });
  return writes_real ? std::nullopt : std::make_optional(std::move(call));
}

size_t Tape::value_of_result(
    const at::Tensor& t,
    const std::vector<at::Tensor>& inputs,
    c10::Device device) {
  const bool is_input = std::ranges::any_of(
      inputs, [&](const at::Tensor& input) { return input.is_same(t); });
  if (is_input && deferred_of(t) != nullptr) {
    return deferred_of(t)->value;
  }
  return add_value(t, device);
}

bool Tape::record(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto count = op.schema().arguments().size();
  auto call = described(op, last_args(*stack, count));
  if (!call) {
    return false;
  }
  const auto inputs = tensors_in(last_args(*stack, count));
  std::optional<c10::Device> device;
  for (const auto& t : inputs) {
    if (const auto* note = deferred_of(t)) {
      device = device.value_or(note->device);
      close(storage_of(t));
    }
  }
  torch::jit::Stack on_meta = last_args(*stack, count).vec();
  const auto requested_device = to_meta(op.schema(), on_meta);
  if (!runs(op, on_meta)) {
    return false;
  }
  for (const auto& t : tensors_in(on_meta)) {
    call->outputs.push_back(value_of_result(
        t, inputs, requested_device.value_or(device.value_or(at::kCPU))));
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (const auto value = call->inputs[i]; value != kReal) {
      note_memory(value, inputs[i]);
    }
  }
  if (!call->outputs.empty() || !call->written.empty()) {
    calls_.push_back(*std::move(call));
    if (name_of(op.operator_name()) == "aten::empty.memory_format") {
      open(calls_.size() - 1, on_meta.back().toTensor());
    }
  }
  torch::jit::drop(*stack, count);
  stack->insert(stack->end(), on_meta.begin(), on_meta.end());
  return true;
}

void set_device_argument(
    const c10::FunctionSchema& schema,
    c10::IValue* args,
    c10::Device device) {
  auto* requested_device = argument(schema, "device", args);
  if (requested_device != nullptr && requested_device->isDevice() &&
      requested_device->toDevice().is_meta()) {
    *requested_device = device;
  }
}

} // namespace dtensor::detail
