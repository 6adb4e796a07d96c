// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/rank/plain_draws_impl.h>

#include <ATen/CPUGeneratorImpl.h>
#include <dtensor/comm/rank_generator_impl.h>
#include <dtensor/comm/world_impl.h>

#include <mutex>

namespace dtensor::detail {

RankLocal<LocalTensorUse> handed_out;

namespace {

enum Flag : uint8_t {
  kUnevenFlag = 1,
  kInUseFlag = 2,
  kTakenBackFlag = 4,
};

RankLocal<at::Generator> seeded_by_call;

// Returns true if ranks share one generator, so that they never draw equal
// numbers.
bool draws_in_turns() {
  return has_peers_in_process() && !own_generator().defined();
}

bool differs_between_ranks(const Spec& spec) {
  const auto shape = spec.mesh().shape();
  for (size_t m = 0; m < shape.size(); ++m) {
    if (shape[m] > 1 && !spec.placements()[m].is_replicate()) {
      return true;
    }
  }
  return false;
}

// Returns true if shards of `elements` elements, one per shard of the layout,
// add up to the full tensor. False for every shard of an uneven layout.
bool adds_up_to_full(const Spec& spec, int64_t elements) {
  const auto shape = spec.mesh().shape();
  for (size_t m = 0; m < shape.size(); ++m) {
    elements *= spec.placements()[m].is_sharded() ? shape[m] : 1;
  }
  return elements == spec.numel();
}

// Returns true if ranks have shards of different sizes. The result is equal on
// all ranks: ranks outside the mesh, which have no shard, use the shard of the
// mesh's first rank.
bool is_uneven(const Spec& spec) {
  if (adds_up_to_full(spec, numel(spec.local_sizes()))) {
    return false;
  }
  const Sizes first(spec.placements().size(), 0);
  return !adds_up_to_full(
      spec,
      numel(local_sizes(
          spec.sizes(), spec.mesh().shape(), spec.placements(), first)));
}

void note_shards(bool uneven, LocalTensorUse& mine) {
  mine.shards = true;
  if (uneven) {
    rank_seedings(); // from now on seedings are counted
    mine.uneven = true;
    mine.in_use = true;
    mine.taken_back = false;
    mine.known_spec = 0;
  }
}

// Derives the engine's full state from a 64-bit seed by splitmix64 (Steele et
// al., "Fast splittable pseudorandom number generators", 2014). (The engine's
// own seeding uses only 32 bits.)
at::mt19937 engine_seeded_by(uint64_t seed) {
  auto data = at::mt19937(seed).data();
  data.seed_ = seed;
  for (auto& word : data.state_) {
    seed += 0x9E3779B97F4A7C15;
    uint64_t mixed = (seed ^ (seed >> 30)) * 0xBF58476D1CE4E5B9;
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB;
    word = static_cast<uint32_t>((mixed ^ (mixed >> 31)) >> 32);
  }
  at::mt19937 engine;
  engine.set_data(data);
  return engine;
}

uint64_t next_number() {
  at::Generator from = own_generator().defined()
      ? own_generator()
      : at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> lock(from.mutex());
  return from.get<at::CPUGeneratorImpl>()->random64();
}

} // namespace

void note_other_tensor(const Spec& spec, LocalTensorUse& mine) {
  if (draws_in_turns()) {
    return;
  }
  if (differs_between_ranks(spec)) {
    note_shards(is_uneven(spec), mine);
  } else if (mine.taken_back) {
    mine.in_use = false;
    mine.taken_back = false;
  }
  mine.known_spec = spec.id();
}

void note_shards(bool uneven) {
  if (!draws_in_turns()) {
    note_shards(uneven, handed_out.get());
  }
}

void note_tensor_back(const Spec& spec, LocalTensorUse& mine) {
  if (is_uneven(spec)) {
    mine.taken_back = true;
    mine.known_spec = 0;
  }
}

HandedOutScope::~HandedOutScope() {
  if (now_.seedings == before_.seedings) {
    before_.shards = now_.shards;
    before_.known_spec = 0;
    now_ = before_;
  }
}

void end_uneven_draws() {
  LocalTensorUse& mine = handed_out.get();
  mine = {.shards = mine.shards, .seedings = mine.seedings + 1};
}

uint8_t draw_flags() {
  const LocalTensorUse& mine = handed_out.get();
  return static_cast<uint8_t>(
      (mine.uneven ? kUnevenFlag : 0) | (mine.in_use ? kInUseFlag : 0) |
      (mine.taken_back ? kTakenBackFlag : 0));
}

void set_draw_flags(uint8_t flags) {
  end_uneven_draws();
  LocalTensorUse& mine = handed_out.get();
  mine.uneven = (flags & kUnevenFlag) != 0;
  mine.in_use = (flags & kInUseFlag) != 0;
  mine.taken_back = (flags & kTakenBackFlag) != 0;
}

bool reseeds_per_call(DrawKind kind) {
  const LocalTensorUse& mine = handed_out.get();
  switch (kind) {
    case DrawKind::kMakes:
      return mine.in_use;
    case DrawKind::kReads:
      return mine.uneven;
    case DrawKind::kByValue:
      return mine.shards || mine.uneven;
  }
  return false;
}

const at::Generator& generator_of_call() {
  at::Generator& seeded = seeded_by_call.get();
  if (!seeded.defined()) {
    seeded = at::make_generator<at::CPUGeneratorImpl>();
  }
  const auto number = next_number();
  auto* const mine = seeded.get<at::CPUGeneratorImpl>();
  mine->set_engine(engine_seeded_by(number));
  mine->set_next_float_normal_sample(std::nullopt);
  mine->set_next_double_normal_sample(std::nullopt);
  return seeded;
}

} // namespace dtensor::detail
