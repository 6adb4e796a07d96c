// SPDX-License-Identifier: BSD-3-Clause
// All of dtensor. tools/check_headers.py sees to it that no public header is
// missing; dtensor/testing is a target and a set of headers of its own.
#pragma once

#include <dtensor/api.h>
#include <dtensor/comm/c10d_backend.h>
#include <dtensor/comm/group.h>
#include <dtensor/comm/group_backend.h>
#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/comm/observer.h>
#include <dtensor/comm/pending.h>
#include <dtensor/comm/rank_generator.h>
#include <dtensor/comm/ranks.h>
#include <dtensor/comm/world.h>
#include <dtensor/debug/comm_debug_mode.h>
#include <dtensor/error.h>
#include <dtensor/layout/mesh.h>
#include <dtensor/layout/placement.h>
#include <dtensor/layout/shard_math.h>
#include <dtensor/layout/spec.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/dim_map.h>
#include <dtensor/ops/einsum.h>
#include <dtensor/ops/op_call.h>
#include <dtensor/ops/propagate.h>
#include <dtensor/ops/register_sharding.h>
#include <dtensor/ops/registry.h>
#include <dtensor/ops/rule_text.h>
#include <dtensor/ops/strategy.h>
#include <dtensor/ops/traits.h>
#include <dtensor/parallel/distribute_module.h>
#include <dtensor/parallel/hook_list.h>
#include <dtensor/parallel/linear_styles.h>
#include <dtensor/parallel/loss_parallel.h>
#include <dtensor/parallel/module_hooks.h>
#include <dtensor/parallel/nn_modules.h>
#include <dtensor/parallel/prepare_module.h>
#include <dtensor/parallel/sequence_parallel.h>
#include <dtensor/parallel/style.h>
#include <dtensor/redistribute/execute.h>
#include <dtensor/redistribute/plan.h>
#include <dtensor/tensor/api.h>
#include <dtensor/tensor/factories.h>
#include <dtensor/tensor/is_dtensor.h>
#include <dtensor/tensor/random.h>
#include <dtensor/torch_internals.h>
#include <dtensor/version.h>
