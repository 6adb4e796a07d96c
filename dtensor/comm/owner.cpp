// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/owner_impl.h>

#include <c10/macros/Macros.h>
#include <c10/util/StringUtil.h>
#include <dtensor/comm/thread_world_impl.h>
#include <dtensor/error.h>
#include <dtensor/layout/mesh_state_impl.h>
#include <dtensor/layout/text.h>

namespace dtensor::detail {
namespace {

// `beside` is the other rank in the sentence.
std::string rank_text(const Owner& owner, const Owner* beside) {
  const bool others = beside != nullptr && beside->world != owner.world;
  return c10::str("rank ", owner.rank, others ? " of another run_ranks" : "");
}

std::string this_thread(const Owner* me) {
  return me ? c10::str("this is rank ", me->rank) : "this thread is no rank";
}

// Why this thread may not use what belongs to `owner`.
std::string why_not(const Owner* owner, const Owner* me) {
  if (owner == nullptr) {
    return "was made outside of ranks, and " + this_thread(me);
  }
  if (owner->has_ended) {
    return c10::str(
        "belongs to rank ",
        owner->rank,
        " of a run_ranks that has ended, and ",
        this_thread(me));
  }
  return c10::str(
      "belongs to ", rank_text(*owner, me), ", and ", this_thread(me));
}

// Read in each collective and wherever a mesh is checked: in the part of the
// thread's memory that needs no call to find.
constexpr char kNoRank = 0;
[[gnu::tls_model("initial-exec")]] thread_local RankContext* this_rank =
    nullptr;
[[gnu::tls_model("initial-exec")]] thread_local const void* this_world =
    &kNoRank;

inline const void* world_of(const DeviceMesh& mesh) {
  return static_cast<const MeshState*>(mesh.identity())->world;
}

// Of a mesh that is not the rank's own.
const Owner* owner_of(const DeviceMesh& mesh) {
  const void* world = world_of(mesh);
  return world == &kNoRank ? nullptr : static_cast<const Owner*>(world);
}

} // namespace

RankContext* current_rank() {
  return this_rank;
}

void set_current_rank(RankContext* context) {
  this_rank = context;
  this_world = identity_of(current_owner());
}

const Owner* current_owner() {
  return this_rank ? this_rank->owner.get() : nullptr;
}

OwnerPtr shared_owner() {
  return this_rank ? this_rank->owner : nullptr;
}

const void* identity_of(const Owner* owner) {
  return owner ? static_cast<const void*>(owner) : &kNoRank;
}

void check_owner(
    std::string_view where,
    c10::function_ref<std::string()> what,
    const Owner* owner) {
  const Owner* me = current_owner();
  DTENSOR_CHECK(
      owner == me,
      where,
      what(),
      " ",
      why_not(owner, me),
      ". Build one model per rank, inside run_ranks, and take plain tensors "
      "out of it.");
}

bool is_mine(const DeviceMesh& mesh) {
  return C10_LIKELY(world_of(mesh) == this_world) || world_of(mesh) == nullptr;
}

void check_mine(std::string_view where, const DeviceMesh& mesh) {
  if (C10_UNLIKELY(!is_mine(mesh))) {
    check_owner(
        where, [&] { return "mesh " + to_string(mesh); }, owner_of(mesh));
  }
}

void check_mine(std::string_view where, const Spec& spec) {
  if (C10_UNLIKELY(!is_mine(spec.mesh()))) {
    check_owner(
        where, [&] { return to_string(spec); }, owner_of(spec.mesh()));
  }
}

void check_readable(std::string_view where, const Spec& spec) {
  if (C10_LIKELY(is_mine(spec.mesh()))) {
    return;
  }
  const Owner* owner = owner_of(spec.mesh());
  if (owner == nullptr || !owner->has_ended) {
    check_mine(where, spec);
  }
}

} // namespace dtensor::detail
