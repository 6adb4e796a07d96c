// SPDX-License-Identifier: BSD-3-Clause
// local_map: applies a function on local tensors to DTensors.
//
//   // Rows of x times all of w, without communication.
//   const auto product = local_map(
//       [](const at::Tensor& x, const at::Tensor& w) { return at::mm(x, w); },
//       {Shard(0)},                      // result layout
//       {{Shard(0)}, {Replicate()}},     // argument layouts
//       {.in_grad_placements = {{Shard(0)}, {Partial()}}});
//   at::Tensor y = product(x, w);        // x: S(0), w: R, y: S(0)
//
// docs/concepts/experimental.md describes the gradients.
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

/// The layout of one argument or result; std::nullopt if it is not a DTensor.
class MaybePlacements {
 public:
  MaybePlacements() = default;
  MaybePlacements(std::nullopt_t) {}
  MaybePlacements(std::initializer_list<Placement> placements)
      : value_(Placements(placements)) {}
  MaybePlacements(Placements placements) : value_(std::move(placements)) {}

  /// Returns the placements, or std::nullopt.
  const std::optional<Placements>& value() const {
    return value_;
  }

 private:
  std::optional<Placements> value_;
};

/// One entry per argument or result, tensor or not. Each tensor in a vector,
/// optional, pair or tuple has an entry of its own.
using PlacementsList = std::vector<MaybePlacements>;

/// Options of local_map.
struct LocalMapOptions {
  /// Layouts of the gradients that the function computes for its arguments.
  /// Default (nullopt or empty): the argument's layout, with Replicate in place
  /// of Partial. Required for a replicated argument if other arguments or
  /// results are not replicated: Partial() if the ranks' gradients are terms of
  /// a sum, Replicate() if all ranks compute the same gradient.
  PlacementsList in_grad_placements = {};
  /// Mesh of the results; must be the mesh of the arguments.
  DeviceMesh device_mesh = {};
  /// Redistributes arguments that are not in the layout of in_placements.
  bool redistribute_inputs = false;
  /// Global shapes of the results. If given, ranks do not exchange the sizes of
  /// uneven shards, and ranks outside the mesh get the shapes too.
  std::vector<std::optional<std::vector<int64_t>>> out_shapes = {};
};

namespace detail {

/// Layouts and options shared by all calls of one function.
struct LocalMapLayouts {
  PlacementsList out;
  PlacementsList in; // empty: any layout is accepted
  LocalMapOptions options;
};

/// A single call of a mapped function.
class DTENSOR_API LocalMapCall {
 public:
  LocalMapCall(const LocalMapLayouts& layouts, const MapLeaves& args);
  ~LocalMapCall();
  LocalMapCall(const LocalMapCall&) = delete;
  LocalMapCall& operator=(const LocalMapCall&) = delete;

  /// Returns the arguments for the function, with DTensors replaced by local
  /// tensors.
  const MapLeaves& locals() const;
  /// Converts the function's results to DTensors.
  MapLeaves wrap_results(MapLeaves results) const;
  /// Called when the function has thrown. Throws a more specific error if
  /// possible.
  void explain() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Calls `fn` on local tensors.
template <class Fn, class... Args>
auto call_on_locals(const LocalMapCall& call, const Fn& fn, Args&&... args) {
  [[maybe_unused]] const MapLeaf* next = call.locals().data();
  // Braced initialization evaluates the arguments from left to right, which
  // assigns the leaves in order.
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

/// The result of local_map(): a callable with the function's parameters that
/// accepts DTensors.
template <class Fn>
class LocalMap {
 public:
  LocalMap(Fn fn, detail::LocalMapLayouts layouts)
      : fn_(std::move(fn)),
        layouts_(std::move(layouts)) {}

  /// Calls the function on local tensors and wraps its results.
  template <class... Args>
  auto operator()(Args&&... args) const {
    detail::MapLeaves leaves;
    (detail::add_leaves(leaves, args), ...);
    const detail::LocalMapCall call(layouts_, leaves);
    auto result =
        detail::call_on_locals(call, fn_, std::forward<Args>(args)...);
    leaves.clear();
    detail::add_leaves(leaves, result);
    leaves = call.wrap_results(std::move(leaves));
    const detail::MapLeaf* next = leaves.data();
    return std::decay_t<decltype(detail::with_leaves(next, std::move(result)))>(
        detail::with_leaves(next, std::move(result)));
  }

 private:
  Fn fn_;
  detail::LocalMapLayouts layouts_;
};

/// Turns `fn`, a function on local tensors and other values, into a function on
/// DTensors. `fn` receives the local tensors of the arguments, and the tensors
/// that it returns become the local tensors of DTensors in `out_placements`.
/// Arguments must be in `in_placements`; without these, any layout is accepted.
/// Values that are not DTensors are passed on. Differentiable to any order.
///
/// A call communicates only the sizes of results, and only if an argument is
/// sharded unevenly. A call without a DTensor calls `fn` directly. On a rank
/// outside the mesh, `fn` runs on meta tensors of the first rank's shapes, to
/// find the shapes of the results.
///
/// Calls throw ValueError for an argument in another layout, for a wrong number
/// of layouts, and for an ambiguous gradient (LocalMapOptions). Calls throw
/// TypeError if an argument with a layout is a plain tensor, and if `fn`
/// returns a DTensor.
/// Python: torch.distributed.tensor.experimental.local_map.
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

/// The overload for several results: PlacementsList{{Shard(0)}, {Replicate()}}.
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
