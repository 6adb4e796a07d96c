// SPDX-License-Identifier: BSD-3-Clause
// Interprets a pickle's instructions on a stack of nodes. A node stands for an
// object and records only the objects that it contains.
#include <dtensor/program/sample_inputs_impl.h>

#include <c10/util/StringUtil.h>
#include <dtensor/format_text.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <stdexcept>
#include <utility>
#include <vector>

namespace dtensor::detail {
namespace {

using Node = uint32_t; // index in Pickle::held_
constexpr Node kLeaf = 0;
constexpr Node kMark = UINT32_MAX;

// An exception with the problem as its text.
class PickleProblem final : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

[[noreturn]] void refuse(const std::string& why) {
  throw PickleProblem(why);
}

class Pickle {
 public:
  explicit Pickle(std::string_view bytes) : bytes_(bytes) {}

  void run() {
    while (true) {
      const auto opcode = static_cast<uint8_t>(take_bytes(1)[0]);
      if (opcode == '.') {
        return;
      }
      if (!read_constant(opcode) && !read_memo(opcode) &&
          !read_object(opcode)) {
        refuse(detail::format_text(
            "byte {} of its pickle is opcode {}, which torch.save() does not "
            "write",
            at_,
            static_cast<int>(opcode)));
      }
    }
  }

  // Checks the length of the longest path down from each node, without
  // recursion.
  void check_depth() const {
    std::vector<uint32_t> depths(held_.size(), 0); // 0: not known
    std::vector<bool> is_open(held_.size(), false);
    std::vector<std::pair<Node, size_t>> way;
    for (Node root = 0; root < held_.size(); ++root) {
      way.emplace_back(root, 0);
      while (!way.empty()) {
        auto& [node, next] = way.back();
        is_open[node] = true;
        if (depths[node] != 0 || next == held_[node].size()) {
          close(node, depths);
          is_open[node] = false;
          way.pop_back();
          continue;
        }
        const auto child = held_[node][next++];
        if (is_open[child]) {
          refuse("an object of its pickle contains itself");
        }
        if (depths[child] == 0) {
          way.emplace_back(child, 0);
        }
      }
    }
  }

 private:
  void close(Node node, std::vector<uint32_t>& depths) const {
    uint32_t below = 0;
    for (const auto child : held_[node]) {
      below = std::max(below, depths[child]);
    }
    depths[node] = below + 1;
    if (below > kMaxPickleDepth) {
      refuse(detail::format_text(
          "its pickle has more than {} nested levels", kMaxPickleDepth));
    }
  }

  std::string_view take_bytes(uint64_t count) {
    if (count > bytes_.size() - at_) {
      refuse("its pickle ends early");
    }
    at_ += count;
    return bytes_.substr(at_ - count, count);
  }

  template <class Number>
  Number number() {
    Number value{};
    std::memcpy(&value, take_bytes(sizeof(Number)).data(), sizeof(Number));
    return value;
  }

  void skip_line() {
    const auto end = bytes_.find('\n', at_);
    if (end == std::string_view::npos) {
      refuse("its pickle ends early");
    }
    at_ = end + 1;
  }

  void push(Node node) {
    stack_.push_back(node);
  }

  Node pop() {
    if (stack_.empty() || stack_.back() == kMark) {
      refuse("its pickle pops from an empty stack");
    }
    const auto node = stack_.back();
    stack_.pop_back();
    return node;
  }

  Node& top() {
    if (stack_.empty() || stack_.back() == kMark) {
      refuse("its pickle pops from an empty stack");
    }
    return stack_.back();
  }

  std::vector<Node> pop_many(size_t count) {
    std::vector<Node> nodes;
    for (size_t i = 0; i < count; ++i) {
      nodes.push_back(pop());
    }
    return nodes;
  }

  std::vector<Node> pop_to_mark() {
    const auto mark = std::find(stack_.rbegin(), stack_.rend(), kMark);
    if (mark == stack_.rend()) {
      refuse("its pickle pops from an empty stack");
    }
    std::vector<Node> nodes(mark.base(), stack_.end());
    stack_.erase(mark.base() - 1, stack_.end());
    return nodes;
  }

  void push_new(std::vector<Node> held) {
    if (held_.size() > kMaxPickledObjects) {
      refuse(detail::format_text(
          "its pickle has more than {} objects", kMaxPickledObjects));
    }
    held_.push_back(std::move(held));
    push(static_cast<Node>(held_.size() - 1));
  }

  // Puts the nodes in `held` into the object below them on the stack.
  void put(const std::vector<Node>& held) {
    const auto into = top();
    if (into == kLeaf) {
      refuse("its pickle adds items to an object that is not a container");
    }
    held_[into].insert(held_[into].end(), held.begin(), held.end());
  }

  bool read_constant(uint8_t opcode) {
    switch (opcode) {
      case 0x80: // PROTO
        take_bytes(1);
        return true;
      case 'N':
      case 0x88: // True
      case 0x89: // False
        break;
      case 'K':
        take_bytes(1);
        break;
      case 'M':
        take_bytes(2);
        break;
      case 'J':
        take_bytes(4);
        break;
      case 'G':
        take_bytes(8);
        break;
      case 0x8a: // LONG1
      case 0x8c: // SHORT_BINUNICODE
      case 'U':
        take_bytes(number<uint8_t>());
        break;
      case 'X':
      case 'T':
        take_bytes(number<uint32_t>());
        break;
      case 'c':
        skip_line();
        skip_line();
        break;
      default:
        return false;
    }
    push(kLeaf);
    return true;
  }

  // Checks the index of a memo entry. LibTorch's reader allocates up to the
  // index, so it must not be far.
  bool read_memo(uint8_t opcode) {
    if (opcode == 'q' || opcode == 'r') {
      const size_t index =
          opcode == 'q' ? number<uint8_t>() : number<uint32_t>();
      if (index > bytes_.size()) {
        refuse(c10::str("its pickle has a memo index out of range: ", index));
      }
      memo_[index] = top();
      return true;
    }
    if (opcode == 'h' || opcode == 'j') {
      const size_t index =
          opcode == 'h' ? number<uint8_t>() : number<uint32_t>();
      const auto found = memo_.find(index);
      if (found == memo_.end()) {
        refuse(c10::str("its pickle reads an undefined memo index: ", index));
      }
      push(found->second);
      return true;
    }
    return false;
  }

  bool read_object(uint8_t opcode) {
    switch (opcode) {
      case '(':
        push(kMark);
        return true;
      case ']':
      case '}':
      case ')':
        push_new({});
        return true;
      case 'Q': // a tensor's storage
        push_new(pop_many(1));
        return true;
      case 0x85:
      case 0x86:
      case 0x87: // tuples of one to three
        push_new(pop_many(opcode - 0x84));
        return true;
      case 'R':  // a call
      case 0x81: // a new object
        push_new(pop_many(2));
        return true;
      case 't':
      case 'l':
      case 'd':
        push_new(pop_to_mark());
        return true;
      default:
        return read_update(opcode);
    }
  }

  // Adds items to the object below them.
  bool read_update(uint8_t opcode) {
    switch (opcode) {
      case 'a':
      case 'b': // an object's state
        put(pop_many(1));
        return true;
      case 's':
        put(pop_many(2));
        return true;
      case 'e':
      case 'u':
        put(pop_to_mark());
        return true;
      default:
        return false;
    }
  }

  std::string_view bytes_;
  size_t at_ = 0;
  std::vector<Node> stack_;
  std::map<size_t, Node> memo_;
  std::vector<std::vector<Node>> held_ = {{}}; // held_[kLeaf] is empty
};

} // namespace

std::string pickle_problem(std::string_view bytes) {
  try {
    Pickle pickle(bytes);
    pickle.run();
    pickle.check_depth();
    return "";
  } catch (const PickleProblem& problem) {
    return problem.what();
  }
}

} // namespace dtensor::detail
