// SPDX-License-Identifier: BSD-3-Clause
// The dispatch key of what has no data yet: DTensors on the meta device have
// it, and a DeferredInit scope includes it. LibTorch keeps it for tests of its
// own and registers nothing there (TorchInternals.MetaKey). It comes before
// autograd, and its fallback stands in deferred/deferred_init.cpp.
//
// A DTensor needs it because the bit of the meta device outranks every other:
// beside a plain meta tensor, LibTorch would not ask the DTensor's kernels.
#pragma once

#include <dtensor/torch_internals.h>

namespace dtensor::detail {

constexpr auto kMetaKey = c10::DispatchKey::TESTING_ONLY_GenericWrapper;
static_assert(kMetaKey > c10::DispatchKey::AutogradFunctionality);
static_assert(kMetaKey > kRankKey);

} // namespace dtensor::detail
