// SPDX-License-Identifier: BSD-3-Clause
// Another World, over communication that knows nothing of us: ranks exchange
// serialized tensors through a file of c10d's. What examples/01_layouts.cpp and
// 02_tensors.cpp do runs in it as it does in run_ranks.
#include <dtensor/dtensor.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/torch.h>

#include <unistd.h>
#include <cstdio>
#include <sstream>
#include <thread>

namespace dtensor {
namespace {

using Tensors = std::vector<at::Tensor>;

/// Members leave what they give under numbered keys and read the others'.
class StoreGroup final : public Group {
 public:
  StoreGroup(
      std::vector<int64_t> ranks,
      int64_t rank,
      std::string label,
      c10::intrusive_ptr<c10d::Store> store,
      std::map<std::string, int64_t>& rounds)
      : Group(std::move(ranks), rank, std::move(label)),
        store_(std::move(store)),
        rounds_(rounds) {}

 protected:
  at::Tensor do_all_reduce(const at::Tensor& input, ReduceOp op) override {
    TORCH_CHECK_NOT_IMPLEMENTED(op == ReduceOp::kSum, "[StoreGroup] only sums");
    return at::stack(one_of_each({input})).sum(0);
  }
  at::Tensor do_all_gather(const at::Tensor& input, int64_t dim) override {
    return at::cat(one_of_each({input}), dim);
  }
  at::Tensor do_reduce_scatter(
      const at::Tensor& input,
      int64_t dim,
      ReduceOp op) override {
    return parts_of(do_all_reduce(input, op), dim)[index(rank())];
  }
  Tensors do_all_to_all(const Tensors& inputs) override {
    Tensors mine;
    for (const Tensors& theirs : all(inputs)) {
      mine.push_back(theirs[index(rank())]);
    }
    return mine;
  }
  at::Tensor do_shard_dim_alltoall(
      const at::Tensor& input,
      int64_t gather_dim,
      int64_t shard_dim) override {
    return at::cat(do_all_to_all(parts_of(input, shard_dim)), gather_dim);
  }
  at::Tensor do_broadcast(const at::Tensor& input, int64_t root) override {
    return one_of_each({input})[index(root)];
  }
  at::Tensor do_scatter(const Tensors& inputs, const at::Tensor&, int64_t root)
      override {
    return all(inputs)[index(root)][index(rank())];
  }
  Tensors do_gather(const at::Tensor& input, int64_t root) override {
    const Tensors all = one_of_each({input});
    return rank() == root ? all : Tensors();
  }
  void do_send(const at::Tensor& input, int64_t to, int64_t tag) override {
    const auto key = next(c10::str("mail ", rank(), " ", to, " ", tag));
    store_->set(key, bytes_of({input}));
  }
  at::Tensor do_recv(const at::Tensor&, int64_t from, int64_t tag) override {
    const auto key = next(c10::str("mail ", from, " ", rank(), " ", tag));
    return tensors_of(store_->get(key))[0];
  }
  void do_barrier() override {
    all({});
  }
  std::vector<std::string> do_exchange(const std::string& mine) override {
    std::vector<std::string> texts;
    const std::vector<uint8_t> chars(mine.begin(), mine.end());
    for (const at::Tensor& theirs : one_of_each({at::tensor(chars)})) {
      const auto* begin = theirs.const_data_ptr<uint8_t>();
      texts.emplace_back(begin, begin + theirs.numel());
    }
    return texts;
  }
  // Compared at once, where a faster world would wait for the next collective.
  void do_assume(const Spec& spec) override {
    const std::string mine = c10::str(spec.sizes());
    for (const std::string& theirs : do_exchange(mine)) {
      TORCH_CHECK_VALUE(theirs == mine, "[from_local] ", mine, " and ", theirs);
    }
  }

 private:
  static size_t index(int64_t i) {
    return static_cast<size_t>(i);
  }
  static std::vector<uint8_t> bytes_of(const Tensors& tensors) {
    std::ostringstream out;
    torch::save(tensors, out);
    const std::string text = out.str();
    return {text.begin(), text.end()};
  }
  static Tensors tensors_of(const std::vector<uint8_t>& bytes) {
    std::istringstream in(std::string(bytes.begin(), bytes.end()));
    Tensors tensors;
    torch::load(tensors, in);
    return tensors;
  }
  // torch.chunk, with the empty ones.
  Tensors parts_of(const at::Tensor& tensor, int64_t dim) const {
    Tensors parts;
    for (int64_t r = 0; r < size(); ++r) {
      const Interval part = chunk(tensor.size(dim), size(), r);
      parts.push_back(tensor.narrow(dim, part.begin, part.size()).contiguous());
    }
    return parts;
  }
  std::string next(const std::string& what) {
    const std::string name = c10::str(c10::Join(",", ranks()), " ", what);
    return c10::str(name, " round ", rounds_[name]++);
  }
  std::vector<Tensors> all(const Tensors& mine) {
    const std::string round = next("all");
    store_->set(c10::str(round, " of ", rank()), bytes_of(mine));
    std::vector<Tensors> result;
    for (int64_t r = 0; r < size(); ++r) {
      result.push_back(tensors_of(store_->get(c10::str(round, " of ", r))));
    }
    return result;
  }
  Tensors one_of_each(const Tensors& mine) {
    Tensors result;
    for (const Tensors& theirs : all(mine)) {
      result.push_back(theirs.front());
    }
    return result;
  }

  c10::intrusive_ptr<c10d::Store> store_;
  std::map<std::string, int64_t>& rounds_;
};

class StoreWorld final : public World {
 public:
  StoreWorld(int64_t rank, int64_t size, const std::string& path)
      : World(rank, size, "store world"),
        store_(c10::make_intrusive<c10d::FileStore>(path, size)) {}

 protected:
  GroupPtr make_group(
      std::vector<int64_t> ranks,
      int64_t rank,
      std::string label) override {
    return std::make_shared<StoreGroup>(
        std::move(ranks), rank, std::move(label), store_, rounds_);
  }

 private:
  c10::intrusive_ptr<c10d::Store> store_;
  std::map<std::string, int64_t> rounds_;
};

// Two threads of the test's own, each a rank.
void on_two_ranks(const std::function<void(const DeviceMesh&)>& fn) {
  const auto* test = testing::UnitTest::GetInstance()->current_test_info();
  const std::string path = c10::str(
      testing::TempDir(), "dtensor_world_", getpid(), test->name());
  const auto rank_main = [&](int64_t rank) {
    const auto world = std::make_shared<StoreWorld>(rank, 2, path);
    const WorldScope scope(world);
    EXPECT_NO_THROW(fn(init_device_mesh(at::kCPU, {2}, {"tp"})));
    world->end();
  };
  std::thread other(rank_main, 1);
  rank_main(0);
  other.join();
  std::remove(path.c_str());
}

TEST(SecondWorld, HasMeshesAndLayouts) {
  on_two_ranks([](const DeviceMesh& mesh) {
    EXPECT_EQ(get_world_size(), 2);
    EXPECT_EQ(mesh.get_local_rank("tp"), get_rank());
    EXPECT_EQ(get_group(mesh, "tp").label(), "tp");
    EXPECT_EQ(mesh, init_device_mesh(at::kCPU, {2}, {"tp"}));
    const auto grid = init_device_mesh(at::kCPU, {1, 2}, {"dp", "tp"});
    EXPECT_EQ(grid["dp"].size(), 1);
    EXPECT_EQ(grid.flatten("all").size(), 2);
    const auto spec = Spec::make(mesh, {Shard(0)}, {5, 2}, at::kFloat);
    EXPECT_EQ(to_string(*spec), "f32[5, 2] on (tp=2): S(0)");
    EXPECT_EQ(spec->local_sizes()[0], get_rank() == 0 ? 3 : 2);
  });
}

TEST(SecondWorld, RedistributesToTheWholeTensor) {
  on_two_ranks([](const DeviceMesh& mesh) {
    const auto whole = torch::arange(15.0).view({5, 3});
    const std::vector<Placement> layouts = {Shard(0), Shard(1), Replicate()};
    for (const Placement& from : layouts) {
      const auto d = distribute_tensor(whole, mesh, {from});
      EXPECT_TRUE(torch::equal(d.full_tensor(), whole));
      for (const Placement& to : layouts) {
        EXPECT_TRUE(torch::equal(d.redistribute({to}).full_tensor(), whole));
      }
    }
    const auto part = torch::full({1, 2}, static_cast<double>(get_rank()));
    EXPECT_EQ(DTensor::from_local(part, mesh, {Shard(0)}).size(0), 2);
    const auto sum = DTensor::from_local(part, mesh, {Partial("sum")});
    EXPECT_EQ(sum.full_tensor().sum().item<double>(), 2.0);
    const auto rows = sum.redistribute({Shard(0)}).to_local();
    EXPECT_EQ(rows.size(0), get_rank() == 0 ? 1 : 0);
  });
}

TEST(SecondWorld, ComputesAndDifferentiates) {
  on_two_ranks([](const DeviceMesh& mesh) {
    const auto a = torch::arange(24.0, at::kDouble).view({4, 6});
    const auto b = torch::arange(12.0, at::kDouble).view({6, 2});
    const DTensor product(torch::mm(
        distribute_tensor(a, mesh, {Shard(1)}),
        distribute_tensor(b, mesh, {Shard(0)})));
    EXPECT_EQ(product.placements()[0], Partial("sum"));
    EXPECT_TRUE(torch::allclose(product.full_tensor(), torch::mm(a, b)));
    const auto w = distribute_tensor(
        a.clone().requires_grad_(), mesh, {Shard(0)});
    (w * w).sum().backward();
    const DTensor grad(w.grad());
    EXPECT_EQ(grad.placements()[0], Shard(0));
    EXPECT_TRUE(torch::equal(grad.full_tensor(), 2 * a));
    EXPECT_THROW(w + torch::ones({4, 6}, at::kDouble), c10::Error);
  });
}

TEST(SecondWorld, RefusesWhatBelongsToAnother) {
  DeviceMesh of_rank_0;
  on_two_ranks([&](const DeviceMesh& mesh) {
    if (get_rank() == 0) {
      of_rank_0 = mesh;
    }
    get_group(mesh).barrier();
    if (get_rank() == 1) {
      EXPECT_THROW(get_group(of_rank_0).barrier(), c10::Error);
      EXPECT_THROW(dtensor::ones({4}, of_rank_0), c10::Error);
    }
    get_group(mesh).barrier();
  });
  EXPECT_THROW(get_group(of_rank_0).barrier(), c10::Error);
}

} // namespace
} // namespace dtensor
