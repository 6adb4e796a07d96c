// SPDX-License-Identifier: BSD-3-Clause
// Every collective, compared with plain computations on the inputs of all
// ranks, over the backend with which the suite was started.
#include <dtensor/comm/group.h>
#include <dtensor/comm/world.h>
#include <gtest/gtest.h>
#include <tests/comm/collective_inputs.h>
#include <tests/processes/on_ranks.h>
#include <torch/torch.h>

#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

namespace dtensor {
namespace TEST_SOURCE {

using namespace test;

int64_t size() {
  return get_world_size();
}

// Returns a tensor of shape [3, rank % 3, 2]: the size along dimension 1
// depends on the rank.
at::Tensor uneven(int64_t rank) {
  return input_of(rank, {3, rank % 3, 2});
}

std::vector<at::Tensor> of_all(at::Tensor (*make)(int64_t)) {
  std::vector<at::Tensor> all;
  for (int64_t rank = 0; rank < size(); ++rank) {
    all.push_back(make(rank));
  }
  return all;
}

// Returns the message from rank `from` to rank `to`.
at::Tensor message(int64_t from, int64_t to) {
  return input_of(from * 16 + to, {(from + 2 * to) % 4, 2});
}

// Numbers of elements below, at and above the inline size, and above the chunk
// size of backends.
const std::vector<int64_t> kNumels = {0, 1, 7, 1023, 1024, 1025, 70'000};

TEST_ON_RANKS(Processes, AllReduceOfEveryDtype) {
  const GroupPtr group = world();
  for (const at::ScalarType dtype : kEveryDtype) {
    for (const ReduceOp op : kEveryOp) {
      if (has_meaning(op, dtype)) {
        expect_equal(
            group->all_reduce(input_of(get_rank(), {2, 3}, dtype), op),
            reduced(inputs({2, 3}, dtype), op));
      }
    }
  }
}

TEST_ON_RANKS(Processes, AllReduceOfEverySize) {
  const GroupPtr group = world();
  for (const int64_t numel : kNumels) {
    const auto mine = input_of(get_rank(), {numel});
    const auto before = mine.clone();
    expect_equal(
        group->all_reduce(mine, ReduceOp::kSum),
        reduced(inputs({numel}), ReduceOp::kSum));
    expect_equal(mine, before);
  }
  const auto scalar = there(torch::tensor(static_cast<double>(get_rank())));
  EXPECT_EQ(
      group->all_reduce(scalar, ReduceOp::kMax).item<double>(), size() - 1);
}

// Sums that depend on the order of rounding have the same bits on all ranks.
TEST_ON_RANKS(Processes, ReductionsHaveTheSameBitsOnAllRanks) {
  const GroupPtr group = world();
  for (const int64_t numel : {3, 2000, 300'000}) {
    torch::manual_seed(static_cast<uint64_t>(get_rank()));
    const auto sum =
        group->all_reduce(there(torch::randn({numel})), ReduceOp::kSum);
    for (const auto& theirs : group->gather(sum, 0)) {
      EXPECT_TRUE(torch::equal(theirs, sum));
    }
  }
}

TEST_ON_RANKS(Processes, AllGather) {
  const GroupPtr group = world();
  const auto whole = torch::cat(of_all(uneven), 1);
  Sizes sizes;
  for (int64_t rank = 0; rank < size(); ++rank) {
    sizes.push_back(rank % 3);
  }
  expect_equal(group->all_gather(uneven(get_rank()), 1), whole);
  expect_equal(group->all_gather(uneven(get_rank()), 1, sizes), whole);
  for (const int64_t numel : kNumels) {
    expect_equal(
        group->all_gather(input_of(get_rank(), {numel}), 0),
        torch::cat(inputs({numel})));
  }
  expect_equal(
      group->all_gather(there(torch::full({1}, get_rank() > 0, at::kBool)), 0),
      torch::arange(size()) > 0);
}

TEST_ON_RANKS(Processes, ReduceScatter) {
  const GroupPtr group = world();
  const auto sum = reduced(inputs({4, 5}), ReduceOp::kSum);
  for (const int64_t dim : {0, 1}) {
    const auto chunks = sum.chunk(size(), dim);
    const auto part = group->reduce_scatter(
        input_of(get_rank(), {4, 5}), dim, ReduceOp::kSum);
    if (get_rank() < static_cast<int64_t>(chunks.size())) {
      expect_equal(part, chunks[static_cast<size_t>(get_rank())].contiguous());
    } else {
      EXPECT_EQ(part.numel(), 0);
    }
  }
  Sizes sizes(static_cast<size_t>(size()), 0);
  sizes.back() = 4;
  const auto last = group->reduce_scatter(
      input_of(get_rank(), {4, 5}), 0, ReduceOp::kMax, sizes);
  expect_equal(
      last,
      reduced(inputs({4, 5}), ReduceOp::kMax)
          .narrow(0, 0, get_rank() == size() - 1 ? 4 : 0)
          .contiguous());
}

TEST_ON_RANKS(Processes, AllToAll) {
  const GroupPtr group = world();
  std::vector<at::Tensor> sent;
  for (int64_t to = 0; to < size(); ++to) {
    sent.push_back(message(get_rank(), to));
  }
  const auto received = group->all_to_all(sent);
  for (int64_t from = 0; from < size(); ++from) {
    expect_equal(
        received[static_cast<size_t>(from)], message(from, get_rank()));
  }
}

TEST_ON_RANKS(Processes, ShardDimAllToAll) {
  const GroupPtr group = world();
  const auto whole = there(torch::arange(35.0)).view({5, 7});
  const auto rows = whole.chunk(size(), 0);
  const auto mine = get_rank() < static_cast<int64_t>(rows.size())
      ? rows[static_cast<size_t>(get_rank())]
      : whole.narrow(0, 0, 0);
  const auto columns = whole.chunk(size(), 1);
  const auto got = group->shard_dim_alltoall(mine.contiguous(), 0, 1);
  if (get_rank() < static_cast<int64_t>(columns.size())) {
    expect_equal(got, columns[static_cast<size_t>(get_rank())].contiguous());
  } else {
    EXPECT_EQ(got.numel(), 0);
  }
}

TEST_ON_RANKS(Processes, FromAndToARoot) {
  const GroupPtr group = world();
  for (int64_t root = 0; root < size(); ++root) {
    expect_equal(
        group->broadcast(input_of(get_rank(), {3, 2}), root),
        input_of(root, {3, 2}));
    std::vector<at::Tensor> parts;
    if (get_rank() == root) {
      parts = of_all(uneven);
    }
    expect_equal(
        group->scatter(parts, uneven(get_rank()), root), uneven(get_rank()));
    const auto gathered = group->gather(uneven(get_rank()), root);
    ASSERT_EQ(gathered.size(), get_rank() == root ? size() : 0);
    for (size_t r = 0; r < gathered.size(); ++r) {
      expect_equal(gathered[r], uneven(static_cast<int64_t>(r)));
    }
  }
}

TEST_ON_RANKS(Processes, Messages) {
  if (size() == 1) {
    GTEST_SKIP() << "no other rank to write to";
  }
  const GroupPtr group = world();
  const int64_t next = (get_rank() + 1) % size();
  const int64_t before = (get_rank() + size() - 1) % size();
  for (const int64_t numel : {1, 70'000}) {
    const auto mine = input_of(get_rank(), {numel});
    const auto like = there(torch::empty({numel}));
    if (get_rank() % 2 == 0) {
      group->send(mine, next, 3);
      expect_equal(group->recv(like, before, 3), input_of(before, {numel}));
    } else {
      expect_equal(group->recv(like, before, 3), input_of(before, {numel}));
      group->send(mine, next, 3);
    }
  }
}

TEST_ON_RANKS(Processes, BarriersAndStrings) {
  const GroupPtr group = world();
  group->barrier();
  const auto texts = group->all_gather_strings(
      std::string(static_cast<size_t>(get_rank()), 'x'));
  ASSERT_EQ(texts.size(), size());
  for (size_t r = 0; r < texts.size(); ++r) {
    EXPECT_EQ(texts[r].size(), r);
  }
}

TEST_ON_RANKS(Processes, GroupsOfSome) {
  std::vector<int64_t> others;
  for (int64_t rank = size() - 1; rank >= 0; rank -= 2) {
    others.push_back(rank);
  }
  if (std::count(others.begin(), others.end(), get_rank()) == 1) {
    const auto group = new_group(others, "every second");
    EXPECT_EQ(group->label(), "every second");
    const auto all = group->all_gather(there(torch::full({1}, get_rank())), 0);
    expect_equal(all, torch::tensor(others));
    EXPECT_EQ(new_group(others, "again")->label(), "again");
  }
}

// Groups of two neighbouring ranks, which share a process if each process has
// two ranks.
TEST_ON_RANKS(Processes, GroupsOfNeighbours) {
  const int64_t first = get_rank() / 2 * 2;
  if (first + 1 < size()) {
    const auto pair = new_group({first, first + 1}, "pair");
    expect_equal(
        pair->all_gather(torch::full({1}, get_rank()), 0),
        torch::tensor({first, first + 1}));
    expect_equal(
        pair->broadcast(torch::full({2000}, get_rank()), 1),
        torch::full({2000}, first + 1));
  }
}

TEST_ON_RANKS(Processes, CollectivesThatOverlap) {
  const GroupPtr group = world();
  const auto mine = input_of(get_rank(), {4, 5});
  const auto sum = group->all_reduce_async(mine.clone(), ReduceOp::kSum);
  const auto all = group->all_gather_async(mine.clone(), 1, 5 * size());
  const auto part =
      group->reduce_scatter_async(mine.clone(), 0, ReduceOp::kMax);
  Sizes sizes(static_cast<size_t>(size())); // five columns for the last rank
  sizes.back() = 5;
  const auto columns =
      group->reduce_scatter_async(mine.clone(), 1, ReduceOp::kMax, {}, sizes);
  auto out = there(torch::empty({4, 5}));
  const auto again = group->all_reduce_async(mine.clone(), ReduceOp::kAvg, out);
  const auto max = reduced(inputs({4, 5}), ReduceOp::kMax).chunk(size(), 0);
  if (get_rank() < static_cast<int64_t>(max.size())) {
    expect_equal(
        part->wait(), max[static_cast<size_t>(get_rank())].contiguous());
  }
  const bool is_last = get_rank() + 1 == size();
  expect_equal(
      columns->wait(),
      reduced(inputs({4, 5}), ReduceOp::kMax).narrow(1, 0, is_last ? 5 : 0));
  EXPECT_EQ(again->wait().data_ptr(), out.data_ptr());
  EXPECT_TRUE(torch::allclose(out, reduced(inputs({4, 5}), ReduceOp::kAvg)));
  expect_equal(all->wait(), torch::cat(inputs({4, 5}), 1));
  expect_equal(sum->wait(), reduced(inputs({4, 5}), ReduceOp::kSum));
  EXPECT_EQ(sum->wait().data_ptr(), sum->wait().data_ptr());
}

// An input may be modified as soon as the asynchronous call returns. The tensor
// is long, and peers arrive late, so it cannot have been sent by then.
TEST_ON_RANKS(Processes, WhatWasGivenMayChangeAtOnce) {
  const GroupPtr group = world();
  constexpr int64_t kRows = 12'000;
  const auto given = [&] { return there(input_of(get_rank(), {kRows, 48})); };
  const auto enter = [&](at::Tensor& x, int kind) {
    switch (kind) {
      case 0:
        return group->all_reduce_async(x, ReduceOp::kSum);
      case 1:
        return group->all_gather_async(x, 0, kRows * size());
      case 2:
        return group->reduce_scatter_async(x, 0, ReduceOp::kSum);
      default:
        return group->shard_dim_alltoall_async(x, 0, 1);
    }
  };
  for (int kind = 0; kind < 4; ++kind) {
    auto kept = given();
    auto changed = given();
    const auto truth = enter(kept, kind)->wait();
    if (get_rank() > 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    const auto pending = enter(changed, kind);
    changed.fill_(-1);
    expect_equal(pending->wait(), truth);
  }
}

// Every rank passes a block to the next member while still reading it.
TEST_ON_RANKS(Processes, BlocksThatGoRound) {
  const GroupPtr group = world();
  const auto of = [](int64_t owner) { return input_of(owner, {3000 + owner}); };
  const auto counts = [&](int64_t peer, int64_t owner) {
    Sizes all(static_cast<size_t>(size()), 0);
    all[static_cast<size_t>((peer + size()) % size())] =
        3000 + (owner + size()) % size();
    return all;
  };
  const int64_t me = get_rank();
  auto block = there(of(me));
  for (int64_t step = 0; step + 1 < size(); ++step) {
    const auto view = block.view({-1});
    const auto next = group->all_to_all_async(
        std::move(block),
        counts(me + 1, me - step),
        counts(me - 1, me - step - 1));
    expect_equal(view, of((me - step + size()) % size()));
    block = next->wait();
  }
  expect_equal(block, of((me + 1) % size()));
}

// A rank may return from entering a collective without waiting. The first rank
// makes no further call until each of the others, which do wait, has created a
// file.
TEST_ON_RANKS(Processes, OthersNeedNotWait) {
  namespace fs = std::filesystem;
  const GroupPtr group = world();
  const auto base = fs::path(testing::TempDir()) /
      group->all_gather_strings("dtensor_" + std::to_string(getpid())).front();
  const auto file = [&](int64_t rank) {
    return base.string() + "." + std::to_string(rank);
  };
  const auto mine = input_of(get_rank(), {50'000});
  auto sum = group->all_reduce_async(mine.clone(), ReduceOp::kSum);
  auto all = group->all_gather_async(mine.clone(), 0, 50'000 * size());
  if (get_rank() > 0) {
    expect_equal(all->wait(), torch::cat(inputs({50'000})));
    expect_equal(sum->wait(), reduced(inputs({50'000}), ReduceOp::kSum));
    std::ofstream(file(get_rank())) << "done";
    return;
  }
  sum = nullptr;
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::seconds(30);
  for (int64_t rank = 1; rank < size(); ++rank) {
    while (!fs::exists(file(rank))) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "rank " << rank;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    fs::remove(file(rank));
  }
}

int64_t resident_kb() {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word && word != "VmRSS:") {
  }
  int64_t size = 0;
  status >> size;
  return size;
}

int64_t descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return std::distance(begin(all), end(all));
}

// DTENSOR_SOAK=n runs n rounds.
TEST_ON_RANKS(Processes, ManyCollectivesLeaveNothingBehind) {
  const GroupPtr group = world();
  const char* wanted = std::getenv("DTENSOR_SOAK");
  const int64_t rounds = wanted == nullptr ? 500 : std::atoll(wanted);
  int64_t memory = 0;
  int64_t files = 0;
  for (int64_t i = 0; i < rounds; ++i) {
    if (i == rounds / 4) {
      memory = resident_kb();
      files = descriptors();
    }
    const auto mine = there(torch::full({1 + i % 100}, i % 1000, at::kLong));
    const auto sum = group->all_reduce(mine, ReduceOp::kSum);
    ASSERT_EQ(sum[0].item<int64_t>(), i % 1000 * size()) << "round " << i;
  }
  // A transport may open one more descriptor of its own; a leak would add one
  // per round.
  EXPECT_LE(descriptors(), files + 4);
  EXPECT_LE(resident_kb() - memory, 16384);
}

} // namespace TEST_SOURCE
} // namespace dtensor
