#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# What `make demo` shows: tools/demo.sh <gpt_train>. First every configuration
# beside one rank, in float64 and float32; then one longer run with a sample of
# what the model writes. DEMO_STEPS shortens both.
set -euo pipefail

train=$1
steps=${DEMO_STEPS:-50}

"$train" --demo --steps "$steps"
"$train" --ranks 2 --sequence-parallel --loss-parallel --steps $((steps * 6))
