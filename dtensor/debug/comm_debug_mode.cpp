// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/debug/comm_debug_mode.h>

#include <algorithm>
#include <array>
#include <ostream>
#include <sstream>

namespace dtensor {
namespace {

constexpr size_t kColumns = 7;
using Row = std::array<std::string, kColumns>;

template <class Number>
std::string text_of(Number number) {
  std::ostringstream text;
  text.precision(15);
  text << number;
  return text.str();
}

const char* pass_of(const CommRecord& r) {
  return r.backward ? "backward" : "forward";
}

Row row_of(const CommRecord& r) {
  return {
      r.module.empty() ? "-" : r.module,
      pass_of(r),
      std::string(to_string(r.kind)),
      r.mesh_dim,
      text_of(r.count),
      text_of(r.payload_bytes),
      text_of(r.wire_bytes)};
}

// Words to the left, numbers to the right.
std::string aligned(const std::vector<Row>& rows) {
  constexpr size_t kFirstNumber = 4;
  std::array<size_t, kColumns> width{};
  for (const auto& row : rows) {
    for (size_t c = 0; c < kColumns; ++c) {
      width[c] = std::max(width[c], row[c].size());
    }
  }
  std::string text;
  for (const auto& row : rows) {
    for (size_t c = 0; c < kColumns; ++c) {
      const std::string fill(width[c] - row[c].size(), ' ');
      text += c == 0 ? "" : "  ";
      text += c < kFirstNumber ? row[c] + fill : fill + row[c];
    }
    text += '\n';
  }
  return text;
}

std::string quoted(const std::string& text) {
  constexpr const char* kHex = "0123456789abcdef";
  std::string json = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      json += '\\';
      json += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      json += "\\u00";
      json += kHex[c / 16];
      json += kHex[c % 16];
    } else {
      json += c;
    }
  }
  return json + '"';
}

std::string json_of(const CommRecord& r) {
  return "{\"module\": " + quoted(r.module) + ", \"pass\": \"" + pass_of(r) +
      "\", \"kind\": \"" + std::string(to_string(r.kind)) +
      "\", \"mesh_dim\": " + quoted(r.mesh_dim) +
      ", \"count\": " + text_of(r.count) +
      ", \"payload_bytes\": " + text_of(r.payload_bytes) +
      ", \"wire_bytes\": " + text_of(r.wire_bytes) + "}";
}

bool fits(const CommRecord& r, const CommFilter& filter) {
  return (!filter.kind || *filter.kind == r.kind) &&
      (!filter.mesh_dim || *filter.mesh_dim == r.mesh_dim) &&
      (!filter.module || *filter.module == r.module) &&
      (!filter.backward || *filter.backward == r.backward);
}

} // namespace

void CommDebugMode::on_collective(const CollectiveEvent& event) {
  const auto same = [&](const CommRecord& r) {
    return r.kind == event.kind && r.backward == event.backward &&
        r.module == event.module && r.mesh_dim == event.label;
  };
  auto it = std::find_if(records_.begin(), records_.end(), same);
  if (it == records_.end()) {
    CommRecord record;
    record.module = event.module;
    record.backward = event.backward;
    record.kind = event.kind;
    record.mesh_dim = event.label;
    it = records_.insert(it, std::move(record));
  }
  it->count += 1;
  it->payload_bytes += event.payload_bytes;
  it->wire_bytes += event.wire_bytes;
}

int64_t CommDebugMode::get_total_counts() const {
  return total().count;
}

std::map<CollectiveKind, int64_t> CommDebugMode::get_comm_counts() const {
  std::map<CollectiveKind, int64_t> counts;
  for (const auto& r : records_) {
    counts[r.kind] += r.count;
  }
  return counts;
}

CommTotal CommDebugMode::total(const CommFilter& filter) const {
  CommTotal sum;
  for (const auto& r : records_) {
    if (fits(r, filter)) {
      sum.count += r.count;
      sum.payload_bytes += r.payload_bytes;
      sum.wire_bytes += r.wire_bytes;
    }
  }
  return sum;
}

void CommDebugMode::reset() {
  records_.clear();
}

std::string CommDebugMode::generate_comm_debug_tracing_table() const {
  std::vector<Row> rows = {
      {"module", "pass", "collective", "mesh dim", "count", "bytes", "sent"}};
  for (const auto& r : records_) {
    rows.push_back(row_of(r));
  }
  const auto sum = total();
  rows.push_back(
      {"total",
       "",
       "",
       "",
       text_of(sum.count),
       text_of(sum.payload_bytes),
       text_of(sum.wire_bytes)});
  return aligned(rows);
}

std::string CommDebugMode::generate_json_dump() const {
  std::string json = "[";
  for (const auto& r : records_) {
    json += (json.size() == 1 ? "\n  " : ",\n  ") + json_of(r);
  }
  return json + "\n]\n";
}

std::ostream& operator<<(std::ostream& os, const CommDebugMode& m) {
  return os << m.generate_comm_debug_tracing_table();
}

} // namespace dtensor
