// SPDX-License-Identifier: BSD-3-Clause
// Sample inputs of an exported program: a pickle in an archive within the file.
#pragma once

#include <dtensor/weights/pt2_archive_impl.h>

#include <ATen/core/Tensor.h>

#include <vector>

namespace dtensor::detail {

/// Returns the tensors of the sample inputs; those in lists and dictionaries
/// are listed one after the other. Throws ValueError if the file has no sample
/// inputs or they cannot be read: nested deeper than kMaxPickleDepth
/// (pickle_shape_impl.h), larger than the record, or a tensor that reaches
/// outside its storage.
std::vector<at::Tensor> read_sample_inputs(const Pt2Archive& archive);

} // namespace dtensor::detail
