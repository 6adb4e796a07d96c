// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/mpi/transfer_impl.h>

namespace dtensor::detail {

bool MpiRequests::test() {
  const auto turn = MpiRuntime::get().turn();
  while (done < all.size()) {
    int is_done = 0;
    check_mpi(MPI_Test(&all[done], &is_done, MPI_STATUS_IGNORE), "MPI_Test");
    if (is_done == 0) {
      return false;
    }
    ++done;
  }
  return true;
}

void MpiTransfer::wait() {
  if (requests_ == nullptr) {
    return;
  }
  channel_->wait([&] { return requests_->test(); });
  requests_ = nullptr;
  if (is_alone_) {
    MpiRuntime::get().transfer_ends();
  }
}

void MpiTransfer::leave_alone() {
  is_alone_ = true;
  MpiRuntime::get().transfer_begins();
}

// A collective of MPI can be neither cancelled nor forgotten.
MpiTransfer::~MpiTransfer() {
  if (requests_ == nullptr) {
    return;
  }
  if (!is_alone_) {
    MpiRuntime::get().transfer_begins();
  }
  MpiRuntime::get().keep(std::move(requests_));
}

} // namespace dtensor::detail
