// SPDX-License-Identifier: BSD-3-Clause
// Tests examples/train: its functions, and its program on threads and
// processes.
#include <examples/train/curve.h>
#include <examples/train/run.h>
#include <tests/weights/files.h>

#include <gmock/gmock.h>

#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>

namespace TEST_SOURCE {

using dtensor::test_weights::Folder;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

training::Options small(const gpt::Text& text) {
  training::Options options;
  options.model = {
      .vocab = text.vocab(),
      .block = 16,
      .layers = 2,
      .heads = 4,
      .width = 32,
      .dropout = 0};
  options.steps = 20;
  options.batch = 12;
  options.warmup = 5;
  options.learning_rate = 1e-2;
  options.evaluate_every = 10;
  return options;
}

TEST(TrainExample, WarmsUpAndFallsInHalfACosineToATenth) {
  training::Options options;
  options.learning_rate = 2;
  options.warmup = 4;
  options.steps = 104;
  EXPECT_DOUBLE_EQ(training::learning_rate(options, 0), 0.5);
  EXPECT_DOUBLE_EQ(training::learning_rate(options, 3), 2);
  EXPECT_DOUBLE_EQ(training::learning_rate(options, 4), 2);
  EXPECT_DOUBLE_EQ(training::learning_rate(options, 54), 1.1);
  EXPECT_DOUBLE_EQ(training::learning_rate(options, 104), 0.2);
  options.warmup = 0;
  EXPECT_DOUBLE_EQ(training::learning_rate(options, 0), 2);
}

int64_t count_in(const std::string& text, const std::string& word) {
  int64_t count = 0;
  for (auto at = text.find(word); at != text.npos;
       at = text.find(word, at + 1)) {
    ++count;
  }
  return count;
}

// The curve shows three training losses going down and one held-out loss.
TEST(TrainExample, DrawsLosses) {
  training::Result result;
  result.first_step = 5;
  result.losses = {4, 3, 2};
  result.evaluations = {{8, 2.5}};
  const auto svg = training::loss_curve_svg(result);
  EXPECT_THAT(svg, HasSubstr("points=\"48.0,48.0 320.0,180.0 592.0,312.0 \""));
  EXPECT_THAT(svg, HasSubstr("<circle cx=\"592.0\" cy=\"246.0\""));
  EXPECT_THAT(svg, HasSubstr(">4.00<"));
  EXPECT_THAT(svg, HasSubstr(">2.00<"));
  EXPECT_THAT(svg, HasSubstr(">step 6<"));
  EXPECT_THAT(svg, HasSubstr(">step 8<"));
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
}

TEST(TrainExample, ComputesInBfloat16NearlyTheSame) {
  const auto text = gpt::read_text("");
  auto options = small(text);
  const auto single = training::train(options, text);
  options.fsdp = 3;
  options.bfloat16 = true;
  const auto half = training::train(options, text);
  ASSERT_EQ(half.losses.size(), 20);
  EXPECT_NE(half.losses, single.losses);
  EXPECT_LT(half.losses.back(), half.losses.front() - 0.3);
  for (size_t i = 0; i < 20; ++i) {
    EXPECT_NEAR(half.losses[i], single.losses[i], 0.05) << "step " << i;
  }
}

// A trained model also has a lower loss on held-out text. The output includes
// the cost.
TEST(TrainExample, EvaluatesAndReportsCosts) {
  const auto text = gpt::read_text("");
  auto options = small(text);
  const auto alone = training::train(options, text);
  options.fsdp = 4;
  const auto parts = training::train(options, text);
  ASSERT_EQ(alone.evaluations.size(), 2);
  ASSERT_EQ(parts.evaluations.size(), 2);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(parts.evaluations[i].step, 10 * static_cast<int64_t>(i + 1));
    EXPECT_NEAR(parts.evaluations[i].loss, alone.evaluations[i].loss, 1e-3);
  }
  EXPECT_LT(alone.evaluations[1].loss, alone.losses[0] - 0.3);
  EXPECT_GT(parts.tokens_per_second, 0);
  ASSERT_EQ(parts.state_mb.size(), 4);
  ASSERT_EQ(parts.peak_mb.size(), 4);
  for (size_t rank = 0; rank < 4; ++rank) {
    EXPECT_GT(parts.state_mb[rank], 0);
    EXPECT_LT(parts.state_mb[rank], 0.5 * alone.state_mb[0]);
    EXPECT_GE(parts.peak_mb[rank], parts.state_mb[rank]);
  }
}

#ifdef DTENSOR_TRAIN

struct Ended {
  int code = 0;
  std::string output;
};

// Runs the program on `ranks` processes, or on threads if 0.
Ended run(const Folder& folder, int ranks, const std::string& options) {
  const auto log = folder / "log";
  auto command = std::string(DTENSOR_TRAIN) +
      " --layers 2 --width 32 --block 16 --batch 12 --warmup 5"
      " --evaluate-every 6 --checkpoint-every 6 " +
      options + " >" + log + " 2>&1";
  if (ranks > 0) {
    command = std::string(DTENSOR_RUN) + " -n " + std::to_string(ranks) +
        " --no-bind " + command;
  }
  const int status = std::system(command.c_str());
  std::ifstream file(log);
  std::stringstream text;
  text << file.rdbuf();
  const Ended ended{WIFEXITED(status) ? WEXITSTATUS(status) : -1, text.str()};
  EXPECT_EQ(ended.code, 0) << command << "\n" << ended.output;
  return ended;
}

double number_after(const std::string& text, const std::string& words) {
  const auto at = text.find(words);
  if (at == text.npos) {
    ADD_FAILURE() << "no \"" << words << "\" in\n" << text;
    return -1;
  }
  return std::stod(text.substr(at + words.size()));
}

void expect_same_end(const Ended& mine, const Ended& truth) {
  for (const auto* words : {"step   12/12  loss ", "held out, step 12: "}) {
    EXPECT_NEAR(
        number_after(mine.output, words),
        number_after(truth.output, words),
        1e-3)
        << mine.output;
  }
}

// Expects each line once, for any distribution of ranks, with a number for each
// rank.
void expect_report(const Ended& ended, int ranks, const std::string& spread) {
  const auto line = std::to_string(ranks) + " ranks (" + spread + "): ";
  EXPECT_EQ(count_in(ended.output, line), 1) << ended.output;
  EXPECT_GT(number_after(ended.output, line), 0);
  for (const auto* words : {"after a step:", "peak: "}) {
    const auto at = ended.output.find(words);
    ASSERT_NE(at, std::string::npos) << ended.output;
    const auto begin = at + std::string(words).size();
    std::istringstream numbers(
        ended.output.substr(begin, ended.output.find('\n', begin) - begin));
    int count = 0;
    for (double number = 0; numbers >> number; ++count) {
      EXPECT_GT(number, 0);
    }
    EXPECT_EQ(count, ranks) << ended.output;
  }
}

// Trains on processes, stops, and resumes on other numbers of ranks.
void expect_resumes_on_other_ranks(
    int ranks,
    const std::string& options,
    const std::string& spread) {
  const Folder folder;
  const auto truth = run(folder, 0, "--steps 12");
  const auto saved = folder / "run";
  const auto svg = folder / "loss.svg";
  const auto first =
      run(folder,
          ranks,
          options + " --steps 12 --folder " + saved + " --svg " + svg);
  expect_same_end(first, truth);
  expect_report(first, ranks, spread);
  std::ifstream picture(svg);
  std::stringstream drawn;
  drawn << picture.rdbuf();
  EXPECT_EQ(count_in(drawn.str(), "<circle"), 2);
  EXPECT_EQ(count_in(drawn.str(), "<polyline"), 1);
  for (const int other : {3, 1}) {
    fs::remove_all(saved + "/step_12");
    const auto rest =
        run(folder,
            0,
            "--fsdp " + std::to_string(other) +
                " --steps 12 --resume --folder " + saved);
    EXPECT_THAT(rest.output, HasSubstr("resumes from " + saved + "/step_6"));
    expect_same_end(rest, truth);
  }
}

TEST(TrainProgram, RunsOnTwoProcesses) {
  expect_resumes_on_other_ranks(2, "--fsdp 2", "dp 1, fsdp 2, tp 1");
}

TEST(TrainProgram, RunsOnFourProcesses) {
  expect_resumes_on_other_ranks(
      4,
      "--fsdp 2 --tp 2 --sequence-parallel --accumulate 2",
      "dp 1, fsdp 2, tp 2");
}

#endif

} // namespace TEST_SOURCE
