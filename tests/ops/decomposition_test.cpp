// SPDX-License-Identifier: BSD-3-Clause
// Composite operators without a rule, of sharded tensors: operators that work,
// and operators whose errors name the operator that the program called.
#include "tests/ops/against_plain.h"

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::against_plain;

at::Tensor whole(const at::Tensor& t) {
  return DTensor(t).full_tensor();
}

TEST(Decomposition, OneHotOfIdsInAnyLayout) {
  run_ranks(4, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2});
    const auto ids = torch::tensor({{3, 0, 2}, {1, 1, 4}, {0, 2, 2}});
    const auto truth = at::one_hot(ids, 6);
    for (const auto& layout : layouts(2, 2, true)) {
      const at::Tensor x = layout[0].is_partial() || layout[1].is_partial()
          ? DTensor::from_local(
                get_rank() == 0 ? ids : at::zeros_like(ids),
                mesh,
                {Partial(), Partial()})
          : distribute_tensor(ids, mesh, layout);
      const auto mine = at::one_hot(x, 6);
      EXPECT_TRUE(at::equal(whole(mine), truth)) << to_string(layout);
      EXPECT_EQ(mine.scalar_type(), at::kLong);
      EXPECT_TRUE(at::equal(whole(at::one_hot(x)), at::one_hot(ids)));
    }
    const auto rows = distribute_tensor(ids, mesh, {Shard(0), Replicate()});
    EXPECT_EQ(to_string(DTensor(at::one_hot(rows, 6)).placements()), "S(0) R");
  });
}

TEST(Decomposition, OneHotChecksLikePlainOneHot) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    const auto rows = [&](const at::Tensor& t) {
      return distribute_tensor(t, mesh, {Shard(0)});
    };
    EXPECT_EQ(
        error_of([&] {
          at::one_hot(rows(torch::tensor({0, 1, 5})), 5);
        }),
        "[aten::one_hot] the ids, i64[3] on (tp=2): S(0), are from 0 to 5, but "
        "the number of classes is 5. Pass ids of at least 0 and below that "
        "number.");
    EXPECT_EQ(
        error_of([&] {
          at::one_hot(rows(torch::tensor({0, -1})));
        }),
        "[aten::one_hot] the ids, i64[2] on (tp=2): S(0), are from -1 to 0, "
        "but the number of classes is -1. Pass ids of at least 0 and below "
        "that number.");
    EXPECT_EQ(
        error_of([&] { at::one_hot(rows(at::ones({2}))); }),
        "[aten::one_hot] the ids must be int64, got f32[2] on (tp=2): S(0). "
        "Convert them.");
    const auto none = rows(at::zeros({0, 2}, at::kLong));
    EXPECT_EQ(
        error_of([&] { at::one_hot(none); }),
        "[aten::one_hot] the ids, i64[0, 2] on (tp=2): S(0), are empty, so the "
        "number of classes cannot be inferred. Pass num_classes.");
    EXPECT_EQ(at::one_hot(none, 3).sizes(), at::IntArrayRef({0, 2, 3}));
  });
}

TEST(Decomposition, CombinationsOfAVector) {
  run_ranks(3, [] {
    const auto mesh = init_device_mesh(at::kCPU, {3}, {"tp"});
    for (const int64_t n : {0, 1, 2, 5}) {
      for (const int64_t r : {0, 1, 2, 3, 6}) {
        for (const bool again : {false, true}) {
          const auto plain = numbers({n}, 1);
          const auto x = distribute_tensor(plain, mesh, {Shard(0)});
          const auto truth = at::combinations(plain, r, again);
          const auto mine = at::combinations(x, r, again);
          EXPECT_TRUE(at::equal(whole(mine), truth)) << n << " " << r << again;
          EXPECT_EQ(mine.sizes(), truth.sizes());
        }
      }
    }
    const auto matrix = distribute_tensor(at::ones({2, 3}), mesh, {Shard(0)});
    EXPECT_EQ(
        error_of([&] { at::combinations(matrix, 2); }),
        "[aten::combinations] needs a vector and a number of elements, got "
        "f32[2, 3] on (tp=3): S(0) and 2. Flatten the tensor.");
  });
}

struct Composite {
  std::string name;                                 // "aten::" before it
  std::function<at::Tensor(const at::Tensor&)> run; // of shape (4, 6)
};

const std::vector<Composite>& composites() {
  static const std::vector<Composite> all = {
      {"linalg_vander", [](auto& x) { return at::linalg_vander(x); }},
      {"cov", [](auto& x) { return at::cov(x); }},
      {"corrcoef", [](auto& x) { return at::corrcoef(x); }},
      {"combinations", [](auto& x) { return at::combinations(x[0], 2); }},
      {"cartesian_prod",
       [](auto& x) {
         return at::cartesian_prod({x[0], x[1]});
       }},
      {"trapezoid", [](auto& x) { return at::trapezoid(x, 1, 0); }},
      {"cumulative_trapezoid",
       [](auto& x) { return at::cumulative_trapezoid(x, 1, 0); }},
      {"diff", [](auto& x) { return at::diff(x, 1, 0); }},
      {"gradient", [](auto& x) { return at::gradient(x)[0]; }},
      {"kron", [](auto& x) { return at::kron(x, x); }},
      {"block_diag",
       [](auto& x) {
         return at::block_diag({x, x});
       }},
      {"pad",
       [](auto& x) {
         return at::pad(x.unsqueeze(0), {1, 1}, "circular");
       }},
      {"pixel_shuffle",
       [](auto& x) {
         return at::pixel_shuffle(x.view({4, 2, 3}), 2);
       }},
      {"tensordot", [](auto& x) { return at::tensordot(x, x, {0}, {0}); }},
      {"cdist", [](auto& x) { return at::cdist(x, x, 1); }},
      {"vander", [](auto& x) { return at::vander(x[0]); }},
      {"matrix_power",
       [](auto& x) { return at::matrix_power(x.matmul(x.t()), 0); }},
      {"cosine_embedding_loss",
       [](auto& x) {
         return at::cosine_embedding_loss(x, x * 2, x.select(1, 0).sign());
       }},
      {"nanmean", [](auto& x) { return at::nanmean(x, 0); }},
      {"take_along_dim",
       [](auto& x) {
         return at::take_along_dim(x, at::argsort(x, int64_t{0}, false), 0);
       }},
      {"fliplr", [](auto& x) { return at::fliplr(x); }},
      {"logcumsumexp", [](auto& x) { return at::logcumsumexp(x, 0); }},
      {"isin", [](auto& x) { return at::isin(x, x[0]); }},
      {"stft",
       [](auto& x) {
         return at::view_as_real(
             at::stft(x, 4, 2, 4, std::nullopt, false, false, true));
       }},
      {"unflatten",
       [](auto& x) {
         return x.unflatten(1, {2, 3});
       }},
      {"repeat_interleave",
       [](auto& x) { return at::repeat_interleave(x, 2, 0); }},
      {"where", [](auto& x) { return at::where(x > 0)[0]; }},
      {"where", [](auto& x) { return at::where(x > 0, x, 2); }},
      {"where", [](auto& x) { return at::where(x > 0, -1.5, x); }},
      {"diag", [](auto& x) { return at::diag(x[0], 1); }},
      {"diag", [](auto& x) { return at::diag(x, -1); }},
      {"diagflat", [](auto& x) { return at::diagflat(x); }},
      {"diag_embed", [](auto& x) { return at::diag_embed(x, 1, 0, 2); }},
      {"masked_scatter",
       [](auto& x) { return x.masked_scatter(x.detach() > 0, x * 2); }},
      {"hinge_embedding_loss",
       [](auto& x) {
         return at::hinge_embedding_loss(x, (x > 0).to(at::kLong) * 2 - 1);
       }},
      {"argwhere", [](auto& x) { return at::argwhere(x > 0); }}};
  return all;
}

// Expects the plain operator's result, or an error that names an operator and
// mentions no plain tensor except the program's.
void expect_exact_or_named(bool with_gradients) {
  Failures failures;
  int64_t exact = 0;
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    for (const auto& composite : composites()) {
      const auto truth = composite.run(numbers({4, 6}, 1));
      for (const auto& layout : layouts(2, 1, true)) {
        auto x = place(numbers({4, 6}, 1), mesh, layout);
        x.requires_grad_(with_gradients);
        try {
          const auto mine = full_tensor(composite.run(x).detach());
          const bool same =
              at::allclose(mine, truth, 1e-9, 1e-9, /*equal_nan=*/true);
          if (same && get_rank() == 0) {
            ++exact;
          }
          if (!same) {
            failures.add(composite.name + " of " + to_string(layout));
          }
        } catch (const c10::Error& e) {
          const std::string text = e.what_without_backtrace();
          if (text.find("got mixed plain") != text.npos ||
              text.find("[aten::" + composite.name) != 0) {
            failures.add(
                composite.name + " of " + to_string(layout) + ": " + text);
          }
        }
      }
    }
  });
  EXPECT_EQ(failures.text(), "");
  EXPECT_GE(exact, with_gradients ? 96 : 118); // of 144
}

TEST(Decomposition, WorksOrNamesTheOperator) {
  expect_exact_or_named(false);
}

TEST(Decomposition, WithGradientsWorksOrNamesTheOperator) {
  expect_exact_or_named(true);
}

// A decision that a decomposition made for its own plain tensor is not used for
// a plain tensor of the program.
TEST(Decomposition, PlainTensorsOfTheProgramAreRefusedAfterIt) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto plain = numbers({6}, 1);
    const auto x = place(plain, mesh, {Shard(0)});
    const auto mask = at::ones({6, 6}, at::kBool).triu(1);
    const auto refused = [&] {
      const auto grid = at::meshgrid({x, x}, "ij")[0];
      return error_of([&] { grid.index({mask}); }) +
          error_of([&] { grid.masked_select(mask); });
    };
    const auto first = refused();
    const auto pairs = at::combinations(x); // makes such a mask
    EXPECT_TRUE(at::equal(whole(pairs), at::combinations(plain)));
    EXPECT_EQ(refused(), first);
    EXPECT_NE(first.find("got mixed plain tensor"), first.npos) << first;
    EXPECT_NE(
        first.find("got mixed plain tensor"),
        first.rfind("got mixed plain tensor"));
  });
}

// All ranks get as many elements as the mask selects.
TEST(Decomposition, IndexWithAMask) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto plain = numbers({5, 4}, 1);
    const auto row_mask = torch::tensor({1, 0, 1, 1, 0}).to(at::kBool);
    for (const auto& layout : layouts(2, 1, true)) {
      for (const auto& p : {Shard(0), Replicate()}) {
        const auto x = place(plain, mesh, layout).requires_grad_();
        const auto mask = distribute_tensor(plain > 0, mesh, {p});
        const auto leaf = plain.clone().requires_grad_();
        const auto mine = x.index({mask});
        EXPECT_TRUE(at::equal(whole(mine), plain.index({plain > 0})));
        mine.pow(2).sum().backward();
        leaf.index({plain > 0}).pow(2).sum().backward();
        EXPECT_TRUE(at::equal(whole(x.grad()), leaf.grad()));
        const auto rows = distribute_tensor(row_mask, mesh, {p});
        EXPECT_TRUE(at::equal(
            whole(x.detach().index({rows})), plain.index({row_mask})));
        EXPECT_TRUE(at::equal(
            whole(x.detach().index({at::indexing::Slice(), mask[0]})),
            plain.index({at::indexing::Slice(), plain[0] > 0})));
      }
    }
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
