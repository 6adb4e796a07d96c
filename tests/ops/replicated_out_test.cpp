// SPDX-License-Identifier: BSD-3-Clause
// `out=` overloads without a rule write the same values to replicated tensors
// as to plain tensors.
#include "tests/ops/against_plain.h"

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::against_plain;

struct OutCase {
  std::string name;
  TensorList inputs;
  std::vector<std::vector<int64_t>> outs;
  std::function<void(const TensorList&, TensorList&)> fn;
};

TensorList made(
    const OutCase& c,
    const std::function<at::Tensor(at::Tensor)>& place_out) {
  TensorList outs;
  for (const auto& sizes : c.outs) {
    outs.push_back(place_out(at::full(sizes, 7, at::kDouble)));
  }
  return outs;
}

void check_case(const OutCase& c, const DeviceMesh& mesh, Failures& failures) {
  const auto plain = [](at::Tensor t) { return t; };
  auto expected = made(c, plain);
  c.fn(c.inputs, expected);
  const auto n = static_cast<size_t>(mesh.ndim());
  for (const auto& out_layout :
       {Placements(n, Replicate()), Placements(n, Shard(0))}) {
    TensorList inputs;
    for (const auto& t : c.inputs) {
      inputs.push_back(place(t, mesh, Placements(n, Replicate())));
    }
    auto outs =
        made(c, [&](at::Tensor t) { return place(t, mesh, out_layout); });
    const auto before = outs;
    try {
      c.fn(inputs, outs);
    } catch (const std::exception& e) {
      const std::string text = e.what();
      failures.add(c.name + " threw " + text.substr(0, text.find('\n')));
      continue;
    }
    for (size_t i = 0; i < outs.size(); ++i) {
      if (!outs[i].is_same(before[i]) ||
          DTensor(outs[i]).placements() != PlacementsRef(out_layout) ||
          !same(DTensor(outs[i]).full_tensor(), expected[i])) {
        failures.add(c.name + ": out " + std::to_string(i));
      }
    }
  }
}

void check_all(const std::vector<OutCase>& cases) {
  for (const auto& shape :
       std::vector<std::vector<int64_t>>{{2}, {3}, {2, 2}}) {
    Failures failures;
    run_ranks(c10::multiply_integers(shape), [&] {
      const auto mesh = init_device_mesh(at::kCPU, shape);
      for (const auto& c : cases) {
        check_case(c, mesh, failures);
      }
    });
    EXPECT_EQ(failures.text(), "");
  }
}

at::Tensor square() {
  return numbers({3, 3}, 1) + at::eye(3, at::kDouble) * 32;
}

TEST(ReplicatedOut, OverloadsOfOperatorsWithoutARule) {
  const std::vector<double> twice{2, 2};
  check_all({
      {"linalg_inv",
       {square()},
       {{3, 3}},
       [](auto& in, auto& out) { at::linalg_inv_out(out[0], in[0]); }},
      {"linalg_qr",
       {square()},
       {{3, 3}, {3, 3}},
       [](auto& in, auto& out) { at::linalg_qr_out(out[0], out[1], in[0]); }},
      {"avg_pool1d",
       {numbers({2, 3, 8}, 1)},
       {{2, 3, 4}},
       [](auto& in, auto& out) { at::avg_pool1d_out(out[0], in[0], 2); }},
      {"upsample_nearest2d",
       {numbers({2, 3, 2, 2}, 1)},
       {{2, 3, 4, 4}},
       [&](auto& in, auto& out) {
         at::upsample_nearest2d_out(out[0], in[0], {}, twice);
       }},
      {"split_copy",
       {numbers({4, 3}, 1)},
       {{2, 3}, {2, 3}},
       [](auto& in, auto& out) { at::split_copy_out(out, in[0], 2, 0); }},
      {"eye",
       {},
       {{4, 3}},
       [](auto&, auto& out) { at::eye_out(out[0], 4, 3); }},
      {"linspace",
       {},
       {{5}},
       [](auto&, auto& out) { at::linspace_out(out[0], 0, 1, 5); }},
      {"init::eye_",
       {},
       {{4, 3}},
       [](auto&, auto& out) { torch::nn::init::eye_(out[0]); }},
  });
}

TEST(ReplicatedOut, AnOutOfAnotherShapeIsResized) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const at::Tensor x = place(square(), mesh, {Shard(0)});
    for (const auto& sizes : std::vector<std::vector<int64_t>>{{0}, {2, 2}}) {
      at::Tensor out =
          place(at::zeros(sizes, at::kDouble), mesh, {Replicate()});
      at::mm_out(out, x, x);
      EXPECT_TRUE(same(at::mm(square(), square()), DTensor(out).full_tensor()));
    }
    at::Tensor out = place(at::zeros({2, 2}, at::kDouble), mesh, {Shard(0)});
    const auto text = error_of([&] { at::mm_out(out, x, x); });
    EXPECT_NE(text.find("out cannot be resized"), text.npos) << text;
  });
}

TEST(ReplicatedOut, AResizedOutHasTheMemoryOrderOfTheResult) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto write = [](const at::Tensor& base, const at::Tensor& x) {
      auto out = base.detach();
      at::add_out(out, x.t(), x.t());
      return out.strides().vec();
    };
    const auto plain = numbers({6, 6}, 2);
    const at::Tensor base = place(plain.clone(), mesh, {Replicate()});
    const at::Tensor x = place(numbers({4, 6}, 1), mesh, {Shard(0)});
    EXPECT_EQ(write(base, x), write(plain, numbers({4, 6}, 1)));
    EXPECT_TRUE(same(plain, DTensor(base).full_tensor()));
  });
}

TEST(ReplicatedOut, ShardedInputsAndRandomResultsAreRefused) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    at::Tensor out = place(square(), mesh, {Replicate()});
    EXPECT_EQ(
        error_of([&] {
          at::rand_out(out, {3, 3});
        }),
        "[aten::rand.out] no sharding rule; the operands are f64[3, 3] on (2): "
        "R. It draws random numbers, which every rank would draw differently: "
        "use one of the random operators that have a rule.");
    at::Tensor x = place(square(), mesh, {Shard(0)});
    const auto text = error_of([&] { at::_pdist_forward_out(out, x); });
    EXPECT_NE(text.find("no sharding rule"), text.npos) << text;
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
