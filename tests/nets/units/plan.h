// SPDX-License-Identifier: BSD-3-Clause
// Plan: a model, how it is spread, and what is done with it, drawn from a seed.
// It says the same for one process and for all ranks.
#pragma once

#include <tests/property/arguments.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace dtensor::units {

using property::Random;

/// What a block computes of (rows, width), which it keeps.
enum class Kind : uint8_t {
  kLinear,
  kMlp,
  kNorm,
  kSequence, // of LibTorch's layers, one inside of another
  kConv,
  kGain,   // a parameter of one element
  kNumber, // one without dimensions, which no unit can have
  kEmbedding,
  kTied,  // an embedding whose weight is used as it is, too
  kViews, // parameters that are used through views and copies
  kAlone, // parameters that are used alone; with hooks
  kRecurrent,
  kAttention,
  kGroup, // of other blocks
};

struct BlockPlan {
  Kind kind = Kind::kLinear;
  int64_t hidden = 1;
  bool is_hooked = false;
  bool is_parallel = false; // over "tp"
  bool is_unit = false;
  std::optional<int64_t> reshards; // 0: false, 1: true, more: so many ranks
  bool cuts_last = false;          // dimension of parameters
  int64_t frozen = -1;             // one of its parameters
  bool shares = false; // has the layer of the last block of its kind
  int64_t calls = 1;   // in each forward
  bool recomputes = false;
  bool is_lost = false; // nobody uses the result
  std::vector<BlockPlan> inner;
};

struct StepPlan {
  int64_t skipped = -1;    // block that is not called
  int64_t thrown = -1;     // block after which forward throws, before all else
  int64_t evaluations = 0; // 1: under no_grad, 2: in inference mode
  int64_t parts = 1;       // backward passes
  bool syncs_each = false;
  bool is_repeated = false; // second backward pass of one graph
  bool unshards = false;    // before forward
  bool clips = false;
  bool sets_to_none = true;
  bool casts = false; // and casts back, before all else
  bool asks = false;  // by grad(), before backward
  bool joins = false; // two graphs
};

struct Plan {
  uint64_t seed = 0;
  std::vector<int64_t> mesh;
  std::vector<std::string> names; // of "repeat", "shard", "tp"
  bool replicates = false;        // instead of fully_shard
  int64_t bucket_bytes = 1;
  bool root_is_unit = true;
  bool root_is_hooked = false;
  bool in_float = false; // param_dtype
  bool keeps_after_backward = false;
  int64_t prefetched = -1; // block of the first one
  int64_t width = 4;
  int64_t rows = 1; // of each rank in each part
  int64_t optimizer = 0;
  int64_t plain_steps = 0; // before it is spread
  std::vector<BlockPlan> blocks;
  std::vector<StepPlan> steps;

  bool has(const std::string& name) const;
  int64_t ranks() const;
  /// That see other rows.
  int64_t data_ranks() const;
  std::string text() const;
};

Plan draw_plan(uint64_t seed);

/// Plans that are smaller in one respect.
std::vector<Plan> smaller(const Plan& plan);

} // namespace dtensor::units
