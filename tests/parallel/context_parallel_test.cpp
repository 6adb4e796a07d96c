// SPDX-License-Identifier: BSD-3-Clause
// Attention over a sharded sequence equals plain attention: forward and
// backward, for plain shards and DTensors, with every method and any length.
#include <tests/error_of.h>
#include <tests/parallel/attention_cases.h>

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::test_modules;

using Case = AttentionCase;

class ContextParallelRanks : public testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(
    Ranks,
    ContextParallelRanks,
    testing::Values(1, 2, 3, 4));

// Lengths may be divisible by (twice) the number of ranks, not divisible, or
// smaller than it.
TEST_P(ContextParallelRanks, IsPlainAttention) {
  on_cp(GetParam(), [](const DeviceMesh& mesh) {
    for (const int64_t tokens : {24, 8, 13, 7, 3, 2, 1}) {
      for (const bool causal : {false, true}) {
        for (const auto method : kMethods) {
          const Case c{.tokens = tokens, .causal = causal};
          check_parts(c, mesh, method);
          check_dtensors(c, mesh, method);
        }
      }
    }
  });
}

// With many tokens a rank computes several strips of rows.
TEST_P(ContextParallelRanks, GoesThroughManyTokens) {
  on_cp(GetParam(), [](const DeviceMesh& mesh) {
    const Case c{.tokens = 1030, .heads = 2, .key_heads = 1};
    check_parts(c, mesh, RotateMethod::kAllToAll);
    check_dtensors(c, mesh, RotateMethod::kAllGather);
  });
}

// There are more key heads than ranks, equally many, and fewer.
TEST_P(ContextParallelRanks, GroupsQueries) {
  on_cp(GetParam(), [](const DeviceMesh& mesh) {
    for (const int64_t key_heads : {4, 2, 1}) {
      for (const bool causal : {false, true}) {
        for (const auto method : kMethods) {
          const Case c{
              .tokens = 11,
              .heads = 8,
              .key_heads = key_heads,
              .causal = causal};
          check_parts(c, mesh, method);
          check_dtensors(c, mesh, method);
        }
      }
    }
  });
}

TEST_P(ContextParallelRanks, KeysMayBeOfAnotherLength) {
  on_cp(GetParam(), [](const DeviceMesh& mesh) {
    for (const auto& [tokens, keys] :
         {std::pair(9, 14), std::pair(14, 9), std::pair(3, 8)}) {
      for (const bool causal : {false, true}) {
        for (const auto method : kMethods) {
          check_dtensors(
              {.tokens = tokens, .causal = causal, .keys = keys}, mesh, method);
        }
      }
    }
  });
}

TEST_P(ContextParallelRanks, ValuesMayHaveOtherFeatures) {
  on_cp(GetParam(), [](const DeviceMesh& mesh) {
    for (const bool causal : {false, true}) {
      for (const auto method : kMethods) {
        const Case c{
            .tokens = 10,
            .heads = 4,
            .key_heads = 2,
            .causal = causal,
            .value_features = 3};
        check_parts(c, mesh, method);
        check_dtensors(c, mesh, method);
      }
    }
  });
}

// Rounding errors are as small as with LibTorch's kernel, which also
// accumulates in float32.
TEST_P(ContextParallelRanks, RoundsAsPlainAttention) {
  on_cp(GetParam(), [](const DeviceMesh& mesh) {
    for (const auto& [dtype, tolerance] :
         {std::pair(at::kFloat, 1e-5),
          std::pair(at::kBFloat16, 4e-2),
          std::pair(at::kHalf, 6e-3)}) {
      for (const auto method : kMethods) {
        Case c{.tokens = 90, .heads = 4, .key_heads = 2, .dtype = dtype};
        c.features = c.value_features = 8;
        check_parts(c, mesh, method, tolerance);
        check_dtensors(c, mesh, method, tolerance);
      }
    }
  });
}

// Inputs have two, three, and five dimensions, one of which is broadcast.
TEST_P(ContextParallelRanks, TakesAnyBatch) {
  on_cp(GetParam(), [](const DeviceMesh& mesh) {
    const auto rank = mesh.get_local_rank();
    for (const auto& batch :
         std::vector<std::vector<int64_t>>{{}, {3}, {2, 1, 3}}) {
      constexpr int64_t kTokens = 12; // equal shards on 1 to 4 ranks
      auto sizes = batch;
      sizes.insert(sizes.end(), {kTokens, 4});
      auto wide = sizes;
      if (batch.size() == 3) {
        wide[1] = 2;
      }
      std::vector<at::Tensor> whole = {
          uniform(sizes, 1), uniform(wide, 2), uniform(wide, 3)};
      for (const auto method : kMethods) {
        std::vector<at::Tensor> parts;
        const Interval mine = chunk(kTokens, mesh.size(), rank);
        for (auto& t : whole) {
          t = t.detach().requires_grad_();
          parts.push_back(t.detach()
                              .narrow(-2, mine.begin, mine.size())
                              .clone()
                              .requires_grad_());
        }
        const auto truth = at::scaled_dot_product_attention(
            whole[0], whole[1], whole[2], {}, 0, true);
        truth.square().sum().backward();
        const auto scope = context_parallel(mesh, {.rotate_method = method});
        const auto out = at::scaled_dot_product_attention(
            parts[0], parts[1], parts[2], {}, 0, true);
        out.square().sum().backward();
        const auto what = c10::str(sizes, " by ", name_of(method));
        expect_close(out, truth.narrow(-2, mine.begin, mine.size()), what);
        for (size_t i = 0; i < 3; ++i) {
          expect_close(
              parts[i].grad(),
              whole[i].grad().narrow(-2, mine.begin, mine.size()),
              what);
        }
      }
    }
  });
}

// Layers of LibTorch that compute attention by themselves.
at::Tensor fused_attention(const at::Tensor& x) {
  return std::get<0>(at::_native_multi_head_attention(
      x,
      x,
      x,
      4,
      2,
      uniform({12, 4}, 2),
      uniform({12}, 3),
      uniform({4, 4}, 4),
      uniform({4}, 5),
      {},
      /*need_weights=*/false));
}

at::Tensor fused_encoder_layer(const at::Tensor& x) {
  const auto row = uniform({4}, 5);
  const auto square = uniform({4, 4}, 4);
  return at::_transformer_encoder_layer_fwd(
      x,
      4,
      2,
      uniform({12, 4}, 2),
      uniform({12}, 3),
      square,
      row,
      /*use_gelu=*/false,
      /*norm_first=*/false,
      1e-5,
      row,
      row,
      row,
      row,
      square,
      row,
      square,
      row);
}

// Returns the error of a layer in a scope of this many ranks.
std::string error_in_scope(
    at::Tensor (*layer)(const at::Tensor&),
    int64_t ranks) {
  const auto x = uniform({1, 6, 4}, 1);
  const auto truth = layer(x);
  std::string text;
  on_cp(ranks, [&](const DeviceMesh& mesh) {
    EXPECT_TRUE(layer(x).equal(truth)); // outside
    const auto scope = context_parallel(mesh);
    const auto mine =
        test_text::error_of([&] { EXPECT_TRUE(layer(x).equal(truth)); });
    if (mesh.get_local_rank() == 0) {
      text = mine;
    }
  });
  return text;
}

TEST(ContextParallel, AcceptsFusedLayersOfDTensors) {
  const auto x = uniform({1, 6, 4}, 1);
  on_cp(2, [&](const DeviceMesh& mesh) {
    const auto on_mesh = [&](const at::Tensor& t) {
      return distribute_tensor(t, mesh, {Replicate()});
    };
    const auto layer = [&](const auto& place) {
      return std::get<0>(at::_native_multi_head_attention(
          place(x),
          place(x),
          place(x),
          4,
          2,
          place(uniform({12, 4}, 2)),
          place(uniform({12}, 3)),
          place(uniform({4, 4}, 4)),
          place(uniform({4}, 5)),
          {},
          /*need_weights=*/false));
    };
    const auto truth = layer([](const at::Tensor& t) { return t; });
    const auto scope = context_parallel(mesh);
    const c10::NoGradGuard no_grad;
    EXPECT_TRUE(full_tensor(layer(on_mesh)).allclose(truth));
  });
}

TEST(ContextParallel, RefusesFusedLayers) {
  EXPECT_EQ(error_in_scope(fused_attention, 1), "nothing was thrown");
  EXPECT_EQ(error_in_scope(fused_encoder_layer, 1), "nothing was thrown");
  const std::string reason =
      " is not supported for a sharded sequence: it would attend to the tokens "
      "of this rank only. In Python, call "
      "torch.backends.mha.set_fastpath_enabled(False) first; in C++, call "
      "scaled_dot_product_attention.";
  EXPECT_EQ(
      error_in_scope(fused_attention, 2),
      "[context_parallel] aten::_native_multi_head_attention" + reason);
  EXPECT_EQ(
      error_in_scope(fused_encoder_layer, 2),
      "[context_parallel] aten::_transformer_encoder_layer_fwd" + reason);
}

// Returns whether autograd records the gradient of the operand at `position`,
// if only this operand requires a gradient.
bool records_gradient(
    const AttentionCase& c,
    std::vector<at::Tensor> operands,
    size_t position) {
  operands[position].requires_grad_();
  const auto out = attend(c, operands[0], operands[1], operands[2]);
  return torch::autograd::grad(
             {out.sum()}, {operands[position]}, {}, true, true)[0]
      .requires_grad();
}

// The last of 3 ranks has no query head. If its gradient were a constant, only
// this rank would continue after a second backward pass.
TEST(ContextParallel, RanksWithoutHeadsRecordTheirGradients) {
  for (const int64_t key_heads : {2, 1}) {
    const AttentionCase c{.tokens = 6, .heads = 2, .key_heads = key_heads};
    const auto all = inputs_of(c);
    for (size_t position = 0; position < 3; ++position) {
      const auto expected = records_gradient(
          c, {all[0].clone(), all[1].clone(), all[2].clone()}, position);
      run_ranks(3, [&] {
        const auto mesh = init_device_mesh(at::kCPU, {3});
        const auto part = [&](size_t i) -> at::Tensor {
          return distribute_tensor(all[i], mesh, {Shard(2)}, std::nullopt);
        };
        const auto scope =
            context_parallel(mesh, {.rotate_method = RotateMethod::kUlysses});
        EXPECT_EQ(
            records_gradient(c, {part(0), part(1), part(2)}, position),
            expected)
            << position;
      });
    }
  }
}

TEST(ContextParallel, OfHeadsHasNoSecondDerivative) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"cp"});
    const auto scope =
        context_parallel(mesh, {.rotate_method = RotateMethod::kUlysses});
    const auto x = uniform({2, 2, 4, 4}, 1).requires_grad_();
    const auto y = at::scaled_dot_product_attention(x, x, x);
    const auto first =
        torch::autograd::grad({y.pow(3).sum()}, {x}, {}, true, true)[0];
    EXPECT_EQ(
        error_of([&] { torch::autograd::grad({first.sum()}, {x}); }),
        "[aten::_scaled_dot_product_flash_attention_for_cpu_backward] LibTorch "
        "has no derivative for this operator, so the gradients that it "
        "computes cannot be differentiated again. Choose a kernel that has one "
        "(for attention, disable flash attention: "
        "at::globalContext().setSDPUseFlash(false) in C++, "
        "torch.backends.cuda.enable_flash_sdp(False) in Python), or call "
        "backward() without create_graph.");
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
