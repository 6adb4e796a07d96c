// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/ops/families_impl.h>

namespace dtensor {

void add_all_rules(RuleRegistry& rules) {
  add_as_strided_rules(rules);
  add_attention_rules(rules);
  add_composite_rules(rules);
  add_concat_rules(rules);
  add_copy_rules(rules);
  add_creation_rules(rules);
  add_cross_entropy_rules(rules);
  add_dropout_rules(rules);
  add_dropout_kernels_rules(rules);
  add_embedding_rules(rules);
  add_fused_rules(rules);
  add_indexing_rules(rules);
  add_loss_rules(rules);
  add_matmul_rules(rules);
  add_matmul_kernels_rules(rules);
  add_mean_rules(rules);
  add_nll_loss_rules(rules);
  add_norm_rules(rules);
  add_normalization_rules(rules);
  add_one_hot_rules(rules);
  add_pointwise_rules(rules);
  add_pointwise_kernels_rules(rules);
  add_pointwise_special_rules(rules);
  add_random_rules(rules);
  add_random_integers_rules(rules);
  add_recurrent_rules(rules);
  add_reduction_rules(rules);
  add_scan_rules(rules);
  add_shape_rules(rules);
  add_slicing_rules(rules);
  add_softmax_rules(rules);
  add_squeeze_rules(rules);
  add_triangle_rules(rules);
  add_value_rules(rules);
  add_view_rules(rules);
}

} // namespace dtensor
