#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Runs the demo of `make demo`: tools/demo.sh <gpt_train>. First compares every
# configuration with one rank, in float64 and float32. Then runs a longer
# training with a sample of generated text. DEMO_STEPS shortens both.
set -euo pipefail

train=$1
steps=${DEMO_STEPS:-50}

"$train" --demo --steps "$steps"
"$train" --ranks 2 --sequence-parallel --loss-parallel --steps $((steps * 6))
