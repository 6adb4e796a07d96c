// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/c10d_backend.h>
#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace dtensor {
namespace {

using Tensors = std::vector<at::Tensor>;
using TensorLists = std::vector<Tensors>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

class CompletedWork final : public c10d::Work {
 public:
  CompletedWork(int rank, c10d::OpType type, Tensors outputs)
      : Work(rank, type),
        outputs_(std::move(outputs)) {}

  bool isCompleted() override {
    return true;
  }
  bool wait(std::chrono::milliseconds /*timeout*/) override {
    return true;
  }
  void synchronize() override {}
  Tensors result() override {
    return outputs_;
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto future = c10::make_intrusive<c10::ivalue::Future>(
        c10::ListType::create(c10::TensorType::get()));
    future->markCompleted(c10::IValue(outputs_));
    return future;
  }

 private:
  Tensors outputs_;
};

ReduceOp reduce_op(const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      return ReduceOp::kSum;
    case c10d::ReduceOp::AVG:
      return ReduceOp::kAvg;
    case c10d::ReduceOp::PRODUCT:
      return ReduceOp::kProduct;
    case c10d::ReduceOp::MIN:
      return ReduceOp::kMin;
    case c10d::ReduceOp::MAX:
      return ReduceOp::kMax;
    case c10d::ReduceOp::BAND:
      return ReduceOp::kBand;
    case c10d::ReduceOp::BOR:
      return ReduceOp::kBor;
    case c10d::ReduceOp::BXOR:
      return ReduceOp::kBxor;
    default:
      DTENSOR_THROW_NOT_IMPLEMENTED(
          "[c10d_backend] PREMUL_SUM is not supported. Multiply first, then "
          "use SUM.");
  }
}

at::Tensor flat(const at::Tensor& tensor) {
  return tensor.reshape({-1});
}

template <typename T>
const T& only(const char* where, const std::vector<T>& list) {
  DTENSOR_CHECK_VALUE(
      list.size() == 1,
      "[{}] takes one tensor or list per rank: got {}. Call it once for each.",
      where,
      list.size());
  return list.front();
}

// Returns the elements of all tensors in order.
at::Tensor joined(const Tensors& tensors) {
  Tensors parts;
  for (const at::Tensor& tensor : tensors) {
    DTENSOR_CHECK_TYPE(
        tensor.scalar_type() == tensors[0].scalar_type(),
        "[allreduce] the tensors differ in dtype: {} and {}. Pass one dtype.",
        short_name(tensors[0].scalar_type()),
        short_name(tensor.scalar_type()));
    parts.push_back(flat(tensor));
  }
  return parts.size() > 1 ? at::cat(parts) : only("allreduce", parts);
}

void check_numel(const char* where, const at::Tensor& out, int64_t numel) {
  DTENSOR_CHECK_VALUE(
      out.numel() == numel,
      "[{}] the output has {}, the result {}. Make the output as large as the "
      "result.",
      where,
      detail::pluralize(out.numel(), "element"),
      numel);
}

// Fills the outputs in order with the elements of `source`.
void unflatten_into(
    const char* where,
    const Tensors& outputs,
    const at::Tensor& source) {
  int64_t total = 0;
  for (const at::Tensor& out : outputs) {
    total += out.numel();
  }
  DTENSOR_CHECK_VALUE(
      total == source.numel(),
      "[{}] the outputs have {}, the result {}. Make the outputs as large as "
      "the result.",
      where,
      detail::pluralize(total, "element"),
      source.numel());
  int64_t begin = 0;
  for (const at::Tensor& out : outputs) {
    out.copy_(source.narrow(0, begin, out.numel()).view(out.sizes()));
    begin += out.numel();
  }
}

// Splits along dimension 0 by `sizes`, or evenly if there are none.
Tensors parts_of(
    const at::Tensor& tensor,
    const std::vector<int64_t>& sizes,
    int64_t parts) {
  if (!sizes.empty()) {
    return tensor.split_with_sizes(sizes, 0);
  }
  DTENSOR_CHECK_VALUE(
      tensor.size(0) % parts == 0,
      "[alltoall_base] dimension 0 has size {}, which is not divisible by {} "
      "ranks. Pass split sizes.",
      tensor.size(0),
      parts);
  return tensor.chunk(parts, 0);
}

void check_pairs(
    const char* where,
    const Tensors& outputs,
    const Tensors& inputs) {
  DTENSOR_CHECK_VALUE(
      outputs.size() == inputs.size(),
      "[{}] got {} and {}. Pass an output for each input.",
      where,
      detail::pluralize(outputs.size(), "output"),
      detail::pluralize(inputs.size(), "input"));
}

class BackendOfGroup final : public c10d::Backend {
 public:
  explicit BackendOfGroup(GroupPtr group)
      : Backend(
            static_cast<int>(group->rank()),
            static_cast<int>(group->size())),
        group_(std::move(group)) {}

  const std::string getBackendName() const override {
    return "dtensor";
  }

  // DistributedDataParallel's join() passes a tensor's elements one by one.
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts)
      override {
    const at::NoGradGuard no_grad;
    const at::Tensor sum =
        group_->all_reduce(joined(tensors), reduce_op(opts.reduceOp));
    unflatten_into("allreduce", tensors, sum);
    return done(c10d::OpType::ALLREDUCE, tensors);
  }

  WorkPtr allreduce_coalesced(
      Tensors& tensors,
      const c10d::AllreduceCoalescedOptions& opts) override {
    const at::NoGradGuard no_grad;
    for (const at::Tensor& tensor : tensors) {
      tensor.copy_(group_->all_reduce(tensor, reduce_op(opts.reduceOp)));
    }
    return done(c10d::OpType::ALLREDUCE_COALESCED, tensors);
  }

  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override {
    const at::NoGradGuard no_grad;
    const at::Tensor& tensor = only("reduce", tensors);
    const at::Tensor sum = group_->all_reduce(tensor, reduce_op(opts.reduceOp));
    if (opts.rootRank == group_->rank()) {
      tensor.copy_(sum);
    }
    return done(c10d::OpType::REDUCE, tensors);
  }

  WorkPtr allgather(
      TensorLists& outputs,
      Tensors& inputs,
      const c10d::AllgatherOptions& /*opts*/) override {
    const at::NoGradGuard no_grad;
    const Tensors& out = only("allgather", outputs);
    const at::Tensor& input = only("allgather", inputs);
    check_length("allgather", out);
    unflatten_into("allgather", out, group_->all_gather(flat(input), 0));
    return done(c10d::OpType::ALLGATHER, out);
  }

  WorkPtr _allgather_base(
      at::Tensor& output,
      at::Tensor& input,
      const c10d::AllgatherOptions& /*opts*/) override {
    const at::NoGradGuard no_grad;
    unflatten_into(
        "_allgather_base", {output}, group_->all_gather(flat(input), 0));
    return done(c10d::OpType::_ALLGATHER_BASE, {output});
  }

  WorkPtr allgather_into_tensor_coalesced(
      Tensors& outputs,
      Tensors& inputs,
      const c10d::AllgatherOptions& opts) override {
    check_pairs("allgather_into_tensor_coalesced", outputs, inputs);
    for (size_t i = 0; i < outputs.size(); ++i) {
      _allgather_base(outputs[i], inputs[i], opts);
    }
    return done(c10d::OpType::COALESCED, outputs);
  }

  WorkPtr reduce_scatter(
      Tensors& outputs,
      TensorLists& inputs,
      const c10d::ReduceScatterOptions& opts) override {
    const at::NoGradGuard no_grad;
    const at::Tensor& out = only("reduce_scatter", outputs);
    const Tensors& parts = only("reduce_scatter", inputs);
    check_length("reduce_scatter", parts);
    // Chunks may differ in size, so reduce them separately.
    at::Tensor mine;
    for (int64_t member = 0; member < group_->size(); ++member) {
      const at::Tensor& part = parts[static_cast<size_t>(member)];
      const at::Tensor sum = group_->all_reduce(part, reduce_op(opts.reduceOp));
      if (member == group_->rank()) {
        mine = sum;
      }
    }
    check_numel("reduce_scatter", out, mine.numel());
    out.copy_(mine.reshape(out.sizes()));
    return done(c10d::OpType::REDUCE_SCATTER, outputs);
  }

  WorkPtr _reduce_scatter_base(
      at::Tensor& output,
      at::Tensor& input,
      const c10d::ReduceScatterOptions& opts) override {
    const at::NoGradGuard no_grad;
    check_numel("_reduce_scatter_base", input, output.numel() * group_->size());
    const at::Tensor mine =
        group_->reduce_scatter(flat(input), 0, reduce_op(opts.reduceOp));
    output.copy_(mine.view(output.sizes()));
    return done(c10d::OpType::_REDUCE_SCATTER_BASE, {output});
  }

  WorkPtr reduce_scatter_tensor_coalesced(
      Tensors& outputs,
      Tensors& inputs,
      const c10d::ReduceScatterOptions& opts) override {
    check_pairs("reduce_scatter_tensor_coalesced", outputs, inputs);
    for (size_t i = 0; i < outputs.size(); ++i) {
      _reduce_scatter_base(outputs[i], inputs[i], opts);
    }
    return done(c10d::OpType::COALESCED, outputs);
  }

  WorkPtr alltoall(
      Tensors& outputs,
      Tensors& inputs,
      const c10d::AllToAllOptions& /*opts*/) override {
    const at::NoGradGuard no_grad;
    check_length("alltoall", outputs);
    check_length("alltoall", inputs);
    const Tensors received = group_->all_to_all(inputs);
    for (size_t i = 0; i < outputs.size(); ++i) {
      check_numel("alltoall", outputs[i], received[i].numel());
      outputs[i].copy_(received[i].reshape(outputs[i].sizes()));
    }
    return done(c10d::OpType::ALLTOALL, outputs);
  }

  WorkPtr alltoall_base(
      at::Tensor& output,
      at::Tensor& input,
      std::vector<int64_t>& output_sizes,
      std::vector<int64_t>& input_sizes,
      const c10d::AllToAllOptions& opts) override {
    Tensors outputs = parts_of(output, output_sizes, group_->size());
    Tensors inputs = parts_of(input, input_sizes, group_->size());
    alltoall(outputs, inputs, opts);
    return done(c10d::OpType::ALLTOALL_BASE, {output});
  }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts)
      override {
    const at::NoGradGuard no_grad;
    const at::Tensor& tensor = only("broadcast", tensors);
    const at::Tensor roots = group_->broadcast(tensor, opts.rootRank);
    if (opts.rootRank != group_->rank()) {
      tensor.copy_(roots);
    }
    return done(c10d::OpType::BROADCAST, tensors);
  }

  WorkPtr scatter(
      Tensors& outputs,
      TensorLists& inputs,
      const c10d::ScatterOptions& opts) override {
    const at::NoGradGuard no_grad;
    const at::Tensor& out = only("scatter", outputs);
    const bool root = opts.rootRank == group_->rank();
    out.copy_(group_->scatter(
        root ? only("scatter", inputs) : Tensors(), out, opts.rootRank));
    return done(c10d::OpType::SCATTER, outputs);
  }

  WorkPtr gather(
      TensorLists& outputs,
      Tensors& inputs,
      const c10d::GatherOptions& opts) override {
    const at::NoGradGuard no_grad;
    const Tensors received =
        group_->gather(only("gather", inputs), opts.rootRank);
    if (opts.rootRank != group_->rank()) {
      return done(c10d::OpType::GATHER, {});
    }
    const Tensors& out = only("gather", outputs);
    check_length("gather", out);
    for (size_t i = 0; i < out.size(); ++i) {
      check_numel("gather", out[i], received[i].numel());
      out[i].copy_(received[i].reshape(out[i].sizes()));
    }
    return done(c10d::OpType::GATHER, out);
  }

  WorkPtr send(Tensors& tensors, int to, int tag) override {
    group_->send(only("send", tensors), to, tag);
    return done(c10d::OpType::SEND, {});
  }

  WorkPtr recv(Tensors& tensors, int from, int tag) override {
    const at::NoGradGuard no_grad;
    const at::Tensor& tensor = only("recv", tensors);
    tensor.copy_(group_->recv(tensor, from, tag));
    return done(c10d::OpType::RECV, tensors);
  }

  WorkPtr barrier(const c10d::BarrierOptions& /*opts*/) override {
    group_->barrier();
    return done(c10d::OpType::BARRIER, {});
  }

 private:
  WorkPtr done(c10d::OpType type, Tensors outputs) const {
    return c10::make_intrusive<CompletedWork>(
        getRank(), type, std::move(outputs));
  }

  void check_length(const char* where, const Tensors& tensors) const {
    DTENSOR_CHECK_VALUE(
        tensors.size() == static_cast<size_t>(group_->size()),
        "[{}] needs a tensor for each of {}: got {}. Pass one per rank.",
        where,
        detail::pluralize(group_->size(), "rank"),
        tensors.size());
  }

  GroupPtr group_;
};

} // namespace

c10::intrusive_ptr<c10d::Backend> c10d_backend(GroupPtr group) {
  return c10::make_intrusive<BackendOfGroup>(std::move(group));
}

} // namespace dtensor
