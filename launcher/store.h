// SPDX-License-Identifier: BSD-3-Clause
// Store: the key-value store of a job. Node 0's launcher hosts it, so it
// outlives every rank. Ranks find it through MASTER_ADDR and MASTER_PORT. The
// launchers use it too (nodes.h), with keys of their own.
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
  // Listens only at the address `host`; port 0 selects a free port.
  static std::shared_ptr<Store> serve(const std::string& host, uint16_t port);
  // Connects to node 0's store. Gives up after `timeout`, even if another
  // program listens there.
  static std::shared_ptr<Store>
  join(const std::string& host, uint16_t port, std::chrono::seconds timeout);

  Store(std::string host, uint16_t port, std::shared_ptr<c10d::Store> store);

  const std::string& host() const {
    return host_;
  }
  uint16_t port() const {
    return port_;
  }

  // The calls below throw once the connection is lost.
  void set(const std::string& key, const std::string& value);
  // Sets the key unless it is already set.
  void set_once(const std::string& key, const std::string& value);
  bool has(const std::string& key);
  // Blocks until the key is set.
  std::string get(const std::string& key);
  // Adds `number` to the key, initially 0, and returns the sum.
  int64_t add(const std::string& key, int64_t number);

 private:
  std::string host_;
  uint16_t port_;
  std::shared_ptr<c10d::Store> store_;
};

} // namespace launcher
