// SPDX-License-Identifier: BSD-3-Clause
// DTensor objects: printing, rejected operations, and ranks outside the mesh.
#include "support.h"

#include <sstream>

namespace dtensor {
namespace TEST_SOURCE {

using namespace test;

template <typename T>
std::string printed(const T& value) {
  std::ostringstream out;
  out << value;
  return out.str();
}

TEST(DTensor, PrintsItsLayoutAndThisRanksPart) {
  run_ranks(2, [](int64_t rank) {
    const auto d = placed(counting({3}, at::kFloat), mesh_of({2}), {Shard(0)});
    EXPECT_EQ(
        printed(d),
        rank == 0 ? "DTensor f32[3] on (a=2): S(0)\nlocal on rank 0:\n"
                    " 1\n 2\n[ CPUFloatType{2} ]"
                  : "DTensor f32[3] on (a=2): S(0)\nlocal on rank 1:\n"
                    " 3\n[ CPUFloatType{1} ]");
  });
}

TEST(DTensor, IsATensorOfTheGlobalShape) {
  run_ranks(2, [] {
    const at::Tensor t = placed(counting({5, 3}), mesh_of({2}), {Shard(0)});
    EXPECT_TRUE(is_dtensor(t));
    EXPECT_FALSE(is_dtensor(counting({2})));
    EXPECT_FALSE(is_dtensor(at::Tensor()));
    EXPECT_EQ(t.sizes(), at::IntArrayRef({5, 3}));
    EXPECT_EQ(t.strides(), at::IntArrayRef({3, 1}));
    EXPECT_EQ(t.numel(), 15);
    EXPECT_TRUE(t.device().is_cpu());
    EXPECT_TRUE(t.is_contiguous());
    EXPECT_EQ(t.scalar_type(), at::kDouble);
    EXPECT_FALSE(t.has_storage());
  });
}

TEST(DTensor, AnUndefinedOneIsUndefined) {
  const DTensor d;
  EXPECT_FALSE(d.defined());
  EXPECT_EQ(
      error_of<c10::TypeError>([&] { d.placements(); }),
      "[DTensor] the tensor is undefined. Make it a DTensor with "
      "distribute_tensor or from_local.");
}

TEST(DTensor, SurvivesTheMeshHandleAndTheSpec) {
  run_ranks(2, [] {
    at::Tensor t;
    {
      const auto mesh = mesh_of({2});
      t = placed(counting({4}), mesh, {Shard(0)});
    }
    expect_same(whole(t * 2), counting({4}) * 2);
  });
}

// The mesh consists of two of four ranks.
class OutsideMesh : public testing::Test {
 protected:
  template <typename Fn>
  static void run(const Fn& fn) {
    run_ranks(4, [&](int64_t rank) {
      const auto mesh = make_device_mesh(at::kCPU, {2}, {1, 3}, {"a"});
      fn(mesh, rank % 2 == 1);
    });
  }
};

TEST_F(OutsideMesh, LocalTensorsAreEmpty) {
  run([](const DeviceMesh& mesh, bool inside) {
    const auto full = counting({4, 3});
    const auto d = distribute_tensor(full, mesh, {Shard(0)});
    EXPECT_EQ(d.sizes(), full.sizes());
    if (inside) {
      expect_same(full_tensor(d), full);
      return;
    }
    EXPECT_EQ(to_local(d).sizes(), at::IntArrayRef({0}));
    EXPECT_EQ(full_tensor(d).sizes(), at::IntArrayRef({0}));
    EXPECT_EQ(
        to_local(redistribute(d, {Shard(1)})).sizes(), at::IntArrayRef({0}));
    const auto wrapped =
        DTensor::from_local(at::ones({2, 3}), mesh, {Shard(0)});
    EXPECT_EQ(to_local(wrapped).sizes(), at::IntArrayRef({0}));
    EXPECT_EQ(wrapped.sizes(), at::IntArrayRef({4, 3}));
  });
}

TEST_F(OutsideMesh, OperatorsReturnEmptyTensors) {
  run([](const DeviceMesh& mesh, bool inside) {
    const auto full = counting({4, 4});
    const auto d = distribute_tensor(full, mesh, {Shard(0)});
    const auto check = [&](const at::Tensor& mine, const at::Tensor& truth) {
      EXPECT_EQ(mine.sizes(), truth.sizes());
      if (inside) {
        expect_same(whole(mine), truth);
      } else {
        EXPECT_EQ(DTensor(mine).to_local().sizes(), at::IntArrayRef({0}));
      }
    };
    check(d * 2 + d, full * 2 + full);
    check(d.sum(), full.sum());
    check(d.matmul(d.t()), full.matmul(full.t()));
    check(d.softmax(0), full.softmax(0));
    check(d.view({2, 8}), full.view({2, 8}));
    check(at::cat({d, d}, 1), at::cat({full, full}, 1));
    auto changed = d * 1;
    changed.add_(1);
    check(changed, full + 1);
  });
}

TEST_F(OutsideMesh, ProgramsWithABackwardPassRun) {
  run([](const DeviceMesh& mesh, bool inside) {
    auto x = distribute_tensor(counting({4, 4}), mesh, {Shard(0)});
    x.requires_grad_();
    auto weight = distribute_tensor(counting({4, 4}), mesh, {Replicate()});
    weight.requires_grad_();
    whole(x.matmul(weight).relu().sum()).sum().backward();
    EXPECT_EQ(x.grad().sizes(), x.sizes());
    EXPECT_EQ(weight.grad().sizes(), weight.sizes());
    auto local = at::ones({2, 2}, at::kDouble).requires_grad_();
    const auto d = DTensor::from_local(local, mesh, {Shard(0)});
    whole((d * 3).sum()).sum().backward();
    expect_same(
        local.grad(), at::full({2, 2}, inside ? 3.0 : 0.0, at::kDouble));
    torch::optim::SGD sgd({x, weight}, 0.1);
    sgd.step();
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
