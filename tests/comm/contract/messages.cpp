// SPDX-License-Identifier: BSD-3-Clause
// Collectives with a root, messages between two ranks, barriers and strings.
#include <tests/comm/contract/contract.h>

#include <chrono>
#include <thread>

namespace dtensor {
namespace TEST_SOURCE {

using namespace test;

// Every rank receives the root's values; the other inputs are not read.
CONTRACT_CASE(BroadcastFromEveryRoot, Needs::kPeers) {
  for (int64_t root = 0; root < group.size(); ++root) {
    for (const Sizes& shape :
         {Sizes{}, Sizes{0}, Sizes{2, 5}, Sizes{1024}, Sizes{30'000}}) {
      for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBool}) {
        const at::Tensor x = input_of(group.rank(), shape, dtype);
        const at::Tensor got = group.broadcast(x, root);
        expect_equal(got, input_of(root, shape, dtype));
        expect_equal(x, input_of(group.rank(), shape, dtype));
        EXPECT_TRUE(!got.is_alias_of(x));
      }
    }
  }
}

CONTRACT_CASE(ScatterAndGatherWithEveryRoot, Needs::kPeers) {
  for (int64_t root = 0; root < group.size(); ++root) {
    for (const int64_t rows : {1, 900}) {
      for (const at::ScalarType dtype : {at::kFloat, at::kLong}) {
        const Message message = uneven_messages(rows, dtype);
        std::vector<at::Tensor> parts;
        for (int64_t to = 0; group.rank() == root && to < group.size(); ++to) {
          parts.push_back(message(root, to));
        }
        const at::Tensor expected = message(root, group.rank());
        const at::Tensor like = torch::empty_like(expected);
        expect_equal(group.scatter(parts, like, root), expected);
        const auto gathered = group.gather(message(group.rank(), 0), root);
        ASSERT_EQ(gathered.size(), group.rank() == root ? group.size() : 0);
        for (size_t from = 0; from < gathered.size(); ++from) {
          expect_equal(gathered[from], message(static_cast<int64_t>(from), 0));
        }
      }
    }
  }
}

// A sent tensor may be changed as soon as send() returns. Ranks with even and
// odd numbers call send() and recv() in opposite order, because a transport may
// wait for the receiver.
CONTRACT_CASE(MessagesGoAroundTheRing, Needs::kPeers) {
  const int64_t next = (group.rank() + 1) % group.size();
  const int64_t before = (group.rank() + group.size() - 1) % group.size();
  int64_t round = 0;
  for (const Sizes& shape :
       {Sizes{},
        Sizes{0},
        Sizes{1},
        Sizes{4},
        Sizes{7, 3},
        Sizes{1, 1, 1, 1, 1, 1, 1, 1, 2},
        Sizes{70'000}}) {
    for (const int64_t tag : {0, 3, 0, 7}) {
      at::Tensor x = input_of(group.rank() + round, shape, at::kDouble);
      const at::Tensor expected = input_of(before + round, shape, at::kDouble);
      at::Tensor got;
      const auto receive = [&] {
        got = group.recv(torch::empty_like(expected), before, tag);
      };
      if (group.rank() % 2 == 1) {
        receive();
      }
      group.send(x, next, tag);
      x.fill_(-1);
      if (group.rank() % 2 == 0) {
        receive();
      }
      expect_equal(got, expected);
      ++round;
    }
  }
}

// Compares the ranks' clocks, which are the same clock, because all ranks of a
// test are on one host.
CONTRACT_CASE(BarrierWaitsForEveryRank, Needs::kPeers) {
  const auto now = [] {
    return std::chrono::steady_clock::now().time_since_epoch().count();
  };
  group.barrier();
  std::this_thread::sleep_for(std::chrono::milliseconds(5 * group.rank()));
  const int64_t entered = now();
  group.barrier();
  const int64_t left = now();
  const at::Tensor times = there(torch::tensor({entered, left}).view({1, 2}));
  const at::Tensor all = group.all_gather(times, 0).cpu();
  EXPECT_GE(
      all.select(1, 1).min().item<int64_t>(),
      all.select(1, 0).max().item<int64_t>());
}

CONTRACT_CASE(StringsOfEveryLength, Needs::kPeers) {
  std::vector<std::string> texts;
  for (int64_t rank = 0; rank < group.size(); ++rank) {
    texts.push_back(
        rank == 0       ? ""
            : rank == 2 ? std::string(9000, '\0')
                        : "rank " + std::to_string(rank));
  }
  EXPECT_EQ(group.all_gather_strings(mine(group, texts)), texts);
  EXPECT_EQ(
      group.all_gather_strings(""), std::vector<std::string>(texts.size()));
}

} // namespace TEST_SOURCE
} // namespace dtensor
