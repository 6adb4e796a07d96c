// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/group/owner_impl.h>

#include <c10/macros/Macros.h>
#include <c10/util/StringUtil.h>
#include <dtensor/comm/world_impl.h>
#include <dtensor/error.h>
#include <dtensor/layout/mesh_state_impl.h>
#include <dtensor/layout/text.h>

namespace dtensor::detail {
namespace {

// Names `owner`, in a sentence that also names the rank `beside`.
std::string rank_text(const World& owner, const World& beside) {
  const bool others =
      &beside != &process_world() && beside.shared() != owner.shared();
  return detail::format_text(
      "rank {}{}",
      owner.rank(),
      others ? c10::str(" of another ", owner.name()) : "");
}

std::string this_thread_text(const World& me) {
  return &me == &process_world() ? "this thread is not a rank"
                                 : c10::str("this is rank ", me.rank());
}

// Returns the reason why this thread may not use an object of `owner`.
std::string why_not(const World& owner, const World& me) {
  if (&owner == &process_world()) {
    return "was made outside of ranks, but " + this_thread_text(me);
  }
  if (owner.has_ended()) {
    return detail::format_text(
        "belongs to rank {} of a {} that has ended, but {}",
        owner.rank(),
        owner.name(),
        this_thread_text(me));
  }
  return detail::format_text(
      "belongs to {}, but {}", rank_text(owner, me), this_thread_text(me));
}

// Returns null for a mesh without communication.
const World* owner_of(const DeviceMesh& mesh) {
  return static_cast<const World*>(
      static_cast<const MeshState*>(mesh.identity())->world);
}

// Returns true inside a backward node of the mesh's rank, where objects of this
// rank may be used.
bool is_owned_by_current_node(const DeviceMesh& mesh) {
  return !is_rank() && owner_of(mesh) == &current_world();
}

} // namespace

void check_owner(
    std::string_view where,
    c10::function_ref<std::string()> what,
    const World* owner) {
  const auto me = this_world();
  DTENSOR_CHECK(
      owner == me.get(),
      "[{}] {} {}. Build one model per rank, in the function that the ranks "
      "run, and return only plain tensors from it.",
      where,
      what(),
      why_not(*owner, *me));
}

bool is_owned_by_this_rank(const DeviceMesh& mesh) {
  return is_of_this_thread(mesh) || owner_of(mesh) == nullptr ||
      is_owned_by_current_node(mesh);
}

void check_owned_by_this_rank(std::string_view where, const DeviceMesh& mesh) {
  if (C10_UNLIKELY(!is_owned_by_this_rank(mesh))) {
    check_owner(
        where, [&] { return "mesh " + to_string(mesh); }, owner_of(mesh));
  }
}

void check_spec(std::string_view where, const Spec& spec, bool reads) {
  if (is_owned_by_this_rank(spec.mesh()) ||
      (reads && owner_of(spec.mesh())->has_ended())) {
    return;
  }
  check_owner(
      where, [&] { return to_string(spec); }, owner_of(spec.mesh()));
}

} // namespace dtensor::detail
