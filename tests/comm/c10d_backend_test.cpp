// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/c10d_backend.h>
#include <dtensor/comm/ranks.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "expect_error.h"

namespace dtensor {
namespace TEST_SOURCE {

using Tensors = std::vector<at::Tensor>;
using Lists = std::vector<Tensors>;

// Runs `fn(backend, rank)` on three ranks.
template <typename Fn>
void on_three(const Fn& fn) {
  run_ranks(3, [&](int64_t rank) {
    fn(*c10d_backend(new_group({0, 1, 2}, "tp")), rank);
  });
}

at::Tensor row(double value) {
  return torch::full({2}, value);
}

void expect_row(const at::Tensor& got, double value) {
  EXPECT_TRUE(torch::equal(got, row(value))) << got;
}

TEST(C10dBackend, AllReducesInPlace) {
  on_three([](c10d::Backend& backend, int64_t rank) {
    EXPECT_EQ(backend.getRank(), rank);
    EXPECT_EQ(backend.getSize(), 3);
    EXPECT_EQ(backend.getBackendName(), "dtensor");
    Tensors tensors = {row(static_cast<double>(rank + 1))};
    c10d::AllreduceOptions product;
    product.reduceOp = c10d::ReduceOp::PRODUCT;
    const auto work = backend.allreduce(tensors, product);
    EXPECT_TRUE(work->isCompleted());
    EXPECT_TRUE(work->isSuccess());
    EXPECT_TRUE(work->wait());
    expect_row(tensors[0], 6);
    expect_row(work->result().at(0), 6);
    expect_row(work->getFuture()->value().toTensorVector().at(0), 6);
    Tensors reduced = {row(1)};
    backend.reduce(reduced)->wait();
    expect_row(reduced[0], rank == 0 ? 3 : 1);
  });
}

// The ranks pass the elements of one tensor as one tensor or as several.
TEST(C10dBackend, AllReducesSeveralTensorsAsOne) {
  on_three([](c10d::Backend& backend, int64_t rank) {
    at::Tensor elements = torch::arange(4) + rank;
    Tensors tensors = rank == 1
        ? elements.unbind()
        : Tensors{rank == 2 ? elements.view({2, 2}) : elements};
    backend.allreduce(tensors)->wait();
    EXPECT_TRUE(elements.equal(torch::arange(4) * 3 + 3)) << elements;
    at::Tensor number = torch::ones({1});
    Tensors one = {rank == 0 ? number : number[0]};
    backend.allreduce(one)->wait();
    EXPECT_EQ(number.item<double>(), 3);
  });
}

TEST(C10dBackend, Gathers) {
  on_three([](c10d::Backend& backend, int64_t rank) {
    Tensors mine = {row(static_cast<double>(rank))};
    Lists all = {{row(-1), row(-1), row(-1)}};
    backend.allgather(all, mine)->wait();
    at::Tensor base = torch::empty({3, 2});
    backend._allgather_base(base, mine[0])->wait();
    Lists at_root = rank == 1 ? Lists{{row(-1), row(-1), row(-1)}} : Lists{};
    c10d::GatherOptions to_one;
    to_one.rootRank = 1;
    backend.gather(at_root, mine, to_one)->wait();
    for (int64_t i = 0; i < 3; ++i) {
      expect_row(all[0][static_cast<size_t>(i)], static_cast<double>(i));
      expect_row(base[i], static_cast<double>(i));
      if (rank == 1) {
        expect_row(at_root[0][static_cast<size_t>(i)], static_cast<double>(i));
      }
    }
  });
}

TEST(C10dBackend, ReduceScatters) {
  on_three([](c10d::Backend& backend, int64_t rank) {
    Tensors out = {row(-1)};
    Lists parts = {{row(0), row(1), row(2)}};
    backend.reduce_scatter(out, parts)->wait();
    expect_row(out[0], 3.0 * static_cast<double>(rank));
    at::Tensor base = row(-1);
    at::Tensor input = torch::arange(3.0).view({3, 1}).expand({3, 2});
    backend._reduce_scatter_base(base, input)->wait();
    expect_row(base, 3.0 * static_cast<double>(rank));
  });
}

TEST(C10dBackend, GathersAndReducesSeveralTensors) {
  on_three([](c10d::Backend& backend, int64_t rank) {
    Tensors gathered = {torch::empty({3, 2}), torch::empty({3})};
    Tensors mine = {
        row(static_cast<double>(rank)),
        torch::full({1}, 10 * rank, at::kFloat)};
    backend.allgather_into_tensor_coalesced(gathered, mine)->wait();
    Tensors reduced = {row(-1), torch::empty({1})};
    Tensors parts = {
        torch::arange(3.0).view({3, 1}).expand({3, 2}),
        torch::arange(3.0) * (rank + 1)};
    backend.reduce_scatter_tensor_coalesced(reduced, parts)->wait();
    for (int64_t i = 0; i < 3; ++i) {
      expect_row(gathered[0][i], static_cast<double>(i));
      EXPECT_EQ(gathered[1][i].item<double>(), 10.0 * static_cast<double>(i));
    }
    expect_row(reduced[0], 3.0 * static_cast<double>(rank));
    EXPECT_EQ(reduced[1].item<double>(), 6.0 * static_cast<double>(rank));
    Tensors none;
    EXPECT_EQ(
        test::error_of<c10::ValueError>(
            [&] { backend.allgather_into_tensor_coalesced(gathered, none); }),
        "[allgather_into_tensor_coalesced] got 2 outputs and 0 inputs. Pass an "
        "output for each input.");
  });
}

TEST(C10dBackend, ExchangesAllToAll) {
  on_three([](c10d::Backend& backend, int64_t rank) {
    const auto tag = [](int64_t from, int64_t to) {
      return static_cast<double>(10 * from + to);
    };
    Tensors sent;
    Tensors received = {row(-1), row(-1), row(-1)};
    for (int64_t to = 0; to < 3; ++to) {
      sent.push_back(row(tag(rank, to)));
    }
    backend.alltoall(received, sent)->wait();
    at::Tensor base = torch::empty({3, 2});
    at::Tensor stacked = torch::stack(sent);
    std::vector<int64_t> even;
    backend.alltoall_base(base, stacked, even, even)->wait();
    for (int64_t from = 0; from < 3; ++from) {
      expect_row(received[static_cast<size_t>(from)], tag(from, rank));
      expect_row(base[from], tag(from, rank));
    }
    // Rank r sends r + 1 elements to every rank.
    std::vector<int64_t> out_sizes = {1, 2, 3};
    std::vector<int64_t> in_sizes(3, rank + 1);
    at::Tensor uneven = torch::empty({6});
    at::Tensor mine = torch::full({3 * (rank + 1)}, static_cast<double>(rank));
    backend.alltoall_base(uneven, mine, out_sizes, in_sizes)->wait();
    EXPECT_TRUE(
        torch::equal(uneven, torch::tensor({0.F, 1.F, 1.F, 2.F, 2.F, 2.F})));
  });
}

TEST(C10dBackend, SendsFromARoot) {
  on_three([](c10d::Backend& backend, int64_t rank) {
    Tensors tensors = {row(static_cast<double>(rank))};
    c10d::BroadcastOptions from_two;
    from_two.rootRank = 2;
    backend.broadcast(tensors, from_two)->wait();
    expect_row(tensors[0], 2);
    Tensors out = {row(-1)};
    Lists parts = rank == 0 ? Lists{{row(5), row(6), row(7)}} : Lists{};
    backend.scatter(out, parts)->wait();
    expect_row(out[0], 5.0 + static_cast<double>(rank));
  });
}

TEST(C10dBackend, SendsAndReceives) {
  on_three([](c10d::Backend& backend, int64_t rank) {
    Tensors tensors = {row(rank == 0 ? 4 : -1)};
    if (rank == 0) {
      backend.send(tensors, 2, 9)->wait();
    } else if (rank == 2) {
      backend.recv(tensors, 0, 9)->wait();
      expect_row(tensors[0], 4);
    }
    backend.barrier()->wait();
  });
}

TEST(C10dBackend, ChecksItsLists) {
  const auto backend = c10d_backend(new_group({0}, "tp"));
  Tensors two = {row(1), row(2)};
  EXPECT_EQ(
      test::error_of<c10::ValueError>([&] { backend->broadcast(two); }),
      "[broadcast] takes one tensor or list per rank: got 2. Call it once for "
      "each.");
  Tensors none;
  EXPECT_EQ(
      test::error_of<c10::ValueError>([&] { backend->allreduce(none); }),
      "[allreduce] takes one tensor or list per rank: got 0. Call it once for "
      "each.");
  Tensors dtypes = {row(1), torch::ones({2}, at::kInt)};
  EXPECT_EQ(
      test::error_of<c10::TypeError>([&] { backend->allreduce(dtypes); }),
      "[allreduce] the tensors differ in dtype: f32 and i32. Pass one "
      "dtype.");
  Lists lists = {two};
  Tensors one = {row(1)};
  EXPECT_EQ(
      test::error_of<c10::ValueError>([&] { backend->allgather(lists, one); }),
      "[allgather] needs a tensor for each of 1 rank: got 2. Pass one per "
      "rank.");
  at::Tensor large = torch::empty({5});
  EXPECT_EQ(
      test::error_of<c10::ValueError>(
          [&] { backend->_allgather_base(large, one[0]); }),
      "[_allgather_base] the outputs have 5 elements, the result 2. Make the "
      "outputs as large as the result.");
}

TEST(C10dBackend, TakesEveryReduction) {
  const std::vector<std::pair<c10d::ReduceOp::RedOpType, int64_t>> ops = {
      {c10d::ReduceOp::SUM, 6},
      {c10d::ReduceOp::PRODUCT, 6},
      {c10d::ReduceOp::MIN, 1},
      {c10d::ReduceOp::MAX, 3},
      {c10d::ReduceOp::BAND, 0},
      {c10d::ReduceOp::BOR, 3},
      {c10d::ReduceOp::BXOR, 0}};
  on_three([&](c10d::Backend& backend, int64_t rank) {
    for (const auto& [op, expected] : ops) {
      c10d::AllreduceOptions options;
      options.reduceOp = op;
      Tensors tensors = {torch::full({2}, rank + 1)};
      backend.allreduce(tensors, options)->synchronize();
      EXPECT_TRUE(torch::equal(tensors[0], torch::full({2}, expected)))
          << tensors[0];
    }
    c10d::AllreduceOptions average;
    average.reduceOp = c10d::ReduceOp::AVG;
    Tensors tensors = {row(static_cast<double>(rank + 1))};
    backend.allreduce(tensors, average)->wait();
    expect_row(tensors[0], 2);
  });
}

TEST(C10dBackend, RefusesAReductionWithAFactor) {
  const auto backend = c10d_backend(new_group({0}, "tp"));
  c10d::AllreduceOptions scaled;
  scaled.reduceOp.op_ = c10d::ReduceOp::PREMUL_SUM;
  Tensors tensors = {row(1)};
  EXPECT_EQ(
      test::error_of<c10::NotImplementedError>(
          [&] { backend->allreduce(tensors, scaled); }),
      "[c10d_backend] PREMUL_SUM is not supported. Multiply first, then use "
      "SUM.");
}

// The tensors may differ in dtype and shape.
TEST(C10dBackend, AllReducesEachOfSeveralTensors) {
  on_three([](c10d::Backend& backend, int64_t rank) {
    Tensors tensors = {
        row(static_cast<double>(rank)), torch::full({3, 1}, rank + 1)};
    c10d::AllreduceCoalescedOptions largest;
    largest.reduceOp = c10d::ReduceOp::MAX;
    backend.allreduce_coalesced(tensors, largest)->wait();
    expect_row(tensors[0], 2);
    EXPECT_TRUE(torch::equal(tensors[1], torch::full({3, 1}, 3)));
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
