// SPDX-License-Identifier: BSD-3-Clause
// PlanMatches: the modules that the patterns of a plan name.
#pragma once

#include <torch/ordered_dict.h>

#include <cstddef>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace torch::nn {
class Module;
}

namespace dtensor::detail {

struct Match {
  std::shared_ptr<torch::nn::Module> owner; // keeps `module` alive
  torch::nn::Module* module;
  std::string name;
};

/// Finds the modules of all patterns of one plan. The names of a module's
/// children are read once. A part of a pattern without *, ? and [ is looked up,
/// so a plan with a line for each module costs in proportion to its lines.
class PlanMatches {
 public:
  explicit PlanMatches(torch::nn::Module& root) : root_(root) {}

  /// Throws ValueError for a pattern that matches nothing, naming what exists
  /// at the deepest level that it reached.
  std::vector<Match> find(const std::string& pattern);

  /// Names of children that were compared with a pattern so far.
  size_t compared() const {
    return compared_;
  }

 private:
  using Children =
      torch::OrderedDict<std::string, std::shared_ptr<torch::nn::Module>>;
  struct Miss {
    size_t depth = 0;
    std::vector<std::string> names;
  };

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
