// SPDX-License-Identifier: BSD-3-Clause
// Several collectives in flight, and the memory that they use meanwhile.
#include <tests/comm/contract/contract.h>

#include <random>
#include <thread>

namespace dtensor {
namespace TEST_SOURCE {

using namespace test;

CONTRACT_CASE(ManyRoundsOfAnyKindAndSize, Needs::kPeers) {
  many_rounds(group, 500);
}

CONTRACT_CASE(DifferentCollectivesOverlap, Needs::kPeers) {
  const auto terms = inputs(group, {4, 5});
  const at::Tensor& x = mine(group, terms);
  const auto max = reduced(terms, ReduceOp::kMax);
  Sizes sizes(terms.size()); // five columns for the last rank
  sizes.back() = 5;
  const auto sum = group.all_reduce_async(x.clone(), ReduceOp::kSum);
  const auto all = group.all_gather_async(x.clone(), 1, 5 * group.size());
  const auto part = group.reduce_scatter_async(x.clone(), 0, ReduceOp::kMax);
  const auto columns =
      group.reduce_scatter_async(x.clone(), 1, ReduceOp::kMax, {}, sizes);
  const auto moved = group.shard_dim_alltoall_async(x.clone(), 1, 0);
  const at::Tensor out = torch::empty_like(x);
  const auto given = group.all_reduce_async(x.clone(), ReduceOp::kMin, out);
  expect_equal(
      part->wait(), mine(group, chunks(max, group.size(), 0)).contiguous());
  expect_equal(
      columns->wait(),
      mine(group, max.split_with_sizes(sizes, 1)).contiguous());
  EXPECT_TRUE(given->wait().is_alias_of(out));
  expect_equal(out, reduced(terms, ReduceOp::kMin));
  const auto whole = torch::cat(terms, 1);
  expect_equal(
      moved->wait(), mine(group, chunks(whole, group.size(), 0)).contiguous());
  expect_equal(all->wait(), whole);
  expect_equal(sum->wait(), reduced(terms, ReduceOp::kSum));
}

// Ranks wait in different orders, and drop some results.
CONTRACT_CASE(ManyInFlightAreWaitedForInAnyOrder, Needs::kPeers) {
  constexpr size_t kMany = 40;
  std::mt19937 random(static_cast<unsigned>(group.rank()) + 100);
  const auto n = static_cast<double>(group.size());
  const auto numel = [](size_t i) { return 1 + static_cast<int64_t>(i) * 700; };
  for (int round = 0; round < 4; ++round) {
    std::vector<PendingPtr> pending;
    for (size_t i = 0; i < kMany; ++i) {
      const auto value = static_cast<double>(group.rank() + 1);
      pending.push_back(
          group.all_reduce_async(full({numel(i)}, value), ReduceOp::kSum));
      if (i % 7 == 0) { // interleaved with other collectives
        group.barrier();
      }
    }
    std::vector<size_t> order(kMany);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    for (const size_t i : order) {
      if (random() % 5 == 0) {
        pending[i] = nullptr;
        continue;
      }
      expect_equal(pending[i]->wait(), full({numel(i)}, n * (n + 1) / 2));
    }
  }
}

// An input may be modified as soon as the asynchronous call returns, also
// through a view. The tensor is long, and peers arrive late, so the tensor
// cannot have been sent by then.
CONTRACT_CASE(LongInputsMayChangeAtOnce, Needs::kPeers) {
  constexpr int64_t kRows = 12'000;
  const auto enter = [&](const at::Tensor& x, int kind) {
    switch (kind) {
      case 0:
        return group.all_reduce_async(x, ReduceOp::kSum);
      case 1:
        return group.all_gather_async(
            x.view({-1, 24}), 0, 2 * kRows * group.size());
      case 2:
        return group.reduce_scatter_async(x, 0, ReduceOp::kSum);
      case 3: // transports that lose NaN here gather all terms
        return group.all_reduce_async(x, ReduceOp::kMax);
      default:
        return group.shard_dim_alltoall_async(x, 0, 1);
    }
  };
  for (int kind = 0; kind < 5; ++kind) {
    const auto kept = input_of(group.rank(), {kRows, 48});
    auto changed = kept.clone();
    const auto truth = enter(kept, kind)->wait();
    if (group.rank() > 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    const auto pending = enter(changed, kind);
    changed.fill_(-1);
    expect_equal(pending->wait(), truth);
  }
}

// Memory that the tensor does not own is copied, even if the tensor is moved
// in.
CONTRACT_CASE(MemoryOfTheCallerIsCopied, Needs::kPeers) {
  if (!test_device.is_cpu()) {
    return;
  }
  std::vector<float> memory(5000, static_cast<float>(group.rank() + 1));
  const auto sum = group.all_reduce_async(
      torch::from_blob(memory.data(), {5000}), ReduceOp::kSum);
  std::fill(memory.begin(), memory.end(), -1.0f);
  const auto n = static_cast<double>(group.size());
  expect_equal(sum->wait(), full({5000}, n * (n + 1) / 2));
}

CONTRACT_CASE(OutMayBePartOfATensor, Needs::kPeers) {
  const auto terms = inputs(group, {500, 60});
  const auto whole = full({3, 500, 60}, 7);
  const auto sum =
      group.all_reduce_async(mine(group, terms), ReduceOp::kSum, whole[1]);
  EXPECT_TRUE(sum->wait().is_alias_of(whole));
  expect_equal(whole[1], reduced(terms, ReduceOp::kSum));
  expect_equal(whole[0], full({500, 60}, 7));
  expect_equal(whole[2], full({500, 60}, 7));
}

// Every rank passes a block to the next member while still reading it.
CONTRACT_CASE(BlocksGoAroundARing, Needs::kPeers) {
  const int64_t n = group.size();
  const int64_t me = group.rank();
  const auto of = [](int64_t owner) { return input_of(owner, {3000 + owner}); };
  const auto counts = [&](int64_t peer, int64_t owner) {
    Sizes all(static_cast<size_t>(n), 0);
    all[static_cast<size_t>((peer + n) % n)] = 3000 + (owner + n) % n;
    return all;
  };
  at::Tensor block = of(me);
  for (int64_t step = 0; step + 1 < n; ++step) {
    const at::Tensor view = block.view({-1});
    const auto next = group.all_to_all_async(
        std::move(block),
        counts(me + 1, me - step),
        counts(me - 1, me - step - 1));
    expect_equal(view, of((me - step + n) % n));
    block = next->wait();
  }
  expect_equal(block, of((me + 1) % n));
}

} // namespace TEST_SOURCE

void test::many_rounds(Group& group, int64_t rounds) {
  std::mt19937 shared(7);
  std::mt19937 own(static_cast<unsigned>(group.rank()));
  std::vector<std::pair<at::Tensor, at::Tensor>> results;
  const int64_t n = group.size();
  for (int64_t round = 0; round < rounds; ++round) {
    const int64_t numel = shared() % 20 == 0 ? 5000 : 1 + shared() % 60;
    at::Tensor x = there(torch::full({numel}, round + group.rank()));
    int64_t value = round; // of every element of the result
    at::Tensor got;
    switch (shared() % 6) {
      case 0:
        got = group.all_reduce(x, ReduceOp::kSum);
        value = n * round + n * (n - 1) / 2;
        break;
      case 1:
        got = group.all_gather(x, 0).narrow(0, (n - 1) * numel, numel);
        value += n - 1;
        break;
      case 2: {
        const auto root = static_cast<int64_t>(shared()) % n;
        got = group.broadcast(x, root);
        value += root;
        break;
      }
      case 3:
        got = group.reduce_scatter(x.repeat(n), 0, ReduceOp::kMin);
        break;
      case 4:
        got = group.all_to_all(
            std::vector<at::Tensor>(static_cast<size_t>(n), x))[0];
        break;
      default:
        group.barrier();
        continue;
    }
    results.emplace_back(got, there(torch::full({numel}, value)));
    x.fill_(-1);
    if (own() % 500 == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  for (const auto& [got, expected] : results) {
    ASSERT_TRUE(torch::equal(got, expected)) << got << expected;
  }
}

} // namespace dtensor
