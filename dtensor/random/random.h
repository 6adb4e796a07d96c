// SPDX-License-Identifier: BSD-3-Clause
// Random numbers that do not depend on how a tensor is spread.
//
// Every rank has a stream {seed, position}; each random operator on a DTensor
// takes one position. An element's bits are a function (Philox) of the seed,
// the position and the element's global index, so initialisation, dropout and
// sampling are bitwise the same on 1, 2, 3 or 8 ranks, in any layout:
//
//   manual_seed(0);
//   auto x = randn({5, 7}, mesh, {Shard(0)});   // the same on every mesh
//   torch::nn::init::xavier_uniform_(weight);   // of a DTensor: likewise
//
// All ranks must call the same random operators in the same order, ranks
// outside an operator's mesh included. A `generator` argument is refused.
#pragma once

#include <dtensor/tensor/factories.h>

#include <cstdint>

namespace dtensor {

/// Starts this rank's stream anew, and its plain default generator. All ranks
/// pass the same seed. Before the first call the seed is that of LibTorch's
/// default CPU generator, so torch::manual_seed before run_ranks counts too.
/// Python: torch.distributed.tensor._random.manual_seed.
DTENSOR_API void manual_seed(uint64_t seed);

/// The state of this rank's stream and of its plain default generator, as
/// bytes, for a checkpoint; and the way back, on any number of ranks, of ranks
/// that draw alike.
/// Throws ValueError for bytes that are no such state.
/// Python: torch.get_rng_state, torch.set_rng_state.
DTENSOR_API at::Tensor get_random_state();
DTENSOR_API void set_random_state(const at::Tensor& state);

/// Uniform in [0, 1); the rest as zeros(). Throws ValueError for Partial.
/// Python: torch.distributed.tensor.rand.
DTENSOR_API at::Tensor rand(
    SizesRef size,
    const DeviceMesh& mesh = {},
    PlacementsRef placements = {},
    const FactoryOptions& options = {});

/// Normal with mean 0 and variance 1; the rest as rand().
/// Python: torch.distributed.tensor.randn.
DTENSOR_API at::Tensor randn(
    SizesRef size,
    const DeviceMesh& mesh = {},
    PlacementsRef placements = {},
    const FactoryOptions& options = {});

} // namespace dtensor
