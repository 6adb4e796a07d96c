// SPDX-License-Identifier: BSD-3-Clause
// BackendCall: the scope of one call of a backend.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <dtensor/comm/group/recorded_impl.h>
#include <dtensor/comm/group_backend.h>

#include <optional>
#include <string_view>

namespace dtensor::detail {

/// A guard under which collectives compute below autograd, for any grad mode of
/// the caller.
struct PlainTensors {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  at::NoGradGuard no_grad;
};

/// Returns "dtensor::all_reduce" or "dtensor::all_reduce_async": the name of
/// the collective in LibTorch's profilers.
std::string_view profiler_name(const Collective& collective);

/// Makes the collective's inputs plain: contiguous, and not lazily conjugated
/// or negated.
void make_dense(Collective& collective);

/// Shows the call to LibTorch's profilers. If the backend needs plain tensors,
/// also excludes autograd and makes the inputs plain (contiguous, not lazily
/// conjugated or negated).
class BackendCall {
 public:
  BackendCall(const GroupBackend& backend, Collective& collective)
      : recorded_([&] { return profiler_name(collective); }) {
    if (C10_UNLIKELY(backend.needs().plain)) {
      plain_.emplace();
      make_dense(collective);
    }
  }

 private:
  Recorded recorded_;
  std::optional<PlainTensors> plain_;
};

} // namespace dtensor::detail
