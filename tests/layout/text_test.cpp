// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/layout/text.h>

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <gtest/gtest.h>
#include <tests/long_texts.h>

#include <random>
#include <sstream>
#include <string>
#include <vector>

namespace dtensor {
namespace TEST_SOURCE {

using Names = std::vector<std::string>;

template <typename F>
std::string value_error_of(F f) {
  try {
    f();
  } catch (const c10::ValueError& e) {
    return e.what_without_backtrace();
  }
  return "no ValueError";
}

TEST(Text, PlacementsPrintShort) {
  EXPECT_EQ(to_string(Replicate()), "R");
  EXPECT_EQ(to_string(Shard(0)), "S(0)");
  EXPECT_EQ(to_string(Shard(-1)), "S(-1)");
  EXPECT_EQ(to_string(StridedShard(1, 4)), "SS(1, sf=4)");
  EXPECT_EQ(to_string(Shard(1, 64)), "S(1, u=64)");
  EXPECT_EQ(to_string(StridedShard(0, 3, 64)), "SS(0, sf=3, u=64)");
  EXPECT_EQ(to_string(Partial("max")), "P(max)");
  EXPECT_EQ(
      to_string(PlacementsRef(Placements{Shard(0), Partial()})), "S(0) P(sum)");
}

TEST(Text, EveryPlacementReadsBack) {
  std::vector<Placement> all = {
      Replicate(),
      Shard(0),
      Shard(7),
      Shard(-2),
      StridedShard(0, 1),
      StridedShard(3, 16),
      StridedShard(-1, 2),
      Shard(1, 64),
      StridedShard(-1, 2, 64)};
  for (int op = 0; op <= static_cast<int>(ReduceOp::kBxor); ++op) {
    all.push_back(Partial(static_cast<ReduceOp>(op)));
  }
  for (const Placement& placement : all) {
    EXPECT_EQ(parse_placements(to_string(placement)), Placements{placement});
  }
  const Placements together(all.begin(), all.end());
  EXPECT_EQ(parse_placements(to_string(PlacementsRef(together))), together);
}

TEST(Text, CommasAndBlanksAreAllowedBetweenPlacements) {
  const Placements expected{Shard(0), Partial(), Replicate()};
  EXPECT_EQ(parse_placements("S(0), P(sum), R"), expected);
  EXPECT_EQ(parse_placements("  S( 0 )P( sum )\tR "), expected);
  EXPECT_EQ(parse_placements(""), Placements{});
}

TEST(Text, MeshesPrintTheirNamesAndSizes) {
  EXPECT_EQ(
      to_string(DeviceMesh(at::kCPU, {1, 2}, {0, 1}, {"dp", "tp"})),
      "(dp=1, tp=2)");
  EXPECT_EQ(to_string(DeviceMesh(at::kCPU, {1, 2}, {0, 1})), "(1, 2)");
  EXPECT_EQ(to_string(DeviceMesh()), "(no mesh)");
}

TEST(Text, DtypesPrintShort) {
  EXPECT_EQ(short_name(at::kFloat), "f32");
  EXPECT_EQ(short_name(at::kDouble), "f64");
  EXPECT_EQ(short_name(at::kBFloat16), "bf16");
  EXPECT_EQ(short_name(at::kHalf), "f16");
  EXPECT_EQ(short_name(at::kLong), "i64");
  EXPECT_EQ(short_name(at::kInt), "i32");
  EXPECT_EQ(short_name(at::kShort), "i16");
  EXPECT_EQ(short_name(at::kChar), "i8");
  EXPECT_EQ(short_name(at::kByte), "u8");
  EXPECT_EQ(short_name(at::kBool), "bool");
  EXPECT_EQ(short_name(at::kComplexFloat), "c64");
  EXPECT_EQ(short_name(at::kComplexDouble), "c128");
  EXPECT_EQ(short_name(at::kFloat8_e4m3fn), "Float8_e4m3fn");
  EXPECT_EQ(parse_spec("Float8_e4m3fn[] on (1): R").dtype, at::kFloat8_e4m3fn);
}

TEST(Text, TheNotationOfTheHeader) {
  const std::string text = "f32[8, 6] on (dp=2, tp=4): S(0) P(sum)";
  const ParsedSpec parsed = parse_spec(text);
  EXPECT_EQ(parsed.dtype, at::kFloat);
  EXPECT_EQ(parsed.sizes, (Sizes{8, 6}));
  EXPECT_EQ(parsed.strides, (Sizes{6, 1}));
  EXPECT_EQ(parsed.mesh_shape, (std::vector<int64_t>{2, 4}));
  EXPECT_EQ(parsed.mesh_dim_names, (Names{"dp", "tp"}));
  EXPECT_EQ(parsed.placements, (Placements{Shard(0), Partial()}));
  EXPECT_EQ(to_string(*parsed.spec()), text);
  std::ostringstream os;
  os << *parsed.spec(5) << " " << parsed.spec(5)->mesh() << " " << Shard(1);
  EXPECT_EQ(os.str(), text + " (dp=2, tp=4) S(1)");
  EXPECT_EQ(parsed.spec(5)->mesh().get_rank(), 5);
}

TEST(Text, LayoutsReadBack) {
  for (const std::string text : {
           "f32[] on (2): R",
           "i64[0] on (tp=3): S(0)",
           "bf16[8, 6; 1, 8] on (2, 2): SS(0, sf=2) S(0)",
           "bool[4, 1, 5] on (pp=1, dp_shard=2, tp=1): P(band) R P(band)",
       }) {
    EXPECT_EQ(to_string(*parse_spec(text).spec()), text);
  }
}

// Random layouts, from a fixed seed, round-trip. A failing layout is printed in
// the text notation.
TEST(Text, RandomLayoutsReadBack) {
  std::mt19937 random(20260101);
  const auto below = [&](int64_t n) {
    return static_cast<int64_t>(random() % static_cast<uint32_t>(n));
  };
  const std::vector<at::ScalarType> dtypes = {
      at::kFloat, at::kBFloat16, at::kLong, at::kBool, at::kComplexDouble};
  for (int repeat = 0; repeat < 1'000; ++repeat) {
    ParsedSpec parts;
    parts.dtype = dtypes[static_cast<size_t>(below(5))];
    for (int64_t d = 1 + below(4); d > 0; --d) {
      parts.sizes.push_back(below(9));
    }
    const auto ndim = static_cast<int64_t>(parts.sizes.size());
    parts.strides = dtensor::contiguous_strides(parts.sizes);
    if (below(3) == 0) {
      std::shuffle(parts.strides.begin(), parts.strides.end(), random);
    }
    const bool is_named = below(2) == 0;
    const auto op = static_cast<ReduceOp>(below(8));
    for (int64_t m = 1 + below(3); m > 0; --m) {
      parts.mesh_shape.push_back(1 + below(3));
      if (is_named) {
        parts.mesh_dim_names.push_back(c10::str("m", m));
      }
      const std::vector<Placement> choices = {
          Replicate(),
          Shard(below(2 * ndim) - ndim),
          StridedShard(below(ndim), 1 + below(4), 1 + below(3)),
          Shard(below(ndim), 1 + below(4)),
          Partial(op)};
      parts.placements.push_back(choices[static_cast<size_t>(below(5))]);
    }
    const SpecPtr spec = parts.spec();
    EXPECT_EQ(parse_spec(to_string(*spec)).spec(), spec) << *spec;
  }
}

std::string layout_error(const std::string& text) {
  const std::string error = value_error_of([&] { parse_spec(text); });
  const std::string end = ": \"" + text +
      "\". Write layouts as f32[8, 6] on (dp=2, tp=4): S(0) P(sum).";
  return error.ends_with(end) ? error.substr(0, error.size() - end.size())
                              : "unlike the others: " + error;
}

TEST(TextErrors, FullMessage) {
  EXPECT_EQ(
      value_error_of([] { parse_spec("f32[8, 6 on (2): R"); }),
      "[parse_spec] expected \"]\" at position 9: \"f32[8, 6 on (2): R\". "
      "Write layouts as f32[8, 6] on (dp=2, tp=4): S(0) P(sum).");
  EXPECT_EQ(
      value_error_of([] { parse_placements("S(0) Q"); }),
      "[parse_placements] expected R, S(dim), S(dim, u=unit), SS(dim, sf=n) "
      "or P(op) at position 5: \"S(0) Q\". Write placements as S(0) P(sum).");
}

TEST(TextErrors, PointAtTheFirstThingThatCannotBeRead) {
  const std::vector<std::pair<std::string, std::string>> table = {
      {"", "a dtype such as f32, bf16 or i64 at position 0"},
      {" f33[2] on (1): R", "a dtype such as f32, bf16 or i64 at position 1"},
      {"f32 2", "\"[\" at position 4"},
      {"f32[a] on (1): R", "a size at position 4"},
      {"f32[2, -1] on (1): R", "a size at position 7"},
      {"f32[99999999999999999999]", "a size at position 4"},
      {"f32[2; a] on (1): R", "a stride at position 7"},
      {"f32[2, 2; 1] on (1): R", "2 strides at position 11"},
      {"f32[2] at (1): R", "\"on\" at position 7"},
      {"f32[2] on 1: R", "\"(\" at position 10"},
      {"f32[2] on (): R",
       "the positive size of a mesh dimension at position 11"},
      {"f32[2] on (tp=0): R",
       "the positive size of a mesh dimension at position 14"},
      {"f32[2] on (dp=1, 2): R R",
       "names for all mesh dimensions or for none at position 17"},
      {"f32[2] on (1, tp=2): R R",
       "names for all mesh dimensions or for none at position 14"},
      {"f32[2] on (1 R", "\")\" at position 13"},
      {"f32[2] on (1) R", "\":\" at position 14"},
      {"f32[2] on (1): S", "\"(\" at position 16"},
      {"f32[2] on (1): S()", "a tensor dimension at position 17"},
      {"f32[2] on (1): S(4294967296)", "a tensor dimension at position 17"},
      {"f32[2] on (1): SS(0)", "\",\" at position 19"},
      {"f32[2] on (1): SS(0, 2)", "\"sf\" at position 21"},
      {"f32[2] on (1): SS(0, sf=0)", "a positive split factor at position 24"},
      {"f32[2] on (1): S(0, 2)", "\"u\" at position 20"},
      {"f32[2] on (1): S(0, u=0)", "a positive unit at position 22"},
      {"f32[2] on (1): SS(0, sf=2, u)", "\"=\" at position 28"},
      {"f32[2] on (1): P(mean)",
       "sum, avg, min, max, product, band, bor or bxor at position 17"},
      {"f32[2] on (1): R,",
       "R, S(dim), S(dim, u=unit), SS(dim, sf=n) or P(op) at position 17"},
      {"f32[2] on (1): RR",
       "R, S(dim), S(dim, u=unit), SS(dim, sf=n) or P(op) at position 15"},
  };
  for (const auto& [text, expected] : table) {
    EXPECT_EQ(layout_error(text), "[parse_spec] expected " + expected) << text;
  }
}

TEST(TextErrors, ALayoutThatReadsButDoesNotExist) {
  EXPECT_EQ(
      value_error_of([] { parse_spec("f32[2] on (1): R R").spec(); }),
      "[parse_spec] 2 placements for a mesh of 1 dimension: [R R] on (1). Pass "
      "one placement per mesh dimension.");
}

TEST(TextErrors, AreShort) {
  const std::string layouts[] = {
      "f32[8, 6; 1, 8] on (dp=2, tp=4): S(0) P(sum)",
      "bf16[9] on (2, 3): SS(0, sf=3, u=2), R",
      "f32[2] on (1): P(sum) P(max)"};
  for (const auto& layout : layouts) {
    for (const auto& text : test_text::with_long_parts(layout)) {
      const auto error = value_error_of([&] { parse_spec(text).spec(); });
      EXPECT_LE(error.size(), test_text::kLongestError) << error;
    }
  }
  EXPECT_EQ(
      value_error_of([] {
        parse_spec("f32[2] on (1):" + test_text::repeated_to_length(" R"))
            .spec();
      }),
      "[parse_spec] 10000 placements for a mesh of 1 dimension: [" +
          test_text::repeated_to_length("R ").substr(0, 200) +
          "...] on (1). Pass one placement per mesh dimension.");
}

// A layout can be far larger than its text, so sizes are bounded.
TEST(Text, WhatALayoutDescribesIsBounded) {
  const auto error = [](const std::string& text) {
    const auto what =
        value_error_of([&] { parse_spec(text).spec(); }).substr(22);
    return what.substr(0, what.find(": "));
  };
  EXPECT_EQ(
      error("f32[8] on (100000000): S(0)"),
      "a mesh of at most 131072 ranks and 64 dimensions at position 10");
  for (const auto* mesh :
       {"(9223372036854775807)",
        "(4294967296, 4294967296)",
        "(131073)",
        "(512, 257)"}) {
    EXPECT_EQ(
        error(c10::str("f32[8] on ", mesh, ": S(0)")),
        "a mesh of at most 131072 ranks and 64 dimensions at position 10");
  }
  EXPECT_EQ(parse_spec("f32[8] on (131072): S(0)").spec()->numel(), 8);
  std::string ones = "1";
  std::string replicated = "R";
  for (int i = 0; i < 64; ++i) {
    ones += ", 1";
    replicated += " R";
  }
  EXPECT_EQ(
      error("f32[8] on (" + ones + "): " + replicated),
      "a mesh of at most 131072 ranks and 64 dimensions at position 10");
  EXPECT_EQ(
      error("f32[" + ones + "] on (2): R"),
      "at most 64 dimensions at position 196");
  const std::string elements =
      "a shape of at most 72057594037927936 elements at position 3";
  EXPECT_EQ(error("f32[72057594037927936, 2] on (2): S(0)"), elements);
  EXPECT_EQ(error("f32[0, 72057594037927936, 2] on (2): S(0)"), elements);
  EXPECT_EQ(error("f32[3; 72057594037927936] on (2): S(0)"), elements);
  EXPECT_EQ(
      error("f32[9223372036854775807] on (2): S(0)"), "a size at position 4");
  EXPECT_EQ(
      error("f32[72057594037927936] on (2): SS(0, sf=72057594037927936)"),
      "a split factor of at most 16384 at position 37");
  EXPECT_EQ(
      error("f32[9999999999] on (2, 2): SS(0, sf=16384) SS(0, sf=2)"),
      "split factors whose product is at most 16384 at position 27");
  EXPECT_EQ(
      error("f32[8] on (2): S(0, u=9223372036854775807)"),
      "a positive unit at position 22");
}

TEST(Text, LongTextsAreReadInTimeThatGrowsWithThem) {
  std::string text = "S(0)";
  for (int i = 0; i < 200000; ++i) {
    text += ",R";
  }
  EXPECT_EQ(parse_placements(text).size(), 200001U);
  const auto error = value_error_of([&] { parse_placements(text + "x"); });
  EXPECT_LT(error.size(), 500U);
}

} // namespace TEST_SOURCE
} // namespace dtensor
