#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# What `make demo` shows: tools/demo.sh <gpt_train>. DEMO_STEPS shortens it.
set -euo pipefail

train=$1
steps=${DEMO_STEPS:-50}

"$train" --steps "$steps"
