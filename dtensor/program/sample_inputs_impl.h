// SPDX-License-Identifier: BSD-3-Clause
// Sample inputs of an exported program: a pickle in an archive within the file.
// The pickle has limits of nesting and repetition, and its tensors must fit
// their records. LibTorch's reader has no such limits. There, nested lists are
// freed recursively, and a list that contains itself is never freed.
#pragma once

#include <dtensor/weights/pt2_archive_impl.h>

#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>
#include <vector>

namespace dtensor::detail {

/// Maximum nesting of lists, tuples and dictionaries in a pickle.
constexpr size_t kMaxPickleDepth = 100;
/// Maximum number of lists, tuples, dictionaries and tensors in a pickle.
constexpr size_t kMaxPickledObjects = 1000000;
/// Maximum bytes of storages that are read: at most kMaxStorageBytes in total,
/// and each record at most kMostStorageUses times.
constexpr uint64_t kMaxStorageBytes = uint64_t{64} << 20;
constexpr uint64_t kMostStorageUses = 16;

/// Returns the reason why a pickle is refused, or an empty text. A pickle is
/// refused if:
/// - it nests deeper than kMaxPickleDepth, or contains itself,
/// - it repeats objects so often that a reader would visit many more objects
///   than the pickle has bytes,
/// - a tensor's storage has another size than its record in the archive,
/// - it is not a pickle of tensors, numbers, texts and containers as
///   torch.save() writes it.
/// Time and memory are proportional to the pickle's size.
std::string pickle_problem(std::string_view pickle, const RecordSizes& records);

/// Returns the tensors of the sample inputs. Tensors in lists and dictionaries
/// are listed one after the other. Throws ValueError if the file has no sample
/// inputs, or if they cannot be read: the pickle is refused or larger than the
/// record, a tensor reaches outside its storage, or bytes are in big-endian
/// order.
std::vector<at::Tensor> read_sample_inputs(const Pt2Archive& archive);

} // namespace dtensor::detail
