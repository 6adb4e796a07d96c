// SPDX-License-Identifier: BSD-3-Clause
// Construction of a DTensor from its local tensor. tensor/meta_impl.h describes
// a DTensor's state.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/api.h>
#include <dtensor/comm/pending.h>
#include <dtensor/layout/spec.h>
#include <dtensor/tensor/dtensor.h>

#include <string>

namespace dtensor::detail {

/// Returns a DTensor of `spec` with local tensor `local` (shape
/// spec->local_sizes()), without autograd history.
DTENSOR_INTERNAL_API at::Tensor wrap(at::Tensor local, SpecPtr spec);

/// Like wrap() above, for a local tensor in flight, on the device of `like`.
DTENSOR_INTERNAL_API at::Tensor
wrap(PendingPtr local, SpecPtr spec, const at::Tensor& like);

/// Returns true if `t` is dense: neither sparse, Mkldnn, quantized nor nested.
/// DTensors support only dense local tensors.
inline bool has_dense_format(const at::Tensor& t) {
  return t.layout() == at::kStrided && !t.is_quantized() && !t.is_nested();
}

/// Describes a tensor that is not dense, for errors: "nested tensor",
/// "quantized tensor", "tensor of layout Sparse".
std::string describe_format(const at::Tensor& t);

/// Throws NotImplementedError unless `t` is dense.
void check_dense(const char* where, const at::Tensor& t);

/// Throws ValueError unless `local` has the shape of this rank's local tensor.
void check_local_shape(
    const char* where,
    const at::Tensor& local,
    const Spec& spec);

/// Throws NotImplementedError for `t`, which is not dense. `what` is "returns",
/// for example.
[[noreturn]] void
refuse_format(const std::string& where, const char* what, const at::Tensor& t);

/// Replaces local tensor and spec of `self`. Used by in-place operators that
/// change the shape.
void rewrap(const at::Tensor& self, at::Tensor local, SpecPtr spec);

/// Sets the error message of data_ptr() and storage() eagerly. A parameter that
/// takes over this tensor by set_data() keeps its own TensorImpl and cannot set
/// the message lazily.
void explain_no_data(const at::Tensor& dtensor);

/// Like DTensor::from_local, but sets the error message of data_ptr() lazily
/// (tensor/wrap.cpp). Not for tensors that a parameter takes over by
/// set_data().
at::Tensor from_local_lazy(
    const at::Tensor& local,
    const DeviceMesh& mesh,
    PlacementsRef placements,
    const FromLocalOptions& options);

/// Records that from_local_lazy() inferred the global shape in `spec` from this
/// rank's local tensor. Ranks compare inferred shapes in the next checked
/// collective.
void note_inferred(const Spec& spec);

} // namespace dtensor::detail
