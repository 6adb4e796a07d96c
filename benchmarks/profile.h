// SPDX-License-Identifier: BSD-3-Clause
// Time profile of one rank: operators on plain tensors (the computation),
// operators on DTensors (dispatch, without nested calls), and collectives
// (communication and waiting for other ranks).
//
// Profiling slows the program a little, so the shares of the total time are
// meaningful, but the total is not.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace bench {

class Profile {
 public:
  /// While a scope exists, this rank's calls are added to the profile, and
  /// groups created on it are watched. Null disables profiling.
  class Scope {
   public:
    explicit Scope(Profile* profile);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    uint64_t handle_ = 0;
    bool active_;
  };

  /// Resets the profile.
  void start();

  /// Adds a call that took `seconds` without its nested calls.
  void enter(const std::string& name, double seconds);

  /// Prints the times per step, the most expensive first.
  void print(const std::string& title, int64_t steps) const;

 private:
  struct Entry {
    int64_t calls = 0;
    double seconds = 0;
  };
  std::map<std::string, Entry> entries_;
};

} // namespace bench
