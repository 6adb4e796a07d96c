// SPDX-License-Identifier: BSD-3-Clause
// Families of the built-in rules. This file lists all families. For each
// family, a source defines a function as
//
//   DTENSOR_RULES(matmul) {
//     rules.einsum("mm", "mk,kn->mn");
//   }
#pragma once

#include <dtensor/ops/registry.h>

// clang-format off
#define DTENSOR_FAMILIES(family) \
  family(attention) \
  family(batch_norm) \
  family(composite) \
  family(concat) \
  family(convolution) \
  family(copy) \
  family(creation) \
  family(cross_entropy) \
  family(data_sized) \
  family(dropout) \
  family(einsum) \
  family(embedding) \
  family(embedding_kernels) \
  family(fft) \
  family(fold) \
  family(fused) \
  family(gathered) \
  family(indexing) \
  family(linalg) \
  family(linalg_kernels) \
  family(lookup) \
  family(loss) \
  family(matmul) \
  family(mean) \
  family(norm) \
  family(normalization) \
  family(picking) \
  family(pointwise) \
  family(pointwise_kernels) \
  family(pointwise_special) \
  family(random) \
  family(random_integers) \
  family(random_parameters) \
  family(recurrent) \
  family(reduction) \
  family(resampling) \
  family(sample_loss) \
  family(sample_loss_kernels) \
  family(scan) \
  family(shape) \
  family(slicing) \
  family(sorting) \
  family(spatial) \
  family(triangle) \
  family(unique) \
  family(value) \
  family(view) \
  family(view_kernels)
// clang-format on

#define DTENSOR_RULES(family) \
  void add_##family##_rules([[maybe_unused]] ::dtensor::RuleRegistry& rules)

namespace dtensor {

#define DTENSOR_DECLARE_FAMILY(family) DTENSOR_RULES(family);
DTENSOR_FAMILIES(DTENSOR_DECLARE_FAMILY)
#undef DTENSOR_DECLARE_FAMILY

namespace detail {

/// Returns RuleRegistry::global(), which starts with the built-in rules, for
/// changes.
RuleRegistry& registered_rules();

} // namespace detail
} // namespace dtensor
