// SPDX-License-Identifier: BSD-3-Clause
// Warnings of this thread.
#pragma once

#include <c10/util/Exception.h>

#include <string>
#include <vector>

namespace dtensor::test_text {

/// Records this thread's warnings while the object lives.
class Warnings final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override {
    texts_.push_back(warning.msg());
  }
  const std::vector<std::string>& texts() const {
    return texts_;
  }

 private:
  std::vector<std::string> texts_;
  c10::WarningUtils::WarningHandlerGuard guard_{this};
};

} // namespace dtensor::test_text
