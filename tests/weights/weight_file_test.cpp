// SPDX-License-Identifier: BSD-3-Clause
// Compares the contents of files with those reported by the programs that wrote
// them.
#include <dtensor/layout/text.h>
#include <dtensor/weights/weight_file.h>
#include <tests/error_of.h>

#include <sys/stat.h>

#include <random>

#include "files.h"

namespace dtensor {
namespace TEST_SOURCE {

using namespace test_weights;
using test_text::error_of;

std::string written(const std::string& name) {
  return written_files().folder + "/" + name;
}

void expect_contents(const std::string& path, const std::string& truth) {
  const auto file = open_weights(path);
  const auto tensors = saved_tensors(truth);
  for (const auto& [name, tensor] : tensors) {
    ASSERT_NE(file->find(name), nullptr) << name;
    EXPECT_EQ(file->find(name)->sizes, Sizes(tensor.sizes())) << name;
    const auto read = file->read(name);
    EXPECT_EQ(read.scalar_type(), file->find(name)->dtype) << name;
    EXPECT_TRUE(at::equal(read.to(at::kDouble), tensor.to(at::kDouble)))
        << name << read << tensor;
  }
}

#define SKIP_WITHOUT_FILES()                 \
  if (!written_files().why_not.empty()) {    \
    GTEST_SKIP() << written_files().why_not; \
  }

TEST(Safetensors, HaveTheValuesOfTheirLibrary) {
  SKIP_WITHOUT_FILES();
  expect_contents(
      written("plain.safetensors"), written("plain.safetensors.pt"));
  const auto file = open_weights(written("plain.safetensors"));
  EXPECT_EQ(file->weights().size(), 15);
  EXPECT_EQ(std::get<std::string>(file->metadata().at("made")), "by hand");
  EXPECT_EQ(file->find("torch.bfloat16")->format, "BF16");
  EXPECT_EQ(file->find("torch.bfloat16")->dtype, at::kBFloat16);
  EXPECT_EQ(file->find("torch.float8_e5m2")->dtype, at::kFloat8_e5m2);
  EXPECT_EQ(file->find("torch.bool")->dtype, at::kBool);
}

TEST(Safetensors, OfSeveralFilesAreOneModel) {
  SKIP_WITHOUT_FILES();
  expect_contents(
      written("parts/model.safetensors.index.json"), written("parts.pt"));
  expect_contents(written("parts"), written("parts.pt"));
  EXPECT_EQ(open_weights(written("parts"))->weights().size(), 4);
}

TEST(Gguf, HasTheValuesOfItsLibrary) {
  SKIP_WITHOUT_FILES();
  expect_contents(written("quantised.gguf"), written("quantised.gguf.pt"));
}

TEST(Gguf, HasMetadata) {
  SKIP_WITHOUT_FILES();
  const auto file = open_weights(written("quantised.gguf"));
  const auto& about = file->metadata();
  EXPECT_EQ(std::get<std::string>(about.at("general.architecture")), "llama");
  EXPECT_EQ(std::get<int64_t>(about.at("a.count")), 7);
  EXPECT_EQ(std::get<int64_t>(about.at("a.small")), -3);
  EXPECT_EQ(std::get<double>(about.at("a.rate")), 0.5);
  EXPECT_EQ(std::get<bool>(about.at("a.flag")), true);
  EXPECT_EQ(std::get<std::string>(about.at("a.name")), "smol");
  EXPECT_EQ(
      std::get<std::vector<std::string>>(about.at("a.words")),
      (std::vector<std::string>{"one", "two", ""}));
  EXPECT_EQ(
      std::get<std::vector<int64_t>>(about.at("a.numbers")),
      (std::vector<int64_t>{1, -2, 3}));
  EXPECT_EQ(
      std::get<std::vector<double>>(about.at("a.scores")),
      (std::vector<double>{0.25, -1.5}));
}

TEST(Gguf, UnsupportedFormatsAreNamed) {
  SKIP_WITHOUT_FILES();
  const auto path = written("quantised.gguf");
  const auto file = open_weights(path);
  ASSERT_NE(file->find("unreadable"), nullptr);
  EXPECT_EQ(file->find("unreadable")->format, "Q5_1");
  EXPECT_EQ(
      error_of([&] { file->read("unreadable"); }),
      "[WeightFile::read] \"unreadable\" in " + path +
          " is Q5_1, which is not supported. Convert it to F16, Q8_0, Q4_0, "
          "Q4_1, Q4_K or Q6_K.");
}

Intervals drawn(int64_t size, std::mt19937& random) {
  Intervals all;
  int64_t at = 0;
  while (at < size && all.size() < 3) {
    const auto begin = at + static_cast<int64_t>(random() % 3);
    const auto end = begin + static_cast<int64_t>(random() % 40);
    if (end > size) {
      break;
    }
    all.push_back({begin, end});
    at = end;
  }
  return all;
}

at::Tensor parts_of(at::Tensor t, const std::vector<Intervals>& parts) {
  for (size_t d = 0; d < parts.size(); ++d) {
    const auto dim = static_cast<int64_t>(d);
    std::vector<at::Tensor> kept{t.narrow(dim, 0, 0)};
    for (const auto& interval : parts[d]) {
      kept.push_back(t.narrow(dim, interval.begin, interval.size()));
    }
    t = at::cat(kept, dim);
  }
  return t;
}

// Any parts of a weight in any format can be read into any memory layout and
// dtype.
TEST(WeightFileTest, ReadsAnyIntervals) {
  SKIP_WITHOUT_FILES();
  std::mt19937 random(5);
  for (const auto* name : {"plain.safetensors", "quantised.gguf"}) {
    const auto file = open_weights(written(name));
    for (const auto& [weight, truth] :
         saved_tensors(written(std::string(name) + ".pt"))) {
      for (int round = 0; round < 20; ++round) {
        std::vector<Intervals> parts;
        for (const auto size : truth.sizes()) {
          parts.push_back(drawn(size, random));
        }
        // cat() does not support eight-bit floats.
        const auto expected = parts_of(truth.to(at::kDouble), parts);
        auto out = at::empty(expected.sizes(), at::kDouble);
        if (round % 2 == 1 && out.dim() > 1) {
          out = at::empty(expected.transpose(0, 1).sizes(), at::kDouble)
                    .transpose(0, 1);
        }
        file->read(weight, parts, out);
        ASSERT_TRUE(at::equal(out, expected)) << weight;
      }
    }
  }
}

TEST(WeightFileErrors, OfReading) {
  const Folder folder;
  const auto path =
      folder.write("a.safetensors", safetensors_of({{"w", at::ones({2, 3})}}));
  const auto file = open_weights(path);
  const auto out = at::empty({2, 3});
  EXPECT_EQ(
      error_of([&] { file->read("v"); }),
      "[WeightFile::read] " + path +
          " has no weight \"v\". weights() lists its names.");
  EXPECT_EQ(
      error_of([&] {
        file->read("w", {Intervals{{0, 2}}}, out);
      }),
      "[WeightFile::read] got intervals for 1 dimension of \"w\", f32[2, 3]. "
      "Pass a list of them for each dimension.");
  EXPECT_EQ(
      error_of([&] {
        file->read("w", {Intervals{{0, 2}}, Intervals{{1, 4}}}, out);
      }),
      "[WeightFile::read] [1, 4) of dim 1 is outside of \"w\", f32[2, 3]. Pass "
      "intervals within it.");
  EXPECT_EQ(
      error_of([&] {
        file->read("w", {Intervals{{0, 2}}, Intervals{{1, 3}}}, out);
      }),
      "[WeightFile::read] these intervals of \"w\" have shape [2, 2], but out "
      "has [2, 3]. Pass a tensor of that shape.");
}

constexpr const char* kEnd =
    ". Pass a safetensors file, the index of several, a GGUF file, or an "
    "exported program.";

TEST(WeightFileErrors, OfInvalidFiles) {
  const Folder folder;
  const auto expect = [&](const std::string& path, const std::string& why) {
    EXPECT_EQ(
        error_of([&] { open_weights(path); }),
        "[open_weights] " + path + ": " + why + kEnd);
  };
  expect(folder / "nothing", "No such file or directory");
  folder.write("empty/none", "");
  expect(folder / "empty", "a folder without safetensors files");
  expect(folder.write("a", ""), "invalid header size 0 in a file of 0 bytes");
  expect(
      folder.write("b", "short"), "invalid header size 0 in a file of 5 bytes");
  expect(
      folder.write("c", std::string(16, '\x7f')),
      "invalid header size 9187201950435737471 in a file of 16 bytes");
  expect(
      folder.write("d", safetensors_of("[1]", "")),
      "header: expected an object, got an array");
  expect(
      folder.write("e", safetensors_of("{\"w\"", "")),
      "header: invalid JSON at byte 5: syntax error while parsing object "
      "separator - unexpected end of input; expected ':'");
  expect(folder.write("f.json", "{\"map\": {}}"), "\"weight_map\" is missing");
  folder.write("model", safetensors_of({{"w", at::ones({2})}}));
  expect(
      folder.write("g.json", R"({"weight_map": {"v": "model"}})"),
      "weight_map.v: \"v\" is not in \"model\"");
  expect(folder / "", "a folder without safetensors files");
  EXPECT_EQ(::mkfifo((folder / "fifo").c_str(), 0600), 0);
  expect(folder / "fifo", "a FIFO, not a regular file");
  expect("/dev/zero", "a device, not a regular file");
  folder.write("of_fifo/none", "");
  EXPECT_EQ(::mkfifo((folder / "of_fifo/a.safetensors").c_str(), 0600), 0);
  EXPECT_EQ(
      error_of([&] { open_weights(folder / "of_fifo"); }),
      "[open_weights] " + (folder / "of_fifo/a.safetensors") +
          ": a FIFO, not a regular file" + kEnd);
}

TEST(WeightFileErrors, OfWrongOffsets) {
  const Folder folder;
  const auto error = [&](const std::string& about) {
    const auto path =
        folder.write("x", safetensors_of("{\"w\":" + about + "}", "12345678"));
    const auto text = error_of([&] { open_weights(path); });
    const auto begin = "[open_weights] " + path + ": header: w";
    EXPECT_EQ(text.substr(0, begin.size()), begin) << text;
    return text.substr(
        begin.size(), text.size() - begin.size() - std::strlen(kEnd));
  };
  EXPECT_EQ(
      error(R"({"dtype":"F32","shape":[2],"data_offsets":[0,4]})"),
      ".data_offsets: expected a range of 8 bytes, got 0 to 4");
  EXPECT_EQ(
      error(R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})"),
      ".data_offsets: expected a range of 8 bytes, got 8 to 0");
  EXPECT_EQ(
      error(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8,9]})"),
      ".data_offsets: expected a range of 8 bytes, got 0 to 8");
  EXPECT_EQ(
      error(R"({"dtype":"F32","shape":[2],"data_offsets":[0]})"),
      ".data_offsets: expected more than 1 element, got 1");
  EXPECT_EQ(
      error(R"({"dtype":"F32","shape":[2],"data_offsets":[8,16]})"),
      ".data_offsets: it ends at byte 16, beyond the 8 bytes after the header");
  EXPECT_EQ(
      error(R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})"),
      ".shape[0]: expected an integer from 0 to 281474976710656, got -2");
  EXPECT_EQ(
      error(R"({"dtype":"F32","shape":["2"],"data_offsets":[0,8]})"),
      ".shape[0]: expected an integer, got a string: \"2\"");
  EXPECT_EQ(
      error(R"({"dtype":"F32","shape":[2],"data_offsets":[0,1e300]})"),
      ".data_offsets[1]: expected an integer, got a number with a fraction or "
      "an exponent: 1e+300");
  EXPECT_EQ(
      error(R"({"dtype":"F32","shape":[65536,65536,65536,65536]})"),
      ".shape[3]: with this size it has more than 2^48 elements");
  EXPECT_EQ(error(R"({"dtype":"F32"})"), ": \"shape\" is missing");
  EXPECT_EQ(error("7"), ": expected an object, got 7");
  EXPECT_EQ(
      error(R"({"dtype":"F33","shape":[2],"data_offsets":[0,8]})"),
      ".dtype: safetensors has no dtype \"F33\"");
  EXPECT_EQ(
      error(R"({"dtype":"F4","shape":[3],"data_offsets":[0,2]})"),
      ": its elements have 12 bits, not a multiple of 8");
}

// Overlapping or unused bytes are errors, as in Python's safetensors.
TEST(WeightFileErrors, OfOverlapsAndGaps) {
  const Folder folder;
  const auto expect =
      [&](const std::string& header, size_t bytes, const std::string& why) {
        const auto path =
            folder.write("x", safetensors_of(header, std::string(bytes, '1')));
        EXPECT_EQ(
            error_of([&] { open_weights(path); }),
            why.empty() ? "nothing was thrown"
                        : "[open_weights] " + path + ": " + why + kEnd);
      };
  const auto two = [](const std::string& v, const std::string& w) {
    return R"({"v":{"dtype":"F32","shape":[1],"data_offsets":)" + v +
        R"(},"w":{"dtype":"F32","shape":[1],"data_offsets":)" + w + "}}";
  };
  expect(two("[4,8]", "[0,4]"), 8, "");
  expect(two("[0,4]", "[2,6]"), 6, "the weights v and w overlap");
  expect(two("[4,8]", "[4,8]"), 8, "bytes 0 to 4 belong to no weight");
  expect(two("[0,4]", "[6,10]"), 10, "bytes 4 to 6 belong to no weight");
  expect(
      two("[0,4]", "[4,8]"), 9, "its weights have 8 bytes, but its data has 9");
  expect(two("[0,4]", "[0,4]"), 4, "the weights v and w overlap");
  // Unsupported formats must also have a valid place.
  const std::string odd =
      R"({"v":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}})";
  expect(odd, 1, "");
  expect(odd, 2, "its weights have 1 bytes, but its data has 2");
}

TEST(WeightFileErrors, OfDuplicateNames) {
  const Folder folder;
  const std::string about =
      R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  const auto expect = [&](const std::string& path, const std::string& why) {
    EXPECT_EQ(
        error_of([&] { open_weights(path); }),
        "[open_weights] " + path + ": " + why + kEnd);
  };
  expect(
      folder.write(
          "a",
          safetensors_of(
              R"({"w":)" + about + R"(,"w":)" + about + "}", "1234")),
      "header: \"w\" appears twice");
  expect(
      folder.write(
          "b",
          safetensors_of(
              R"({"w":{"dtype":"F32","dtype":"I32","shape":[1],)"
              R"("data_offsets":[0,4]}})",
              "1234")),
      "header: w: \"dtype\" appears twice");
  expect(
      folder.write("c.json", R"({"weight_map":{"w":"a","w":"b"}})"),
      "weight_map: \"w\" appears twice");
  // The same names in nested objects are not duplicates.
  const auto one = R"({"w":)" + about + R"(,"v":)" +
      R"({"dtype":"F32","shape":[1],"data_offsets":[4,8]}})";
  EXPECT_EQ(
      open_weights(folder.write("d", safetensors_of(one, "12345678")))
          ->weights()
          .size(),
      2);
}

// Wrong notes of checkpoints are errors.
TEST(WeightFileErrors, OfWrongNotes) {
  const Folder folder;
  const auto expect = [&](const std::string& notes, const std::string& why) {
    const auto path = folder.write(
        "x",
        safetensors_of(
            R"({"__metadata__":{)" + notes +
                R"(},"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
            "1234"));
    EXPECT_EQ(
        error_of([&] { open_weights(path); }),
        why.empty() ? "nothing was thrown"
                    : "[open_weights] " + path + ": " + why + kEnd);
  };
  const auto sums = [](const std::string& block) {
    return R"("DTENSOR_CHECKSUMS":"{\"block\":)" + block +
        R"(,\"xxh3\":{\"w\":\"00\"}}")";
  };
  const auto offset = [](const std::string& at) {
    return R"("DCP_SHARDING_INFO":"{\"w\":{\"saved_offsets\":[)" + at +
        R"(]}}")";
  };
  const std::string block = "header: __metadata__.DTENSOR_CHECKSUMS: block: ";
  const std::string first =
      "header: __metadata__.DCP_SHARDING_INFO: w.saved_offsets[0]: ";
  const std::string range =
      "expected an integer from 0 to 281474976710656, got ";
  expect(sums("1"), "");
  expect(sums("0"), block + "the block size must be at least 1 byte");
  expect(sums("-1"), block + range + "-1");
  expect(sums("18446744073709551615"), block + range + "18446744073709551615");
  expect(
      offset("18446744073709551615"), first + range + "18446744073709551615");
  expect(
      R"("DCP_SHARDING_INFO":"{\"v\":1}")",
      "header: __metadata__.DCP_SHARDING_INFO: \"w\" is missing");
  expect(
      R"("DCP_SHARDING_INFO":"{\"w\":{\"saved_offsets\":[]}}")",
      "header: w: the numbers of saved_offsets and sizes differ");
  expect(
      R"("DCP_SHARDING_INFO":7)",
      "header: __metadata__.DCP_SHARDING_INFO: expected a string, got 7");
  expect(
      R"("a":{})",
      "header: __metadata__.a: expected a string, got an empty object");
  expect(
      offset("281474976710656"),
      "the weight w has the invalid size 281474976710657");
  expect(
      offset("5"),
      "the weight w is f32[6], but its shards hold 1 of 6 elements: files are "
      "missing");
}

// A file truncated anywhere is an error.
TEST(WeightFileErrors, OfTruncatedFiles) {
  SKIP_WITHOUT_FILES();
  const Folder folder;
  for (const auto* name : {"plain.safetensors", "quantised.gguf"}) {
    std::ifstream in(written(name), std::ios::binary);
    const std::string bytes{
        std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
    for (size_t size = 0; size < bytes.size(); size += 1 + size / 50) {
      const auto path = folder.write("cut", bytes.substr(0, size));
      EXPECT_NE(error_of([&] { open_weights(path); }), "") << name << size;
    }
  }
}

// Changed bytes give an error or a readable file.
TEST(WeightFileErrors, OfChangedBytes) {
  SKIP_WITHOUT_FILES();
  const Folder folder;
  std::mt19937 random(8);
  for (const auto* name : {"plain.safetensors", "quantised.gguf"}) {
    std::ifstream in(written(name), std::ios::binary);
    const std::string bytes{
        std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
    for (int round = 0; round < 300; ++round) {
      auto changed = bytes;
      for (int i = 0; i < 3; ++i) {
        changed[random() % 1500] = static_cast<char>(random());
      }
      const auto path = folder.write("changed", changed);
      try {
        const auto file = open_weights(path);
        for (const auto& weight : file->weights()) {
          if (numel(weight.sizes) < 10000 && weight.format != "Q5_1") {
            file->read(weight.name);
          }
        }
      } catch (const c10::ValueError&) {
      }
    }
  }
}

} // namespace TEST_SOURCE
} // namespace dtensor
