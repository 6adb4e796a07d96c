// SPDX-License-Identifier: BSD-3-Clause
// The contract of groups on processes that share memory, and properties of the
// shared memory: results that lie in it, and messages that it buffers.
#include <dtensor/comm/group.h>
#include <dtensor/comm/shared_memory/shared_arena_impl.h>
#include <gtest/gtest.h>
#include <tests/comm/contract/suite.h>
#include <torch/torch.h>

#include "expect_error.h"
#include "on_processes.h"

namespace dtensor {
namespace TEST_SOURCE {

using namespace test;

ContractRanks processes(int64_t n, const MakeBackend& make) {
  return {std::to_string(n), [=](const auto& check) {
            on_processes(n, make, [&](int64_t) { check(*world()); });
          }};
}

const MakeBackend kShared = shared_memory(usual_options());

GroupBackendPtr make_checked(
    GroupMembers members,
    const RendezvousInfo& place) {
  return checked(kShared(std::move(members), place));
}

INSTANTIATE_TEST_SUITE_P(
    SharedMemory,
    Contract,
    on_backend(
        Needs::kPeers,
        {processes(2, kShared), processes(3, kShared), processes(4, kShared)}),
    name_of);
INSTANTIATE_TEST_SUITE_P(
    CheckedSharedMemory,
    Contract,
    on_backend(Needs::kComparedCalls, {processes(3, make_checked)}),
    name_of);

TEST(SharedMemory, ComparesErrorsOfOperators) {
  on_processes(2, kShared, [](int64_t) {
    expect_error_of_one_rank(*new_group({0, 1}, "tp"));
  });
}

// Results can be resized, including those in shared memory.
TEST(SharedMemory, ResultsMayBeResized) {
  on_processes(2, [](int64_t rank) {
    const auto sum =
        world()->all_reduce(input_of(rank, {50'000}), ReduceOp::kSum);
    const auto before = sum.clone();
    sum.resize_({60'000});
    expect_equal(sum.narrow(0, 0, 50'000).contiguous(), before);
  });
}

// Results lie in the shared arena while it has space, and stay valid as long as
// they are referenced.
TEST(SharedMemory, KeepsResults) {
  const auto body = [](int64_t rank) {
    const int64_t numel = detail::kArenaBytes / 4 / 5 * 2; // two fit
    std::vector<at::Tensor> kept;
    {
      const GroupPtr group = world();
      for (int64_t round = 0; round < 5; ++round) {
        const auto sum = group->all_reduce(
            torch::full({numel}, static_cast<float>(rank + round)),
            ReduceOp::kSum);
        if (rank == 0 || round > 2) {
          kept.push_back(sum);
        }
      }
    }
    for (size_t i = 0; i < kept.size(); ++i) {
      const auto round = static_cast<int64_t>(rank == 0 ? i : i + 3);
      const auto expected = static_cast<float>(1 + 2 * round);
      EXPECT_TRUE(torch::equal(kept[i], torch::full({numel}, expected)));
      kept[i].add_(1);
    }
  };
  on_processes(2, body, {.timeout = std::chrono::minutes(1)});
}

// Long gathers work if one member has no rows and another has no space left in
// its arena.
TEST(SharedMemory, GathersToAll) {
  on_processes(3, [](int64_t rank) {
    const GroupPtr group = world();
    const int64_t rows = detail::kArenaBytes / 4 / 1000 / 5 * 2;
    const Sizes sizes = {rows - 100, 0, 100};
    std::vector<at::Tensor> kept;
    for (int64_t round = 0; round < 4; ++round) {
      for (const int64_t dim : {0, 1}) {
        Sizes shape = {1000, 1000};
        shape[static_cast<size_t>(dim)] = sizes[static_cast<size_t>(rank)];
        shape[static_cast<size_t>(1 - dim)] = 1000;
        const auto value = static_cast<float>(rank + round);
        const auto all =
            group->all_gather(torch::full(shape, value), dim, sizes);
        EXPECT_TRUE(all.narrow(dim, 0, sizes[0])
                        .eq(static_cast<float>(round))
                        .all()
                        .item<bool>());
        EXPECT_TRUE(all.narrow(dim, sizes[0], sizes[2])
                        .eq(static_cast<float>(2 + round))
                        .all()
                        .item<bool>());
        if (rank == 0) {
          kept.push_back(all);
        }
      }
    }
  });
}

TEST(SharedMemory, HasItsResultsWithinArenas) {
  constexpr int64_t kBlockBytes = 8192;
  constexpr int64_t kResultBytes = 4096;
  constexpr auto kNotice = detail::SharedChannel::Buffer::kNotice;
  const auto segment =
      std::make_shared<detail::SharedSegment>(detail::SharedSegment::create(
          detail::SharedLayout::bytes(1, kBlockBytes)));
  const detail::SharedChannel channel(
      segment, {{7}, 0, "tp"}, kBlockBytes, std::chrono::seconds(1));
  const auto find_at = [&](int64_t offset) {
    std::memcpy(channel.buffer(kNotice, 0), &offset, sizeof(offset));
    detail::PeerResults results(channel);
    results.find(kResultBytes);
    return results.of(0);
  };
  std::byte* const arena = channel.layout().arena(0);
  const int64_t last = detail::kArenaBytes - kResultBytes;
  EXPECT_EQ(find_at(-1), nullptr);
  EXPECT_EQ(find_at(0), arena);
  EXPECT_EQ(find_at(last), arena + last);
  for (const int64_t offset :
       {int64_t{-2}, last + 1, std::numeric_limits<int64_t>::max()}) {
    EXPECT_EQ(
        error_of([&] { find_at(offset); }),
        c10::str(
            "[shared_memory_backend] ",
            channel.rank_text(0),
            " sent an invalid offset of a result of 4096 bytes: ",
            offset,
            ". Run the same program on all ranks."));
  }
}

// All ranks first send more than a ring holds, then receive by tag, after a
// collective.
TEST(SharedMemory, BuffersMessages) {
  on_processes(3, [](int64_t rank) {
    const GroupPtr group = world();
    const int64_t before = (rank + 2) % 3;
    for (const int64_t rows : {1, 0, 50000, 7}) {
      const auto x = input_of(rank, {rows, 3}, at::kDouble);
      group->send(x, (rank + 1) % 3, rows % 2);
    }
    group->barrier();
    for (const int64_t rows : {1, 7, 0, 50000}) {
      const auto expected = input_of(before, {rows, 3}, at::kDouble);
      const auto like = torch::empty_like(expected);
      expect_equal(group->recv(like, before, rows % 2), expected);
    }
  });
}

TEST(SharedMemory, LastsForManyRounds) {
  on_processes(2, [](int64_t) { many_rounds(*world(), 20'000); });
  on_processes(4, [](int64_t) { many_rounds(*world(), 3000); });
}

} // namespace TEST_SOURCE
} // namespace dtensor
