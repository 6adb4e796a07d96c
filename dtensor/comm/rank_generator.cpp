// SPDX-License-Identifier: BSD-3-Clause
// Default generators per rank rest on two mechanisms. While ranks run, the
// process's default generator object is replaced by a proxy, which forwards
// seeding and state to the calling rank's generator. Operators read the engine
// of the default generator directly, without a virtual call. Random operators
// therefore have kernels that fill in their argument `Generator? generator`
// (draw_kernels.cpp).
//
// The proxy's state also holds two values of this library, in bytes that
// LibTorch neither reads nor needs. The last byte holds how plain operators
// draw (plain_draws_impl.h). The upper halves of the engine's words hold the
// stream of DTensors. Programs without this library accept such a state.
#include <dtensor/comm/rank_generator.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <dtensor/comm/rank/plain_draws_impl.h>
#include <dtensor/comm/rank/rank_local_impl.h>
#include <dtensor/comm/rank_generator_impl.h>

#include <cstring>
#include <mutex>
#include <optional>
#include <utility>

namespace dtensor {
namespace {

// Generator of each rank; undefined if the rank draws from the process's
// generator.
detail::RankLocal<at::Generator> own_generators;
detail::RankLocal<uint64_t> seedings;

at::CPUGeneratorImpl* generator_of_this_rank() {
  const at::Generator& own = own_generators.get();
  return own.defined() ? own.get<at::CPUGeneratorImpl>() : nullptr;
}

/// A stream that restarts from the generator's seed after each seeding.
struct SeededStream {
  detail::Draw stream;
  std::optional<uint64_t> seedings; // nullopt before the first use
};

detail::RankLocal<SeededStream> streams;

// LibTorch stores the 32-bit words of the engine as 64-bit words, from this
// byte of a state on. LibTorch reads only the lower halves.
constexpr size_t kFirstWord = 24;
constexpr uint64_t kStreamMark = 0x44726177; // "Draw"

uint64_t get_upper_half(const uint8_t* state, size_t word) {
  uint64_t value = 0;
  std::memcpy(&value, state + kFirstWord + 8 * word, sizeof(value));
  return value >> 32;
}

void set_upper_half(uint8_t* state, size_t word, uint64_t half) {
  uint64_t value = 0;
  std::memcpy(&value, state + kFirstWord + 8 * word, sizeof(value));
  value = (value & 0xFFFFFFFF) | (half << 32);
  std::memcpy(state + kFirstWord + 8 * word, &value, sizeof(value));
}

void write_stream(uint8_t* state, const detail::Draw& stream) {
  set_upper_half(state, 0, kStreamMark);
  set_upper_half(state, 1, stream.seed);
  set_upper_half(state, 2, stream.seed >> 32);
  set_upper_half(state, 3, stream.position);
  set_upper_half(state, 4, stream.position >> 32);
}

/// Returns the stream in a state; nullopt for a state of another generator.
std::optional<detail::Draw> read_stream(const uint8_t* state) {
  if (get_upper_half(state, 0) != kStreamMark) {
    return std::nullopt;
  }
  const auto read = [&](size_t word) {
    return get_upper_half(state, word) | get_upper_half(state, word + 1) << 32;
  };
  return detail::Draw{.seed = read(1), .position = read(3)};
}

void note_seeding() {
  ++seedings.get();
  detail::end_uneven_draws();
}

void copy_state(at::CPUGeneratorImpl& to, at::CPUGeneratorImpl& from) {
  const auto f = from.next_float_normal_sample();
  const auto d = from.next_double_normal_sample();
  to.set_engine(from.engine());
  to.set_next_float_normal_sample(f);
  to.set_next_double_normal_sample(d);
}

/// Proxy in place of the process's default generator. Forwards to the rank's
/// own generator.
class DefaultGenerator final : public at::CPUGeneratorImpl {
  using Base = at::CPUGeneratorImpl;

 public:
  void set_current_seed(uint64_t seed) override {
    note_seeding();
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
    note_seeding();
    auto* mine = generator_of_this_rank();
    return mine ? mine->seed() : Base::seed();
  }
  void set_state(const c10::TensorImpl& state) override {
    auto* mine = generator_of_this_rank();
    mine ? mine->set_state(state) : Base::set_state(state);
    const auto* bytes = static_cast<const uint8_t*>(state.data());
    const uint8_t last = bytes[state.numel() - 1];
    const bool is_full = state.numel() == Base::get_state()->numel();
    const bool is_ours = is_full && (last & ~kMostFlags) == kFlagsMark;
    detail::set_draw_flags(is_ours ? last & kMostFlags : 0);
    const auto stream = is_ours ? read_stream(bytes) : std::nullopt;
    if (stream) {
      detail::draw_stream() = *stream;
    }
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    const auto* mine = generator_of_this_rank();
    auto state = mine ? mine->get_state() : Base::get_state();
    auto* bytes = static_cast<uint8_t*>(state->mutable_data());
    bytes[state->numel() - 1] = kFlagsMark | detail::draw_flags();
    write_stream(bytes, detail::draw_stream());
    return state;
  }

 private:
  // Stored in the last byte of a state; other generators do not write it.
  static constexpr uint8_t kMostFlags = 0x0F;
  static constexpr uint8_t kFlagsMark = 0xA0;

  at::CPUGeneratorImpl* clone_impl() const override {
    const auto* mine = generator_of_this_rank();
    // The copy has no reference yet: Generator::clone() adds the first one.
    auto copy = std::make_unique<at::CPUGeneratorImpl>();
    copy_state(
        *copy,
        mine ? const_cast<at::CPUGeneratorImpl&>(*mine)
             : const_cast<DefaultGenerator&>(*this));
    return copy.release();
  }
};

// LibTorch returns the default generator as a const reference to one of its own
// variables, which is not const.
at::Generator& default_generator() {
  return const_cast<at::Generator&>(at::detail::getDefaultCPUGenerator());
}

/// Number of users of the replaced default generator, and the original one.
struct Swapped {
  std::mutex mutex;
  int64_t count = 0;
  at::Generator before;
};

Swapped& swapped() {
  static auto* all = new Swapped;
  return *all;
}

// Replaces the default generator by `next`, with the current state.
void swap_default_generator(at::Generator next) {
  at::Generator old = default_generator();
  const std::lock_guard<std::mutex> lock(old.mutex());
  copy_state(
      *next.get<at::CPUGeneratorImpl>(), *old.get<at::CPUGeneratorImpl>());
  default_generator() = std::move(next);
}

} // namespace

void seed_rank_generator(uint64_t seed) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_current_seed(seed);
}

namespace detail {

const at::Generator& own_generator() {
  return own_generators.get();
}

// The original object also counts as the default generator.
bool is_default_generator(const at::Generator& generator) {
  return generator == default_generator() || generator == swapped().before;
}

Draw& draw_stream() {
  const uint64_t now = rank_seedings();
  SeededStream& mine = streams.get();
  if (mine.seedings != now) {
    const uint64_t seed = at::detail::getDefaultCPUGenerator().current_seed();
    mine = {.stream = {.seed = seed}, .seedings = now};
  }
  return mine.stream;
}

uint64_t rank_seedings() {
  if (!own_generator().defined()) {
    [[maybe_unused]] static const auto* const permanent = new GeneratorSwap;
  }
  return seedings.get();
}

GeneratorSwap::GeneratorSwap(bool wanted) : wanted_(wanted) {
  auto& all = swapped();
  const std::lock_guard<std::mutex> lock(all.mutex);
  if (wanted_ && all.count++ == 0) {
    all.before = default_generator();
    swap_default_generator(at::make_generator<DefaultGenerator>());
  }
}

GeneratorSwap::~GeneratorSwap() {
  auto& all = swapped();
  const std::lock_guard<std::mutex> lock(all.mutex);
  if (wanted_ && --all.count == 0) {
    swap_default_generator(std::exchange(all.before, {}));
  }
}

RankGeneratorScope::RankGeneratorScope(at::Generator own)
    : outer_(std::exchange(own_generators.get(), std::move(own))),
      was_watched_(intercept_random_ops(true)) {}

RankGeneratorScope::~RankGeneratorScope() {
  intercept_random_ops(was_watched_);
  own_generators.get() = std::move(outer_);
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
