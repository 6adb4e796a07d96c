// SPDX-License-Identifier: BSD-3-Clause
// Operators without strategies of their own, in lists of names.
//
// Some operators gather sharded operands, and every rank computes the full
// result. Each element of their result depends on all elements, or on values
// that determine its source. The lists also have operators that few programs
// call.
#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/registry.h>

namespace dtensor {
namespace {

constexpr const char* kAllElements[] = {
    "_aminmax",
    "_aminmax.dim",
    "_chunk_cat",
    "_stack",
    "_unsafe_index.Tensor",
    "_unsafe_index_put",
    "_unsafe_masked_index",
    "as_strided_scatter",
    "block_diag",
    "bucketize.Scalar",
    "diagonal_scatter",
    "hash_tensor",
    "isin.Scalar_Tensor",
    "linalg__powsum",
    "linalg_lstsq",
    "linalg_vander",
    "nonzero_static",
    "pdist",
    "put",
    "put_",
    "searchsorted.Scalar",
    "segment_reduce",
    "vander",
};

constexpr const char* kHistograms[] = {
    "_histogramdd_bin_edges",
    "_histogramdd_from_bin_cts",
    "_histogramdd_from_bin_tensors",
    "histogram.bin_ct",
    "histogram.bins_tensor",
    "histogramdd",
    "histogramdd.TensorList_bins",
    "histogramdd.int_bins",
};

constexpr const char* kLayers[] = {
    "_addmm_activation",
    "_embedding_bag",
    "_embedding_bag_forward_only",
    "_euclidean_dist",
    "_grouped_mm",
    "_int_mm",
    "_masked_softmax",
    "_masked_softmax_backward",
    "_native_multi_head_attention",
    "_pack_padded_sequence",
    "_scaled_mm",
    "_transform_bias_rescale_qkv",
    "_transformer_encoder_layer_fwd",
    "_trilinear",
    "_upsample_lanczos2d_aa",
    "_weight_norm_interface",
    "_weight_norm_interface_backward",
    "affine_grid_generator",
    "bilinear",
    "conv_tbc",
    "embedding_renorm",
    "embedding_renorm_",
};

// Operators that return copies of views.
constexpr const char* kCopies[] = {
    "as_strided_copy",    "expand_copy",           "narrow_copy",
    "permute_copy",       "select_copy.int",       "slice_copy.Tensor",
    "split_copy.Tensor",  "split_with_sizes_copy", "squeeze_copy",
    "squeeze_copy.dim",   "squeeze_copy.dims",     "t_copy",
    "transpose_copy.int", "unbind_copy.int",       "unfold_copy",
    "unsqueeze_copy",     "view_as_complex_copy",  "view_as_real_copy",
    "view_copy.dtype",
};

constexpr const char* kQuantization[] = {
    "_fake_quantize_learnable_per_channel_affine",
    "_fake_quantize_learnable_per_tensor_affine",
    "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams",
    "fake_quantize_per_channel_affine",
    "fake_quantize_per_channel_affine_cachemask",
    "fake_quantize_per_tensor_affine",
    "fake_quantize_per_tensor_affine.tensor_qparams",
    "fake_quantize_per_tensor_affine_cachemask",
};

// Composite operators that keep LibTorch's decomposition even on replicated
// tensors, because it consists of one or two operators with rules. A region
// would add more autograd nodes. All other composite operators run as one
// region on replicated tensors (ops/scopes/replicated.cpp).

// Aliases of operators, and overloads that only supply a default argument.
constexpr const char* kOtherNames[] = {
    "absolute",
    "arccos",
    "arccosh",
    "arcsin",
    "arcsinh",
    "arctan",
    "arctan2",
    "arctanh",
    "argsort",
    "argsort.stable",
    "argwhere",
    "clip",
    "clip.Tensor",
    "concat",
    "concatenate",
    "divide.Scalar",
    "divide.Scalar_mode",
    "divide.Tensor",
    "divide.Tensor_mode",
    "fix",
    "ger",
    "greater.Scalar",
    "greater.Tensor",
    "greater_equal.Scalar",
    "greater_equal.Tensor",
    "less.Scalar",
    "less.Tensor",
    "less_equal.Scalar",
    "less_equal.Tensor",
    "linalg_matmul",
    "log_softmax.int",
    "max.other",
    "min.other",
    "multiply.Scalar",
    "multiply.Tensor",
    "negative",
    "not_equal.Scalar",
    "not_equal.Tensor",
    "softmax.int",
    "special_log_softmax",
    "special_softmax",
    "square",
    "std",
    "std.dim",
    "std_mean",
    "std_mean.dim",
    "subtract.Scalar",
    "subtract.Tensor",
    "true_divide.Scalar",
    "true_divide.Tensor",
    "type_as",
    "var",
    "var.dim",
    "var_mean",
    "var_mean.dim",
};

// Operators that decompose into one operator with a rule and little else.
constexpr const char* kShort[] = {
    "__and__.Scalar",
    "__and__.Tensor",
    "__or__.Scalar",
    "__or__.Tensor",
    "__xor__.Scalar",
    "__xor__.Tensor",
    "conj_physical",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d.input",
    "conv_transpose3d.input",
    "dstack",
    "hstack",
    "inner",
    "isclose",
    "isfinite",
    "isreal",
    "l1_loss",
    "log_sigmoid",
    "max_pool2d",
    "max_pool3d",
    "nll_loss",
    "outer",
    "relu6",
    "selu",
    "take_along_dim",
    "tile",
    "vstack",
    "where.Scalar",
};

// Operators of vmap, which wrap and unwrap the DTensor itself.
constexpr const char* kOfVmap[] = {"_add_batch_dim", "_remove_batch_dim"};

// Views whose schemas do not declare them as such.
constexpr const char* kViews[] = {
    "atleast_1d",
    "atleast_1d.Sequence",
    "atleast_2d",
    "atleast_2d.Sequence",
    "atleast_3d",
    "atleast_3d.Sequence",
    "data",
    "meshgrid",
    "meshgrid.indexing",
};

} // namespace

DTENSOR_RULES(gathered) {
  const auto add = [&](const auto& names) {
    for (const auto* name : names) {
      rules.traits(name, {.gathers = true});
    }
  };
  add(kAllElements);
  add(kHistograms);
  add(kLayers);
  add(kCopies);
  add(kQuantization);
}

DTENSOR_RULES(composite) {
  const auto keep = [&](const auto& names) {
    for (const auto* name : names) {
      rules.keep_composite(name);
    }
  };
  keep(kOtherNames);
  keep(kShort);
  keep(kOfVmap);
  keep(kViews);
}

} // namespace dtensor
