// SPDX-License-Identifier: BSD-3-Clause
// Interprets a pickle's instructions on a stack of nodes. A node stands for an
// object. It records only the objects that the object contains, and the
// positions of constants in the pickle. LibTorch's reader represents a function
// by an integer, so a pickle could call functions that it does not name.
// Therefore the kinds of nodes are checked.
#include <dtensor/program/sample_inputs_impl.h>

#include <dtensor/weights/json_document_impl.h>

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace dtensor::detail {
namespace {

class Pickle {
 public:
  Pickle(std::string_view bytes, const RecordSizes& records)
      : bytes_(bytes),
        records_(records) {
    for (const auto& record : records) {
      record_bytes_ += record.second;
    }
  }

  void run() {
    while (true) {
      opcode_at_ = at_;
      const auto opcode = static_cast<uint8_t>(take_bytes(1)[0]);
      if (opcode == '.') {
        return;
      }
      if (!read_constant(opcode) && !read_memo(opcode) &&
          !read_object(opcode)) {
        refuse_pickle(
            "byte {} of its pickle is opcode {}, which torch.save() does not "
            "write",
            opcode_at_,
            static_cast<int>(opcode));
      }
    }
  }

  const std::vector<PickledObject>& nodes() const {
    return nodes_;
  }

 private:
  std::string_view take_bytes(uint64_t count) {
    if (count > bytes_.size() - at_) {
      refuse_pickle("its pickle ends early");
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

  std::string_view take_line() {
    const auto end = bytes_.find('\n', at_);
    if (end == std::string_view::npos) {
      refuse_pickle("its pickle ends early");
    }
    return take_bytes(end + 1 - at_);
  }

  // Returns the bytes of the instruction that was read.
  std::string_view instruction() const {
    return bytes_.substr(opcode_at_, at_ - opcode_at_);
  }

  PickledItem pop() {
    const auto item = top();
    stack_.pop_back();
    return item;
  }

  const PickledItem& top() const {
    if (stack_.empty() || stack_.back().node == kMark) {
      refuse_pickle("its pickle pops from an empty stack");
    }
    return stack_.back();
  }

  // Returns the last items of the stack in their order.
  std::vector<PickledItem> pop_many(size_t count) {
    std::vector<PickledItem> items(count);
    for (size_t i = count; i-- > 0;) {
      items[i] = pop();
    }
    return items;
  }

  std::vector<PickledItem> pop_to_mark() {
    const auto mark = std::find_if(
        stack_.rbegin(), stack_.rend(), [](const PickledItem& item) {
          return item.node == kMark;
        });
    if (mark == stack_.rend()) {
      refuse_pickle("its pickle pops from an empty stack");
    }
    std::vector<PickledItem> items(mark.base(), stack_.end());
    stack_.erase(mark.base() - 1, stack_.end());
    return items;
  }

  void push_new(PickledKind kind, std::vector<PickledItem> held) {
    if (nodes_.size() > kMaxPickledObjects) {
      refuse_pickle("its pickle has more than {} objects", kMaxPickledObjects);
    }
    nodes_.push_back({kind, std::move(held)});
    stack_.push_back({static_cast<PickleNode>(nodes_.size() - 1), {}});
  }

  // Appends the items in `held` to the container below them on the stack.
  void put(PickledKind kind, const std::vector<PickledItem>& held) {
    auto& into = nodes_[top().node];
    if (into.kind != kind) {
      refuse_pickle(
          "its pickle adds items to an object that is not a container");
    }
    into.held.insert(into.held.end(), held.begin(), held.end());
  }

  // Returns the number of bytes after the opcode of a constant; nothing for
  // other opcodes.
  std::optional<uint64_t> constant_bytes(uint8_t opcode) {
    switch (opcode) {
      case 'N':
      case 0x88: // True
      case 0x89: // False
        return 0;
      case 'K':
        return 1;
      case 'M':
        return 2;
      case 'J':
        return 4;
      case 'G':
        return 8;
      case 0x8a: // LONG1
      case 0x8c: // SHORT_BINUNICODE
      case 'U':
        return number<uint8_t>();
      case 'X':
      case 'T':
        return number<uint32_t>();
      default:
        return std::nullopt;
    }
  }

  bool read_constant(uint8_t opcode) {
    if (opcode == 0x80) { // PROTO
      take_bytes(1);
      return true;
    }
    if (opcode == 'c') {
      take_name();
    } else if (const auto count = constant_bytes(opcode)) {
      take_bytes(*count);
    } else {
      return false;
    }
    stack_.push_back({kLeaf, instruction()});
    return true;
  }

  // Checks the index of a memo entry. LibTorch's reader allocates memory up to
  // the index, so the index must be small.
  bool read_memo(uint8_t opcode) {
    if (opcode == 'q' || opcode == 'r') {
      const size_t index =
          opcode == 'q' ? number<uint8_t>() : number<uint32_t>();
      if (index > bytes_.size()) {
        refuse_pickle(
            c10::str("its pickle has a memo index out of range: ", index));
      }
      memo_[index] = top();
      return true;
    }
    if (opcode == 'h' || opcode == 'j') {
      const size_t index =
          opcode == 'h' ? number<uint8_t>() : number<uint32_t>();
      const auto found = memo_.find(index);
      if (found == memo_.end()) {
        refuse_pickle(
            c10::str("its pickle reads an undefined memo index: ", index));
      }
      stack_.push_back(found->second);
      return true;
    }
    return false;
  }

  bool read_object(uint8_t opcode) {
    switch (opcode) {
      case '(':
        stack_.push_back({kMark, {}});
        return true;
      case ')':
        push_new(PickledKind::kTuple, {});
        return true;
      case ']':
        push_new(PickledKind::kList, {});
        return true;
      case '}':
        push_new(PickledKind::kDict, {});
        return true;
      case 'Q':
        read_storage(pop());
        push_new(PickledKind::kOther, {});
        return true;
      case 0x85:
      case 0x86:
      case 0x87: // tuples of one to three
        push_new(PickledKind::kTuple, pop_many(opcode - 0x84));
        return true;
      case 'R':
        read_call(pop_many(2));
        return true;
      case 't':
        push_new(PickledKind::kTuple, pop_to_mark());
        return true;
      case 'l':
        push_new(PickledKind::kList, pop_to_mark());
        return true;
      case 'd':
        push_new(PickledKind::kDict, pop_to_mark());
        return true;
      default:
        return read_update(opcode);
    }
  }

  // Adds items to the object below them.
  bool read_update(uint8_t opcode) {
    switch (opcode) {
      case 'a':
        put(PickledKind::kList, pop_many(1));
        return true;
      case 'e':
        put(PickledKind::kList, pop_to_mark());
        return true;
      case 's':
        put(PickledKind::kDict, pop_many(2));
        return true;
      case 'u':
        put(PickledKind::kDict, pop_to_mark());
        return true;
      default:
        return false;
    }
  }

  void take_name() {
    take_line();
    take_line();
    const auto name = *pickled_name(instruction());
    if (!is_pickled_function(name) && !storage_item_bytes(name)) {
      const auto line = name.find('\n');
      refuse_pickle(
          "its pickle contains an object of type " +
          shown_name(c10::str(
              name.substr(0, line),
              ".",
              name.substr(line + 1, name.size() - line - 2))) +
          ", which is not supported");
    }
  }

  void read_call(const std::vector<PickledItem>& items) {
    const auto name = pickled_name(items[0].constant);
    if (!name || !is_pickled_function(*name)) {
      refuse_pickle("its pickle calls an object that is not a function");
    }
    push_new(PickledKind::kOther, {items[1]});
  }

  // Checks ("storage", torch.FloatStorage, "0", "cpu", 8) against the record of
  // the storage. LibTorch's reader does not check the number of elements.
  void read_storage(const PickledItem& item) {
    const auto& about = nodes_[item.node].held;
    const bool is_storage = nodes_[item.node].kind == PickledKind::kTuple &&
        about.size() == 5 && pickled_text(about[0].constant) == "storage";
    const auto type =
        is_storage ? pickled_name(about[1].constant) : std::nullopt;
    const auto item_bytes = type ? storage_item_bytes(*type) : std::nullopt;
    const auto key =
        is_storage ? pickled_text(about[2].constant) : std::nullopt;
    const auto elements =
        is_storage ? pickled_integer(about[4].constant) : std::nullopt;
    if (!item_bytes || !key || !elements) {
      refuse_pickle("its pickle has a tensor without a storage");
    }
    const auto found = records_.find(c10::str("data/", *key));
    const auto bytes = found == records_.end() ? 0 : found->second;
    if (bytes % *item_bytes != 0 || *elements != bytes / *item_bytes) {
      refuse_pickle(
          "the record of storage {} has {} bytes, but its pickle expects {} "
          "elements of {} bytes",
          shown_name(*key),
          bytes,
          *elements,
          *item_bytes);
    }
    storage_bytes_ += bytes;
    if (storage_bytes_ > kMaxStorageBytes + kMostStorageUses * record_bytes_) {
      refuse_pickle("its pickle reads the same storages too often");
    }
  }

  std::string_view bytes_;
  const RecordSizes& records_;
  size_t at_ = 0;
  size_t opcode_at_ = 0;
  uint64_t record_bytes_ = 0;
  uint64_t storage_bytes_ = 0; // that LibTorch's reader copies
  std::vector<PickledItem> stack_;
  std::map<size_t, PickledItem> memo_;
  std::vector<PickledObject> nodes_ = {{}}; // nodes_[kLeaf] is empty
};

} // namespace

std::string pickle_problem(std::string_view bytes, const RecordSizes& records) {
  try {
    Pickle pickle(bytes, records);
    pickle.run();
    check_reach(pickle.nodes(), bytes.size());
    return "";
  } catch (const PickleProblem& problem) {
    return problem.what();
  }
}

} // namespace dtensor::detail
