// SPDX-License-Identifier: BSD-3-Clause
// Replacement for the header of the CUDA runtime.
#pragma once

extern "C" int cudaRuntimeGetVersion(int* version);
