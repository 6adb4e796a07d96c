// SPDX-License-Identifier: BSD-3-Clause
// Second derivatives of matrix products, lookups, losses and conversions
// between layouts. tests/randomized/second_derivatives covers other operators
// by random programs.
#include "support.h"

#include <dtensor/parallel/loss_parallel.h>

#include <functional>
#include <memory>

namespace dtensor {
namespace TEST_SOURCE {

using namespace test;

// Compares second derivatives with those of the program on plain tensors, for
// operands in the given layouts.
class SecondDerivatives : public testing::Test {
 protected:
  using Tensors = std::vector<at::Tensor>;
  using Program = std::function<at::Tensor(const Tensors&)>;

  // Returns the gradients of the sum of the squared first gradients.
  static Tensors twice(const Program& program, const Tensors& leaves) {
    const auto value = program(leaves).pow(3).sum();
    const auto first = torch::autograd::grad({value}, leaves, {}, true, true);
    at::Tensor penalty;
    for (const auto& grad : first) {
      const auto term = grad.pow(2).sum();
      penalty = penalty.defined() ? penalty + term : term;
    }
    return torch::autograd::grad(
        {penalty}, leaves, {}, std::nullopt, false, /*allow_unused=*/true);
  }
  static void expect_as_plain(
      const Program& program,
      const Tensors& full,
      const std::vector<Placements>& layouts) {
    Tensors leaves;
    for (const auto& t : full) {
      leaves.push_back(t.detach().requires_grad_());
    }
    const auto truth = twice(program, leaves);
    const auto ndim = layouts[0].size();
    for (const auto& shape : ndim == 1 ? kMeshes : kMeshes2) {
      on_meshes({shape}, [&](const DeviceMesh& mesh) {
        Tensors mine;
        for (size_t i = 0; i < full.size(); ++i) {
          mine.push_back(placed(full[i], mesh, layouts[i], true));
        }
        const auto grads = twice(program, mine);
        for (size_t i = 0; i < truth.size(); ++i) {
          const auto whole_grad = whole(grads[i]);
          EXPECT_TRUE(at::allclose(whole_grad, truth[i], 1e-9, 1e-9))
              << "operand " << i << " on " << mesh.size() << " ranks\n"
              << whole_grad << "\n"
              << truth[i];
        }
      });
    }
  }

 private:
  inline static const std::vector<std::vector<int64_t>> kMeshes = {{2}, {3}};
  inline static const std::vector<std::vector<int64_t>> kMeshes2 = {{2, 2}};
};

at::Tensor some(at::IntArrayRef sizes, double first = 0.1) {
  return at::sin(counting(sizes) + first);
}

TEST_F(SecondDerivatives, OfAProductThatIsASumOverRanks) {
  run_ranks(2, [] {
    const auto mesh = mesh_of({2});
    const auto sum_of_second = [](const at::Tensor& x, const at::Tensor& w) {
      const auto first = torch::autograd::grad(
          {x.matmul(w).pow(3).sum()}, {x}, {}, true, true)[0];
      return torch::autograd::grad({first.sum()}, {x})[0].sum();
    };
    const auto x = at::ones({1, 2, 4}, at::kDouble);
    const auto w = at::ones({4, 3}, at::kDouble);
    const auto mine = sum_of_second(
        placed(x, mesh, {Shard(2)}, true), placed(w, mesh, {Shard(0)}, true));
    EXPECT_EQ(whole(mine).item<double>(), 2304);
  });
}

TEST_F(SecondDerivatives, OfProducts) {
  const auto matmul = [](const Tensors& t) { return at::matmul(t[0], t[1]); };
  const auto linear = [](const Tensors& t) {
    return at::linear(t[0], t[1], t[2]);
  };
  const auto addmm = [](const Tensors& t) {
    return at::addmm(t[2], t[0], t[1]);
  };
  const Tensors cube = {some({2, 3, 6}), some({6, 4})};
  expect_as_plain(matmul, cube, {{Shard(2)}, {Shard(0)}});
  expect_as_plain(matmul, cube, {{Partial()}, {Replicate()}});
  expect_as_plain(matmul, cube, {{Replicate()}, {Partial()}});
  expect_as_plain(
      matmul, cube, {{Shard(2), Partial()}, {Shard(0), Replicate()}});
  const Tensors bias = {some({2, 3, 6}), some({4, 6}), some({4})};
  expect_as_plain(linear, bias, {{Shard(2)}, {Shard(1)}, {Replicate()}});
  expect_as_plain(linear, bias, {{Partial()}, {Replicate()}, {Partial()}});
  const Tensors flat = {some({3, 6}), some({6, 4}), some({4})};
  expect_as_plain(addmm, flat, {{Shard(1)}, {Shard(0)}, {Replicate()}});
  expect_as_plain(
      [](const Tensors& t) { return at::mv(t[0], t[1]); },
      {some({3, 6}), some({6})},
      {{Shard(1)}, {Shard(0)}});
}

// Some ranks find none of the rows, or have no index.
TEST_F(SecondDerivatives, OfAnEmbedding) {
  for (const auto& ids :
       {at::tensor({0, 5, 3, 5, 1}, at::kLong), at::tensor({1}, at::kLong)}) {
    for (const auto& of_ids : {Replicate(), Shard(0)}) {
      const auto lookup = [&](const Tensors& t) {
        const auto indices = is_dtensor(t[0])
            ? at::Tensor(distribute_tensor(
                  ids, DTensor(t[0]).device_mesh(), {of_ids}, std::nullopt))
            : ids;
        return at::embedding(t[0], indices).matmul(t[1]);
      };
      for (const auto& of_table : {Shard(0), Shard(1), Replicate()}) {
        expect_as_plain(
            lookup, {some({6, 2}), some({2, 3})}, {{of_table}, {Replicate()}});
      }
    }
  }
}

// The program uses local tensors according to the layout.
TEST_F(SecondDerivatives, ThroughFromLocalAndToLocal) {
  const auto with = [](Placement x_grad, const Placements& result) {
    return [=](const Tensors& t) {
      if (!is_dtensor(t[0])) {
        return t[0].matmul(t[1]);
      }
      const auto mesh = DTensor(t[0]).device_mesh();
      const auto x = DTensor(t[0]).to_local(Placements{x_grad});
      const auto w = DTensor(t[1]).to_local();
      return at::Tensor(DTensor::from_local(
          x.matmul(w),
          mesh,
          result,
          {.shape = std::vector<int64_t>{t[0].size(0), t[1].size(1)}}));
    };
  };
  const Tensors full = {some({3, 6}), some({6, 4})};
  expect_as_plain(with(Shard(1), {Partial()}), full, {{Shard(1)}, {Shard(0)}});
  expect_as_plain(
      with(Partial(), {Shard(1)}), full, {{Replicate()}, {Shard(1)}});
  expect_as_plain(
      with(Replicate(), {Replicate()}), full, {{Replicate()}, {Replicate()}});
}

TEST_F(SecondDerivatives, ThroughFullTensor) {
  for (const auto& p : {Replicate(), Shard(0), Partial()}) {
    expect_as_plain(
        [](const Tensors& t) {
          return (is_dtensor(t[0]) ? whole(t[0] * t[0]) : t[0] * t[0]).exp();
        },
        {some({5, 3})},
        {{p}});
    expect_as_plain(
        [](const Tensors& t) {
          const auto y = t[0] * t[0];
          return is_dtensor(y)
              ? at::Tensor(redistribute(
                    DTensor(y).redistribute({Shard(1)}), {Partial()}))
              : y;
        },
        {some({5, 3})},
        {{p}});
  }
}

TEST_F(SecondDerivatives, OfLossesWithTwoLayouts) {
  for (const auto reduction :
       {at::Reduction::None, at::Reduction::Mean, at::Reduction::Sum}) {
    const auto mse = [=](const Tensors& t) {
      return at::mse_loss(t[0], t[1], reduction);
    };
    const auto smooth = [=](const Tensors& t) {
      return at::smooth_l1_loss(t[0], t[1], reduction);
    };
    const Tensors full = {some({6, 4}), some({6, 4}, 0.7)};
    expect_as_plain(mse, full, {{Shard(0)}, {Shard(1)}});
    expect_as_plain(mse, full, {{Shard(1)}, {Replicate()}});
    expect_as_plain(mse, full, {{Replicate()}, {Shard(0)}});
    expect_as_plain(smooth, full, {{Shard(0)}, {Partial()}});
  }
}

TEST_F(SecondDerivatives, OfCrossEntropyOnShardedClasses) {
  const auto target = at::tensor({2, 0, 4}, at::kLong);
  const auto weight = some({5}).abs() + 0.5;
  const auto loss = [&](const Tensors& t, bool parallel) {
    const bool distributed = is_dtensor(t[0]);
    const auto operand = [&](const at::Tensor& plain) -> at::Tensor {
      if (!distributed) {
        return plain;
      }
      const auto mesh = DTensor(t[0]).device_mesh();
      return distribute_tensor(
          plain,
          mesh,
          Placements(static_cast<size_t>(mesh.ndim()), Replicate()),
          std::nullopt);
    };
    const auto guard =
        distributed && parallel ? std::make_unique<LossParallel>() : nullptr;
    return at::cross_entropy_loss(
        t[0], operand(target), operand(weight), at::Reduction::Mean, 0, 0.2);
  };
  const auto parallel = [&](const Tensors& t) { return loss(t, true); };
  const auto gathered = [&](const Tensors& t) { return loss(t, false); };
  for (const auto& program : {Program(parallel), Program(gathered)}) {
    expect_as_plain(program, {some({3, 5})}, {{Shard(1)}});
    expect_as_plain(program, {some({3, 5})}, {{Shard(0), Shard(1)}});
    expect_as_plain(program, {some({3, 5})}, {{Partial()}});
  }
}

// Passes a value on, without a gradient.
struct Stop : torch::autograd::Function<Stop> {
  static at::Tensor forward(
      torch::autograd::AutogradContext* ctx,
      const at::Tensor& t) {
    ctx->set_materialize_grads(false);
    return t.alias();
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext*,
      const torch::autograd::variable_list&) {
    return {at::Tensor()};
  }
};

TEST(UndefinedGradients, AreNotComputedFurther) {
  run_ranks(2, [] {
    const auto mesh = mesh_of({2});
    const auto target = distribute_tensor(
        at::tensor({2, 0, 4}, at::kLong), mesh, {Replicate()});
    const std::vector<std::function<at::Tensor(const at::Tensor&)>> programs = {
        [&](const at::Tensor& t) {
          const LossParallel scope;
          return at::cross_entropy_loss(t, target);
        },
        [](const at::Tensor& t) { return at::matmul(t, t.t()); },
        [](const at::Tensor& t) { return at::gelu(t).softmax(1); },
        [](const at::Tensor& t) { return at::layer_norm(t, {5}); }};
    for (const auto& program : programs) {
      const auto x = placed(some({3, 5}), mesh, {Shard(1)}, true);
      const auto y = program(x);
      const auto sum = Stop::apply(y).sum() + (x * 0).sum();
      sum.backward();
      expect_same(whole(x.grad()), at::zeros({3, 5}, at::kDouble));
    }
  });
}

// Some ranks have no class.
TEST_F(SecondDerivatives, OfCrossEntropyWithOneClass) {
  const Program loss = [](const Tensors& t) {
    const auto plain = at::zeros({t[0].size(0)}, at::kLong);
    if (!is_dtensor(t[0])) {
      return at::cross_entropy_loss(t[0], plain, {}, at::Reduction::Sum);
    }
    const auto mesh = DTensor(t[0]).device_mesh();
    const at::Tensor target = distribute_tensor(
        plain,
        mesh,
        Placements(static_cast<size_t>(mesh.ndim()), Replicate()),
        std::nullopt);
    const LossParallel parallel;
    return at::cross_entropy_loss(t[0], target, {}, at::Reduction::Sum);
  };
  for (const int64_t samples : {1, 2, 4}) {
    const Tensors logits = {some({samples, 1})};
    expect_as_plain(loss, logits, {{Shard(1)}});
    expect_as_plain(loss, logits, {{Replicate(), Shard(1)}});
    expect_as_plain(loss, logits, {{Shard(0), Shard(1)}});
  }
}

TEST_F(SecondDerivatives, OfMaskedElements) {
  const Program scattered = [](const Tensors& t) {
    return t[0].masked_scatter(t[0].detach() > 0, t[1]);
  };
  const Program in_place = [](const Tensors& t) {
    return t[0].clone().masked_scatter_(t[0].detach() > 0, t[1]);
  };
  const Program selected = [](const Tensors& t) {
    return t[0].masked_select(t[0].detach() > 0) * t[1][0];
  };
  const Tensors full = {some({5, 4}), some({24}, 0.7)};
  for (const auto& program : {scattered, in_place, selected}) {
    expect_as_plain(program, full, {{Replicate()}, {Replicate()}});
    expect_as_plain(program, full, {{Shard(0)}, {Replicate()}});
    expect_as_plain(program, full, {{Shard(1)}, {Shard(0)}});
    expect_as_plain(program, full, {{Partial()}, {Partial()}});
    expect_as_plain(
        program, full, {{Shard(0), Shard(1)}, {Replicate(), Shard(0)}});
  }
}

// Operators of LibTorch whose gradient has no derivative formula.
class MissingDerivatives : public SecondDerivatives {
 protected:
  static std::string error(const Program& program, const at::Tensor& t) {
    try {
      twice(program, {t});
    } catch (const std::exception& e) {
      const std::string text = e.what();
      return text.substr(0, text.find('\n'));
    }
    return "nothing was thrown";
  }
  static std::string explanation(const std::string& op) {
    return "[" + op +
        "] LibTorch has no derivative for this operator, so the "
        "gradients that it computes cannot be differentiated again. "
        "Choose a kernel that has one (for attention, disable flash "
        "attention: at::globalContext().setSDPUseFlash(false) in C++, "
        "torch.backends.cuda.enable_flash_sdp(False) in Python), or "
        "call backward() without create_graph.";
  }
  // Expects the error of the plain operator `op` on all ranks, explained. If
  // not `explained`, a rank may give LibTorch's own text.
  static void expect_error(
      const Program& program,
      const at::Tensor& full,
      const std::string& op,
      const std::vector<Placement>& layouts,
      const std::vector<std::vector<int64_t>>& meshes,
      bool explained = true) {
    const std::string plain = "derivative for " + op + " is not implemented";
    EXPECT_EQ(error(program, full.detach().requires_grad_()), plain);
    for (const auto& layout : layouts) {
      on_meshes(meshes, [&](const DeviceMesh& mesh) {
        const auto text = error(program, placed(full, mesh, {layout}, true));
        if (explained || text != plain) {
          EXPECT_EQ(text, explanation(op));
        }
      });
    }
  }
};

// Some ranks of the larger meshes have no batch or no head.
TEST_F(MissingDerivatives, OfFusedAttention) {
  for (const bool causal : {false, true}) {
    const Program attention = [=](const Tensors& t) {
      return at::scaled_dot_product_attention(t[0], t[0], t[0], {}, 0, causal);
    };
    const std::string op =
        "aten::_scaled_dot_product_flash_attention_for_cpu_backward";
    expect_error(
        attention,
        some({6, 3, 4, 2}),
        op,
        {Replicate(), Shard(0), Shard(1), Partial()},
        {{2}, {3}, {4}});
    expect_error(
        attention, some({2, 4, 6, 6}), op, {Shard(0), Shard(1)}, {{3}});
  }
}

TEST_F(MissingDerivatives, OfMarginLosses) {
  for (const auto reduction :
       {at::Reduction::None, at::Reduction::Mean, at::Reduction::Sum}) {
    const auto with_target = [=](at::IntArrayRef sizes, const auto& loss) {
      const auto plain = at::zeros(sizes, at::kLong);
      return [=](const Tensors& t) -> at::Tensor {
        const at::Tensor target = is_dtensor(t[0])
            ? at::Tensor(distribute_tensor(
                  plain,
                  DTensor(t[0]).device_mesh(),
                  {Replicate()},
                  std::nullopt))
            : plain;
        return loss(t[0], target, reduction);
      };
    };
    const std::vector<Placement> layouts = {Replicate(), Shard(0)};
    expect_error(
        with_target(
            {5},
            [](const at::Tensor& x, const at::Tensor& target, int64_t r) {
              return at::multi_margin_loss(x, target, 1, 1, {}, r);
            }),
        some({5, 3}),
        "aten::multi_margin_loss_backward",
        layouts,
        {{2}, {4}});
    expect_error(
        with_target(
            {5, 3},
            [](const at::Tensor& x, const at::Tensor& target, int64_t r) {
              return at::multilabel_margin_loss(x, target, r);
            }),
        some({5, 3}),
        "aten::multilabel_margin_loss_backward",
        layouts,
        {{2}, {4}},
        /*explained=*/false);
  }
}

// The last of 3 ranks has no sample.
TEST_F(MissingDerivatives, OfCtcLoss) {
  const std::vector<int64_t> times = {6, 5};
  const std::vector<int64_t> lengths = {2, 1};
  for (const auto reduction :
       {at::Reduction::None, at::Reduction::Mean, at::Reduction::Sum}) {
    for (const bool in_tensors : {false, true}) {
      const Program loss = [=](const Tensors& t) {
        const auto beside = [&](const at::Tensor& plain) -> at::Tensor {
          return is_dtensor(t[0]) ? at::Tensor(distribute_tensor(
                                        plain,
                                        DTensor(t[0]).device_mesh(),
                                        {Shard(0)},
                                        std::nullopt))
                                  : plain;
        };
        const auto targets = beside(at::ones({2, 2}, at::kLong));
        return in_tensors
            ? at::ctc_loss(
                  t[0],
                  targets,
                  beside(at::tensor(times)),
                  beside(at::tensor(lengths)),
                  0,
                  reduction)
            : at::ctc_loss(t[0], targets, times, lengths, 0, reduction);
      };
      expect_error(
          loss,
          some({6, 2, 64}),
          "aten::_ctc_loss_backward",
          {Shard(1)},
          {{3}});
    }
  }
}

} // namespace TEST_SOURCE
} // namespace dtensor
