// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/rank/rank_local_impl.h>

#include <c10/util/Exception.h>
#include <dtensor/comm/world_impl.h>

namespace dtensor::detail {
namespace {

// Assigns slots in order of first use.
size_t new_number(std::atomic<size_t>& slot) {
  static std::mutex mutex;
  static size_t given = 0;
  const std::lock_guard<std::mutex> lock(mutex);
  if (slot.load() == 0) {
    TORCH_INTERNAL_ASSERT(given + 1 < RankState::kSlots, "raise kSlots");
    slot.store(++given);
  }
  return slot.load();
}

} // namespace

void* RankState::get(size_t slot, Make make, Drop drop) {
  if (void* known = find(slot)) {
    return known;
  }
  void* made = make();
  void* known = nullptr;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    known = find(slot);
    if (known == nullptr) {
      drops_[slot] = drop;
      values_[slot].store(made, std::memory_order_release);
    }
  }
  if (known != nullptr) { // another thread of the rank was faster
    drop(made);
    return known;
  }
  return made;
}

// Runs without the lock: destructors may look up remaining values.
void RankState::clear() {
  for (size_t slot = 0; slot < kSlots; ++slot) {
    if (void* value = values_[slot].exchange(nullptr)) {
      drops_[slot](value);
    }
  }
}

void* find_rank_local(
    std::atomic<size_t>& slot,
    RankState::Make make,
    RankState::Drop drop) {
  const size_t known = slot.load(std::memory_order_relaxed);
  const size_t number = known != 0 ? known : new_number(slot);
  if (this_thread.state != nullptr) {
    return this_thread.state->get(number, make, drop);
  }
  if (const auto world = world_worked_for()) {
    return state_of(*world).get(number, make, drop);
  }
  thread_local RankState own;
  return own.get(number, make, drop);
}

} // namespace dtensor::detail
