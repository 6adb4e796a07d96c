// SPDX-License-Identifier: BSD-3-Clause
// Plan: a model, its distribution, and its training steps, drawn from a seed. A
// plan is the same for one process and for all ranks.
#pragma once

#include <tests/randomized/harness/random.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace dtensor::units {

using randomized::Random;

/// Function of a block on (rows, width), which keeps the shape.
enum class Kind : uint8_t {
  kLinear,
  kMlp,
  kNorm,
  kSequence, // LibTorch's layers in nested containers
  kConv,
  kGain,   // a parameter of one element
  kNumber, // a parameter without dimensions, invalid in a unit
  kEmbedding,
  kTied,  // an embedding; its weight is also used directly
  kViews, // parameters used through views and copies
  kAlone, // parameters used as the only operand; with hooks
  kRecurrent,
  kAttention,
  kGroup, // contains other blocks
};

struct BlockPlan {
  Kind kind = Kind::kLinear;
  int64_t hidden = 1;
  bool is_hooked = false;
  bool is_parallel = false; // over "tp"
  bool is_unit = false;
  std::optional<int64_t> reshards; // 0: false, 1: true, n > 1: number of ranks
  bool cuts_last = false;          // shards the last dimension of parameters
  int64_t frozen = -1;             // index of a frozen parameter
  bool shares = false; // shares the layer of the last block of its kind
  int64_t calls = 1;   // calls per forward pass
  bool recomputes = false;
  bool is_lost = false; // its result is unused
  std::vector<BlockPlan> inner;
};

struct StepPlan {
  int64_t skipped = -1;    // block that is not called
  int64_t thrown = -1;     // block after which a first forward pass throws
  int64_t evaluations = 0; // 1: under no_grad, 2: in inference mode
  int64_t parts = 1;       // backward passes
  bool syncs_each = false;
  bool is_repeated = false; // second backward pass of one graph
  bool unshards = false;    // calls unshard() before the forward pass
  bool clips = false;
  bool sets_to_none = true;
  bool casts = false; // casts the module and back before all else
  bool asks = false;  // calls autograd::grad() before the backward pass
  bool joins = false; // joins two graphs
};

struct Plan {
  uint64_t seed = 0;
  std::vector<int64_t> mesh;
  std::vector<std::string> names; // of "repeat", "shard", "tp"
  bool replicates = false;        // replicate() instead of fully_shard()
  int64_t bucket_bytes = 1;
  bool root_is_unit = true;
  bool root_is_hooked = false;
  bool in_float = false; // param_dtype is float
  bool keeps_after_backward = false;
  int64_t prefetched = -1; // block that the first block prefetches
  int64_t width = 4;
  int64_t rows = 1; // per rank and backward pass
  int64_t optimizer = 0;
  int64_t plain_steps = 0; // steps before fully_shard()
  std::vector<BlockPlan> blocks;
  std::vector<StepPlan> steps;

  bool has(const std::string& name) const;
  int64_t ranks() const;
  /// Returns the number of ranks with different rows.
  int64_t data_ranks() const;
  std::string text() const;
};

Plan draw_plan(uint64_t seed);

/// Returns plans that are smaller in one respect.
std::vector<Plan> smaller(const Plan& plan);

} // namespace dtensor::units
