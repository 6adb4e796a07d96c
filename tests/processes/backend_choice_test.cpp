// SPDX-License-Identifier: BSD-3-Clause
// Names of backends, and errors of backends that are not available.
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <dtensor/comm/processes/backend_choice_impl.h>
#include <dtensor/comm/processes/built_in_backends_impl.h>
#include <gmock/gmock.h>
#include <tests/comm/expect_error.h>
#include <tests/gpu.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <cstdlib>

namespace dtensor {
namespace TEST_SOURCE {

using detail::choose_backends;
using detail::ChosenBackends;
using ::testing::HasSubstr;

std::string error(const std::string& text) {
  return test::error_of<c10::ValueError>([&] { choose_backends(text); });
}

// Environment variable that is set during the test.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    setenv(name, value, 1);
  }
  ~Variable() {
    unsetenv(name_);
  }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

TEST(BackendChoice, OneForAllDevicesOrOneForEach) {
  EXPECT_EQ(choose_backends("gloo"), (ChosenBackends{{std::nullopt, "gloo"}}));
  EXPECT_EQ(choose_backends("cpu:shm"), (ChosenBackends{{at::kCPU, "shm"}}));
  EXPECT_EQ(
      choose_backends("cuda:gloo,cpu:auto"),
      (ChosenBackends{{at::kCUDA, "gloo"}, {at::kCPU, "auto"}}));
}

TEST(BackendChoice, ByTheEnvironmentOrByItself) {
  const Variable variable("DTENSOR_BACKEND", "cpu:gloo");
  EXPECT_EQ(choose_backends(""), (ChosenBackends{{at::kCPU, "gloo"}}));
  EXPECT_EQ(choose_backends("shm"), (ChosenBackends{{std::nullopt, "shm"}}));
  const Variable none("DTENSOR_BACKEND", "");
  if (c10::impl::hasDeviceGuardImpl(at::kCUDA)) {
    const std::string cuda = detail::has_nccl() ? "nccl" : "gloo";
    const ChosenBackends both{{at::kCPU, "auto"}, {at::kCUDA, cuda}};
    EXPECT_EQ(choose_backends(""), both);
    EXPECT_EQ(choose_backends("cpu:auto,cuda:auto"), both);
  } else {
    EXPECT_EQ(choose_backends(""), (ChosenBackends{{std::nullopt, "auto"}}));
    EXPECT_EQ(
        error("cuda:auto"),
        "[init_process_group] \"auto\" has no backend for cuda, as this "
        "LibTorch is built for the CPU. Specify one: \"cuda:...\".");
  }
  EXPECT_EQ(
      error("xpu:auto"),
      "[init_process_group] \"auto\" has no backend for xpu. Specify one: "
      "\"xpu:...\".");
}

TEST(BackendChoice, NcclIsForCudaAndNeedsIt) {
  if (detail::has_nccl()) {
    EXPECT_EQ(choose_backends("nccl"), (ChosenBackends{{at::kCUDA, "nccl"}}));
    EXPECT_EQ(
        choose_backends("cpu:gloo,cuda:nccl"),
        (ChosenBackends{{at::kCPU, "gloo"}, {at::kCUDA, "nccl"}}));
    EXPECT_EQ(
        error("cpu:nccl"),
        "[init_process_group] \"nccl\" supports only cuda tensors: "
        "\"cpu:nccl\". Specify another backend for cpu.");
  } else {
    EXPECT_EQ(
        error("cpu:gloo,cuda:nccl"),
        "[init_process_group] \"cpu:gloo,cuda:nccl\" is not available: dtensor "
        "was built with a LibTorch without NCCL. Build it with a LibTorch for "
        "CUDA, or use \"gloo\".");
    EXPECT_THAT(error("nccl"), HasSubstr("a LibTorch without NCCL"));
  }
  EXPECT_EQ(
      error("cuda:shm"),
      "[init_process_group] \"shm\" supports only cpu tensors: \"cuda:shm\". "
      "Specify another backend for cuda.");
}

TEST(BackendChoice, RejectsInvalidNames) {
  EXPECT_THAT(
      error("smoke"),
      HasSubstr("[init_process_group] unknown backend \"smoke\". Use one of: "
                "auto, fake, gloo, hierarchical, "));
  EXPECT_EQ(
      error("gpu:gloo"),
      "[init_process_group] unknown device type \"gpu\" in \"gpu:gloo\". Write "
      "\"cpu:gloo,cuda:nccl\".");
  EXPECT_EQ(
      error("cpu:"),
      "[init_process_group] a backend name is missing in \"cpu:\". Write "
      "\"gloo\", or \"cpu:gloo,cuda:nccl\".");
  EXPECT_EQ(
      error("gloo,cuda:gloo"),
      "[init_process_group] \"gloo\" in \"gloo,cuda:gloo\" has no device type. "
      "Write \"cpu:gloo,cuda:nccl\".");
  EXPECT_THAT(error("cpu:gloo,"), HasSubstr("\"\" in \"cpu:gloo,\" has no"));
  EXPECT_EQ(
      error("cpu:gloo,cpu:shm"),
      "[init_process_group] cpu has two backends in \"cpu:gloo,cpu:shm\". "
      "Specify one.");
  EXPECT_EQ(
      error("cpu:fake,cuda:gloo"),
      "[init_process_group] \"cpu:fake,cuda:gloo\" combines the fake backend "
      "with others. Use \"fake\" alone: it supports tensors on every device.");
}

TEST(BackendChoice, QuotesNoMoreThanTheBeginningOfNames) {
  const std::string text(100'000, 'x');
  for (const auto& names :
       {text,
        text + ":gloo",
        "cpu:" + text,
        "cpu:gloo," + text,
        "cpu:gloo,cuda:gloo,cpu:" + text}) {
    EXPECT_THAT(error(names), HasSubstr("xxx...\""));
    EXPECT_LT(error(names).size(), 1000U);
  }
}

// The costs that CostModel takes for groups without costs of their own: a
// latency in microseconds and a bandwidth in GB/s.
TEST(BackendChoice, HasATypicalCost) {
  struct Case {
    ChosenBackends chosen;
    c10::DeviceType device;
    LinkCost on_one_host;
    LinkCost on_several_hosts;
  };
  constexpr LinkCost kMemory{2, 5};
  constexpr LinkCost kNetwork{200, 1};
  constexpr LinkCost kMpi{10, 5};
  constexpr LinkCost kGpu{15, 100};
  const ChosenBackends both{{at::kCPU, "auto"}, {at::kCUDA, "nccl"}};
  const std::vector<Case> cases = {
      {{{std::nullopt, "auto"}}, at::kCPU, kMemory, kNetwork},
      {{{std::nullopt, "gloo"}}, at::kCPU, kNetwork, kNetwork},
      {{{std::nullopt, "mpi"}}, at::kCPU, kMemory, kMpi},
      {{{std::nullopt, "hierarchical-mpi"}}, at::kCPU, kMemory, kMpi},
      {{{at::kCPU, "shm"}}, at::kCUDA, kMemory, kNetwork},
      {both, at::kCPU, kMemory, kNetwork},
      {both, at::kCUDA, kGpu, kGpu}};
  for (const auto& [chosen, device, one, several] : cases) {
    SCOPED_TRACE(chosen[0].name);
    EXPECT_EQ(detail::typical_cost(chosen, device, true), one);
    EXPECT_EQ(detail::typical_cost(chosen, device, false), several);
  }
}

TEST(Nccl, SaysThatThereIsNoGpu) {
  if (!detail::has_nccl() || test::gpus() > 0) {
    GTEST_SKIP() << (detail::has_nccl() ? "there is a GPU" : "no NCCL");
  }
  EXPECT_EQ(
      test::error_of<c10::ValueError>([] {
        detail::make_nccl({{0, 1}, 0, "tp"}, {});
      }),
      "[nccl] no GPU is visible to this process for \"tp\". Check "
      "CUDA_VISIBLE_DEVICES and nvidia-smi, or use \"gloo\" with CPU tensors.");
}

TEST(GpuClaim, IsForOneMember) {
  RendezvousInfo place;
  place.store = c10::make_intrusive<c10d::HashStore>();
  const auto claim = [&](int64_t member, const std::string& gpu) {
    const at::Device device(at::kCUDA, 0);
    detail::claim_gpu({{4, 6, 7}, member, "tp"}, place, device, gpu);
  };
  claim(0, "a");
  claim(2, "b");
  claim(0, "a");
  EXPECT_EQ(
      test::error_of<c10::ValueError>([&] { claim(1, "b"); }),
      "[nccl] ranks 7 and 6 of \"tp\" use the same GPU, which is cuda:0 of "
      "rank 6. Select a different GPU in each process before its first "
      "collective: set_device(get_node_local_rank()). Use threads or "
      "\"cuda:gloo\" for ranks that share a GPU.");
}

} // namespace TEST_SOURCE
} // namespace dtensor
