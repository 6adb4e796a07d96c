// SPDX-License-Identifier: BSD-3-Clause
// A World implementation over a c10d store, which keeps bytes under keys. It
// shares no code with the library's own worlds.
#pragma once

#include <c10/util/StringUtil.h>
#include <c10/util/accumulate.h>
#include <dtensor/comm/buffer_backend.h>
#include <dtensor/comm/world.h>
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <map>

#include "collective_inputs.h"

namespace dtensor::test {

using StorePtr = c10::intrusive_ptr<c10d::Store>;

/// The seven required functions of a backend. Members write their inputs under
/// numbered keys and read the inputs of the others.
class StoreBackend final : public BufferBackend {
 public:
  StoreBackend(
      GroupMembers members,
      StorePtr store,
      std::map<std::string, int64_t>& rounds)
      : BufferBackend(std::move(members)),
        store_(std::move(store)),
        rounds_(rounds) {}

  at::Tensor all_reduce(const at::Tensor& input, ReduceOp op) override {
    const Sizes counts(static_cast<size_t>(size()), input.numel());
    const at::Tensor terms =
        all_gather(input.view({-1}), counts).view({size(), input.numel()});
    return reduced(terms.unbind(), op).view(input.sizes());
  }
  at::Tensor all_gather(const at::Tensor& input, SizesRef counts) override {
    const std::string round = next("all_gather");
    put(c10::str(round, rank()), input);
    std::vector<at::Tensor> parts;
    for (int64_t r = 0; r < size(); ++r) {
      parts.push_back(take(c10::str(round, r), {at(counts, r)}, input));
    }
    return at::cat(parts);
  }
  at::Tensor reduce_scatter(
      const at::Tensor& input,
      SizesRef counts,
      ReduceOp op) override {
    const int64_t begin =
        c10::sum_integers(counts.slice(0, static_cast<size_t>(rank())));
    return all_reduce(input, op).narrow(0, begin, at(counts, rank())).clone();
  }
  at::Tensor all_to_all(
      const at::Tensor& input,
      SizesRef sent,
      SizesRef received) override {
    const std::string round = next("all_to_all");
    int64_t begin = 0;
    for (int64_t r = 0; r < size(); ++r) {
      put(c10::str(round, rank(), " to ", r),
          input.narrow(0, begin, at(sent, r)));
      begin += at(sent, r);
    }
    std::vector<at::Tensor> parts;
    for (int64_t r = 0; r < size(); ++r) {
      parts.push_back(
          take(c10::str(round, r, " to ", rank()), {at(received, r)}, input));
    }
    return at::cat(parts);
  }
  at::Tensor broadcast(const at::Tensor& input, int64_t root) override {
    const std::string round = next("broadcast");
    if (rank() == root) {
      put(round, input);
    }
    return take(round, input.sizes(), input);
  }
  void send(const at::Tensor& input, int64_t to, int64_t tag) override {
    put(next(c10::str("mail ", rank(), " ", to, " ", tag)), input);
  }
  at::Tensor recv(const at::Tensor& like, int64_t from, int64_t tag) override {
    return take(
        next(c10::str("mail ", from, " ", rank(), " ", tag)),
        like.sizes(),
        like);
  }

 private:
  static int64_t at(SizesRef sizes, int64_t r) {
    return sizes[static_cast<size_t>(r)];
  }
  void put(const std::string& name, const at::Tensor& tensor) {
    const auto* begin = static_cast<const uint8_t*>(tensor.const_data_ptr());
    store_->set(name, std::vector<uint8_t>(begin, begin + tensor.nbytes()));
  }
  // The bytes carry no shape, so the reader must pass it.
  at::Tensor
  take(const std::string& name, SizesRef sizes, const at::Tensor& like) {
    const std::vector<uint8_t> bytes = store_->get(name);
    const at::Tensor tensor = at::empty(sizes, like.options());
    TORCH_CHECK(
        bytes.size() == tensor.nbytes(),
        "[StoreBackend] wrong sizes: ",
        bytes.size(),
        " bytes came where ",
        tensor.nbytes(),
        " were to come");
    std::copy(
        bytes.begin(), bytes.end(), static_cast<uint8_t*>(tensor.data_ptr()));
    return tensor;
  }
  std::string next(const std::string& what) {
    const std::string name =
        c10::str(c10::Join(",", members().ranks), " ", what);
    return c10::str(name, " round ", rounds_[name]++, " of ");
  }

  StorePtr store_;
  std::map<std::string, int64_t>& rounds_;
};

class StoreWorld final : public World {
 public:
  StoreWorld(int64_t rank, int64_t size, StorePtr store, bool checks = true)
      : World(rank, size, "store world"),
        store_(std::move(store)),
        checks_(checks) {}

 protected:
  GroupBackendPtr make_backend(GroupMembers members) override {
    auto backend =
        std::make_shared<StoreBackend>(std::move(members), store_, rounds_);
    return checks_ ? checked(std::move(backend)) : backend;
  }

 private:
  StorePtr store_;
  bool checks_;
  std::map<std::string, int64_t> rounds_;
};

} // namespace dtensor::test
