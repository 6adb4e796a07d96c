// SPDX-License-Identifier: BSD-3-Clause
// Ranks that do not make the same calls: every rank gets the same error, and
// the group stays usable.
#include <dtensor/comm/group/operator_errors_impl.h>
#include <tests/comm/contract/contract.h>
#include <tests/comm/expect_error.h>

namespace dtensor {
namespace TEST_SOURCE {

using namespace test;
using Tensors = std::vector<at::Tensor>;

constexpr auto kSum = ReduceOp::kSum;

// The call of each of two ranks, for tensors of N elements (M is N - 1), and
// the text that describes it. R0 and R1 are the global ranks.
struct Disagreement {
  const char* where;
  const char* first;
  const char* second;
  void (*call)(Group& g, int64_t n);
};

at::Tensor ones(SizesRef sizes, at::ScalarType dtype = at::kFloat) {
  return full(sizes, 1, dtype);
}

// clang-format off
const Disagreement kDisagreements[] = {
    // The collective.
    {"all_reduce", "all_reduce of f32[N] with sum", "all_gather of f32[N] along dim 0",
     [](Group& g, int64_t n) {
       g.rank() == 0 ? g.all_reduce(ones({n}), kSum) : g.all_gather(ones({n}), 0); }},
    {"all_reduce", "all_reduce of f32[N] with sum",
     "all_gather of f32[2] along dim 0 in shards of 2, 2",
     [](Group& g, int64_t n) {
       g.rank() == 0 ? g.all_reduce(ones({n}), kSum) : g.all_gather(ones({2}), 0, {2, 2}); }},
    {"all_reduce", "all_reduce of f32[N] with sum", "broadcast of f32[N] from rank R0",
     [](Group& g, int64_t n) {
       g.rank() == 0 ? g.all_reduce(ones({n}), kSum) : g.broadcast(ones({n}), 0); }},
    {"all_reduce", "all_reduce of f32[N] with sum",
     "reduce_scatter of f32[N] along dim 0 with sum",
     [](Group& g, int64_t n) {
       g.rank() == 0 ? g.all_reduce(ones({n}), kSum) : g.reduce_scatter(ones({n}), 0, kSum); }},
    {"all_reduce", "all_reduce of f32[N] with sum", "barrier",
     [](Group& g, int64_t n) {
       g.rank() == 0 ? void(g.all_reduce(ones({n}), kSum)) : g.barrier(); }},
    {"all_reduce", "all_reduce of f32[N] with sum", "all_gather_strings",
     [](Group& g, int64_t n) {
       g.rank() == 0 ? void(g.all_reduce(ones({n}), kSum)) : void(g.all_gather_strings("text")); }},
    {"barrier", "barrier", "all_gather_strings",
     [](Group& g, int64_t) {
       g.rank() == 0 ? g.barrier() : void(g.all_gather_strings("text")); }},
    {"all_to_all", "all_to_all of f32[N, 2], f32[N, 2]",
     "all_to_all of f32[N, 2] from dim 0 to dim 1",
     [](Group& g, int64_t n) {
       const auto x = ones({n, 2});
       g.rank() == 0 ? void(g.all_to_all({x, x})) : void(g.shard_dim_alltoall(x, 0, 1)); }},
    // Sizes.
    {"all_reduce", "all_reduce of f32[N] with sum", "all_reduce of f32[M] with sum",
     [](Group& g, int64_t n) { g.all_reduce(ones({n - g.rank()}), kSum); }},
    {"all_reduce", "all_reduce of f32[N, 1] with sum", "all_reduce of f32[N, 2] with sum",
     [](Group& g, int64_t n) { g.all_reduce(ones({n, 1 + g.rank()}), kSum); }},
    {"all_reduce", "all_reduce of f32[3] with sum", "all_reduce of f32[90000] with sum",
     [](Group& g, int64_t) { g.all_reduce(ones({g.rank() == 0 ? 3 : 90000}), kSum); }},
    {"all_gather", "all_gather of f32[N, 1] along dim 0", "all_gather of f32[N, 2] along dim 0",
     [](Group& g, int64_t n) { g.all_gather(ones({n, 1 + g.rank()}), 0); }},
    {"all_gather", "all_gather of f32[N] along dim 0", "all_gather of f32[N, 1] along dim 0",
     [](Group& g, int64_t n) {
       g.all_gather(g.rank() == 0 ? ones({n}) : ones({n, 1}), 0); }},
    {"reduce_scatter", "reduce_scatter of f32[N] along dim 0 with sum in shards of 1, M",
     "reduce_scatter of f32[N] along dim 0 with sum in shards of M, 1",
     [](Group& g, int64_t n) {
       const auto sizes = g.rank() == 0 ? Sizes{1, n - 1} : Sizes{n - 1, 1};
       g.reduce_scatter(ones({n}), 0, kSum, sizes); }},
    {"all_to_all", "all_to_all of f32[1], f32[1] for [1], [2]",
     "all_to_all of f32[3], f32[2] for [1], [2]",
     [](Group& g, int64_t) {
       const std::vector<Sizes> shapes = {{1}, {2}};
       g.all_to_all(
           g.rank() == 0 ? Tensors{ones({1}), ones({1})} : Tensors{ones({3}), ones({2})},
           shapes); }},
    {"all_to_all", "all_to_all of f32[N, 2] from dim 0 to dim 1",
     "all_to_all of f32[N, 3] from dim 0 to dim 1",
     [](Group& g, int64_t n) { g.shard_dim_alltoall(ones({n, 2 + g.rank()}), 0, 1); }},
    {"scatter", "scatter of f32[2], f32[N] from rank R0", "scatter of f32[M] from rank R0",
     [](Group& g, int64_t n) {
       g.scatter(
           g.rank() == 0 ? Tensors{ones({2}), ones({n})} : Tensors{}, ones({n - 1}), 0); }},
    // Dtypes, operations, dimensions and roots.
    {"all_reduce", "all_reduce of f32[N] with sum", "all_reduce of bf16[N] with sum",
     [](Group& g, int64_t n) {
       g.all_reduce(ones({n}, g.rank() == 0 ? at::kFloat : at::kBFloat16), kSum); }},
    {"all_reduce", "all_reduce of f32[N] with sum", "all_reduce of i32[N] with sum",
     [](Group& g, int64_t n) {
       g.all_reduce(ones({n}, g.rank() == 0 ? at::kFloat : at::kInt), kSum); }},
    {"all_reduce", "all_reduce of f32[N] with sum", "all_reduce of f64[N] with sum",
     [](Group& g, int64_t n) {
       g.all_reduce(ones({n}, g.rank() == 0 ? at::kFloat : at::kDouble), kSum); }},
    {"all_to_all", "all_to_all of f32[1], f32[N]", "all_to_all of i64[1], i64[N]",
     [](Group& g, int64_t n) {
       const auto dtype = g.rank() == 0 ? at::kFloat : at::kLong;
       g.all_to_all({ones({1}, dtype), ones({n}, dtype)}); }},
    {"all_reduce", "all_reduce of f32[N] with sum", "all_reduce of f32[N] with max",
     [](Group& g, int64_t n) {
       g.all_reduce(ones({n}), g.rank() == 0 ? kSum : ReduceOp::kMax); }},
    {"all_reduce", "all_reduce of f32[N] with min", "all_reduce of f32[N] with max",
     [](Group& g, int64_t n) {
       g.all_reduce(ones({n}), g.rank() == 0 ? ReduceOp::kMin : ReduceOp::kMax); }},
    {"reduce_scatter", "reduce_scatter of f32[N] along dim 0 with sum",
     "reduce_scatter of f32[N] along dim 0 with max",
     [](Group& g, int64_t n) {
       g.reduce_scatter(ones({n}), 0, g.rank() == 0 ? kSum : ReduceOp::kMax); }},
    {"reduce_scatter", "reduce_scatter of f32[N, 4] along dim 0 with sum",
     "reduce_scatter of f32[N, 4] along dim 1 with sum",
     [](Group& g, int64_t n) { g.reduce_scatter(ones({n, 4}), g.rank(), kSum); }},
    {"all_to_all", "all_to_all of f32[N, 2] from dim 0 to dim 1",
     "all_to_all of f32[N, 2] from dim 1 to dim 0",
     [](Group& g, int64_t n) {
       g.shard_dim_alltoall(ones({n, 2}), g.rank(), 1 - g.rank()); }},
    {"all_to_all", "all_to_all of f32[N, 4, 4] from dim 0 to dim 1",
     "all_to_all of f32[N, 4, 4] from dim 0 to dim 2",
     [](Group& g, int64_t n) { g.shard_dim_alltoall(ones({n, 4, 4}), 0, 1 + g.rank()); }},
    {"broadcast", "broadcast of f32[N] from rank R0", "broadcast of f32[N] from rank R1",
     [](Group& g, int64_t n) { g.broadcast(ones({n}), g.rank()); }},
    {"gather", "gather of f32[N] to rank R0", "gather of f32[N] to rank R1",
     [](Group& g, int64_t n) { g.gather(ones({n}), g.rank()); }},
    // Asynchronous collectives.
    {"all_reduce", "all_reduce of f32[N] with sum", "all_reduce of f32[M] with sum",
     [](Group& g, int64_t n) { g.all_reduce_async(ones({n - g.rank()}), kSum)->wait(); }},
    {"all_gather", "all_gather of f32[3] along dim 0 to size 6",
     "all_gather of f32[3] along dim 0 to size 7",
     [](Group& g, int64_t) { g.all_gather_async(ones({3}), 0, 6 + g.rank())->wait(); }},
    {"all_to_all", "all_to_all of f32[0], f32[N] for [0], [2]",
     "all_to_all of f32[4], f32[0] for [3], [0]",
     [](Group& g, int64_t n) {
       g.rank() == 0 ? g.all_to_all_async(ones({n}), {0, n}, {0, 2})->wait()
                     : g.all_to_all_async(ones({4}), {4, 0}, {3, 0})->wait(); }},
};
// clang-format on

// Replaces each placeholder in a text of the table.
std::string filled_in(std::string text, const Group& pair, int64_t n) {
  const std::pair<std::string, std::string> placeholders[] = {
      {"R0", std::to_string(pair.ranks()[0])},
      {"R1", std::to_string(pair.ranks()[1])},
      {"N", std::to_string(n)},
      {"M", std::to_string(n - 1)},
      {"LABEL", pair.label()}};
  for (const auto& [name, value] : placeholders) {
    for (size_t at = text.find(name); at != std::string::npos;
         at = text.find(name)) {
      text.replace(at, name.size(), value);
    }
  }
  return text;
}

constexpr const char* kSameEverywhere =
    ". Call the same collective with the same sizes on every rank.";

// Makes rounds that agree, whose notices stay in the buffers of threads.
void agree(Group& group) {
  const auto n = static_cast<double>(group.size());
  for (int round = 0; round < 3; ++round) {
    expect_equal(group.all_reduce(ones({3}), kSum), full({3}, n));
  }
}

// Returns a group of the first `n` ranks, or null.
GroupPtr first_ranks(const Group& group, size_t n) {
  const auto& ranks = group.ranks();
  if (ranks.size() < n || group.rank() >= static_cast<int64_t>(n)) {
    return nullptr;
  }
  // Errors name the first group of equal ranks, so all cases label theirs "tp".
  const bool is_all = n == ranks.size();
  return new_group(
      {ranks.begin(), ranks.begin() + static_cast<int64_t>(n)},
      is_all ? group.label() : "tp");
}

CONTRACT_CASE(DisagreementsNameTheCallsOfTheRanks, Needs::kComparedCalls) {
  const GroupPtr pair = first_ranks(group, 2);
  for (const Disagreement& item : kDisagreements) {
    for (const int64_t n : {4, 2000}) {
      if (!pair) {
        continue;
      }
      agree(*pair);
      EXPECT_EQ(
          error_of<c10::ValueError>([&] { item.call(*pair, n); }),
          filled_in(
              c10::str(
                  "[",
                  item.where,
                  "] ranks of \"LABEL\" disagree: rank R0 calls ",
                  item.first,
                  "; rank R1 calls ",
                  item.second,
                  kSameEverywhere),
              *pair,
              n));
    }
  }
  if (pair) {
    agree(*pair);
  }
}

CONTRACT_CASE(DisagreementsGroupRanksWithEqualCalls, Needs::kComparedCalls) {
  const GroupPtr three = first_ranks(group, 3);
  if (!three) {
    return;
  }
  const auto& ranks = three->ranks();
  EXPECT_EQ(
      error_of<c10::ValueError>([&] {
        three->rank() == 1 ? three->barrier()
                           : void(three->all_gather_strings("hello"));
      }),
      c10::str(
          "[all_gather_strings] ranks of \"",
          three->label(),
          "\" disagree: ranks ",
          ranks[0],
          ", ",
          ranks[2],
          " call all_gather_strings; rank ",
          ranks[1],
          " calls barrier",
          kSameEverywhere));
  agree(*three);
}

CONTRACT_CASE(WrongTotalsAreErrorsOnAllRanks, Needs::kComparedCalls) {
  if (const GroupPtr pair = first_ranks(group, 2)) {
    EXPECT_EQ(
        error_of<c10::ValueError>(
            [&] { pair->all_gather_async(ones({3}), 0, 7)->wait(); }),
        c10::str(
            "[all_gather] the shards on \"",
            pair->label(),
            "\" have total size 6 along dim 0, expected 7. Pass the shard that "
            "the layout describes on every rank."));
    agree(*pair);
  }
}

} // namespace TEST_SOURCE

void test::expect_error_of_one_rank(Group& pair) {
  if (pair.rank() == 1) {
    detail::note_error({pair.ranks(), "no such row"});
  }
  const std::function<void()> collectives[] = {
      [&] { pair.barrier(); },
      [&] { pair.all_reduce(torch::ones({4}), ReduceOp::kSum); },
      [&] { pair.all_reduce(torch::ones({20000}), ReduceOp::kSum); },
      [&] { pair.all_reduce_async(torch::ones({4}), ReduceOp::kSum)->wait(); },
      [&] { pair.all_gather(torch::ones({4}), 0); },
      [&] { pair.all_gather(torch::ones({20000}), 0); },
      [&] { pair.reduce_scatter(torch::ones({4}), 0, ReduceOp::kSum); },
      [&] {
        pair.shard_dim_alltoall(torch::ones({2, 2}), 0, 1);
      },
      [&] {
        pair.all_to_all({torch::ones({1}), torch::ones({1})});
      },
      [&] { pair.broadcast(torch::ones({4}), 0); },
      // The error is compared before the asynchronous collective ends.
      [&] {
        const auto begun =
            pair.all_reduce_async(torch::ones({4}), ReduceOp::kSum);
        EXPECT_THROW(
            pair.all_reduce(torch::ones({4}), ReduceOp::kSum), c10::ValueError);
        begun->wait();
      }};
  for (const auto& collective : collectives) {
    const std::string text = error_of<c10::ValueError>(collective);
    EXPECT_EQ(
        text.substr(text.find(']')),
        c10::str(
            "] ranks of \"",
            pair.label(),
            "\" disagree about errors of operators: rank ",
            pair.ranks()[0],
            " reports none; rank ",
            pair.ranks()[1],
            " reports 1, the last: no such row. Do not catch an error that "
            "other ranks do not have, because they go on with the operator."));
  }
  if (pair.rank() == 0) {
    detail::note_error({pair.ranks(), "no such row"});
  }
}

namespace TEST_SOURCE {

CONTRACT_CASE(ErrorsOfOneRankAreErrorsOnAllRanks, Needs::kComparedCalls) {
  if (const GroupPtr pair = first_ranks(group, 2)) {
    expect_error_of_one_rank(*pair);
    agree(*pair);
    detail::note_error({pair->ranks(), "an error of both ranks"});
    agree(*pair);
  }
}

} // namespace TEST_SOURCE
} // namespace dtensor
