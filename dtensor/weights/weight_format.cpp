// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/weights/weight_format_impl.h>

#include <c10/util/Half.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <span>
#include <utility>

namespace dtensor::detail {
namespace {

float half_at(const std::byte* from) {
  uint16_t bits = 0;
  std::memcpy(&bits, from, sizeof(bits));
  return c10::detail::fp16_ieee_to_fp32_value(bits);
}

int low(std::byte b) {
  return std::to_integer<int>(b & std::byte{0xF});
}
int high(std::byte b) {
  return std::to_integer<int>(b >> 4);
}
int signed_byte(std::byte b) {
  return static_cast<int8_t>(std::to_integer<uint8_t>(b));
}

// Decodes nibbles. The low nibbles are the first half of a block, the high
// nibbles the second half.
void decode_nibbles(
    const std::byte* from,
    int64_t count,
    float scale,
    float offset,
    float* to) {
  for (int64_t i = 0; i < count; ++i) {
    to[i] = static_cast<float>(low(from[i])) * scale + offset;
    to[i + count] = static_cast<float>(high(from[i])) * scale + offset;
  }
}

// Block of Q4_0: a scale; 32 nibbles with an offset of -8.
void decode_q4_0(const std::byte* from, int64_t blocks, float* to) {
  for (int64_t b = 0; b < blocks; ++b, from += 18, to += 32) {
    const float scale = half_at(from);
    decode_nibbles(from + 2, 16, scale, -8 * scale, to);
  }
}

// Block of Q4_1: a scale and a minimum; 32 nibbles.
void decode_q4_1(const std::byte* from, int64_t blocks, float* to) {
  for (int64_t b = 0; b < blocks; ++b, from += 20, to += 32) {
    decode_nibbles(from + 4, 16, half_at(from), half_at(from + 2), to);
  }
}

// Block of Q8_0: a scale; 32 signed bytes.
void decode_q8_0(const std::byte* from, int64_t blocks, float* to) {
  for (int64_t b = 0; b < blocks; ++b, from += 34, to += 32) {
    const float scale = half_at(from);
    for (int64_t i = 0; i < 32; ++i) {
      to[i] = scale * static_cast<float>(signed_byte(from[2 + i]));
    }
  }
}

// Returns the scale and offset of sub-block `i` of eight. They have six bits
// each and are packed in twelve bytes. The first four sub-blocks have the low
// six bits of the first eight bytes. The two high bits of these bytes belong to
// the last four sub-blocks.
std::pair<int, int> six_bits(const std::byte* packed, size_t i) {
  const auto at = [&](size_t k) { return std::to_integer<int>(packed[k]); };
  if (i < 4) {
    return {at(i) & 63, at(i + 4) & 63};
  }
  return {
      (at(i + 4) & 15) | (at(i - 4) >> 6 << 4),
      (at(i + 4) >> 4) | (at(i) >> 6 << 4)};
}

// Block of Q4_K: a scale of the scales and a scale of the offsets; twelve bytes
// of scales and offsets; 256 nibbles in groups of 64.
void decode_q4_k(const std::byte* from, int64_t blocks, float* to) {
  for (int64_t b = 0; b < blocks; ++b, from += 144) {
    const float scale = half_at(from);
    const float offset = half_at(from + 2);
    for (size_t part = 0; part < 8; part += 2, to += 64) {
      const auto* nibbles = from + 16 + part * 16;
      const auto [first, first_off] = six_bits(from + 4, part);
      const auto [second, second_off] = six_bits(from + 4, part + 1);
      for (size_t i = 0; i < 32; ++i) {
        to[i] = scale * static_cast<float>(first) *
                static_cast<float>(low(nibbles[i])) -
            offset * static_cast<float>(first_off);
        to[i + 32] = scale * static_cast<float>(second) *
                static_cast<float>(high(nibbles[i])) -
            offset * static_cast<float>(second_off);
      }
    }
  }
}

// Block of Q6_K: 256 numbers of six bits with an offset of -32. There are 128
// bytes of low nibbles, 64 bytes of high bit pairs, 16 signed scales, and the
// scale of the scales.
void decode_q6_k(const std::byte* from, int64_t blocks, float* to) {
  for (int64_t b = 0; b < blocks; ++b, from += 210) {
    const float scale = half_at(from + 208);
    for (size_t half = 0; half < 2; ++half, to += 128) {
      const auto* lows = from + half * 64;
      const auto* highs = from + 128 + half * 32;
      const auto* scales = from + 192 + half * 8;
      for (size_t i = 0; i < 128; ++i) {
        const auto quarter = i / 32;
        const auto nibbles = lows[i % 64];
        const auto bits =
            std::to_integer<int>(highs[i % 32]) >> 2 * quarter & 3;
        const auto number =
            (i < 64 ? low(nibbles) : high(nibbles)) + 16 * bits - 32;
        to[i] = scale * static_cast<float>(signed_byte(scales[i / 16])) *
            static_cast<float>(number);
      }
    }
  }
}

struct Unreadable {
  std::string_view name;
  int64_t bits;
};
constexpr std::array<Unreadable, 3> kUnreadableSafetensors = {
    {{"F4", 4}, {"F6_E2M3", 6}, {"F6_E3M2", 6}}};

struct Numbered {
  int64_t number;
  WeightFormat format;
};

// Formats of one number per element, by the number of the dtype in exported
// programs. All but the last are also formats of safetensors.
constexpr std::array<Numbered, 21> kPlain = {
    {{8, {"F64", at::kDouble, 1, 8}},
     {7, {"F32", at::kFloat, 1, 4}},
     {6, {"F16", at::kHalf, 1, 2}},
     {13, {"BF16", at::kBFloat16, 1, 2}},
     {29, {"F8_E4M3", at::kFloat8_e4m3fn, 1, 1}},
     {30, {"F8_E5M2", at::kFloat8_e5m2, 1, 1}},
     {31, {"F8_E4M3FNUZ", at::kFloat8_e4m3fnuz, 1, 1}},
     {32, {"F8_E5M2FNUZ", at::kFloat8_e5m2fnuz, 1, 1}},
     {33, {"F8_E8M0", at::kFloat8_e8m0fnu, 1, 1}},
     {5, {"I64", at::kLong, 1, 8}},
     {4, {"I32", at::kInt, 1, 4}},
     {3, {"I16", at::kShort, 1, 2}},
     {2, {"I8", at::kChar, 1, 1}},
     {35, {"U64", at::kUInt64, 1, 8}},
     {34, {"U32", at::kUInt32, 1, 4}},
     {28, {"U16", at::kUInt16, 1, 2}},
     {1, {"U8", at::kByte, 1, 1}},
     {12, {"BOOL", at::kBool, 1, 1}},
     {10, {"C64", at::kComplexFloat, 1, 8}},
     {11, {"C128", at::kComplexDouble, 1, 16}},
     {9, {"C32", at::kComplexHalf, 1, 4}}}};
constexpr std::span kSafetensors = std::span(kPlain).first(kPlain.size() - 1);

constexpr WeightFormat
unreadable(std::string_view name, int64_t block, int64_t bytes) {
  return {name, at::kFloat, block, bytes, nullptr, false};
}

constexpr std::array<Numbered, 34> kGguf = {
    {{0, {"F32", at::kFloat, 1, 4}},
     {1, {"F16", at::kHalf, 1, 2}},
     {2, {"Q4_0", at::kFloat, 32, 18, decode_q4_0}},
     {3, {"Q4_1", at::kFloat, 32, 20, decode_q4_1}},
     {6, unreadable("Q5_0", 32, 22)},
     {7, unreadable("Q5_1", 32, 24)},
     {8, {"Q8_0", at::kFloat, 32, 34, decode_q8_0}},
     {9, unreadable("Q8_1", 32, 40)},
     {10, unreadable("Q2_K", 256, 84)},
     {11, unreadable("Q3_K", 256, 110)},
     {12, {"Q4_K", at::kFloat, 256, 144, decode_q4_k}},
     {13, unreadable("Q5_K", 256, 176)},
     {14, {"Q6_K", at::kFloat, 256, 210, decode_q6_k}},
     {15, unreadable("Q8_K", 256, 292)},
     {16, unreadable("IQ2_XXS", 256, 66)},
     {17, unreadable("IQ2_XS", 256, 74)},
     {18, unreadable("IQ3_XXS", 256, 98)},
     {19, unreadable("IQ1_S", 256, 50)},
     {20, unreadable("IQ4_NL", 32, 18)},
     {21, unreadable("IQ3_S", 256, 110)},
     {22, unreadable("IQ2_S", 256, 82)},
     {23, unreadable("IQ4_XS", 256, 136)},
     {24, {"I8", at::kChar, 1, 1}},
     {25, {"I16", at::kShort, 1, 2}},
     {26, {"I32", at::kInt, 1, 4}},
     {27, {"I64", at::kLong, 1, 8}},
     {28, {"F64", at::kDouble, 1, 8}},
     {29, unreadable("IQ1_M", 256, 56)},
     {30, {"BF16", at::kBFloat16, 1, 2}},
     {34, unreadable("TQ1_0", 256, 54)},
     {35, unreadable("TQ2_0", 256, 66)},
     {39, unreadable("MXFP4", 32, 17)},
     {40, unreadable("NVFP4", 64, 36)},
     {41, unreadable("Q1_0", 128, 18)}}};

// Returns the format whose number, name or dtype is `key`, or null.
template <class Formats, class Key, class Member>
const WeightFormat*
find_format(const Formats& all, const Key& key, const Member& member) {
  const auto found = std::ranges::find(all, key, member);
  return found == std::end(all) ? nullptr : &found->format;
}

} // namespace

const WeightFormat* safetensors_format(std::string_view name) {
  return find_format(
      kSafetensors, name, [](const auto& item) { return item.format.name; });
}

const WeightFormat* safetensors_format(at::ScalarType dtype) {
  return find_format(
      kSafetensors, dtype, [](const auto& item) { return item.format.dtype; });
}

int64_t unreadable_safetensors_bits(std::string_view name) {
  const auto* found =
      std::ranges::find(kUnreadableSafetensors, name, &Unreadable::name);
  return found == kUnreadableSafetensors.end() ? 0 : found->bits;
}

const WeightFormat* exported_format(int64_t number) {
  return find_format(kPlain, number, &Numbered::number);
}

const WeightFormat* gguf_format(uint32_t number) {
  return find_format(kGguf, number, &Numbered::number);
}

} // namespace dtensor::detail
