// SPDX-License-Identifier: BSD-3-Clause
// Runs exchange.py, which reads and writes checkpoints with PyTorch.
#pragma once

#include <gtest/gtest.h>

#include <sys/wait.h>

#include <cstdlib>
#include <fstream>
#include <string>

namespace dtensor::test_checkpoint {

/// Returns the exit code of Python: 77 if a required package is missing.
inline int exchange(const std::string& mode, const std::string& folder) {
  const auto log = folder + ".log";
  const auto command = std::string(DTENSOR_PYTHON) + " " + DTENSOR_TESTS_DIR +
      "/checkpoint/exchange.py " + mode + " " + folder + " >" + log + " 2>&1";
  const int status = std::system(command.c_str());
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  if (code != 0 && code != 77) {
    std::ifstream text(log);
    ADD_FAILURE() << command << "\n" << text.rdbuf();
  }
  return code;
}

inline constexpr const char* kWhyNot =
    "Python has no torch.distributed.checkpoint or no safetensors";

} // namespace dtensor::test_checkpoint
