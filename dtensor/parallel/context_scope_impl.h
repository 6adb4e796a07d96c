// SPDX-License-Identifier: BSD-3-Clause
// What a context_parallel scope says to the operators in it.
#pragma once

#include <dtensor/parallel/context_parallel.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace dtensor::detail {

struct ContextScope {
  /// A tensor of the program's that is a part for now, and what it was before.
  struct Buffer {
    at::Tensor tensor;
    at::Tensor whole;
  };

  DeviceMesh mesh; // of one dimension
  RotateMethod method = RotateMethod::kAllGather;
  bool balanced = false;
  /// Tokens of the whole sequence, where there are buffers.
  std::optional<int64_t> length = std::nullopt;
  std::vector<Buffer> buffers = {};
};

/// The innermost scope of this rank; null outside of all.
const ContextScope* current_context();

/// Whether attention of this thread looks for a scope; returns whether it did.
/// Always on for ranks that are threads.
bool watch_attention(bool watched);

/// While it lives, this rank is outside of all scopes.
class OutsideContext {
 public:
  OutsideContext();
  ~OutsideContext();
  OutsideContext(const OutsideContext&) = delete;
  OutsideContext& operator=(const OutsideContext&) = delete;
};

/// Whether the scope on these ranks that this rank opened last is, or was,
/// balanced.
bool was_balanced(const DeviceMesh& mesh);

/// Throws ValueError unless `mesh` has one dimension, RuntimeError on a rank
/// outside of it.
void check_context_mesh(const char* where, const DeviceMesh& mesh);

/// `dim` of buffer number `index`, counted from the front. Throws IndexError if
/// it has no such one.
int64_t
seq_dim(const char* where, const at::Tensor& buffer, size_t index, int64_t dim);

} // namespace dtensor::detail
