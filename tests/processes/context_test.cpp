// SPDX-License-Identifier: BSD-3-Clause
// Attention over a sharded sequence, forward and backward, compared with plain
// attention, over the backend with which the suite was started.
#include <dtensor/dtensor.h>
#include <tests/parallel/attention_cases.h>
#include <tests/processes/on_ranks.h>

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::test_modules;

DeviceMesh ranks_of_sequence() {
  return init_device_mesh(at::kCPU, {get_world_size()}, {"cp"});
}

// Checks a case with plain local shards in balanced order, and with DTensors.
void check_all(AttentionCase c) {
  const auto mesh = ranks_of_sequence();
  for (c.causal = false;; c.causal = true) {
    for (const auto method : kMethods) {
      check_parts(c, mesh, method);
      check_dtensors(c, mesh, method);
    }
    if (c.causal) {
      break;
    }
  }
}

// Lengths that are divisible by the number of ranks, lengths that are not, and
// fewer tokens than ranks.
TEST_ON_RANKS(ProcessContext, IsPlainAttention) {
  for (const int64_t tokens : {48, 13, 7, 2}) {
    check_all({.tokens = tokens, .heads = 4, .key_heads = 4});
  }
}

// More key heads than ranks, and one key head for all queries.
TEST_ON_RANKS(ProcessContext, GroupsQueries) {
  for (const int64_t key_heads : {4, 1}) {
    check_all({.tokens = 11, .heads = 8, .key_heads = key_heads});
  }
}

// Sequences beyond the inline size and the chunk size of backends.
TEST_ON_RANKS(ProcessContext, GoesThroughManyTokens) {
  for (const auto method : kMethods) {
    const AttentionCase c{
        .tokens = 301,
        .heads = 4,
        .key_heads = 2,
        .features = 32,
        .value_features = 32};
    check_parts(c, ranks_of_sequence(), method);
    check_dtensors(c, ranks_of_sequence(), method);
  }
}

// Heads are sharded as well.
TEST_ON_RANKS(ProcessContext, CutsHeadsOnAnotherDimension) {
  const int64_t size = get_world_size();
  const int64_t heads = size % 2 == 0 && size > 2 ? 2 : 1;
  const auto mesh =
      init_device_mesh(at::kCPU, {size / heads, heads}, {"cp", "tp"});
  const AttentionCase c{.tokens = 13, .heads = 4, .key_heads = 2};
  const Placements both = {Shard(2), Shard(1)};
  for (const auto method : kMethods) {
    const auto all = inputs_of(c);
    std::vector<DTensor> cut;
    for (size_t i = 0; i < 4; ++i) {
      cut.push_back(distribute_tensor(all[i], mesh, both));
      cut[i].requires_grad_(i < 3);
    }
    at::Tensor out;
    {
      const auto scope =
          context_parallel(mesh["cp"], {.rotate_method = method});
      out = attend(c, cut[0], cut[1], cut[2]);
    }
    EXPECT_EQ(to_string(DTensor(out).placements()), to_string(both));
    out.backward(cut[3]);
    expect_truth(
        {out, cut[0].grad(), cut[1].grad(), cut[2].grad()},
        c,
        c.text() + " by " + name_of(method));
  }
}

} // namespace TEST_SOURCE
} // namespace dtensor
