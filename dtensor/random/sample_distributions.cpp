// SPDX-License-Identifier: BSD-3-Clause
// Samples of distributions that need a varying number of words per element: the
// methods reject candidates. Each element has its own sequence of words.
#include <dtensor/random/sample_impl.h>

#include <dtensor/random/philox_impl.h>

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace dtensor::detail {
namespace {

// The numbers of one element of a draw. Block k of element i is block
// i + k * 2^48 of the draw.
class Numbers {
 public:
  Numbers(Draw draw, int64_t element)
      : draw_(draw),
        next_(static_cast<uint64_t>(element)) {}

  /// Returns a uniform number in (0, 1).
  double uniform() {
    if (used_ == 4) {
      block_ = philox(draw_.seed, draw_.position, next_);
      next_ += uint64_t{1} << 48;
      used_ = 0;
    }
    const auto low = block_[used_];
    const auto high = block_[used_ + 1];
    used_ += 2;
    const auto word = low | (static_cast<uint64_t>(high) << 32);
    constexpr double kTwoTo52 = 4503599627370496.0;
    return (static_cast<double>(word >> 12) + 0.5) / kTwoTo52;
  }

  double normal() {
    constexpr double kTwoPi = 6.283185307179586;
    const auto radius = std::sqrt(-2 * std::log(uniform()));
    return radius * std::cos(kTwoPi * uniform());
  }

 private:
  Draw draw_;
  uint64_t next_;
  PhiloxBlock block_{};
  size_t used_ = 4;
};

// Returns log(k!) for a whole number k >= 0, by Stirling's series of the gamma
// function. std::lgamma writes a global variable.
double log_factorial(double k) {
  double small = 0;
  auto x = k + 1;
  for (; x < 10; x += 1) {
    small += std::log(x);
  }
  constexpr double kHalfLogTwoPi = 0.9189385332046727;
  const auto series =
      (1.0 / 12 - (1.0 / 360 - 1.0 / (1260 * x * x)) / (x * x)) / x;
  return (x - 0.5) * std::log(x) - x + kHalfLogTwoPi + series - small;
}

// Marsaglia and Tsang, "A simple method for generating gamma variables", 2000.
double gamma(double shape, Numbers& numbers) {
  if (!(shape > 0) || std::isinf(shape)) {
    return shape >= 0 ? shape : std::numeric_limits<double>::quiet_NaN();
  }
  double scale = 1;
  if (shape < 1) {
    scale = std::pow(numbers.uniform(), 1 / shape);
    shape += 1;
  }
  const auto d = shape - 1.0 / 3;
  const auto c = 1 / std::sqrt(9 * d);
  for (;;) {
    const auto x = numbers.normal();
    const auto root = 1 + c * x;
    const auto u = numbers.uniform();
    if (root <= 0) {
      continue;
    }
    const auto v = root * root * root;
    if (std::log(u) < 0.5 * x * x + d * (1 - v + std::log(v))) {
      return scale * d * v;
    }
  }
}

// Hörmann, "The transformed rejection method for generating Poisson random
// variables", 1993; below a rate of 10, the number of factors until a product
// of uniform numbers falls below exp(-rate).
double poisson(double rate, Numbers& numbers) {
  if (std::isinf(rate)) {
    return rate;
  }
  if (rate < 10) {
    const auto least = std::exp(-rate);
    double count = 0;
    for (auto product = numbers.uniform(); product > least; count += 1) {
      product *= numbers.uniform();
    }
    return count;
  }
  const auto b = 0.931 + 2.53 * std::sqrt(rate);
  const auto a = -0.059 + 0.02483 * b;
  const auto inverse_alpha = 1.1239 + 1.1328 / (b - 3.4);
  const auto inner = 0.9277 - 3.6224 / (b - 2);
  for (;;) {
    const auto u = numbers.uniform() - 0.5;
    const auto v = numbers.uniform();
    const auto us = 0.5 - std::abs(u);
    const auto k = std::floor((2 * a / us + b) * u + rate + 0.43);
    if (us >= 0.07 && v <= inner) {
      return k;
    }
    if (k >= 0 && (us >= 0.013 || v <= us) &&
        std::log(v * inverse_alpha / (a / (us * us) + b)) <=
            k * std::log(rate) - rate - log_factorial(k)) {
      return k;
    }
  }
}

// Adds gaps between successes, which are geometric, until they exceed `count`.
double few_successes(double count, double p, Numbers& numbers) {
  const auto log_failure = std::log1p(-p);
  double successes = 0;
  for (double trials = 0;; successes += 1) {
    trials +=
        std::max(1.0, std::ceil(std::log(numbers.uniform()) / log_failure));
    if (trials > count) {
      return successes;
    }
  }
}

// Hörmann, "The generation of binomial random variates", 1993 (BTRS).
double many_successes(double count, double p, Numbers& numbers) {
  const auto deviation = std::sqrt(count * p * (1 - p));
  const auto b = 1.15 + 2.53 * deviation;
  const auto a = -0.0873 + 0.0248 * b + 0.01 * p;
  const auto c = count * p + 0.5;
  const auto inner = 0.92 - 4.2 / b;
  const auto alpha = (2.83 + 5.1 / b) * deviation;
  const auto log_odds = std::log(p / (1 - p));
  const auto mode = std::floor((count + 1) * p);
  const auto at_mode = log_factorial(mode) + log_factorial(count - mode);
  for (;;) {
    const auto u = numbers.uniform() - 0.5;
    const auto v = numbers.uniform();
    const auto us = 0.5 - std::abs(u);
    const auto k = std::floor((2 * a / us + b) * u + c);
    if (k < 0 || k > count) {
      continue;
    }
    if ((us >= 0.07 && v <= inner) ||
        std::log(v * alpha / (a / (us * us) + b)) <= at_mode -
                log_factorial(k) - log_factorial(count - k) +
                (k - mode) * log_odds) {
      return k;
    }
  }
}

double binomial(double count, double p, Numbers& numbers) {
  if (std::isnan(count) || std::isnan(p)) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  if (count <= 0 || p <= 0) {
    return 0;
  }
  if (p >= 1 || std::isinf(count)) {
    return count;
  }
  const auto rare = std::min(p, 1 - p);
  const auto successes = count * rare < 10
      ? few_successes(count, rare, numbers)
      : many_successes(count, rare, numbers);
  return p <= 0.5 ? successes : count - successes;
}

// Returns a parameter in a form that sample() reads.
at::Tensor readable(const at::Tensor& parameter) {
  return parameter.to(at::TensorOptions(at::kDouble).device(at::kCPU))
      .contiguous();
}

// Computes each element from its own numbers: sample(local, numbers).
template <class Sample>
at::Tensor
each(const Spec& spec, at::ScalarType dtype, Draw draw, const Sample& sample) {
  auto result = at::empty(spec.local_sizes(), at::kDouble);
  auto* const out = result.mutable_data_ptr<double>();
  for_each_run(spec, [&](int64_t global, int64_t local, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      Numbers numbers(draw, global + i);
      out[local + i] = sample(local + i, numbers);
    }
  });
  return result.to(at::TensorOptions(dtype).device(spec.mesh().device_type()));
}

} // namespace

at::Tensor sample_gamma(
    const Spec& spec,
    at::ScalarType dtype,
    Draw draw,
    const at::Tensor& shape) {
  const auto shapes = readable(shape);
  const auto* const s = shapes.const_data_ptr<double>();
  return each(spec, dtype, draw, [&](int64_t i, Numbers& numbers) {
    return gamma(s[i], numbers);
  });
}

at::Tensor sample_poisson(
    const Spec& spec,
    at::ScalarType dtype,
    Draw draw,
    const at::Tensor& rate) {
  const auto rates = readable(rate);
  const auto* const r = rates.const_data_ptr<double>();
  return each(spec, dtype, draw, [&](int64_t i, Numbers& numbers) {
    return poisson(r[i], numbers);
  });
}

at::Tensor sample_binomial(
    const Spec& spec,
    at::ScalarType dtype,
    Draw draw,
    const at::Tensor& count,
    const at::Tensor& p) {
  const auto counts = readable(count);
  const auto probabilities = readable(p);
  const auto* const n = counts.const_data_ptr<double>();
  const auto* const values = probabilities.const_data_ptr<double>();
  return each(spec, dtype, draw, [&](int64_t i, Numbers& numbers) {
    return binomial(n[i], values[i], numbers);
  });
}

} // namespace dtensor::detail
