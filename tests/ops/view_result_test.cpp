// SPDX-License-Identifier: BSD-3-Clause
// Tests of views and writes. A view that is a copy is never read after a write
// to its base. Gradients are correct through writes to views.
#include "tests/ops/against_plain.h"

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::against_plain;

using View = std::function<at::Tensor(const at::Tensor&)>;

// Views of a tensor of shape [4, 6].
const std::vector<std::pair<std::string, View>>& views() {
  static const std::vector<std::pair<std::string, View>> all = {
      {"select rows", [](auto& x) { return x.select(0, 1); }},
      {"select columns", [](auto& x) { return x.select(1, 2); }},
      {"slice rows", [](auto& x) { return x.slice(0, 1, 4, 2); }},
      {"slice columns", [](auto& x) { return x.slice(1, 1, 6, 2); }},
      {"narrow rows", [](auto& x) { return x.narrow(0, 1, 2); }},
      {"narrow columns", [](auto& x) { return x.narrow(1, 3, 3); }},
      {"t", [](auto& x) { return x.t(); }},
      {"transpose", [](auto& x) { return x.transpose(0, 1); }},
      {"permute",
       [](auto& x) {
         return x.permute({1, 0});
       }},
      {"view",
       [](auto& x) {
         return x.view({4, 2, 3});
       }},
      {"view rows",
       [](auto& x) {
         return x.view({2, 2, 6});
       }},
      {"flatten", [](auto& x) { return x.flatten(); }},
      {"reshape",
       [](auto& x) {
         return x.reshape({4, 3, 2});
       }},
      {"unsqueeze", [](auto& x) { return x.unsqueeze(1); }},
      {"squeeze", [](auto& x) { return x.narrow(0, 2, 1).squeeze(0); }},
      {"diagonal", [](auto& x) { return x.diagonal(1); }},
      {"unfold", [](auto& x) { return x.unfold(1, 2, 2); }},
      {"unfold rows", [](auto& x) { return x.unfold(0, 2, 2); }},
      {"alias", [](auto& x) { return x.alias(); }},
      {"unbind", [](auto& x) { return x.unbind(0)[2]; }},
      {"chunk", [](auto& x) { return x.chunk(2, 0)[1]; }},
      {"split", [](auto& x) { return x.split(2, 1)[1]; }},
      {"a view of a view",
       [](auto& x) { return x.select(0, 1).narrow(0, 2, 3); }},
      {"a view of the transposed",
       [](auto& x) { return x.t().select(0, 1).narrow(0, 2, 2); }},
  };
  return all;
}

const std::vector<Placements>& places() {
  static const std::vector<Placements> all = {
      {Shard(0)}, {Shard(1)}, {Replicate()}, {Partial(ReduceOp::kSum)}};
  return all;
}

// Returns the result of `use`, or "refused" if it throws an error of this
// library.
template <class Use>
std::string outcome(const Use& use) {
  try {
    return c10::str(use());
  } catch (const c10::Error& e) {
    const std::string text = e.what_without_backtrace();
    return text.rfind('[', 0) == 0 ? "refused" : text;
  }
}

at::Tensor whole(const at::Tensor& t) {
  return is_dtensor(t) ? DTensor(t).full_tensor() : t;
}

// Runs `write` and then `use`, on a tensor and a view of it, in every layout.
// The result must be that of plain tensors, or the call must be refused.
void expect_exact_or_refused(
    const std::function<at::Tensor(const View&, const at::Tensor&)>& program) {
  Failures failures;
  int64_t exact = 0;
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto x = numbers({4, 6}, 1);
    for (const auto& item : views()) {
      const auto& name = item.first;
      const auto& view = item.second;
      const auto truth = c10::str(program(view, x.clone())); // throws nothing
      for (const auto& layout : places()) {
        const auto mine = outcome(
            [&] { return whole(program(view, place(x, mesh, layout))); });
        if (mine != truth && mine != "refused") {
          failures.add(
              name + " of " + to_string(layout) + ": " + mine + "\nnot " +
              truth);
        }
        exact += get_rank() == 0 && mine == truth;
      }
    }
  });
  EXPECT_EQ(failures.text(), "");
  EXPECT_GE(exact, 50); // of 96
}

TEST(ViewResult, ReadAfterAWriteToTheBase) {
  expect_exact_or_refused([](const View& view, const at::Tensor& x) {
    const auto v = view(x);
    x.add_(x);
    return v + v;
  });
}

TEST(ViewResult, ReadAfterAWriteToAnotherView) {
  expect_exact_or_refused([](const View& view, const at::Tensor& x) {
    const auto other = x.alias();
    const auto v = view(x);
    other.zero_();
    return v.clone();
  });
}

TEST(ViewResult, AViewOfAStaleViewIsRefused) {
  expect_exact_or_refused([](const View& view, const at::Tensor& x) {
    const auto v = view(x);
    x.zero_();
    return v.unsqueeze(0).alias();
  });
}

TEST(ViewResult, InInferenceMode) {
  expect_exact_or_refused([](const View& view, const at::Tensor& x) {
    const c10::InferenceMode inference;
    const auto y = x * 1;
    const auto v = view(y);
    y.alias().add_(y);
    return v + v;
  });
}

TEST(ViewResult, OfANormalTensorInInferenceMode) {
  expect_exact_or_refused([](const View& view, const at::Tensor& x) {
    const c10::InferenceMode inference;
    const auto v = view(x);
    x.add_(1);
    return v + v;
  });
}

TEST(ViewResult, AnOptimizerWritesToo) {
  expect_exact_or_refused([](const View& view, const at::Tensor& x) {
    const at::NoGradGuard no_grad;
    const auto v = view(x);
    const TensorList all{x}; // {x} alone selects the overload for one number
    at::_foreach_add_(all, all);
    return v + v;
  });
}

TEST(ViewResult, AWriteThroughTheView) {
  expect_exact_or_refused([](const View& view, const at::Tensor& x) {
    view(x).mul_(3);
    return x;
  });
}

// A copy is readable like a view until the copy or its base is written.
TEST(ViewResult, CopiesAreReadWhileNothingIsWritten) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto x = place(numbers({4, 6}, 1), mesh, {Shard(0)});
    for (const auto& [name, view] : views()) {
      if (name != "view rows" && name != "flatten") {
        const auto v = view(x);
        EXPECT_TRUE(at::equal(whole(v), view(whole(x)))) << name;
        EXPECT_TRUE(at::equal(whole(v * 2), view(whole(x)) * 2)) << name;
      }
    }
  });
}

TEST(ViewResult, ExplainsWhatIsOutOfDate) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    const at::Tensor x = place(numbers({4, 6}, 1), mesh, {Shard(0)});
    const auto v = x.select(0, 1);
    const auto kept = v.clone();
    x.mul_(10);
    const auto stale = [](const std::string& why) {
      return "[DTensor] f64[6] on (tp=2): S(0), a copied view of a tensor "
             "that " +
          why +
          ", is out of date: that tensor has been "
          "written to since. Take the view again, or clone() it before the "
          "write to keep its values.";
    };
    const auto text = stale("had to be redistributed");
    EXPECT_EQ(error_of([&] { v + 1; }), text);
    EXPECT_EQ(error_of([&] { DTensor(v).to_local(); }), text);
    EXPECT_EQ(error_of([&] { DTensor(v).full_tensor(); }), text);
    EXPECT_EQ(error_of([&] { DTensor(v).redistribute({Replicate()}); }), text);
    EXPECT_EQ(error_of([&] { return c10::str(DTensor(v)); }), text);
    EXPECT_NO_THROW(kept + 1);
    EXPECT_NO_THROW(x.select(0, 1) + 1);
  });
}

// Conjugates are copies: results are exact or refused.
TEST(ViewResult, ConjugatesAreExactOrRefused) {
  const auto complex = [](const at::Tensor& x) {
    return at::complex(x, x + 1);
  };
  const std::vector<std::function<at::Tensor(at::Tensor)>> programs = {
      [](at::Tensor y) {
        y.conj().mul_(2);
        return y;
      },
      [](at::Tensor y) {
        at::imag(y.conj()).fill_(2);
        return y;
      },
      [](at::Tensor y) {
        at::_neg_view(y).mul_(2);
        return y;
      },
      [](at::Tensor y) {
        const auto v = y.conj();
        y.mul_(10);
        return v * 1;
      },
      [](at::Tensor y) {
        const auto v = at::_neg_view(y);
        y.mul_(10);
        return v * 1;
      },
      [](at::Tensor y) {
        const auto v = at::imag(y.conj());
        y.mul_(10);
        return v * 1;
      },
      [](at::Tensor y) {
        at::real(y).mul_(2);
        at::imag(y).fill_(3);
        at::view_as_real(y).select(-1, 0).add_(at::imag(y));
        return y;
      },
      [](at::Tensor y) { return y.conj().conj() * y.conj(); }};
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto y = complex(numbers({4, 6}, 1));
    for (size_t i = 0; i < programs.size(); ++i) {
      const auto truth = c10::str(programs[i](y.clone()).resolve_neg());
      for (const auto& layout : {Placements{Shard(0)}, {Replicate()}}) {
        const auto mine = outcome([&] {
          return whole(programs[i](distribute_tensor(y, mesh, layout)));
        });
        const bool writes_or_reads_a_copy = i < 6;
        EXPECT_EQ(mine, writes_or_reads_a_copy ? "refused" : truth)
            << i << " of " << to_string(layout);
      }
    }
  });
}

// --- gradients ---

using Loss = std::function<at::Tensor(const View&, const at::Tensor& leaf)>;

std::string gradients(const Loss& loss, const View& view, const at::Tensor& x) {
  return outcome([&] {
    const auto leaf = x.detach().clone().requires_grad_();
    const auto value = whole(loss(view, leaf));
    value.backward({}, /*retain_graph=*/true);
    value.backward();
    return whole(leaf.grad());
  });
}

// Checks every view that can be written to, in every layout.
void expect_gradients(const Loss& loss, int64_t least) {
  Failures failures;
  int64_t exact = 0;
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto x = numbers({4, 6}, 1);
    for (const auto& [name, view] : views()) {
      const auto truth = gradients(loss, view, x);
      for (const auto& layout : places()) {
        const auto mine = gradients(loss, view, place(x, mesh, layout));
        if (mine != truth && mine != "refused") {
          failures.add(
              name + " of " + to_string(layout) + ": " + mine + "\nnot " +
              truth);
        }
        exact += get_rank() == 0 && mine == truth;
      }
    }
  });
  EXPECT_EQ(failures.text(), "");
  EXPECT_GE(exact, least); // of 96
}

TEST(ViewResult, GradientsThroughAWrite) {
  expect_gradients(
      [](const View& view, const at::Tensor& leaf) {
        const auto q = leaf * 3;
        view(q).mul_(5);
        return (q * q).sum();
      },
      60);
}

TEST(ViewResult, GradientsOfTheWrittenView) {
  expect_gradients(
      [](const View& view, const at::Tensor& leaf) {
        const auto q = leaf * 3;
        const auto v = view(q);
        v.mul_(5);
        return (v * v).sum() + q.sum();
      },
      60);
}

TEST(ViewResult, GradientsOfAnotherView) {
  expect_gradients(
      [](const View& view, const at::Tensor& leaf) {
        const auto q = leaf * 3;
        const auto v = view(q);
        q.select(1, 2).mul_(2);
        return (v * v).sum() + q.sum();
      },
      30);
}

TEST(ViewResult, GradientsOfWhatIsWritten) {
  expect_gradients(
      [](const View& view, const at::Tensor& leaf) {
        const auto q = leaf.detach() * 3;
        const auto v = view(q);
        v.copy_(view(leaf * leaf));
        return (q * q).sum();
      },
      50);
}

TEST(ViewResult, SecondGradientsThroughAWrite) {
  expect_gradients(
      [](const View& view, const at::Tensor& leaf) {
        const auto q = leaf * leaf;
        const auto v = view(q);
        v.mul_(leaf.sum());
        const auto g = torch::autograd::grad(
            {whole((q * q).sum())}, {leaf}, {}, true, /*create_graph=*/true)[0];
        return (g * g).sum();
      },
      40);
}

TEST(ViewResult, WritesWithoutGradOnALeaf) {
  expect_gradients(
      [](const View& view, const at::Tensor& leaf) {
        {
          const at::NoGradGuard no_grad;
          view(leaf).mul_(5);
        }
        return (leaf * leaf).sum();
      },
      60);
}

} // namespace TEST_SOURCE
} // namespace dtensor
