// SPDX-License-Identifier: BSD-3-Clause
// Tests of views and writes. A view that is a copy has the values of its base
// after a write to the base. Gradients are correct through writes to views.
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
    const std::function<at::Tensor(const View&, const at::Tensor&)>& program,
    int64_t least = 95) {
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
        if (get_rank() == 0 && mine == truth) { // one thread counts
          ++exact;
        }
      }
    }
  });
  EXPECT_EQ(failures.text(), "");
  EXPECT_GE(exact, least); // of 96
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

TEST(ViewResult, AViewOfAViewAfterAWrite) {
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
  expect_exact_or_refused(
      [](const View& view, const at::Tensor& x) {
        const c10::InferenceMode inference;
        const auto v = view(x);
        x.add_(1); // refused for partial sums
        return v + v;
      },
      71);
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

// Calls that may communicate copy the values again. Reading the local tensor
// must not communicate.
TEST(ViewResult, LocalTensorsOfCopiesAreRefusedAfterAWrite) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    const at::Tensor x = place(numbers({4, 6}, 1), mesh, {Shard(0)});
    const auto v = x.select(0, 1);
    const auto kept = v.clone();
    const auto before = whole(v);
    x.mul_(10);
    const std::string text =
        "[DTensor] f64[6] on (tp=2): S(0), a copied view of a tensor that had "
        "to be redistributed, is out of date: that tensor has been written to "
        "since. Take the view again, or clone() it before the write to keep "
        "its values.";
    EXPECT_EQ(error_of([&] { DTensor(v).to_local(); }), text);
    EXPECT_EQ(error_of([&] { return c10::str(DTensor(v)); }), text);
    EXPECT_TRUE(at::equal(DTensor(v).full_tensor(), before * 10));
    EXPECT_EQ(DTensor(v).to_local().numel(), 3);
    EXPECT_TRUE(at::equal(whole(kept), before));
    x.mul_(10);
    EXPECT_TRUE(
        at::equal(whole(DTensor(v).redistribute({Replicate()})), before * 100));
    x.mul_(10);
    EXPECT_TRUE(at::equal(whole(v + 1), before * 1000 + 1));
    const auto windows = x.unfold(0, 3, 1); // rows of its memory overlap
    x.mul_(10);
    EXPECT_THAT(
        error_of([&] { windows.sum(); }),
        ::testing::HasSubstr("is out of date"));
  });
}

// Kernels of calls read the local tensors of their operands.
TEST(ViewResult, CopiesAreUpToDateInKernels) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    for (const bool with_gradient : {false, true}) {
      at::Tensor x = place(numbers({4, 6}, 1), mesh, {Shard(0)})
                         .requires_grad_(with_gradient) *
          1;
      at::Tensor ids = place(at::arange(4), mesh, {Shard(0)});
      const auto logits = x.slice(0, 1, 3);
      const auto target = ids.slice(0, 1, 3);
      x.mul_(2);
      ids.add_(1);
      EXPECT_TRUE(at::allclose(
          whole(at::cross_entropy_loss(logits, target)),
          at::cross_entropy_loss(
              numbers({4, 6}, 1).slice(0, 1, 3) * 2, at::arange(2, 4))));
    }
  });
}

using Program = std::function<at::Tensor(at::Tensor)>;

const std::vector<std::pair<std::string, Program>>& programs_of_chunks() {
  static const std::vector<std::pair<std::string, Program>> all = {
      {"fills of chunks",
       [](at::Tensor x) {
         const auto parts = x.chunk(3, 0);
         for (size_t i = 0; i < parts.size(); ++i) {
           parts[i].view_as(parts[i]).copy_(parts[i] + double(i));
           parts[i].mul_(2);
         }
         return x;
       }},
      {"sums of chunks",
       [](at::Tensor x) {
         const auto parts = x.split(2, 0);
         x.mul_(3);
         auto sum = at::zeros({2, 6}, x.options());
         sum = at::stack({parts[0].slice(0, 0, 1), parts[1].slice(0, 0, 1)});
         return sum + at::cat({parts[0], parts[1]}).sum();
       }},
      {"a view of a view",
       [](at::Tensor x) {
         const auto rows = x.narrow(0, 1, 3);
         const auto row = rows[1];
         rows.mul_(3);
         x.mul_(2);
         return row + rows.sum(0);
       }},
      {"a swap",
       [](at::Tensor x) {
         const auto first = x[0];
         const auto last = x[-1];
         const auto kept = first.clone();
         first.copy_(last);
         last.copy_(kept);
         return x + first - last;
       }},
      {"steps and diagonals", [](at::Tensor x) {
         const auto odd = x.slice(0, 1, x.size(0), 2);
         const auto diagonal = x.diagonal();
         odd.mul_(3);
         diagonal.mul_(2);
         return odd.sum() + diagonal.sum() + x;
       }}};
  return all;
}

TEST(ViewResult, CopiesFollowWritesToTheirTensor) {
  Failures failures;
  const auto check = [&](const std::vector<int64_t>& shape,
                         const Placements& layout) {
    const auto mesh = init_device_mesh(at::kCPU, shape);
    for (const int64_t rows : {5, 6, 7}) {
      const auto x = numbers({rows, 6}, 1);
      for (const auto& [name, program] : programs_of_chunks()) {
        const auto truth = program(x.clone());
        const auto mine = whole(program(place(x, mesh, layout).clone()));
        if (!at::equal(mine, truth)) {
          failures.add(
              name + " of " + to_string(layout) + ": " + c10::str(mine) +
              "\nnot " + c10::str(truth));
        }
      }
    }
  };
  run_ranks(3, [&] {
    for (const auto& layout : places()) {
      check({3}, layout);
    }
  });
  run_ranks(4, [&] {
    check({2, 2}, {Shard(0), Shard(0)});
    check({2, 2}, {Shard(1), Shard(0)});
    check({2, 2}, {Replicate(), Shard(0)});
  });
  EXPECT_EQ(failures.text(), "");
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
        if (get_rank() == 0 && mine == truth) { // one thread counts
          ++exact;
        }
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

// Autograd counts a write to the base as a write to the copy, which the forward
// pass saved. Tensors that the forward pass redistributed keep their values.
TEST(ViewResult, BackwardNeverReadsASavedCopyThatWasWritten) {
  using Saver = std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>;
  const std::vector<std::pair<std::string, Saver>> savers = {
      {"mul", [](auto& v, auto& w) { return v * w[0]; }},
      {"linear", [](auto& v, auto& w) { return at::linear(v, w); }},
      {"layer_norm",
       [](auto& v, auto& w) { return at::layer_norm(v, {6}, w[0]); }}};
  std::atomic<int64_t> noticed = 0;
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto gradient = [&](const Saver& saver,
                              const Placements& layout,
                              bool writes) {
      const auto w = place(numbers({6, 6}, 2), mesh, layout).requires_grad_();
      const auto x = place(numbers({6, 6}, 1), mesh, {Shard(0)}).clone();
      const auto rows = x.narrow(0, 1, 4);
      const auto y = saver(rows, w);
      if (writes) {
        x.mul_(2);
        whole(rows);
      }
      y.pow(2).sum().backward();
      return whole(w.grad());
    };
    for (const auto& [name, saver] : savers) {
      for (const Placements& layout : {Placements{Replicate()}, {Shard(0)}}) {
        const auto& saves = saver;
        const auto truth = gradient(saves, layout, false);
        at::Tensor mine = truth;
        const auto error =
            error_of([&] { mine = gradient(saves, layout, true); });
        noticed += error.find("modified by an inplace operation") != error.npos;
        EXPECT_TRUE(at::equal(mine, truth))
            << name << " by " << to_string(layout);
      }
    }
  });
  EXPECT_GE(noticed, 6); // of 12
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
