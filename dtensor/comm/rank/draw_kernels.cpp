// SPDX-License-Identifier: BSD-3-Clause
// Kernels of random operators, at a dispatch key that only rank threads
// include. Kernels of operators with an argument `Generator? generator` fill in
// the rank's generator, or the generator of the call (plain_draws_impl.h).
// Other random operators draw by calling these operators, but skip them if
// their tensor is empty. The kernels of such operators count the call. For all
// other operators the key falls through at no cost. Kernels stay registered for
// the life of the process.
#include <dtensor/comm/rank_generator_impl.h>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <dtensor/comm/rank/plain_draws_impl.h>
#include <dtensor/error.h>
#include <dtensor/torch_internals.h>
#include <torch/library.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace dtensor::detail {
namespace {

using Values = c10::ArrayRef<c10::IValue>;

// Name of a computation that must be equal on all ranks and may not draw, or
// null.
thread_local const std::string* no_draw_context = nullptr;
// Generator of the call that is running on this thread, or null.
thread_local const at::Generator* in_call = nullptr;

void check_may_draw() {
  DTENSOR_CHECK_NOT_IMPLEMENTED(
      no_draw_context == nullptr,
      "[{}] draws random numbers on replicated tensors, which every rank would "
      "draw differently. Call it on the local tensors.",
      *no_draw_context);
}

bool is_plain_cpu(const at::Tensor& tensor) {
  return !tensor.defined() ||
      (tensor.device().is_cpu() && !tensor.key_set().has_backend(kDTensorBit));
}

// Returns true if an argument allows a CPU generator to be filled in.
bool allows_cpu_generator(const c10::IValue& value) {
  if (value.isTensor()) {
    return is_plain_cpu(value.toTensor());
  }
  if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorList()) {
      if (!is_plain_cpu(tensor)) {
        return false;
      }
    }
  }
  return !value.isDevice() || value.toDevice().is_cpu();
}

/// Properties of an operator that its kernel needs.
struct DrawTraits {
  DrawKind kind = DrawKind::kReads;
  size_t count = 0; // number of arguments
  std::optional<size_t> generator;
  std::optional<size_t> probability; // no draws if it is 0
  std::optional<size_t> train;       // no draws if it is false
};

bool leaves_choice(const DrawTraits& traits, Values values) {
  if (!std::ranges::all_of(values, allows_cpu_generator)) {
    return false;
  }
  if (!traits.generator || values[*traits.generator].isNone()) {
    return true;
  }
  const bool is_exchanged =
      own_generator().defined() || reseeds_per_call(DrawKind::kReads);
  return is_exchanged &&
      is_default_generator(values[*traits.generator].toGenerator());
}

bool draws(const DrawTraits& traits, Values values) {
  if (traits.train) {
    const auto& train = values[*traits.train];
    if (train.isBool() && !train.toBool()) {
      return false;
    }
  }
  return !traits.probability || !values[*traits.probability].isDouble() ||
      values[*traits.probability].toDouble() != 0;
}

/// Kernel of one operator.
class DrawKernel final : public c10::OperatorKernel {
 public:
  explicit DrawKernel(const DrawTraits& traits) : traits_(traits) {}

  void operator()(
      const c10::OperatorHandle& op,
      c10::DispatchKeySet keys,
      torch::jit::Stack* stack) const {
    const auto values = torch::jit::last(*stack, traits_.count);
    const auto below =
        keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kRankKey);
    if (!leaves_choice(traits_, values)) {
      op.redispatchBoxed(below, stack);
      return;
    }
    const DrawingCall call(traits_.kind, draws(traits_, values));
    if (traits_.generator) {
      check_may_draw();
      const at::Generator& mine =
          in_call != nullptr ? *in_call : own_generator();
      if (mine.defined()) {
        (*stack)[stack->size() - traits_.count + *traits_.generator] = mine;
      }
    }
    op.redispatchBoxed(below, stack);
  }

 private:
  DrawTraits traits_;
};

std::optional<size_t> generator_argument(const c10::FunctionSchema& schema) {
  const auto& arguments = schema.arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto optional = arguments[i].type()->cast<c10::OptionalType>();
    if (optional &&
        optional->getElementType()->kind() == c10::TypeKind::GeneratorType) {
      return i;
    }
  }
  return std::nullopt;
}

std::optional<size_t> argument(
    const c10::FunctionSchema& schema,
    std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (const auto i = schema.argumentIndexWithName(name)) {
      return static_cast<size_t>(*i);
    }
  }
  return std::nullopt;
}

// Returns the operator's name without its namespace.
std::string unqualified_name(const c10::FunctionSchema& schema) {
  const auto& name = schema.name();
  const auto colon = name.rfind(':');
  return colon == std::string::npos ? name : name.substr(colon + 1);
}

DrawKind kind_of(const c10::FunctionSchema& schema) {
  static const std::set<std::string> by_value = {
      "_sample_dirichlet",
      "_standard_gamma",
      "binomial",
      "poisson",
      "rrelu",
      "rrelu_",
      "rrelu_with_noise",
      "rrelu_with_noise_",
      "rrelu_with_noise_functional"};
  const auto name = unqualified_name(schema);
  if (by_value.count(name) == 1) {
    return DrawKind::kByValue;
  }
  int64_t read = 0;
  for (const auto& argument : schema.arguments()) {
    const auto* alias = argument.alias_info();
    const bool is_written = alias != nullptr && alias->isWrite();
    read += argument.type()->str().find("Tensor") != std::string::npos &&
        !(is_written && schema.argumentIndexWithName("generator"));
  }
  return read == 0 ? DrawKind::kMakes : DrawKind::kReads;
}

// Returns true for two kinds of operators. The first kind draws by calling
// other operators, but calls none if its tensor is empty (dropout). The second
// kind uses its tensor only for the size (*_like).
bool draws_by_others(const c10::OperatorHandle& op) {
  const auto name = unqualified_name(op.schema());
  return op.hasTag(at::Tag::nondeterministic_seeded) &&
      (name.find("dropout") != std::string::npos || name.ends_with("_like")) &&
      name[0] != '_';
}

std::optional<DrawTraits> traits_of(const c10::OperatorHandle& op) {
  const auto& schema = op.schema();
  const auto generator = generator_argument(schema);
  if (!generator && !draws_by_others(op)) {
    return std::nullopt;
  }
  return DrawTraits{
      .kind = kind_of(schema),
      .count = schema.arguments().size(),
      .generator = generator,
      .probability = generator ? std::nullopt : argument(schema, {"p"}),
      .train = argument(schema, {"train", "training"})};
}

void register_kernels() {
  constexpr const char* kWhy = "dtensor: the default generator per rank";
  auto& dispatcher = c10::Dispatcher::singleton();
  // Registrations are kept for the life of the process.
  static std::vector<c10::RegistrationHandleRAII> registrations;
  registrations.push_back(dispatcher.registerFallback(
      kRankKey, c10::KernelFunction::makeFallthrough(), kWhy));
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    const auto traits = op ? traits_of(*op) : std::nullopt;
    if (traits) {
      registrations.push_back(dispatcher.registerImpl(
          name,
          kRankKey,
          c10::KernelFunction::makeFromBoxedFunctor(
              std::make_unique<DrawKernel>(*traits)),
          std::nullopt,
          nullptr,
          kWhy));
    }
  }
}

} // namespace

RequireEqualOnAllRanks::RequireEqualOnAllRanks(const std::string& what)
    : outer_(std::exchange(no_draw_context, &what)) {}

RequireEqualOnAllRanks::~RequireEqualOnAllRanks() {
  no_draw_context = outer_;
}

DrawingCall::DrawingCall(DrawKind kind, bool draws) : outer_(in_call) {
  if (draws && outer_ == nullptr && reseeds_per_call(kind)) {
    in_call = &generator_of_call();
  }
}

DrawingCall::~DrawingCall() {
  in_call = outer_;
}

bool intercept_random_ops(bool watched) {
  static std::once_flag once;
  std::call_once(once, register_kernels);
  const bool before = c10::impl::tls_is_dispatch_key_included(kRankKey);
  c10::impl::tls_set_dispatch_key_included(kRankKey, watched);
  return before;
}

} // namespace dtensor::detail
