// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/ops/asked_first_impl.h>

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/registry.h>
#include <dtensor/ops/stack_impl.h>
#include <dtensor/ops/whole_source_impl.h>
#include <dtensor/tensor/no_data_impl.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>
#include <vector>

namespace dtensor::detail {
namespace {

std::atomic<SeesOperator> sees_all{nullptr};

// The parameters of one call, whose wholes it has until it is over.
class Wholes {
 public:
  Wholes() = default;
  Wholes(const Wholes&) = delete;
  Wholes& operator=(const Wholes&) = delete;
  ~Wholes() {
    for (const auto& source : taken_) {
      source->give_back({});
    }
  }
  at::Tensor take(const at::Tensor& parameter) {
    auto source = held_source_of(parameter);
    auto whole = source->take();
    taken_.push_back(std::move(source));
    return whole;
  }
  void give_back(at::TensorList results) {
    for (const auto& source : std::exchange(taken_, {})) {
      source->give_back(results);
    }
  }
  std::optional<at::ScalarType> operand_dtype() const {
    return taken_[0]->operand_dtype();
  }

 private:
  std::vector<std::shared_ptr<WholeSource>> taken_;
};

// A plain tensor, or one of the ranks that have the whole among them.
bool is_foreign_to(const at::Tensor& t, const DeviceMesh& mesh) {
  return is_dtensor(t) ? spec_of(t)->mesh().identity() != mesh.identity()
                       : t.dim() > 0;
}

// Who writes to a parameter, or sees nothing beside it (an optimizer), means
// the parts.
bool wants_wholes(
    const c10::FunctionSchema& schema,
    c10::ArrayRef<c10::IValue> args) {
  const DeviceMesh* mesh = nullptr;
  bool writes = false;
  bool open = false;
  visit_tensors(args, [&](const at::Tensor& t, size_t arg, int) {
    if (auto* source = whole_source_of(t)) {
      mesh = &spec_of(t)->mesh();
      open |= source->is_open();
      if (is_written(schema.arguments()[arg])) {
        writes = true;
        source->note_write();
      }
    }
  });
  if (mesh == nullptr || writes || open) {
    return mesh != nullptr && !writes;
  }
  bool foreign = false;
  visit_tensors(args, [&](const at::Tensor& t, size_t, int) {
    foreign |= whole_source_of(t) == nullptr && is_foreign_to(t, *mesh);
  });
  return foreign;
}

// The source of a view of a parameter, as torch::nn::Linear multiplies by
// weight.t(): the same view of the whole. Of a copy (`weight.to(dtype)`) only
// while it has the values that the parameter has.
class ViewOfWhole final : public WholeSource {
 public:
  ViewOfWhole(
      std::shared_ptr<WholeSource> base,
      const c10::OperatorHandle& op,
      torch::jit::Stack args,
      bool is_copy)
      : base_(std::move(base)),
        op_(op),
        args_(std::move(args)),
        is_copy_(is_copy),
        copied_from_(base_->state()) {
    args_[0] = at::Tensor(); // the parameter, which has this
  }
  bool is_open() const override {
    return base_->is_open();
  }
  at::Tensor take() override {
    auto stack = args_;
    stack[0] = base_->take();
    op_.callBoxed(&stack);
    return stack[0].toTensor();
  }
  void give_back(at::TensorList results) override {
    base_->give_back(results);
  }
  std::optional<at::ScalarType> operand_dtype() const override {
    return base_->operand_dtype();
  }
  ParameterState state() const override {
    return base_->state();
  }
  bool is_lost() const override {
    return is_lost_ || base_->is_lost() ||
        (is_copy_ && base_->state() != copied_from_);
  }
  void note_write() override {
    is_lost_ |= is_copy_;
    if (!is_copy_) {
      base_->note_write();
    }
  }
  bool stays_with(const at::Tensor&) override {
    return false;
  }

 private:
  std::shared_ptr<WholeSource> base_;
  c10::OperatorHandle op_;
  torch::jit::Stack args_;
  bool is_copy_;
  bool is_lost_ = false;
  ParameterState copied_from_;
};

// Whether it gives a view of its first argument and of no other.
bool is_view_of_first(const c10::FunctionSchema& schema) {
  const auto& returns = schema.returns();
  return returns.size() == 1 && returns[0].alias_info() != nullptr &&
      !returns[0].alias_info()->isWrite() &&
      returns[0].type()->kind() == c10::TypeKind::TensorType;
}

// Views and copies through which modules use their parameters.
bool carries(const c10::OperatorHandle& op) {
  const auto* traits = RuleRegistry::global().find_traits(op.operator_name());
  return traits != nullptr && (traits->carries || traits->carries_to_parts);
}

// Whether the parts are to be viewed, or copied, for somebody who may yet want
// the whole of that.
bool is_of_parts(
    const c10::OperatorHandle& op,
    c10::ArrayRef<c10::IValue> args,
    bool wants) {
  if (!args[0].isTensor() || whole_source_of(args[0].toTensor()) == nullptr) {
    return false;
  }
  if (is_view_of_first(op.schema())) {
    return !wants || carries(op);
  }
  const auto& returns = op.schema().returns();
  return !wants && returns.size() == 1 && returns[0].alias_info() == nullptr &&
      carries(op);
}

bool share_memory(const at::Tensor& view, const at::Tensor& parameter) {
  const auto& local = meta_of(view).local_if_here();
  return local.defined() && local.has_storage() &&
      local.is_alias_of(local_of(parameter));
}

// The view of the parts, which knows how to become one of the whole.
void view_parts(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack) {
  torch::jit::Stack args(
      stack->end() -
          static_cast<std::ptrdiff_t>(op.schema().arguments().size()),
      stack->end());
  const auto parameter = args[0].toTensor();
  auto source = held_source_of(parameter);
  go_on(op, keys, stack);
  const auto& view = stack->back().toTensor();
  if (!is_dtensor(view) || view.is_same(parameter)) {
    return;
  }
  auto meta = meta_of(view).copy();
  meta->whole_source = std::make_shared<ViewOfWhole>(
      std::move(source), op, std::move(args), !share_memory(view, parameter));
  view.unsafeGetTensorImpl()->set_backend_meta(std::move(meta));
  make_asked_first(view);
}

at::Tensor cast_operand(const at::Tensor& t, at::ScalarType dtype) {
  return at::isFloatingType(t.scalar_type()) && t.scalar_type() != dtype
      ? t.to(dtype)
      : t;
}

void cast_operands(
    const c10::FunctionSchema& schema,
    c10::IValue* args,
    at::ScalarType dtype) {
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    if (!is_written(schema.arguments()[i])) {
      map_tensors(args + i, 1, [&](const at::Tensor& t, size_t) {
        return cast_operand(t, dtype);
      });
    }
  }
}

void call_on_wholes(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  auto* args = stack->data() + (stack->size() - schema.arguments().size());
  Wholes wholes;
  map_tensors(
      args, schema.arguments().size(), [&](const at::Tensor& t, size_t) {
        return whole_source_of(t) != nullptr ? wholes.take(t) : t;
      });
  if (const auto dtype = wholes.operand_dtype()) {
    cast_operands(schema, args, *dtype);
  }
  op.callBoxed(stack);
  wholes.give_back(tensors_in(last_args(*stack, schema.returns().size())));
}

} // namespace

void set_sees_all(SeesOperator sees) {
  sees_all = sees;
}

void go_on(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack) {
  keys = keys &
      c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kAskedFirstKey);
  if (keys.has_backend(kDTensorBit)) {
    keys = keys.remove_backend(c10::BackendComponent::MetaBit);
  }
  op.redispatchBoxed(keys, stack);
}

void ask_first(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack) {
  if (c10::impl::tls_is_dispatch_key_included(kAskedFirstKey)) {
    sees_all.load()(op, keys, stack);
    return;
  }
  if (!keys.has_backend(kDTensorBit)) {
    go_on(op, keys, stack);
    return;
  }
  const auto& schema = op.schema();
  const auto args = last_args(*stack, schema.arguments().size());
  const bool wants = wants_wholes(schema, args);
  if (is_of_parts(op, args, wants)) {
    view_parts(op, keys, stack);
  } else if (wants) {
    call_on_wholes(op, stack);
  } else {
    go_on(op, keys, stack);
  }
}

void before_set_data(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack) {
  const auto args = last_args(*stack, op.schema().arguments().size());
  const auto self = args[0].toTensor();
  const auto data = args[1].toTensor();
  auto* source = whole_source_of(self);
  DTENSOR_CHECK_VALUE(
      source != nullptr || whole_source_of(data) == nullptr,
      "set_data",
      "a tensor is to take over the data of a parameter of a unit, ",
      *spec_of(data),
      ", and would not be gathered with it. Instead of cloning a module, make "
      "another one, call fully_shard for it, and set_model_state_dict.");
  if (source != nullptr && source->stays_with(data)) {
    auto meta = meta_of(data).copy();
    meta->whole_source = meta_of(data).whole_source;
    meta->view_facts = meta_of(self).view_facts; // counts its writes
    meta->source_of_next = meta_of(self).whole_source;
    data.unsafeGetTensorImpl()->set_backend_meta(std::move(meta));
    make_asked_first(data); // the parameter's keys are the data's from now on
    explain_no_data(data);
  }
  ask_first(op, keys, stack);
}

} // namespace dtensor::detail
