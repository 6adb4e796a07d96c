// SPDX-License-Identifier: BSD-3-Clause
// Random numbers that do not depend on a tensor's layout.
//
// Every rank has a stream {seed, position}, and each random operator on a
// DTensor uses one position. An element's bits are a function (Philox) of the
// seed, the position and the element's global index. Initialization, dropout
// and sampling are therefore bitwise the same on 1, 2, 3 or 8 ranks, in any
// layout:
//
//   manual_seed(0);
//   auto x = randn({5, 7}, mesh, {Shard(0)});   // the same on every mesh
//   torch::nn::init::xavier_uniform_(weight);   // so is a DTensor weight
//
// All ranks must call the same random operators in the same order, including
// ranks outside an operator's mesh. Operators throw ValueError for a
// `generator` argument.
#pragma once

#include <dtensor/tensor/factories.h>

#include <cstdint>

namespace dtensor {

/// Seeds this rank's stream, and its default generator for plain tensors. All
/// ranks must pass the same seed. A stream that was never seeded has the seed
/// of LibTorch's default CPU generator, so torch::manual_seed before run_ranks
/// also takes effect.
/// Python: torch.distributed.tensor._random.manual_seed.
DTENSOR_API void manual_seed(uint64_t seed);

/// Return and restore the state of this rank's stream and default generator, as
/// bytes for a checkpoint. The state may be restored on another number of ranks
/// if all ranks had drawn the same numbers. set_random_state() throws
/// ValueError for bytes that are not a state.
/// Python: torch.get_rng_state, torch.set_rng_state.
DTENSOR_API at::Tensor get_random_state();
DTENSOR_API void set_random_state(const at::Tensor& state);

/// Returns uniform random numbers in [0, 1); otherwise as zeros(). Throws
/// ValueError for Partial.
/// Python: torch.distributed.tensor.rand.
DTENSOR_API at::Tensor rand(
    SizesRef size,
    const DeviceMesh& mesh = {},
    PlacementsRef placements = {},
    const FactoryOptions& options = {});

/// Returns normal random numbers of mean 0 and variance 1; otherwise as rand().
/// Python: torch.distributed.tensor.randn.
DTENSOR_API at::Tensor randn(
    SizesRef size,
    const DeviceMesh& mesh = {},
    PlacementsRef placements = {},
    const FactoryOptions& options = {});

} // namespace dtensor
