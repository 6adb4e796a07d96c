// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/parallel/attention/key_value_blocks_impl.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>

#include <c10/util/accumulate.h>

#include <numeric>
#include <utility>

namespace dtensor::detail {
namespace {

Sizes with_length(Sizes sizes, int64_t length) {
  sizes[2] = length;
  return sizes;
}

at::Tensor in_a_buffer(const KeyValue& block) {
  return at::cat({block.key.reshape({-1}), block.value.reshape({-1})});
}

// All-gathers all blocks, and keeps memory for them.
class GatheredSource final : public KeyValueSource {
 public:
  GatheredSource(Group& group, BlockShapes shapes, const KeyValue& mine)
      : shapes_(std::move(shapes)),
        mine_(mine),
        pending_(
            group.all_gather_async(in_a_buffer(mine), 0, shapes_.counts())) {}

  KeyValue take_block(int64_t step) override {
    if (step == 0) {
      return std::exchange(mine_, {});
    }
    return shapes_.views_among_all(pending_->wait(), shapes_.owner(step));
  }

 private:
  BlockShapes shapes_;
  KeyValue mine_;
  PendingPtr pending_;
};

// Passes blocks around a ring. One block is in use, the next one in flight.
class RingSource final : public KeyValueSource {
 public:
  RingSource(Group& group, BlockShapes shapes, const KeyValue& mine)
      : group_(group),
        shapes_(std::move(shapes)),
        mine_(mine) {}

  KeyValue take_block(int64_t step) override {
    at::Tensor here;
    if (step > 0) {
      here = pending_->wait();
      pending_ = nullptr;
    }
    auto block = step == 0 ? std::exchange(mine_, {})
                           : shapes_.views(here, shapes_.owner(step));
    if (step + 1 < group_.size()) {
      pending_ = group_.all_to_all_async(
          step == 0 ? in_a_buffer(block) : std::move(here),
          shapes_.sent(step),
          shapes_.received(step));
    }
    return block;
  }

 private:
  Group& group_;
  BlockShapes shapes_;
  KeyValue mine_;
  PendingPtr pending_;
};

// Accumulates the gradients of all blocks in one buffer, and reduce-scatters it
// at the end.
class ScatteringSink final : public KeyValueSink {
 public:
  ScatteringSink(
      Group& group,
      BlockShapes shapes,
      const at::TensorOptions& options)
      : group_(group),
        shapes_(std::move(shapes)),
        all_(at::zeros({c10::sum_integers(shapes_.counts())}, options)) {}

  KeyValue at(int64_t step) override {
    return shapes_.views_among_all(all_, shapes_.owner(step));
  }

  void end(int64_t /*step*/) override {}

  KeyValue own_gradients() override {
    const auto sum = group_.reduce_scatter(
        std::exchange(all_, {}), 0, ReduceOp::kSum, shapes_.counts());
    return shapes_.views(sum, group_.rank());
  }

 private:
  Group& group_;
  BlockShapes shapes_;
  at::Tensor all_;
};

// Passes the gradients of each block around the ring, one step behind the
// block. The owner's own gradients are added last, so the rank after the owner
// starts with zeros.
class RingSink final : public KeyValueSink {
 public:
  RingSink(Group& group, BlockShapes shapes, const at::TensorOptions& options)
      : group_(group),
        shapes_(std::move(shapes)),
        options_(options),
        own_(fresh(0)) {}

  KeyValue at(int64_t step) override {
    if (step == 0) {
      return shapes_.views(own_, group_.rank());
    }
    if (!here_.defined()) {
      here_ = pending_ == nullptr ? fresh(step) : pending_->wait();
      pending_ = nullptr;
    }
    return shapes_.views(here_, shapes_.owner(step));
  }

  void end(int64_t step) override {
    if (step > 0) {
      at(step);
      pending_ = group_.all_to_all_async(
          std::exchange(here_, {}), shapes_.sent(step), shapes_.received(step));
    }
  }

  KeyValue own_gradients() override {
    if (pending_ != nullptr) {
      own_ += pending_->wait();
    }
    return shapes_.views(own_, group_.rank());
  }

 private:
  at::Tensor fresh(int64_t step) const {
    const auto owner = static_cast<size_t>(shapes_.owner(step));
    return at::zeros({shapes_.counts()[owner]}, options_);
  }

  Group& group_;
  BlockShapes shapes_;
  at::TensorOptions options_;
  at::Tensor own_;
  at::Tensor here_;
  PendingPtr pending_;
};

} // namespace

BlockShapes::BlockShapes(
    const Group& group,
    const KeyValue& mine,
    SizesRef lengths)
    : ranks_(group.size()),
      me_(group.rank()),
      key_(mine.key.sizes()),
      value_(mine.value.sizes()),
      lengths_(lengths) {
  for (const auto length : lengths) {
    counts_.push_back(
        c10::multiply_integers(with_length(key_, length)) +
        c10::multiply_integers(with_length(value_, length)));
  }
}

int64_t BlockShapes::owner(int64_t step) const {
  return (me_ + ranks_ - step) % ranks_;
}

Sizes BlockShapes::sent(int64_t step) const {
  Sizes counts(static_cast<size_t>(ranks_), 0);
  counts[static_cast<size_t>((me_ + 1) % ranks_)] =
      counts_[static_cast<size_t>(owner(step))];
  return counts;
}

Sizes BlockShapes::received(int64_t step) const {
  Sizes counts(static_cast<size_t>(ranks_), 0);
  counts[static_cast<size_t>((me_ + ranks_ - 1) % ranks_)] =
      counts_[static_cast<size_t>(owner(step + 1))];
  return counts;
}

KeyValue BlockShapes::views(const at::Tensor& buffer, int64_t rank) const {
  const auto length = lengths_[static_cast<size_t>(rank)];
  const auto key = with_length(key_, length);
  const auto value = with_length(value_, length);
  const int64_t keys = c10::multiply_integers(key);
  return {
      buffer.narrow(0, 0, keys).view(key),
      buffer.narrow(0, keys, buffer.numel() - keys).view(value)};
}

KeyValue BlockShapes::views_among_all(const at::Tensor& all, int64_t rank)
    const {
  const auto* own = counts_.begin() + rank;
  const int64_t begin = std::accumulate(counts_.begin(), own, int64_t{0});
  return views(all.narrow(0, begin, *own), rank);
}

std::unique_ptr<KeyValueSource> key_value_source(
    Group& group,
    const BlockShapes& shapes,
    const KeyValue& mine,
    RotateMethod method) {
  if (method == RotateMethod::kAllGather && group.size() > 1) {
    return std::make_unique<GatheredSource>(group, shapes, mine);
  }
  return std::make_unique<RingSource>(group, shapes, mine);
}

std::unique_ptr<KeyValueSink> key_value_sink(
    Group& group,
    const BlockShapes& shapes,
    const at::TensorOptions& options,
    RotateMethod method) {
  if (method == RotateMethod::kAllGather && group.size() > 1) {
    return std::make_unique<ScatteringSink>(group, shapes, options);
  }
  return std::make_unique<RingSink>(group, shapes, options);
}

} // namespace dtensor::detail
