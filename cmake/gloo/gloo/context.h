// SPDX-License-Identifier: BSD-3-Clause
// Declarations in place of Gloo's own header: see cmake/gloo/README.md.
#pragma once

#include <chrono>

namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

namespace transport {
class UnboundBuffer;
} // namespace transport

} // namespace gloo
