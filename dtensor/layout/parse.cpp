// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/layout/text.h>

#include <dtensor/error.h>
#include <dtensor/shortened_impl.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <numeric>
#include <utility>

namespace dtensor {
namespace {

// Limits on parsed layouts, far above any real cluster. Memory and time grow
// with the number of ranks and the number of blocks of strided shards.
constexpr int64_t kMaxRanks = int64_t{1} << 17;
constexpr int64_t kMaxPieces = int64_t{1} << 14; // per tensor dimension
constexpr size_t kMaxDims = 64;
constexpr int64_t kMaxElements = int64_t{1} << 56;

// A cursor over the text, with error messages. Skips blanks between words.
class Reader {
 public:
  Reader(std::string_view text, const char* where, const char* notation)
      : text_(text),
        where_(where),
        notation_(notation) {}

  bool at_end() {
    skip_blanks();
    return position_ == text_.size();
  }

  /// Consumes `word` if it comes next.
  bool accept(std::string_view word) {
    skip_blanks();
    if (!rest().starts_with(word)) {
      return false;
    }
    position_ += word.size();
    return true;
  }

  void expect(std::string_view word) {
    if (!accept(word)) {
      fail(detail::format_text("\"{}\"", word));
    }
  }

  /// Consumes the text up to the next blank or mark, possibly none.
  std::string_view word() {
    skip_blanks();
    const std::string_view taken =
        rest().substr(0, rest().find_first_of(kMarks));
    position_ += taken.size();
    return taken;
  }

  int64_t number(const char* what) {
    skip_blanks();
    int64_t value = 0;
    const char* begin = rest().data();
    const auto [end, error] =
        std::from_chars(begin, begin + rest().size(), value);
    if (error != std::errc()) {
      fail(what);
    }
    position_ += static_cast<size_t>(end - begin);
    return value;
  }

  size_t position() {
    skip_blanks();
    return position_;
  }
  void go_to(size_t position) {
    position_ = position;
  }

  [[noreturn]] void fail_at(size_t position, const std::string& expected) {
    go_to(position);
    fail(expected);
  }

  [[noreturn]] void fail(const std::string& expected) {
    skip_blanks();
    DTENSOR_THROW_VALUE(
        "[{}] expected {} at position {}: \"{}\". Write {}.",
        where_,
        expected,
        position_,
        detail::shortened(text_),
        notation_);
  }

 private:
  static constexpr std::string_view kMarks = " \t\n[](),;:=";

  std::string_view rest() const {
    return text_.substr(position_);
  }

  void skip_blanks() {
    constexpr std::string_view kBlanks = " \t\n";
    while (position_ < text_.size() &&
           kBlanks.find(text_[position_]) != std::string_view::npos) {
      ++position_;
    }
  }

  std::string_view text_;
  size_t position_ = 0;
  const char* where_;
  const char* notation_;
};

at::ScalarType read_dtype(Reader& reader) {
  const size_t begin = reader.position();
  const std::string_view name = reader.word();
  for (int i = 0; i < static_cast<int>(at::ScalarType::NumOptions); ++i) {
    const auto dtype = static_cast<at::ScalarType>(i);
    if (dtype != at::ScalarType::Undefined && short_name(dtype) == name) {
      return dtype;
    }
  }
  reader.fail_at(begin, "a dtype such as f32, bf16 or i64");
}

int64_t
read_number(Reader& reader, int64_t least, int64_t most, const char* what) {
  const size_t begin = reader.position();
  const int64_t value = reader.number(what);
  if (value < least || most < value) {
    reader.fail_at(begin, what);
  }
  return value;
}

Sizes read_sizes(Reader& reader, const char* what) {
  Sizes sizes;
  do {
    if (sizes.size() == kMaxDims) {
      reader.fail(detail::format_text("at most {} dimensions", kMaxDims));
    }
    sizes.push_back(read_number(reader, 0, kMaxElements, what));
  } while (reader.accept(","));
  return sizes;
}

// Checks two element counts against kMaxElements: the product of the sizes, and
// the distance from the first to the last element in memory. A size of 0 counts
// as 1.
void check_extent(Reader& reader, size_t begin, const ParsedSpec& spec) {
  int64_t remaining = kMaxElements;
  int64_t reach = 0;
  for (size_t d = 0; d < spec.sizes.size(); ++d) {
    const auto size = std::max<int64_t>(spec.sizes[d], 1);
    const auto stride = std::max<int64_t>(spec.strides[d], 1);
    remaining /= size;
    if (remaining == 0 || size - 1 > (kMaxElements - reach) / stride) {
      reader.fail_at(
          begin,
          detail::format_text("a shape of at most {} elements", kMaxElements));
    }
    reach += (size - 1) * stride;
  }
}

// "[8, 6]", "[8, 6; 1, 8]" or "[]"
void read_shape(Reader& reader, ParsedSpec& spec) {
  const size_t begin = reader.position();
  reader.expect("[");
  if (reader.accept("]")) {
    return;
  }
  spec.sizes = read_sizes(reader, "a size");
  spec.strides.assign(spec.sizes.size(), 1);
  check_extent(reader, begin, spec);
  spec.strides = dtensor::contiguous_strides(spec.sizes);
  if (reader.accept(";")) {
    spec.strides = read_sizes(reader, "a stride");
    if (spec.strides.size() != spec.sizes.size()) {
      reader.fail(c10::str(spec.sizes.size(), " strides"));
    }
    check_extent(reader, begin, spec);
  }
  reader.expect("]");
}

// "dp=2" or "2"
void read_mesh_dim(Reader& reader, ParsedSpec& spec) {
  const size_t begin = reader.position();
  const std::string_view name = reader.word();
  const bool is_named = !name.empty() && reader.accept("=");
  const bool is_first = spec.mesh_shape.empty();
  if (!is_first && is_named == spec.mesh_dim_names.empty()) {
    reader.fail_at(begin, "names for all mesh dimensions or for none");
  }
  if (is_named) {
    spec.mesh_dim_names.emplace_back(name);
  } else {
    reader.go_to(begin);
  }
  spec.mesh_shape.push_back(read_number(
      reader, 1, INT64_MAX, "the positive size of a mesh dimension"));
}

// "(dp=2, tp=4)"
void read_mesh(Reader& reader, ParsedSpec& spec) {
  const size_t begin = reader.position();
  int64_t remaining = kMaxRanks;
  reader.expect("(");
  do {
    read_mesh_dim(reader, spec);
    remaining /= spec.mesh_shape.back();
    if (remaining == 0 || spec.mesh_shape.size() > kMaxDims) {
      reader.fail_at(
          begin,
          detail::format_text(
              "a mesh of at most {} ranks and {} dimensions",
              kMaxRanks,
              kMaxDims));
    }
  } while (reader.accept(","));
  reader.expect(")");
}

// "sf=4"
int64_t read_named(
    Reader& reader,
    std::string_view name,
    int64_t most,
    const char* what) {
  reader.expect(name);
  reader.expect("=");
  return read_number(reader, 1, most, what);
}

Placement read_shard(Reader& reader, bool is_strided) {
  reader.expect("(");
  const int64_t dim =
      read_number(reader, INT32_MIN, INT32_MAX, "a tensor dimension");
  int64_t split_factor = 1;
  if (is_strided) {
    reader.expect(",");
    const size_t begin = reader.position();
    split_factor =
        read_named(reader, "sf", INT64_MAX, "a positive split factor");
    if (split_factor > kMaxPieces) {
      reader.fail_at(begin, c10::str("a split factor of at most ", kMaxPieces));
    }
  }
  const int64_t unit = reader.accept(",")
      ? read_named(reader, "u", kMaxElements, "a positive unit")
      : 1;
  reader.expect(")");
  return is_strided ? StridedShard(dim, split_factor, unit) : Shard(dim, unit);
}

Placement read_partial(Reader& reader) {
  reader.expect("(");
  const size_t begin = reader.position();
  const std::string_view name = reader.word();
  for (int i = 0; i <= static_cast<int>(ReduceOp::kBxor); ++i) {
    const auto op = static_cast<ReduceOp>(i);
    if (to_string(op) == name) {
      reader.expect(")");
      return Partial(op);
    }
  }
  reader.fail_at(begin, "sum, avg, min, max, product, band, bor or bxor");
}

Placement read_placement(Reader& reader) {
  const size_t begin = reader.position();
  const std::string_view kind = reader.word();
  if (kind == "R") {
    return Replicate();
  }
  if (kind == "S" || kind == "SS") {
    return read_shard(reader, kind == "SS");
  }
  if (kind == "P") {
    return read_partial(reader);
  }
  reader.fail_at(begin, "R, S(dim), S(dim, u=unit), SS(dim, sf=n) or P(op)");
}

// "S(0) P(sum)" or "S(0), P(sum)", to the end of the text
Placements read_placements(Reader& reader) {
  Placements placements;
  while (!reader.at_end()) {
    if (!placements.empty()) {
      reader.accept(",");
    }
    placements.push_back(read_placement(reader));
  }
  return placements;
}

// Checks the product of the split factors: each strided placement splits every
// block of the placements before it.
void check_pieces(Reader& reader, size_t begin, PlacementsRef placements) {
  int64_t remaining = kMaxPieces;
  for (const auto& placement : placements) {
    remaining /= placement.is_sharded() ? placement.split_factor() : 1;
    if (remaining == 0) {
      reader.fail_at(
          begin,
          c10::str("split factors whose product is at most ", kMaxPieces));
    }
  }
}

} // namespace

Placements parse_placements(std::string_view text) {
  Reader reader(text, "parse_placements", "placements as S(0) P(sum)");
  return read_placements(reader);
}

ParsedSpec parse_spec(std::string_view text) {
  Reader reader(
      text, "parse_spec", "layouts as f32[8, 6] on (dp=2, tp=4): S(0) P(sum)");
  ParsedSpec spec;
  spec.dtype = read_dtype(reader);
  read_shape(reader, spec);
  reader.expect("on");
  read_mesh(reader, spec);
  reader.expect(":");
  const size_t begin = reader.position();
  spec.placements = read_placements(reader);
  check_pieces(reader, begin, spec.placements);
  return spec;
}

SpecPtr ParsedSpec::spec(int64_t rank) const {
  std::vector<int64_t> ranks(static_cast<size_t>(numel(mesh_shape)));
  std::iota(ranks.begin(), ranks.end(), int64_t{0});
  const DeviceMesh mesh(
      at::kCPU, mesh_shape, std::move(ranks), mesh_dim_names, rank);
  return Spec::make(mesh, placements, sizes, strides, dtype, "parse_spec");
}

} // namespace dtensor
