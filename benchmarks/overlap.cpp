// SPDX-License-Identifier: BSD-3-Clause
// Gain of overlapping communication with computation on two in-process ranks.
// Compares a rowwise linear in chunks with an unchunked one. Compares
// all-reduces that are waited for after further work with all-reduces that are
// waited for immediately, with equal work on both ranks and with alternating
// extra work.
//
//   overlap/rowwise/<rows>x<in>x<out>/<chunks>
//   overlap/beside_mm/<bytes>/sync, async
//   overlap/uneven_work/sync, async
//
// On two processes, over a backend that makes progress in the background, the
// gain of styles with asynchronous collectives:
//
//   DTENSOR_BACKEND=gloo dtensor-run -n 2 overlap
//   overlap/gloo/beside_mm/<bytes>/sync, async
//   overlap/gloo/colwise/<rows>x<in>x<out>/off, on
#include "harness.h"

#include <dtensor/comm/backend_layer.h>
#include <dtensor/dtensor.h>
#include <torch/torch.h>

#include <cstdlib>
#include <map>
#include <optional>

namespace {

using namespace dtensor;

constexpr int64_t kRanks = 2;
constexpr int kSamples = 31;

/// Versions of the same work, by the names of their results.
using Ways = std::map<std::string, std::function<void()>>;

// Measures the versions in turn. The barrier starts all ranks together.
void measure(const Ways& ways, const bench::Options& options) {
  auto& group = get_group(init_device_mesh(torch::kCPU, {kRanks}));
  std::map<std::string, std::vector<double>> us;
  for (int i = 0; i < (options.smoke ? 1 : kSamples + 3); ++i) {
    for (const auto& [name, work] : ways) {
      group.barrier();
      const double begin = bench::now();
      work();
      if (i >= 3 || options.smoke) {
        us[name].push_back((bench::now() - begin) * 1e6);
      }
    }
  }
  if (group.rank() != 0) {
    return;
  }
  for (const auto& [name, times] : us) {
    const double figure = bench::median(times);
    bench::report(
        name, {{"us", figure}, {"spread", bench::spread(times, figure)}});
  }
}

struct Shape {
  int64_t rows, in, out;
  std::string text() const {
    return std::to_string(rows) + "x" + std::to_string(in) + "x" +
        std::to_string(out);
  }
};

void rowwise(const Shape& shape, const bench::Options& options) {
  const auto mesh = init_device_mesh(torch::kCPU, {kRanks});
  const auto x = torch::randn({shape.rows, shape.in / kRanks});
  Ways ways;
  for (const int64_t chunks : {1, 2, 4, 8}) {
    const auto name =
        "overlap/rowwise/" + shape.text() + "/" + std::to_string(chunks);
    if (!options.wants(name)) {
      continue;
    }
    torch::nn::Linear linear(shape.in, shape.out);
    parallelize_module(
        *linear, mesh, RowwiseParallel({.overlap_chunks = chunks}));
    ways[name] = [linear, x]() mutable { linear(x); };
  }
  measure(ways, options);
}

void beside_mm(
    const std::string& over,
    int64_t bytes,
    const bench::Options& options) {
  const auto mesh = init_device_mesh(torch::kCPU, {kRanks});
  const auto part =
      DTensor::from_local(torch::randn({bytes / 4}), mesh, {Partial()});
  const auto a = torch::randn({256, 256});
  Ways ways;
  for (const bool async : {false, true}) {
    const auto name = "overlap/" + over + "beside_mm/" + std::to_string(bytes) +
        (async ? "/async" : "/sync");
    if (!options.wants(name)) {
      continue;
    }
    ways[name] = [=] {
      // A tensor without other owners, like the result of a product.
      DTensor term(part * 2);
      const DTensor sum =
          redistribute(std::move(term), {Replicate()}, {.async_op = async});
      a.mm(a);
      sum.to_local();
    };
  }
  measure(ways, options);
}

// Eight rounds of a reduction. In each round, one of the ranks computes three
// times as many products as the other. The sum of a round is needed after the
// next round's work.
void uneven_work(const bench::Options& options) {
  constexpr int64_t kRounds = 8;
  const auto mesh = init_device_mesh(torch::kCPU, {kRanks});
  const auto part =
      DTensor::from_local(torch::randn({1 << 14}), mesh, {Partial()});
  const auto a = torch::randn({256, 256});
  Ways ways;
  for (const bool async : {false, true}) {
    const std::string name =
        std::string("overlap/uneven_work/") + (async ? "async" : "sync");
    if (!options.wants(name)) {
      continue;
    }
    ways[name] = [=] {
      std::optional<DTensor> last;
      for (int64_t round = 0; round < kRounds; ++round) {
        const bool busy = (round + mesh.get_local_rank()) % kRanks == 0;
        for (int i = 0; i < (busy ? 3 : 1); ++i) {
          a.mm(a);
        }
        if (last) {
          last->to_local();
        }
        DTensor term(part * 2);
        last =
            redistribute(std::move(term), {Replicate()}, {.async_op = async});
      }
      last->to_local();
    };
  }
  measure(ways, options);
}

// A backend that reports no background progress, so styles do not overlap.
class Waiting final : public dtensor::BackendLayer {
 public:
  using BackendLayer::BackendLayer;
  bool progresses_in_background(c10::DeviceType /*device*/) const override {
    return false;
  }
};

// Measures forward and backward.
void colwise(
    const std::string& backend,
    const Shape& shape,
    const bench::Options& options) {
  const auto x = torch::randn({shape.rows, shape.in}).requires_grad_();
  const auto grad = torch::randn({shape.rows, shape.out / kRanks});
  Ways ways;
  for (const bool overlaps : {false, true}) {
    const auto name = "overlap/" + backend + "/colwise/" + shape.text() +
        (overlaps ? "/on" : "/off");
    if (!options.wants(name)) {
      continue;
    }
    const auto mesh = init_device_mesh(
        torch::kCPU,
        {kRanks},
        {"tp"},
        {{{"tp", {.backend = overlaps ? backend : "waiting"}}}});
    torch::nn::Linear linear(shape.in, shape.out);
    parallelize_module(*linear, mesh, ColwiseParallel());
    ways[name] = [=]() mutable { linear(x).backward(grad); };
  }
  measure(ways, options);
}

void on_threads(const bench::Options& options) {
  const torch::NoGradGuard no_grad;
  for (const Shape& shape :
       {Shape{512, 1024, 256}, Shape{64, 1536, 576}, Shape{2048, 4096, 1024}}) {
    rowwise(shape, options);
  }
  for (const int64_t bytes : {1 << 16, 1 << 22}) {
    beside_mm("", bytes, options);
  }
  uneven_work(options);
}

void on_processes(const std::string& backend, const bench::Options& options) {
  {
    const torch::NoGradGuard no_grad;
    for (const int64_t bytes : {1 << 16, 1 << 22}) {
      beside_mm(backend + "/", bytes, options);
    }
  }
  for (const Shape& shape : {Shape{512, 1024, 1024}, Shape{2048, 1024, 4096}}) {
    colwise(backend, shape, options);
  }
}

} // namespace

int main(int argc, char** argv) {
  const auto options = bench::parse(
      argc,
      argv,
      "Communication that overlaps work, compared with communication after it");
  if (!launched()) {
    run_ranks(kRanks, [&] { on_threads(options); }, {.intra_op_threads = 1});
    return 0;
  }
  const char* const named = std::getenv("DTENSOR_BACKEND");
  const std::string backend = named == nullptr ? "gloo" : named;
  register_backend(
      "waiting", [backend](GroupMembers members, const RendezvousInfo& place) {
        return std::make_shared<Waiting>(
            dtensor::detail::find_backend(backend)(std::move(members), place));
      });
  torch::set_num_threads(1);
  run_world(
      kRanks,
      [&] { on_processes(backend, options); },
      {.processes = {.backend = backend}});
}
