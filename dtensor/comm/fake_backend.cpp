// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/fake_backend_impl.h>

#include <dtensor/comm/assumed_shapes_impl.h>
#include <dtensor/layout/shard_math.h>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/accumulate.h>

namespace dtensor::detail {
namespace {

class FakeBackend final : public GroupBackend {
 public:
  explicit FakeBackend(GroupMembers members)
      : GroupBackend(std::move(members), {.plain = false, .sizes = false}) {}

  at::Tensor all_reduce(const at::Tensor& input, ReduceOp) override {
    const Meeting meeting(*this);
    return input.clone();
  }

  at::Tensor all_gather(const at::Tensor& input, SizesRef counts) override {
    return gather_along(input, 0, counts);
  }

  at::Tensor gather_along(const at::Tensor& input, int64_t dim, SizesRef sizes)
      override {
    const Meeting meeting(*this);
    const int64_t total =
        sizes.empty() ? input.size(dim) * size() : c10::sum_integers(sizes);
    return at::zeros(resized(input, dim, total), input.options());
  }

  at::Tensor reduce_scatter(
      const at::Tensor& input,
      SizesRef counts,
      ReduceOp op) override {
    return reduce_scatter_along(input, 0, counts, op);
  }

  at::Tensor reduce_scatter_along(
      const at::Tensor& input,
      int64_t dim,
      SizesRef sizes,
      ReduceOp) override {
    const Meeting meeting(*this);
    const auto me = static_cast<size_t>(rank());
    if (sizes.empty()) {
      const Interval mine = chunk(input.size(dim), size(), rank());
      return input.narrow(dim, mine.begin, mine.size()).clone();
    }
    const int64_t begin = c10::sum_integers(sizes.slice(0, me));
    return input.narrow(dim, begin, sizes[me]).clone();
  }

  at::Tensor all_to_all(const at::Tensor& input, SizesRef, SizesRef received)
      override {
    const Meeting meeting(*this);
    return at::zeros({c10::sum_integers(received)}, input.options());
  }

  Tensors exchange_parts(const Tensors& inputs, Shapes shapes) override {
    const Meeting meeting(*this);
    Tensors received = inputs;
    for (size_t from = 0; from < shapes.size(); ++from) {
      received[from] = at::zeros(shapes[from], inputs[from].options());
    }
    return received;
  }

  at::Tensor shard_dim_alltoall(
      const at::Tensor& input,
      int64_t gather_dim,
      int64_t shard_dim,
      SizesRef sizes) override {
    const Meeting meeting(*this);
    const int64_t total = sizes.empty() ? input.size(gather_dim) * size()
                                        : c10::sum_integers(sizes);
    Sizes result = resized(input, gather_dim, total);
    auto& cut = result[static_cast<size_t>(shard_dim)];
    cut = chunk(cut, size(), rank()).size();
    return at::zeros(result, input.options());
  }

  at::Tensor broadcast(const at::Tensor& input, int64_t root) override {
    const Meeting meeting(*this);
    return root == rank() ? input.clone() : at::zeros_like(input);
  }

  at::Tensor scatter(
      const Tensors& inputs,
      const at::Tensor& like,
      int64_t root) override {
    const Meeting meeting(*this);
    return root == rank() ? inputs[static_cast<size_t>(root)].clone()
                          : at::zeros_like(like);
  }

  Tensors gather(const at::Tensor& input, Shapes, int64_t root) override {
    const Meeting meeting(*this);
    return root == rank() ? Tensors(static_cast<size_t>(size()), input)
                          : Tensors();
  }

  void send(const at::Tensor&, int64_t, int64_t) override {}

  at::Tensor recv(const at::Tensor& like, int64_t, int64_t) override {
    const Meeting meeting(*this);
    return at::zeros_like(like);
  }

  void barrier() override {
    const Meeting meeting(*this);
  }

  std::vector<std::string> all_gather_strings(
      const std::string& mine) override {
    const Meeting meeting(*this);
    return std::vector<std::string>(static_cast<size_t>(size()), mine);
  }

  // Recorded as in real groups, for a realistic cost.
  void assume(const Spec& spec) override {
    assumed_.add(spec);
  }

 private:
  static Sizes resized(const at::Tensor& tensor, int64_t dim, int64_t size) {
    Sizes sizes(tensor.sizes());
    sizes[static_cast<size_t>(dim)] = size;
    return sizes;
  }

  /// Scope of one collective: below autograd, as in a real group.
  struct Meeting {
    explicit Meeting(FakeBackend& backend) {
      backend.assumed_.clear();
    }
    at::AutoDispatchBelowADInplaceOrView below_autograd;
  };

  AssumedShapes assumed_;
};

} // namespace

GroupBackendPtr fake_backend(GroupMembers members) {
  return std::make_shared<FakeBackend>(std::move(members));
}

} // namespace dtensor::detail
