// SPDX-License-Identifier: BSD-3-Clause
// Families of the built-in rules. Each has a file that defines its function as
//
//   DTENSOR_RULES(matmul) {
//     rules.einsum("mm", "mk,kn->mn");
//   }
#pragma once

#include <dtensor/ops/registry.h>

namespace dtensor {

/// Adds the rules of all families.
void add_all_rules(RuleRegistry& rules);

void add_as_strided_rules(RuleRegistry& rules);
void add_attention_rules(RuleRegistry& rules);
void add_composite_rules(RuleRegistry& rules);
void add_concat_rules(RuleRegistry& rules);
void add_copy_rules(RuleRegistry& rules);
void add_creation_rules(RuleRegistry& rules);
void add_cross_entropy_rules(RuleRegistry& rules);
void add_dropout_rules(RuleRegistry& rules);
void add_dropout_kernels_rules(RuleRegistry& rules);
void add_embedding_rules(RuleRegistry& rules);
void add_fused_rules(RuleRegistry& rules);
void add_indexing_rules(RuleRegistry& rules);
void add_loss_rules(RuleRegistry& rules);
void add_matmul_rules(RuleRegistry& rules);
void add_matmul_kernels_rules(RuleRegistry& rules);
void add_mean_rules(RuleRegistry& rules);
void add_nll_loss_rules(RuleRegistry& rules);
void add_norm_rules(RuleRegistry& rules);
void add_normalization_rules(RuleRegistry& rules);
void add_one_hot_rules(RuleRegistry& rules);
void add_pointwise_rules(RuleRegistry& rules);
void add_pointwise_kernels_rules(RuleRegistry& rules);
void add_pointwise_special_rules(RuleRegistry& rules);
void add_random_rules(RuleRegistry& rules);
void add_random_integers_rules(RuleRegistry& rules);
void add_recurrent_rules(RuleRegistry& rules);
void add_reduction_rules(RuleRegistry& rules);
void add_scan_rules(RuleRegistry& rules);
void add_shape_rules(RuleRegistry& rules);
void add_slicing_rules(RuleRegistry& rules);
void add_softmax_rules(RuleRegistry& rules);
void add_squeeze_rules(RuleRegistry& rules);
void add_triangle_rules(RuleRegistry& rules);
void add_value_rules(RuleRegistry& rules);
void add_view_rules(RuleRegistry& rules);

} // namespace dtensor

#define DTENSOR_RULES(family) \
  void add_##family##_rules([[maybe_unused]] ::dtensor::RuleRegistry& rules)
