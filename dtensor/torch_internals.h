// SPDX-License-Identifier: BSD-3-Clause
// What we lean on in LibTorch that is no public API of it. Each entry names the
// test that fails when an upgrade changes it, in
// tests/tensor/torch_internals_test.cpp, or is asserted here. `make matrix`
// asks each LibTorch that we build with, 2.11 to 2.13.
//
// what                                             where      test
// the dispatch keys below                          all        asserted here
// a backend that nobody has shows stock kernels    ops        StockKernels
// graph nodes (torch_nodes_impl.h)                  tensor     NodesAreHeld
// fields of TensorImpl that a shape sets           tensor     ShapesAreWhole
// BackendMeta goes along with copies of a tensor   tensor     MetaIsKept
// has_storage() is asked before data is read       tensor     DataIsExplained
// autograd takes written views again by strides    ops        ViewsOfWrites
// what torch::nn::Linear and Embedding call        parallel   ModulesCall
// whether a gradient formula is running            ops        NodesAreCurrent
// a node that a graph task wants runs others       tensor     NodesInside
// at::get_dtensor_allow_implicit_replication       ops        PlainOperands
// a key for tests, that of implicit_replication    ops        ReplicationKey
// a key for tests, that of what is asked first     tensor     AskedFirstKey
// operands that RecordFunction keeps to itself     debug      the compiler
// random operators ask the generator's key first   comm       RandomKey
// the default generator can be exchanged            comm       DefaultGenerator
// Gloo's classes cross an interface as pointers    comm       the linker
// what is queued in a pass runs at its end         parallel   EndsOfPasses
// a tensor has room for one hook after its sum     parallel   HooksOfSums
// nodes that save tensors see writes to them       parallel   SavedTensors
// tensors may share one count of writes            tensor     WritesCount
// arguments are boxed as the dispatcher does it    ops        Boxing
// autocast keeps what it has cast of a leaf        comm       CastsAreKept
// a formula that there is none of is a node        tensor     MissingFormulas
// a view that autograd knows of holds its base     tensor     ViewsHoldBases
// what t() and detach() are below autograd         ops        LocalViews
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

/// Plain attention divides by the number of heads, of which a rank may have
/// none (Units.AttentionIsThePlainOne).
constexpr bool kAttentionNeedsHeads =
    TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 12;

} // namespace dtensor::detail
