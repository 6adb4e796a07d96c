// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/contrib/mpi/transfer_impl.h>

namespace dtensor::mpi {

// Tests requests in order; testing one request lets MPI progress all of them.
bool MpiRequests::test() noexcept {
  const std::lock_guard lock(mutex_);
  const auto turn = MpiRuntime::get().turn();
  while (done_ < all_.size() && code_ == MPI_SUCCESS) {
    int is_done = 0;
    code_ = MPI_Test(&all_[done_], &is_done, MPI_STATUS_IGNORE);
    if (is_done == 0 && code_ == MPI_SUCCESS) {
      return false;
    }
    ++done_;
  }
  return true;
}

void MpiTransfer::wait() {
  if (requests_ == nullptr) {
    return;
  }
  channel_->wait([&] { return requests_->test(); });
  const int code = requests_->code();
  requests_ = nullptr;
  check_mpi(code, "MPI_Test");
}

void MpiTransfer::progress_in_background() {
  is_watched_ = true;
  MpiRuntime::get().watch(requests_);
}

// MPI cannot cancel a collective, so the helper thread must finish it.
MpiTransfer::~MpiTransfer() {
  if (requests_ != nullptr && !is_watched_) {
    MpiRuntime::get().watch(requests_);
  }
}

} // namespace dtensor::mpi
