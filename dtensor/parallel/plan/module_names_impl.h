// SPDX-License-Identifier: BSD-3-Clause
// Full names of modules and parameters, as they appear in plans, errors and
// tables, patterns that match names, and the modules that they match.
#pragma once

#include <dtensor/api.h>
#include <torch/ordered_dict.h>

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace torch::nn {
class Module;
}

namespace dtensor::detail {

/// Joins a module's name and the name of a member: "w1.weight". The root module
/// has an empty name, so its members are "weight".
inline std::string full_name(
    const std::string& module,
    const std::string& name) {
  return module.empty() ? name : module + "." + name;
}

/// True if `name` matches `pattern`, with *, ?, [seq] and [!seq] as in Python's
/// fnmatch.fnmatchcase. The time is at most proportional to the product of the
/// lengths.
DTENSOR_INTERNAL_API bool matches_glob(
    std::string_view pattern,
    std::string_view name);

struct Match {
  std::shared_ptr<torch::nn::Module> owner; // keeps `module` alive
  torch::nn::Module* module;
  std::string name;
};

/// Finds modules for all patterns of one plan. Reads the children's names of
/// each module once. A component without *, ? and [ is a hash lookup, so a plan
/// with one entry per module takes time proportional to its entries.
class PlanMatches {
 public:
  explicit PlanMatches(torch::nn::Module& root) : root_(root) {}

  /// Returns the modules that `pattern` matches. Throws ValueError if no module
  /// matches; the message lists the names at the deepest level reached.
  std::vector<Match> find(const std::string& pattern);

  /// Number of name comparisons so far.
  size_t compared() const {
    return compared_;
  }

 private:
  using Children =
      torch::OrderedDict<std::string, std::shared_ptr<torch::nn::Module>>;

  const Children& children_of(torch::nn::Module& module);
  void add_children(
      std::vector<Match>& found,
      const Match& parent,
      const std::string& token);

  torch::nn::Module& root_;
  std::unordered_map<const torch::nn::Module*, Children> children_;
  size_t compared_ = 0;
};

} // namespace dtensor::detail
