// SPDX-License-Identifier: BSD-3-Clause
// Autocast converts parameters below every other key. A conversion that
// communicates must not make ranks wait for each other's locks.
#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include <chrono>

#include "support.h"

namespace dtensor {
namespace TEST_SOURCE {

using namespace test;

class Autocast {
 public:
  Autocast() {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::autocast::increment_nesting();
  }
  ~Autocast() {
    if (at::autocast::decrement_nesting() == 0) {
      at::autocast::clear_cache();
    }
    at::autocast::set_autocast_enabled(at::kCPU, false);
  }
};

// A partial value is reduced before it is rounded.
TEST(Autocast, OfAPartialLeafIsRightWithoutWaiting) {
  const auto a = torch::rand({4, 4});
  const auto w = torch::rand({4, 4});
  auto x_plain = (a * 2).detach().requires_grad_();
  auto w_plain = w.clone().requires_grad_();
  at::Tensor truth;
  {
    const Autocast on;
    truth = x_plain.matmul(w_plain);
  }
  truth.sum().backward();
  for (int i = 0; i < 20; ++i) {
    run_ranks(
        2,
        [&] {
          const auto mesh = mesh_of({2});
          auto x = DTensor::from_local(a.clone(), mesh, {Partial()})
                       .detach()
                       .requires_grad_();
          auto m = DTensor::from_local(w.clone(), mesh, {Replicate()})
                       .detach()
                       .requires_grad_();
          at::Tensor y;
          {
            const Autocast on;
            y = x.matmul(m);
          }
          EXPECT_EQ(y.scalar_type(), at::kBFloat16);
          EXPECT_TRUE(whole(y).equal(truth));
          y.sum().backward();
          EXPECT_TRUE(whole(x.grad()).allclose(x_plain.grad(), 2e-2, 2e-2));
          EXPECT_TRUE(whole(m.grad()).allclose(w_plain.grad(), 2e-2, 2e-2));
        },
        {.timeout = std::chrono::seconds(60)});
  }
}

// The backward pass runs with autocast enabled.
TEST(Autocast, InBackwardIsRightWithoutWaiting) {
  const auto a = torch::rand({4, 4});
  for (int i = 0; i < 20; ++i) {
    run_ranks(
        2,
        [&] {
          const auto mesh = mesh_of({2});
          auto x = DTensor::from_local(a.clone(), mesh, {Partial()})
                       .detach()
                       .requires_grad_();
          const Autocast on;
          x.matmul(x).sum().backward();
          EXPECT_EQ(x.grad().scalar_type(), at::kFloat);
          EXPECT_TRUE(x.grad().isfinite().all().item<bool>());
        },
        {.timeout = std::chrono::seconds(60)});
  }
}

TEST(Autocast, CacheIsOffInRanksAlone) {
  run_ranks(2, [] { EXPECT_FALSE(at::autocast::is_autocast_cache_enabled()); });
  EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
}

} // namespace TEST_SOURCE
} // namespace dtensor
