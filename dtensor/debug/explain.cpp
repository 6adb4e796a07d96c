// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/debug/explain.h>

#include <dtensor/debug/explain_call_impl.h>
#include <dtensor/debug/operator_observer_impl.h>
#include <dtensor/error.h>
#include <dtensor/ops/install/kernels_impl.h>
#include <dtensor/ops/path/local_call_impl.h>
#include <dtensor/ops/path/stack_impl.h>
#include <dtensor/ops/registry.h>
#include <dtensor/tensor/meta_impl.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>

namespace dtensor {
namespace detail {
namespace {

using Values = c10::ArrayRef<c10::IValue>;

void count(const CollectiveEvent& event, CommTotal& total) {
  total.count += 1;
  total.payload_bytes += event.payload_bytes;
  total.wire_bytes += event.wire_bytes;
}

std::vector<SpecPtr> specs_of(Values results) {
  std::vector<SpecPtr> specs;
  const auto add = [&](const at::Tensor& t) {
    specs.push_back(t.defined() && is_dtensor(t) ? spec_of(t) : nullptr);
  };
  for (const auto& value : results) {
    if (value.isTensor()) {
      add(value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& t : value.toTensorVector()) {
        add(t);
      }
    }
  }
  return specs;
}

// Returns the last `number` values. LibTorch passes the complete stack, and the
// call's values are at its end.
Values last_of(Values all, size_t number) {
  return all.slice(all.size() - std::min(number, all.size()));
}

// True if the calls are equal except for their counts.
bool is_same(ExplainedCall& known, const ExplainedCall& call) {
  const auto times = std::exchange(known.count, call.count);
  const bool same = known == call;
  known.count = times;
  return same;
}

void add(std::vector<ExplainedCall>& calls, ExplainedCall call) {
  const auto known = std::ranges::find_if(
      calls, [&](ExplainedCall& other) { return is_same(other, call); });
  if (known == calls.end()) {
    calls.push_back(std::move(call));
  } else {
    known->count += call.count;
  }
}

// True if the call only called the same operator on other operands, as autocast
// does. The inner call then has the better explanation.
bool defers(const ExplainedCall& call) {
  return call.by == DecidedBy::kRule &&
      std::ranges::any_of(call.calls, [&](const auto& inner) {
           return inner.name == call.name;
         });
}

void leave_to_operators(ExplainedCall& call, std::string note) {
  call.by = DecidedBy::kOperators;
  call.note = std::move(note);
  call.mesh_dims.clear();
  for (auto& operand : call.operands) {
    operand.becomes = nullptr;
    operand.steps.clear();
    operand.wire_bytes = 0;
  }
}

} // namespace

class Explainer final : public OperatorObserver, public CommObserver {
 public:
  const std::vector<ExplainedCall>& calls() const {
    return calls_;
  }
  const CommTotal& outside() const {
    return outside_;
  }
  void reset() {
    calls_.clear();
    running_.clear();
    outside_ = {};
  }

  void on_begin(const at::RecordFunction& call) override {
    const auto given = inputs_of(call);
    const Values inputs(given.data(), given.size());
    Running running{{}, 0, std::uncaught_exceptions()};
    if (any_tensor(inputs, is_dtensor)) {
      begin({call.name(), call.overload_name()}, inputs, running);
    }
    running_.push_back(std::move(running));
  }

  void on_end(const at::RecordFunction& call) override {
    if (running_.empty()) {
      return; // the call began before a reset
    }
    auto ended = std::move(running_.back());
    running_.pop_back();
    if (!ended.call) {
      return;
    }
    if (std::uncaught_exceptions() > ended.exceptions) {
      fail(*ended.call);
    } else {
      finish(*ended.call, last_of(call.outputs(), ended.num_returns));
    }
    auto* const outer = innermost();
    add(outer == nullptr ? calls_ : outer->calls, std::move(*ended.call));
  }

  void on_collective(const CollectiveEvent& event) override {
    auto* const call = innermost();
    count(event, call == nullptr ? outside_ : call->communicated);
  }

 private:
  struct Running {
    std::optional<ExplainedCall> call; // empty without DTensors
    size_t num_returns = 0;
    int exceptions = 0; // in flight when the call began
  };

  void begin(const c10::OperatorName& name, Values inputs, Running& running) {
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!op) {
      return;
    }
    const auto info = info_of(*op);
    const auto args = last_of(inputs, info->num_args);
    if (any_tensor(args, is_dtensor)) {
      running.call = explain_call(*info, args);
      running.num_returns = info->num_returns;
    }
  }

  static void fail(ExplainedCall& call) {
    if (call.by != DecidedBy::kUnsupported) {
      call.by = DecidedBy::kUnsupported;
      call.note = "it threw";
    }
    call.results.clear();
  }

  static void finish(ExplainedCall& call, c10::ArrayRef<c10::IValue> results) {
    call.results = specs_of(results);
    if (call.by == DecidedBy::kUnsupported) {
      leave_to_operators(
          call, "by its own kernel; the standard path fails: " + call.note);
    } else if (defers(call)) {
      leave_to_operators(call, "it calls itself on other operands");
    }
  }

  ExplainedCall* innermost() {
    const auto found =
        std::find_if(running_.rbegin(), running_.rend(), [](const auto& r) {
          return r.call.has_value();
        });
    return found == running_.rend() ? nullptr : &*found->call;
  }

  std::vector<ExplainedCall> calls_;
  CommTotal outside_;
  std::vector<Running> running_; // from the outermost to the innermost
  CommObserverGuard collectives_{*this};
  OperatorObserverGuard operators_{*this, ObservedEvents::kResults};
};

namespace {

using Arguments = std::map<std::string, c10::IValue>;

// Assigns layouts to the tensors of a call, in the order of its schema.
class CallOfLayouts {
 public:
  CallOfLayouts(const OpInfo& info, const std::vector<SpecPtr>& layouts)
      : info_(info),
        layouts_(layouts) {
    for (const auto& argument : info.op.schema().arguments()) {
      needed_ += is_tensor(*argument.type());
    }
  }

  torch::jit::Stack make(const Arguments& others) {
    torch::jit::Stack stack;
    for (const auto& argument : info_.op.schema().arguments()) {
      const auto given = others.find(argument.name());
      stack.push_back(
          given != others.end() ? given->second : value_of(argument));
    }
    check(used_ == layouts_.size());
    return stack;
  }

 private:
  static bool is_tensor(const c10::Type& type) {
    return type.kind() == c10::TypeKind::TensorType;
  }
  static bool is_optional_tensor(const c10::TypePtr& type) {
    const auto optional = type->cast<c10::OptionalType>();
    return optional && is_tensor(*optional->getElementType());
  }
  static bool is_tensor_list(const c10::TypePtr& type) {
    const auto list = type->cast<c10::ListType>();
    return list && is_tensor(*list->getElementType());
  }

  c10::IValue value_of(const c10::Argument& argument) {
    if (is_tensor(*argument.type())) {
      --needed_;
      return next();
    }
    if (is_tensor_list(argument.type())) {
      std::vector<at::Tensor> list;
      while (has_spare()) {
        list.push_back(next());
      }
      return list;
    }
    if (is_optional_tensor(argument.type()) && has_spare()) {
      return next();
    }
    return default_of(argument);
  }
  c10::IValue default_of(const c10::Argument& argument) const {
    const bool may_be_none =
        argument.type()->kind() == c10::TypeKind::OptionalType;
    DTENSOR_CHECK_VALUE(
        argument.default_value() || may_be_none,
        "[explain] {} needs a value for \"{}\". Pass it by name, next to the "
        "layouts.",
        info_.name,
        argument.name());
    return argument.default_value().value_or(c10::IValue());
  }
  // True if there are more layouts than the remaining arguments need.
  bool has_spare() const {
    return layouts_.size() - used_ > needed_;
  }
  at::Tensor next() {
    check(used_ < layouts_.size());
    return without_data(layouts_[used_++]);
  }
  void check(bool fits) const {
    DTENSOR_CHECK_VALUE(
        fits && !layouts_.empty(),
        "[explain] {}{} not fit the tensors of {}. Pass one for each of them.",
        layouts_.size(),
        layouts_.size() == 1 ? " layout does" : " layouts do",
        info_.op.schema());
  }

  const OpInfo& info_;
  const std::vector<SpecPtr>& layouts_;
  size_t used_ = 0;
  size_t needed_ = 0; // by arguments from here on
};

c10::OperatorHandle find_operator(std::string_view op) {
  const auto found =
      c10::Dispatcher::singleton().findSchema(parse_operator_name(op));
  DTENSOR_CHECK_VALUE(
      found,
      "[explain] LibTorch has no operator \"{}\". Name it with its overload, "
      "if it has one: \"mm\", \"add.Tensor\".",
      op);
  return *found;
}

void check_names(const OpInfo& info, const Arguments& arguments) {
  for (const auto& [name, _] : arguments) {
    DTENSOR_CHECK_VALUE(
        info.op.schema().argumentIndexWithName(name),
        "[explain] no argument \"{}\" in {}. Pass arguments of that schema.",
        name,
        info.op.schema());
  }
}

} // namespace
} // namespace detail

ExplainedCall explain(
    std::string_view op,
    const std::vector<SpecPtr>& layouts,
    const std::map<std::string, c10::IValue>& arguments) {
  const auto info = detail::info_of(detail::find_operator(op));
  detail::check_names(*info, arguments);
  return detail::explain_call(
      *info, detail::CallOfLayouts(*info, layouts).make(arguments));
}

ExplainMode::ExplainMode()
    : explainer_(std::make_unique<detail::Explainer>()) {}

ExplainMode::~ExplainMode() = default;

const std::vector<ExplainedCall>& ExplainMode::calls() const {
  return explainer_->calls();
}

const CommTotal& ExplainMode::communicated_outside() const {
  return explainer_->outside();
}

void ExplainMode::reset() {
  explainer_->reset();
}

} // namespace dtensor
