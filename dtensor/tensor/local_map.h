// SPDX-License-Identifier: BSD-3-Clause
// local_map: a function on local tensors, as one on DTensors.
//
//   // Rows of x times all of w, without communication.
//   const auto product = local_map(
//       [](const at::Tensor& x, const at::Tensor& w) { return at::mm(x, w); },
//       {Shard(0)},                      // what it returns
//       {{Shard(0)}, {Replicate()}},     // what it takes
//       {.in_grad_placements = {{Shard(0)}, {Partial()}}});
//   at::Tensor y = product(x, w);        // x: S(0), w: R, y: S(0)
//
// docs/concepts/experimental.md says what gradients it has.
// Python: torch.distributed.tensor.experimental.local_map.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/api.h>
#include <dtensor/layout/mesh.h>
#include <dtensor/layout/placement.h>
#include <dtensor/tensor/map_leaves.h>

#include <exception>
#include <initializer_list>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace dtensor {

/// The layout of one argument or result; std::nullopt for what is no DTensor.
class MaybePlacements {
 public:
  MaybePlacements() = default;
  MaybePlacements(std::nullopt_t) {}
  MaybePlacements(std::initializer_list<Placement> placements)
      : value_(Placements(placements)) {}
  MaybePlacements(Placements placements) : value_(std::move(placements)) {}

  const std::optional<Placements>& value() const {
    return value_;
  }

 private:
  std::optional<Placements> value_;
};

/// One for each argument or result. A tensor is one, each tensor in a vector,
/// optional, pair or tuple is one, and so is each value that is no tensor.
using PlacementsList = std::vector<MaybePlacements>;

/// Options of local_map.
struct LocalMapOptions {
  /// The layouts in which the function makes the gradients of its arguments;
  /// nullopt or nothing: those of the arguments, Partial -> Replicate. Of a
  /// replicated argument beside others that are cut it has to be said:
  /// Partial() where ranks compute different terms of it, Replicate() where all
  /// compute the same.
  PlacementsList in_grad_placements = {};
  /// That of the results; it must be that of the arguments.
  DeviceMesh device_mesh = {};
  /// Redistribute arguments that have another layout than in_placements.
  bool redistribute_inputs = false;
  /// Global shapes of the results. With them ranks need not tell each other the
  /// sizes of uneven parts, and ranks outside the mesh know those too.
  std::vector<std::optional<std::vector<int64_t>>> out_shapes = {};
};

namespace detail {

/// What the calls of one function have in common.
struct LocalMapLayouts {
  PlacementsList out;
  PlacementsList in; // empty: any
  LocalMapOptions options;
};

/// One call.
class DTENSOR_API LocalMapCall {
 public:
  LocalMapCall(const LocalMapLayouts& layouts, const MapLeaves& args);
  ~LocalMapCall();
  LocalMapCall(const LocalMapCall&) = delete;
  LocalMapCall& operator=(const LocalMapCall&) = delete;

  /// The arguments as the function gets them.
  const MapLeaves& locals() const;
  /// Its results as the caller gets them.
  MapLeaves leave(MapLeaves results) const;
  /// To be called when it has thrown: may throw what says more.
  void explain() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Calls `fn` on local tensors.
template <class Fn, class... Args>
auto call_on_locals(const LocalMapCall& call, const Fn& fn, Args&&... args) {
  [[maybe_unused]] const MapLeaf* next = call.locals().data();
  // In braces, so that arguments take their leaves from the left to the right.
  std::tuple<decltype(with_leaves(next, std::forward<Args>(args)))...> locals{
      with_leaves(next, std::forward<Args>(args))...};
  try {
    return std::apply(fn, std::move(locals));
  } catch (const std::exception&) {
    call.explain();
    throw;
  }
}

} // namespace detail

/// What local_map() makes of a function; it is called as the function is, with
/// DTensors.
template <class Fn>
class LocalMap {
 public:
  LocalMap(Fn fn, detail::LocalMapLayouts layouts)
      : fn_(std::move(fn)),
        layouts_(std::move(layouts)) {}

  template <class... Args>
  auto operator()(Args&&... args) const {
    detail::MapLeaves leaves;
    (detail::add_leaves(leaves, args), ...);
    const detail::LocalMapCall call(layouts_, leaves);
    auto result =
        detail::call_on_locals(call, fn_, std::forward<Args>(args)...);
    leaves.clear();
    detail::add_leaves(leaves, result);
    leaves = call.leave(std::move(leaves));
    const detail::MapLeaf* next = leaves.data();
    return std::decay_t<decltype(detail::with_leaves(next, std::move(result)))>(
        detail::with_leaves(next, std::move(result)));
  }

 private:
  Fn fn_;
  detail::LocalMapLayouts layouts_;
};

/// `fn`, which takes and returns local tensors and anything else, as a function
/// on DTensors: it gets this rank's parts of them, and the tensors it returns
/// are this rank's parts of DTensors in `out_placements`. Arguments must be in
/// `in_placements`; without, they may be in any. Other arguments are passed on.
/// Differentiable, to any order; communicates nothing by itself, but for the
/// sizes of the results where an argument is cut unevenly. Called without a
/// DTensor, it is `fn` alone. On a rank outside the mesh `fn` runs on meta
/// tensors of the shapes of the first rank, for the shapes of its results.
/// The calls throw ValueError for an argument in another layout, for layouts
/// that are not one for each argument or result, and for a gradient that may
/// mean two things (LocalMapOptions); TypeError for a plain tensor that a
/// layout is given for, and if `fn` returns a DTensor. Python:
/// torch.distributed.tensor.experimental.local_map.
template <class Fn>
auto local_map(
    Fn fn,
    Placements out_placements,
    PlacementsList in_placements = {},
    LocalMapOptions options = {}) {
  return LocalMap<Fn>(
      std::move(fn),
      {{std::move(out_placements)},
       std::move(in_placements),
       std::move(options)});
}

/// The same for several results, in PlacementsList{{Shard(0)}, {Replicate()}}.
template <class Fn>
auto local_map(
    Fn fn,
    PlacementsList out_placements,
    PlacementsList in_placements = {},
    LocalMapOptions options = {}) {
  return LocalMap<Fn>(
      std::move(fn),
      {std::move(out_placements),
       std::move(in_placements),
       std::move(options)});
}

} // namespace dtensor
