// SPDX-License-Identifier: BSD-3-Clause
// The default random generator of plain CPU tensors, one per rank.
//
// LibTorch has one default generator per process. Ranks that are threads would
// draw from it in turns, and each would initialize its model with different
// values. Inside run_ranks every rank therefore has a default generator of its
// own, which starts as a copy of the caller's. torch::manual_seed,
// torch::randn, dropout and other operators use that generator, so a program
// draws the same numbers on every rank as outside of run_ranks.
#pragma once

#include <dtensor/api.h>

#include <cstdint>

namespace dtensor {

/// Seeds the default CPU generator of this rank (of the process, outside
/// run_ranks). torch::manual_seed does the same, for all devices.
DTENSOR_API void seed_rank_generator(uint64_t seed);

} // namespace dtensor
