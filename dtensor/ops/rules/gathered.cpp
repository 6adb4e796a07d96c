// SPDX-License-Identifier: BSD-3-Clause
// Operators that gather sharded operands, and on which every rank computes the
// full result: each element of the result depends on all elements, or on values
// that say where it comes from. The list also has operators that few programs
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

// Copies of views.
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

} // namespace dtensor
