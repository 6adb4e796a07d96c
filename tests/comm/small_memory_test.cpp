// SPDX-License-Identifier: BSD-3-Clause
// Results of a few bytes have the same properties as tensors that LibTorch
// allocates.
#include <c10/core/CPUAllocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <dtensor/comm/rank/rank_memory_impl.h>
#include <dtensor/comm/ranks.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>
#include <map>

namespace dtensor {
namespace TEST_SOURCE {

using detail::empty_small;

uintptr_t misplaced(const at::Tensor& t) {
  return reinterpret_cast<uintptr_t>(t.data_ptr()) % c10::gAlignment;
}

TEST(SmallMemory, IsAlignedAndOfTheWantedSize) {
  std::vector<at::Tensor> kept;
  for (int64_t bytes = 1; bytes <= 1500; ++bytes) {
    const at::Tensor t = empty_small({bytes}, at::kByte);
    EXPECT_EQ(misplaced(t), 0) << bytes;
    EXPECT_EQ(t.storage().nbytes(), static_cast<size_t>(bytes));
    kept.push_back(t.fill_(bytes % 251));
  }
  for (const at::Tensor& t : kept) {
    ASSERT_TRUE((t == t.numel() % 251).all().item<bool>()) << t.numel();
  }
}

TEST(SmallMemory, TakesShapesAndTypes) {
  const at::Tensor t = empty_small({2, 3, 5}, at::kBFloat16);
  const at::Tensor plain = torch::empty({2, 3, 5}, at::kBFloat16);
  EXPECT_EQ(t.sizes(), plain.sizes());
  EXPECT_EQ(t.strides(), plain.strides());
  EXPECT_EQ(t.scalar_type(), at::kBFloat16);
  EXPECT_EQ(t.key_set(), plain.key_set());
  EXPECT_EQ(empty_small({}, at::kDouble).dim(), 0);
  EXPECT_EQ(empty_small({0, 4}, at::kFloat).numel(), 0);
}

// Sizes of 2^64 + 16 bytes, and more elements than int64 can count.
TEST(SmallMemory, RefusesWhatCannotBeAddressed) {
  const int64_t large = (int64_t{1} << 62) + 4;
  EXPECT_EQ(detail::bytes_of({large}, 4), std::numeric_limits<size_t>::max());
  EXPECT_EQ(
      detail::bytes_of({large, large}, 1), std::numeric_limits<size_t>::max());
  EXPECT_EQ(detail::bytes_of({3, 0, large}, 4), 0);
  EXPECT_EQ(detail::bytes_of({3, 2}, 4), 24);
  EXPECT_THROW(empty_small({large}, at::kFloat), c10::Error);
  EXPECT_THROW(detail::empty_result({large}, at::kFloat), c10::Error);
}

TEST(SmallMemory, MayBeResized) {
  at::Tensor t = empty_small({3}, at::kLong);
  t.copy_(torch::arange(3));
  t.resize_({5000});
  EXPECT_TRUE(torch::equal(t.narrow(0, 0, 3), torch::arange(3)));
  EXPECT_EQ(misplaced(t), 0);
}

TEST(SmallMemory, OutlivesTheRanksThatMadeIt) {
  std::vector<at::Tensor> results(2);
  run_ranks(2, [&](int64_t rank) {
    results[static_cast<size_t>(rank)] =
        new_group({0, 1}, "tp")->all_reduce(torch::ones({3}), ReduceOp::kSum);
  });
  EXPECT_TRUE(torch::equal(results[0], torch::full({3}, 2.0)));
  EXPECT_TRUE(torch::equal(results[1], torch::full({3}, 2.0)));
}

// Counts memory as LibTorch's profiler does.
struct Counted : c10::MemoryReportingInfoBase {
  void reportMemoryUsage(
      void* block,
      int64_t bytes,
      size_t,
      size_t,
      c10::Device) override {
    balance[block] += bytes;
    taken += std::max<int64_t>(bytes, 0);
  }
  bool memoryProfilingEnabled() const override {
    return true;
  }
  std::map<void*, int64_t> balance;
  int64_t taken = 0;
};

TEST(SmallMemory, IsSeenByProfilers) {
  const auto counted = std::make_shared<Counted>();
  {
    const c10::DebugInfoGuard guard(
        c10::DebugInfoKind::PROFILER_STATE, counted);
    const at::Tensor t = empty_small({100}, at::kFloat);
  }
  EXPECT_EQ(counted->taken, 400);
  for (const auto& [block, bytes] : counted->balance) {
    EXPECT_EQ(bytes, 0);
  }
}

// Allocator that counts the calls.
struct OwnAllocator : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    ++calls;
    return c10::GetDefaultCPUAllocator()->allocate(bytes);
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
  int calls = 0;
};

TEST(SmallMemory, ComesFromTheProgramsOwnAllocator) {
  static OwnAllocator own;
  c10::Allocator* const before = c10::GetCPUAllocator();
  c10::SetCPUAllocator(&own);
  const at::Tensor t = empty_small({4}, at::kFloat);
  c10::SetCPUAllocator(before);
  EXPECT_EQ(own.calls, 1);
}

} // namespace TEST_SOURCE
} // namespace dtensor
