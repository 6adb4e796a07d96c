// SPDX-License-Identifier: BSD-3-Clause
// Tests files that try to harm their reader. Each gives an error that names the
// file and the place, or takes memory about proportional to its size.
#include <dtensor/weights/load_weights.h>
#include <dtensor/weights/weight_file.h>
#include <tests/error_of.h>
#include <tests/long_texts.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

#include "files.h"
#include "gguf_files.h"

namespace dtensor {
namespace TEST_SOURCE {

using namespace test_weights;
using test_text::error_of;

constexpr const char* kEnd =
    ". Pass a safetensors file, the index of several, a GGUF file, or an "
    "exported program.";

std::string error_of_open(const std::string& path) {
  const auto text = error_of([&] { open_weights(path); });
  const auto begin = "[open_weights] " + path + ": ";
  if (text == "nothing was thrown" || !text.starts_with(begin)) {
    return text;
  }
  return text.substr(
      begin.size(),
      text.size() - begin.size() -
          (text.ends_with(kEnd) ? std::strlen(kEnd) : 0));
}

// Calls `fn` in another process and returns the growth of its peak memory in
// megabytes.
double megabytes_of(const std::function<void()>& fn) {
  const auto child = ::fork();
  if (child == 0) {
    struct rusage before {};
    struct rusage after {};
    ::getrusage(RUSAGE_SELF, &before);
    fn();
    ::getrusage(RUSAGE_SELF, &after);
    const auto grown = (after.ru_maxrss - before.ru_maxrss) / 4096;
    ::_exit(static_cast<int>(std::min<long>(grown, 255)));
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status));
  return 4.0 * WEXITSTATUS(status);
}

std::string many_tensors(size_t count) {
  std::string header = "{";
  for (size_t i = 0; i < count; ++i) {
    header += (i == 0 ? "\"" : ",\"") + std::to_string(i) +
        R"(":{"dtype":"F32","shape":[1],"data_offsets":[)" +
        std::to_string(4 * i) + "," + std::to_string(4 * i + 4) + "]}";
  }
  return safetensors_of(header + "}", std::string(4 * count, '\0'));
}

// Without a limit, each size of 1 would visit all earlier sizes.
TEST(HostileSafetensors, DimensionsAreLimited) {
  const auto error = [](size_t dims) {
    std::string shape = "4";
    for (size_t d = 1; d < dims; ++d) {
      shape += ",1";
    }
    const Folder folder;
    return error_of_open(folder.write(
        "a.safetensors",
        safetensors_of(
            R"({"w":{"dtype":"U8","shape":[)" + shape +
                R"(],"data_offsets":[0,4]}})",
            "1234")));
  };
  EXPECT_EQ(error(64), "nothing was thrown");
  EXPECT_EQ(error(65), "header: w.shape[64]: it has more than 64 dimensions");
  EXPECT_EQ(
      error(500000), "header: w.shape[64]: it has more than 64 dimensions");
}

TEST(HostileSafetensors, HeadersAreLimited) {
  const Folder folder;
  const auto path =
      folder.write("a.safetensors", bytes_of<uint64_t>(100'000'001));
  std::filesystem::resize_file(path, 100'000'009); // takes no disk space
  EXPECT_EQ(
      error_of_open(path),
      "its header has 100000001 bytes, more than 100000000");
}

TEST(HostileSafetensors, MetadataMayBeNull) {
  const Folder folder;
  const auto path = folder.write(
      "a.safetensors",
      safetensors_of(
          R"({"__metadata__":null,"w":{"dtype":"U8","shape":[1],)"
          R"("data_offsets":[0,1]}})",
          "7"));
  EXPECT_EQ(open_weights(path)->read("w").item<int64_t>(), '7');
  EXPECT_TRUE(open_weights(path)->metadata().empty());
}

TEST(HostileSafetensors, ErrorsAreShort) {
  const Folder folder;
  const std::string header =
      R"({"weight":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
      R"("four":{"dtype":"F4","shape":[2],"data_offsets":[4,5]}})";
  for (const auto& text : test_text::with_long_parts(header)) {
    const auto path =
        folder.write("a.safetensors", safetensors_of(text, "12345"));
    const auto expect_short = [&](const auto& read) {
      const auto error = error_of([&] { read(*open_weights(path)); });
      EXPECT_LE(error.size(), test_text::kLongestError) << error;
    };
    expect_short([](const WeightFile& file) {
      for (const auto& weight : file.weights()) {
        file.read(weight.name);
      }
    });
    expect_short([](const WeightFile& file) {
      file.read(file.weights().back().name, {}, at::empty({}));
    });
    expect_short([](const WeightFile& file) {
      load_weights(*torch::nn::Linear(1, 1), file);
    });
  }
}

// The error lists only the first of many names.
TEST(HostileSafetensors, ListsOfNamesAreShort) {
  const Folder folder;
  const auto path = folder.write("many", many_tensors(20000));
  const auto error = error_of(
      [&] { load_weights(*torch::nn::Linear(1, 1), *open_weights(path)); });
  EXPECT_LE(error.size(), test_text::kLongestError) << error;
  EXPECT_NE(
      error.find("not in the file: weight, bias; not in the model: 0, 1, 10, "),
      error.npos)
      << error;
  EXPECT_NE(error.find(" and 19900 more. Map names"), error.npos) << error;
}

// A quadratic reader runs into the time limit of the suite.
TEST(HostileSafetensors, OpenInLinearTime) {
  const Folder folder;
  const auto path = folder.write("many", many_tensors(256000));
  EXPECT_EQ(open_weights(path)->weights().size(), 256000);
}

TEST(HostileSafetensors, NestedHeadersAreAnError) {
  const Folder folder;
  const std::string open(100000, '[');
  const std::string close(100000, ']');
  const auto header = [&](const std::string& value) {
    return safetensors_of(
        R"({"w":{"dtype":"F32","shape":)" + value + R"(,"data_offsets":)" +
            value + "}}",
        "");
  };
  const auto path = folder.write("a", header(open + close));
  EXPECT_EQ(error_of_open(path), "header: more than 128 nested levels");
  folder.write(
      "a", header("[" + std::string(100, '[') + std::string(100, ']') + "]"));
  EXPECT_EQ(
      error_of_open(path),
      "header: w.shape[0]: expected an integer, got an array");
  const auto index =
      folder.write("b.json", R"({"weight_map":)" + open + close + "}");
  EXPECT_EQ(error_of_open(index), "more than 128 nested levels");
}

TEST(HostileSafetensors, EmptyTensorsOfLongDimensionsCostNothing) {
  const Folder folder;
  for (const auto* shape :
       {"[1073741824,0]", "[0,1073741824]", "[16777216,0,16777216]"}) {
    const auto path = folder.write(
        "a",
        safetensors_of(
            std::string(R"({"w":{"dtype":"F32","shape":)") + shape +
                R"(,"data_offsets":[0,0]}})",
            ""));
    EXPECT_LE(megabytes_of([&] { open_weights(path)->read("w"); }), 8) << shape;
    EXPECT_EQ(open_weights(path)->read("w").numel(), 0);
  }
}

// A long column of bytes is read in full and in parts, unchanged and converted.
TEST(HostileSafetensors, LongColumnsTakeTheirSize) {
  const Folder folder;
  const int64_t rows = int64_t{1} << 25;
  const auto path = folder.write(
      "a",
      safetensors_of(
          R"({"w":{"dtype":"U8","shape":[33554432,1],"data_offsets":[0,33554432]},)"
          R"("v":{"dtype":"U8","shape":[16777216,2],"data_offsets":[33554432,67108864]}})",
          std::string(2 * static_cast<size_t>(rows), '\3')));
  EXPECT_LE(megabytes_of([&] { open_weights(path)->read("w"); }), 3 * 32);
  // One of two columns: 16 MB, plus the pages of the file.
  EXPECT_LE(
      megabytes_of([&] {
        const auto out = at::empty({rows / 2, 1}, at::kByte);
        open_weights(path)->read(
            "v", {Intervals{{0, rows / 2}}, Intervals{{1, 2}}}, out);
      }),
      16 + 32 + 16);
  const auto out = at::empty({rows / 2, 1}, at::kInt);
  open_weights(path)->read(
      "v", {Intervals{{0, rows / 2}}, Intervals{{1, 2}}}, out);
  EXPECT_TRUE(out.eq(3).all().item<bool>());
}

TEST(HostileSafetensors, NamesInAnIndexStayInItsFolder) {
  const Folder folder;
  const auto bytes = safetensors_of({{"w", at::ones({2})}});
  folder.write("outside.safetensors", bytes);
  folder.write("in/model.safetensors", bytes);
  folder.write("in/sub/model.safetensors", bytes);
  const auto error = [&](const std::string& name) {
    return error_of_open(
        folder.write("in/a.json", "{\"weight_map\":{\"w\":\"" + name + "\"}}"));
  };
  EXPECT_EQ(error("model.safetensors"), "nothing was thrown");
  EXPECT_EQ(error("sub/model.safetensors"), "nothing was thrown");
  EXPECT_EQ(error("./sub/./model.safetensors"), "nothing was thrown");
  for (const auto& name :
       {std::string("../outside.safetensors"),
        std::string("sub/../../outside.safetensors"),
        folder / "outside.safetensors",
        std::string(),
        std::string("..")}) {
    EXPECT_EQ(
        error(name),
        "weight_map.w: \"" + name +
            "\" is not a relative path within the folder");
  }
  EXPECT_EQ(
      error("model.safetensors\\u0000x"),
      "weight_map.w: \"model.safetensors\\u0000x\" is not a relative path "
      "within the folder");
  EXPECT_EQ(
      error("none"),
      "[open_weights] " + (folder / "in/none") + ": No such file or directory" +
          kEnd);
  EXPECT_EQ(
      error("sub"),
      "[open_weights] " + (folder / "in/sub") +
          ": a folder, not a regular file" + kEnd);
  namespace fs = std::filesystem;
  fs::create_symlink("../outside.safetensors", folder / "in/link");
  const auto outside = fs::canonical(folder / "outside.safetensors").string();
  EXPECT_EQ(
      error("link"),
      "weight_map.w: \"link\" is a link to \"" + outside +
          "\", outside of the folder");
  fs::create_symlink("..", folder / "in/up");
  EXPECT_EQ(
      error("up/outside.safetensors"),
      "weight_map.w: \"up/outside.safetensors\" is a link to \"" + outside +
          "\", outside of the folder");
}

// Links are read in a Hugging Face cache, where all files including the index
// are links.
TEST(HostileSafetensors, LinksBesideALinkedIndexAreRead) {
  const Folder folder;
  folder.write("blobs/1", safetensors_of({{"w", at::ones({2})}}));
  folder.write("blobs/2", R"({"weight_map":{"w":"model.safetensors"}})");
  namespace fs = std::filesystem;
  fs::create_directories(folder / "snapshots/a");
  fs::create_symlink("../../blobs/1", folder / "snapshots/a/model.safetensors");
  const auto index = folder / "snapshots/a/model.safetensors.index.json";
  fs::create_symlink("../../blobs/2", index);
  EXPECT_EQ(open_weights(index)->weights().size(), 1);
  EXPECT_EQ(open_weights(folder / "snapshots/a")->weights().size(), 1);
}

// Writes two files with a shard of the weight w each, and an index of both.
std::string write_shards(
    const Folder& folder,
    const std::string& first,
    const std::string& second) {
  const auto write = [&](const char* name, const char* offset, const auto& w) {
    folder.write(
        name,
        safetensors_of(
            R"({"__metadata__":{"DCP_SHARDING_INFO":"{\"w\":)"
            R"({\"saved_offsets\":)" +
                std::string(offset) + R"(}}"},"w":{)" + w +
                R"(,"data_offsets":[0,1]}})",
            "1"));
  };
  write("in/1.safetensors", "[0]", first);
  write("in/2.safetensors", second.ends_with(",1]") ? "[1,0]" : "[1]", second);
  return folder / "in";
}

TEST(HostileSafetensors, ShardsOfAWeightAreAlike) {
  const Folder folder;
  const std::string byte = R"("dtype":"U8","shape":[1])";
  const auto error = [&](const std::string& second) {
    return error_of_open(write_shards(folder, byte, second));
  };
  EXPECT_EQ(error(byte), "nothing was thrown");
  EXPECT_EQ(
      error(R"("dtype":"I8","shape":[1])"),
      "the weight w has shards of U8 with 1 dimension and of I8 with 1");
  EXPECT_EQ(
      error(R"("dtype":"U8","shape":[1,1])"),
      "the weight w has shards of U8 with 1 dimension and of U8 with 2");
}

// A weight in a format that cannot be read is listed once.
TEST(HostileSafetensors, UnreadableShardsAreListed) {
  const Folder folder;
  const std::string pair = R"("dtype":"F4","shape":[2])";
  const auto path = write_shards(folder, pair, pair);
  const auto file = open_weights(path);
  EXPECT_EQ(file->weights().size(), 1);
  EXPECT_EQ(
      error_of([&] { file->read("w"); }),
      "[WeightFile::read] \"w\" in " + path +
          " is F4, which is not supported. Convert it to F16, Q8_0, Q4_0, "
          "Q4_1, Q4_K or Q6_K.");
}

// An error of one file of an index names that file.
TEST(HostileSafetensors, AShortFileOfAnIndexIsNamed) {
  const Folder folder;
  const auto bytes = safetensors_of({{"w", at::ones({2})}});
  folder.write("a", safetensors_of({{"v", at::ones({2})}}));
  const auto path = folder.write("b", bytes.substr(0, bytes.size() - 4));
  const auto index =
      folder.write("c.json", R"({"weight_map":{"v":"a","w":"b"}})");
  const auto text = error_of([&] { open_weights(index); });
  EXPECT_TRUE(text.starts_with("[open_weights] " + path + ": ")) << text;
}

// Names are looked up only in the file that the index gives.
TEST(HostileSafetensors, NamesAreInTheFilesThatTheIndexNames) {
  const Folder folder;
  folder.write("a", safetensors_of({{"v", at::ones({2})}}));
  folder.write("b", safetensors_of({{"w", at::ones({2})}}));
  const auto path =
      folder.write("c.json", R"({"weight_map":{"v":"b","w":"a"}})");
  EXPECT_EQ(error_of_open(path), "weight_map.v: \"v\" is not in \"b\"");
}

// --- GGUF --------------------------------------------------------------------

TEST(HostileGguf, AlignmentIsAPowerOfTwo) {
  const Folder folder;
  const auto error =
      [&](uint32_t type, const std::string& value, size_t alignment = 32) {
        return error_of_open(folder.write(
            "a",
            gguf_of(
                {{pair_of("general.alignment", type, value)},
                 {tensor_of("w", 1, kF32, 0)},
                 alignment,
                 4})));
      };
  for (const uint32_t good : {1U, 8U, 64U, 4096U}) {
    EXPECT_EQ(error(kUint32, bytes_of(good), good), "nothing was thrown");
  }
  for (const uint32_t bad : {0U, 3U, 33U, 48U}) {
    const auto text = error(kUint32, bytes_of(bad));
    EXPECT_NE(
        text.find(
            "general.alignment is " + std::to_string(bad) +
            ", not a power of two"),
        text.npos)
        << text;
  }
  EXPECT_NE(
      error(kUint64, bytes_of<uint64_t>(32))
          .find("general.alignment is not a uint32"),
      std::string::npos);
}

TEST(HostileGguf, OffsetsFollowTheFormat) {
  const Folder folder;
  const auto error = [&](std::vector<std::string> tensors, size_t data) {
    return error_of_open(
        folder.write("a", gguf_of({{}, std::move(tensors), 32, data})));
  };
  const auto v = [](uint64_t offset) {
    return tensor_of("v", 4, kF32, offset);
  };
  const auto w = [](uint64_t offset) {
    return tensor_of("w", 4, kF32, offset);
  };
  EXPECT_EQ(error({v(0), w(32)}, 48), "nothing was thrown");
  EXPECT_EQ(error({v(0), w(32)}, 64), "nothing was thrown"); // padded
  EXPECT_EQ(error({v(32), w(0)}, 48), "nothing was thrown");
  EXPECT_EQ(
      error({v(0), w(0)}, 32),
      "the weight w is at offset 0, inside the previous weight, which ends at "
      "32");
  EXPECT_EQ(
      error({v(0), w(16)}, 32),
      "the weight w is at offset 16, not a multiple of the alignment 32");
  EXPECT_EQ(
      error({v(0), w(64)}, 80),
      "the weight w is at offset 64, but the previous weight ends at 32");
  EXPECT_EQ(
      error({v(32)}, 48),
      "the weight v is at offset 32, but the previous weight ends at 0");
  EXPECT_EQ(
      error({v(0), w(32)}, 47),
      "the weight w is at offset 32 and ends at 48, "
      "beyond the 47 bytes of data");
  EXPECT_EQ(
      error({v(0)}, 64), "its weights have 32 bytes, but its data has 64");
  EXPECT_EQ(
      error({v(uint64_t{1} << 63)}, 16),
      "the weight v is at offset 9223372036854775808, but the previous weight "
      "ends at 0");
  EXPECT_EQ(error({v(0), v(32)}, 48), "the weight v appears twice");
}

TEST(HostileGguf, BlocksAreWhole) {
  constexpr uint32_t kQ8 = 8; // blocks of 32 elements
  const Folder folder;
  EXPECT_EQ(
      error_of_open(
          folder.write("a", gguf_of({{}, {tensor_of("w", 33, kQ8, 0)}}))),
      "at byte 49: w has rows of 33 elements, not a multiple of the block size "
      "32");
}

TEST(HostileGguf, MetadataHaveAllTypes) {
  constexpr uint32_t kInt16 = 3;
  constexpr uint32_t kInt32 = 5;
  constexpr uint32_t kFloat32 = 6;
  constexpr uint32_t kInt64 = 11;
  constexpr uint32_t kFloat64 = 12;
  std::vector<std::string> pairs;
  const auto add = [&](const std::string& name, uint32_t type, auto value) {
    pairs.push_back(pair_of(name, type, bytes_of(value)));
    pairs.push_back(pair_of(
        name + "s",
        kArray,
        bytes_of(type) + bytes_of<uint64_t>(2) + bytes_of(value) +
            bytes_of(value)));
  };
  add("u16", kUint16, uint16_t{65535});
  add("i16", kInt16, int16_t{-7});
  add("u32", kUint32, uint32_t{4294967295});
  add("i32", kInt32, int32_t{-7});
  add("u64", kUint64, uint64_t{1} << 62);
  add("i64", kInt64, int64_t{-7});
  add("f32", kFloat32, 0.5F);
  add("f64", kFloat64, 0.1);
  const Folder folder;
  const auto file = open_weights(folder.write("a", gguf_of({pairs, {}})));
  const auto expect = [&](const std::string& name, auto value) {
    using Value = decltype(value);
    const auto& about = file->metadata();
    EXPECT_EQ(std::get<Value>(about.at(name)), value) << name;
    EXPECT_EQ(
        std::get<std::vector<Value>>(about.at(name + "s")),
        (std::vector<Value>{value, value}))
        << name;
  };
  expect("u16", int64_t{65535});
  expect("i16", int64_t{-7});
  expect("u32", int64_t{4294967295});
  expect("i32", int64_t{-7});
  expect("u64", int64_t{1} << 62);
  expect("i64", int64_t{-7});
  expect("f32", 0.5);
  expect("f64", 0.1);
}

TEST(HostileGguf, DuplicateKeysAreRefused) {
  const Folder folder;
  const auto pair = pair_of("a", kUint8, bytes_of<uint8_t>(1));
  EXPECT_EQ(
      error_of_open(folder.write("a", gguf_of({{pair, pair}, {}}))),
      "at byte 47: \"a\" appears twice");
}

TEST(HostileGguf, UnknownTypesAreRefused) {
  const Folder folder;
  const auto error = [&](const std::string& pair, const std::string& tensor) {
    return error_of_open(folder.write("a", gguf_of({{pair}, {tensor}, 32, 4})));
  };
  const auto pair = pair_of("a", kUint8, "1");
  const auto tensor = tensor_of("w", 1, kF32, 0);
  EXPECT_EQ(error(pair, tensor), "nothing was thrown");
  EXPECT_NE(
      error(pair, tensor_of("w", 1, 99, 0)).find("w has the unknown type 99"),
      std::string::npos);
  EXPECT_NE(
      error(pair_of("a", 13, "1"), tensor).find("a value of unknown type 13"),
      std::string::npos);
  EXPECT_NE(
      error(
          pair_of("a", kArray, bytes_of(kArray) + bytes_of<uint64_t>(1)),
          tensor)
          .find("an array of unknown type 9"),
      std::string::npos);
}

// The first of several files, as llama-gguf-split writes it, is refused.
TEST(HostileGguf, OneFileOfASplitModelIsRefused) {
  const Folder folder;
  const auto error = [&](uint16_t count) {
    return error_of_open(folder.write(
        "a",
        gguf_of(
            {{pair_of("split.no", kUint16, bytes_of<uint16_t>(0)),
              pair_of("split.count", kUint16, bytes_of(count))},
             {tensor_of("w", 1, kF32, 0)},
             32,
             4})));
  };
  EXPECT_EQ(error(1), "nothing was thrown");
  EXPECT_EQ(
      error(2),
      "split.count is 2: it is one of several files of a model. Merge them "
      "with llama-gguf-split --merge.");
}

TEST(HostileGguf, CountsFitTheFile) {
  const Folder folder;
  const auto error =
      [&](uint64_t tensors, uint64_t pairs, const std::string& rest) {
        return error_of_open(folder.write(
            "a",
            "GGUF" + bytes_of<uint32_t>(3) + bytes_of(tensors) +
                bytes_of(pairs) + rest));
      };
  for (const uint64_t many :
       {uint64_t{1} << 32, ~uint64_t{0}, uint64_t{1} << 61}) {
    EXPECT_NE(
        error(many, 0, "").find("at byte 16: a count of"), std::string::npos);
    EXPECT_NE(
        error(0, many, "").find("at byte 24: a count of"), std::string::npos);
    for (const auto type : {kUint8, kUint32, kText, kUint64}) {
      const auto array = bytes_of(type) + bytes_of(many);
      EXPECT_NE(
          error(0, 1, pair_of("a", kArray, array)).find("a count of"),
          std::string::npos);
    }
    EXPECT_NE(
        error(0, 1, pair_of("a", kText, bytes_of(many))).find("end of file"),
        std::string::npos);
  }
}

TEST(HostileGguf, ArraysOfBytesStayBytes) {
  const Folder folder;
  const size_t count = size_t{1} << 25;
  const auto array = [&](uint32_t type, const std::string& bytes) {
    return bytes_of(type) + bytes_of<uint64_t>(bytes.size()) + bytes;
  };
  const auto path = folder.write(
      "a",
      gguf_of(
          {{pair_of("a", kArray, array(kUint8, std::string(count, '\7')))},
           {}}));
  EXPECT_LE(megabytes_of([&] { open_weights(path); }), 3 * 32);
  const auto small = open_weights(folder.write(
      "b",
      gguf_of(
          {{pair_of("u", kArray, array(kUint8, "\xff\1")),
            pair_of("i", kArray, array(kInt8, "\xff\1")),
            pair_of("b", kArray, array(kBool, std::string("\0\2", 2)))},
           {}})));
  const auto& about = small->metadata();
  EXPECT_EQ(
      std::get<std::vector<uint8_t>>(about.at("u")),
      (std::vector<uint8_t>{255, 1}));
  EXPECT_EQ(
      std::get<std::vector<int8_t>>(about.at("i")),
      (std::vector<int8_t>{-1, 1}));
  EXPECT_EQ(
      std::get<std::vector<uint8_t>>(about.at("b")),
      (std::vector<uint8_t>{0, 1}));
}

} // namespace TEST_SOURCE
} // namespace dtensor
