// SPDX-License-Identifier: BSD-3-Clause
// Parts of LibTorch that dtensor uses though they are not public API. An entry
// lists the layers or files that use a part, and the test that fails if an
// upgrade of LibTorch changes the part: a test of suite TorchInternals
// (tests/tensor/torch_*_test.cpp), or Suite.Test of another suite. An entry
// without a test is asserted in this file, or a change of the part fails to
// compile or link. The indented lines below an entry list the identifiers that
// our sources use of the part, and further users. tools/check_headers.py
// compares the table with the sources. `make matrix` checks every supported
// LibTorch, 2.11 to 2.15.
//
// what                                             where      test
// the dispatch keys below                          all        asserted here
// an unused backend key maps to native kernels     ops        StockKernels
//   getComputedKernelForDispatchKey
// graph nodes (torch_nodes_impl.h)                 tensor     NodesAreHeld
// TensorImpl fields that follow from a shape       tensor     ShapesAreWhole
// shallow copies of a tensor keep BackendMeta      tensor     MetaIsKept
// data access checks has_storage() first           tensor     DataIsExplained
// writes regenerate views by as_strided            ops        ViewsOfWrites
//   AsStridedBackward0
// operators called by nn::Linear and Embedding     ops        ModulesCall
// the node of a running gradient formula           ops        NodesAreCurrent
// exec_info of a graph task controls inner nodes   tensor     NodesInside
//   get_current_graph_task_exec_info               data_parallel
//   GraphTask, graph_task
// at::get_dtensor_allow_implicit_replication       ops        PlainOperands
// a testing key, used for implicit_replication     ops        ReplicationKey
// a testing key, used for the interceptor          tensor     AskedFirstKey
// private operands of RecordFunction               debug      the compiler
// random operators dispatch on the generator       comm       RandomKey
// the default generator can be replaced            comm       DefaultGenerator
//   getDefaultCPUGenerator, createCPUGenerator     random, ops
// Gloo classes cross a library as pointers         comm       the linker
// queued callbacks run at the end of a pass        tensor     EndsOfPasses
//   queue_callback                                 data_parallel
// a tensor has one post-accumulate-grad hook       tensor     HooksOfSums
//   post_acc_grad_hooks, set_post_acc_grad_hooks   data_parallel
//   get_autograd_meta, materialize_autograd_meta
// saved tensors detect later writes                parallel   SavedTensors
// tensors can share a version counter              tensor     WritesCount
// arguments are boxed as by the dispatcher         ops        Boxing
// autocast caches its casts of a leaf              comm       CastsAreKept
// a missing derivative formula is a node           tensor     MissingFormulas
// a differentiable view keeps its base alive       tensor     ViewsHoldBases
//   get_view_autograd_meta
// one autograd kernel serves all backends          ops        AutogradOfCpu
//   getComputedKernelForDispatchKey
// matmul nodes compute each gradient separately    tensor     ProductNodes
//   AddmmBackward0, MmBackward0, BmmBackward0
// set_data() calls an operator first               ops        DataIsSet
//   _has_compatible_shallow_copy_type
// a leaf's gradient accumulator can be reset       tensor     Accumulators
//   try_get_grad_accumulator, set_grad_accumulator
// Function finds tensors by their exact type       tensor     TensorType.*
//   ExtractVariables
// gradient edges can be read and set               tensor     EdgesAreGiven
//   gradient_edge, set_gradient_edge               ops, data_parallel
// the graph task's id, -1 outside a pass           tensor     PassesHaveNumbers
//   get_current_graph_task_id, graph_task          data_parallel
// backward() makes its gradient with ones_like     debug      CheckReplicas.*
// a rank's backward passes stay in its thread      comm       PassesInThreads
//   set_multithreading_enabled
// the math kernel of attention                     ops        PlainAttention
//   _scaled_dot_product_attention_math             parallel
// attention returns the logsumexp of its rows      parallel   AttentionRows
//   _scaled_dot_product_flash_attention_for_cpu
// attention backward: logsumexp of more keys       parallel   AttentionInBlocks
//   _scaled_dot_product_flash_attention_for_cpu_backward
// wrapped numbers do not decide a dtype            ops        WrappedNumbers
//   set_wrapped_number, is_wrapped_number
// formulas that make gradients from sizes          ops        PlainGradient.*
// formulas that make plain tensors                 ops        Replicated.*
// strides of a view                                ops        View.NeverCopies
//   computeStride
// key_set_ is accessible, and a key can be added   tensor     AskedFirstKey
//   key_set_
// hand-built tensors equal those of factories      comm       SmallMemory.*
//   make_tensor, empty_cpu, use_byte_size_t
//   profiledCPUMemoryReporter
// profiler ranges                                  comm       the compiler
//   getStepCallbacksUnlessEmpty
// ProcessGroupNCCL, its shutdown and abort         comm       the compiler
//   ProcessGroupNCCL
// TorchScript graphs, inlining, pickles            contrib    the compiler
//   torch/csrc/jit                                 program
// the archive reader                               weights    the compiler
//   caffe2/serialize
#pragma once

#include <c10/core/DispatchKey.h>
#include <c10/core/DispatchKeySet.h>
#include <torch/version.h>

namespace dtensor::detail {

/// The backend key of DTensors. LibTorch reserves it for private use, so no
/// other library in the process may use it.
constexpr auto kDTensorBit = c10::BackendComponent::PrivateUse3Bit;
constexpr auto kDTensorKey = c10::DispatchKey::PrivateUse3;
constexpr auto kDTensorAutogradKey = c10::DispatchKey::AutogradPrivateUse3;
static_assert(c10::toBackendComponent(kDTensorKey) == kDTensorBit);
static_assert(c10::toBackendComponent(kDTensorAutogradKey) == kDTensorBit);
static_assert(
    c10::toFunctionalityKey(kDTensorAutogradKey) ==
    c10::DispatchKey::AutogradFunctionality);

/// A backend key for which no library registers kernels. An operator's kernels
/// for this key are therefore LibTorch's own kernels for any backend.
constexpr auto kUnusedBackendKey = c10::DispatchKey::PrivateUse2;
constexpr auto kUnusedAutogradKey = c10::DispatchKey::AutogradPrivateUse2;
static_assert(
    c10::toBackendComponent(kUnusedBackendKey) ==
    c10::toBackendComponent(kUnusedAutogradKey));

/// The key that intercepts calls for their rank: random operators on plain
/// tensors then use the rank's generator, attention uses the rank's
/// context_parallel scope, and ones_like notifies the rank's LossWatch.
/// LibTorch reserves the key for deferred initialization, which it does not
/// implement; DeferredInit does not use the key. The key is above autograd, so
/// each call is intercepted only once.
constexpr auto kRankKey = c10::DispatchKey::DeferredInit;
static_assert(kRankKey > c10::DispatchKey::AutogradFunctionality);

/// Keys of the interceptor, which handles operators before all other keys do
/// (tensor/dispatch_keys_impl.h), and of implicit_replication()
/// (tensor/dispatch_keys_impl.h). LibTorch reserves both for its own tests
/// and registers nothing there. They come before autograd and kRankKey.
constexpr auto kInterceptKey = c10::DispatchKey::TESTING_ONLY_GenericWrapper;
constexpr auto kReplicationKey = c10::DispatchKey::TESTING_ONLY_GenericMode;
static_assert(kInterceptKey > kRankKey);
static_assert(kReplicationKey > kRankKey);

/// True if LibTorch's native attention divides by the number of heads, which
/// may be 0 on a rank (Units.AttentionIsThePlainOne).
constexpr bool kAttentionNeedsHeads =
    TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 12;

} // namespace dtensor::detail
