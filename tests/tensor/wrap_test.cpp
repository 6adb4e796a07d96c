// SPDX-License-Identifier: BSD-3-Clause
// The tensor object: its memory-related properties, and its own allocation.
#include <algorithm>
#include <numeric>
#include <thread>

#include "support.h"

namespace dtensor {
namespace TEST_SOURCE {

using namespace test;

// Returns tensors with every order of dimensions for several shapes, and with
// gaps and repetitions.
std::vector<at::Tensor> tensors_of_many_strides() {
  std::vector<at::Tensor> all = {at::zeros({})};
  const std::vector<std::vector<int64_t>> shapes = {
      {0},
      {1},
      {4},
      {4, 2},
      {1, 4},
      {4, 1},
      {1, 1},
      {0, 3},
      {3, 0},
      {2, 3, 4},
      {1, 3, 4},
      {2, 1, 4},
      {2, 3, 1},
      {1, 1, 3},
      {2, 0, 3},
      {2, 3, 4, 5},
      {2, 1, 4, 5},
      {1, 1, 1, 1},
      {2, 3, 2, 2, 2}};
  for (const auto& shape : shapes) {
    std::vector<int64_t> order(shape.size());
    std::iota(order.begin(), order.end(), 0);
    do {
      const auto t = at::zeros(shape).permute(order);
      all.push_back(t);
      all.push_back(t.slice(0, 0, t.size(0), 2));
      all.push_back(t.slice(-1, 0, t.size(-1), 2));
      all.push_back(t.unsqueeze(0).expand_symint([&] {
        std::vector<c10::SymInt> sizes = {2};
        sizes.insert(sizes.end(), t.sizes().begin(), t.sizes().end());
        return sizes;
      }()));
    } while (std::next_permutation(order.begin(), order.end()));
  }
  for (const auto format :
       {at::MemoryFormat::ChannelsLast, at::MemoryFormat::Preserve}) {
    all.push_back(at::zeros({2, 3, 4, 5})
                      .contiguous()
                      .to(at::TensorOptions().memory_format(format)));
  }
  return all;
}

TEST(Wrap, SaysOfItsMemoryWhatAPlainTensorSays) {
  run_ranks(2, [] {
    const auto mesh = mesh_of({2});
    for (const auto& t : tensors_of_many_strides()) {
      const DTensor d = DTensor::from_local(
          t,
          mesh,
          {Replicate()},
          {.shape = t.sizes().vec(), .stride = t.strides().vec()});
      const auto what = c10::str(t.sizes(), " by ", t.strides());
      EXPECT_EQ(d.sizes(), t.sizes());
      EXPECT_EQ(d.strides(), t.strides());
      EXPECT_EQ(d.numel(), t.numel()) << what;
      EXPECT_EQ(d.is_contiguous(), t.is_contiguous()) << what;
      EXPECT_EQ(
          d.is_non_overlapping_and_dense(), t.is_non_overlapping_and_dense())
          << what;
      for (const auto format :
           {at::MemoryFormat::ChannelsLast, at::MemoryFormat::ChannelsLast3d}) {
        EXPECT_EQ(d.is_contiguous(format), t.is_contiguous(format)) << what;
      }
      EXPECT_EQ(d.suggest_memory_format(), t.suggest_memory_format()) << what;
    }
  });
}

// Objects may be freed by another thread than the allocating thread, by several
// threads at once, and by a thread that ends. The test frees more objects than
// a thread keeps.
TEST(Wrap, MayBeDroppedByAnyThread) {
  constexpr size_t kMany = 500;
  for (int round = 0; round < 3; ++round) {
    std::vector<std::vector<at::Tensor>> made(4);
    run_ranks(4, [&](int64_t rank) {
      const auto mesh = mesh_of({4});
      const at::Tensor one = placed(at::ones({8}), mesh, {Shard(0)});
      for (size_t i = 0; i < kMany; ++i) {
        made[static_cast<size_t>(rank)].push_back(one * static_cast<double>(i));
      }
    });
    std::vector<std::thread> threads;
    for (size_t rank = 1; rank < 4; ++rank) {
      threads.emplace_back([mine = std::move(made[rank])]() mutable {
        for (size_t i = 0; i < mine.size(); i += 2) {
          mine[i].reset();
        }
      });
    }
    for (auto& thread : threads) {
      thread.join();
    }
    for (size_t i = 0; i < kMany; ++i) {
      EXPECT_EQ(
          DTensor(made[0][i]).to_local()[1].item<double>(),
          static_cast<double>(i));
    }
  }
}

} // namespace TEST_SOURCE
} // namespace dtensor
