// SPDX-License-Identifier: BSD-3-Clause
// A DeferredInit scope includes a dispatch key. The key's fallback receives
// every operator of the thread, before autograd and before composite operators
// decompose. The scope does not use the ranks' key (DeferredInit), because
// nearly all operators fall through that key, and no operator may fall through
// the scope's key. DTensors on the meta device have the scope's key even
// outside a scope.
#include <dtensor/deferred/deferred_init.h>

#include <c10/util/StringUtil.h>
#include <dtensor/deferred/tape_impl.h>
#include <dtensor/error.h>
#include <dtensor/ops/path/stack_impl.h>
#include <dtensor/ops/unsharded/interceptor_impl.h>
#include <dtensor/parallel/plan/module_claim_impl.h>
#include <dtensor/parallel/state/state_values_impl.h>
#include <dtensor/tensor/meta_impl.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <string>
#include <utility>

namespace dtensor {
namespace detail {
namespace {

// The tape of this thread's deferred tensors, while there are any.
thread_local std::weak_ptr<Tape> latest;

std::shared_ptr<Tape> this_tape() {
  auto tape = latest.lock();
  if (tape == nullptr) {
    tape = std::make_shared<Tape>();
    latest = tape;
  }
  return tape;
}

// Returns true for operators that create a tensor without input data. from_file
// reads data.
bool is_factory(const c10::FunctionSchema& schema) {
  return schema.name() != "aten::from_file" &&
      schema.argumentIndexWithName("device").has_value();
}

// Returns true if the call creates or uses deferred tensors.
bool is_to_defer(
    const c10::OperatorHandle& op,
    const Tape& tape,
    c10::ArrayRef<c10::IValue> args) {
  bool any = false;
  bool any_deferred = false;
  visit_tensors(args, [&](const at::Tensor& t, size_t, int) {
    any = true;
    if (const auto* note = deferred_of(t)) {
      DTENSOR_CHECK(
          note->tape.get() == &tape,
          "[DeferredInit] {} uses a tensor that another thread deferred. "
          "Materialize it first.",
          name_of(op.operator_name()));
      any_deferred = true;
    }
  });
  return any ? any_deferred : is_factory(op.schema());
}

// Temporarily closes the scope.
class NotDeferring {
 public:
  NotDeferring() : outer_(is_deferring()) {
    c10::impl::tls_set_dispatch_key_included(kInterceptKey, false);
  }
  ~NotDeferring() {
    c10::impl::tls_set_dispatch_key_included(kInterceptKey, outer_);
  }
  NotDeferring(const NotDeferring&) = delete;
  NotDeferring& operator=(const NotDeferring&) = delete;

 private:
  bool outer_;
};

// Runs the operator on the values of its deferred arguments. The arguments are
// on top of the stack. The arguments are played as plain tensors, and the
// results are real tensors.
void call_on_values(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto count = schema.arguments().size();
  std::shared_ptr<Tape> tape;
  std::vector<RequestedValue> wanted;
  c10::Device device = at::kCPU;
  visit_tensors(
      last_args(*stack, count), [&](const at::Tensor& t, size_t arg, int) {
        const auto* note = deferred_of(t);
        if (note == nullptr) {
          return;
        }
        DTENSOR_CHECK_NOT_IMPLEMENTED(
            !is_written(schema.arguments()[arg]),
            "[DeferredInit] {} writes a deferred tensor and needs its values. "
            "Call it after materialize().",
            name_of(op.operator_name()));
        tape = note->tape;
        device = note->device;
        wanted.push_back({note->value, nullptr});
      });
  const auto values =
      tape == nullptr ? std::vector<at::Tensor>() : play(*tape, wanted, false);
  size_t next = 0;
  set_device_argument(schema, stack->data() + (stack->size() - count), device);
  map_tensors(
      stack->data() + (stack->size() - count),
      count,
      [&](const at::Tensor& t, size_t) {
        return deferred_of(t) == nullptr ? t : values[next++];
      });
  op.callBoxed(stack);
}

void intercept_call(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack) {
  const NotDeferring guard;
  const auto tape = this_tape();
  if (!is_to_defer(
          op, *tape, last_args(*stack, op.schema().arguments().size()))) {
    go_on(op, keys, stack);
  } else if (!tape->record(op, stack)) {
    call_on_values(op, stack);
  }
}

constexpr const char* kMaterialize = "materialize";

using Named = std::vector<std::pair<std::string, at::Tensor>>;

void check_deferred(const Named& tensors) {
  std::vector<std::string> strange;
  for (const auto& [name, t] : tensors) {
    if (!is_deferred(t)) {
      strange.push_back(name);
    }
  }
  DTENSOR_CHECK_VALUE(
      strange.empty(),
      "[{}] cannot materialize meta tensors that were not created in a "
      "DeferredInit scope: {}. Create them in a scope, or fill them with "
      "load_weights() or set_model_state_dict().",
      kMaterialize,
      c10::Join(", ", strange));
}

struct TensorsOfTape {
  std::shared_ptr<Tape> tape;
  std::vector<RequestedValue> wanted;
  std::vector<at::Tensor> tensors;
};

// Groups the tensors by tape, in the order of the tensors, which is equal on
// all ranks.
std::vector<TensorsOfTape> by_tape(const Named& tensors) {
  std::vector<TensorsOfTape> parts;
  for (const auto& [name, t] : tensors) {
    const auto& note = *deferred_of(plain_meta_of(t));
    auto found = std::ranges::find(parts, note.tape, &TensorsOfTape::tape);
    if (found == parts.end()) {
      found = parts.insert(parts.end(), {note.tape, {}, {}});
    }
    found->wanted.push_back({note.value, is_dtensor(t) ? spec_of(t) : nullptr});
    found->tensors.push_back(t);
  }
  return parts;
}

void materialize_tensors(const Named& tensors) {
  DTENSOR_CHECK(
      !is_deferring(),
      "[{}] a DeferredInit scope is open. Let it end first.",
      kMaterialize);
  check_deferred(tensors);
  for (const auto& part : by_tape(tensors)) {
    const bool is_plain = std::ranges::all_of(
        part.wanted, [](const auto& w) { return w.spec == nullptr; });
    const auto made = play(*part.tape, part.wanted, is_plain);
    for (size_t i = 0; i < made.size(); ++i) {
      replace_tensor_impl(part.tensors[i], made[i]);
    }
  }
}

} // namespace

bool is_deferring() {
  return c10::impl::tls_is_dispatch_key_included(kInterceptKey);
}

} // namespace detail

DeferredInit::DeferredInit() : outer_(detail::is_deferring()) {
  detail::set_interceptor(&detail::intercept_call);
  c10::impl::tls_set_dispatch_key_included(detail::kInterceptKey, true);
}

DeferredInit::~DeferredInit() {
  c10::impl::tls_set_dispatch_key_included(detail::kInterceptKey, outer_);
}

bool is_deferred(const at::Tensor& t) {
  return t.defined() && t.is_meta() &&
      detail::deferred_of(detail::plain_meta_of(t)) != nullptr;
}

void materialize(torch::nn::Module& module) {
  const detail::ModuleClaim claim(detail::kMaterialize, module);
  detail::Named tensors;
  for (const auto& item : detail::tensors_of(detail::kMaterialize, module)) {
    if (item.value().is_meta()) {
      tensors.emplace_back(item.key(), item.value());
    }
  }
  detail::materialize_tensors(tensors);
}

void materialize(c10::ArrayRef<at::Tensor> given) {
  detail::Named tensors;
  for (size_t i = 0; i < given.size(); ++i) {
    if (given[i].defined() && given[i].is_meta()) {
      tensors.emplace_back(c10::str("tensor ", i), given[i]);
    }
  }
  detail::materialize_tensors(tensors);
}

} // namespace dtensor
