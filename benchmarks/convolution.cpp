// SPDX-License-Identifier: BSD-3-Clause
// Times a convolution of a large image on two in-process ranks, each with half
// of the height, and on one rank with both cores. Measures the largest memory
// of a rank's tensors in a call, input and weight included. Also times a call
// on small images with a sharded batch, without communication
// (testing/fake_world.h). Checks the result of the large image once.
//
//   convolution/call/<ranks>           microseconds
//   convolution/image/<side>         microseconds
//   convolution/image_memory/<side>  megabytes of a rank
#include "harness.h"

#include <dtensor/dtensor.h>
#include <dtensor/testing/fake_world.h>
#include <examples/long_context/counted_memory.h>
#include <torch/torch.h>

#include <memory>
#include <utility>

namespace {

using namespace dtensor;

constexpr int64_t kRanks = 2;
constexpr int64_t kChannels = 8;
constexpr double kMegabyte = 1e6;

torch::Tensor convolve(const torch::Tensor& x, const torch::Tensor& weight) {
  return torch::conv2d(x, weight, /*bias=*/{}, /*stride=*/1, /*padding=*/1);
}

// A image (1, C, side, side) and the weight of a 3x3 convolution.
struct Inputs {
  torch::Tensor image;
  torch::Tensor weight;

  explicit Inputs(int64_t side)
      : image(torch::randn({1, kChannels, side, side})),
        weight(torch::randn({kChannels, kChannels, 3, 3})) {}
};

// Returns the microseconds of a call that all ranks of the group begin
// together.
template <typename Call>
double time_together(Group& group, const Call& call) {
  group.barrier();
  const double begin = bench::now();
  call();
  group.barrier();
  return (bench::now() - begin) * 1e6;
}

void time_image(int64_t side, const bench::Options& options) {
  const int samples = options.smoke ? 1 : 15;
  run_ranks(kRanks, [&] {
    const torch::NoGradGuard no_grad;
    const auto mesh = init_device_mesh(torch::kCPU, {kRanks});
    auto& group = get_group(mesh);
    const Inputs plain(side);
    const auto image = distribute_tensor(plain.image, mesh, {Shard(2)});
    const auto weight = distribute_tensor(plain.weight, mesh, {Replicate()});
    TORCH_CHECK(
        torch::allclose(
            to_local(convolve(image, weight)),
            convolve(plain.image, plain.weight)
                .chunk(kRanks, 2)[static_cast<size_t>(group.rank())],
            1e-4,
            1e-4),
        "the convolution differs from the plain one");
    bench::Turns turns;
    for (int i = 0; i <= samples; ++i) {
      const double plain_us = time_together(group, [&] {
        if (group.rank() == 0) {
          torch::set_num_threads(kRanks);
          convolve(plain.image, plain.weight);
        }
      });
      torch::set_num_threads(1);
      const double us = time_together(group, [&] { convolve(image, weight); });
      if (i > 0 || options.smoke) {
        turns.add(us, plain_us);
      }
    }
    if (group.rank() == 0) {
      turns.report("convolution/image/" + std::to_string(side));
    }
  });
}

// Returns the largest memory that the call's thread held at once.
template <typename Call>
double peak_megabytes(const Call& call) {
  memory_account = std::make_shared<MemoryAccount>();
  call();
  const auto account = std::exchange(memory_account, nullptr);
  return static_cast<double>(account->peak) / kMegabyte;
}

void count_memory(int64_t side) {
  const double plain = peak_megabytes([&] {
    const torch::NoGradGuard no_grad;
    const Inputs inputs(side);
    convolve(inputs.image, inputs.weight);
  });
  double largest = 0;
  run_ranks(kRanks, [&] {
    const torch::NoGradGuard no_grad;
    const auto mesh = init_device_mesh(torch::kCPU, {kRanks});
    const double mine = peak_megabytes([&] {
      const auto image =
          dtensor::randn({1, kChannels, side, side}, mesh, {Shard(2)});
      const auto weight =
          dtensor::randn({kChannels, kChannels, 3, 3}, mesh, {Replicate()});
      convolve(image, weight);
    });
    const auto all = get_group(mesh).all_reduce(
        torch::full({1}, mine, torch::kDouble), ReduceOp::kMax);
    if (get_rank() == 0) {
      largest = all.item<double>();
    }
  });
  bench::report(
      "convolution/image_memory/" + std::to_string(side),
      {{"mb", largest}, {"plain_mb", plain}, {"times", largest / plain}});
}

void time_call(int64_t ranks, const bench::Options& options) {
  constexpr int64_t kSide = 8;
  constexpr int64_t kSamples = 2;
  constexpr int64_t kFew = 2;
  dtensor::testing::with_fake_world(0, ranks, [&] {
    const torch::NoGradGuard no_grad;
    const auto mesh = init_device_mesh(torch::kCPU, {ranks});
    const auto whole = torch::randn({kSamples, kFew, kSide, kSide});
    const auto x = distribute_tensor(whole, mesh, {Shard(0)}, std::nullopt);
    const auto kernel = torch::randn({kFew, kFew, 3, 3});
    const auto weight =
        distribute_tensor(kernel, mesh, {Replicate()}, std::nullopt);
    bench::run_pair(
        "convolution/call/" + std::to_string(ranks),
        [&] { convolve(x, weight); },
        [&, local = to_local(x).clone()] { convolve(local, kernel); },
        options);
  });
}

} // namespace

int main(int argc, char** argv) {
  const auto options =
      bench::parse(argc, argv, "A convolution of a image sharded in space");
  torch::set_num_threads(1);
  time_call(2, options);
  CountingAllocator::install();
  const int64_t side = options.smoke ? 512 : 4096;
  if (options.wants("convolution/image/")) {
    time_image(side, options);
  }
  if (options.wants("convolution/image_memory/")) {
    count_memory(side);
  }
}
