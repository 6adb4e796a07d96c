// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/random/sample_impl.h>

#include <dtensor/random/philox_impl.h>

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace dtensor::detail {
namespace {

constexpr double kTwoTo32 = 4294967296.0;
constexpr double kTwoTo53 = 9007199254740992.0;

bool holds_all(const Intervals& held, int64_t size) {
  return held.size() == 1 && held[0] == Interval{0, size};
}

std::vector<Intervals> held_intervals(const Spec& spec) {
  std::vector<Intervals> held;
  for (int64_t d = 0; d < spec.dim(); ++d) {
    held.push_back(local_intervals(spec, d));
  }
  return held;
}

// The words of one draw, 32 or 64 bits each, by element index.
template <class Word>
class Words;

template <>
class Words<uint32_t> {
 public:
  explicit Words(Draw draw) : draw_(draw) {}
  uint32_t at(int64_t i) {
    const auto index = static_cast<uint64_t>(i);
    load(index / 4);
    return block_[index % 4];
  }

 private:
  void load(uint64_t block) {
    if (block != number_) {
      number_ = block;
      block_ = philox(draw_.seed, draw_.position, block);
    }
  }
  Draw draw_;
  uint64_t number_ = std::numeric_limits<uint64_t>::max();
  PhiloxBlock block_{};
};

template <>
class Words<uint64_t> {
 public:
  explicit Words(Draw draw) : words_(draw) {}
  uint64_t at(int64_t i) {
    const uint64_t low = words_.at(2 * i);
    return low | (static_cast<uint64_t>(words_.at(2 * i + 1)) << 32);
  }

 private:
  Words<uint32_t> words_;
};

// Maps a word to the open interval (0, 1).
double open_unit(uint32_t word) {
  return (static_cast<double>(word) + 0.5) / kTwoTo32;
}
double open_unit(uint64_t word) {
  return (static_cast<double>(word >> 12) + 0.5) / (kTwoTo53 / 2);
}

// Maps a word to [0, 1), with at most `digits` binary digits, so that a dtype
// of that precision represents the value exactly.
float unit(uint32_t word, int digits) {
  return static_cast<float>(word >> (32 - digits)) /
      static_cast<float>(1u << digits);
}
double unit(uint64_t word, int) {
  return static_cast<double>(word >> 11) / kTwoTo53;
}

int digits_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kHalf:
      return std::numeric_limits<c10::Half>::digits;
    case at::kBFloat16:
      return std::numeric_limits<c10::BFloat16>::digits;
    default:
      return std::numeric_limits<float>::digits;
  }
}

// Returns a local tensor of `dtype` whose elements `fill` computes as T.
template <class T, class Fill>
at::Tensor filled(const Spec& spec, at::ScalarType dtype, const Fill& fill) {
  auto result =
      at::empty(spec.local_sizes(), c10::CppTypeToScalarType<T>::value);
  fill(result.template mutable_data_ptr<T>());
  return result.to(at::TensorOptions(dtype).device(spec.mesh().device_type()));
}

// Computes each element from one word: out[local] = sample(word, local).
template <class T, class Word, class Sample>
at::Tensor
fill(const Spec& spec, at::ScalarType dtype, Draw draw, const Sample& sample) {
  return filled<T>(spec, dtype, [&](T* out) {
    Words<Word> words(draw);
    for_each_run(spec, [&](int64_t global, int64_t local, int64_t count) {
      for (int64_t i = 0; i < count; ++i) {
        out[local + i] = sample(words.at(global + i), local + i);
      }
    });
  });
}

// Fills with normals by Box-Muller: elements 2k and 2k + 1 are the coordinates
// of one point.
template <class T, class Word, class Map>
at::Tensor
fill_normal(const Spec& spec, at::ScalarType dtype, Draw draw, const Map& map) {
  constexpr double kTwoPi = 6.283185307179586;
  return filled<T>(spec, dtype, [&](T* out) {
    Words<Word> words(draw);
    for_each_run(spec, [&](int64_t global, int64_t local, int64_t count) {
      const auto end = global + count;
      for (auto even = global - global % 2; even < end; even += 2) {
        const auto radius =
            static_cast<T>(std::sqrt(-2 * std::log(open_unit(words.at(even)))));
        const auto angle =
            static_cast<T>(kTwoPi * open_unit(words.at(even + 1)));
        if (even >= global) {
          out[local + even - global] = map(radius * std::cos(angle));
        }
        if (even + 1 < end) {
          out[local + even + 1 - global] = map(radius * std::sin(angle));
        }
      }
    });
  });
}

template <class Map>
at::Tensor
map_normal(const Spec& spec, at::ScalarType dtype, Draw draw, const Map& map) {
  return dtype == at::kDouble
      ? fill_normal<double, uint64_t>(spec, dtype, draw, map)
      : fill_normal<float, uint32_t>(spec, dtype, draw, map);
}

// Applies `map` to a number in (0, 1) per element.
template <class Map>
at::Tensor map_open_unit(
    const Spec& spec,
    at::ScalarType dtype,
    Draw draw,
    const Map& map) {
  const auto sample = [&](auto word, int64_t) { return map(open_unit(word)); };
  if (dtype == at::kDouble || c10::isIntegralType(dtype, true)) {
    return fill<double, uint64_t>(spec, dtype, draw, sample);
  }
  return fill<float, uint32_t>(
      spec, dtype, draw, [&](uint32_t word, int64_t i) {
        return static_cast<float>(sample(word, i));
      });
}

template <class T, class Word>
at::Tensor fill_uniform(
    const Spec& spec,
    at::ScalarType dtype,
    Draw draw,
    int digits,
    double from,
    double to) {
  const auto low = static_cast<T>(from);
  const auto high = static_cast<T>(to);
  return fill<T, Word>(spec, dtype, draw, [&](Word word, int64_t) {
    const T value = unit(word, digits) * (high - low) + low;
    return value < high ? value : low; // rounding may yield `to`
  });
}

} // namespace

void for_each_run(
    const Spec& spec,
    c10::function_ref<void(int64_t, int64_t, int64_t)> visit) {
  const auto held = held_intervals(spec);
  const auto sizes = spec.sizes();
  // Dimensions from `inner` on are not sharded. The dimension before them is
  // visited in runs, and earlier dimensions index by index.
  auto inner = held.size();
  int64_t run_unit = 1;
  while (inner > 0 && holds_all(held[inner - 1], sizes[inner - 1])) {
    run_unit *= sizes[--inner];
  }
  int64_t local = 0;
  const auto walk = [&](auto& self, size_t d, int64_t global) -> void {
    if (d + 1 == inner) {
      for (const auto& run : held[d]) {
        const auto count = run.size() * run_unit;
        visit((global * sizes[d] + run.begin) * run_unit, local, count);
        local += count;
      }
      return;
    }
    for (const auto& run : held[d]) {
      for (auto i = run.begin; i < run.end; ++i) {
        self(self, d + 1, global * sizes[d] + i);
      }
    }
  };
  if (inner == 0) {
    visit(0, 0, run_unit);
  } else {
    walk(walk, 0, 0);
  }
}

at::Tensor sample_uniform(
    const Spec& spec,
    at::ScalarType dtype,
    Draw draw,
    double from,
    double to) {
  return dtype == at::kDouble
      ? fill_uniform<double, uint64_t>(spec, dtype, draw, 53, from, to)
      : fill_uniform<float, uint32_t>(
            spec, dtype, draw, digits_of(dtype), from, to);
}

at::Tensor sample_normal(
    const Spec& spec,
    at::ScalarType dtype,
    Draw draw,
    double mean,
    double std) {
  return map_normal(spec, dtype, draw, [&](auto z) {
    return z * static_cast<decltype(z)>(std) + static_cast<decltype(z)>(mean);
  });
}

at::Tensor sample_log_normal(
    const Spec& spec,
    at::ScalarType dtype,
    Draw draw,
    double mean,
    double std) {
  return map_normal(spec, dtype, draw, [&](auto z) {
    return std::exp(
        z * static_cast<decltype(z)>(std) + static_cast<decltype(z)>(mean));
  });
}

at::Tensor sample_exponential(
    const Spec& spec,
    at::ScalarType dtype,
    Draw draw,
    double lambda) {
  return map_open_unit(
      spec, dtype, draw, [&](double u) { return -std::log(u) / lambda; });
}

at::Tensor sample_cauchy(
    const Spec& spec,
    at::ScalarType dtype,
    Draw draw,
    double median,
    double sigma) {
  constexpr double kPi = 3.141592653589793;
  return map_open_unit(spec, dtype, draw, [&](double u) {
    return median + sigma * std::tan(kPi * (u - 0.5));
  });
}

at::Tensor
sample_geometric(const Spec& spec, at::ScalarType dtype, Draw draw, double p) {
  const auto log_failure = std::log1p(-p);
  return map_open_unit(spec, dtype, draw, [&](double u) {
    return std::max(1.0, std::ceil(std::log(u) / log_failure));
  });
}

at::Tensor sample_bernoulli(const Spec& spec, Draw draw, double p) {
  const auto threshold = p * kTwoTo32;
  return fill<bool, uint32_t>(
      spec, at::kBool, draw, [&](uint32_t word, int64_t) {
        return word < threshold;
      });
}

at::Tensor sample_bernoulli(const Spec& spec, Draw draw, const at::Tensor& p) {
  const auto probabilities =
      p.to(at::TensorOptions().dtype(at::kDouble).device(at::kCPU))
          .contiguous();
  const auto* const values = probabilities.const_data_ptr<double>();
  return fill<bool, uint32_t>(
      spec, at::kBool, draw, [&](uint32_t word, int64_t i) {
        return word < values[i] * kTwoTo32;
      });
}

at::Tensor
sample_integers(const Spec& spec, Draw draw, int64_t from, uint64_t range) {
  return fill<int64_t, uint64_t>(
      spec, at::kLong, draw, [&](uint64_t word, int64_t) {
        const auto offset = range == 0 ? word : word % range;
        return static_cast<int64_t>(static_cast<uint64_t>(from) + offset);
      });
}

} // namespace dtensor::detail
