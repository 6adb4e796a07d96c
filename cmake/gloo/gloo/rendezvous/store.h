// SPDX-License-Identifier: BSD-3-Clause
// Declarations in place of Gloo's own header: see cmake/gloo/README.md.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace gloo::rendezvous {

/// Never made here: LibTorch makes its own.
class Store {
 public:
  virtual ~Store() = default;
  virtual void set(const std::string& key, const std::vector<char>& data) = 0;
  virtual std::vector<char> get(const std::string& key) = 0;
  virtual void wait(const std::vector<std::string>& keys) = 0;
  virtual void wait(
      const std::vector<std::string>& keys,
      const std::chrono::milliseconds& timeout) = 0;
};

} // namespace gloo::rendezvous
