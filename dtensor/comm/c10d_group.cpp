// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/c10d_group.h>

#include <dtensor/comm/backend/call_impl.h>
#include <dtensor/comm/collective_timeout.h>
#include <dtensor/comm/group/shard_buffers_impl.h>
#include <dtensor/comm/processes/built_in_backends_impl.h>
#include <dtensor/comm/transport_backend.h>
#include <dtensor/error.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros.h>
#include <c10/util/accumulate.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>
#include <string>
#include <utility>

namespace dtensor {

using namespace detail;

namespace {

using Tensors = std::vector<at::Tensor>;
using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

c10d::ReduceOp c10d_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg: // divided afterwards
      return c10d::ReduceOp::SUM;
    case ReduceOp::kProduct:
      return c10d::ReduceOp::PRODUCT;
    case ReduceOp::kMin:
      return c10d::ReduceOp::MIN;
    case ReduceOp::kMax:
      return c10d::ReduceOp::MAX;
    case ReduceOp::kBand:
    case ReduceOp::kBor:
    case ReduceOp::kBxor:
      break; // see reduces()
  }
  TORCH_INTERNAL_ASSERT(false);
}

at::Tensor as_bytes(const at::Tensor& tensor) {
  return tensor.view({-1}).view(at::kByte);
}

at::Tensor bytes_for(int64_t numel, const at::Tensor& like) {
  return at::empty(
      {numel * like.element_size()}, like.options().dtype(at::kByte));
}

at::Tensor elements_of(const at::Tensor& bytes, const at::Tensor& like) {
  return bytes.view(like.scalar_type());
}

// Converts counts of elements to counts of bytes.
std::vector<int64_t> byte_counts(SizesRef counts, int64_t item) {
  std::vector<int64_t> result;
  for (const int64_t count : counts) {
    result.push_back(count * item);
  }
  return result;
}

// Returns options with the timeout of the innermost CollectiveTimeout, if any.
template <class Options>
Options limited() {
  Options options;
  options.timeout = CollectiveTimeout::in_effect(options.timeout);
  return options;
}

class C10dTransfer : public Transfer {
 public:
  explicit C10dTransfer(WorkPtr work) : work_(std::move(work)) {}
  void wait() override {
    work_->wait();
  }

 protected:
  WorkPtr work_;
};

// Work of Gloo. Gloo's thread may have stopped on an error, and then never
// completes the work. The wait therefore polls for such errors.
class GlooTransfer final : public C10dTransfer {
 public:
  using C10dTransfer::C10dTransfer;
  void wait() override {
    while (!work_->isCompleted() && !wait_for_a_moment()) {
      const std::string failure = gloo_thread_failure();
      DTENSOR_CHECK(failure.empty(), "[gloo] {}", failure);
    }
    work_->wait();
  }

 private:
  // Waits for a moment; returns true if the work has ended.
  bool wait_for_a_moment() {
    constexpr std::chrono::milliseconds kMoment(500);
    try {
      work_->wait(kMoment);
      return true;
    } catch (const std::exception&) {
      return work_->isCompleted(); // the exception is rethrown by the next wait
    }
  }
};

class C10dGroup final : public TransportBackend {
 public:
  C10dGroup(GroupMembers members, BackendPtr backend, c10::Device device)
      : TransportBackend(std::move(members), {.device = device}),
        backend_(std::move(backend)),
        name_(backend_->getBackendName()) {}
  ~C10dGroup() override {
    abandon("");
  }

  // True: Gloo's threads and the streams of GPU backends make progress.
  bool progresses_in_background(c10::DeviceType /*device*/) const override {
    return true;
  }

  // Closes the backend's connections. The other members notice this.
  void abandon(const std::string& /*why*/) override {
    if (name_ == "gloo" && !gloo_thread_failure().empty()) {
      static_cast<void>(backend_.release()); // its thread has stopped
    }
    backend_.reset();
  }

 protected:
  InFlight begin_all_reduce(const Collective& c) override {
    if (!reduces(c.input(), c.op)) {
      return begin_combined_all_reduce(c);
    }
    const at::Tensor result = c.owns_input() ? c.input() : c.input().clone();
    Tensors buffers{result.is_complex() ? at::view_as_real(result) : result};
    auto options = limited<c10d::AllreduceOptions>();
    options.reduceOp = c10d_op(c.op);
    return {
        transfer(backend_->allreduce(buffers, options)),
        [=, op = c.op, n = size()] {
          return op == ReduceOp::kAvg ? result.div_(n) : result;
        }};
  }

  // Pads the inputs to the size of the longest.
  InFlight begin_all_gather(const Collective& c) override {
    const at::Tensor& input = c.input();
    const Sizes& counts = c.sizes;
    const int64_t longest = *std::ranges::max_element(counts);
    if (longest == 0) {
      return at::empty({0}, input.options());
    }
    if (all_equal(counts)) {
      return begin_even_all_gather(input);
    }
    const at::Tensor filled = at::empty({longest}, input.options());
    filled.narrow(0, 0, input.numel()).copy_(input);
    return begin_even_all_gather(filled).then([longest, counts](
                                                  const at::Tensor& gathered) {
      const at::Tensor all = gathered.view({-1, longest});
      Tensors parts;
      for (size_t r = 0; r < counts.size(); ++r) {
        parts.push_back(all[static_cast<int64_t>(r)].narrow(0, 0, counts[r]));
      }
      return at::cat(parts);
    });
  }

  // Uses NCCL's reduce_scatter if all counts are equal.
  InFlight begin_reduce_scatter(const Collective& c) override {
    const at::Tensor& input = c.input();
    return is_nccl() && all_equal(c.sizes) && reduces(input.scalar_type(), c.op)
        ? begin_even_reduce_scatter(input, c.op)
        : TransportBackend::begin_reduce_scatter(c);
  }

  InFlight begin_all_to_all(const Collective& c) override {
    const at::Tensor& input = c.input();
    const int64_t item = input.element_size();
    const int64_t count = c10::sum_integers(c.received);
    // LibTorch's fake backend copies the input to the output, whatever the
    // sizes, and throws if the input is empty.
    if (name_ == "fake" && input.numel() == 0) {
      return at::zeros({count}, input.options());
    }
    at::Tensor bytes = bytes_for(count, input);
    at::Tensor mine = as_bytes(input);
    auto out_counts = byte_counts(c.received, item);
    auto in_counts = byte_counts(c.sizes, item);
    return {
        transfer(backend_->alltoall_base(
            bytes,
            mine,
            out_counts,
            in_counts,
            limited<c10d::AllToAllOptions>())),
        [=] { return elements_of(bytes, input); }};
  }

  InFlight begin_broadcast(const Collective& c) override {
    at::Tensor result =
        rank() == c.root ? c.input().clone() : at::empty_like(c.input());
    Tensors buffers{as_bytes(result)};
    auto options = limited<c10d::BroadcastOptions>();
    options.rootRank = c.root;
    return {transfer(backend_->broadcast(buffers, options)), [=] {
              return result;
            }};
  }

  // Messages go through the device that the backend communicates from, because
  // Gloo sends from no other device.
  InFlight begin_send(const Collective& c) override {
    Tensors buffers{as_bytes(c.input().to(needs().device))};
    return {
        message(backend_->send(buffers, static_cast<int>(c.root), tag_of(c))),
        [] { return CollectiveResult(); }};
  }

  InFlight begin_recv(const Collective& c) override {
    at::Tensor result =
        at::empty(c.like.sizes(), c.like.options().device(needs().device));
    Tensors buffers{as_bytes(result)};
    return {
        message(backend_->recv(buffers, static_cast<int>(c.root), tag_of(c))),
        [=, device = c.like.device()] { return result.to(device); }};
  }

  InFlight begin_barrier() override {
    return {transfer(backend_->barrier(limited<c10d::BarrierOptions>())), [] {
              return CollectiveResult();
            }};
  }

  std::string carrier() const override {
    return name_;
  }

  // Throws ValueError for a tensor on another device than the backend's. A
  // backend on the CPU may accept other devices.
  void check(const Collective& c) const override {
    DTENSOR_CHECK(
        backend_ != nullptr,
        "[{}] this rank has failed, and has left \"{}\". Make a new world.",
        c.name(),
        label());
    const c10::Device mine = needs().device;
    if (mine.is_cpu() || !c.example().defined()) {
      return;
    }
    const c10::Device theirs = c.example().device();
    DTENSOR_CHECK_VALUE(
        theirs.type() == mine.type() &&
            (!mine.has_index() || theirs.index() == mine.index()),
        "[{}] {} uses {} for this rank on \"{}\", but the tensor is on {}. "
        "Move it there, or make its device current before the group's first "
        "collective.",
        c.name(),
        name_,
        mine,
        label(),
        theirs);
  }

 private:
  // Gathers equally many elements from each member.
  InFlight begin_even_all_gather(const at::Tensor& input) {
    at::Tensor bytes = bytes_for(input.numel() * size(), input);
    at::Tensor mine = as_bytes(input);
    return {
        transfer(backend_->_allgather_base(
            bytes, mine, limited<c10d::AllgatherOptions>())),
        [=] { return elements_of(bytes, input); }};
  }

  InFlight begin_even_reduce_scatter(const at::Tensor& input, ReduceOp op) {
    at::Tensor result = at::empty({input.numel() / size()}, input.options());
    at::Tensor given = input;
    auto options = limited<c10d::ReduceScatterOptions>();
    options.reduceOp = c10d_op(op);
    return {
        transfer(backend_->_reduce_scatter_base(result, given, options)),
        [=, n = size()] {
          return op == ReduceOp::kAvg ? result.div_(n) : result;
        }};
  }

  // Returns the tag as c10d takes it.
  int tag_of(const Collective& c) const {
    constexpr int kMost = std::numeric_limits<int>::max();
    DTENSOR_CHECK_VALUE(
        c.tag >= 0 && c.tag <= kMost,
        "[{}] invalid tag {} on \"{}\". Use one from 0 to {}.",
        c.name(),
        c.tag,
        label(),
        kMost);
    return static_cast<int>(c.tag);
  }

  // A wait for a message cannot poll as GlooTransfer does, because a wait that
  // times out ends the group.
  static std::shared_ptr<Transfer> message(WorkPtr work) {
    return work == nullptr ? nullptr
                           : std::make_shared<C10dTransfer>(std::move(work));
  }

  // Returns null if c10d had nothing to do.
  std::shared_ptr<Transfer> transfer(WorkPtr work) const {
    if (work != nullptr && name_ == "gloo") {
      return std::make_shared<GlooTransfer>(std::move(work));
    }
    return message(std::move(work));
  }

  bool is_nccl() const {
    return name_ == "nccl";
  }

  // All c10d backends reduce numbers of at least 32 bits, and half types. NCCL
  // also reduces bytes, and booleans as documented here: sum is "or", product
  // is "and". Min and max of floats lose NaN in Gloo and NCCL, and the sum of
  // an average of halves may overflow, so these are combined here.
  bool reduces(at::ScalarType dtype, ReduceOp op) const {
    const bool is_order = op == ReduceOp::kMin || op == ReduceOp::kMax;
    switch (dtype) {
      case at::kInt:
      case at::kLong:
        return op < ReduceOp::kBand;
      case at::kFloat:
      case at::kDouble:
      case at::kBFloat16:
        return op < ReduceOp::kBand && !is_order;
      case at::kHalf:
        return op == ReduceOp::kSum || op == ReduceOp::kProduct;
      case at::kBool:
      case at::kByte:
      case at::kChar:
        return is_nccl() && op < ReduceOp::kBand;
      default:
        return false;
    }
  }

  // Returns true if the backend has this reduction. For a complex dtype,
  // returns true if the backend has the reduction of the real and imaginary
  // parts.
  bool reduces(const at::Tensor& tensor, ReduceOp op) const {
    const bool as_pairs =
        tensor.is_complex() && (op == ReduceOp::kSum || op == ReduceOp::kAvg);
    return as_pairs || reduces(tensor.scalar_type(), op);
  }

  BackendPtr backend_;
  std::string name_;
};

} // namespace

GroupBackendPtr
c10d_group(BackendPtr backend, GroupMembers members, c10::Device device) {
  const auto size = static_cast<int64_t>(members.ranks.size());
  DTENSOR_CHECK_VALUE(
      backend->getSize() == size && backend->getRank() == members.rank,
      "[c10d_group] the backend has rank {} of {}, but the group member has "
      "rank {} of {} in \"{}\". Make the backend for the group's members, in "
      "their order.",
      backend->getRank(),
      backend->getSize(),
      members.rank,
      size,
      members.label);
  return std::make_shared<C10dGroup>(
      std::move(members), std::move(backend), device);
}

} // namespace dtensor
