// SPDX-License-Identifier: BSD-3-Clause
// Tests truncated and changed program files: an error that names the file, or
// the same results.
#include "exported.h"
#include "tests/weights/files.h"

#include <dtensor/dtensor.h>
#include <dtensor/weights/pt2_archive_impl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstring>
#include <iterator>
#include <random>

namespace dtensor {
namespace TEST_SOURCE {

using test_program::exported;
using test_weights::Folder;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string bytes_of(const std::string& name) {
  std::ifstream in(exported(name), std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<at::Tensor> results_of(const std::string& path) {
  auto program = load_program(path);
  std::vector<c10::IValue> inputs;
  for (const auto& input : program.sample_inputs()) {
    inputs.emplace_back(input);
  }
  std::vector<at::Tensor> results;
  for (const auto& result : program.run(std::move(inputs))) {
    if (result.isTensor()) {
      results.push_back(result.toTensor());
    }
  }
  return results;
}

// Returns the error, or "" if the file gives the same results as the intact
// file.
std::string refusal_of(
    const std::string& path,
    const std::vector<at::Tensor>& truth) {
  try {
    const auto results = results_of(path);
    EXPECT_EQ(results.size(), truth.size());
    for (size_t i = 0; i < truth.size(); ++i) {
      EXPECT_TRUE(results.at(i).equal(truth[i])) << "result " << i;
    }
  } catch (const c10::ValueError& error) {
    const std::string text = error.what_without_backtrace();
    EXPECT_THAT(text, StartsWith("["));
    EXPECT_THAT(text, HasSubstr(path));
    return text;
  }
  return "";
}

TEST(ProgramDamage, AnyTruncationIsAnError) {
  const Folder folder;
  const auto bytes = bytes_of("mixed");
  for (size_t size = 0; size < bytes.size(); size += 1 + size / 50) {
    const auto path = folder.write("cut.pt2", bytes.substr(0, size));
    EXPECT_NE(refusal_of(path, {}), "") << size << " bytes";
  }
  // Truncates the last 1 to 29 bytes.
  for (size_t less = 1; less < 30; ++less) {
    const auto path =
        folder.write("cut.pt2", bytes.substr(0, bytes.size() - less));
    EXPECT_NE(refusal_of(path, {}), "") << less << " bytes less";
  }
}

TEST(ProgramDamage, ChangedBytesAreAnErrorOrHarmless) {
  const Folder folder;
  const auto bytes = bytes_of("mixed");
  const auto truth = results_of(exported("mixed"));
  std::mt19937 random(8);
  int refused = 0;
  for (int round = 0; round < 600; ++round) {
    auto changed = bytes;
    // Changes one bit, or three bytes.
    if (round % 2 == 0) {
      changed[random() % bytes.size()] ^= static_cast<char>(1 << random() % 8);
    } else {
      for (int i = 0; i < 3; ++i) {
        changed[random() % bytes.size()] = static_cast<char>(random());
      }
    }
    const auto path = folder.write("changed.pt2", changed);
    SCOPED_TRACE(round);
    refused += refusal_of(path, truth).empty() ? 0 : 1;
  }
  EXPECT_GT(refused, 400); // padding, dates and similar bytes are not checked
}

// Offsets of a record's bytes and of its checksum in the file.
struct Record {
  size_t begin = 0;
  uint32_t size = 0;
  size_t checksum = 0;
};

Record record_of(const std::string& bytes, const std::string& name) {
  Record record;
  uint16_t extra = 0;
  const auto header = bytes.find(name);
  const auto entry = bytes.rfind(name);
  std::memcpy(&extra, &bytes.at(header - 2), sizeof(extra));
  std::memcpy(&record.size, &bytes.at(entry - 22), sizeof(record.size));
  record.begin = header + name.size() + extra;
  record.checksum = entry - 30;
  return record;
}

// A modified graph with a correct checksum, which only an attacker would write,
// gives an error or runs.
TEST(ProgramDamage, OtherGraphsAreAnErrorOrRun) {
  const Folder folder;
  const auto bytes = bytes_of("mixed");
  const auto record = record_of(bytes, "mixed/models/model.json");
  std::mt19937 random(9);
  int run = 0;
  for (int round = 0; round < 400; ++round) {
    auto changed = bytes;
    for (bool done = false; !done;) {
      auto& c = changed[record.begin + random() % record.size];
      done = std::isalnum(static_cast<unsigned char>(c)) != 0;
      c = std::isdigit(static_cast<unsigned char>(c)) != 0
          ? static_cast<char>('0' + random() % 10)
          : std::isalpha(static_cast<unsigned char>(c)) != 0
          ? static_cast<char>('a' + random() % 26)
          : c;
    }
    const auto crc32 = detail::crc32_of(
        reinterpret_cast<const std::byte*>(&changed[record.begin]),
        record.size);
    std::memcpy(&changed[record.checksum], &crc32, sizeof(crc32));
    const auto path = folder.write("changed.pt2", changed);
    try {
      results_of(path);
      ++run;
    } catch (const c10::Error&) {
    }
  }
  EXPECT_GT(run, 50);
}

// Writes the file with one bit of that weight changed.
std::string with_other_bits(const Folder& folder, const std::string& weight) {
  auto bytes = bytes_of("mixed");
  const auto whole = open_weights(exported("mixed"))->read(weight);
  const std::string data(
      static_cast<const char*>(whole.data_ptr()), whole.nbytes());
  bytes[bytes.find(data) + 2] ^= 1;
  return folder.write("changed.pt2", bytes);
}

// The file has one checksum per weight, so damage is detected if the full
// weight is read.
TEST(ProgramDamage, IsDetectedInAWeightThatIsReadCompletely) {
  const Folder folder;
  const auto path = with_other_bits(folder, "a.weight");
  EXPECT_EQ(
      refusal_of(path, {}),
      "[WeightFile::read] \"a.weight\" in " + path +
          " is damaged: wrong checksum. Copy the file again.");
  const auto rows = torch::empty({3, 4});
  open_weights(path)->read("a.weight", {{{0, 3}}, {{0, 4}}}, rows);
  // Several ranks detect damage too, if each reads the full weight.
  run_ranks(2, [&] {
    auto program = load_program(path);
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    EXPECT_THROW(parallelize_program(program, mesh), c10::ValueError);
    auto cut = load_program(path);
    parallelize_program(cut, mesh, {{"a", ColwiseParallel()}});
  });
}

TEST(ProgramDamage, IsDetectedInAGraph) {
  const Folder folder;
  auto bytes = bytes_of("mixed");
  const auto target = bytes.find("torch.ops.aten.relu");
  bytes[target + std::strlen("torch.ops.aten.")] = 's'; // selu
  const auto path = folder.write("changed.pt2", bytes);
  EXPECT_THAT(
      refusal_of(path, {}),
      StartsWith(
          "[open_weights] " + path +
          ": models/model.json is damaged: wrong checksum. "));
}

// CRC-32 is that of zlib and Python.
TEST(Crc32, IsThatOfZips) {
  const auto crc = [](const std::string& text) {
    return detail::crc32_of(
        reinterpret_cast<const std::byte*>(text.data()), text.size());
  };
  EXPECT_EQ(crc(""), 0U);
  EXPECT_EQ(crc("123456789"), 0xcbf43926U);
  EXPECT_EQ(crc("The quick brown fox jumps over the lazy dog"), 0x414fa339U);
}

} // namespace TEST_SOURCE
} // namespace dtensor
