// SPDX-License-Identifier: BSD-3-Clause
// The store of a job: node 0's launcher serves it, so that no rank has to, and
// it outlives every rank. Ranks find it by MASTER_ADDR and MASTER_PORT. The
// launchers agree through it too (nodes.h), under keys of their own.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

namespace c10d {
class Store;
} // namespace c10d

namespace launcher {

class Store {
 public:
  // Listens at that address and no other; port 0 takes a free one.
  static std::shared_ptr<Store> serve(const std::string& host, uint16_t port);
  // Waits for node 0, and not longer, whatever listens there.
  static std::shared_ptr<Store>
  join(const std::string& host, uint16_t port, std::chrono::seconds timeout);

  Store(std::string host, uint16_t port, std::shared_ptr<c10d::Store> store);

  const std::string& host() const {
    return host_;
  }
  uint16_t port() const {
    return port_;
  }

  // These throw once the connection is lost.
  void set(const std::string& key, const std::string& value);
  // The first to set a key wins.
  void set_once(const std::string& key, const std::string& value);
  bool has(const std::string& key);
  // Waits until somebody sets it.
  std::string get(const std::string& key);
  // Returns the sum; a key that nobody has added to is 0.
  int64_t add(const std::string& key, int64_t number);

 private:
  std::string host_;
  uint16_t port_;
  std::shared_ptr<c10d::Store> store_;
};

} // namespace launcher
