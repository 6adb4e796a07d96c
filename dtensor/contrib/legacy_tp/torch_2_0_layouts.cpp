// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/contrib/legacy_tp/torch_2_0.h>

#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/tensor/dtensor.h>

namespace dtensor::torch_2_0 {
namespace {

DeviceMesh mesh_of_input(
    const char* where,
    const at::Tensor& input,
    const DeviceMesh& given) {
  DTENSOR_CHECK(
      input.defined(),
      "[{}] the input is undefined. Pass a plain tensor or a DTensor.",
      where);
  DTENSOR_CHECK(
      given.defined() || is_dtensor(input),
      "[{}] the input is a plain tensor, and no mesh was passed. Pass a mesh.",
      where);
  auto mesh = given.defined() ? given : DTensor(input).device_mesh();
  DTENSOR_CHECK(
      mesh.ndim() == 1,
      "[{}] tensor parallelism runs along one mesh dimension, but the mesh is "
      "{}. Pass a slice, such as mesh[\"tp\"].",
      where,
      mesh);
  return mesh;
}

at::Tensor make_input(
    const char* where,
    const at::Tensor& input,
    const DeviceMesh& given,
    const Placement& of_plain,
    const Placement& desired) {
  const auto mesh = mesh_of_input(where, input, given);
  const DTensor distributed =
      is_dtensor(input) ? input : DTensor::from_local(input, mesh, {of_plain});
  return distributed.redistribute(mesh, {desired});
}

DTensor checked_output(
    const char* where,
    const at::Tensor& output,
    const DeviceMesh& given) {
  DTENSOR_CHECK_TYPE(
      is_dtensor(output),
      "[{}] the output is {}. Pass the DTensor that a parallel module made.",
      where,
      output.defined() ? "a plain tensor" : "undefined");
  DTensor result(output);
  const auto& mesh = given.defined() ? given : result.device_mesh();
  DTENSOR_CHECK_VALUE(
      mesh.ndim() == 1,
      "[{}] tensor parallelism runs along one mesh dimension, but the mesh is "
      "{}. Pass a slice, such as mesh[\"tp\"].",
      where,
      mesh);
  return result;
}

at::Tensor make_output(
    const char* where,
    const at::Tensor& output,
    const DeviceMesh& given,
    const Placement& desired) {
  const auto result = checked_output(where, output, given);
  return result.redistribute(
      given.defined() ? given : result.device_mesh(), {desired});
}

} // namespace

at::Tensor make_input_replicate_1d(
    const at::Tensor& input,
    const DeviceMesh& device_mesh) {
  return make_input(
      "make_input_replicate_1d", input, device_mesh, Replicate(), Replicate());
}

at::Tensor make_input_reshard_replicate(
    const at::Tensor& input,
    const DeviceMesh& device_mesh) {
  return make_input(
      "make_input_reshard_replicate",
      input,
      device_mesh,
      Shard(0),
      Replicate());
}

at::Tensor make_input_shard_1d(
    const at::Tensor& input,
    const DeviceMesh& device_mesh,
    int64_t dim) {
  return make_input(
      "make_input_shard_1d", input, device_mesh, Shard(dim), Shard(dim));
}

at::Tensor make_input_shard_1d_last_dim(
    const at::Tensor& input,
    const DeviceMesh& device_mesh) {
  return make_input(
      "make_input_shard_1d_last_dim", input, device_mesh, Shard(-1), Shard(-1));
}

at::Tensor make_output_replicate_1d(
    const at::Tensor& output,
    const DeviceMesh& device_mesh) {
  return make_output(
      "make_output_replicate_1d", output, device_mesh, Replicate());
}

at::Tensor make_output_shard_1d(
    const at::Tensor& output,
    const DeviceMesh& device_mesh,
    int64_t dim) {
  return make_output("make_output_shard_1d", output, device_mesh, Shard(dim));
}

at::Tensor make_output_tensor(
    const at::Tensor& output,
    const DeviceMesh& device_mesh) {
  return to_local(
      make_output("make_output_tensor", output, device_mesh, Replicate()));
}

at::Tensor make_output_reshard_tensor(
    const at::Tensor& output,
    const DeviceMesh& device_mesh) {
  return to_local(
      make_output("make_output_reshard_tensor", output, device_mesh, Shard(0)));
}

at::Tensor make_sharded_output_tensor(
    const at::Tensor& output,
    const DeviceMesh& device_mesh) {
  return checked_output("make_sharded_output_tensor", output, device_mesh)
      .to_local();
}

} // namespace dtensor::torch_2_0
