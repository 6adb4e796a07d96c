// SPDX-License-Identifier: BSD-3-Clause
// Where one rank's time goes: by operator on plain tensors (the work itself),
// by operator on DTensors (dispatch: what it takes beside what it calls), and
// by collective (the work and the waiting for the others).
//
// Watching slows the program a little; the shares count, not the sum.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace bench {

class Profile {
 public:
  /// While it lives, this rank's calls are entered into the profile and groups
  /// made on it are watched. Null watches nothing.
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

  /// Forgets what came before.
  void start();

  /// Enters a call that took `seconds` beside the calls within it.
  void enter(const std::string& name, double seconds);

  /// A table per step, the most expensive first.
  void print(const std::string& title, int64_t steps) const;

 private:
  struct Entry {
    int64_t calls = 0;
    double seconds = 0;
  };
  std::map<std::string, Entry> entries_;
};

} // namespace bench
