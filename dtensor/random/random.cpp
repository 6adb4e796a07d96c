// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/random/random.h>

#include <dtensor/comm/mesh_scope.h>
#include <dtensor/comm/rank_generator.h>
#include <dtensor/comm/rank_generator_impl.h>
#include <dtensor/error.h>
#include <dtensor/layout/spec_impl.h>
#include <dtensor/layout/text.h>
#include <dtensor/random/sample_impl.h>
#include <dtensor/tensor/replica_observer_impl.h>
#include <dtensor/tensor/wrap_impl.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <c10/core/DefaultDtype.h>

#include <array>
#include <cstring>
#include <mutex>

namespace dtensor {
namespace {

// Bytes of seed and position, at the start of a state.
constexpr int64_t kDrawBytes = 16;

// Notifies replica observers: all ranks of the mesh must draw at the same
// position of the same stream.
void notify_draw(const detail::Draw& s, const DeviceMesh& mesh) {
  const auto draw = at::empty({2}, at::kLong);
  draw.data_ptr<int64_t>()[0] = static_cast<int64_t>(s.seed);
  draw.data_ptr<int64_t>()[1] = static_cast<int64_t>(s.position);
  const auto placements = detail::replicated_placements(mesh);
  detail::notify_replica_observers(
      {detail::ReplicaKind::kDraw, draw, mesh, placements});
}

using Sampler =
    at::Tensor (*)(const Spec&, at::ScalarType, detail::Draw, double, double);

at::Tensor sampled(
    const char* where,
    SizesRef size,
    const DeviceMesh& given_mesh,
    PlacementsRef placements,
    const FactoryOptions& options,
    Sampler sampler) {
  const auto mesh = detail::mesh_or_current(given_mesh, where);
  const auto dtype = options.dtype.value_or(
      c10::typeMetaToScalarType(c10::get_default_dtype()));
  DTENSOR_CHECK_NOT_IMPLEMENTED(
      at::isFloatingType(dtype) || at::isComplexType(dtype),
      "[{}] cannot draw {}. Pass a floating-point or complex dtype, and "
      "convert the result.",
      where,
      shape_text(dtype, size));
  const auto spec = Spec::make(
      mesh, placements_or_replicated(mesh, placements), size, dtype, where);
  DTENSOR_CHECK_VALUE(
      !spec->has_partial(),
      "[{}] random values cannot be Partial: {}. Use Shard or Replicate.",
      where,
      *spec);
  const auto draw = detail::next_draw(mesh);
  at::Tensor local = mesh.contains_this_rank()
      ? sampler(*spec, dtype, draw, 0, 1)
      : at::empty({0}, at::TensorOptions(dtype).device(mesh.device_type()));
  auto result = detail::wrap(std::move(local), spec);
  result.set_requires_grad(options.requires_grad);
  return result;
}

} // namespace

void manual_seed(uint64_t seed) {
  detail::rank_seedings(); // starts counting seedings
  seed_rank_generator(seed);
}

at::Tensor get_random_state() {
  const auto& s = detail::draw_stream();
  const std::array<uint64_t, 2> draw = {s.seed, s.position};
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  at::Tensor plain;
  {
    // All ranks of the process share the mutex, so it is held briefly.
    const std::lock_guard<std::mutex> lock(generator.mutex());
    plain = generator.get_state();
  }
  auto state = at::empty({plain.numel() + kDrawBytes}, at::kByte);
  std::memcpy(state.data_ptr(), draw.data(), kDrawBytes);
  std::memcpy(
      state.data_ptr<uint8_t>() + kDrawBytes,
      plain.const_data_ptr(),
      plain.nbytes());
  return state;
}

void set_random_state(const at::Tensor& state) {
  // Installs the rank's generator, which reads a full state.
  detail::rank_seedings();
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  {
    const std::lock_guard<std::mutex> lock(generator.mutex());
    const auto bytes = generator.get_state().numel() + kDrawBytes;
    DTENSOR_CHECK_VALUE(
        state.defined() && !is_dtensor(state) &&
            state.scalar_type() == at::kByte && state.dim() == 1 &&
            state.numel() == bytes,
        "[set_random_state] not a generator state, which has {} bytes. Pass "
        "what get_random_state() returned.",
        bytes);
    generator.set_state(
        state.narrow(0, kDrawBytes, bytes - kDrawBytes).clone());
  }
  std::array<uint64_t, 2> draw{};
  std::memcpy(draw.data(), state.contiguous().data_ptr(), kDrawBytes);
  detail::set_next_draw({draw[0], draw[1]});
}

at::Tensor rand(
    SizesRef size,
    const DeviceMesh& mesh,
    PlacementsRef placements,
    const FactoryOptions& options) {
  return sampled(
      "rand", size, mesh, placements, options, detail::sample_uniform);
}

at::Tensor randn(
    SizesRef size,
    const DeviceMesh& mesh,
    PlacementsRef placements,
    const FactoryOptions& options) {
  return sampled(
      "randn", size, mesh, placements, options, detail::sample_normal);
}

namespace detail {

Draw next_draw(const DeviceMesh& mesh) {
  auto& s = draw_stream();
  if (C10_UNLIKELY(replicas_observed())) {
    notify_draw(s, mesh);
  }
  return {s.seed, s.position++};
}

Draw peek_draw() {
  return draw_stream();
}

void set_next_draw(Draw draw) {
  draw_stream() = draw;
}

} // namespace detail
} // namespace dtensor
