// SPDX-License-Identifier: BSD-3-Clause
// Tests archives of exported programs that try to harm their reader. Each gives
// an error that names the file and the place, or takes memory about
// proportional to its size.
#include <dtensor/weights/pt2_archive_impl.h>
#include <dtensor/weights/weight_file.h>
#include <tests/error_of.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstring>

#include "files.h"
#include "zip_files.h"

namespace dtensor {
namespace TEST_SOURCE {

using namespace test_weights;
using test_text::error_of;

constexpr const char* kEnd =
    ". Pass a safetensors file, the index of several, a GGUF file, or an "
    "exported program.";

// Returns the error of opening those bytes, without the file name; empty if
// they open.
std::string refusal_of(const std::string& bytes) {
  const Folder folder;
  const auto path = folder.write("a.pt2", bytes);
  const auto text = error_of([&] { open_weights(path); });
  const auto begin = "[open_weights] " + path + ": ";
  if (text == "nothing was thrown") {
    return "";
  }
  EXPECT_TRUE(text.starts_with(begin) && text.ends_with(kEnd)) << text;
  return text.substr(
      begin.size(), text.size() - begin.size() - std::strlen(kEnd));
}

struct Meta {
  std::string sizes = R"([{"as_int":2},{"as_int":3}])";
  std::string strides = R"([{"as_int":3},{"as_int":1}])";
  std::string offset = R"({"as_int":0})";
  std::string dtype = "7";
  std::string pickled = "false";
};

std::string table_of(const Meta& meta) {
  return R"({"config":{"w":{"path_name":"weight_0","use_pickle":)" +
      meta.pickled + R"(,"tensor_meta":{"dtype":)" + meta.dtype +
      R"(,"sizes":)" + meta.sizes + R"(,"strides":)" + meta.strides +
      R"(,"storage_offset":)" + meta.offset + "}}}}";
}

std::string six_floats() {
  const auto values = at::arange(6, at::kFloat);
  return {static_cast<const char*>(values.data_ptr()), values.nbytes()};
}

std::string archive_of(const Meta& meta) {
  return zip_of(program_entries(table_of(meta), six_floats()));
}

at::Tensor read_from(const std::string& bytes) {
  const Folder folder;
  return open_weights(folder.write("a.pt2", bytes))->read("w");
}

TEST(HostileArchive, ResemblesAProgram) {
  const auto truth = at::arange(6, at::kFloat).view({2, 3});
  EXPECT_TRUE(read_from(archive_of({})).equal(truth));
  const Meta transposed{
      .sizes = R"([{"as_int":3},{"as_int":2}])",
      .strides = R"([{"as_int":1},{"as_int":3}])"};
  EXPECT_TRUE(read_from(archive_of(transposed)).equal(truth.t()));
  const Meta expanded{.strides = R"([{"as_int":0},{"as_int":1}])"};
  EXPECT_TRUE(read_from(archive_of(expanded)).equal(truth[0].expand({2, 3})));
}

// Any parts of a strided weight can be read, also in a dtype that cat() does
// not support.
TEST(HostileArchive, ShardsOfAStridedWeight) {
  for (const auto* dtype : {"7", "29"}) { // float32, float8
    const Folder folder;
    const auto path = folder.write(
        "a.pt2",
        archive_of(
            {.sizes = R"([{"as_int":3},{"as_int":2}])",
             .strides = R"([{"as_int":1},{"as_int":3}])",
             .dtype = dtype}));
    const auto file = open_weights(path);
    const auto whole = file->read("w").to(at::kDouble);
    const auto out = at::empty({2, 2}, at::kDouble);
    file->read("w", {Intervals{{2, 3}, {0, 1}}, Intervals{{0, 2}}}, out);
    EXPECT_TRUE(out.equal(at::stack({whole[2], whole[0]})));
  }
}

TEST(HostileArchive, LocationsInTheTable) {
  const std::string place = "data/weights/weights_config.json: config.w";
  const std::string meta = place + ".tensor_meta";
  EXPECT_EQ(
      refusal_of(archive_of({.sizes = R"([{"as_int":"2"},{"as_int":3}])"})),
      meta + ".sizes[0].as_int: expected an integer, got a string: \"2\"");
  EXPECT_EQ(
      refusal_of(archive_of({.sizes = R"([{},{"as_int":3}])"})),
      meta + ".sizes[0]: \"as_int\" is missing");
  EXPECT_EQ(
      refusal_of(archive_of({.sizes = "{}"})),
      meta + ".sizes: expected an array, got an empty object");
  EXPECT_EQ(
      refusal_of(archive_of(
          {.sizes = R"([{"as_int":281474976710656},{"as_int":3}])"})),
      meta + ".sizes[1]: with this size it has more than 2^48 elements");
  EXPECT_EQ(
      refusal_of(archive_of({.strides = R"([{"as_int":3}])"})),
      meta + ": it has 2 sizes and 1 stride");
  EXPECT_EQ(
      refusal_of(archive_of({.dtype = "7.0"})),
      meta +
          ".dtype: expected an integer, got a number with a fraction or an "
          "exponent: 7.0");
  EXPECT_EQ(
      refusal_of(archive_of({.pickled = "0"})),
      place + ".use_pickle: expected true or false, got 0");
  EXPECT_EQ(
      refusal_of(archive_of({.sizes = std::string(100000, '[')})),
      "data/weights/weights_config.json: more than 128 nested levels");
  EXPECT_EQ(
      refusal_of(zip_of(program_entries("[]", ""))),
      "data/weights/weights_config.json: expected an object, got an empty "
      "array");
}

TEST(HostileArchive, StridesAndOffsetsThatOverflow) {
  const auto refused = [&](const Meta& meta, const std::string& why) {
    const auto text = refusal_of(archive_of(meta));
    EXPECT_NE(text.find(why), text.npos) << text;
    EXPECT_TRUE(text.starts_with("data/weights/weights_config.json: config.w"))
        << text;
  };
  const std::string range =
      "expected an integer from 0 to 281474976710656, got ";
  for (const auto* stride :
       {"2305843009213693952",
        "4611686018427387904",
        "9223372036854775808",
        "18446744073709551615",
        "-1"}) {
    refused(
        {.strides =
             std::string(R"([{"as_int":)") + stride + R"(},{"as_int":1}])"},
        range + stride);
    refused(
        {.offset = std::string(R"({"as_int":)") + stride + "}"},
        range + stride);
  }
  // The product of steps and stride is almost 2^64, or wraps around to 0.
  for (const auto* sizes :
       {R"([{"as_int":65536},{"as_int":3}])",
        R"([{"as_int":65537},{"as_int":3}])"}) {
    refused(
        {.sizes = sizes,
         .strides = R"([{"as_int":281474976710656},{"as_int":1}])"},
        "spans more than 2^48 elements");
  }
  refused(
      {.strides = R"([{"as_int":4},{"as_int":1}])"},
      "it begins at byte 0 and spans 7 elements, beyond the 24 bytes of its "
      "record");
  refused({.offset = R"({"as_int":1})"}, "it begins at byte 4");
  refused({.offset = R"({"as_int":281474976710656})"}, "it begins at byte");
}

// A weight that repeats a few elements cannot claim a petabyte by its strides.
TEST(HostileArchive, StridesOfZeroAreLimited) {
  EXPECT_NE(
      refusal_of(archive_of(
                     {.sizes = R"([{"as_int":281474976710656}])",
                      .strides = R"([{"as_int":0}])"}))
          .find("its strides expand the 24 bytes"),
      std::string::npos);
}

// Many weights together cannot claim a petabyte either, even if each stays
// below the limit of a single weight.
TEST(HostileArchive, StridesOfZeroAreLimitedInTotal) {
  const auto table_with = [](int64_t count) {
    std::string weights;
    for (int64_t i = 0; i < count; ++i) {
      weights += c10::str(
          i == 0 ? "" : ",",
          R"("w)",
          i,
          R"(":{"path_name":"weight_0","use_pickle":false,"tensor_meta":{)",
          R"("dtype":7,"sizes":[{"as_int":)",
          (1 << 23) - i,
          R"(}],"strides":[{"as_int":0}],"storage_offset":{"as_int":0}}})");
    }
    return refusal_of(zip_of(
        program_entries(R"({"config":{)" + weights + "}}", six_floats())));
  };
  EXPECT_EQ(table_with(2), "");
  EXPECT_NE(
      table_with(3).find("config.w2: with it the weights have more than 671"),
      std::string::npos)
      << table_with(3);
}

// Tied weights are read once.
TEST(HostileArchive, TiedWeightsCountOnce) {
  std::string weights;
  for (int64_t i = 0; i < 100; ++i) {
    weights += c10::str(
        i == 0 ? "" : ",",
        R"("w)",
        i,
        R"(":{"path_name":"weight_0","use_pickle":false,"tensor_meta":{)",
        R"("dtype":7,"sizes":[{"as_int":8388608}],"strides":[{"as_int":0}],)",
        R"("storage_offset":{"as_int":0}}})");
  }
  EXPECT_EQ(
      refusal_of(zip_of(
          program_entries(R"({"config":{)" + weights + "}}", six_floats()))),
      "");
}

std::string six_and_ones(size_t count, const char* first = "6") {
  std::string sizes = std::string(R"([{"as_int":)") + first + "}";
  for (size_t i = 1; i < count; ++i) {
    sizes += R"(,{"as_int":1})";
  }
  return sizes + "]";
}

TEST(HostileArchive, DimensionsAreLimited) {
  EXPECT_EQ(
      refusal_of(archive_of(
          {.sizes = six_and_ones(64), .strides = six_and_ones(64, "1")})),
      "");
  // Without a limit, each of these dimensions would visit all earlier sizes.
  for (const size_t count : {size_t{65}, size_t{200000}}) {
    EXPECT_EQ(
        refusal_of(archive_of({.sizes = six_and_ones(count)})),
        "data/weights/weights_config.json: config.w.tensor_meta.sizes[64]: it "
        "has more than 64 dimensions");
  }
}

TEST(HostileArchive, OtherVersionsOfTheFormat) {
  const auto with = [](const std::string& name, const std::string& bytes) {
    auto entries = program_entries(table_of({}), six_floats());
    entries.push_back({name, bytes});
    const Folder folder;
    const auto path = folder.write("a.pt2", zip_of(entries));
    const auto text = error_of<c10::ValueError>([&] { open_weights(path); });
    return text == "nothing was thrown"
        ? ""
        : text.substr(text.find(path) + path.size());
  };
  EXPECT_EQ(with("m/archive_version", "0"), "");
  EXPECT_EQ(with("m/archive_version", "0\n"), "");
  for (const auto* version : {"1", "999", "-1", "x", "", "00"}) {
    EXPECT_EQ(
        with("m/archive_version", version),
        c10::str(
            ": its archive_version is \"",
            version,
            "\", but this library reads 0. Write it with torch.export.save() "
            "of PyTorch 2.8 or newer."));
  }
  EXPECT_EQ(with("m/byteorder", "little"), "");
  EXPECT_TRUE(with("m/byteorder", "big")
                  .starts_with(": its weights have bytes in the order \"big\", "
                               "but only little-endian files are supported. "));
  EXPECT_TRUE(with("other/a", "b")
                  .starts_with(": its records are in the folders \"m/\" and "
                               "\"other/\", expected one. "));
}

// LibTorch's reader reports errors as internal and asks for a bug report.
TEST(HostileArchive, ErrorsSpeakOfTheFile) {
  auto entries = program_entries(table_of({}), six_floats());
  entries[0].name = "m/other";
  EXPECT_EQ(
      refusal_of(zip_of(entries)),
      "truncated or damaged archive: no record .data/version");
  entries = program_entries(table_of({}), six_floats());
  auto bytes = zip_of(entries);
  const auto directory = bytes.rfind("PK\1\2", bytes.rfind("PK\1\2") - 1);
  bytes[directory + 10] = 12; // bzip2
  EXPECT_EQ(
      refusal_of(bytes),
      "m/data/weights/weights_config.json is compressed by method 12, but only "
      "deflated and stored records are supported");
}

TEST(HostileArchive, RecordsWithLargeDeclaredSizes) {
  const auto with = [&](const ZipEntry& entry) {
    auto entries = program_entries(table_of({}), six_floats());
    entries.push_back(entry);
    return refusal_of(zip_of(entries));
  };
  EXPECT_EQ(with({"m/a", "12345678"}), "");
  EXPECT_EQ(
      with({.name = "m/a", .bytes = "12345678", .declared_bytes = 1 << 30}),
      "m/a has 8 bytes in the file, but claims 1073741824 uncompressed bytes");
  EXPECT_EQ(
      with(
          {.name = "m/a",
           .bytes = "12345678",
           .is_compressed = true,
           .declared_bytes = 1 << 30}),
      "m/a has 8 bytes in the file, but claims 1073741824 uncompressed bytes");
  EXPECT_EQ(detail::max_unpacked_bytes(0), 1 << 20);
  EXPECT_EQ(detail::max_unpacked_bytes(100000), (1 << 20) + 6400000);
  EXPECT_EQ(detail::max_unpacked_bytes(uint64_t{1} << 62), 1 << 28);
}

// Compressed records that unpack to other bytes than declared, and records that
// do not unpack, are errors.
TEST(HostileArchive, CompressedTables) {
  const auto table = table_of({});
  auto entries = program_entries(deflated(table), six_floats());
  entries[1].is_compressed = true;
  entries[1].unpacked = table;
  EXPECT_TRUE(
      read_from(zip_of(entries)).equal(at::arange(6, at::kFloat).view({2, 3})));
  entries[1].declared_bytes = static_cast<uint32_t>(table.size()) - 1;
  EXPECT_NE(refusal_of(zip_of(entries)), "");
  entries[1].declared_bytes = static_cast<uint32_t>(table.size()) + 1;
  EXPECT_NE(refusal_of(zip_of(entries)), "");
  entries[1].declared_bytes = 0;
  entries[1].bytes[7] ^= 1;
  EXPECT_NE(refusal_of(zip_of(entries)), "");
}

// LibTorch maps weights, which must therefore be stored.
TEST(HostileArchive, CompressedWeights) {
  auto entries = program_entries(table_of({}), deflated(six_floats()));
  entries[2].is_compressed = true;
  entries[2].unpacked = six_floats();
  EXPECT_EQ(
      refusal_of(zip_of(entries)),
      "data/weights/weight_0 is compressed, but must be stored");
}

// Archives of more than 4 GB have wide sizes, which any archive may have.
TEST(HostileArchive, WideSizes) {
  auto entries = program_entries(table_of({}), six_floats());
  entries[2].is_wide = true;
  EXPECT_TRUE(
      read_from(zip_of(entries)).equal(at::arange(6, at::kFloat).view({2, 3})));
  entries[2].declared_bytes = 25;
  EXPECT_EQ(
      refusal_of(zip_of(entries)),
      "m/data/weights/weight_0 has 24 bytes in the file, but claims 25 "
      "uncompressed bytes");
}

TEST(HostileArchive, TablesAreLimited) {
  EXPECT_EQ(
      refusal_of(zip_of(program_entries(std::string(100'000'001, ' '), ""))),
      "data/weights/weights_config.json has 100000001 bytes, more than "
      "100000000");
}

// Weights that cannot be read are listed. Other weights can be read.
TEST(HostileArchive, UnreadableWeights) {
  const auto error = [](const Meta& meta) {
    const Folder folder;
    const auto path = folder.write("a.pt2", archive_of(meta));
    const auto file = open_weights(path);
    EXPECT_EQ(file->weights().at(0).sizes, (Sizes{2, 3}));
    const auto text = error_of<c10::ValueError>([&] { file->read("w"); });
    const auto begin = "[WeightFile::read] \"w\" in " + path + " is ";
    EXPECT_TRUE(text.starts_with(begin)) << text;
    return text.substr(begin.size());
  };
  const std::string end =
      ", which is not supported. Convert it to F16, Q8_0, Q4_0, Q4_1, Q4_K or "
      "Q6_K.";
  EXPECT_EQ(error({.pickled = "true"}), "a pickled tensor" + end);
  EXPECT_EQ(error({.dtype = "99"}), "of unknown dtype number 99" + end);
}

TEST(HostileArchive, DuplicateRecords) {
  auto entries = program_entries(table_of({}), six_floats());
  entries.push_back(entries[1]);
  EXPECT_EQ(
      refusal_of(zip_of(entries)),
      "data/weights/weights_config.json appears twice");
  entries.back().name = "other/data/weights/weights_config.json";
  EXPECT_EQ(
      refusal_of(zip_of(entries)),
      "data/weights/weights_config.json appears twice");
}

TEST(HostileArchive, InvalidVersions) {
  for (const auto* version : {"", "x", "99999999999999999999999", "-1", "0"}) {
    auto entries = program_entries(table_of({}), six_floats());
    entries[0].bytes = version;
    const auto text = refusal_of(zip_of(entries));
    EXPECT_TRUE(text.starts_with("truncated or damaged archive: ")) << text;
    EXPECT_EQ(text.find("sto"), text.npos) << text;
  }
}

// A directory with wrong offsets or sizes is an error.
TEST(HostileArchive, WrongDirectories) {
  const auto whole = archive_of({});
  const auto end = whole.size() - 22;
  for (const uint32_t value : {0u, 1u, 0x7fffffffu, 0xffffffffu}) {
    for (const size_t at : {8U, 10U, 12U, 16U}) {
      auto changed = whole;
      const auto count = at < 12 ? sizeof(uint16_t) : sizeof(uint32_t);
      std::memcpy(&changed[end + at], &value, count);
      refusal_of(changed); // an error that names the file, or none
    }
  }
  // A wide end record with 2^64 entries.
  std::string wide = whole.substr(0, end) + "PK\6\6";
  wide.append(20, '\0');
  append_number(wide, ~uint64_t{0});
  append_number(wide, ~uint64_t{0});
  append_number<uint64_t>(wide, 0);
  uint32_t begin = 0;
  std::memcpy(&begin, &whole[end + 16], sizeof(begin));
  append_number<uint64_t>(wide, begin);
  wide += "PK\6\7";
  wide.append(4, '\0');
  append_number<uint64_t>(wide, end);
  append_number<uint32_t>(wide, 1);
  const auto text = refusal_of(wide + whole.substr(end));
  EXPECT_TRUE(text.starts_with(
      "truncated or damaged archive: invalid directory at byte "))
      << text;
}

} // namespace TEST_SOURCE
} // namespace dtensor
