// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/tensor/local_map.h>

#include <dtensor/tensor/is_dtensor.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <dtensor/comm/group/owner_impl.h>
#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/comm/rank/plain_draws_impl.h>
#include <dtensor/error.h>
#include <dtensor/layout/shard_math.h>
#include <dtensor/layout/text.h>
#include <dtensor/redistribute/moves_impl.h>
#include <dtensor/tensor/autograd_impl.h>
#include <dtensor/tensor/dtensor.h>
#include <dtensor/tensor/layout_steps_impl.h>
#include <dtensor/tensor/meta_impl.h>
#include <dtensor/tensor/wrap_impl.h>

#include <algorithm>
#include <string>

namespace dtensor {
namespace detail {
namespace {

using Shape = std::optional<std::vector<int64_t>>;

constexpr const char* kLocalMap = "local_map";

bool is_distributed(const MapLeaf& leaf) {
  return leaf.is_tensor && is_dtensor(leaf.tensor);
}

void check_number_of_layouts(
    const char* option,
    size_t given,
    size_t arguments) {
  DTENSOR_CHECK_VALUE(
      given == 0 || given == arguments,
      "[{}] {} has layouts for {}, but the function was called with {} "
      "(counting each tensor of a list). Pass one for each.",
      kLocalMap,
      option,
      pluralize(given, "argument"),
      arguments);
}

// Throws if a layout was given for an argument that is not a DTensor.
void check_plain(const MapLeaf& leaf, const MaybePlacements& wanted, size_t i) {
  if (!wanted.value()) {
    return;
  }
  DTENSOR_CHECK_TYPE(
      !leaf.is_tensor || !leaf.tensor.defined(),
      "[{}] argument {} is a plain tensor of shape {}, but in_placements has "
      "{} for it. Make it a DTensor, or pass std::nullopt for it.",
      kLocalMap,
      i,
      leaf.tensor.sizes(),
      to_string(PlacementsRef(*wanted.value())));
  DTENSOR_CHECK_TYPE(
      leaf.is_tensor,
      "[{}] argument {} is not a tensor, but in_placements has {} for it. Pass "
      "std::nullopt.",
      kLocalMap,
      i,
      to_string(PlacementsRef(*wanted.value())));
}

// Returns the DTensor in its requested layout.
at::Tensor in_layout(
    const at::Tensor& t,
    const MaybePlacements& wanted,
    bool may_redistribute,
    size_t i) {
  const auto& spec = spec_of(t);
  DTENSOR_CHECK_VALUE(
      wanted.value().has_value(),
      "[{}] argument {} is a DTensor, {}, but in_placements has std::nullopt "
      "for it. Pass its layout.",
      kLocalMap,
      i,
      *spec);
  const auto layout = normalize_placements(
      spec->mesh(), *wanted.value(), spec->dim(), kLocalMap);
  if (spec->placements() == PlacementsRef(layout)) {
    return t;
  }
  DTENSOR_CHECK_VALUE(
      may_redistribute,
      "[{}] argument {} is {}, but in_placements has {} for it. Redistribute "
      "it, or set redistribute_inputs.",
      kLocalMap,
      i,
      *spec,
      to_string(PlacementsRef(layout)));
  return DTensor(t).redistribute(layout);
}

// Returns the mesh of all DTensors among the arguments. It must be
// `expected_mesh` if `expected_mesh` is defined. Throws RuntimeError if a
// DTensor is on another mesh.
DeviceMesh common_mesh(const MapLeaves& args, const DeviceMesh& expected_mesh) {
  DeviceMesh mesh = expected_mesh;
  for (size_t i = 0; i < args.size(); ++i) {
    if (!is_distributed(args[i])) {
      continue;
    }
    const auto& spec = *spec_of(args[i].tensor);
    DTENSOR_CHECK(
        !mesh.defined() || spec.mesh() == mesh,
        "[{}] argument {}, {}, is on a different mesh than {}, {}. Bring all "
        "to one mesh: from_local(x.full_tensor(), mesh) replicates x on a "
        "mesh.",
        kLocalMap,
        i,
        spec,
        expected_mesh.defined() ? "device_mesh" : "the ones before",
        mesh);
    mesh = spec.mesh();
  }
  return mesh;
}

// Returns the arguments, with DTensors in their requested layouts. Throws for
// arguments that cannot or may not be redistributed.
MapLeaves in_layouts(MapLeaves args, const LocalMapLayouts& layouts) {
  for (size_t i = 0; i < args.size() && !layouts.in.empty(); ++i) {
    const auto& wanted = layouts.in[i];
    if (!is_distributed(args[i])) {
      check_plain(args[i], wanted, i);
      continue;
    }
    args[i].tensor = in_layout(
        args[i].tensor, wanted, layouts.options.redistribute_inputs, i);
  }
  return args;
}

void check_number_of_results(const char* option, size_t given, size_t results) {
  DTENSOR_CHECK_VALUE(
      given == results,
      "[{}] the function returned {} (counting each tensor of a list), but {} "
      "are for {}. Pass one for each.",
      kLocalMap,
      pluralize(results, "value"),
      option,
      given);
}

// Returns a meta tensor of the first rank's local shape, for ranks outside the
// mesh.
at::Tensor meta_shard_of_first_rank(const Spec& spec) {
  const Sizes first(spec.placements().size(), 0);
  const auto sizes =
      local_sizes(spec.sizes(), spec.mesh().shape(), spec.placements(), first);
  return at::empty_strided(
      sizes,
      dense_strides(sizes, spec.strides()),
      at::TensorOptions().dtype(spec.dtype()).device(c10::kMeta));
}

// Returns the global sizes of the tensor with local tensor `part`: sums the
// local sizes along sharded dimensions over all ranks.
std::vector<int64_t> sum_of_sizes(
    const at::Tensor& part,
    const DeviceMesh& mesh,
    PlacementsRef placements) {
  auto sizes = part.sizes().vec();
  for (int64_t m = mesh.ndim(); m-- > 0;) {
    const auto& p = placements[static_cast<size_t>(m)];
    if (!p.is_sharded()) {
      continue;
    }
    auto& size = sizes[static_cast<size_t>(p.dim())];
    const auto all =
        get_group(mesh, m).all_gather_strings(std::to_string(size));
    size = 0;
    for (const auto& text : all) {
      size += std::stoll(text);
    }
  }
  return sizes;
}

} // namespace

struct LocalMapCall::State {
  const LocalMapLayouts& layouts;
  MapLeaves locals = {};
  DeviceMesh mesh = {};
  bool distributed = false; // true if an argument is a DTensor
  bool outside = false;     // true if this rank is outside the mesh
  bool even = true;         // true if all shards are even
  std::vector<at::Tensor> with_gradients = {};
  std::optional<at::NoGradGuard> no_grad = std::nullopt;
  std::optional<HandedOutScope> handed_out = std::nullopt;

  MaybePlacements grad_of(size_t i) const {
    const auto& given = layouts.options.in_grad_placements;
    return given.empty() ? MaybePlacements() : given[i];
  }
  void check_gradient(const MapLeaves& args, size_t i) const;
  void enter(const MapLeaves& args);
  at::Tensor wrap_result(const at::Tensor& part, size_t i) const;
  at::Tensor nothing(
      const at::Tensor& part,
      PlacementsRef placements,
      const Shape& shape) const;
};

// Throws if the gradient of a replicated argument is ambiguous. If other
// layouts differ between ranks, each rank may compute a different term of the
// gradient or all ranks the same gradient. Only the caller can decide.
void LocalMapCall::State::check_gradient(const MapLeaves& args, size_t i)
    const {
  const auto& spec = *spec_of(args[i].tensor);
  if (!records(args[i].tensor) || grad_of(i).value()) {
    return;
  }
  for (size_t m = 0; m < spec.placements().size(); ++m) {
    const auto differs = [&](PlacementsRef p) {
      return m < p.size() && !p[m].is_replicate();
    };
    bool any = false;
    for (const auto& other : args) {
      any |=
          is_distributed(other) && differs(spec_of(other.tensor)->placements());
    }
    for (const auto& out : layouts.out) {
      any |= out.value() && differs(*out.value());
    }
    DTENSOR_CHECK_VALUE(
        !any || !spec.placements()[m].is_replicate() ||
            spec.mesh().shape()[m] == 1,
        "[{}] argument {}, {}, has an ambiguous gradient, since other "
        "arguments or results differ between the ranks of {}: the gradient may "
        "be a sum over these ranks, or the same on all of them. State which in "
        "in_grad_placements: Partial() or Replicate().",
        kLocalMap,
        i,
        spec,
        spec.mesh().dim_label(static_cast<int64_t>(m)));
  }
}

void LocalMapCall::State::enter(const MapLeaves& args) {
  for (size_t i = 0; i < args.size(); ++i) {
    locals.push_back(args[i]);
    auto& local = locals.back().tensor;
    if (!is_distributed(args[i])) {
      if (outside && local.defined()) {
        local = local.to(c10::kMeta);
      }
      continue;
    }
    check_gradient(args, i);
    const auto& spec = *spec_of(args[i].tensor);
    even &= has_equal_shards(spec);
    if (!outside) {
      local = DTensor(args[i].tensor).to_local(grad_of(i).value());
      continue;
    }
    if (records(args[i].tensor)) {
      with_gradients.push_back(args[i].tensor);
    }
    local = meta_shard_of_first_rank(spec);
  }
}

// Returns the result on a rank outside the mesh. `part` has the shape of the
// first rank's result.
at::Tensor LocalMapCall::State::nothing(
    const at::Tensor& part,
    PlacementsRef placements,
    const Shape& shape) const {
  DTENSOR_CHECK(
      shape || even,
      "[{}] rank {} is outside the mesh {} and cannot infer the shape of a "
      "result with uneven shards. Pass out_shapes.",
      kLocalMap,
      mesh.get_rank(),
      mesh);
  const auto spec =
      spec_of(from_local_lazy(part, mesh, placements, {.shape = shape}));
  return empty_on_other_ranks(with_gradients, spec);
}

at::Tensor LocalMapCall::State::wrap_result(const at::Tensor& part, size_t i)
    const {
  const auto& wanted = layouts.out[i].value();
  DTENSOR_CHECK_TYPE(
      !is_dtensor(part),
      "[{}] the function returned a DTensor, {}, as result {}. Return local "
      "tensors.",
      kLocalMap,
      *spec_of(part),
      i);
  DTENSOR_CHECK_VALUE(
      wanted.has_value(),
      "[{}] result {} is a tensor of shape {}, but out_placements has "
      "std::nullopt for it. Pass its layout.",
      kLocalMap,
      i,
      part.sizes());
  const auto& shapes = layouts.options.out_shapes;
  Shape shape = shapes.empty() ? std::nullopt : shapes[i];
  if (outside) {
    return nothing(part, *wanted, shape);
  }
  const auto layout =
      normalize_placements(mesh, *wanted, part.dim(), kLocalMap);
  if (!shape && !even) {
    shape = sum_of_sizes(part, mesh, layout);
  }
  return DTensor::from_local(part, mesh, layout, {.shape = std::move(shape)});
}

LocalMapCall::LocalMapCall(
    const LocalMapLayouts& layouts,
    const MapLeaves& args)
    : state_(new State{layouts}) {
  auto& call = *state_;
  call.distributed = std::ranges::any_of(args, is_distributed);
  if (!call.distributed) {
    call.locals = args;
    return;
  }
  check_number_of_layouts("in_placements", layouts.in.size(), args.size());
  check_number_of_layouts(
      "in_grad_placements",
      layouts.options.in_grad_placements.size(),
      args.size());
  call.mesh = common_mesh(args, layouts.options.device_mesh);
  check_owned_by_this_rank(kLocalMap, call.mesh);
  call.outside = !call.mesh.contains_this_rank();
  call.handed_out.emplace();
  call.enter(in_layouts(args, layouts));
  if (call.outside) {
    call.no_grad.emplace();
  }
}

LocalMapCall::~LocalMapCall() = default;

const MapLeaves& LocalMapCall::locals() const {
  return state_->locals;
}

MapLeaves LocalMapCall::wrap_results(MapLeaves results) const {
  if (!state_->distributed) {
    return results;
  }
  const auto& layouts = state_->layouts;
  const auto shapes = layouts.options.out_shapes.size();
  check_number_of_results("out_placements", layouts.out.size(), results.size());
  if (shapes != 0) {
    check_number_of_results("out_shapes", shapes, results.size());
  }
  for (size_t i = 0; i < results.size(); ++i) {
    auto& result = results[i];
    if (result.is_tensor && result.tensor.defined()) {
      result.tensor = state_->wrap_result(result.tensor, i);
      continue;
    }
    DTENSOR_CHECK_VALUE(
        result.is_tensor || !layouts.out[i].value(),
        "[{}] result {} is not a tensor, but out_placements has {} for it. "
        "Pass std::nullopt.",
        kLocalMap,
        i,
        to_string(PlacementsRef(*layouts.out[i].value())));
  }
  return results;
}

void LocalMapCall::explain() const {
  DTENSOR_CHECK(
      !state_->outside,
      "[{}] the function has no value on rank {}, which is outside the mesh "
      "{}: it does not run on meta tensors, so the shapes of its results are "
      "unknown. Call it on ranks of the mesh only.",
      kLocalMap,
      state_->mesh.get_rank(),
      state_->mesh);
}

} // namespace detail
} // namespace dtensor
