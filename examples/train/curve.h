// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "run.h"

#include <string>

namespace training {

/// Losses of steps, and of evaluations, as a picture.
std::string loss_curve_svg(const Result& result);

} // namespace training
