// SPDX-License-Identifier: BSD-3-Clause
// Writes along a sharded dimension: to views that had to be redistributed, and
// by in-place operators that cannot compute on shards.
#include <set>

#include "tests/ops/against_plain.h"

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::against_plain;

at::Tensor whole(const at::Tensor& t) {
  return DTensor(t).full_tensor();
}

struct Write {
  std::string name;
  std::function<void(const at::Tensor&)> run; // of a tensor of shape (7, 6)
};

const std::vector<Write>& view_writes() {
  static const std::vector<Write> all = {
      {"row", [](auto& x) { x[3].zero_(); }},
      {"last row", [](auto& x) { x[-1].fill_(2); }},
      {"column", [](auto& x) { x.select(1, 4).mul_(3); }},
      {"rows", [](auto& x) { x.narrow(0, 2, 3).add_(1); }},
      {"columns", [](auto& x) { x.slice(1, 1, 6, 2).neg_(); }},
      {"every third row", [](auto& x) { x.slice(0, 1, 7, 3).add_(5); }},
      {"block", [](auto& x) { x.narrow(0, 1, 4).narrow(1, 2, 3).sub_(4); }},
      {"element", [](auto& x) { x[5][2] = 7; }},
      {"transposed", [](auto& x) { x.t()[2].narrow(0, 1, 3).div_(2); }},
      {"empty", [](auto& x) { x.narrow(0, 3, 0).fill_(1); }},
      {"diagonal", [](auto& x) { x.diagonal(1).fill_(9); }},
      {"fill_diagonal_", [](auto& x) { x.fill_diagonal_(8); }},
      {"flattened", [](auto& x) { x.flatten().narrow(0, 4, 20).add_(1); }},
      {"unfolded", [](auto& x) { x.unfold(0, 2, 3).mul_(2); }},
      {"strided",
       [](auto& x) {
         x.as_strided({3, 4}, {7, 2}, 1).fill_(3);
       }},
      {"chunk", [](auto& x) { x.chunk(2, 0)[1].zero_(); }},
      {"copy_", [](auto& x) { x[1].copy_(x[2]); }},
      {"twice",
       [](auto& x) {
         const auto row = x[1];
         row.add_(1);
         row.narrow(0, 1, 2).mul_(row.narrow(0, 3, 2));
         row.neg_();
       }},
      {"view of a view", [](auto& x) { x.narrow(0, 1, 5)[2].add_(1); }},
      {"siblings",
       [](auto& x) {
         const auto parts = x.chunk(3, 0);
         parts[0].add_(1);
         parts[1].mul_(2);
         x.narrow(0, 2, 4).neg_();
         parts[1].sub_(3);
         parts[2].zero_();
       }},
      {"a copy of a copy",
       [](auto& x) {
         const auto rows = x.narrow(0, 1, 5);
         const auto block = rows.narrow(1, 1, 4).narrow(0, 1, 3);
         block.add_(1);
         rows.mul_(2);
         block.neg_();
         rows.sub_(1);
       }},
      {"transposed in place",
       [](auto& x) {
         auto rows = x.narrow(0, 1, 4);
         rows.t_();
         rows[2].add_(1);
         rows.mul_(2);
       }},
      {"base transposed in place",
       [](auto& x) {
         auto base = x;
         const auto rows = x.narrow(0, 1, 4);
         base.t_();
         rows.add_(1);
         rows[1].mul_(2);
         base.t_();
       }},
      {"foreach",
       [](auto& x) {
         at::_foreach_add_({x[1], x[4]}, 2);
       }},
      {"masked", [](auto& x) { x[1].masked_fill_(x[1] > 0, 4); }},
      {"index_put_",
       [](auto& x) { x[4].index_put_({x[4] > 0}, at::ones({}, at::kDouble)); }},
      {"out", [](auto& x) {
         auto row = x[2];
         at::add_out(row, x[0], x[1]);
       }}};
  return all;
}

at::Tensor like(const at::Tensor& plain, const at::Tensor& x) {
  return is_dtensor(x) ? replicate_tensor(plain, DTensor(x).device_mesh())
                       : plain;
}

const std::vector<Write>& index_writes() {
  static const std::vector<Write> all = {
      {"index_fill_",
       [](auto& x) {
         x.index_fill_(0, like(torch::tensor({1, 5}), x), 3);
       }},
      {"index_copy_",
       [](auto& x) {
         x.index_copy_(
             0, like(torch::tensor({6, 0}), x), like(numbers({2, 6}, 5), x));
       }},
      {"index_add_",
       [](auto& x) {
         x.index_add_(
             0, like(torch::tensor({2, 2, 4}), x), like(numbers({3, 6}, 5), x));
       }},
      {"index_put_ of rows",
       [](auto& x) {
         x.index_put_(
             {like(torch::tensor({3, 1}), x)}, like(numbers({2, 6}, 5), x));
       }},
      {"index_put_ of elements, accumulated",
       [](auto& x) {
         x.index_put_(
             {like(torch::tensor({3, 3}), x), like(torch::tensor({2, 2}), x)},
             like(at::ones({2}, at::kDouble), x),
             true);
       }},
      {"scatter_",
       [](auto& x) {
         x.scatter_(0, like(torch::tensor({{4, 2, 0, 1, 6, 5}}), x), 2);
       }},
      {"masked_scatter_",
       [](auto& x) {
         x.masked_scatter_(
             like(numbers({7, 6}, 3) > 0, x), like(numbers({7, 6}, 4), x));
       }},
      {"cumsum_", [](auto& x) { x.cumsum_(0); }},
      {"cumsum_ of columns", [](auto& x) { x.cumsum_(1); }}};
  return all;
}

// Expects each write in each layout to be exact on this mesh.
void expect_exact(
    const std::vector<Write>& writes,
    const std::vector<int64_t>& mesh_shape,
    const std::vector<Placements>& layouts) {
  Failures failures;
  run_ranks(c10::multiply_integers(mesh_shape), [&] {
    const auto mesh = init_device_mesh(at::kCPU, mesh_shape);
    for (const auto& write : writes) {
      auto truth = numbers({7, 6}, 1);
      write.run(truth);
      for (const auto& layout : layouts) {
        const at::Tensor x = place(numbers({7, 6}, 1), mesh, layout).clone();
        const Placements before(DTensor(x).placements());
        std::string text;
        try {
          write.run(x);
          const bool same = at::equal(whole(x), truth);
          text = same ? "" : c10::str(whole(x), "\nnot\n", truth);
        } catch (const c10::Error& e) {
          text = e.what_without_backtrace();
        }
        if (text.find("cannot keep the sharding") != text.npos) {
          continue; // flatten() refuses some layouts, before the write
        }
        if (!text.empty() || DTensor(x).placements() != PlacementsRef(before)) {
          failures.add(write.name + " in " + to_string(layout) + ": " + text);
        }
      }
    }
  });
  EXPECT_EQ(failures.text(), "");
}

TEST(WriteThrough, ViewsOnTwoRanks) {
  expect_exact(view_writes(), {2}, {{Shard(0)}, {Shard(1)}, {Replicate()}});
}

// 7 rows on 5 ranks: 2, 2, 2, 1, 0.
TEST(WriteThrough, ViewsOfUnevenAndEmptyShards) {
  expect_exact(view_writes(), {5}, {{Shard(0)}, {Shard(1)}});
}

TEST(WriteThrough, ViewsOnAMeshOfTwoDimensions) {
  expect_exact(
      view_writes(),
      {2, 3},
      {{Shard(0), Shard(1)},
       {Shard(1), Shard(0)},
       {Shard(0), Shard(0)},
       {Shard(0), Replicate()},
       {Replicate(), Shard(1)}});
}

TEST(WriteThrough, ViewsOfOtherCuts) {
  expect_exact(
      view_writes(), {2}, {{StridedShard(1, 3)}, {Shard(0, 4)}, {Shard(1, 4)}});
}

TEST(WriteThrough, ByIndex) {
  expect_exact(index_writes(), {2}, {{Shard(0)}, {Shard(1)}, {Replicate()}});
  expect_exact(index_writes(), {5}, {{Shard(0)}, {Shard(1)}});
  expect_exact(
      index_writes(), {2, 2}, {{Shard(0), Shard(1)}, {Shard(0), Shard(0)}});
}

TEST(WriteThrough, OtherViewsSeeIt) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const at::Tensor x = place(numbers({4, 6}, 1), mesh, {Shard(0)}).clone();
    auto truth = numbers({4, 6}, 1);
    const auto columns = x.narrow(1, 0, 2); // shares the shards
    const auto rows = x.narrow(0, 0, 2);    // gathered
    const auto row = x[1];
    row.zero_();
    truth[1].zero_();
    EXPECT_TRUE(at::equal(whole(row), truth[1]));
    EXPECT_TRUE(at::equal(whole(columns), truth.narrow(1, 0, 2)));
    EXPECT_TRUE(at::equal(whole(rows), truth.narrow(0, 0, 2)));
    row.add_(1);
    truth[1].add_(1);
    x.add_(1);
    truth.add_(1);
    EXPECT_TRUE(at::equal(whole(x), truth));
    EXPECT_TRUE(at::equal(whole(row), truth[1]));
    x.add_(1);
    truth.add_(1);
    row.add_(1); // to the current values of the row
    truth[1].add_(1);
    EXPECT_TRUE(at::equal(whole(row), truth[1]));
    rows.mul_(2);
    truth.narrow(0, 0, 2).mul_(2);
    EXPECT_TRUE(at::equal(whole(rows), truth.narrow(0, 0, 2)));
    EXPECT_TRUE(at::equal(whole(row), truth[1]));
    EXPECT_TRUE(at::equal(whole(x), truth));
  });
}

// Returns the sum of squares of `w` with written rows.
at::Tensor loss_of(const at::Tensor& w, const at::Tensor& z) {
  const auto y = w * 1;
  y[3].mul_(3);
  y.narrow(0, 0, 2).copy_(z);
  y.select(1, 2).zero_();
  return y.pow(2).sum();
}

TEST(WriteThrough, GradientsFindTheirWay) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto w = numbers({5, 4}, 1).requires_grad_();
    const auto z = numbers({2, 4}, 2).requires_grad_();
    loss_of(w, z).backward();
    for (const auto& p : {Shard(0), Shard(1), Replicate()}) {
      auto dw = place(w.detach(), mesh, {p}).clone().requires_grad_();
      auto dz = replicate_tensor(z.detach(), mesh).requires_grad_();
      full_tensor(loss_of(dw, dz)).backward();
      EXPECT_TRUE(at::equal(whole(dw.grad()), w.grad())) << p;
      EXPECT_TRUE(at::equal(whole(dz.grad()), z.grad())) << p;
    }
  });
}

TEST(WriteThrough, InInferenceMode) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const at::Tensor normal = place(numbers({4, 6}, 1), mesh, {Shard(0)});
    const c10::InferenceMode inference;
    auto truth = numbers({4, 6}, 1);
    for (const at::Tensor& x : {normal * 1, normal.detach()}) {
      const auto row = x[3];
      row.zero_();
      row.add_(2);
      truth[3].fill_(2);
      EXPECT_TRUE(at::equal(whole(x), truth));
    }
  });
}

// Expects a padded embedding to start as on one rank, with a row of zeros.
TEST(WriteThrough, EmbeddingsWithPaddingResetTheirParameters) {
  run_ranks(3, [] {
    const auto mesh = init_device_mesh(at::kCPU, {3}, {"tp"});
    torch::nn::Embedding model(
        torch::nn::EmbeddingOptions(10, 4).padding_idx(3));
    parallelize_module(*model, mesh, RowwiseParallel());
    dtensor::manual_seed(5);
    model->reset_parameters();
    dtensor::manual_seed(5);
    const auto truth = dtensor::randn({10, 4}, mesh);
    {
      const torch::NoGradGuard no_grad;
      truth[3].zero_();
    }
    EXPECT_TRUE(at::equal(whole(model->weight.detach()), whole(truth)));
    EXPECT_EQ(to_string(DTensor(model->weight).placements()), "S(0)");
    const torch::NoGradGuard no_grad;
    model->weight[3].fill_(1);
    EXPECT_EQ(whole(model->weight)[3].sum().item<float>(), 4);
  });
}

// Copies that do not have the values of the base.
TEST(WriteThrough, OtherValuesAreRefused) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    const auto plain = at::complex(numbers({4, 6}, 1), numbers({4, 6}, 2));
    const at::Tensor x = place(plain, mesh, {Shard(0)}).clone();
    for (const auto& view :
         {x[1].conj(), x.conj()[1], at::view_as_real(x[1]), at::imag(x[1])}) {
      EXPECT_NE(
          error_of([&] {
            view.mul_(2);
          }).find("Write to that tensor itself, or clone() the view."),
          std::string::npos);
    }
    EXPECT_TRUE(at::equal(whole(x), plain));
    // Plain operators multiply an element once for each window that contains
    // it.
    EXPECT_NE(
        error_of([&] {
          x.unfold(0, 3, 1).mul_(2);
        }).find("Write to that tensor itself, or clone() the view."),
        std::string::npos);
    EXPECT_TRUE(at::equal(whole(x), plain));
  });
}

TEST(WriteThrough, DiracOfShards) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto truth = torch::nn::init::dirac_(torch::empty({5, 3, 3}));
    for (const auto& p : {Shard(0), Shard(1), Shard(2), Replicate()}) {
      const at::Tensor x = dtensor::ones({5, 3, 3}, mesh, {p});
      torch::nn::init::dirac_(x);
      EXPECT_TRUE(at::equal(whole(x), truth)) << p;
    }
  });
}

TEST(WriteThrough, RandomNumbersInRows) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    std::set<std::string> seen;
    for (const auto& p : {Shard(0), Shard(1), Replicate()}) {
      dtensor::manual_seed(3);
      const at::Tensor x = dtensor::zeros({5, 4}, mesh, {p});
      x.narrow(0, 1, 3).normal_();
      x[4].uniform_();
      x[0].bernoulli_(0.5);
      seen.insert(c10::str(whole(x)));
    }
    EXPECT_EQ(seen.size(), 1U);
  });
}

TEST(WriteThrough, PartialIsRefusedBeforeAnythingIsWritten) {
  run_ranks(4, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2}, {"dp", "tp"});
    const auto plain = numbers({4, 6}, 1);
    const at::Tensor x = place(plain, mesh, {Shard(0), Partial()});
    EXPECT_THROW(x[1].relu_(), c10::Error);
    EXPECT_THROW(x.index_fill_(0, like(torch::tensor({1}), x), 3), c10::Error);
    EXPECT_TRUE(at::equal(whole(x), plain));
    x[1].zero_();
    x[2].mul_(2);
    x[3].fill_(3);
    auto truth = plain.clone();
    truth[1].zero_();
    truth[2].mul_(2);
    truth[3].fill_(3);
    EXPECT_TRUE(at::equal(whole(x), truth));
    EXPECT_EQ(to_string(DTensor(x).placements()), "S(0) P(sum)");
  });
}

TEST(WriteThrough, AScopeOfExplicitRedistributionsRefusesIt) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    const at::Tensor x = place(numbers({4, 6}, 1), mesh, {Shard(0)}).clone();
    const ExplicitRedistributionContext scope;
    EXPECT_THROW(x.renorm_(2, 1, 1.0), c10::Error);
    EXPECT_TRUE(at::equal(whole(x), numbers({4, 6}, 1)));
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
