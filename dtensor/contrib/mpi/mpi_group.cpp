// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/contrib/mpi/mpi_group_impl.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>
#include <c10/util/accumulate.h>
#include <dtensor/comm/mpi_module.h>
#include <dtensor/error.h>

#include <algorithm>
#include <cstring>
#include <optional>

namespace dtensor::mpi {
namespace {

// Returns the tensor's memory. A Span is never const, although MPI's functions
// take memory that they only read as const.
char* memory_of(const at::Tensor& tensor) {
  return static_cast<char*>(const_cast<void*>(tensor.const_data_ptr()));
}

int64_t bytes_of(const at::Tensor& tensor) {
  return static_cast<int64_t>(tensor.nbytes());
}

int64_t most_bytes() {
  return MpiRuntime::get().most_bytes();
}

// MPI's type and operation for a reduction.
struct MpiReduction {
  MPI_Datatype type;
  MPI_Op op; // MPI_SUM for an average
};

MPI_Datatype mpi_type(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBool: // bytes 0 or 1
    case at::kByte:
      return MPI_UINT8_T;
    case at::kChar:
      return MPI_INT8_T;
    case at::kShort:
      return MPI_INT16_T;
    case at::kInt:
      return MPI_INT32_T;
    case at::kLong:
      return MPI_INT64_T;
    case at::kFloat:
      return MPI_FLOAT;
    case at::kDouble:
      return MPI_DOUBLE;
    case at::kComplexFloat:
      return MPI_C_FLOAT_COMPLEX;
    case at::kComplexDouble:
      return MPI_C_DOUBLE_COMPLEX;
    default:
      return MPI_DATATYPE_NULL;
  }
}

MPI_Op mpi_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
      return MPI_SUM;
    case ReduceOp::kProduct:
      return MPI_PROD;
    case ReduceOp::kMin:
      return MPI_MIN;
    case ReduceOp::kMax:
      return MPI_MAX;
    case ReduceOp::kBand:
      return MPI_BAND;
    case ReduceOp::kBor:
      return MPI_BOR;
    case ReduceOp::kBxor:
      return MPI_BXOR;
  }
  TORCH_INTERNAL_ASSERT(false);
}

// Maps reductions of booleans: a sum is a logical "or", a product an "and".
ReduceOp meant(at::ScalarType dtype, ReduceOp op) {
  if (dtype != at::kBool) {
    return op;
  }
  return op == ReduceOp::kSum    ? ReduceOp::kMax
      : op == ReduceOp::kProduct ? ReduceOp::kMin
                                 : op;
}

// Returns nullopt if MPI lacks the type (half precision) or computes a
// different result: its minimum and maximum lose NaN.
std::optional<MpiReduction> mpi_reduction(at::ScalarType dtype, ReduceOp op) {
  const bool is_order = op == ReduceOp::kMin || op == ReduceOp::kMax;
  const MPI_Datatype type = mpi_type(dtype);
  if (type == MPI_DATATYPE_NULL ||
      (is_order && !c10::isIntegralType(dtype, /*includeBool=*/true))) {
    return std::nullopt;
  }
  return MpiReduction{type, mpi_op(meant(dtype, op))};
}

Span span_of(const at::Tensor& tensor) {
  return {memory_of(tensor), bytes_of(tensor)};
}

// Begins messages with the bytes of `span`, by MPI_Isend or MPI_Irecv.
template <class Function>
void begin_message(
    MpiTransfer& transfer,
    const char* name,
    const Function& function,
    const Span& span,
    int64_t peer,
    int tag) {
  transfer.begin_pieces(
      name,
      span.bytes,
      most_bytes(),
      [&](int64_t first, int bytes, MPI_Comm group, MPI_Request* request) {
        return function(
            span.begin + first,
            bytes,
            MPI_BYTE,
            static_cast<int>(peer),
            tag,
            group,
            request);
      });
}

} // namespace

std::shared_ptr<MpiTransfer> MpiGroup::transfer_of(
    std::vector<at::Tensor> tensors) {
  for (const at::Tensor& tensor : tensors) {
    DTENSOR_CHECK_VALUE(
        tensor.is_cpu(),
        "[mpi] MPI supports only CPU tensors on \"{}\", got one on {}. Move it "
        "to the CPU, or use a backend for its device.",
        label(),
        tensor.device());
  }
  return std::make_shared<MpiTransfer>(channel_, std::move(tensors));
}

void MpiGroup::note_failure() noexcept {
  MpiRuntime::get().fail();
  channel_->report_failure();
}

InFlight MpiGroup::begin_barrier() {
  auto transfer = transfer_of({});
  transfer->begin("MPI_Ibarrier", MPI_Ibarrier);
  return {transfer, [] { return CollectiveResult(); }};
}

// MPI_Allreduce. The standard demands that all members receive identical
// results, and implementations comply. If two members compute the same element,
// they combine the same two terms, and a sum or product does not depend on
// their order.
InFlight MpiGroup::begin_all_reduce(const Collective& c) {
  const auto reduction = mpi_reduction(c.input().scalar_type(), c.op);
  if (!reduction) {
    return begin_combined_all_reduce(c);
  }
  const at::Tensor result = c.owns_input() ? c.input() : c.input().clone();
  const int64_t item = result.element_size();
  auto transfer = transfer_of({result});
  transfer->begin_pieces(
      "MPI_Iallreduce",
      result.numel(),
      most_bytes() / item,
      [&](int64_t first, int count, MPI_Comm group, MPI_Request* request) {
        return MPI_Iallreduce(
            MPI_IN_PLACE,
            memory_of(result) + first * item,
            count,
            reduction->type,
            reduction->op,
            group,
            request);
      });
  return {transfer, [=, op = c.op, n = size()] {
            return op == ReduceOp::kAvg ? result.div_(n) : result;
          }};
}

InFlight MpiGroup::begin_all_gather(const Collective& c) {
  const at::Tensor& input = c.input();
  const Sizes& counts = c.sizes;
  at::Tensor result = at::empty({c10::sum_integers(counts)}, input.options());
  auto transfer = transfer_of({input, result});
  if (bytes_of(result) <= most_bytes()) {
    begin_gather(*transfer, input, result, counts);
  } else {
    Spans from;
    char* at = memory_of(result);
    for (const int64_t count : counts) {
      from.push_back({at, count * input.element_size()});
      at += from.back().bytes;
    }
    begin_messages(*transfer, Spans(counts.size(), span_of(input)), from);
  }
  return {transfer, [=] { return result; }};
}

void MpiGroup::begin_gather(
    MpiTransfer& transfer,
    const at::Tensor& input,
    const at::Tensor& result,
    SizesRef counts) {
  auto& bytes = transfer.requests().counts;
  auto& offsets = transfer.requests().offsets;
  int offset = 0;
  for (const int64_t count : counts) {
    bytes.push_back(static_cast<int>(count * input.element_size()));
    offsets.push_back(offset);
    offset += bytes.back();
  }
  const int mine = bytes[static_cast<size_t>(rank())];
  const bool are_equal = std::ranges::count(counts, counts.front()) == size();
  transfer.begin("MPI_Iallgatherv", [&](MPI_Comm group, MPI_Request* request) {
    return are_equal ? MPI_Iallgather(
                           memory_of(input),
                           mine,
                           MPI_BYTE,
                           memory_of(result),
                           mine,
                           MPI_BYTE,
                           group,
                           request)
                     : MPI_Iallgatherv(
                           memory_of(input),
                           mine,
                           MPI_BYTE,
                           memory_of(result),
                           bytes.data(),
                           offsets.data(),
                           MPI_BYTE,
                           group,
                           request);
  });
}

// Uses messages, as implementations do internally. MPI_Ialltoallv counts with
// int, and only the two members of a transfer can check if its size is too
// large for an int.
InFlight MpiGroup::begin_all_to_all(const Collective& c) {
  const at::Tensor& input = c.input();
  const Sizes& sent = c.sizes;
  const Sizes& received = c.received;
  const int64_t item = input.element_size();
  at::Tensor result = at::empty({c10::sum_integers(received)}, input.options());
  Spans to;
  Spans from;
  char* read = memory_of(input);
  char* written = memory_of(result);
  for (size_t r = 0; r < sent.size(); ++r) {
    to.push_back({read, sent[r] * item});
    from.push_back({written, received[r] * item});
    read += to.back().bytes;
    written += from.back().bytes;
  }
  auto transfer = transfer_of({input, result});
  begin_messages(*transfer, to, from);
  return {transfer, [=] { return result; }};
}

// Every member starts with its neighbours, so that the members do not all write
// to the same member.
void MpiGroup::begin_messages(
    MpiTransfer& transfer,
    const Spans& to,
    const Spans& from) {
  const auto n = static_cast<int>(size());
  const auto me = static_cast<int>(rank());
  const int tag = MpiRuntime::get().last_tag();
  for (int i = 1; i < n; ++i) {
    const int peer = (me + n - i) % n;
    const Span& span = from[static_cast<size_t>(peer)];
    begin_message(transfer, "MPI_Irecv", MPI_Irecv, span, peer, tag);
  }
  for (int i = 1; i < n; ++i) {
    const int peer = (me + i) % n;
    const Span& span = to[static_cast<size_t>(peer)];
    begin_message(transfer, "MPI_Isend", MPI_Isend, span, peer, tag);
  }
  const Span& mine = to[static_cast<size_t>(me)];
  if (mine.bytes > 0) {
    std::memcpy(
        from[static_cast<size_t>(me)].begin,
        mine.begin,
        static_cast<size_t>(mine.bytes));
  }
}

InFlight MpiGroup::begin_broadcast(const Collective& c) {
  at::Tensor result =
      rank() == c.root ? c.input().clone() : at::empty_like(c.input());
  auto transfer = transfer_of({result});
  transfer->begin_pieces(
      "MPI_Ibcast",
      bytes_of(result),
      most_bytes(),
      [&](int64_t first, int bytes, MPI_Comm group, MPI_Request* request) {
        return MPI_Ibcast(
            memory_of(result) + first,
            bytes,
            MPI_BYTE,
            static_cast<int>(c.root),
            group,
            request);
      });
  return {transfer, [=] { return result; }};
}

int MpiGroup::checked_tag(std::string_view where, int64_t tag) const {
  const int64_t last = MpiRuntime::get().last_tag() - 1;
  DTENSOR_CHECK_VALUE(
      tag >= 0 && tag <= last,
      "[{}] invalid MPI tag {} on \"{}\". Use one from 0 to {}.",
      where,
      tag,
      label(),
      last);
  return static_cast<int>(tag);
}

InFlight MpiGroup::begin_send(const Collective& c) {
  const at::Tensor& input = c.input();
  const int tag = checked_tag("send", c.tag);
  auto transfer = transfer_of({input});
  begin_message(*transfer, "MPI_Isend", MPI_Isend, span_of(input), c.root, tag);
  return {transfer, [] { return CollectiveResult(); }};
}

InFlight MpiGroup::begin_recv(const Collective& c) {
  const int tag = checked_tag("recv", c.tag);
  at::Tensor result = at::empty(c.like.sizes(), c.like.options());
  auto transfer = transfer_of({result});
  begin_message(
      *transfer, "MPI_Irecv", MPI_Irecv, span_of(result), c.root, tag);
  return {transfer, [=] { return result; }};
}

namespace {

GroupBackendPtr make(GroupMembers members, const RendezvousInfo& place) {
  auto channel = std::make_shared<MpiChannel>(members, place);
  return std::make_shared<MpiGroup>(std::move(members), std::move(channel));
}

constexpr MpiModule kModule{
    .begin = [](int64_t rank,
                int64_t size) { MpiRuntime::get().begin(rank, size); },
    .end = [](bool has_failed) { MpiRuntime::get().end(has_failed); },
    .make = make};

} // namespace
} // namespace dtensor::mpi

extern "C" DTENSOR_API const dtensor::MpiModule* dtensor_mpi_module() {
  return &dtensor::mpi::kModule;
}
