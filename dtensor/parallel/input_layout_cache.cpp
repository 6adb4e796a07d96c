// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/parallel/input_layout_cache_impl.h>

#include <dtensor/comm/backend/assumed_shapes_impl.h>
#include <dtensor/comm/group/owner_impl.h>
#include <dtensor/comm/rank/plain_draws_impl.h>
#include <dtensor/redistribute/execute.h>
#include <dtensor/tensor/autograd_impl.h>
#include <dtensor/tensor/is_dtensor.h>
#include <dtensor/tensor/layout_steps_impl.h>
#include <dtensor/tensor/wrap_impl.h>

namespace dtensor::detail {

// False on a thread of another rank, so that the slow path throws its usual
// error.
bool InputLayoutCache::is_like(const at::Tensor& x, const DeviceMesh& mesh)
    const {
  return is_of_this_thread(mesh) && from_ != nullptr && !is_dtensor(x) &&
      x.layout() == at::kStrided && x.device().type() == mesh.device_type() &&
      x.scalar_type() == from_->dtype() && x.sizes() == SizesRef(sizes_) &&
      x.strides() == SizesRef(strides_);
}

at::Tensor InputLayoutCache::enter(const at::Tensor& x) const {
  record_converted_back(*from_);
  auto whole = wrap_counted(x, from_, x);
  if (inferred_) {
    const AssumedTensor noted(whole);
    note_inferred(*from_);
  }
  return from_ == to_ ? whole : cast_and_redistribute(whole, to_);
}

void InputLayoutCache::note(
    const at::Tensor& x,
    const SpecPtr& from,
    const SpecPtr& to,
    bool inferred) {
  if (!is_of_this_thread(from->mesh()) || is_dtensor(x) ||
      x.layout() != at::kStrided) {
    return;
  }
  sizes_ = x.sizes();
  strides_ = x.strides();
  from_ = from;
  to_ = to;
  inferred_ = inferred;
}

} // namespace dtensor::detail
