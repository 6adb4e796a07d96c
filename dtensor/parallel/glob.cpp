// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/parallel/glob_impl.h>

namespace dtensor {
namespace {

// The end of the set that starts after '[' at `begin`; npos if it never ends.
size_t end_of_set(std::string_view pattern, size_t begin) {
  const bool negated = begin < pattern.size() && pattern[begin] == '!';
  return pattern.find(']', begin + (negated ? 2 : 1)); // "[]a]" holds ']'
}

// Whether `c` is in a set such as "a-z_" or "!0-9".
bool in_set(std::string_view set, char c) {
  const bool negated = set.front() == '!';
  set.remove_prefix(negated ? 1 : 0);
  bool found = false;
  for (size_t i = 0; i < set.size(); ++i) {
    const bool range = i + 2 < set.size() && set[i + 1] == '-';
    found |= range ? set[i] <= c && c <= set[i + 2] : set[i] == c;
    i += range ? 2 : 0;
  }
  return found != negated;
}

} // namespace

bool detail::matches_glob(std::string_view pattern, std::string_view name) {
  if (pattern.empty()) {
    return name.empty();
  }
  if (pattern[0] == '*') {
    return matches_glob(pattern.substr(1), name) ||
        (!name.empty() && matches_glob(pattern, name.substr(1)));
  }
  if (name.empty()) {
    return false;
  }
  const auto end =
      pattern[0] == '[' ? end_of_set(pattern, 1) : std::string_view::npos;
  if (end != std::string_view::npos) {
    return in_set(pattern.substr(1, end - 1), name[0]) &&
        matches_glob(pattern.substr(end + 1), name.substr(1));
  }
  return (pattern[0] == '?' || pattern[0] == name[0]) &&
      matches_glob(pattern.substr(1), name.substr(1));
}

} // namespace dtensor
