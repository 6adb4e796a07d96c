// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/ops/asked_first_impl.h>

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <dtensor/ops/registry.h>
#include <dtensor/ops/stack_impl.h>
#include <dtensor/ops/whole_source_impl.h>

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
    auto source = meta_of(parameter).whole_source;
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
    if (const auto* source = whole_source_of(t)) {
      mesh = &spec_of(t)->mesh();
      writes |= is_written(schema.arguments()[arg]);
      open |= source->is_open();
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
// weight.t(): the same view of the whole.
class ViewOfWhole final : public WholeSource {
 public:
  ViewOfWhole(
      std::shared_ptr<WholeSource> base,
      const c10::OperatorHandle& op,
      torch::jit::Stack args)
      : base_(std::move(base)),
        op_(op),
        args_(std::move(args)) {
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

 private:
  std::shared_ptr<WholeSource> base_;
  c10::OperatorHandle op_;
  torch::jit::Stack args_;
};

// Whether it gives a view of its first argument and of no other.
bool is_view_of_first(const c10::FunctionSchema& schema) {
  const auto& returns = schema.returns();
  return returns.size() == 1 && returns[0].alias_info() != nullptr &&
      !returns[0].alias_info()->isWrite() &&
      returns[0].type()->kind() == c10::TypeKind::TensorType;
}

// Views through which modules use their parameters.
bool carries(const c10::OperatorHandle& op) {
  const auto* traits = RuleRegistry::global().find_traits(op.operator_name());
  return traits != nullptr && (traits->carries || traits->carries_to_parts);
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
  auto source = meta_of(parameter).whole_source;
  go_on(op, keys, stack);
  const auto& view = stack->back().toTensor();
  if (!is_dtensor(view) || view.is_same(parameter)) {
    return;
  }
  auto meta = meta_of(view).copy();
  meta->whole_source =
      std::make_shared<ViewOfWhole>(std::move(source), op, std::move(args));
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
  const bool is_view = is_view_of_first(schema) && args[0].isTensor() &&
      whole_source_of(args[0].toTensor()) != nullptr;
  const bool wants = wants_wholes(schema, args);
  if (is_view && (carries(op) || !wants)) {
    view_parts(op, keys, stack);
  } else if (wants) {
    call_on_wholes(op, stack);
  } else {
    go_on(op, keys, stack);
  }
}

} // namespace dtensor::detail
