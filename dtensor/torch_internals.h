// SPDX-License-Identifier: BSD-3-Clause
// What we lean on in LibTorch that is no public API of it. Each entry says
// which layers or files do, and names the test that fails when an upgrade
// changes it: of suite TorchInternals (tests/tensor/torch_*_test.cpp) or
// Suite.Test of another; or it is asserted here, or does not compile or link.
// Below an entry are the names by which sources mention it, and further places.
// tools/check_headers.py compares all of it with the sources. `make matrix`
// asks each LibTorch that we build with, 2.11 to 2.13.
//
// what                                             where      test
// the dispatch keys below                          all        asserted here
// a backend that nobody has shows stock kernels    ops        StockKernels
//   getComputedKernelForDispatchKey
// graph nodes (torch_nodes_impl.h)                 tensor     NodesAreHeld
// fields of TensorImpl that a shape sets           tensor     ShapesAreWhole
// BackendMeta goes along with copies of a tensor   tensor     MetaIsKept
// has_storage() is asked before data is read       tensor     DataIsExplained
// autograd takes written views again by strides    ops        ViewsOfWrites
//   AsStridedBackward0
// what torch::nn::Linear and Embedding call        parallel   ModulesCall
// whether a gradient formula is running            ops        NodesAreCurrent
// a node that a graph task wants runs others       tensor     NodesInside
//   get_current_graph_task_exec_info               data_parallel
//   GraphTask, graph_task
// at::get_dtensor_allow_implicit_replication       ops        PlainOperands
// a key for tests, that of implicit_replication    ops        ReplicationKey
// a key for tests, that of what is asked first     tensor     AskedFirstKey
// operands that RecordFunction keeps to itself     debug      the compiler
// random operators ask the generator's key first   comm       RandomKey
// the default generator can be exchanged           comm       DefaultGenerator
//   getDefaultCPUGenerator, createCPUGenerator     random, ops
// Gloo's classes cross an interface as pointers    comm       the linker
// what is queued in a pass runs at its end         parallel   EndsOfPasses
//   queue_callback                                 tensor, data_parallel
// a tensor has room for one hook after its sum     parallel   HooksOfSums
//   post_acc_grad_hooks, set_post_acc_grad_hooks   tensor
//   get_autograd_meta, materialize_autograd_meta   data_parallel
// nodes that save tensors see writes to them       parallel   SavedTensors
// tensors may share one count of writes            tensor     WritesCount
// arguments are boxed as the dispatcher does it    ops        Boxing
// autocast keeps what it has cast of a leaf        comm       CastsAreKept
// a formula that there is none of is a node        tensor     MissingFormulas
// a view that autograd knows of holds its base     tensor     ViewsHoldBases
//   get_view_autograd_meta
// what t() and detach() are below autograd         ops        LocalViews
//   make_tensor
// an autograd kernel serves all backends           ops        AutogradOfCpu
//   getComputedKernelForDispatchKey
// products compute each gradient alone             tensor     ProductNodes
//   AddmmBackward0, MmBackward0, BmmBackward0
// set_data() begins with an operator               ops        DataIsSet
//   _has_compatible_shallow_copy_type
// a leaf forgets its accumulator if told           tensor     Accumulators
//   try_get_grad_accumulator, set_grad_accumulator
// Function finds tensors by their exact type       tensor     TensorType.*
//   ExtractVariables
// edges are read, and given to a tensor            tensor     EdgesAreGiven
//   gradient_edge, set_gradient_edge               parallel, data_parallel
// the number of a pass, -1 outside                 parallel   PassesHaveNumbers
//   get_current_graph_task_id, graph_task          data_parallel, debug
// a range opens before the hooks of its node       debug      CheckReplicas.*
// a rank's passes keep to its thread               comm       PassesInThreads
//   set_multithreading_enabled
// the math of attention                            ops        PlainAttention
//   _scaled_dot_product_attention_math             parallel
// attention returns the logsumexp of its rows      parallel   AttentionRows
//   _scaled_dot_product_flash_attention_for_cpu
// its formula takes those of more keys             parallel   AttentionInBlocks
//   _scaled_dot_product_flash_attention_for_cpu_backward
// numbers in disguise decide no dtype              ops        WrappedNumbers
//   set_wrapped_number, is_wrapped_number
// formulas that make gradients of sizes            ops        PlainGradient.*
// formulas that make plain tensors                 ops        Replicated.*
// which strides a view has                         ops        View.NeverCopies
//   computeStride
// key_set_ can be named, and given a key           tensor     AskedFirstKey
//   key_set_
// tensors made by hand are like others             comm       SmallMemory.*
//   make_tensor, empty_cpu, use_byte_size_t
//   profiledCPUMemoryReporter
// tensors of the CPU, without dispatch             redistribute  the compiler
//   empty_strided_cpu
// ranges for profilers                             comm       the compiler
//   getStepCallbacksUnlessEmpty
// NCCL's group, which can be closed or given up    comm       the compiler
//   ProcessGroupNCCL
// graphs of TorchScript, made one; pickles         program    the compiler
//   torch/csrc/jit
// the reader of archives                           weights    the compiler
//   caffe2/serialize
#pragma once

#include <c10/core/DispatchKey.h>
#include <c10/core/DispatchKeySet.h>
#include <torch/version.h>

namespace dtensor::detail {

/// The backend of DTensors: LibTorch leaves it to others, who may not use it
/// beside us.
constexpr auto kDTensorBit = c10::BackendComponent::PrivateUse3Bit;
constexpr auto kDTensorKey = c10::DispatchKey::PrivateUse3;
constexpr auto kDTensorAutogradKey = c10::DispatchKey::AutogradPrivateUse3;
static_assert(c10::toBackendComponent(kDTensorKey) == kDTensorBit);
static_assert(c10::toBackendComponent(kDTensorAutogradKey) == kDTensorBit);
static_assert(
    c10::toFunctionalityKey(kDTensorAutogradKey) ==
    c10::DispatchKey::AutogradFunctionality);

/// A backend that nobody registers kernels for: an operator's entries there are
/// LibTorch's own kernels for any backend.
constexpr auto kNobodysKey = c10::DispatchKey::PrivateUse2;
constexpr auto kNobodysAutogradKey = c10::DispatchKey::AutogradPrivateUse2;
static_assert(
    c10::toBackendComponent(kNobodysKey) ==
    c10::toBackendComponent(kNobodysAutogradKey));

/// Under which operators that draw numbers for plain tensors find the rank's
/// generator, and attention its context_parallel scope. Reserved by LibTorch
/// for deferred initialisation, which it does not contain. Above autograd, so
/// that one visit per call is enough.
constexpr auto kRankKey = c10::DispatchKey::DeferredInit;
static_assert(kRankKey > c10::DispatchKey::AutogradFunctionality);

/// What wants to see an operator before anything else does
/// (tensor/asked_first_impl.h), and implicit_replication()
/// (tensor/replication_key_impl.h). LibTorch keeps both for tests of its own
/// and registers nothing there. They come before autograd and kRankKey.
constexpr auto kAskedFirstKey = c10::DispatchKey::TESTING_ONLY_GenericWrapper;
constexpr auto kReplicationKey = c10::DispatchKey::TESTING_ONLY_GenericMode;
static_assert(kAskedFirstKey > kRankKey);
static_assert(kReplicationKey > kRankKey);

/// Plain attention divides by the number of heads, of which a rank may have
/// none (Units.AttentionIsThePlainOne).
constexpr bool kAttentionNeedsHeads =
    TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 12;

} // namespace dtensor::detail
