// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/contrib/mpi/types_impl.h>

#include <c10/util/Exception.h>

namespace dtensor::mpi {
namespace {

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

} // namespace

std::optional<MpiReduction> mpi_reduction(at::ScalarType dtype, ReduceOp op) {
  const bool is_order = op == ReduceOp::kMin || op == ReduceOp::kMax;
  const MPI_Datatype type = mpi_type(dtype);
  if (type == MPI_DATATYPE_NULL ||
      (is_order && !c10::isIntegralType(dtype, /*includeBool=*/true))) {
    return std::nullopt;
  }
  return MpiReduction{type, mpi_op(meant(dtype, op))};
}

} // namespace dtensor::mpi
