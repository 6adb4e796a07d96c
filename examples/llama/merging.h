// SPDX-License-Identifier: BSD-3-Clause
// Merges letters to tokens as sentencepiece does. Among all adjacent pairs that
// form a token, the pair with the highest score is merged first. Among pairs of
// equal score, the leftmost is merged first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <queue>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace llama {

/// A token made of merged letters.
struct MergedToken {
  int64_t number;
  double score;
  bool is_unused; // an intermediate token, split again at the end
};
using MergedTokens = std::unordered_map<std::string, MergedToken>;

/// State of merging one text.
class Merging {
 public:
  explicit Merging(const MergedTokens& tokens) : tokens_(tokens) {}

  /// Appends a letter. A fixed letter is never merged.
  void add(std::string_view letter, bool is_fixed) {
    const auto here = static_cast<int64_t>(parts_.size());
    if (here > 0) {
      parts_.back().behind = here;
    }
    parts_.push_back({text_.size(), letter.size(), here - 1, -1, is_fixed});
    text_ += letter;
  }

  /// Merges, then calls use(piece) for each remaining piece. Unused tokens are
  /// split again.
  template <class Use>
  void finish(const Use& use) {
    for (size_t i = 1; i < parts_.size(); ++i) {
      consider(static_cast<int64_t>(i) - 1, static_cast<int64_t>(i));
    }
    while (!pairs_.empty()) {
      const auto pair = pairs_.top();
      pairs_.pop();
      merge(pair);
    }
    for (int64_t i = parts_.empty() ? -1 : 0; i >= 0; i = part(i).behind) {
      hand_out(text_.substr(part(i).begin, part(i).length), use);
    }
  }

 private:
  // A part of the text, in a doubly linked list.
  struct Part {
    size_t begin = 0;
    size_t length = 0; // 0: merged into the preceding part
    int64_t before = -1;
    int64_t behind = -1;
    bool is_fixed = false;
  };
  // A pair that may be merged. The top of the queue is merged first.
  struct Pair {
    double score;
    int64_t left;
    int64_t right;
    size_t length; // of both; the pair is outdated if a part has changed
    friend bool operator<(const Pair& a, const Pair& b) {
      return a.score < b.score || (a.score == b.score && a.left > b.left);
    }
  };

  Part& part(int64_t i) {
    return parts_[static_cast<size_t>(i)];
  }

  void consider(int64_t left, int64_t right) {
    if (left < 0 || right < 0 || part(left).is_fixed || part(right).is_fixed) {
      return;
    }
    const auto length = part(left).length + part(right).length;
    const auto text = text_.substr(part(left).begin, length);
    const auto found = tokens_.find(text);
    if (found == tokens_.end()) {
      return;
    }
    pairs_.push({found->second.score, left, right, length});
    if (found->second.is_unused) {
      made_of_[text] = part(left).length;
    }
  }

  void merge(const Pair& pair) {
    auto& left = part(pair.left);
    auto& right = part(pair.right);
    if (left.length == 0 || right.length == 0 ||
        left.length + right.length != pair.length) {
      return;
    }
    left.length = pair.length;
    right.length = 0;
    left.behind = right.behind;
    if (right.behind >= 0) {
      part(right.behind).before = pair.left;
    }
    consider(left.before, pair.left);
    consider(pair.left, left.behind);
  }

  template <class Use>
  void hand_out(const std::string& piece, const Use& use) const {
    const auto found = made_of_.find(piece);
    if (found == made_of_.end()) {
      use(piece);
      return;
    }
    hand_out(piece.substr(0, found->second), use);
    hand_out(piece.substr(found->second), use);
  }

  const MergedTokens& tokens_;
  std::string text_;
  std::vector<Part> parts_;
  std::priority_queue<Pair> pairs_;
  std::unordered_map<std::string, size_t> made_of_; // length of the left part
};

} // namespace llama
