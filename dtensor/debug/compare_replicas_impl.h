// SPDX-License-Identifier: BSD-3-Clause
// compare_replicas: checks that the ranks along a mesh dimension have the same
// tensors. Ranks exchange 8 bytes if all tensors agree, and details otherwise.
// digest_of: the hash of a tensor's contents, which ranks exchange.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/layout/mesh.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace dtensor::detail {

/// The role of a tensor in the program. Determines its name and the remedy in
/// errors.
enum class ReplicaRole : uint8_t {
  kInput,
  kOutput,
  kLocal,
  kGradient,
  kNorm,
  kDraw,
  kParameter,
  kParameterGradient,
  kLoss,
  kRandomState,
  kNamed,
};

/// A tensor of this rank that should be equal on the other ranks.
struct Replica {
  ReplicaRole role;
  /// Full name of the module or parameter, or a name chosen by the program.
  std::string_view name;
  at::Tensor tensor; // plain; undefined for a missing gradient
  uint64_t digest;   // digest_of(tensor); 0 for a missing gradient
};

struct ReplicaRanks {
  DeviceMesh mesh;
  int64_t dim = 0;
  friend bool operator==(const ReplicaRanks&, const ReplicaRanks&) = default;
};

/// Throws RuntimeError on all ranks along the mesh dimension unless they have
/// the same replicas in the same order. The error names the first difference.
/// Elements are equal if they differ by at most `tolerance` times the largest
/// magnitude. All ranks along the mesh dimension must call this function.
void compare_replicas(
    const ReplicaRanks& ranks,
    const std::vector<Replica>& replicas,
    double tolerance);

// Names of replicas in errors, and remedies for differences.

/// "the input of module \"w1\"".
std::string title_of(ReplicaRole role, std::string_view name);

/// Returns the remedy as a sentence.
const char* advice_for(ReplicaRole role);

/// Mixes `word` into `state`. The order of words matters.
inline uint64_t mix_digest(uint64_t state, uint64_t word) {
  state = (state ^ word) * 0x9E3779B97F4A7C15U;
  return state ^ (state >> 32);
}

uint64_t digest_bytes(const void* bytes, size_t count);

/// Hashes dtype, sizes and every bit of every element of a plain tensor, but
/// not strides. Reads the memory once; a tensor on another device is copied to
/// the CPU first.
uint64_t digest_of(const at::Tensor& t);

/// Digest of the last tensor, for the projections of an attention, which have a
/// common input. Keeps its values alive, so that no other tensor takes their
/// place in memory.
class LastDigest {
 public:
  /// Returns digest_of(tensor), or of the local tensor of a DTensor. Reads no
  /// memory if `tensor` is the last tensor and has not been written since.
  /// Always reads inference tensors, which do not count writes.
  uint64_t of(const at::Tensor& tensor);
  void forget() {
    local_.reset();
  }

 private:
  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl>;

  // Weak, because a DTensor keeps its autograd graph alive.
  WeakTensor tensor_{c10::intrusive_ptr<c10::TensorImpl>()};
  at::Tensor local_; // `tensor_` itself if it is plain
  // A write to a DTensor counts in its own version only.
  uint32_t version_ = 0;
  uint32_t local_version_ = 0;
  uint64_t digest_ = 0;
};

} // namespace dtensor::detail
