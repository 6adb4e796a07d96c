// SPDX-License-Identifier: BSD-3-Clause
// Trace: the file has the trace event format and records every operator's
// thread.
#include <ATen/record_function.h>
#include <dtensor/debug/trace.h>
#include <tests/debug/json.h>
#include <tests/parallel/modules.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <optional>
#include <set>
#include <sstream>

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::test_modules;
using namespace dtensor::testing;

// Returns a rank's events that have a time.
std::vector<Json> events(const Json& trace, int64_t rank) {
  std::vector<Json> found;
  for (const auto& event : trace["traceEvents"].items) {
    if (event["ph"].text == "X" &&
        event["pid"].number == static_cast<double>(rank)) {
      found.push_back(event);
    }
  }
  return found;
}

std::vector<Json> of_category(
    const std::vector<Json>& events,
    const std::string& category) {
  std::vector<Json> found;
  for (const auto& event : events) {
    if (event["cat"].text == category) {
      found.push_back(event);
    }
  }
  return found;
}

double end(const Json& event) {
  return event["ts"].number + event["dur"].number;
}

Json trace_of_mlp() {
  Trace trace;
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    auto mlp = filled(Mlp(4, 8));
    parallelize_module(*mlp, mesh, mlp_plan());
    const TraceMode mode(trace, *mlp);
    RECORD_USER_SCOPE("a step");
    mlp(uniform({3, 4}, 3).requires_grad_(true)).sum().backward();
  });
  return read_json(trace.to_json());
}

TEST(Trace, HasTheCollectivesOfEveryRank) {
  const auto trace = trace_of_mlp();
  for (int64_t rank = 0; rank < 2; ++rank) {
    const auto found = of_category(events(trace, rank), "collective");
    ASSERT_EQ(found.size(), 2) << rank;
    std::vector<std::string> texts;
    for (const auto& event : found) {
      const auto& args = event["args"];
      texts.push_back(c10::str(
          event["name"].text,
          " on ",
          args["mesh_dim"].text,
          " of ",
          args["ranks"].number,
          ", ",
          args["bytes"].number,
          " bytes, ",
          args["sent"].number,
          " sent, ",
          args["module"].text,
          " ",
          args["pass"].text));
    }
    EXPECT_EQ(
        texts,
        (std::vector<std::string>{
            "dtensor::all_reduce on tp of 2, 96 bytes, 96 sent, w2 forward",
            "dtensor::all_reduce on tp of 2, 96 bytes, 96 sent, w1 backward"}));
  }
}

TEST(Trace, HasOperatorsNodesAndRanges) {
  const auto all = events(trace_of_mlp(), 0);
  const auto operators = of_category(all, "operator");
  const auto product =
      std::find_if(operators.begin(), operators.end(), [](const Json& event) {
        return event["name"].text == "aten::addmm";
      });
  ASSERT_NE(product, operators.end());
  EXPECT_EQ((*product)["args"]["module"].text, "w1");
  EXPECT_EQ((*product)["args"]["mesh"].text, "(tp=2)");
  EXPECT_EQ((*product)["args"]["operands"].items[2].text, "f64[4, 8] S(1)");
  std::set<std::string> modules;
  for (const auto& node : of_category(all, "node")) {
    EXPECT_EQ(node["args"]["pass"].text, "backward");
    if (node["args"].has("module")) {
      modules.insert(node["args"]["module"].text);
    }
  }
  EXPECT_EQ(modules, (std::set<std::string>{"w1", "w2"}));
  ASSERT_EQ(of_category(all, "range").size(), 1);
  EXPECT_EQ(of_category(all, "range")[0]["name"].text, "a step");
}

// Events of a thread are nested or disjoint.
TEST(Trace, EventsNest) {
  const auto trace = trace_of_mlp();
  for (int64_t rank = 0; rank < 2; ++rank) {
    const auto all = events(trace, rank);
    ASSERT_GT(all.size(), 10);
    std::vector<double> open;
    double last = 0;
    for (const auto& event : all) {
      const double begin = event["ts"].number;
      EXPECT_EQ(event["tid"].number, 0);
      EXPECT_GE(event["dur"].number, 0);
      EXPECT_GE(begin, last);
      last = begin;
      while (!open.empty() && open.back() <= begin) {
        open.pop_back();
      }
      EXPECT_TRUE(open.empty() || end(event) <= open.back() + 0.002)
          << event["name"].text;
      open.push_back(end(event));
    }
  }
}

TEST(Trace, NamesRanks) {
  const auto trace = trace_of_mlp();
  std::set<std::string> names;
  for (const auto& event : trace["traceEvents"].items) {
    if (event["name"].text == "process_name") {
      EXPECT_EQ(event["ph"].text, "M");
      names.insert(event["args"]["name"].text);
    }
  }
  EXPECT_EQ(names, (std::set<std::string>{"rank 0", "rank 1"}));
}

TEST(Trace, GathersAndWaitsAreCollectivesAndWaits) {
  Trace trace;
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    const DTensor x(distribute_tensor(uniform({4, 4}, 3), mesh, {Shard(0)}));
    const TraceMode mode(trace);
    to_local(x.redistribute({Replicate()})).sum();
    to_local(x.redistribute({Replicate()}, {.async_op = true})).sum();
  });
  const auto all = events(read_json(trace.to_json()), 0);
  const auto collectives = of_category(all, "collective");
  ASSERT_EQ(collectives.size(), 2);
  EXPECT_EQ(collectives[0]["name"].text, "dtensor::all_gather");
  EXPECT_EQ(collectives[1]["name"].text, "dtensor::all_gather_async");
  for (const auto& event : collectives) {
    EXPECT_EQ(event["args"]["bytes"].number, 64);
    EXPECT_EQ(event["args"]["pass"].text, "forward");
  }
  EXPECT_EQ(of_category(all, "wait").size(), 1);
}

TEST(Trace, IsAFileAndEndsWithItsMode) {
  Trace trace;
  {
    const TraceMode mode(trace);
    at::ones({2}).mul(2);
  }
  at::ones({2}).div(2);
  EXPECT_FALSE(at::hasCallbacks());
  const auto file = ::testing::TempDir() + "trace.json";
  trace.write(file);
  std::ifstream stream(file);
  std::ostringstream text;
  text << stream.rdbuf();
  EXPECT_EQ(text.str(), trace.to_json());
  std::set<std::string> names;
  for (const auto& event : events(read_json(text.str()), 0)) {
    names.insert(event["name"].text);
  }
  EXPECT_EQ(names.count("aten::mul.Tensor"), 1);
  EXPECT_EQ(names.count("aten::div.Tensor"), 0);
  std::remove(file.c_str());
  EXPECT_EQ(
      error_of([&] { trace.write("/no/such/folder/x"); }),
      "[Trace] cannot write \"/no/such/folder/x\": No such file or directory. "
      "Pass the name of a file in a folder that exists.");
}

TEST(Trace, ARangeThatBeganBeforeItIsNotInIt) {
  Trace trace;
  {
    RECORD_USER_SCOPE("outside");
    const TraceMode mode(trace);
    {
      RECORD_USER_SCOPE("inside");
      at::ones({2});
    }
  }
  const auto ranges =
      of_category(events(read_json(trace.to_json()), 0), "range");
  ASSERT_EQ(ranges.size(), 1);
  EXPECT_EQ(ranges[0]["name"].text, "inside");
}

TEST(Trace, ARangeOfAnOuterModeIsNotInIt) {
  Trace outer;
  Trace inner;
  {
    const TraceMode outer_mode(outer);
    std::optional<TraceMode> inner_mode;
    {
      RECORD_USER_SCOPE("outside");
      inner_mode.emplace(inner);
    }
    RECORD_USER_SCOPE("inside");
  }
  const auto names = [](const Trace& trace) {
    std::set<std::string> all;
    for (const auto& event :
         of_category(events(read_json(trace.to_json()), 0), "range")) {
      all.insert(event["name"].text);
    }
    return all;
  };
  EXPECT_EQ(names(inner), std::set<std::string>{"inside"});
  EXPECT_EQ(names(outer), (std::set<std::string>{"inside", "outside"}));
}

} // namespace TEST_SOURCE
} // namespace dtensor
