// SPDX-License-Identifier: BSD-3-Clause
// Exact communication of attention over a sharded sequence, with c ranks, batch
// b, s tokens, k = key heads * features, h = query heads * features and e bytes
// per element:
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

// Runs forward and backward over sharded DTensors, then expect(comm).
template <class Fn>
void attend_cut(
    const AttentionCase& c,
    RotateMethod method,
    const DeviceMesh& mesh,
    const Fn& expect) {
  const auto all = inputs_of(c);
  std::vector<DTensor> cut;
  for (size_t i = 0; i < 4; ++i) {
    cut.push_back(distribute_tensor(all[i], mesh, {Shard(2)}));
    cut[i].requires_grad_(i < 3);
  }
  const auto scope = context_parallel(mesh, {.rotate_method = method});
  const CommDebugMode comm;
  attend(c, cut[0], cut[1], cut[2]).backward(cut[3]);
  expect(comm);
}

void count(
    RotateMethod method,
    int64_t ranks,
    const std::vector<Expected>& forward,
    const std::vector<Expected>& backward) {
  on_cp(ranks, [&](const DeviceMesh& mesh) {
    attend_cut(kCase, method, mesh, [&](const CommDebugMode& comm) {
      expect_totals(comm, false, forward);
      expect_totals(comm, true, backward);
    });
  });
}

// Bytes b s k e and b s h e.
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

// Skips three ranks, where 4 heads are distributed unevenly (2, 2 and 0).
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

// The backward pass transfers only keys and values if keys require no gradient.
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

// --- any lengths, dtypes and heads -------------------------------------------

// Expected bytes that rank `me` of `ranks` sends, with e bytes per element, and
// f bytes per element of a gradient that is accumulated in transit.
struct Formulas {
  Formulas(const AttentionCase& c, int64_t ranks, int64_t me)
      : all(c),
        size(static_cast<double>(ranks)),
        e(static_cast<double>(c10::elementSize(c.dtype))),
        f(std::max(e, 4.0)),
        t(lengths(c.tokens, ranks, me)),
        next(lengths(c.tokens, ranks, (me + 1) % ranks)),
        is_few(c.key_heads < ranks && c.grouped()),
        k(lengths(c.key_heads, ranks, me)),
        h(is_few ? lengths(c.heads, ranks, me)
                 : k * static_cast<double>(c.heads / c.key_heads)) {}

  static double lengths(int64_t whole, int64_t ranks, int64_t rank) {
    return static_cast<double>(chunk(whole, ranks, rank).size());
  }

  // Returns the number of elements in keys and values of `tokens` tokens.
  double keys(double tokens) const {
    return 2.0 * tokens * static_cast<double>(2 * all.features * all.key_heads);
  }
  double whole_keys() const {
    return keys(static_cast<double>(all.tokens));
  }

  // Elements sent to exchange a tensor with `heads` heads, `mine` of them for
  // this rank. The rank sends its own tokens of the other ranks' heads. The way
  // back is included.
  double to_heads(int64_t heads, double mine) const {
    return 2.0 * t * (static_cast<double>(heads) - mine) *
        static_cast<double>(all.features);
  }
  double to_tokens(double mine) const {
    return 2.0 * mine * (static_cast<double>(all.tokens) - t) *
        static_cast<double>(all.features);
  }

  AttentionCase all;
  double size, e, f;
  double t, next; // tokens of this rank and the next
  bool is_few;    // few key heads, hence gathered
  double k, h;    // key and query heads of this rank
};

using Totals = std::pair<std::vector<Expected>, std::vector<Expected>>;

Totals gathered(const Formulas& x) {
  const double all = (x.size - 1) / x.size * x.whole_keys();
  return {
      {{CollectiveKind::kAllGather, 1, all * x.e}},
      {{CollectiveKind::kAllGather, 1, all * x.e},
       {CollectiveKind::kReduceScatter, 1, all * x.f}}};
}

// Passes on all blocks except the next rank's, and gradients of all blocks
// except this rank's own.
Totals rotated(const Formulas& x) {
  const auto steps = static_cast<int64_t>(x.size) - 1;
  const double blocks = (x.whole_keys() - x.keys(x.next)) * x.e;
  const double gradients = (x.whole_keys() - x.keys(x.t)) * x.f;
  return {
      {{CollectiveKind::kAllToAll, steps, blocks}},
      {{CollectiveKind::kAllToAll, 2 * steps, blocks + gradients}}};
}

Totals exchanged(const Formulas& x) {
  const auto heads = x.to_heads(x.all.heads, x.h) + x.to_tokens(x.h);
  if (!x.is_few) {
    return {
        {{CollectiveKind::kAllToAll,
          4,
          (heads + 2 * x.to_heads(x.all.key_heads, x.k)) * x.e}},
        {{CollectiveKind::kAllToAll, 4, (heads + 2 * x.to_tokens(x.k)) * x.e}}};
  }
  const double all = (x.size - 1) / x.size * x.whole_keys() * x.e;
  return {
      {{CollectiveKind::kAllToAll, 2, heads * x.e},
       {CollectiveKind::kAllGather, 2, all}},
      {{CollectiveKind::kAllToAll, 2, heads * x.e},
       {CollectiveKind::kReduceScatter, 2, all}}};
}

Totals
totals_of(const AttentionCase& c, RotateMethod method, const DeviceMesh& mesh) {
  const Formulas x(c, mesh.size(), mesh.get_local_rank());
  return method == RotateMethod::kAllGather ? gathered(x)
      : method == RotateMethod::kAllToAll   ? rotated(x)
                                            : exchanged(x);
}

void expect_formulas(
    const AttentionCase& c,
    RotateMethod method,
    const DeviceMesh& mesh,
    const CommDebugMode& comm) {
  SCOPED_TRACE(c.text() + " of " + c10::str(c.dtype) + name_of(method));
  const auto totals = totals_of(c, method, mesh);
  expect_totals(comm, false, totals.first);
  expect_totals(comm, true, totals.second);
}

void count_dtensors(
    const AttentionCase& c,
    RotateMethod method,
    const DeviceMesh& mesh) {
  attend_cut(c, method, mesh, [&](const CommDebugMode& comm) {
    expect_formulas(c, method, mesh, comm);
  });
}

// Counts for plain shards of buffers, in balanced order.
void count_parts(
    const AttentionCase& c,
    RotateMethod method,
    const DeviceMesh& mesh) {
  const auto all = inputs_of(c);
  const auto scope = context_parallel(
      mesh,
      {.buffers = all,
       .buffer_seq_dims = {2, 2, 2, 2},
       .rotate_method = method});
  std::vector<at::Tensor> parts;
  for (size_t i = 0; i < 3; ++i) {
    parts.push_back(all[i].clone().requires_grad_());
  }
  const CommDebugMode comm;
  attend(c, parts[0], parts[1], parts[2]).backward(all[3]);
  expect_formulas(c, method, mesh, comm);
}

void count_all(const AttentionCase& c, int64_t ranks) {
  on_cp(ranks, [&](const DeviceMesh& mesh) {
    for (const auto method : kMethods) {
      count_dtensors(c, method, mesh);
      count_parts(c, method, mesh);
    }
  });
}

// 25 tokens are 7, 7, 7 and 4 on four ranks, and 9, 9 and 7 on three.
TEST_P(ContextCounts, OfUnevenLengths) {
  count_all({.tokens = 25, .heads = 8, .key_heads = 4}, GetParam());
  count_all({.tokens = 25, .heads = 5, .key_heads = 5}, GetParam());
  count_all({.tokens = 2, .heads = 4, .key_heads = 4}, GetParam());
}

TEST_P(ContextCounts, OfFewerHeadsOfKeysThanRanks) {
  count_all({.tokens = 24, .heads = 6, .key_heads = 1}, GetParam());
  count_all({.tokens = 13, .heads = 6, .key_heads = 2}, GetParam());
  count_all({.tokens = 24, .heads = 2, .key_heads = 2}, GetParam());
}

// Gradients that ranks accumulate in transit are sent in float32.
TEST_P(ContextCounts, OfHalfPrecision) {
  for (const auto dtype : {at::kBFloat16, at::kHalf, at::kFloat}) {
    count_all(
        {.tokens = 24, .heads = 8, .key_heads = 4, .dtype = dtype}, GetParam());
    count_all(
        {.tokens = 13, .heads = 6, .key_heads = 1, .dtype = dtype}, GetParam());
  }
}

} // namespace TEST_SOURCE
} // namespace dtensor
