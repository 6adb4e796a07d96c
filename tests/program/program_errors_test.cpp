// SPDX-License-Identifier: BSD-3-Clause
// Tests the errors for bad programs, bad files and bad inputs.
#include "exported.h"
#include "tests/weights/files.h"

#include <dtensor/dtensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <array>
#include <fstream>

namespace dtensor {
namespace TEST_SOURCE {

using test_program::exported;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::StartsWith;

// Returns the error with FILE for the path.
template <class Error, class Call>
std::string message_of(const std::string& path, const Call& call) {
  std::string message = "no error";
  try {
    call();
  } catch (const Error& error) {
    message = error.what_without_backtrace();
  }
  for (size_t at = message.find(path); at != std::string::npos;
       at = message.find(path)) {
    message.replace(at, path.size(), "FILE");
  }
  return message;
}

template <class Error = c10::ValueError>
std::string load_error(const std::string& name) {
  const auto path = exported(name);
  return message_of<Error>(path, [&] { load_program(path); });
}

TEST(ProgramErrors, NameTheFileThatIsNotAProgram) {
  EXPECT_THAT(load_error("missing"), HasSubstr("FILE"));
  EXPECT_THAT(
      load_error("truncated"),
      StartsWith("[open_weights] FILE: truncated or damaged archive: "));
  EXPECT_THAT(
      load_error("noise"),
      StartsWith("[open_weights] FILE: truncated or damaged archive: "));
  EXPECT_EQ(
      load_error("no_graph"),
      "[load_program] FILE contains 0 programs under models/, expected 1. "
      "Write it with torch.export.save() of PyTorch 2.8 or newer.");
  EXPECT_EQ(
      load_error("torchscript"),
      "[load_program] FILE is a TorchScript file, not an exported program. "
      "Load it with torch::jit::load(), link dtensor::torchscript, and call "
      "parallelize_script() or tp_transform() "
      "(dtensor/contrib/torchscript/parallelize_script.h).");
  // The minor version is 17 for PyTorch 2.11, and 20 for later versions.
  EXPECT_THAT(
      load_error("newer"),
      MatchesRegex(
          "\\[load_program\\] FILE is not a readable exported program: its "
          "format version is 9\\.(17|20), but this library reads 8\\.x\\. "
          "Write it with torch\\.export\\.save\\(\\) of PyTorch 2\\.8 or "
          "newer\\."));
  EXPECT_THAT(load_error("cut_json"), StartsWith("[open_weights] FILE"));
  EXPECT_THAT(
      load_error("cut_graph"),
      AllOf(
          StartsWith(
              "[load_program] FILE: models/model.json: invalid JSON at byte "),
          HasSubstr(
              "Write it with torch.export.save() of PyTorch 2.8 or newer.")));
}

TEST(ProgramErrors, NameTheLineOfACallThatCannotRun) {
  const auto unknown = load_error<c10::NotImplementedError>("unknown");
  EXPECT_THAT(
      unknown,
      StartsWith("[load_program] FILE: torch.ops.aten.rolu.default at "));
  EXPECT_THAT(unknown, HasSubstr("export_models.py:"));
  EXPECT_THAT(
      unknown,
      HasSubstr("h = torch.relu(self.a(x)) cannot be run: no such operator is "
                "registered. Load the library that registers it, or use the "
                "LibTorch that the program was exported with."));
  EXPECT_THAT(
      load_error<c10::NotImplementedError>("argument"),
      HasSubstr("cannot be run: it has no argument split_sizes."));
}

// Returns "export_models.py:12: x = f(y)" for the only line that begins with
// `begin`.
std::string line_of_source(const std::string& begin) {
  const std::string path =
      std::string(DTENSOR_TESTS_DIR) + "/program/export_models.py";
  std::ifstream script(path);
  std::string line;
  for (int number = 1; std::getline(script, line); ++number) {
    const auto at = line.find(begin);
    if (at != std::string::npos) {
      return c10::str(path, ":", number, ": ", line.substr(at));
    }
  }
  return "no line " + begin;
}

// Errors name the line of higher-order operators, which take graphs as
// arguments.
TEST(ProgramErrors, NameTheLineOfACallThatTakesGraphs) {
  const std::vector<std::array<std::string, 3>> calls = {
      {"branches", "cond", "return torch.cond("},
      {"looping", "while_loop", "return while_loop("},
      {"mapped", "map_impl", "return map_rows("},
      {"scanned", "scan", "return scan("}};
  for (const auto& [model, call, line] : calls) {
    EXPECT_EQ(
        load_error<c10::NotImplementedError>(model),
        "[load_program] FILE: torch.ops.higher_order." + call + " at " +
            line_of_source(line) +
            " cannot be run: it takes graphs as arguments, which is not "
            "supported. Export the model without it, or export its branches "
            "as separate models.");
  }
}

TEST(ProgramErrors, ListTheExportedInputs) {
  const auto path = exported("transformer");
  auto program = load_program(path);
  const auto call_error = [&](const std::vector<at::Tensor>& inputs) {
    return message_of<c10::Error>(path, [&] { program(inputs); });
  };
  const auto ids = torch::zeros({2, 8}, torch::kLong);
  EXPECT_EQ(
      call_error({}),
      "[Program] FILE takes 1 input (ids), got 0. Pass them in this order.");
  EXPECT_THAT(
      call_error({ids.to(torch::kFloat)}),
      StartsWith("[Program] input ids of FILE is f32[2, 8], but the program "
                 "was exported for i64[s"));
  EXPECT_THAT(
      call_error({torch::zeros({2, 17}, torch::kLong)}),
      HasSubstr(" from 2 to 16. Pass a tensor of that dtype and shape, or "
                "export the program with dynamic_shapes."));
  EXPECT_THAT(call_error({at::Tensor()}), HasSubstr("Pass a tensor."));
  auto mixed = load_program(exported("mixed"));
  EXPECT_THAT(
      message_of<c10::ValueError>(
          exported("mixed"),
          [&] {
            mixed({torch::ones({3, 4}), torch::ones({4})});
          }),
      StartsWith("[Program] FILE returns 3 values. Call run()."));
  EXPECT_THAT(
      message_of<c10::ValueError>(
          exported("mixed"),
          [&] {
            mixed.run({torch::ones({3, 4}), torch::ones({5})});
          }),
      StartsWith("[Program] input more_k of FILE is f32[5], but the program "
                 "was exported for f32[4]. "));
}

// Errors name scopes that export did not record. Python's exported module does
// not run without them either.
TEST(ProgramErrors, NameScopesThatExportDidNotRecord) {
  const auto path = exported("autocast_strict");
  auto program = load_program(path);
  EXPECT_THAT(
      message_of<c10::ValueError>(
          path,
          [&] {
            program.run({torch::rand({5, 8})});
          }),
      HasSubstr(
          "a value in an autocast scope is bf16, but was exported as f32. "
          "Export the model with strict=False, which records the casts."));
}

TEST(ProgramErrors, NameTheModuleWhoseOperatorFailed) {
  const auto path = exported("transformer");
  auto program = load_program(path);
  const auto message = message_of<c10::Error>(path, [&] {
    program({torch::full({2, 8}, 99, torch::kLong)});
  });
  EXPECT_THAT(message, HasSubstr("index out of range"));
  EXPECT_THAT(message, HasSubstr("in aten::embedding of tokens at "));
  EXPECT_THAT(message, HasSubstr("x = self.tokens(ids)"));
}

TEST(ProgramErrors, RefuseASecondPlan) {
  const auto path = exported("transformer");
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    auto program = load_program(path);
    EXPECT_THAT(
        message_of<c10::ValueError>(
            path,
            [&] {
              parallelize_program(
                  program, mesh, {{"absent", ColwiseParallel()}});
            }),
        HasSubstr("no submodule matches \"absent\""));
    // Local shapes conflict with a graph of global shapes.
    EXPECT_THAT(
        message_of<c10::ValueError>(
            path,
            [&] {
              parallelize_program(
                  program,
                  mesh,
                  {{"blocks.*.attn.k",
                    ColwiseParallel(
                        {.multiple_of = 4, .num_query_heads = 12})}});
            }),
        HasSubstr(
            "with num_query_heads the output is a plain tensor of the heads "
            "that this rank needs, not a DTensor in S(-1)"));
    parallelize_program(program, mesh);
    EXPECT_EQ(
        message_of<c10::Error>(
            path, [&] { parallelize_program(program, mesh); }),
        "[parallelize_program] FILE is already parallelized on (tp=2). Load "
        "it again.");
  });
}

TEST(ProgramInputs, AreTheExportedSamples) {
  const auto program = load_program(exported("mixed"));
  const auto samples = program.sample_inputs();
  ASSERT_EQ(samples.size(), 2U);
  EXPECT_EQ(samples[0].sizes(), at::IntArrayRef({3, 4}));
  EXPECT_TRUE(samples[1].equal(torch::ones({4})));
  EXPECT_EQ(program.input_names(), (std::vector<std::string>{"x", "more_k"}));
}

TEST(ProgramWeights, AreReadByOpenWeightsToo) {
  const auto file = open_weights(exported("views"));
  const auto w = file->read("w");
  EXPECT_TRUE(file->read("t").equal(w.t()) || file->read("t").numel() == 48);
  EXPECT_EQ(file->find("coarse")->format, "BF16");
  EXPECT_EQ(file->read("one").item<int64_t>(), 3);
  EXPECT_EQ(file->read("none").sizes(), at::IntArrayRef({0, 8}));
  const auto part = at::empty({2, 3});
  file->read("t", {{{1, 3}}, {{0, 1}, {4, 6}}}, part);
  const auto whole = file->read("t");
  EXPECT_TRUE(part.equal(
      whole.narrow(0, 1, 2).index_select(1, torch::tensor({0, 4, 5}))));
  const auto tied = open_weights(exported("transformer"));
  EXPECT_TRUE(tied->is_same("head.weight", "tokens.weight"));
  EXPECT_FALSE(tied->is_same("head.weight", "places.weight"));
}

} // namespace TEST_SOURCE
} // namespace dtensor
