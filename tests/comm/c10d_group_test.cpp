// SPDX-License-Identifier: BSD-3-Clause
// Calls that c10d_group() makes of a c10d::Backend, depending on the backend's
// name and device.
#include <dtensor/comm/c10d_backend.h>
#include <dtensor/comm/c10d_group.h>
#include <dtensor/comm/ranks.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "collective_inputs.h"
#include "expect_error.h"

namespace dtensor {
namespace TEST_SOURCE {

using namespace test;

// Backend of ranks that are threads, under another name. Records the calls.
class Named final : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Counts = std::vector<int64_t>;

  Named(std::string name, c10::intrusive_ptr<c10d::Backend> inner)
      : Backend(inner->getRank(), inner->getSize()),
        name_(std::move(name)),
        inner_(std::move(inner)) {}

  const std::string getBackendName() const override {
    return name_;
  }
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options)
      override {
    asked += "allreduce ";
    return inner_->allreduce(tensors, options);
  }
  WorkPtr _allgather_base(
      at::Tensor& out,
      at::Tensor& in,
      const c10d::AllgatherOptions& options) override {
    asked += "allgather ";
    return inner_->_allgather_base(out, in, options);
  }
  WorkPtr _reduce_scatter_base(
      at::Tensor& out,
      at::Tensor& in,
      const c10d::ReduceScatterOptions& options) override {
    asked += "reduce_scatter ";
    return inner_->_reduce_scatter_base(out, in, options);
  }
  WorkPtr alltoall_base(
      at::Tensor& out,
      at::Tensor& in,
      Counts& out_counts,
      Counts& in_counts,
      const c10d::AllToAllOptions& options) override {
    asked += "alltoall ";
    return inner_->alltoall_base(out, in, out_counts, in_counts, options);
  }

  std::string asked;

 private:
  std::string name_;
  c10::intrusive_ptr<c10d::Backend> inner_;
};

// Returns false if transports lose NaN or overflow.
bool is_exact(ReduceOp op, at::ScalarType dtype) {
  const bool is_order = op == ReduceOp::kMin || op == ReduceOp::kMax;
  return !(at::isFloatingType(dtype) && is_order) &&
      !(dtype == at::kHalf && op == ReduceOp::kAvg);
}

void on_two(
    const std::string& name,
    at::Device device,
    const std::function<void(Group&, Named&)>& fn) {
  run_ranks(2, [&](int64_t rank) {
    const auto named = c10::make_intrusive<Named>(name, c10d_backend(world()));
    Group group(c10d_group(named, {{0, 1}, rank, "tp"}, device), "tp");
    fn(group, *named);
  });
}

TEST(C10dGroup, EvenPartsAreReducedAndScatteredByNcclItself) {
  on_two("nccl", at::kCPU, [](Group& group, Named& named) {
    const auto me = static_cast<size_t>(get_rank());
    for (const at::ScalarType dtype : kEveryDtype) {
      for (const ReduceOp op : kEveryOp) {
        if (!has_meaning(op, dtype)) {
          continue;
        }
        named.asked = "";
        const auto mine = input_of(get_rank(), {4, 3}, dtype);
        const auto all = reduced(inputs({4, 3}, dtype), op);
        expect_equal(
            group.reduce_scatter(mine, 0, op),
            all.chunk(2, 0)[me].contiguous());
        const bool has_it = op < ReduceOp::kBand && dtype != at::kShort &&
            !at::isComplexType(dtype) && is_exact(op, dtype);
        EXPECT_EQ(named.asked, has_it ? "reduce_scatter " : "alltoall ");
        expect_equal(mine, input_of(get_rank(), {4, 3}, dtype));
      }
    }
  });
}

TEST(C10dGroup, OtherPartsAreSentAndReducedHere) {
  on_two("nccl", at::kCPU, [](Group& group, Named& named) {
    const auto me = static_cast<size_t>(get_rank());
    const auto sum = reduced(inputs({5}), ReduceOp::kSum);
    expect_equal(
        group.reduce_scatter(input_of(get_rank(), {5}), 0, ReduceOp::kSum),
        sum.chunk(2, 0)[me].contiguous());
    EXPECT_EQ(named.asked, "alltoall ");
  });
  on_two("mine", at::kCPU, [](Group& group, Named& named) {
    group.reduce_scatter(torch::ones(4), 0, ReduceOp::kSum);
    EXPECT_EQ(named.asked, "alltoall ");
  });
}

// NCCL reduces bytes and booleans directly; for other backends they are
// gathered.
TEST(C10dGroup, NcclReducesWhatHasABytePerElement) {
  for (const char* name : {"nccl", "mine"}) {
    const bool is_nccl = std::string(name) == "nccl";
    on_two(name, at::kCPU, [&](Group& group, Named& named) {
      for (const at::ScalarType dtype : {at::kBool, at::kByte, at::kChar}) {
        for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kProduct}) {
          named.asked = "";
          expect_equal(
              group.all_reduce(input_of(get_rank(), {2, 3}, dtype), op),
              reduced(inputs({2, 3}, dtype), op));
          EXPECT_EQ(named.asked, is_nccl ? "allreduce " : "allgather ");
        }
      }
    });
  }
}

TEST(C10dGroup, ReducesUnsharedTensorsInPlace) {
  run_ranks(2, [](int64_t rank) {
    const auto backend =
        c10d_group(c10d_backend(world()), {{0, 1}, rank, "tp"}, at::kCPU);
    for (const at::ScalarType dtype : kEveryDtype) {
      for (const ReduceOp op : kEveryOp) {
        if (!has_meaning(op, dtype)) {
          continue;
        }
        Collective owned{.kind = CollectiveKind::kAllReduce, .op = op};
        owned.inputs.push_back(input_of(rank, {4, 3}, dtype).clone());
        const void* const memory = owned.input().data_ptr();
        const auto sum = backend->submit(std::move(owned)).wait().tensor;
        expect_equal(sum, reduced(inputs({4, 3}, dtype), op));
        const bool has_it = op < ReduceOp::kBand && is_exact(op, dtype) &&
            (at::isFloatingType(dtype) || dtype == at::kInt ||
             dtype == at::kLong ||
             (at::isComplexType(dtype) &&
              (op == ReduceOp::kSum || op == ReduceOp::kAvg)));
        EXPECT_EQ(sum.data_ptr() == memory, has_it) << dtype;
        const auto kept = input_of(rank, {4, 3}, dtype);
        Collective shared{
            .kind = CollectiveKind::kAllReduce, .op = op, .inputs = {kept}};
        expect_equal(backend->submit(std::move(shared)).wait().tensor, sum);
        expect_equal(kept, input_of(rank, {4, 3}, dtype));
      }
    }
  });
}

// LibTorch's fake backend refuses an input without elements.
TEST(C10dGroup, FakeGetsNoEmptyInput) {
  on_two("fake", at::kCPU, [](Group& group, Named& named) {
    const auto none = torch::ones({0, 3});
    const auto me = static_cast<size_t>(get_rank());
    std::vector<Sizes> shapes(2, Sizes{2, 3});
    shapes[me] = {0, 3};
    const auto parts = group.all_to_all({none, none}, shapes);
    expect_equal(parts[me], none);
    expect_equal(parts[1 - me], torch::zeros({2, 3}));
    EXPECT_EQ(named.asked, "");
  });
}

// c10d passes tags as int.
TEST(C10dGroup, RefusesATagThatIsNoInt) {
  on_two("mine", at::kCPU, [](Group& group, Named&) {
    const auto x = torch::ones(2);
    const int64_t peer = 1 - get_rank();
    EXPECT_EQ(
        error_of<c10::ValueError>(
            [&] { group.send(x, peer, int64_t{1} << 32); }),
        "[send] invalid tag 4294967296 on \"tp\". Use one from 0 to "
        "2147483647.");
    EXPECT_EQ(
        error_of<c10::ValueError>([&] { group.recv(x, peer, -1); }),
        "[recv] invalid tag -1 on \"tp\". Use one from 0 to 2147483647.");
  });
}

TEST(C10dGroup, RefusesATensorOfAnotherDevice) {
  on_two("nccl", at::kMeta, [](Group& group, Named&) {
    const auto error = [](const auto& fn) {
      return error_of<c10::ValueError>(fn);
    };
    const std::string why =
        " nccl uses meta for this rank on \"tp\", but the tensor is on cpu. "
        "Move it there, or make its device current before the group's first "
        "collective.";
    const auto mine = torch::ones(2);
    EXPECT_EQ(
        error([&] { group.all_reduce(mine, ReduceOp::kSum); }),
        "[all_reduce]" + why);
    EXPECT_EQ(
        error([&] { group.all_gather_async(mine, 0, 4); }),
        "[all_gather]" + why);
    EXPECT_EQ(error([&] { group.send(mine, 1 - get_rank()); }), "[send]" + why);
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
