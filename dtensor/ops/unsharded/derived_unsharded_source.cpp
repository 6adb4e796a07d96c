// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/ops/unsharded/derived_unsharded_source_impl.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/clone.h>
#include <c10/core/InferenceMode.h>
#include <dtensor/ops/path/stack_impl.h>
#include <dtensor/ops/unsharded/unsharded_source_impl.h>
#include <dtensor/tensor/dispatch_keys_impl.h>
#include <dtensor/tensor/meta_impl.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

namespace dtensor::detail {
namespace {

RecordedCall* call_below(const std::shared_ptr<UnshardedSource>& source) {
  auto* derived = dynamic_cast<DerivedUnshardedSource*>(source.get());
  return derived == nullptr ? nullptr : derived->call().get();
}

bool shares_local_memory(const at::Tensor& a, const at::Tensor& b) {
  const auto& local = meta_of(a).local_if_here();
  return local.defined() && local.has_storage() &&
      local.is_alias_of(local_of(b));
}

// Casts floating-point operands, except those that come from a source.
void cast_operands(
    const c10::FunctionSchema& schema,
    c10::IValue* args,
    const std::vector<bool>& has_unsharded,
    at::ScalarType dtype) {
  size_t index = 0;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const bool is_read = !is_written(schema.arguments()[i]);
    map_tensors(args + i, 1, [&](const at::Tensor& t, size_t) {
      const bool is_cast = !has_unsharded[index++] && is_read &&
          at::isFloatingType(t.scalar_type()) && t.scalar_type() != dtype;
      return is_cast ? t.to(dtype) : t;
    });
  }
}

} // namespace

UnshardedOperands::~UnshardedOperands() {
  for (const auto& source : taken_) {
    source->give_back({});
  }
}

at::Tensor UnshardedOperands::take_unsharded(
    const std::shared_ptr<UnshardedSource>& source) {
  auto value = source->take_unsharded();
  taken_.push_back(source);
  return value;
}

void UnshardedOperands::give_back(at::TensorList results) {
  for (const auto& source : std::exchange(taken_, {})) {
    source->give_back(results);
  }
}

std::optional<at::ScalarType> UnshardedOperands::operand_dtype() const {
  for (const auto& source : taken_) {
    if (const auto dtype = source->operand_dtype()) {
      return dtype;
    }
  }
  return std::nullopt;
}

void call_with_unsharded(
    const c10::OperatorHandle& op,
    torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto num_args = schema.arguments().size();
  auto* args = mutable_args(stack, num_args);
  UnshardedOperands unsharded;
  std::vector<bool> has_unsharded;
  map_tensors(args, num_args, [&](const at::Tensor& t, size_t) {
    const auto source = source_if_held(t);
    has_unsharded.push_back(source != nullptr);
    return source != nullptr ? unsharded.take_unsharded(source) : t;
  });
  if (const auto dtype = unsharded.operand_dtype()) {
    cast_operands(schema, args, has_unsharded, *dtype);
  }
  op.callBoxed(stack);
  unsharded.give_back(tensors_in(last_args(*stack, schema.returns().size())));
}

RecordedCall::RecordedCall(
    const c10::OperatorHandle& op,
    c10::ArrayRef<c10::IValue> args,
    Kind kind)
    : op_(op),
      args_(args.begin(), args.end()),
      kind_(kind),
      grad_mode_(c10::GradMode::is_enabled()),
      inference_mode_(c10::InferenceMode::is_enabled()) {
  visit_tensors(args, [&](const at::Tensor& t, size_t arg, int item) {
    auto source = source_if_held(t);
    if (source == nullptr) {
      plain_.emplace_back(t, version_of(t));
      return;
    }
    if (const auto* below = call_below(source)) {
      depth_ = std::max(depth_, below->depth() + 1);
    }
    sources_.push_back(
        {source,
         source->follows_parameter() ? source->state() : ParameterState(),
         arg,
         item});
  });
  // Operands with sources are left out: they own their sources, which would own
  // them through this call.
  map_tensors(args_.data(), args_.size(), [&](const at::Tensor& t, size_t) {
    return source_if_held(t) != nullptr ? at::Tensor() : t;
  });
}

// Destroys a long chain of calls without recursion.
RecordedCall::~RecordedCall() {
  auto operands = std::move(sources_);
  while (!operands.empty()) {
    const auto source = std::move(operands.back().source);
    operands.pop_back();
    auto* below = source.use_count() == 1 ? call_below(source) : nullptr;
    if (below != nullptr &&
        static_cast<DerivedUnshardedSource&>(*source).call().use_count() == 1) {
      std::move(
          below->sources_.begin(),
          below->sources_.end(),
          std::back_inserter(operands));
      below->sources_.clear();
    }
  }
}

RecordedCall* RecordedCall::pending() {
  if (kind_ == Kind::kView) {
    auto* below = call_below(base());
    return below == nullptr ? nullptr : below->pending();
  }
  return is_here_ ? nullptr : this;
}

std::vector<at::Tensor> RecordedCall::run() {
  UnshardedOperands unsharded;
  auto stack = args_;
  for (auto& value : stack) {
    if (is_list_with_tensors(value)) {
      value = value.toList().copy();
    }
  }
  for (const auto& operand : sources_) {
    auto value = unsharded.take_unsharded(operand.source);
    if (operand.item >= 0) {
      stack[operand.arg].toList().set(
          static_cast<size_t>(operand.item), std::move(value));
    } else {
      // The unsharded value belongs to its source, so an operator that writes
      // gets a copy.
      const bool is_written = kind_ == Kind::kInPlace && operand.arg == 0;
      stack[operand.arg] = is_written ? value.clone() : std::move(value);
    }
  }
  op_.callBoxed(&stack);
  auto results = tensors_in(stack);
  if (kind_ != Kind::kView) {
    unsharded.give_back(results);
  }
  return results;
}

// First runs the calls that this call depends on, so that a long chain needs no
// recursion.
void RecordedCall::compute() {
  std::vector<RecordedCall*> waiting = {this};
  while (!waiting.empty()) {
    auto* call = waiting.back();
    const auto before = waiting.size();
    for (const auto& operand : call->sources_) {
      auto* below = call_below(operand.source);
      auto* pending = below == nullptr ? nullptr : below->pending();
      if (pending != nullptr && !call->is_here_) {
        waiting.push_back(pending);
      }
    }
    if (waiting.size() > before) {
      continue;
    }
    waiting.pop_back();
    if (!call->is_here_) {
      const c10::InferenceMode inference(call->inference_mode_);
      const c10::AutoGradMode grad_mode(call->grad_mode_);
      call->results_ = call->run();
      call->is_here_ = true;
    }
  }
}

at::Tensor RecordedCall::take_unsharded(size_t result) {
  if (kind_ != Kind::kView) {
    compute();
    return results_[result];
  }
  const c10::AutoGradMode grad_mode(grad_mode_ && c10::GradMode::is_enabled());
  return run()[result];
}

void RecordedCall::give_back(at::TensorList results) {
  if (kind_ == Kind::kView) {
    for (const auto& operand : sources_) {
      operand.source->give_back(results);
    }
  }
}

std::optional<at::ScalarType> RecordedCall::operand_dtype() const {
  return base()->operand_dtype();
}

bool RecordedCall::operands_changed() const {
  for (const auto& operand : sources_) {
    if (operand.source->follows_parameter() &&
        operand.source->state() != operand.state) {
      return true;
    }
  }
  return std::ranges::any_of(plain_, [](const auto& plain) {
    return version_of(plain.first) != plain.second;
  });
}

bool RecordedCall::is_lost() const {
  std::unordered_set<const RecordedCall*> seen;
  std::vector<const RecordedCall*> left = {this};
  while (!left.empty()) {
    const auto* call = left.back();
    left.pop_back();
    if (call->is_here_ || !seen.insert(call).second) {
      continue;
    }
    if (call->operands_changed()) {
      return true;
    }
    for (const auto& operand : call->sources_) {
      const auto* below = call_below(operand.source);
      if (below != nullptr && !operand.source->follows_parameter()) {
        left.push_back(below);
      }
    }
  }
  return false;
}

DerivedUnshardedSource::DerivedUnshardedSource(
    std::shared_ptr<RecordedCall> call,
    size_t result,
    bool follows,
    const UnshardedSource* base)
    : call_(std::move(call)),
      result_(result),
      follows_(follows) {
  const auto* derived = dynamic_cast<const DerivedUnshardedSource*>(base);
  writes_ = derived != nullptr && derived->writes_ != nullptr
      ? derived->writes_
      : std::make_shared<int64_t>(0);
  seen_writes_ = *writes_;
}

bool DerivedUnshardedSource::is_open() const {
  return call_->kind() == RecordedCall::Kind::kView && call_->base()->is_open();
}

at::Tensor DerivedUnshardedSource::take_unsharded() {
  auto value = call_->take_unsharded(result_);
  dtype_ = value.scalar_type();
  return value;
}

// Returns the dtype to which other operands are cast. Empty if the program has
// cast the parameter itself, because the program then computes in that dtype.
std::optional<at::ScalarType> DerivedUnshardedSource::operand_dtype() const {
  const auto dtype = call_->operand_dtype();
  return dtype == dtype_ ? dtype : std::nullopt;
}

ParameterState DerivedUnshardedSource::state() const {
  return follows_ ? call_->base()->state() : ParameterState();
}

bool DerivedUnshardedSource::is_lost() const {
  return !follows_ && (*writes_ != seen_writes_ || call_->is_lost());
}

void DerivedUnshardedSource::note_write() {
  if (follows_) {
    call_->base()->note_write();
  } else {
    ++*writes_;
  }
}

void note_derived(
    const std::shared_ptr<RecordedCall>& call,
    c10::ArrayRef<c10::IValue> args,
    c10::ArrayRef<c10::IValue> results) {
  const bool is_view = call->kind() == RecordedCall::Kind::kView;
  const bool writes = call->kind() == RecordedCall::Kind::kInPlace;
  const auto operands = tensors_in(args);
  size_t number = 0;
  for (const auto& result : tensors_in(results)) {
    const auto index = number++;
    const auto is_operand = [&](const auto& t) { return t.is_same(result); };
    if (!is_dtensor(result) ||
        (!writes && std::ranges::any_of(operands, is_operand))) {
      continue;
    }
    const bool shares = is_view && shares_local_memory(result, operands[0]);
    if (is_view && !shares && source_if_held(result) != nullptr) {
      continue; // the operator's copy has its own source
    }
    auto meta = meta_of(result).copy();
    meta->unsharded_source = std::make_shared<DerivedUnshardedSource>(
        call,
        index,
        shares && call->base()->follows_parameter(),
        shares || writes ? call->base().get() : nullptr);
    result.unsafeGetTensorImpl()->set_backend_meta(std::move(meta));
    add_intercept_key(result);
  }
}

bool is_derived_view(const UnshardedSource& source) {
  const auto* derived = dynamic_cast<const DerivedUnshardedSource*>(&source);
  return derived != nullptr &&
      derived->call()->kind() == RecordedCall::Kind::kView;
}

void drop_source(const at::Tensor& t) {
  t.unsafeGetTensorImpl()->set_backend_meta(meta_of(t).copy());
  if (!t.is_meta()) {
    remove_intercept_key(t);
  }
}

} // namespace dtensor::detail
