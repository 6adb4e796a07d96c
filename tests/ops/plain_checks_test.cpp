// SPDX-License-Identifier: BSD-3-Clause
// Calls that the plain operator refuses because of global properties of the
// tensors are refused for DTensors, too, with an explanation.
#include "same_or_error.h"

#include <limits>

namespace dtensor::testing {
namespace TEST_SOURCE {

TEST(PlainChecks, MaximumOfAnEmptyTensor) {
  EXPECT_EQ(
      error_on_ranks([](const DeviceMesh& mesh) {
        place(at::ones({0, 3}), mesh, Shard(0)).max();
      }),
      "[aten::max] f32[0, 3] on (tp=2): S(0) is empty, so it has no maximum or "
      "minimum. Reduce a non-empty dimension.");
  EXPECT_EQ(
      error_on_ranks([](const DeviceMesh& mesh) {
        place(at::ones({0}), mesh, Replicate()).min();
      }),
      "[aten::min] f32[0] on (tp=2): R is empty, so it has no maximum or "
      "minimum. Reduce a non-empty dimension.");
}

TEST(PlainChecks, BooleansHaveNoPlaceOfTheMaximum) {
  for (const auto& layout : {Shard(0), Replicate()}) {
    EXPECT_EQ(
        error_on_ranks([&](const DeviceMesh& mesh) {
          place(at::ones({4, 3}, at::kBool), mesh, layout).argmax(1);
        }),
        "argmax(): does not support bool input");
  }
}

TEST(PlainChecks, DropoutProbabilityOutOfRange) {
  for (const double p : {2.0, -0.5}) {
    for (const auto& layout : {Shard(0), Replicate()}) {
      EXPECT_EQ(
          error_on_ranks([&](const DeviceMesh& mesh) {
            const auto q = place(uniform({2, 2, 4, 3}, 1), mesh, layout);
            at::scaled_dot_product_attention(q, q, q, {}, p);
          }),
          c10::str(
              "[aten::scaled_dot_product_attention] dropout_p must be between "
              "0 and 1, got ",
              p,
              ". Pass a probability."));
    }
  }
}

TEST(PlainChecks, AttentionNeedsMatrices) {
  EXPECT_EQ(
      error_on_ranks([&](const DeviceMesh& mesh) {
        const auto q = place(uniform({4}, 1), mesh, Replicate());
        at::scaled_dot_product_attention(q, q, q);
      }),
      "[aten::scaled_dot_product_attention] query, key and value need two "
      "dimensions or more, got f64[4] on (tp=2): R, f64[4] on (tp=2): R and "
      "f64[4] on (tp=2): R. Pass (..., length, features).");
}

TEST(PlainChecks, WeightsOfClassesInTheDtypeOfTheLogits) {
  EXPECT_EQ(
      error_on_ranks([](const DeviceMesh& mesh) {
        at::cross_entropy_loss(
            place(at::ones({4, 3}), mesh, Shard(0)),
            place(at::zeros({4}, at::kLong), mesh, Shard(0)),
            place(at::ones({3}, at::kDouble), mesh, Replicate()));
      }),
      "[cross_entropy] weight must be f32 like the logits, got f64. Convert "
      "it.");
}

TEST(PlainChecks, APlainMaskBesideADTensor) {
  EXPECT_EQ(
      error_on_ranks([](const DeviceMesh& mesh) {
        place(at::ones({4, 3}), mesh, Shard(0))
            .masked_select(at::rand({4, 3}) > 0.5);
      }),
      "[aten::masked_select] got mixed plain tensor and DTensor: argument "
      "\"mask\" is a plain bool[4, 3] next to f32[4, 3] on (tp=2): S(0). Make "
      "it a DTensor with distribute_tensor or from_local, or call the operator "
      "on local tensors (to_local()). If the plain tensor is the same on every "
      "rank, implicit_replication() accepts it as replicated, and "
      "distribute_module distributes the tensors of a module.");
  expect_same(
      {uniform({4, 3}, 1)}, {{Shard(0), Replicate()}}, [](const Tensors& t) {
        return t[0].masked_select(at::ones({}, at::kBool));
      });
}

TEST(PlainChecks, ASelfOfAnotherShape) {
  EXPECT_EQ(
      error_on_ranks([](const DeviceMesh& mesh) {
        auto self = place(at::ones({1}), mesh, Shard(0));
        self.logical_and_(place(at::ones({3}), mesh, Shard(0)));
      }),
      "[aten::logical_and_] self, f32[1] on (tp=2): S(0), cannot take a result "
      "of shape [3] in place. Use the out-of-place operator.");
}

// Shapes that fit on each rank but not globally are refused.
TEST(PlainChecks, ShapesThatOnlyFitRankByRank) {
  EXPECT_EQ(
      error_on_ranks([](const DeviceMesh& mesh) {
        const at::Tensor index =
            distribute_tensor(at::zeros({1}, at::kLong), mesh, {Replicate()});
        place(at::ones({4, 3}), mesh, Shard(0))
            .index_put_(
                {at::indexing::Slice(), index},
                place(at::ones({2, 1}), mesh, Shard(0)));
      }),
      "[aten::index_put_] values of shape [2, 1] cannot be broadcast to the "
      "elements that the indices select, of shape [4, 1]. Pass values of that "
      "shape.");
  EXPECT_EQ(
      error_on_ranks([](const DeviceMesh& mesh) {
        at::scaled_dot_product_attention(
            place(at::ones({4, 2, 3}), mesh, Shard(0)),
            place(at::ones({4, 2, 3}), mesh, Shard(0)),
            place(at::ones({4, 2, 3}), mesh, Shard(0)),
            place(at::ones({2, 2, 2}), mesh, Replicate()));
      }),
      "[aten::scaled_dot_product_attention] attn_mask, f32[2, 2, 2] on (tp=2): "
      "R, cannot be expanded to the scores, of shape [4, 2, 2]. Pass a mask "
      "that broadcasts to that shape.");
  EXPECT_EQ(
      error_on_ranks([](const DeviceMesh& mesh) {
        at::batch_norm(
            place(at::ones({4, 1, 3}), mesh, Shard(1)),
            place(at::ones({2}), mesh, Shard(0)),
            {},
            {},
            {},
            true,
            0.1,
            1e-5,
            false);
      }),
      "[aten::batch_norm] weight, f32[2] on (tp=2): S(0), must have 1 element, "
      "one per channel of f32[4, 1, 3] on (tp=2): S(1). Pass one number for "
      "each channel.");
}

// A refused call, and its error on both ranks.
struct Refused {
  std::function<void(const DeviceMesh&)> call;
  std::string error;
};

void expect_refused(const std::vector<Refused>& all) {
  for (const auto& [call, error] : all) {
    EXPECT_EQ(error_on_ranks(call), error);
  }
}

// Shards of different sizes fit on some ranks, and empty shards everywhere.
TEST(PlainChecks, ShapesThatFitOnSomeRanks) {
  const auto ones = [](const DeviceMesh& mesh,
                       at::IntArrayRef sizes,
                       const Placement& layout) {
    return place(at::ones(sizes), mesh, layout);
  };
  expect_refused({
      {[&](const auto& mesh) {
         at::addmm(
             ones(mesh, {2, 3}, Shard(0)),
             ones(mesh, {1, 2}, Shard(0)),
             ones(mesh, {2, 3}, Shard(0)));
       },
       "[aten::addmm] cannot add f32[2, 3] on (tp=2): S(0) to a product of "
       "shape [1, 3]. Pass a tensor that expands to that shape."},
      {[&](const auto& mesh) {
         at::layer_norm(ones(mesh, {4, 3}, Shard(0)), {4});
       },
       "[aten::layer_norm] normalized_shape [4] does not fit f32[4, 3] on "
       "(tp=2): S(0). Pass the sizes of the last dimensions."},
      {[&](const auto& mesh) {
         at::native_layer_norm(ones(mesh, {0}, Shard(0)), {1, 2}, {}, {}, 0.5);
       },
       "[aten::native_layer_norm] normalized_shape [1, 2] does not fit f32[0] "
       "on (tp=2): S(0). Pass the sizes of the last dimensions."},
      {[&](const auto& mesh) {
         at::native_group_norm(
             ones(mesh, {2, 4, 3}, Shard(0)), {}, {}, 3, 4, 3, 2, 1e-5);
       },
       "[aten::native_group_norm] got N 3, C 4 and HxW 3 for f32[2, 4, 3] on "
       "(tp=2): S(0). Pass its numbers of samples, channels and positions."},
  });
}

// Kernels skip these checks for empty shards and for elements of other ranks.
TEST(PlainChecks, DtypesThatSomeRanksDoNotSee) {
  expect_refused({
      {[](const auto& mesh) {
         place(at::ones({4, 3}), mesh, Shard(1))
             .index_fill(
                 1, place(at::ones({3}, at::kBool), mesh, Replicate()), 7);
       },
       "[aten::index_fill.int_Scalar] the index, bool[3] on (tp=2): R, has "
       "another dtype than i64. Convert it."},
      {[](const auto& mesh) {
         at::embedding(
             place(at::ones({4, 3}), mesh, Shard(0)),
             place(at::ones({2}), mesh, Replicate()));
       },
       "[aten::embedding] the indices, f32[2] on (tp=2): R, have another dtype "
       "than i64 and i32. Convert them."},
      {[](const auto& mesh) {
         at::conv2d(
             place(at::ones({1, 2, 3, 3}), mesh, Shard(0)),
             place(at::ones({2, 2, 1, 1}, at::kDouble), mesh, Replicate()));
       },
       "[aten::convolution] the dtypes of f32[1, 2, 3, 3] on (tp=2): S(0), the "
       "weight, f64[2, 2, 1, 1] on (tp=2): R, and the bias, none, differ. "
       "Convert them."},
      {[](const auto& mesh) {
         at::constant_pad_nd(
             place(at::ones({1, 3}), mesh, Shard(1)),
             {0, 1},
             c10::complex<double>(0, 1));
       },
       "[aten::constant_pad_nd] cannot pad f32[1, 3] on (tp=2): S(1) with the "
       "complex number (0,1). Pass a real number."},
      {[](const auto& mesh) {
         randn({4}, mesh, {Shard(0)}, {.dtype = at::kLong});
       },
       "[randn] cannot draw i64[4]. Pass a floating-point or complex dtype, "
       "and "
       "convert the result."},
  });
}

TEST(PlainChecks, StridesThatDoNotFit) {
  const auto x = [](const DeviceMesh& mesh) {
    return place(at::ones({3, 3}), mesh, Shard(0));
  };
  expect_refused({
      {[&](const auto& mesh) {
         x(mesh).as_strided({2, 2}, {});
       },
       "[aten::as_strided] got sizes [2, 2] and strides []. Pass one "
       "non-negative stride for each size."},
      {[&](const auto& mesh) {
         x(mesh).as_strided({2, 2}, {1, -1});
       },
       "[aten::as_strided] got sizes [2, 2] and strides [1, -1]. Pass one "
       "non-negative stride for each size."},
      {[&](const auto& mesh) {
         x(mesh).new_empty_strided({2, 3}, {-9, 8});
       },
       "[aten::new_empty_strided] got strides [-9, 8]. Pass non-negative "
       "strides."},
      {[&](const auto& mesh) {
         DTensor::from_local(
             at::ones({2, 2}),
             mesh,
             {Shard(0)},
             {.shape = {{4, 2}}, .stride = {{-1, 1}}});
       },
       "[from_local] got strides [-1, 1]. Pass non-negative strides."},
  });
}

TEST(PlainChecks, InfinityNormOfAnEmptyTensor) {
  for (const auto& layout : {Shard(0), Shard(1), Replicate()}) {
    EXPECT_EQ(
        error_on_ranks([&](const DeviceMesh& mesh) {
          at::linalg_vector_norm(
              place(at::ones({0, 3}), mesh, layout),
              std::numeric_limits<double>::infinity(),
              at::IntArrayRef{0});
        }),
        c10::str(
            "[aten::linalg_vector_norm] the norm of order inf over zero "
            "elements "
            "of f32[0, 3] on (tp=2): ",
            to_string(layout),
            " is not defined. Reduce non-empty dimensions."));
  }
}

} // namespace TEST_SOURCE
} // namespace dtensor::testing
