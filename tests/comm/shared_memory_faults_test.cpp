// SPDX-License-Identifier: BSD-3-Clause
// Processes that share memory, if a member ends, fails, is missing, calls
// another collective, or is not a member. Also checks for leaks.
#include <dtensor/comm/group.h>
#include <dtensor/comm/shared_memory/shared_layout_impl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "collective_inputs.h"
#include "expect_error.h"
#include "on_processes.h"

namespace dtensor {
namespace TEST_SOURCE {

using namespace test;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using Clock = std::chrono::steady_clock;

at::Tensor ones(int64_t numel = 4) {
  return torch::ones({numel});
}

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Ends rank 1 of three in the third all_reduce by calling `end`. Returns the
// rank's exit status.
int end_rank_one(int64_t numel, const std::function<void()>& end) {
  const auto ends = run_world(3, [&](int64_t rank) {
    const GroupPtr group = world();
    group->all_reduce(ones(numel), ReduceOp::kSum);
    group->all_reduce(ones(numel), ReduceOp::kSum);
    if (rank == 1) {
      end();
    }
    const auto begin = Clock::now();
    const auto again = [&] { group->all_reduce(ones(), ReduceOp::kSum); };
    const std::string text = error_of(again);
    EXPECT_LT(seconds_since(begin), 10);
    EXPECT_THAT(
        text,
        MatchesRegex("\\[all_reduce\\] rank 1 \\(process [0-9]+\\) has ended; "
                     "rank [02] waits for it in all_reduce 3 on \"world\"\\. "
                     "Start all ranks again\\."));
    EXPECT_EQ(error_of(again), text);
    const auto dead = error_of([&] { group->barrier(); });
    EXPECT_EQ(dead, "[barrier]" + text.substr(text.find(' ')));
    EXPECT_THAT(
        error_of([&] { group->send(ones(), (rank + 1) % 3, 0); }),
        HasSubstr("has ended"));
  });
  EXPECT_EQ(ends[0], 0);
  EXPECT_EQ(ends[2], 0);
  return ends[1];
}

TEST(SharedMemoryFaults, DeathIsNoticed) {
  EXPECT_EQ(end_rank_one(4, [] { raise(SIGKILL); }), -SIGKILL);
  EXPECT_EQ(end_rank_one(50000, [] { _exit(7); }), 7);
  const auto crash = [] {
    const rlimit no_core{0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    signal(SIGSEGV, SIG_DFL);
    raise(SIGSEGV);
  };
  EXPECT_EQ(end_rank_one(4, crash), -SIGSEGV);
}

// The death of a rank is detected in the middle of a long collective.
TEST(SharedMemoryFaults, DeathBetweenBlocksIsNoticed) {
  const auto ends = run_world(3, [&](int64_t rank) {
    const GroupPtr group = world();
    group->barrier();
    if (rank == 2) {
      // Rank 2 takes part in some blocks until the alarm kills it.
      alarm(1);
    }
    const auto rounds = [&] {
      while (true) {
        group->all_reduce(ones(1 << 20), ReduceOp::kSum);
      }
    };
    EXPECT_THAT(
        error_of(rounds),
        MatchesRegex("\\[all_reduce\\] rank 2 .* has ended; rank [01] .*"));
  });
  EXPECT_EQ(ends, (std::vector<int>{0, 0, -SIGALRM}));
}

TEST(SharedMemoryFaults, ReleasedGroupIsNoticed) {
  on_processes(2, [](int64_t rank) {
    GroupPtr group = new_group({0, 1}, "tp");
    group->barrier();
    if (rank == 1) {
      // The group is destroyed with its world.
      return;
    }
    EXPECT_THAT(
        error_of([&] { group->barrier(); }),
        MatchesRegex(
            "\\[barrier\\] rank 1 \\(process [0-9]+\\) has (released the "
            "group|ended); rank 0 waits for it in barrier 2 on \"tp\"\\. .*"));
  });
}

TEST(SharedMemoryFaults, FailureOfOneRankReachesAll) {
  on_processes(3, [](int64_t rank) {
    const GroupPtr group = new_group({0, 1, 2}, "tp");
    const int64_t large = int64_t{1} << 48; // exceeds the address space
    const Sizes sizes = rank == 1 ? Sizes{large, 4, large} : Sizes{4, 4, 4};
    const std::string text =
        error_of<c10::Error>([&] { group->all_gather(ones(), 0, sizes); });
    if (rank != 1) {
      EXPECT_THAT(
          text,
          MatchesRegex("\\[all_gather\\] rank 1 \\(process [0-9]+\\) failed in "
                       "all_gather 1 on \"tp\": .*Start all ranks again\\."));
    }
  });
}

constexpr SharedMemoryOptions kShort = {
    .timeout = std::chrono::milliseconds(700),
    .block_bytes = 8192};

TEST(SharedMemoryFaults, MissingRankIsNamed) {
  const auto ends = run_world(
      3,
      [](int64_t rank) {
        const GroupPtr group = new_group({0, 1, 2}, "tp");
        group->barrier();
        if (rank == 1) {
          std::this_thread::sleep_for(std::chrono::milliseconds(1500));
          return;
        }
        EXPECT_EQ(
            error_of([&] { group->broadcast(ones(), 0); }),
            "[broadcast] timed out after 700 ms waiting for rank 1 in "
            "broadcast 2 on \"tp\". Call the same collectives on every rank, "
            "or raise the timeout.");
        EXPECT_THAT(
            error_of([&] { group->recv(ones(), 1, 0); }),
            HasSubstr("[recv] timed out after 700 ms waiting for rank 1 in "
                      "broadcast 2"));
      },
      kShort);
  EXPECT_EQ(ends, std::vector<int>(3, 0));
}

TEST(SharedMemoryFaults, AbsentRankIsNamed) {
  for (const int64_t missing : {0, 2}) {
    on_processes(
        3,
        [&](int64_t rank) {
          if (rank == missing) {
            return;
          }
          EXPECT_THAT(
              error_of([&] {
                new_group({0, 1, 2}, "tp");
              }),
              MatchesRegex(c10::str(
                  "\\[shared_memory_backend\\] timed out after 700 ms waiting "
                  "for rank ",
                  missing,
                  " .*")));
        },
        kShort);
  }
}

TEST(SharedMemoryFaults, DisagreementIsAnErrorOnAll) {
  on_processes(2, [](int64_t rank) {
    const GroupPtr group = new_group({0, 1}, "tp");
    const auto said = [&](const std::function<void()>& fn) {
      const std::string text = error_of<c10::ValueError>(fn);
      const auto all = group->all_gather_strings(text); // the group still works
      EXPECT_EQ(all[0], all[1]);
      return text;
    };
    EXPECT_EQ(
        said([&] {
          rank == 0 ? group->all_reduce(ones(), ReduceOp::kSum)
                    : group->all_gather(ones(2), 0, {2, 2});
        }),
        "[all_reduce] ranks of \"tp\" disagree: rank 0 calls all_reduce of "
        "f32[4] with sum; rank 1 calls all_gather of f32[2] along dim 0 in "
        "shards of 2, 2. Call the same collective with the same sizes on every "
        "rank.");
    EXPECT_THAT(
        said([&] { group->all_reduce(ones(4 + rank), ReduceOp::kSum); }),
        HasSubstr("rank 0 calls all_reduce of f32[4] with sum; rank 1 calls "
                  "all_reduce of f32[5] with sum"));
    EXPECT_THAT(
        said([&] { group->all_reduce(ones(90000 + rank), ReduceOp::kSum); }),
        HasSubstr("all_reduce of f32[90001]"));
    EXPECT_THAT(
        said([&] {
          const auto op = rank == 0 ? ReduceOp::kSum : ReduceOp::kMax;
          group->reduce_scatter(ones(), 0, op);
        }),
        HasSubstr("with max"));
    EXPECT_THAT(
        said([&] { group->broadcast(ones(), rank); }),
        HasSubstr("from rank 1"));
    EXPECT_THAT(
        said([&] {
          // Rank 1 sends 3 elements and rank 0 expects 2.
          const std::vector<Sizes> shapes = {{1}, {2}};
          rank == 0 ? group->all_to_all({ones(1), ones(1)}, shapes)
                    : group->all_to_all({ones(3), ones(2)}, shapes);
        }),
        HasSubstr("rank 1 calls all_to_all of f32[3], f32[2]"));
    group->send(ones(2 + rank), 1 - rank, 0);
    EXPECT_THAT(
        error_of<c10::ValueError>([&] { group->recv(ones(1), 1 - rank, 0); }),
        HasSubstr(" expects f32[1] but rank "));
  });
}

// The tensors have equal numbers of elements.
TEST(SharedMemoryFaults, OtherShapeIsAnErrorOnAll) {
  on_processes(2, [](int64_t rank) {
    const GroupPtr group = new_group({0, 1}, "tp");
    const at::Tensor x =
        torch::ones(rank == 0 ? Sizes{2, 2, 2, 3} : Sizes{2, 2, 3, 2});
    EXPECT_THAT(
        error_of<c10::ValueError>([&] { group->all_gather(x, 0); }),
        HasSubstr("rank 1 calls all_gather of f32[2, 2, 3, 2] along dim 0"));
    EXPECT_THAT(
        error_of<c10::ValueError>([&] {
          group->all_gather(x, 0, {2, 2});
        }),
        HasSubstr("rank 1 calls all_gather of f32[2, 2, 3, 2] along dim 0"));
    EXPECT_THAT(
        error_of<c10::ValueError>([&] { group->shard_dim_alltoall(x, 0, 1); }),
        HasSubstr("rank 1 calls all_to_all of f32[2, 2, 3, 2] from dim 0 to "
                  "dim 1"));
    group->barrier();
  });
}

TEST(SharedMemoryFaults, BlocksAreTooShortForTheRanks) {
  EXPECT_EQ(
      error_of<c10::ValueError>([] {
        detail::shared_memory_backend(
            {.ranks = all_ranks(65), .rank = 0, .label = "tp"},
            {},
            {.block_bytes = 4096});
      }),
      "[shared_memory_backend] block_bytes is 4096, and \"tp\" has 65 ranks. "
      "Pass at least 64 bytes for each rank.");
}

// A store that is lost once all keys are set.
class LostStore final : public c10d::PrefixStore {
 public:
  using PrefixStore::PrefixStore;
  bool deleteKey(const std::string& /*key*/) override {
    TORCH_CHECK(false, "connection reset by peer");
  }
};

TEST(SharedMemoryFaults, StoreIsLostWhileTheGroupIsMade) {
  const auto ends = run_processes(2, [](int64_t rank, const StorePtr& store) {
    const auto backend = detail::shared_memory_backend(
        {.ranks = {0, 1}, .rank = rank, .label = "tp"},
        c10::make_intrusive<LostStore>("tp", store),
        usual_options());
    const at::Tensor sum =
        backend
            ->submit({.kind = CollectiveKind::kAllReduce, .inputs = {ones()}})
            .wait()
            .tensor;
    expect_equal(sum, torch::full({4}, 2.0));
  });
  EXPECT_EQ(ends, std::vector<int>(2, 0));
}

size_t entries(const char* folder) {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry :
       std::filesystem::directory_iterator(folder)) {
    ++count;
  }
  return count;
}

bool maps_memory() {
  std::ifstream file("/proc/self/maps");
  std::stringstream text;
  text << file.rdbuf();
  return text.str().find("memfd:dtensor") != std::string::npos;
}

TEST(SharedMemoryFaults, NoMemoryIsLeft) {
  const auto ends = run_processes(2, [](int64_t rank, const StorePtr& store) {
    const size_t open = entries("/proc/self/fd");
    at::Tensor sum;
    {
      const auto backend = detail::shared_memory_backend(
          {.ranks = {0, 1}, .rank = rank, .label = "tp"}, store, kShort);
      EXPECT_EQ(entries("/proc/self/fd"), open);
      EXPECT_TRUE(maps_memory());
      sum =
          backend
              ->submit(
                  {.kind = CollectiveKind::kAllReduce, .inputs = {ones(70000)}})
              .wait()
              .tensor;
      EXPECT_EQ(entries("/proc/self/fd"), open);
      EXPECT_FALSE(store->check({"shared_segment"}) && rank == 0);
    }
    EXPECT_TRUE(maps_memory()); // for the result
    EXPECT_EQ(sum.sum().item<double>(), 140000.0);
    sum.reset();
    EXPECT_FALSE(maps_memory());
    EXPECT_EQ(entries("/proc/self/fd"), open);
  });
  EXPECT_EQ(ends, std::vector<int>(2, 0));
}

// Returns the error of a member that finds `said` in the store.
std::string refusal(const StorePtr& store, const std::string& said) {
  store->set("shared_segment", std::vector<uint8_t>(said.begin(), said.end()));
  return error_of([&] {
    detail::shared_memory_backend(
        {.ranks = {0, 1}, .rank = 1, .label = "tp"}, store, kShort);
  });
}

TEST(SharedMemoryFaults, ForeignMemoryIsRefused) {
  const auto ends = run_processes(1, [](int64_t, const StorePtr& store) {
    EXPECT_THAT(refusal(store, "hello"), HasSubstr("got \"hello\""));
    EXPECT_THAT(
        refusal(store, "1073741824 3 1 1"),
        HasSubstr("cannot open the memory"));
    const int plain = open("/proc/self/exe", O_RDONLY);
    const int loose = memfd_create("other", MFD_CLOEXEC);
    const int sealed = memfd_create("other", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    const size_t bytes = detail::SharedLayout::bytes(2, kShort.block_bytes);
    EXPECT_EQ(ftruncate(loose, static_cast<off_t>(bytes)), 0);
    const auto said = [&](int descriptor) {
      return refusal(store, c10::str(getpid(), " ", descriptor, " 1 1"));
    };
    EXPECT_THAT(said(loose), HasSubstr("it is not sealed memory"));
    EXPECT_EQ(fcntl(sealed, F_ADD_SEALS, kSeals), 0);
    EXPECT_THAT(said(sealed), HasSubstr("it has 0 bytes, not "));
    const int zeros = memfd_create("other", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    EXPECT_EQ(ftruncate(zeros, static_cast<off_t>(bytes)), 0);
    EXPECT_EQ(fcntl(zeros, F_ADD_SEALS, kSeals), 0);
    EXPECT_THAT(said(zeros), HasSubstr("its key differs"));
    for (const int descriptor : {plain, loose, sealed, zeros}) {
      close(descriptor);
    }
  });
  EXPECT_EQ(ends, std::vector<int>(1, 0));
}

} // namespace TEST_SOURCE
} // namespace dtensor
