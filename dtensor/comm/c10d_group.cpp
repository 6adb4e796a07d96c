// SPDX-License-Identifier: BSD-3-Clause
// Each collective is begun, which gives c10d's Work and what makes a result of
// it; synchronous ones end it at once.
#include <dtensor/comm/c10d_group.h>

#include <dtensor/comm/call_impl.h>
#include <dtensor/comm/group_checks_impl.h>
#include <dtensor/comm/part_buffers_impl.h>
#include <dtensor/comm/reduce_impl.h>
#include <dtensor/error.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/view_as_real.h>
#include <c10/util/accumulate.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <algorithm>
#include <functional>

namespace dtensor {

using namespace detail;

namespace {

using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using BackendPtr = c10::intrusive_ptr<c10d::Backend>;

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
      return c10d::ReduceOp::BAND;
    case ReduceOp::kBor:
      return c10d::ReduceOp::BOR;
    case ReduceOp::kBxor:
      return c10d::ReduceOp::BXOR;
  }
  TORCH_INTERNAL_ASSERT(false);
}

// What every backend of c10d reduces by itself.
bool reduces(at::ScalarType dtype, ReduceOp op) {
  switch (dtype) {
    case at::kFloat:
    case at::kDouble:
    case at::kInt:
    case at::kLong:
    case at::kHalf:
    case at::kBFloat16:
      return op < ReduceOp::kBand;
    default:
      return false;
  }
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

// Counts of elements as counts of bytes.
std::vector<int64_t> byte_counts(SizesRef counts, int64_t item) {
  std::vector<int64_t> result;
  for (const int64_t count : counts) {
    result.push_back(count * item);
  }
  return result;
}

// The rows of `terms`, combined in order.
at::Tensor combined(const at::Tensor& terms, ReduceOp op) {
  const auto rows = terms.unbind(0);
  const at::Tensor result = at::empty_like(rows.front());
  reduce_into(result, rows, op);
  return result;
}

// A collective that is under way: `finish` makes the result once `work` is
// done.
struct Started {
  WorkPtr work; // null: there was nothing to do
  std::function<at::Tensor()> finish;
};

class C10dGroup final : public GroupBackend,
                        public std::enable_shared_from_this<C10dGroup> {
 public:
  C10dGroup(GroupMembers members, BackendPtr backend, c10::Device device)
      : GroupBackend(std::move(members), {.device = device}),
        backend_(std::move(backend)) {}

  at::Tensor all_reduce(const at::Tensor& input, ReduceOp op) override {
    return end("all_reduce", [&] { return begin_all_reduce(input, op); });
  }
  at::Tensor all_gather(const at::Tensor& input, SizesRef counts) override {
    return end("all_gather", [&] { return begin_all_gather(input, counts); });
  }
  at::Tensor reduce_scatter(
      const at::Tensor& input,
      SizesRef counts,
      ReduceOp op) override {
    return end("reduce_scatter", [&] {
      return begin_reduce_scatter(input, counts, op);
    });
  }
  at::Tensor all_to_all(
      const at::Tensor& input,
      SizesRef sent,
      SizesRef received) override {
    return end(
        "all_to_all", [&] { return begin_all_to_all(input, sent, received); });
  }
  at::Tensor broadcast(const at::Tensor& input, int64_t root) override {
    return end("broadcast", [&]() -> Started {
      const at::Tensor result =
          rank() == root ? input.clone() : at::empty_like(input);
      Tensors buffers{as_bytes(result)};
      c10d::BroadcastOptions options;
      options.rootRank = root;
      return {backend_->broadcast(buffers, options), [=] { return result; }};
    });
  }
  void send(const at::Tensor& input, int64_t to, int64_t tag) override {
    end("send", [&]() -> Started {
      Tensors buffers{as_bytes(input)};
      return {
          backend_->send(buffers, static_cast<int>(to), static_cast<int>(tag)),
          [] { return at::Tensor(); }};
    });
  }
  at::Tensor recv(const at::Tensor& like, int64_t from, int64_t tag) override {
    return end("recv", [&]() -> Started {
      const at::Tensor result = at::empty(like.sizes(), like.options());
      Tensors buffers{as_bytes(result)};
      return {
          backend_->recv(
              buffers, static_cast<int>(from), static_cast<int>(tag)),
          [=] { return result; }};
    });
  }
  void barrier() override {
    end("barrier", [&]() -> Started {
      return {backend_->barrier(), [] { return at::Tensor(); }};
    });
  }

  PendingPtr start(AsyncCollective collective) override;

  at::Tensor wait_for(std::string_view name, const Started& started);

 private:
  // Begins, waits, and gives errors their place.
  template <typename Begin>
  at::Tensor end(std::string_view name, const Begin& begin) {
    return wait_for(name, begun(name, begin));
  }
  template <typename Begin>
  Started begun(std::string_view name, const Begin& begin) {
    try {
      return begin();
    } catch (const std::exception& error) {
      fail(name, error);
    }
  }
  [[noreturn]] void fail(std::string_view name, const std::exception& error)
      const;

  Started begin(const AsyncCollective& collective);
  Started begin_gather_along(const AsyncCollective& collective);
  Started begin_reduce_scatter_along(const AsyncCollective& collective);
  Started begin_shard_dim_alltoall(const AsyncCollective& collective);
  Started begin_all_reduce(const at::Tensor& input, ReduceOp op);
  Started begin_all_gather(const at::Tensor& input, SizesRef counts);
  Started begin_even_all_gather(const at::Tensor& input);
  Started
  begin_reduce_scatter(const at::Tensor& input, SizesRef counts, ReduceOp op);
  Started
  begin_all_to_all(const at::Tensor& input, SizesRef sent, SizesRef received);

  BackendPtr backend_;
};

// Waits when it is asked to.
class C10dPending final : public Pending {
 public:
  C10dPending(
      std::shared_ptr<C10dGroup> group,
      std::string_view name,
      Started started,
      at::Tensor out)
      : group_(std::move(group)),
        name_(name),
        started_(std::move(started)),
        out_(std::move(out)) {}

  at::Tensor wait() override {
    if (!result_.defined()) {
      result_ = group_->wait_for(name_, started_);
      if (out_.defined()) {
        result_ = out_.copy_(result_);
      }
      started_ = {};
    }
    return result_;
  }

 private:
  std::shared_ptr<C10dGroup> group_;
  std::string_view name_;
  Started started_;
  at::Tensor out_;
  at::Tensor result_;
};

at::Tensor C10dGroup::wait_for(std::string_view name, const Started& started) {
  try {
    if (started.work != nullptr) {
      started.work->wait();
    }
  } catch (const std::exception& error) {
    fail(name, error);
  }
  return started.finish();
}

void C10dGroup::fail(std::string_view name, const std::exception& error) const {
  const auto* ours = dynamic_cast<const c10::Error*>(&error);
  DTENSOR_CHECK(
      false,
      name,
      backend_->getBackendName(),
      " failed on \"",
      label(),
      "\" (",
      rank_list(members().ranks),
      "): ",
      ours != nullptr ? ours->what_without_backtrace() : error.what());
}

Started C10dGroup::begin_all_reduce(const at::Tensor& input, ReduceOp op) {
  const bool as_pairs =
      input.is_complex() && (op == ReduceOp::kSum || op == ReduceOp::kAvg);
  if (!as_pairs && !reduces(input.scalar_type(), op)) {
    const Started gathered = begin_even_all_gather(input);
    return {
        gathered.work, [=, n = size()] {
          const at::Tensor terms = gathered.finish().view({n, input.numel()});
          return combined(terms, op).view(input.sizes());
        }};
  }
  const at::Tensor result = input.clone();
  Tensors buffers{as_pairs ? at::view_as_real(result) : result};
  c10d::AllreduceOptions options;
  options.reduceOp = c10d_op(op);
  return {backend_->allreduce(buffers, options), [=, n = size()] {
            return op == ReduceOp::kAvg ? result.div_(n) : result;
          }};
}

// Of as many elements from each member.
Started C10dGroup::begin_even_all_gather(const at::Tensor& input) {
  at::Tensor bytes = bytes_for(input.numel() * size(), input);
  at::Tensor mine = as_bytes(input);
  return {backend_->_allgather_base(bytes, mine), [=] {
            return elements_of(bytes, input);
          }};
}

// Parts are filled up to the size of the longest.
Started C10dGroup::begin_all_gather(const at::Tensor& input, SizesRef counts) {
  const int64_t longest = *std::max_element(counts.begin(), counts.end());
  if (longest == 0) {
    return {nullptr, [=] { return at::empty({0}, input.options()); }};
  }
  if (std::all_of(counts.begin(), counts.end(), [&](int64_t count) {
        return count == longest;
      })) {
    return begin_even_all_gather(input);
  }
  const at::Tensor filled = at::empty({longest}, input.options());
  filled.narrow(0, 0, input.numel()).copy_(input);
  const Started gathered = begin_even_all_gather(filled);
  return {
      gathered.work, [=, counts = Sizes(counts)] {
        const at::Tensor all = gathered.finish().view({-1, longest});
        Tensors parts;
        for (size_t r = 0; r < counts.size(); ++r) {
          parts.push_back(all[static_cast<int64_t>(r)].narrow(0, 0, counts[r]));
        }
        return at::cat(parts);
      }};
}

// Every member gets its part from all others, and combines them in rank order:
// as many bytes as any way must move, in one step, for every dtype.
Started C10dGroup::begin_reduce_scatter(
    const at::Tensor& input,
    SizesRef counts,
    ReduceOp op) {
  const int64_t mine = counts[static_cast<size_t>(rank())];
  const Sizes received(static_cast<size_t>(size()), mine);
  const Started parts = begin_all_to_all(input, counts, received);
  return {parts.work, [=, n = size()] {
            return combined(parts.finish().view({n, mine}), op);
          }};
}

Started C10dGroup::begin_all_to_all(
    const at::Tensor& input,
    SizesRef sent,
    SizesRef received) {
  const int64_t item = input.element_size();
  at::Tensor bytes = bytes_for(c10::sum_integers(received), input);
  at::Tensor mine = as_bytes(input);
  auto out_counts = byte_counts(received, item);
  auto in_counts = byte_counts(sent, item);
  return {backend_->alltoall_base(bytes, mine, out_counts, in_counts), [=] {
            return elements_of(bytes, input);
          }};
}

Started C10dGroup::begin(const AsyncCollective& collective) {
  const auto& input = collective.input;
  switch (collective.kind) {
    case CollectiveKind::kAllReduce:
      return begin_all_reduce(input, collective.op);
    case CollectiveKind::kAllGather:
      return begin_gather_along(collective);
    case CollectiveKind::kReduceScatter:
      return begin_reduce_scatter_along(collective);
    case CollectiveKind::kAllToAll:
      return begin_shard_dim_alltoall(collective);
    default:
      TORCH_INTERNAL_ASSERT(
          false, "not asynchronous: ", to_string(collective.kind));
  }
}

Started C10dGroup::begin_gather_along(const AsyncCollective& collective) {
  const auto& [kind, input, op, dim, cut_dim, given, total, out] = collective;
  const Sizes sizes = given.empty() ? ask_sizes(input.size(dim)) : given;
  const int64_t sum = c10::sum_integers(sizes);
  if (sum != total) {
    throw_wrong_total("all_gather", label(), dim, sum, total);
  }
  const auto shapes = shapes_along(input.sizes(), dim, sizes);
  const auto gathered = begin_all_gather(input.view({-1}), counts_of(shapes));
  return {gathered.work, [gathered, shapes, dim = dim] {
            return joined_from_buffer(gathered.finish(), shapes, dim);
          }};
}

Started C10dGroup::begin_reduce_scatter_along(
    const AsyncCollective& collective) {
  const auto& [kind, input, op, dim, cut_dim, given, total, out] = collective;
  const Sizes sizes =
      given.empty() ? chunk_sizes(input.size(dim), size()) : given;
  const auto shapes = shapes_along(input.sizes(), dim, sizes);
  const auto reduced = begin_reduce_scatter(
      cut_into_buffer(input, dim, sizes), counts_of(shapes), op);
  return {reduced.work, [reduced, mine = shapes[static_cast<size_t>(rank())]] {
            return reduced.finish().view(mine);
          }};
}

Started C10dGroup::begin_shard_dim_alltoall(const AsyncCollective& collective) {
  const auto& [kind, input, op, dim, cut_dim, given, total, out] = collective;
  const Sizes known = given.empty() ? ask_sizes(input.size(dim)) : given;
  const Sizes cut = chunk_sizes(input.size(cut_dim), size());
  const auto sent = split(input, cut_dim, cut);
  const auto shapes = shapes_along(
      resized(input.sizes(), cut_dim, cut[static_cast<size_t>(rank())]),
      dim,
      known);
  const auto exchanged = begin_all_to_all(
      in_one_buffer(sent), counts_of(shapes_of(sent)), counts_of(shapes));
  return {exchanged.work, [exchanged, shapes, dim = dim] {
            return joined_from_buffer(exchanged.finish(), shapes, dim);
          }};
}

PendingPtr C10dGroup::start(AsyncCollective collective) {
  const std::string_view name = to_string(collective.kind);
  auto started = begun(name, [&] { return begin(collective); });
  return std::make_shared<C10dPending>(
      shared_from_this(), name, std::move(started), collective.out);
}

} // namespace

GroupBackendPtr
c10d_group(BackendPtr backend, GroupMembers members, c10::Device device) {
  constexpr const char* kWhere = "c10d_group";
  const auto size = static_cast<int64_t>(members.ranks.size());
  DTENSOR_CHECK_VALUE(
      backend->getSize() == size && backend->getRank() == members.rank,
      kWhere,
      "the backend is rank ",
      backend->getRank(),
      " of ",
      backend->getSize(),
      ", and the member ",
      members.rank,
      " of ",
      size,
      " in \"",
      members.label,
      "\". Make the backend for the members, in their order.");
  return std::make_shared<C10dGroup>(
      std::move(members), std::move(backend), device);
}

} // namespace dtensor
