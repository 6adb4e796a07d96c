// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/processes/built_in_backends_impl.h>

#include <dtensor/comm/c10d_group.h>
#include <dtensor/error.h>

#include <ATen/cuda/CUDAContext.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <exception>

namespace dtensor::detail {
namespace {

using c10d::ProcessGroupNCCL;

// Waits for its outstanding work on destruction, unless an error ends this
// rank. After an error, the other ranks may never complete their side of the
// work.
class Nccl final : public ProcessGroupNCCL {
 public:
  using ProcessGroupNCCL::ProcessGroupNCCL;
  ~Nccl() override {
    try {
      if (std::current_exception() == nullptr) {
        shutdown();
      } else {
        abort();
      }
    } catch (const std::exception& error) {
      TORCH_WARN(detail::format_text(
          "[nccl] the communicator could not be closed: {}", error.what()));
    }
  }
};

// Returns an identifier of the physical GPU, which is equal in all processes
// that use this GPU, regardless of its device index there.
std::string name_of_gpu(c10::DeviceIndex index) {
  const auto& id = at::cuda::getDeviceProperties(index)->uuid.bytes;
  constexpr const char* kDigits = "0123456789abcdef";
  std::string name;
  for (const char byte : id) {
    const auto value = static_cast<unsigned char>(byte);
    name += {kDigits[value / 16], kDigits[value % 16]};
  }
  return name;
}

} // namespace

bool has_nccl() {
  return true;
}

GroupBackendPtr make_nccl(GroupMembers members, const RendezvousInfo& place) {
  DTENSOR_CHECK_VALUE(
      at::cuda::is_available(),
      "[nccl] no GPU is visible to this process for \"{}\". Check "
      "CUDA_VISIBLE_DEVICES and nvidia-smi, or use \"gloo\" with CPU tensors.",
      members.label);
  const c10::Device device(c10::kCUDA, c10::cuda::current_device());
  claim_gpu(members, place, device, name_of_gpu(device.index()));
  auto options = ProcessGroupNCCL::Options::create();
  options->timeout = place.timeout;
  auto nccl = c10::make_intrusive<Nccl>(
      place.store,
      static_cast<int>(members.rank),
      static_cast<int>(members.ranks.size()),
      std::move(options));
  // Device for calls that have no tensor, such as barrier.
  nccl->setBoundDeviceId(device);
  return c10d_group(std::move(nccl), std::move(members), device);
}

} // namespace dtensor::detail
