// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/data_parallel/shard_parameter_impl.h>

#include <dtensor/error.h>
#include <dtensor/layout/mesh_state_impl.h>
#include <dtensor/layout/spec_impl.h>
#include <dtensor/layout/text.h>
#include <dtensor/tensor/is_dtensor.h>
#include <dtensor/tensor/meta_impl.h>

namespace dtensor::detail {
namespace {

int64_t dim_of(
    const std::optional<Placement>& wanted,
    const at::Tensor& parameter,
    const std::string& name) {
  const auto placement = wanted.value_or(Shard(0));
  DTENSOR_CHECK_VALUE(
      placement.is_chunk(),
      "[{}] parameter \"{}\" cannot be sharded as {}. Return Shard(d) from "
      "shard_placement_fn.",
      kFullyShard,
      name,
      to_string(placement));
  const auto ndim = parameter.dim();
  const auto dim =
      placement.dim() < 0 ? placement.dim() + ndim : placement.dim();
  DTENSOR_CHECK_VALUE(
      dim >= 0 && dim < ndim,
      "[{}] parameter \"{}\" has {}, so it cannot be sharded as {}. Choose a "
      "dimension that it has; reshape a scalar to one dimension, or add it to "
      "ignored_params.",
      kFullyShard,
      name,
      pluralize(ndim, "dimension"),
      to_string(placement));
  return dim;
}

// Returns the placement with which data parallelism shards along `dim` the
// local shards of tensor parallelism. The placement is as if the mesh dimension
// of data parallelism came last, although it comes first.
Placement shard_of_local_shards(const Spec& unsharded, int64_t dim) {
  int64_t parts = 1;
  int64_t unit = 1;
  for (int64_t m = 0; m < unsharded.mesh().ndim(); ++m) {
    const auto& p = unsharded.placements()[static_cast<size_t>(m)];
    if (p.is_sharded(dim)) {
      parts *= unsharded.mesh().size(m);
      unit = p.unit();
    }
  }
  return parts == 1 ? Shard(dim) : StridedShard(dim, parts, unit);
}

// True if on every rank `spec` yields the expected shard: the local shard of
// `unsharded`, sharded again over data-parallel ranks.
bool yields_expected_shards(
    const Spec& spec,
    const Spec& unsharded,
    int64_t dim,
    int64_t unit,
    int64_t shard_dim) {
  const auto& mesh = spec.mesh();
  const auto size = spec.sizes()[static_cast<size_t>(dim)];
  const auto data_dims = static_cast<size_t>(shard_dim) + 1;
  for (int64_t i = 0; i < mesh.size(); ++i) {
    const auto at = mesh.coordinate_of(i);
    const auto parts = local_intervals(
        size,
        dim,
        unsharded.mesh().shape(),
        unsharded.placements(),
        SizesRef(at).slice(data_dims));
    const auto expected = shard_intervals(
        parts,
        unit == 1 ? Shard(dim) : Shard(dim, unit),
        mesh.size(shard_dim),
        at[data_dims - 1]);
    const auto found =
        local_intervals(size, dim, mesh.shape(), spec.placements(), at);
    if (expected != found && total_size(expected) + total_size(found) > 0) {
      return false;
    }
  }
  return true;
}

ParameterLayout layout_of_plain(
    const at::Tensor& parameter,
    int64_t dim,
    const DataMesh& data) {
  auto placements = replicated_placements(data.mesh);
  placements.back() = Shard(dim);
  return {
      Spec::make(
          data.mesh,
          placements,
          parameter.sizes(),
          parameter.scalar_type(),
          kFullyShard),
      nullptr,
      {Sizes(parameter.sizes().begin(), parameter.sizes().end()), dim, {}}};
}

// Puts the mesh dimension of data parallelism first, as Python does. If a
// StridedShard cannot express the sharding (unevenly sharded heads), puts this
// mesh dimension last.
SpecPtr spec_over_both(
    const Spec& unsharded,
    const std::string& name,
    int64_t dim,
    DataMesh& data) {
  const auto placement = shard_of_local_shards(unsharded, dim);
  const auto spec_on = [&](const DeviceMesh& mesh,
                           Placements placements,
                           PlacementsRef later) {
    placements.append(later.begin(), later.end());
    return Spec::make(
        mesh, placements, unsharded.sizes(), unsharded.dtype(), kFullyShard);
  };
  auto over_data = replicated_placements(data.mesh);
  over_data.back() = placement;
  auto spec = spec_on(
      data.with(unsharded.mesh(), name), over_data, unsharded.placements());
  if (yields_expected_shards(
          *spec, unsharded, dim, placement.unit(), data.shard_dim())) {
    return spec;
  }
  over_data.back() = Shard(dim, placement.unit());
  return spec_on(
      DeviceMesh::concatenate({unsharded.mesh(), data.mesh}),
      Placements(unsharded.placements()),
      over_data);
}

ParameterLayout layout_of_distributed(
    const at::Tensor& parameter,
    const std::string& name,
    int64_t dim,
    DataMesh& data) {
  const auto& given = spec_of(parameter);
  DTENSOR_CHECK_VALUE(
      !given->has_partial(),
      "[{}] parameter \"{}\" is {}, which is Partial. Use styles that shard "
      "or replicate it.",
      kFullyShard,
      name,
      *given);
  const auto unsharded = Spec::make(
      given->mesh(),
      given->placements(),
      given->sizes(),
      given->dtype(),
      kFullyShard);
  return {
      spec_over_both(*unsharded, name, dim, data),
      unsharded,
      {Sizes(unsharded->local_sizes().begin(), unsharded->local_sizes().end()),
       dim,
       {}}};
}

} // namespace

DeviceMesh DataMesh::with(
    const DeviceMesh& model,
    const std::string& parameter) {
  auto& joined = joined_[model.identity()];
  if (!joined.defined()) {
    DTENSOR_CHECK_VALUE(
        !share_others(mesh, model),
        "[{}] parameter \"{}\" is already on {}, which shares ranks with {}. "
        "Pass a mesh dimension that tensor parallelism does not use.",
        kFullyShard,
        parameter,
        model,
        mesh);
    joined = DeviceMesh::concatenate({mesh, model});
  }
  return joined;
}

ParameterLayout layout_of(
    const at::Tensor& parameter,
    const std::string& name,
    DataMesh& data,
    const std::optional<Placement>& wanted) {
  const auto dim = dim_of(wanted, parameter, name);
  auto layout = is_dtensor(parameter)
      ? layout_of_distributed(parameter, name, dim, data)
      : layout_of_plain(parameter, dim, data);
  const auto unit = layout.unsharded == nullptr
      ? 1
      : shard_of_local_shards(*layout.unsharded, dim).unit();
  const auto ranks = data.mesh.size(data.shard_dim());
  for (int64_t rank = 0; rank < ranks; ++rank) {
    layout.sharded.shards.push_back(chunk(
        layout.sharded.sizes[static_cast<size_t>(dim)], ranks, rank, unit));
  }
  layout.rank = static_cast<size_t>(data.mesh.get_local_rank(data.shard_dim()));
  return layout;
}

at::Tensor copy_shard(const at::Tensor& tensor, const ParameterLayout& layout) {
  const auto local = is_dtensor(tensor) ? local_of(tensor) : tensor.detach();
  const auto& interval = layout.sharded.shards[layout.rank];
  return local.narrow(layout.sharded.dim, interval.begin, interval.size())
      .clone(at::MemoryFormat::Contiguous);
}

} // namespace dtensor::detail
