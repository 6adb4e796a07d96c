// SPDX-License-Identifier: BSD-3-Clause
// What attention over a cut sequence communicates, counted exactly. With c
// ranks, batch b, s tokens, k = heads of keys * features, h = heads of queries
// * features and e bytes an element:
//
//              forward                         backward
// allgather    1 all-gather                    1 all-gather, 1 reduce-scatter
//              2 (c-1)/c b s k e               4 (c-1)/c b s k e
// alltoall     c-1 all-to-alls                 2 (c-1) all-to-alls
//              (c-1) * 2 b s/c k e             (c-1) * 4 b s/c k e
// ulysses      4 all-to-alls                   4 all-to-alls
//              (c-1)/c * 2 b s/c (h + k) e     the same
#include <dtensor/debug/comm_debug_mode.h>
#include <tests/parallel/attention_cases.h>

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::test_modules;

struct Expected {
  CollectiveKind kind;
  int64_t count;
  double wire;
};

void expect_totals(
    const CommDebugMode& comm,
    bool backward,
    const std::vector<Expected>& all) {
  int64_t count = 0;
  for (const auto& expected : all) {
    const auto total =
        comm.total({.kind = expected.kind, .backward = backward});
    EXPECT_EQ(total.count, expected.count);
    EXPECT_DOUBLE_EQ(total.wire_bytes, expected.wire);
    count += expected.count;
  }
  EXPECT_EQ(comm.total({.backward = backward}).count, count);
}

class ContextCounts : public testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ContextCounts, testing::Values(2, 3, 4));

constexpr AttentionCase kCase = {.tokens = 24, .heads = 8, .key_heads = 4};

void count(
    RotateMethod method,
    int64_t ranks,
    const std::vector<Expected>& forward,
    const std::vector<Expected>& backward) {
  on_cp(ranks, [&](const DeviceMesh& mesh) {
    const auto all = inputs_of(kCase);
    std::vector<DTensor> cut;
    for (size_t i = 0; i < 4; ++i) {
      cut.push_back(distribute_tensor(all[i], mesh, {Shard(2)}));
      cut[i].requires_grad_(i < 3);
    }
    const auto scope = context_parallel(mesh, {.rotate_method = method});
    const CommDebugMode comm;
    attend(kCase, cut[0], cut[1], cut[2]).backward(cut[3]);
    expect_totals(comm, false, forward);
    expect_totals(comm, true, backward);
  });
}

// b s k e and b s h e.
double bytes_of_keys() {
  return 2.0 * 24 * 4 * 4 * 8;
}
double bytes_of_queries() {
  return 2.0 * 24 * 8 * 4 * 8;
}

TEST_P(ContextCounts, OfKeysThatAreGathered) {
  const auto c = static_cast<double>(GetParam());
  const double keys = (c - 1) / c * bytes_of_keys();
  count(
      RotateMethod::kAllGather,
      GetParam(),
      {{CollectiveKind::kAllGather, 1, 2 * keys}},
      {{CollectiveKind::kAllGather, 1, 2 * keys},
       {CollectiveKind::kReduceScatter, 1, 2 * keys}});
}

TEST_P(ContextCounts, OfKeysThatGoRound) {
  const auto c = static_cast<double>(GetParam());
  const double step = 2 * bytes_of_keys() / c;
  count(
      RotateMethod::kAllToAll,
      GetParam(),
      {{CollectiveKind::kAllToAll, GetParam() - 1, (c - 1) * step}},
      {{CollectiveKind::kAllToAll, 2 * (GetParam() - 1), (c - 1) * 2 * step}});
}

// Of 4 heads, three ranks keep 2, 2 and 0.
TEST_P(ContextCounts, OfHeadsThatAreExchanged) {
  if (GetParam() == 3) {
    return;
  }
  const auto c = static_cast<double>(GetParam());
  const double wire =
      (c - 1) / c * 2 * (bytes_of_queries() + bytes_of_keys()) / c;
  count(
      RotateMethod::kUlysses,
      GetParam(),
      {{CollectiveKind::kAllToAll, 4, wire}},
      {{CollectiveKind::kAllToAll, 4, wire}});
}

// Nothing but what the queries need, if no gradient of keys is wanted.
TEST(ContextCountsOfQueries, NeedNoGradientsOfKeys) {
  on_cp(2, [](const DeviceMesh& mesh) {
    const auto all = inputs_of(kCase);
    std::vector<DTensor> cut;
    for (size_t i = 0; i < 4; ++i) {
      cut.push_back(distribute_tensor(all[i], mesh, {Shard(2)}));
    }
    cut[0].requires_grad_();
    {
      const auto scope =
          context_parallel(mesh, {.rotate_method = RotateMethod::kAllToAll});
      const CommDebugMode comm;
      attend(kCase, cut[0], cut[1], cut[2]).backward(cut[3]);
      EXPECT_EQ(comm.total({.backward = true}).count, 1);
    }
    expect_close(cut[0].grad(), truth_of(kCase)[1], "query", 1e-10);
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
