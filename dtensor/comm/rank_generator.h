// SPDX-License-Identifier: BSD-3-Clause
// The default random generator of plain CPU tensors, one per rank.
//
// Ranks are threads, and LibTorch has one default generator per process: ranks
// that initialise a model would draw from it in turns, and each would get
// other values. Inside run_ranks every rank therefore has a default generator
// of its own, which starts as a copy of the caller's. torch::manual_seed,
// torch::randn, dropout and so on use it, so a program draws on every rank
// what it draws outside of run_ranks.
#pragma once

#include <dtensor/api.h>

#include <cstdint>

namespace dtensor {

/// Seeds the default CPU generator of this rank (of the process, outside
/// run_ranks). torch::manual_seed does the same, for all devices.
DTENSOR_API void seed_rank_generator(uint64_t seed);

} // namespace dtensor
