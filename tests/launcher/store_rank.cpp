// SPDX-License-Identifier: BSD-3-Clause
// A rank that meets the other ranks in the job's store, as Python's env://
// does, and prints how many arrived.
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <cstdlib>
#include <iostream>

int main() {
  const auto variable = [](const char* name) {
    return std::string(std::getenv(name));
  };
  const auto size = std::stoll(variable("WORLD_SIZE"));
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(std::stoi(variable("MASTER_PORT")));
  options.timeout = std::chrono::minutes(1);
  const auto store = c10::make_intrusive<c10d::PrefixStore>(
      "/worker/attempt_" + variable("TORCHELASTIC_RESTART_COUNT"),
      c10::make_intrusive<c10d::TCPStore>(variable("MASTER_ADDR"), options));
  if (store->add("arrived", 1) == size) {
    store->set("complete", variable("TORCHELASTIC_RUN_ID"));
  }
  const bool same =
      store->get_to_str("complete") == variable("TORCHELASTIC_RUN_ID");
  std::cout << "met " << store->add("arrived", 0) << (same ? "" : " strangers")
            << std::endl;
}
