// SPDX-License-Identifier: BSD-3-Clause
// Two things make the default generator per rank. While ranks run, the
// process's default generator object is exchanged for one that passes seeding
// and state on to the generator of the rank that asks. And since operators read
// its engine directly, past any virtual function, operators with an argument
// `Generator? generator` get a kernel at a dispatch key that only rank threads
// include: it fills the argument in. On every other operator that key falls
// through, which costs nothing; these kernels stay.
#include <dtensor/comm/rank_generator.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <dtensor/comm/rank_generator_impl.h>
#include <dtensor/comm/rank_local_impl.h>
#include <dtensor/error.h>
#include <dtensor/torch_internals.h>
#include <torch/library.h>

#include <algorithm>
#include <mutex>
#include <utility>

namespace dtensor {
namespace {

// Undefined where the rank draws from the process's.
detail::RankLocal<at::Generator> own_generator;
detail::RankLocal<uint64_t> seedings;

at::CPUGeneratorImpl* generator_of_this_rank() {
  const at::Generator& own = own_generator.get();
  return own.defined() ? own.get<at::CPUGeneratorImpl>() : nullptr;
}

// What is the same on all ranks and must not draw; null where ranks may.
thread_local const std::string* drawless = nullptr;

void check_may_draw() {
  DTENSOR_CHECK_NOT_IMPLEMENTED(
      drawless == nullptr,
      *drawless,
      "draws random numbers on replicated tensors, which every rank would draw "
      "differently. Call it on the local tensors.");
}

void copy_state(at::CPUGeneratorImpl& to, at::CPUGeneratorImpl& from) {
  const auto f = from.next_float_normal_sample();
  const auto d = from.next_double_normal_sample();
  to.set_engine(from.engine());
  to.set_next_float_normal_sample(f);
  to.set_next_double_normal_sample(d);
}

/// The process's default generator: for ranks, a door to their own.
class DefaultGenerator final : public at::CPUGeneratorImpl {
  using Base = at::CPUGeneratorImpl;

 public:
  void set_current_seed(uint64_t seed) override {
    ++seedings.get();
    auto* mine = generator_of_this_rank();
    mine ? mine->set_current_seed(seed) : Base::set_current_seed(seed);
  }
  void set_offset(uint64_t offset) override {
    auto* mine = generator_of_this_rank();
    mine ? mine->set_offset(offset) : Base::set_offset(offset);
  }
  uint64_t get_offset() const override {
    const auto* mine = generator_of_this_rank();
    return mine ? mine->get_offset() : Base::get_offset();
  }
  uint64_t current_seed() const override {
    const auto* mine = generator_of_this_rank();
    return mine ? mine->current_seed() : Base::current_seed();
  }
  uint64_t seed() override {
    ++seedings.get();
    auto* mine = generator_of_this_rank();
    return mine ? mine->seed() : Base::seed();
  }
  void set_state(const c10::TensorImpl& state) override {
    auto* mine = generator_of_this_rank();
    mine ? mine->set_state(state) : Base::set_state(state);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    const auto* mine = generator_of_this_rank();
    return mine ? mine->get_state() : Base::get_state();
  }

 private:
  at::CPUGeneratorImpl* clone_impl() const override {
    const auto* mine = generator_of_this_rank();
    // Not counted yet: Generator::clone() takes the first count.
    auto copy = std::make_unique<at::CPUGeneratorImpl>();
    copy_state(
        *copy,
        mine ? const_cast<at::CPUGeneratorImpl&>(*mine)
             : const_cast<DefaultGenerator&>(*this));
    return copy.release();
  }
};

// LibTorch hands the default generator out as a const reference to a variable
// of its own, which is not const.
at::Generator& default_generator() {
  return const_cast<at::Generator&>(at::detail::getDefaultCPUGenerator());
}

/// Who wants the default generator exchanged, and what it was before.
struct Swapped {
  std::mutex mutex;
  int64_t count = 0;
  at::Generator before;
};

Swapped& swapped() {
  static auto* all = new Swapped;
  return *all;
}

// In place of the default generator, in the state that it has.
void swap_default_generator(at::Generator next) {
  at::Generator old = default_generator();
  const std::lock_guard<std::mutex> lock(old.mutex());
  copy_state(
      *next.get<at::CPUGeneratorImpl>(), *old.get<at::CPUGeneratorImpl>());
  default_generator() = std::move(next);
}

void begin_swap() {
  auto& all = swapped();
  const std::lock_guard<std::mutex> lock(all.mutex);
  if (all.count++ == 0) {
    all.before = default_generator();
    swap_default_generator(at::make_generator<DefaultGenerator>());
  }
}

void end_swap() {
  auto& all = swapped();
  const std::lock_guard<std::mutex> lock(all.mutex);
  if (--all.count == 0) {
    swap_default_generator(std::exchange(all.before, {}));
  }
}

// Called by a rank that has a generator of its own, so while it is exchanged.
// The one of before is the default generator too.
bool is_default(const at::Generator& generator) {
  return generator == default_generator() || generator == swapped().before;
}

bool is_plain_cpu(const at::Tensor& tensor) {
  return !tensor.defined() ||
      (tensor.device().is_cpu() &&
       !tensor.key_set().has_backend(detail::kDTensorBit));
}

// Whether a value leaves the choice of the generator to the CPU.
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

/// The kernel of one operator: puts this rank's generator, if it has one of its
/// own, where none is given.
class FillGenerator final : public c10::OperatorKernel {
 public:
  FillGenerator(size_t argument, size_t arguments)
      : argument_(argument),
        arguments_(arguments) {}

  void operator()(
      const c10::OperatorHandle& op,
      c10::DispatchKeySet keys,
      torch::jit::Stack* stack) const {
    const at::Generator& own = own_generator.get();
    const auto values = torch::jit::last(*stack, arguments_);
    c10::IValue& generator = (*stack)[stack->size() - arguments_ + argument_];
    const bool not_given = generator.isNone() ||
        (own.defined() && is_default(generator.toGenerator()));
    if (not_given &&
        std::all_of(values.begin(), values.end(), allows_cpu_generator)) {
      check_may_draw();
      if (own.defined()) {
        generator = own;
      }
    }
    op.redispatchBoxed(
        keys &
            c10::DispatchKeySet(
                c10::DispatchKeySet::FULL_AFTER, detail::kRankKey),
        stack);
  }

 private:
  size_t argument_;
  size_t arguments_;
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

void register_kernels() {
  auto& dispatcher = c10::Dispatcher::singleton();
  // Registrations last as long as the process.
  static std::vector<c10::RegistrationHandleRAII> registrations;
  registrations.push_back(dispatcher.registerFallback(
      detail::kRankKey,
      c10::KernelFunction::makeFallthrough(),
      "dtensor: the default generator per rank"));
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (!op) {
      continue;
    }
    const auto argument = generator_argument(op->schema());
    if (!argument) {
      continue;
    }
    registrations.push_back(dispatcher.registerImpl(
        name,
        detail::kRankKey,
        c10::KernelFunction::makeFromBoxedFunctor(
            std::make_unique<FillGenerator>(
                *argument, op->schema().arguments().size())),
        std::nullopt,
        nullptr,
        "dtensor: the default generator per rank"));
  }
}

} // namespace

void seed_rank_generator(uint64_t seed) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_current_seed(seed);
}

namespace detail {

uint64_t rank_seedings() {
  if (!own_generator.get().defined()) {
    static std::once_flag once;
    std::call_once(once, begin_swap);
  }
  return seedings.get();
}

SameOnAllRanks::SameOnAllRanks(const std::string& what)
    : outer_(std::exchange(drawless, &what)) {}

SameOnAllRanks::~SameOnAllRanks() {
  drawless = outer_;
}

GeneratorSwap::GeneratorSwap(bool wanted) : wanted_(wanted) {
  if (wanted_) {
    begin_swap();
  }
}

GeneratorSwap::~GeneratorSwap() {
  if (wanted_) {
    end_swap();
  }
}

bool watch_draws(bool watched) {
  static std::once_flag once;
  std::call_once(once, register_kernels);
  const bool before = c10::impl::tls_is_dispatch_key_included(detail::kRankKey);
  c10::impl::tls_set_dispatch_key_included(detail::kRankKey, watched);
  return before;
}

RankGeneratorScope::RankGeneratorScope(at::Generator own)
    : outer_(std::exchange(own_generator.get(), std::move(own))),
      was_watched_(watch_draws(true)) {}

RankGeneratorScope::~RankGeneratorScope() {
  watch_draws(was_watched_);
  own_generator.get() = std::move(outer_);
}

at::Generator copy_of_default_generator() {
  at::Generator mine = at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> lock(mine.mutex());
  return mine.clone();
}

void set_default_generator(const at::Generator& state) {
  at::Generator mine = at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> lock(mine.mutex());
  copy_state(
      *mine.get<at::CPUGeneratorImpl>(), *state.get<at::CPUGeneratorImpl>());
}

} // namespace detail
} // namespace dtensor
