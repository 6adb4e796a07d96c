// SPDX-License-Identifier: BSD-3-Clause
// Declarations in place of Gloo's own header: see cmake/gloo/README.md.
#pragma once
