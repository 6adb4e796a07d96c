// SPDX-License-Identifier: BSD-3-Clause
// State of a context_parallel scope, for the operators in it.
#pragma once

#include <dtensor/parallel/context_parallel.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace dtensor::detail {

struct ContextScope {
  /// Tensor of the program that is replaced by its shard during the scope.
  struct Buffer {
    at::Tensor tensor;
    at::Tensor unsharded;
  };

  DeviceMesh mesh; // 1-D
  RotateMethod method = RotateMethod::kAllGather;
  bool balanced = false;
  /// Length of the full sequence, if there are buffers.
  std::optional<int64_t> length = std::nullopt;
  std::vector<Buffer> buffers = {};
};

/// Returns the innermost scope of this rank, or null.
const ContextScope* current_context();

/// Turns the lookup of scopes in attention of this thread on or off, and
/// returns the previous setting. Always on for ranks that are threads.
bool watch_attention(bool watched);

/// Suspends all scopes of this rank during its lifetime.
class OutsideContext {
 public:
  OutsideContext();
  ~OutsideContext();
  OutsideContext(const OutsideContext&) = delete;
  OutsideContext& operator=(const OutsideContext&) = delete;
};

/// True if this rank's innermost open scope on these ranks is balanced. Without
/// an open scope: if the latest scope was balanced.
bool was_balanced(const DeviceMesh& mesh);

/// Throws ValueError unless `mesh` is 1-D, and RuntimeError on a rank outside
/// of the mesh.
void check_context_mesh(const char* where, const DeviceMesh& mesh);

/// Returns `dim` of buffer number `index`, wrapped to be non-negative. Throws
/// IndexError if it is out of range.
int64_t
seq_dim(const char* where, const at::Tensor& buffer, size_t index, int64_t dim);

} // namespace dtensor::detail
