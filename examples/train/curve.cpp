// SPDX-License-Identifier: BSD-3-Clause
#include "curve.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace training {
namespace {

constexpr double kWidth = 640, kHeight = 360, kMargin = 48;

// Maps steps and losses to coordinates of the picture.
class Scale {
 public:
  explicit Scale(const Result& result)
      : first_(static_cast<double>(result.first_step) + 1),
        last_(first_ + static_cast<double>(result.losses.size()) - 1) {
    const auto [low, high] =
        std::minmax_element(result.losses.begin(), result.losses.end());
    low_ = *low;
    high_ = *high;
    for (const auto& evaluation : result.evaluations) {
      low_ = std::min(low_, evaluation.loss);
      high_ = std::max(high_, evaluation.loss);
    }
  }
  double x(double step) const {
    const auto span = std::max(1.0, last_ - first_);
    return kMargin + (step - first_) / span * (kWidth - 2 * kMargin);
  }
  double y(double loss) const {
    const auto span = std::max(1e-9, high_ - low_);
    return kMargin + (high_ - loss) / span * (kHeight - 2 * kMargin);
  }
  double first() const {
    return first_;
  }
  double last() const {
    return last_;
  }
  double low() const {
    return low_;
  }
  double high() const {
    return high_;
  }

 private:
  double first_, last_, low_, high_;
};

std::string text(double x, double y, const std::string& words) {
  return fmt::format(
      "<text x=\"{:.0f}\" y=\"{:.0f}\" font-size=\"12\" "
      "font-family=\"sans-serif\">{}</text>\n",
      x,
      y,
      words);
}

} // namespace

std::string loss_curve_svg(const Result& result) {
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\">\n"
      "<rect width=\"{0}\" height=\"{1}\" fill=\"white\"/>\n",
      kWidth,
      kHeight);
  if (result.losses.empty()) {
    return svg + "</svg>\n";
  }
  const Scale scale(result);
  svg += "<polyline fill=\"none\" stroke=\"#3366aa\" points=\"";
  for (size_t i = 0; i < result.losses.size(); ++i) {
    svg += fmt::format(
        "{:.1f},{:.1f} ",
        scale.x(scale.first() + static_cast<double>(i)),
        scale.y(result.losses[i]));
  }
  svg += "\"/>\n";
  for (const auto& [step, loss] : result.evaluations) {
    svg += fmt::format(
        "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"#cc5500\"/>\n",
        scale.x(static_cast<double>(step)),
        scale.y(loss));
  }
  svg += text(8, kMargin, fmt::format("{:.2f}", scale.high()));
  svg += text(8, kHeight - kMargin, fmt::format("{:.2f}", scale.low()));
  svg += text(kMargin, kHeight - 16, fmt::format("step {}", scale.first()));
  svg += text(
      kWidth - 2 * kMargin, kHeight - 16, fmt::format("step {}", scale.last()));
  svg += text(kMargin, 24, "loss: of each step (line) and held out (dots)");
  return svg + "</svg>\n";
}

} // namespace training
