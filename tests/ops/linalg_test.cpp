// SPDX-License-Identifier: BSD-3-Clause
#include "oracle.h"

#include <tests/error_of.h>
#include <tests/torch_version.h>

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::testing;
using test_text::error_of;

// Returns matrices with a dominant diagonal, which can be inverted.
at::Tensor regular(at::IntArrayRef sizes, uint64_t seed) {
  const auto n = sizes.back();
  const auto noise = uniform(sizes, seed) - 0.5;
  const auto diagonal = at::arange(2, 2 + n, at::kDouble).diag();
  return (noise + diagonal).set_requires_grad(true);
}

// Returns symmetric matrices that are positive definite.
at::Tensor definite(at::IntArrayRef sizes, uint64_t seed) {
  const auto a = regular(sizes, seed).detach();
  return (a + a.mT()).set_requires_grad(true);
}

// Calls aten::cholesky, which not every LibTorch declares in at::.
at::Tensor call_cholesky(const at::Tensor& t, bool upper = false) {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow("aten::cholesky", "")
      .typed<at::Tensor(const at::Tensor&, bool)>()
      .call(t, upper);
}

void check(const std::string& name, const Tensors& operands, const auto& fn) {
  SCOPED_TRACE(name);
  SameAsPlainOptions options;
  options.layouts = 12;
  EXPECT_NO_THROW(expect_same_as_plain(
      [&](const Tensors& t) -> Tensors { return fn(t); }, operands, options));
}

// Shapes of batches: uneven on 2 ranks, fewer than ranks, none, and absent.
const std::vector<std::vector<int64_t>> kBatches = {{5}, {1}, {3, 2}, {0}, {}};

std::vector<int64_t> with(
    std::vector<int64_t> batch,
    std::initializer_list<int64_t> end) {
  batch.insert(batch.end(), end);
  return batch;
}

TEST(Linalg, Factorizations) {
  for (const auto& batch : kBatches) {
    const auto a = definite(with(batch, {3, 3}), 1);
    check("cholesky_ex", {a}, [](const Tensors& t) {
      const auto [l, info] = at::linalg_cholesky_ex(t[0], true, false);
      return Tensors{l, info};
    });
    if (kHasCholesky) {
      check("cholesky", {a}, [](const Tensors& t) {
        return Tensors{call_cholesky(t[0], /*upper=*/true)};
      });
      check(
          "cholesky of an empty vector",
          {at::empty({0}, at::kDouble)},
          [](const Tensors& t) { return Tensors{call_cholesky(t[0])}; });
    }
    check("inv_ex", {a}, [](const Tensors& t) {
      const auto [inverse, info] = at::linalg_inv_ex(t[0], true);
      return Tensors{inverse, info};
    });
    check("lu_factor_ex", {a}, [](const Tensors& t) {
      const auto [lu, pivots, info] = at::linalg_lu_factor_ex(t[0]);
      const auto [p, l, u] = at::lu_unpack(lu, pivots);
      return Tensors{lu, pivots, info, p, l, u};
    });
    check("linalg_lu", {a}, [](const Tensors& t) {
      const auto [p, l, u] = at::linalg_lu(t[0]);
      return Tensors{p, l, u};
    });
    check("ldl_factor_ex", {a.detach()}, [](const Tensors& t) {
      const auto [ld, pivots, info] =
          at::linalg_ldl_factor_ex(t[0], false, true);
      return Tensors{ld, pivots, info};
    });
  }
}

TEST(Linalg, OrthogonalFactors) {
  for (const auto& batch : kBatches) {
    const auto a = variable(with(batch, {4, 3}), 1);
    for (const auto* mode : {"reduced", "complete", "r"}) {
      const auto plain = std::string(mode) == "reduced" ? a : a.detach();
      check(std::string("qr ") + mode, {plain}, [mode](const Tensors& t) {
        const auto [q, r] = at::linalg_qr(t[0], mode);
        return Tensors{q, r};
      });
    }
    check("geqrf", {a.detach()}, [](const Tensors& t) {
      const auto [factors, tau] = at::geqrf(t[0]);
      return Tensors{factors, tau};
    });
    const auto tau = variable(with(batch, {3}), 2);
    check("householder_product", {a, tau}, [](const Tensors& t) {
      return Tensors{at::linalg_householder_product(t[0], t[1])};
    });
    check(
        "ormqr",
        {a.detach(), tau.detach(), variable(with(batch, {4, 5}), 3)},
        [](const Tensors& t) {
          return Tensors{at::ormqr(t[0], t[1], t[2], true, true)};
        });
    check(
        "ormqr of rows",
        {a.detach(), tau.detach(), variable(with(batch, {5, 4}), 3)},
        [](const Tensors& t) {
          return Tensors{at::ormqr(t[0], t[1], t[2], false, false)};
        });
  }
}

TEST(Linalg, PowersAndRanks) {
  for (const auto& batch : kBatches) {
    const auto a = regular(with(batch, {3, 3}), 1);
    for (const int64_t n : {0, 1, 2, 3, 5, 6, -1, -2}) {
      check("matrix_power " + std::to_string(n), {a}, [n](const Tensors& t) {
        return Tensors{
            at::matrix_power(t[0], n), at::linalg_matrix_power(t[0], n)};
      });
    }
    const auto b = uniform(with(batch, {4, 3}), 2);
    const auto limits = uniform(batch, 3);
    check("matrix_rank", {b, limits}, [](const Tensors& t) {
      return Tensors{
          at::linalg_matrix_rank(t[0], 0.5),
          at::linalg_matrix_rank(t[0], t[1]),
          at::linalg_matrix_rank(t[0], std::nullopt, 0.3),
          at::linalg_matrix_rank(t[0], t[1], t[1] / 2)};
    });
    check(
        "matrix_rank hermitian",
        {definite(with(batch, {3, 3}), 4)},
        [](auto& t) {
          return Tensors{at::linalg_matrix_rank(t[0], 0.5, /*hermitian=*/true)};
        });
  }
}

TEST(Linalg, ASingularMatrixOfOneRankFailsOnAll) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    auto whole = at::eye(3).repeat({2, 1, 1});
    whole[1].zero_();
    const auto x = distribute_tensor(whole, mesh, {Shard(0)});
    EXPECT_NE(
        error_of([&] { at::matrix_power(x, -2); }).find("singular"),
        std::string::npos);
    EXPECT_EQ(
        error_of([&] { at::linalg_matrix_power(x[0].slice(0, 1), 2); }),
        "[aten::linalg_matrix_power] needs square matrices, got f32[2, 3] on "
        "(tp=2): S(1). Pass (..., n, n).");
  });
}

TEST(Linalg, Spectra) {
  for (const auto& batch : kBatches) {
    const auto a = definite(with(batch, {3, 3}), 1);
    check("eigh", {a}, [](const Tensors& t) {
      const auto [values, vectors] = at::linalg_eigh(t[0]);
      return Tensors{values, vectors};
    });
    check("eigvalsh", {a}, [](const Tensors& t) {
      return Tensors{at::linalg_eigvalsh(t[0])};
    });
    check("eig", {a.detach()}, [](const Tensors& t) {
      const auto [values, vectors] = at::linalg_eig(t[0]);
      return Tensors{values, vectors};
    });
    check("eigvals", {a}, [](const Tensors& t) {
      return Tensors{at::real(at::linalg_eigvals(t[0]))};
    });
    const auto b = variable(with(batch, {4, 3}), 2);
    check("svd", {b}, [](const Tensors& t) {
      const auto [u, s, vh] = at::linalg_svd(t[0], false);
      return Tensors{u, s, vh};
    });
    check("svdvals", {b}, [](const Tensors& t) {
      return Tensors{at::linalg_svdvals(t[0])};
    });
    check("pinv", {b}, [](const Tensors& t) {
      return Tensors{at::linalg_pinv(t[0], 1e-12)};
    });
    auto more = batch; // tolerances add batch dimensions
    more.insert(more.begin(), 2);
    const auto tolerances = variable(more, 3);
    check("pinv with tolerances", {b, tolerances}, [](const Tensors& t) {
      const auto tolerance = t[1].detach().abs() * 1e-12;
      return Tensors{at::linalg_pinv(t[0], tolerance, tolerance)};
    });
  }
}

TEST(Linalg, Functions) {
  for (const auto& batch : kBatches) {
    const auto a = definite(with(batch, {3, 3}), 1);
    check("det", {a}, [](const Tensors& t) {
      return Tensors{at::linalg_det(t[0])};
    });
    check("slogdet", {a}, [](const Tensors& t) {
      const auto [sign, logarithm] = at::linalg_slogdet(t[0]);
      return Tensors{sign, logarithm};
    });
    check("inverse", {a}, [](const Tensors& t) {
      return Tensors{at::linalg_inv(t[0])};
    });
    check("cholesky", {a}, [](const Tensors& t) {
      return Tensors{at::linalg_cholesky(t[0])};
    });
    check("cholesky_inverse", {a}, [](const Tensors& t) {
      return Tensors{at::cholesky_inverse(t[0])};
    });
    check("matrix_exp", {a}, [](const Tensors& t) {
      return Tensors{at::linalg_matrix_exp(t[0] / 4)};
    });
    check("matrix_power", {a}, [](const Tensors& t) {
      return Tensors{at::linalg_matrix_power(t[0], -2)};
    });
  }
}

TEST(Linalg, Systems) {
  for (const auto& batch : kBatches) {
    const auto a = regular(with(batch, {3, 3}), 1);
    const auto b = variable(with(batch, {3, 4}), 2);
    check("solve", {a, b}, [](const Tensors& t) {
      return Tensors{at::linalg_solve(t[0], t[1])};
    });
    check("solve of rows", {a, b}, [](const Tensors& t) {
      return Tensors{at::linalg_solve(t[0], t[1].mT(), /*left=*/false)};
    });
    check("solve of vectors", {a, b}, [](const Tensors& t) {
      return Tensors{at::linalg_solve(t[0], t[1].select(-1, 0))};
    });
    check("solve_triangular", {a, b}, [](const Tensors& t) {
      return Tensors{at::linalg_solve_triangular(t[0], t[1], true)};
    });
    check("solve_triangular of integers", {a, b}, [](const Tensors& t) {
      return Tensors{
          at::linalg_solve_triangular(t[0], t[1].round().to(at::kLong), true)};
    });
    check("solve_triangular of rows", {a, b}, [](const Tensors& t) {
      return Tensors{
          at::linalg_solve_triangular(t[0], t[1].mT(), true, /*left=*/false)};
    });
    check("triangular_solve", {a, b}, [](const Tensors& t) {
      const auto [x, copy] = at::triangular_solve(t[1], t[0]);
      return Tensors{x, copy};
    });
    check("cholesky_solve", {a, b}, [](const Tensors& t) {
      return Tensors{at::cholesky_solve(t[1], t[0])};
    });
    check("lu_solve", {a, b}, [](const Tensors& t) {
      const auto [lu, pivots, info] = at::linalg_lu_factor_ex(t[0]);
      return Tensors{at::linalg_lu_solve(lu, pivots, t[1])};
    });
    check("ldl_solve", {a.detach(), b.detach()}, [](const Tensors& t) {
      const auto [ld, pivots, info] = at::linalg_ldl_factor_ex(t[0]);
      return Tensors{at::linalg_ldl_solve(ld, pivots, t[1])};
    });
  }
}

// The matrix has fewer batches than the right-hand sides, or vice versa. A
// shard of 3 of the 6 systems has the sizes of 3 vectors.
TEST(Linalg, BroadcastSystems) {
  const std::vector<std::pair<Tensors, bool>> cases = {
      {{regular({3, 3}, 1), variable({5, 3, 2}, 2)}, true},
      {{regular({6, 3, 3}, 1), variable({3, 3}, 2)}, true},
      {{regular({3, 3, 3}, 1), variable({3, 6}, 2)}, true},
      {{regular({1, 3, 3}, 1), variable({5, 3, 2}, 2)}, true},
      {{regular({4, 1, 3, 3}, 1), variable({5, 3, 2}, 2)}, true}};
  for (const auto& [operands, left] : cases) {
    check("solve", operands, [](const Tensors& t) {
      return Tensors{at::linalg_solve(t[0], t[1])};
    });
    check("solve_triangular", operands, [](const Tensors& t) {
      return Tensors{at::linalg_solve_triangular(t[0], t[1], false)};
    });
    check("cholesky_solve", operands, [](const Tensors& t) {
      return Tensors{at::cholesky_solve(t[1], t[0])};
    });
    check("triangular_solve", operands, [](const Tensors& t) {
      const auto [x, copy] = at::triangular_solve(t[1], t[0]);
      return Tensors{x, copy};
    });
  }
}

TEST(Linalg, CrossProducts) {
  const auto cross = [](const Tensors& t) {
    return Tensors{at::linalg_cross(t[0], t[1], 1)};
  };
  check("broadcast", {variable({5, 3, 2}, 1), variable({1, 3, 2}, 2)}, cross);
  for (const int64_t size : {5, 1, 0}) {
    const Tensors x = {variable({size, 3, 2}, 1), variable({size, 3, 2}, 2)};
    check("equal sizes", x, cross);
  }
}

TEST(Linalg, Traces) {
  for (const auto& sizes : std::vector<std::vector<int64_t>>{
           {5, 5}, {3, 7}, {7, 2}, {1, 4}, {0, 3}}) {
    if (sizes[0] > sizes[1] && !kTraceHasGradientOfTallMatrices) {
      continue;
    }
    check("trace", {variable(sizes, 1)}, [](const Tensors& t) {
      return Tensors{at::trace(t[0])};
    });
    check("trace of integers", {small_ints(sizes, 1)}, [](const Tensors& t) {
      return Tensors{at::trace(t[0])};
    });
  }
}

TEST(Linalg, Distances) {
  check(
      "dist", {variable({5, 3}, 1), variable({5, 3}, 2)}, [](const Tensors& t) {
        return Tensors{at::dist(t[0], t[1]), at::dist(t[0], t[1], 3)};
      });
  for (const double p : {1., 2., 3.}) {
    check(
        "cdist",
        {variable({2, 5, 3}, 1), variable({2, 4, 3}, 2)},
        [p](const Tensors& t) { return Tensors{at::cdist(t[0], t[1], p)}; });
    check(
        "cdist of a broadcast batch",
        {variable({5, 3}, 1), variable({3, 4, 3}, 2)},
        [p](const Tensors& t) { return Tensors{at::cdist(t[0], t[1], p)}; });
  }
  check(
      "cdist of many rows",
      {variable({30, 3}, 1), variable({4, 3}, 2)},
      [](const Tensors& t) { return Tensors{at::cdist(t[0], t[1])}; });
}

// Runs `fn` on operands in these layouts on 2 ranks, and checks that neither
// the results nor their gradients need communication.
void expect_local(
    const Tensors& full,
    const Placements& layouts,
    const Placement& result,
    const auto& fn) {
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    Tensors operands;
    for (size_t i = 0; i < full.size(); ++i) {
      operands.push_back(
          in_layout(full[i].detach(), mesh, {layouts[i]}).requires_grad_());
    }
    Collectives collectives;
    const at::Tensor y = fn(operands);
    EXPECT_EQ(DTensor(y).placements()[0], result);
    const auto whole = result.is_partial() ? Placement(Replicate()) : result;
    y.backward(in_layout(at::ones(y.sizes(), at::kDouble), mesh, {whole}));
    EXPECT_EQ(collectives.take(), "");
  });
}

TEST(Linalg, BatchesStayShardedWithoutCommunication) {
  const auto a = definite({5, 3, 3}, 1);
  const auto b = variable({5, 3, 4}, 2);
  const Placements batches = {Shard(0), Shard(0)};
  const std::vector<std::function<at::Tensor(const Tensors&)>> functions = {
      [](auto& t) { return std::get<0>(at::linalg_cholesky_ex(t[0])); },
      [](auto& t) { return std::get<0>(at::linalg_inv_ex(t[0])); },
      [](auto& t) { return at::linalg_det(t[0]); },
      [](auto& t) { return std::get<1>(at::linalg_slogdet(t[0])); },
      [](auto& t) { return std::get<0>(at::linalg_qr(t[0])); },
      [](auto& t) { return std::get<1>(at::linalg_eigh(t[0])); },
      [](auto& t) { return at::linalg_svdvals(t[0]); },
      [](auto& t) { return at::linalg_matrix_exp(t[0]); },
      [](auto& t) { return at::linalg_pinv(t[0]); },
      [](auto& t) { return std::get<0>(at::linalg_solve_ex(t[0], t[1])); },
      [](auto& t) { return at::linalg_solve_triangular(t[0], t[1], true); },
      [](auto& t) { return at::cholesky_solve(t[1], t[0]); },
      [](auto& t) { return at::cdist(t[0], t[1].mT()); }};
  for (const auto& fn : functions) {
    expect_local({a, b}, batches, Shard(0), fn);
  }
}

TEST(Linalg, RightHandSidesStayShardedWithoutCommunication) {
  const auto solve = [](const Tensors& t) {
    return std::get<0>(at::linalg_solve_ex(t[0], t[1]));
  };
  const auto triangular = [](const Tensors& t) {
    return at::linalg_solve_triangular(t[0], t[1], true);
  };
  const Tensors system = {regular({3, 3}, 1), variable({3, 5}, 2)};
  for (const auto& kind : Placements{Shard(1), Partial(ReduceOp::kSum)}) {
    expect_local(system, {Replicate(), kind}, kind, triangular);
    expect_local(system, {Replicate(), kind}, kind, solve);
  }
  const Tensors points = {variable({5, 3}, 1), variable({4, 3}, 2)};
  const auto distances = [](const Tensors& t) { return at::cdist(t[0], t[1]); };
  expect_local(points, {Shard(0), Replicate()}, Shard(0), distances);
  expect_local(points, {Replicate(), Shard(0)}, Shard(1), distances);
}

TEST(Linalg, TraceOfAShardedMatrixIsPartial) {
  const auto trace = [](const Tensors& t) { return at::trace(t[0]); };
  for (const auto& kind :
       Placements{Shard(0), Shard(1), Partial(ReduceOp::kSum)}) {
    expect_local({variable({5, 4}, 1)}, {kind}, Partial(ReduceOp::kSum), trace);
  }
}

// One rank has the only singular matrix; all ranks report it.
TEST(Linalg, ChecksFailOnAllRanks) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    auto full = at::eye(2, at::kDouble).repeat({4, 1, 1});
    full[3].zero_();
    const at::Tensor a = distribute_tensor(full, mesh, {Shard(0)});
    const auto plain = [](const auto& fn, const at::Tensor& t) {
      return error_of([&] { fn(t); });
    };
    const auto same = [&](const auto& fn) {
      const auto error = plain(fn, a);
      EXPECT_NE(error.find("(Batch element 3)"), std::string::npos) << error;
      EXPECT_NE(plain(fn, full), "nothing was thrown");
    };
    same([](const at::Tensor& t) { at::linalg_inv(t); });
    same([](const at::Tensor& t) { at::linalg_inv_ex(t, true); });
    same([](const at::Tensor& t) { at::linalg_cholesky(t); });
    same([](const at::Tensor& t) { at::linalg_cholesky_ex(t, false, true); });
    if (kHasCholesky) {
      same([](const at::Tensor& t) { call_cholesky(t); });
    }
    same([](const at::Tensor& t) { at::linalg_solve(t, t); });
    same([](const at::Tensor& t) { at::linalg_lu_factor_ex(t, true, true); });
  });
}

// Each rank has two systems, whose local sizes would fit although the global
// sizes do not.
TEST(Linalg, RefusesBatchesThatDoNotFit) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto in = [&](at::IntArrayRef sizes) -> at::Tensor {
      return distribute_tensor(uniform(sizes, 1), mesh, {Shard(0)});
    };
    EXPECT_NE(
        error_of([&] {
          at::linalg_solve_triangular(in({4, 3, 3}), in({2, 3, 1}), true);
        }),
        "nothing was thrown");
    EXPECT_NE(
        error_of([&] {
          at::linalg_householder_product(in({4, 3, 3}), in({2, 3}));
        }),
        "nothing was thrown");
    EXPECT_NE(
        error_of([&] {
          at::cdist(in({4, 3, 3}), in({2, 3, 3}));
        }),
        "nothing was thrown");
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
