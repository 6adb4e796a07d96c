// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "run.h"

#include <string>

namespace training {

/// Draws the losses of steps and of evaluations.
std::string loss_curve_svg(const Result& result);

} // namespace training
