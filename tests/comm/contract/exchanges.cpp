// SPDX-License-Identifier: BSD-3-Clause
// all_gather, all_to_all and shard_dim_alltoall.
#include <tests/comm/contract/contract.h>

namespace dtensor {
namespace TEST_SOURCE {

using namespace test;

// Returns shards of sizes 0 and 1 for some ranks, and `large` for others.
std::vector<at::Tensor> uneven_parts(const Group& group, int64_t large) {
  std::vector<at::Tensor> parts;
  for (int64_t rank = 0; rank < group.size(); ++rank) {
    parts.push_back(input_of(rank, {3, rank % 3 == 2 ? large : rank % 3, 5}));
  }
  return parts;
}

CONTRACT_CASE(AllGatherOfEveryDtypeAndShape, Needs::kPeers) {
  for (const at::ScalarType dtype : kEveryDtype) {
    expect_all_gather(group, inputs(group, {2, 3}, dtype), 1);
  }
  for (const Sizes& shape :
       {Sizes{1}, Sizes{0}, Sizes{0, 4}, Sizes{3, 0}, Sizes{2, 3, 4}}) {
    const auto dims = static_cast<int64_t>(shape.size());
    for (int64_t dim = -dims; dim < dims; ++dim) {
      expect_all_gather(group, inputs(group, shape), dim);
    }
  }
}

CONTRACT_CASE(AllGatherOfUnevenShards, Needs::kPeers) {
  for (const int64_t large : {2, 400, 4000}) {
    expect_all_gather(group, uneven_parts(group, large), 1);
    expect_all_gather(group, uneven_parts(group, large), -2);
    auto rows = uneven_parts(group, large);
    for (at::Tensor& part : rows) {
      part = part.transpose(0, 1).contiguous();
    }
    expect_all_gather(group, rows, 0);
  }
}

CONTRACT_CASE(AllGatherOfEverySize, Needs::kPeers) {
  for (const int64_t numel : {1, 7, 1023, 1024, 1025, 9000, 40'000, 90'000}) {
    for (const int64_t dim : {0, -1}) {
      const auto parts = inputs(group, {2, numel});
      expect_equal(
          group.all_gather(mine(group, parts), dim), torch::cat(parts, dim));
    }
  }
}

// Messages whose shapes are equal on all ranks, depend on the sender or on the
// receiver, and exceed the size of small messages in total.
CONTRACT_CASE(AllToAllOfEveryShape, Needs::kPeers) {
  const std::function<Sizes(int64_t, int64_t)> shapes[] = {
      [](int64_t, int64_t) { return Sizes{}; },
      [](int64_t, int64_t) {
        return Sizes{3, 2};
      },
      [](int64_t, int64_t) {
        return Sizes{2, 0};
      },
      [](int64_t, int64_t) { return Sizes{600}; },
      [](int64_t from, int64_t) {
        return Sizes{from, 2};
      },
      [](int64_t, int64_t to) { return Sizes{to + 1}; }};
  for (const auto& shape : shapes) {
    expect_all_to_all(group, [&](int64_t from, int64_t to) {
      return input_of(from * 16 + to, shape(from, to), at::kDouble);
    });
  }
  for (const int64_t rows : {1, 30, 3000}) {
    expect_all_to_all(group, uneven_messages(rows));
  }
  // A rank sends no data to the next rank.
  expect_all_to_all(group, [&](int64_t from, int64_t to) {
    const bool is_next = to == (from + 1) % group.size();
    return input_of(from * 8 + to, {is_next ? 0 : 100 * from + to});
  });
}

CONTRACT_CASE(AllToAllOfEveryDtype, Needs::kPeers) {
  for (const at::ScalarType dtype : kEveryDtype) {
    expect_all_to_all(group, uneven_messages(1, dtype));
  }
}

// Shapes below and above the size of small messages, divisible and not, empty
// for some ranks or for all. The shards are not contiguous.
CONTRACT_CASE(ShardDimAllToAllOfEveryShape, Needs::kPeers) {
  for (const Sizes& shape :
       {Sizes{8, 8},
        Sizes{5, 7},
        Sizes{2, 3, 1},
        Sizes{0, 4},
        Sizes{1, 1},
        Sizes{9, 4, 8},
        Sizes{64, 70},
        Sizes{33, 2, 129}}) {
    const at::Tensor whole = input_of(3, shape, at::kDouble);
    for (int64_t from = 0; from < whole.dim(); ++from) {
      for (int64_t to = 0; to < whole.dim(); ++to) {
        if (from != to) {
          SCOPED_TRACE(c10::str(shape, " from ", from, " to ", to));
          const auto parts = chunks(whole, group.size(), from);
          expect_shard_dim_alltoall(group, parts, from, to - whole.dim());
        }
      }
    }
  }
}

CONTRACT_CASE(ShardDimAllToAllOfEveryDtype, Needs::kPeers) {
  for (const at::ScalarType dtype : kEveryDtype) {
    const at::Tensor whole = input_of(1, {6, 5}, dtype);
    expect_shard_dim_alltoall(group, chunks(whole, group.size(), 0), 0, 1);
  }
}

CONTRACT_CASE(ShardDimAllToAllOfUnevenShards, Needs::kPeers) {
  for (const int64_t large : {2, 400}) {
    expect_shard_dim_alltoall(group, uneven_parts(group, large), 1, 0);
    expect_shard_dim_alltoall(group, uneven_parts(group, large), -2, -1);
  }
}

} // namespace TEST_SOURCE
} // namespace dtensor
