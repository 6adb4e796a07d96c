// SPDX-License-Identifier: BSD-3-Clause
// Provokes every error message for bad input. Each message is in
// tests/golden/errors.txt once:
//
//   == a title
//   ValueError: [where] what is wrong: the values. What to do.
//
// To review a changed text, run with DTENSOR_UPDATE_GOLDEN=1 and look at the
// difference.
#include <dtensor/checkpoint/checkpoint.h>
#include <dtensor/checkpoint/checkpoint_folder.h>
#include <dtensor/comm/backends.h>
#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/comm/init_process_group.h>
#include <dtensor/comm/ranks.h>
#include <dtensor/contrib/legacy_tp/torch_2_0.h>
#include <dtensor/contrib/legacy_tp/torch_2_0_attention.h>
#include <dtensor/data_parallel/fully_shard.h>
#include <dtensor/data_parallel/replicate.h>
#include <dtensor/debug/check_replicas.h>
#include <dtensor/debug/comm_debug_mode.h>
#include <dtensor/debug/explain.h>
#include <dtensor/debug/trace.h>
#include <dtensor/deferred/deferred_init.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/einsum.h>
#include <dtensor/ops/explicit_redistribution.h>
#include <dtensor/ops/on_missing_rule.h>
#include <dtensor/ops/register_sharding.h>
#include <dtensor/ops/registry.h>
#include <dtensor/parallel/context_parallel.h>
#include <dtensor/parallel/distribute_optimizer_state.h>
#include <dtensor/parallel/gradients.h>
#include <dtensor/parallel/linear_styles.h>
#include <dtensor/parallel/module_hooks.h>
#include <dtensor/parallel/prepare_module.h>
#include <dtensor/parallel/sequence_parallel.h>
#include <dtensor/parallel/state_dict.h>
#include <dtensor/parallel/style.h>
#include <dtensor/parallel/tie_weights.h>
#include <dtensor/random/random.h>
#include <dtensor/tensor/dtensor.h>
#include <dtensor/tensor/factories.h>
#include <dtensor/tensor/local_map.h>
#include <dtensor/version.h>
#include <dtensor/weights/weight_file.h>
#include <gtest/gtest.h>
#include <torch/library.h>
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <sstream>
#include <thread>

namespace dtensor {
namespace TEST_SOURCE {

std::filesystem::path golden_path() {
  return std::filesystem::path(DTENSOR_TESTS_DIR) / "golden" / "errors.txt";
}

template <class Make>
at::Tensor deferred(const Make& make) {
  const DeferredInit scope;
  return make();
}

const char* type_of(const c10::Error& e) {
  return dynamic_cast<const c10::ValueError*>(&e) ? "ValueError"
      : dynamic_cast<const c10::IndexError*>(&e)  ? "IndexError"
      : dynamic_cast<const c10::TypeError*>(&e)   ? "TypeError"
      : dynamic_cast<const c10::NotImplementedError*>(&e)
      ? "NotImplementedError"
      : "RuntimeError";
}

std::string error_text(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const c10::Error& e) {
    return std::string(type_of(e)) + ": " + e.what_without_backtrace();
  }
  return "no error";
}

// Runs `fn` on two ranks, which must throw the same error.
std::string on_ranks(const std::function<void(const DeviceMesh&)>& fn) {
  std::string texts[2];
  run_ranks(2, [&](int64_t rank) {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    texts[rank] = error_text([&] { fn(mesh); });
  });
  EXPECT_EQ(texts[0], texts[1]);
  return texts[0];
}

at::Tensor rows(const DeviceMesh& mesh, const Placement& p = Shard(0)) {
  return distribute_tensor(at::ones({4, 6}), mesh, {p});
}

at::Tensor partial(const DeviceMesh& mesh) {
  return DTensor::from_local(at::ones({4, 6}), mesh, {Partial()});
}

double double_rank() {
  return static_cast<double>(get_rank());
}

// Returns a Linear with replicated input, output and bias.
torch::nn::Linear replicating(const DeviceMesh& mesh) {
  torch::nn::Linear linear(4, 4);
  parallelize_module(
      *linear, mesh, RowwiseParallel({.input_layouts = Replicate()}));
  return linear;
}

at::Tensor differing(const DeviceMesh& mesh, double value) {
  const at::Tensor t = distribute_tensor(at::zeros({4}), mesh);
  DTensor(t).to_local().fill_(value);
  return t;
}

struct RankedImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    return x + double_rank();
  }
};
DTENSOR_MODULE(Ranked);

void save_one(const at::Tensor& t) {
  StateDict tensors;
  tensors.insert("w", t);
  save_checkpoint("run/1", {.tensors = &tensors});
}

at::Tensor noisy(const at::Tensor& t) {
  return t + at::rand_like(t);
}
at::Tensor& add_one_(at::Tensor& t) {
  return t.add_(1);
}

// Operators of another library, without a kernel for DTensors.
TORCH_LIBRARY(errors_test, m) {
  m.def("noisy(Tensor t) -> Tensor");
  m.def("add_one_(Tensor(a!) t) -> Tensor(a!)");
  m.impl("noisy", c10::DispatchKey::CPU, noisy);
  m.impl("add_one_", c10::DispatchKey::CPU, add_one_);
}

void call_other(const char* name, at::Tensor t) {
  torch::jit::Stack stack{t.set_requires_grad(true) * 1};
  c10::Dispatcher::singleton().findSchemaOrThrow(name, "").callBoxed(&stack);
}

at::Tensor same(const at::Tensor& t) {
  return t;
}
at::Tensor scaled(const at::Tensor& t, const at::Tensor& by) {
  return t * by;
}

// Runs self-attention on `q` in a scope with buffers of 4 tokens.
at::Tensor attend_in_scope(
    const DeviceMesh& mesh,
    const at::Tensor& q,
    const std::optional<at::Tensor>& mask = {},
    double dropout = 0,
    bool grouped = false) {
  const auto scope = context_parallel(
      mesh, {.buffers = {at::ones({4})}, .buffer_seq_dims = {0}});
  return at::scaled_dot_product_attention(
      q, q, q, mask, dropout, true, {}, grouped);
}

void open_context(
    const DeviceMesh& mesh,
    const std::vector<at::Tensor>& buffers,
    const std::vector<int64_t>& dims,
    const std::vector<at::Tensor>& kept = {}) {
  const auto scope = context_parallel(
      mesh,
      {.buffers = buffers,
       .buffer_seq_dims = dims,
       .no_restore_buffers = kept});
}

struct BareImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    return x;
  }
};

struct MlpImpl : torch::nn::Module {
  MlpImpl() {
    up = register_module("up", torch::nn::Linear(4, 4));
    down = register_module("down", torch::nn::Linear(4, 4));
    bare = register_module("bare", std::make_shared<BareImpl>());
  }
  torch::nn::Linear up{nullptr};
  torch::nn::Linear down{nullptr};
  std::shared_ptr<BareImpl> bare;
};

void shard_as(const DeviceMesh& mesh, const Placement& placement) {
  MlpImpl mlp;
  fully_shard(mlp, {.mesh = mesh, .shard_placement_fn = [&](const at::Tensor&) {
                      return std::optional(placement);
                    }});
}

// Returns an optimizer that has stepped once. If `momentum` is given, it
// becomes the first weight's momentum buffer.
torch::optim::SGD momentum_of(MlpImpl& mlp, const at::Tensor& momentum = {}) {
  torch::optim::SGD optimizer(
      mlp.up->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  mlp.up(at::ones({2, 4})).sum().backward();
  optimizer.step();
  if (momentum.defined()) {
    auto& state = optimizer.state().at(mlp.up->weight.unsafeGetTensorImpl());
    static_cast<torch::optim::SGDParamState&>(*state).momentum_buffer(momentum);
  }
  return optimizer;
}

// Recomputes `linear` in the backward pass.
struct Recomputed : torch::autograd::Function<Recomputed> {
  static at::Tensor forward(
      torch::autograd::AutogradContext*,
      const at::Tensor& x,
      torch::nn::LinearImpl* linear) {
    made_by() = linear;
    return linear->forward(x);
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext*,
      const torch::autograd::variable_list& gradients) {
    const torch::AutoGradMode with_grad(true);
    const auto x = at::ones({2, 4}).set_requires_grad(true);
    torch::autograd::backward({made_by()->forward(x)}, {gradients[0]});
    return {x.grad(), at::Tensor()};
  }
  static torch::nn::LinearImpl*& made_by() {
    thread_local torch::nn::LinearImpl* linear = nullptr;
    return linear;
  }
};

struct EchoImpl : torch::nn::Cloneable<EchoImpl> {
  void reset() override {}
  at::Tensor forward(const at::Tensor& x) {
    return x;
  }
};
DTENSOR_MODULE(Echo);

struct HolderImpl : torch::nn::Cloneable<HolderImpl> {
  HolderImpl() {
    reset();
  }
  void reset() override {
    echo = register_module("echo", Echo());
  }
  Echo echo{nullptr};
};

void style(const DeviceMesh& mesh, const ParallelizePlan& plan) {
  MlpImpl mlp;
  parallelize_module(mlp, mesh, plan);
}

void style_as_2_0(const DeviceMesh& mesh, const ParallelizePlan& plan) {
  MlpImpl mlp;
  torch_2_0::parallelize_module(mlp, mesh, plan);
}

using Provocation = std::function<void(const DeviceMesh&)>;

const std::map<std::string, Provocation>& provocations() {
  static const std::map<std::string, Provocation> all = {
      // Meshes.
      {"a mesh larger than the world",
       [](const DeviceMesh&) { init_device_mesh(at::kCPU, {4}, {"tp"}); }},
      {"a cost of a mesh that is not positive",
       [](const DeviceMesh&) {
         init_device_mesh(
             at::kCPU, {2}, {"tp"}, {.cost = {{"tp", {.latency_us = 0}}}});
       }},
      {"a cost of an unknown mesh dimension",
       [](const DeviceMesh&) {
         init_device_mesh(at::kCPU, {2}, {"tp"}, {.cost = {{"dp", {}}}});
       }},
      {"a duplicate mesh name",
       [](const DeviceMesh&) {
         init_device_mesh(at::kCPU, {1, 2}, {"tp", "tp"});
       }},
      {"more mesh names than dimensions",
       [](const DeviceMesh&) {
         init_device_mesh(at::kCPU, {2}, {"dp", "tp"});
       }},
      {"an unknown mesh name", [](const DeviceMesh& mesh) { mesh["dp"]; }},
      {"a collective on a mesh without communication",
       [](const DeviceMesh&) {
         get_group(DeviceMesh(at::kCPU, {2}, {0, 1}), int64_t{0});
       }},
      {"the group of a mesh of several dimensions",
       [](const DeviceMesh&) {
         get_group(init_device_mesh(at::kCPU, {1, 2}, {"dp", "tp"}));
       }},
      // Layouts.
      {"a Shard dimension out of range",
       [](const DeviceMesh& mesh) { rows(mesh, Shard(2)); }},
      {"placements of the wrong length",
       [](const DeviceMesh& mesh) {
         distribute_tensor(at::ones({4}), mesh, {Shard(0), Replicate()});
       }},
      {"different reductions in one layout",
       [](const DeviceMesh&) {
         const auto mesh = init_device_mesh(at::kCPU, {1, 2}, {"dp", "tp"});
         zeros({4}, mesh, {Partial(), Partial("max")});
       }},
      // Replicas that differ across ranks.
      {"a different input on each rank",
       [](const DeviceMesh& mesh) {
         auto model = replicating(mesh);
         CheckReplicas check(*model, mesh);
         model(at::full({2, 4}, double_rank()));
       }},
      {"a different output on each rank",
       [](const DeviceMesh& mesh) {
         Ranked model;
         parallelize_module(
             *model,
             mesh,
             {{"",
               PrepareModuleOutput(
                   {.output_layouts = {Replicate()},
                    .desired_output_layouts = {Replicate()}})}});
         CheckReplicas check(*model, mesh);
         model(at::ones({2, 4}));
       }},
      {"a different argument of from_local on each rank",
       [](const DeviceMesh& mesh) {
         auto model = replicating(mesh);
         CheckReplicas check(*model, mesh);
         DTensor::from_local(at::full({2, 4}, double_rank()), mesh);
       }},
      {"a different gradient on each rank",
       [](const DeviceMesh& mesh) {
         auto model = replicating(mesh);
         CheckReplicas check(*model, mesh);
         const auto y = model(at::ones({2, 4}));
         y.backward(at::full_like(y, double_rank()));
       }},
      {"a different norm of the gradients on each rank",
       [](const DeviceMesh& mesh) {
         auto model = replicating(mesh);
         CheckReplicas check(*model, mesh);
         auto parameter = differing(mesh, 1);
         parameter.mutable_grad() = differing(mesh, 1 + double_rank());
         clip_grad_norm_({parameter}, 1);
       }},
      {"a different stream of random numbers on each rank",
       [](const DeviceMesh& mesh) {
         auto model = replicating(mesh);
         CheckReplicas check(*model, mesh);
         dtensor::manual_seed(static_cast<uint64_t>(get_rank()));
         dtensor::randn({4}, mesh);
       }},
      {"a different parameter on each rank",
       [](const DeviceMesh& mesh) {
         auto model = replicating(mesh);
         DTensor(model->bias.detach()).to_local().fill_(double_rank());
         CheckReplicas check(*model, mesh);
       }},
      {"a different gradient of a parameter on each rank",
       [](const DeviceMesh& mesh) {
         auto model = replicating(mesh);
         CheckReplicas check(*model, mesh);
         model->bias.mutable_grad() = differing(mesh, double_rank());
         check.finish();
       }},
      {"a different loss on each rank",
       [](const DeviceMesh& mesh) {
         auto model = replicating(mesh);
         CheckReplicas check(*model, mesh);
         (model(at::ones({2, 4})).sum() * 0 + double_rank()).backward();
       }},
      {"a different random state on each rank",
       [](const DeviceMesh& mesh) {
         auto model = replicating(mesh);
         CheckReplicas check(*model, mesh);
         dtensor::manual_seed(static_cast<uint64_t>(get_rank()));
         model(at::ones({2, 4}));
       }},
      {"a different tensor of the program on each rank",
       [](const DeviceMesh& mesh) {
         auto model = replicating(mesh);
         CheckReplicas check(*model, mesh);
         check.compare(at::full({2}, double_rank()), mesh, "tokens");
       }},
      {"comparing a DTensor by hand",
       [](const DeviceMesh& mesh) {
         auto model = replicating(mesh);
         CheckReplicas check(*model, mesh);
         check.compare(rows(mesh), mesh, "rows");
       }},
      {"a different module on each rank",
       [](const DeviceMesh& mesh) {
         auto model = replicating(mesh);
         CheckReplicas check(*model, mesh);
         if (get_rank() == 0) {
           model(at::ones({2, 4}));
         } else {
           check.finish();
         }
       }},
      {"an unknown noise level",
       [](const DeviceMesh&) {
         CommDebugMode().generate_comm_debug_tracing_table(4);
       }},
      {"parameters of a mode without a model",
       [](const DeviceMesh&) { CommDebugMode().get_parameter_info(); }},
      {"a file that cannot be written",
       [](const DeviceMesh&) { Trace().write("/no/such/folder/trace.json"); }},
      {"explaining an unknown operator",
       [](const DeviceMesh&) { explain("mmm", {}); }},
      {"explaining an operator with too few layouts",
       [](const DeviceMesh& mesh) {
         explain("mm", {DTensor(rows(mesh)).spec()});
       }},
      {"explaining an operator without an argument that it needs",
       [](const DeviceMesh& mesh) {
         explain("cumsum", {DTensor(rows(mesh)).spec()});
       }},
      {"explaining an operator with an argument of another one",
       [](const DeviceMesh& mesh) {
         explain("relu", {DTensor(rows(mesh)).spec()}, {{"dim", 0}});
       }},
      {"an unknown reduction", [](const DeviceMesh&) { Partial("median"); }},
      {"a Shard unit that is not positive", [](const DeviceMesh&) { Shard(0, 0); }},
      {"a layout that cannot be read",
       [](const DeviceMesh&) { parse_placements("S(0) Q"); }},
      // from_local.
      {"from_local of a DTensor",
       [](const DeviceMesh& mesh) {
         DTensor::from_local(rows(mesh), mesh, {Shard(0)});
       }},
      {"from_local without a mesh",
       [](const DeviceMesh&) {
         DTensor::from_local(at::ones({4}), DeviceMesh(), {Shard(0)});
       }},
      {"from_local with a stride alone",
       [](const DeviceMesh& mesh) {
         DTensor::from_local(
             at::ones({4}),
             mesh,
             {Shard(0)},
             {.stride = std::vector<int64_t>{1}});
       }},
      {"from_local of a local tensor that does not match the shape",
       [](const DeviceMesh& mesh) {
         // Both ranks use the mesh of rank 0, so that both errors are equal.
         DTensor::from_local(
             at::ones({4}),
             DeviceMesh(at::kCPU, {2}, mesh.ranks(), {"tp"}, 0),
             {Replicate()},
             {.shape = std::vector<int64_t>{5}});
       }},
      {"from_local of uneven shards without a shape",
       [](const DeviceMesh& mesh) {
         full_tensor(DTensor::from_local(
             at::ones({3 - mesh.get_rank()}), mesh, {Shard(0)}));
       }},
      {"from_local whose check finds a difference",
       [](const DeviceMesh& mesh) {
         DTensor::from_local(
             at::ones({3 - mesh.get_rank()}),
             mesh,
             {Shard(0)},
             {.run_check = true});
       }},
      // distribute_tensor.
      {"distribute_tensor of a non-leaf",
       [](const DeviceMesh& mesh) {
         const auto leaf = at::ones({4}).requires_grad_();
         distribute_tensor(leaf * 2, mesh, {Shard(0)});
       }},
      {"distribute_tensor without a mesh",
       [](const DeviceMesh&) {
         distribute_tensor(at::ones({4}), DeviceMesh(), {Shard(0)});
       }},
      {"distribute_tensor of a DTensor in another layout",
       [](const DeviceMesh& mesh) {
         distribute_tensor(rows(mesh), mesh, {Shard(1)});
       }},
      {"distribute_tensor from a rank out of range",
       [](const DeviceMesh& mesh) {
         distribute_tensor(at::ones({4}), mesh, {Shard(0)}, 2);
       }},
      // DTensors.
      {"a plain gradient of a DTensor",
       [](const DeviceMesh& mesh) {
         const auto x = rows(mesh).requires_grad_();
         const auto y = DTensor(x * 2).redistribute({Replicate()});
         y.backward(at::ones({4, 6}));
       }},
      {"a distributed gradient of a local tensor",
       [](const DeviceMesh& mesh) {
         const auto x = rows(mesh).requires_grad_();
         DTensor(x).full_tensor().backward(rows(mesh, Replicate()));
       }},
      {"grad_placements that do not fit",
       [](const DeviceMesh& mesh) {
         DTensor(rows(mesh)).to_local(Placements{Replicate()});
       }},
      {"a plain tensor as a DTensor",
       [](const DeviceMesh&) { DTensor d(at::ones({2})); }},
      {"an undefined DTensor", [](const DeviceMesh&) { DTensor().spec(); }},
      {"data_ptr of a DTensor",
       [](const DeviceMesh& mesh) { rows(mesh).data_ptr(); }},
      {"redistribute to another Partial",
       [](const DeviceMesh& mesh) {
         DTensor(partial(mesh)).redistribute({Partial("max")});
       }},
      {"redistribute to another mesh",
       [](const DeviceMesh& mesh) {
         DTensor(rows(mesh))
             .redistribute(
                 init_device_mesh(at::kCPU, {2}, {"dp"}), {Replicate()});
       }},
      {"redistribute to layouts of the wrong length",
       [](const DeviceMesh& mesh) {
         DTensor(rows(mesh)).redistribute({Replicate(), Replicate()});
       }},
      // local_map.
      {"local_map of an argument in another layout",
       [](const DeviceMesh& mesh) {
         local_map(same, {Replicate()}, {{Replicate()}})(rows(mesh));
       }},
      {"local_map of a plain tensor that has a layout",
       [](const DeviceMesh& mesh) {
         local_map(scaled, {Shard(0)}, {{Shard(0)}, {Replicate()}})(
             rows(mesh), at::ones({6}));
       }},
      {"local_map of a DTensor without placements",
       [](const DeviceMesh& mesh) {
         local_map(same, {Shard(0)}, {std::nullopt})(rows(mesh));
       }},
      {"local_map of a number that has a layout",
       [](const DeviceMesh& mesh) {
         local_map(
             [](const at::Tensor& t, double) { return t; },
             {Shard(0)},
             {{Shard(0)}, {Shard(0)}})(rows(mesh), 1.0);
       }},
      {"local_map with too many layouts",
       [](const DeviceMesh& mesh) {
         local_map(same, {Shard(0)}, {{Shard(0)}, {Shard(0)}})(rows(mesh));
       }},
      {"local_map on another mesh",
       [](const DeviceMesh& mesh) {
         local_map(
             same,
             {Shard(0)},
             {},
             {.device_mesh = init_device_mesh(at::kCPU, {2}, {"dp"})})(
             rows(mesh));
       }},
      {"local_map with an ambiguous gradient",
       [](const DeviceMesh& mesh) {
         const auto by = ones({6}, mesh).requires_grad_();
         local_map(scaled, {Shard(0)})(rows(mesh), by);
       }},
      {"local_map of a function that returns a DTensor",
       [](const DeviceMesh& mesh) {
         local_map([&](const at::Tensor&) { return rows(mesh); }, {Shard(0)})(
             rows(mesh));
       }},
      {"local_map of a function that returns too much",
       [](const DeviceMesh& mesh) {
         local_map(
             [](const at::Tensor& t) { return std::make_pair(t, t); },
             {Shard(0)})(rows(mesh));
       }},
      {"local_map of a result that has no layout",
       [](const DeviceMesh& mesh) {
         local_map(same, PlacementsList{std::nullopt})(rows(mesh));
       }},
      {"local_map of a result that is not a tensor",
       [](const DeviceMesh& mesh) {
         local_map([](const at::Tensor&) { return 1; }, {Shard(0)})(rows(mesh));
       }},
      // Creation.
      {"ones that are Partial",
       [](const DeviceMesh& mesh) { ones({4}, mesh, {Partial()}); }},
      {"a negative size",
       [](const DeviceMesh& mesh) { zeros({-4}, mesh, {Shard(0)}); }},
      {"a linspace of booleans",
       [](const DeviceMesh& mesh) {
         linspace(0, 1, 4, mesh, {Shard(0)}, {.dtype = at::kBool});
       }},
      // Operators.
      {"a plain number next to a partial sum",
       [](const DeviceMesh& mesh) { partial(mesh) + at::ones({}); }},
      {"a plain tensor beside a DTensor",
       [](const DeviceMesh& mesh) {
         at::add(rows(mesh), at::ones({4, 6}));
       }},
      {"a composite operator that creates a plain tensor",
       [](const DeviceMesh& mesh) {
         const auto x = rows(mesh).requires_grad_();
         at::istft(at::complex(x, x), 4);
       }},
      {"one_hot of ids that are not integers",
       [](const DeviceMesh& mesh) { at::one_hot(rows(mesh)); }},
      {"one_hot of ids out of range",
       [](const DeviceMesh& mesh) {
         at::one_hot(rows(mesh).to(at::kLong), 1);
       }},
      {"one_hot with a negative number of classes",
       [](const DeviceMesh& mesh) {
         at::one_hot(rows(mesh).to(at::kLong), -5);
       }},
      {"bincount with a negative length",
       [](const DeviceMesh& mesh) {
         at::bincount(ones({4}, mesh, {}, {.dtype = at::kLong}), {}, -1);
       }},
      {"bincount with weights on another mesh",
       [](const DeviceMesh& mesh) {
         const auto other = make_device_mesh(at::kCPU, {2}, {1, 0});
         at::bincount(
             ones({4}, mesh, {}, {.dtype = at::kLong}), ones({4}, other));
       }},
      {"one_hot of no ids",
       [](const DeviceMesh& mesh) {
         at::one_hot(zeros({0}, mesh, {}, {.dtype = at::kLong}));
       }},
      {"a plain tensor that differs between ranks, copied to a DTensor",
       [](const DeviceMesh& mesh) {
         zeros({4}, mesh, {Replicate()})
             .copy_(at::full({4}, static_cast<double>(get_rank())));
       }},
      {"an implicit redistribution where all are to be explicit",
       [](const DeviceMesh& mesh) {
         const ExplicitRedistributionContext only_explicit;
         at::add(rows(mesh), rows(mesh, Shard(1)));
       }},
      {"a missing rule replaced by a layout other than Replicate",
       [](const DeviceMesh&) { const auto scope = on_missing_rule(Shard(0)); }},
      {"DTensors of two meshes",
       [](const DeviceMesh& mesh) {
         at::add(rows(mesh), rows(init_device_mesh(at::kCPU, {2}, {"dp"})));
       }},
      {"an in-place operator that would change the layout of self",
       [](const DeviceMesh& mesh) { partial(mesh).relu_(); }},
      {"a view that cannot keep its sharding",
       [](const DeviceMesh& mesh) {
         rows(mesh).view({3, 8});
       }},
      {"a DTensor as out of plain tensors",
       [](const DeviceMesh& mesh) {
         auto out = rows(mesh);
         at::add_out(out, at::ones({4, 6}), at::ones({4, 6}));
       }},
      {"writing to a conjugate",
       [](const DeviceMesh& mesh) {
         at::complex(rows(mesh), rows(mesh)).conj().mul_(2);
       }},
      {"the local tensor of a view that was redistributed, after a write",
       [](const DeviceMesh& mesh) {
         at::Tensor x = rows(mesh);
         const auto first = x.select(0, 0);
         x.mul_(2);
         DTensor(first).to_local();
       }},
      {"as_strided",
       [](const DeviceMesh& mesh) {
         rows(mesh).narrow(1, 0, 2).as_strided({4}, {1});
       }},
      {"an in-place operator that would resize self",
       [](const DeviceMesh& mesh) {
         ones({1}, mesh).logical_and_(ones({3}, mesh));
       }},
      {"a write to an expanded tensor",
       [](const DeviceMesh& mesh) {
         rows(mesh).narrow(1, 0, 1).expand({4, 3}).relu_();
       }},
      {"an out of a dtype that does not take the result",
       [](const DeviceMesh& mesh) {
         at::Tensor out = rows(mesh).to(at::kLong);
         at::mul_out(out, rows(mesh), rows(mesh));
       }},
      {"a dtype without kernels",
       [](const DeviceMesh& mesh) { rows(mesh).to(at::kUInt16).amax(0); }},
      {"a dot of vectors that do not fit",
       [](const DeviceMesh& mesh) {
         at::dot(ones({4}, mesh), ones({5}, mesh));
       }},
      {"an addbmm of batches that do not fit",
       [](const DeviceMesh& mesh) {
         at::addbmm(
             ones({3, 5}, mesh), ones({2, 3, 4}, mesh), ones({2, 3, 5}, mesh));
       }},
      {"the maximum of an empty tensor",
       [](const DeviceMesh& mesh) { at::Tensor(ones({0}, mesh)).max(); }},
      {"a probability of dropout out of range",
       [](const DeviceMesh& mesh) {
         const at::Tensor q = ones({2, 3, 4, 5}, mesh);
         at::scaled_dot_product_attention(q, q, q, {}, 2.0);
       }},
      {"an attention of vectors",
       [](const DeviceMesh& mesh) {
         const at::Tensor q = ones({4}, mesh);
         at::scaled_dot_product_attention(q, q, q);
       }},
      {"an attention mask that does not expand",
       [](const DeviceMesh& mesh) {
         const at::Tensor q = ones({4, 2, 3}, mesh);
         at::scaled_dot_product_attention(q, q, q, ones({2, 2, 2}, mesh));
       }},
      {"values that do not broadcast to the indexed elements",
       [](const DeviceMesh& mesh) {
         const at::Tensor index =
             distribute_tensor(at::zeros({1}, at::kLong), mesh, {Replicate()});
         rows(mesh).index_put_(
             {at::indexing::Slice(), index}, ones({2, 1}, mesh));
       }},
      {"more indices than dimensions",
       [](const DeviceMesh& mesh) {
         const at::Tensor index =
             distribute_tensor(at::zeros({1}, at::kLong), mesh, {Replicate()});
         c10::List<std::optional<at::Tensor>> indices;
         indices.resize(2);
         indices.push_back(index);
         auto x = rows(mesh);
         at::index_put_(x, indices, ones({1}, mesh));
       }},
      {"a mask of another shape",
       [](const DeviceMesh& mesh) {
         rows(mesh).index_put_({ones({3}, mesh) > 0}, ones({1}, mesh));
       }},
      {"a normalization of a vector",
       [](const DeviceMesh& mesh) {
         at::batch_norm(
             ones({4}, mesh), {}, {}, {}, {}, true, 0.1, 1e-5, false);
       }},
      {"normalization weights of the wrong length",
       [](const DeviceMesh& mesh) {
         at::batch_norm(
             rows(mesh), ones({2}, mesh), {}, {}, {}, true, 0.1, 1e-5, false);
       }},
      {"a norm of an empty tensor",
       [](const DeviceMesh& mesh) {
         at::linalg_vector_norm(ones({0}, mesh), -1);
       }},
      {"class weights of another dtype",
       [](const DeviceMesh& mesh) {
         at::cross_entropy_loss(
             rows(mesh),
             distribute_tensor(at::zeros({4}, at::kLong), mesh, {Shard(0)}),
             ones({6}, mesh).to(at::kDouble));
       }},
      {"a rule given twice",
       [](const DeviceMesh&) {
         RuleRegistry rules;
         rules.einsum("mm", "mk,kn->mn");
         rules.einsum("mm", "mk,kn->mn");
       }},
      {"traits given twice",
       [](const DeviceMesh&) {
         RuleRegistry rules;
         rules.einsum("mm", "mk,kn->mn");
         rules.traits("mm", {});
       }},
      {"an einsum without an arrow",
       [](const DeviceMesh&) { einsum_strategies("mk,kn"); }},
      {"an einsum whose output has a letter of its own",
       [](const DeviceMesh&) { einsum_strategies("mk,kn->mz"); }},
      {"an einsum with a letter twice in a tensor",
       [](const DeviceMesh&) { einsum_strategies("mm,mn->n"); }},
      {"an einsum with something else than letters",
       [](const DeviceMesh&) { einsum_strategies("m k,kn->mn"); }},
      {"a rule for an operator that is not registered",
       [](const DeviceMesh&) {
         register_sharding("mylib::nothing", OpRule());
       }},
      {"a rule that is empty",
       [](const DeviceMesh&) { register_sharding("mm", OpRule()); }},
      {"a rule registered inside a rank",
       [](const DeviceMesh&) {
         register_sharding(
             "mm", [](const OpCall&, int64_t) { return Strategies(); });
       }},
      {"an operator without a rule",
       [](const DeviceMesh& mesh) { at::_pdist_forward(rows(mesh)); }},
      {"an out argument and a gradient",
       [](const DeviceMesh& mesh) {
         at::Tensor out = rows(mesh, Replicate());
         at::avg_pool1d_out(
             out, rows(mesh, Replicate()).set_requires_grad(true), 1);
       }},
      {"too few out arguments",
       [](const DeviceMesh& mesh) {
         const auto x = rows(mesh, Replicate());
         at::split_copy_out({x}, x, 2);
       }},
      {"a sparse result",
       [](const DeviceMesh& mesh) { rows(mesh, Replicate()).to_sparse(); }},
      {"a quantized result",
       [](const DeviceMesh& mesh) {
         at::quantize_per_tensor(rows(mesh, Replicate()), 0.1, 0, at::kQUInt8);
       }},
      {"a nested result",
       [](const DeviceMesh& mesh) {
         at::_nested_tensor_from_tensor_list({rows(mesh, Replicate())});
       }},
      {"a sparse operand",
       [](const DeviceMesh& mesh) { rows(mesh) + at::ones({4, 6}).to_sparse(); }},
      {"a sparse tensor made of DTensors",
       [](const DeviceMesh& mesh) {
         at::_sparse_coo_tensor_with_dims_and_tensors(
             1,
             0,
             {9},
             distribute_tensor(at::arange(3).view({1, 3}), mesh),
             distribute_tensor(at::ones({3}), mesh),
             at::TensorOptions().layout(at::kSparse));
       }},
      {"a sparse local tensor",
       [](const DeviceMesh& mesh) {
         DTensor::from_local(at::ones({4, 6}).to_sparse(), mesh);
       }},
      {"a sparse tensor to distribute",
       [](const DeviceMesh& mesh) {
         distribute_tensor(at::ones({4, 6}).to_sparse(), mesh);
       }},
      {"a tensor_split at positions that are not integers",
       [](const DeviceMesh& mesh) {
         rows(mesh).tensor_split(rows(mesh, Replicate()));
       }},
      {"an operator of another library that draws random numbers",
       [](const DeviceMesh& mesh) {
         call_other("errors_test::noisy", rows(mesh, Replicate()));
       }},
      {"an operator of another library that writes",
       [](const DeviceMesh& mesh) {
         call_other("errors_test::add_one_", rows(mesh, Replicate()));
       }},
      // Styles.
      {"a style for units of a convolution of several groups",
       [](const DeviceMesh& mesh) {
         torch::nn::Conv2d grouped(
             torch::nn::Conv2dOptions(4, 4, 3).groups(2));
         parallelize_module(
             *grouped, mesh, ColwiseParallel({.multiple_of = 2}));
       }},
      {"a style for a module that it cannot style",
       [](const DeviceMesh& mesh) {
         style(mesh, {{"bare", ColwiseParallel()}});
       }},
      {"an input of other features than the module takes",
       [](const DeviceMesh& mesh) {
         MlpImpl mlp;
         parallelize_module(
             mlp,
             mesh,
             {{"up", ColwiseParallel()}, {"down", ColwiseParallel()}});
         mlp.down(mlp.up(at::ones({2, 4})));
       }},
      {"an input written past its version counter",
       [](const DeviceMesh& mesh) {
         MlpImpl mlp;
         parallelize_module(
             mlp,
             mesh,
             {{"up", ColwiseParallel()}, {"down", ColwiseParallel()}});
         const at::Tensor x = rows(mesh).narrow(1, 0, 4);
         mlp.up(x);
         x.data().fill_(2);
         mlp.down(x);
       }},
      {"an input sharded unevenly",
       [](const DeviceMesh& mesh) {
         MlpImpl mlp;
         parallelize_module(
             mlp, mesh, {{"up", ColwiseParallel({.input_layouts = Shard(0)})}});
         mlp.up(at::ones({3 - mesh.get_rank(), 4}));
       }},
      {"a weight tied by an assignment",
       [](const DeviceMesh& mesh) {
         MlpImpl mlp;
         mlp.down->weight = mlp.up->weight;
         parallelize_module(mlp, mesh, {{"up", ColwiseParallel()}});
       }},
      {"a weight tied to one of another shape",
       [](const DeviceMesh&) {
         tie_weights(*torch::nn::Linear(2, 3), *torch::nn::Linear(2, 4));
       }},
      {"a weight tied to a module without one",
       [](const DeviceMesh&) {
         tie_weights(*torch::nn::Linear(2, 3), *torch::nn::ReLU());
       }},
      {"a weight tied to one that is undefined",
       [](const DeviceMesh&) {
         torch::nn::LayerNorm norm(
             torch::nn::LayerNormOptions({3}).elementwise_affine(false));
         tie_weights(*torch::nn::Linear(2, 3), *norm);
       }},
      {"a parameter tied in a module whose member is not known",
       [](const DeviceMesh&) {
         torch::nn::Module module("Scale");
         module.register_parameter("factors", at::ones({3}));
         tie_parameter(module, "factors", at::ones({3}));
       }},
      {"an optimizer with a shared parameter twice",
       [](const DeviceMesh&) {
         MlpImpl mlp;
         tie_weights(*mlp.down, *mlp.up);
         const torch::optim::SGD sgd(mlp.parameters(), 0.1);
         get_optimizer_state_dict(mlp, sgd);
       }},
      {"an embedding that writes to its weight",
       [](const DeviceMesh& mesh) {
         torch::nn::Embedding embedding(
             torch::nn::EmbeddingOptions(8, 4).max_norm(1.0));
         parallelize_module(*embedding, mesh, RowwiseParallel());
       }},
      {"SequenceParallel on a Linear",
       [](const DeviceMesh& mesh) {
         style(mesh, {{"up", SequenceParallel()}});
       }},
      {"a plain target outside of loss_parallel",
       [](const DeviceMesh& mesh) {
         at::cross_entropy_loss(rows(mesh), at::zeros({4}, at::kLong));
       }},
      {"modules tied that are styled differently",
       [](const DeviceMesh& mesh) {
         MlpImpl mlp;
         parallelize_module(
             mlp,
             mesh,
             {{"up", ColwiseParallel()}, {"down", RowwiseParallel()}});
         mlp.down->weight = mlp.up->weight;
         mlp.up(at::ones({2, 4}));
       }},
      {"a clone called on another rank than made it",
       [](const DeviceMesh& mesh) {
         torch::nn::ModuleHolder<HolderImpl> holder;
         parallelize_module(*holder, mesh, {{"echo", SequenceParallel()}});
         const auto copy = holder->clone();
         std::exception_ptr error;
         std::thread other([&] {
           try {
             copy->as<HolderImpl>()->echo->forward(at::ones({2}));
           } catch (...) {
             error = std::current_exception();
           }
         });
         other.join();
         std::rethrow_exception(error);
       }},
      {"a module styled twice",
       [](const DeviceMesh& mesh) {
         style(mesh, {{"up", ColwiseParallel()}, {"u*", ColwiseParallel()}});
       }},
      {"a hook style for a module without hooks",
       [](const DeviceMesh& mesh) {
         style(
             mesh,
             {{"bare",
               PrepareModuleInput(
                   {.input_layouts = {Shard(0)},
                    .desired_input_layouts = {Replicate()}})}});
       }},
      {"a pattern that matches nothing",
       [](const DeviceMesh& mesh) {
         style(mesh, {{"w4", ColwiseParallel()}});
       }},
      {"styles on a mesh of two dimensions",
       [](const DeviceMesh&) {
         style(
             init_device_mesh(at::kCPU, {1, 2}, {"dp", "tp"}),
             {{"up", ColwiseParallel()}});
       }},
      {"a module that is a unit already",
       [](const DeviceMesh& mesh) {
         MlpImpl mlp;
         fully_shard(mlp, {.mesh = mesh});
         fully_shard(mlp, {.mesh = mesh});
       }},
      {"a module that is not a unit",
       [](const DeviceMesh& mesh) {
         MlpImpl mlp;
         fully_shard(mlp, {.mesh = mesh});
         FSDPModule(*mlp.up);
       }},
      {"a unit on a mesh of three dimensions",
       [](const DeviceMesh&) {
         MlpImpl mlp;
         fully_shard(
             mlp,
             {.mesh =
                  init_device_mesh(at::kCPU, {1, 1, 2}, {"pp", "dp", "tp"})});
       }},
      {"a unit on the mesh of tensor parallelism",
       [](const DeviceMesh& mesh) {
         MlpImpl mlp;
         parallelize_module(mlp, mesh, {{"up", ColwiseParallel()}});
         fully_shard(mlp, {.mesh = mesh});
       }},
      {"a unit's parameter to be replicated",
       [](const DeviceMesh& mesh) { shard_as(mesh, Replicate()); }},
      {"a unit's parameter without that dimension",
       [](const DeviceMesh& mesh) { shard_as(mesh, Shard(1)); }},
      {"a unit of two dtypes",
       [](const DeviceMesh& mesh) {
         MlpImpl mlp;
         mlp.down->to(at::kDouble);
         fully_shard(mlp, {.mesh = mesh});
       }},
      {"a unit of integers in mixed precision",
       [](const DeviceMesh& mesh) {
         BareImpl module;
         module.register_parameter(
             "table", at::ones({4}, at::kLong), /*requires_grad=*/false);
         fully_shard(
             module,
             {.mesh = mesh, .mp_policy = {.param_dtype = at::kBFloat16}});
       }},
      {"a dtype for a parameter that is not its own",
       [](const DeviceMesh& mesh) {
         MlpImpl mlp;
         const auto half = [](const at::Tensor&) {
           return std::optional(at::kHalf);
         };
         fully_shard(
             mlp, {.mesh = mesh, .mp_policy = {.param_dtype_override_fn = half}});
       }},
      {"a nested unit to finalize",
       [](const DeviceMesh& mesh) {
         MlpImpl mlp;
         auto up = fully_shard(*mlp.up, {.mesh = mesh});
         fully_shard(mlp, {.mesh = mesh});
         up.finalize_backward();
       }},
      {"a unit that finalizes itself",
       [](const DeviceMesh& mesh) {
         MlpImpl mlp;
         fully_shard(mlp, {.mesh = mesh}).finalize_backward();
       }},
      {"a unit that finalizes itself from now on",
       [](const DeviceMesh& mesh) {
         torch::nn::Linear linear(4, 4);
         auto unit = fully_shard(*linear, {.mesh = mesh});
         unit.set_manual_backward_finalization(true);
         linear(at::ones({2, 4})).sum().backward();
         unit.set_manual_backward_finalization(false);
       }},
      {"a unit that is being finalized",
       [](const DeviceMesh& mesh) {
         MlpImpl mlp;
         auto unit = fully_shard(mlp, {.mesh = mesh});
         unit.set_manual_backward_finalization(true);
         const auto handle = unit.finalize_backward(/*async_op=*/true);
         unit.finalize_backward();
       }},
      {"a reshard_after_forward that does not divide the ranks",
       [](const DeviceMesh& mesh) {
         MlpImpl mlp;
         fully_shard(mlp, {.mesh = mesh, .reshard_after_forward = 3});
       }},
      {"a unit's results in another dtype, without hooks",
       [](const DeviceMesh& mesh) {
         MlpImpl mlp;
         fully_shard(
             mlp, {.mesh = mesh, .mp_policy = {.output_dtype = at::kDouble}});
       }},
      {"a unit on the meta device",
       [](const DeviceMesh& mesh) {
         auto linear = [] {
           const DeferredInit scope;
           return torch::nn::Linear(4, 4);
         }();
         fully_shard(*linear, {.mesh = mesh});
         linear(at::ones({2, 4}));
       }},
      {"a unit's parameter changed before backward",
       [](const DeviceMesh& mesh) {
         MlpImpl mlp;
         fully_shard(mlp, {.mesh = mesh});
         const auto loss = mlp.up(at::ones({2, 4})).sum();
         const torch::NoGradGuard no_grad;
         mlp.up->weight.mul_(2);
         loss.backward();
       }},
      {"a unit's parameters of different dtypes",
       [](const DeviceMesh& mesh) {
         MlpImpl mlp;
         fully_shard(mlp, {.mesh = mesh});
         mlp.up->to(at::kDouble);
         mlp.up(at::ones({2, 4}));
       }},
      {"a unit's parameter with the data of a plain tensor",
       [](const DeviceMesh& mesh) {
         MlpImpl mlp;
         fully_shard(mlp, {.mesh = mesh});
         mlp.up->weight.set_data(at::ones({8, 4}));
       }},
      {"a clone of a fully_shard module",
       [](const DeviceMesh& mesh) {
         torch::nn::Linear linear(4, 4);
         fully_shard(*linear, {.mesh = mesh});
         linear->clone();
       }},
      {"gradients of a unit differentiated",
       [](const DeviceMesh& mesh) {
         MlpImpl mlp;
         fully_shard(mlp, {.mesh = mesh});
         const auto loss = mlp.up(at::ones({2, 4})).square().sum();
         torch::autograd::grad(
             {loss}, {mlp.up->weight}, {}, true, /*create_graph=*/true);
       }},
      {"gradients of a unit requested while they accumulate",
       [](const DeviceMesh& mesh) {
         MlpImpl mlp;
         fully_shard(mlp, {.mesh = mesh}).set_requires_gradient_sync(false);
         torch::autograd::grad(
             {mlp.up(at::ones({2, 4})).sum()}, {mlp.up->weight});
       }},
      {"a gradient divide factor of zero",
       [](const DeviceMesh& mesh) {
         MlpImpl mlp;
         fully_shard(mlp, {.mesh = mesh}).set_gradient_divide_factor(0);
       }},
      {"an unsupported type of optimizer",
       [](const DeviceMesh&) {
         struct Other : torch::optim::Optimizer {
           Other()
               : Optimizer(
                     std::vector<at::Tensor>{at::zeros({1})},
                     std::make_unique<torch::optim::SGDOptions>(1)) {}
           at::Tensor step(LossClosure) override {
             return {};
           }
         };
         Other optimizer;
         distribute_optimizer_state(optimizer);
       }},
      {"an optimizer created before its parameters were distributed",
       [](const DeviceMesh& mesh) {
         MlpImpl mlp;
         auto optimizer = momentum_of(mlp);
         parallelize_module(mlp, mesh, {{"up", ColwiseParallel()}});
         mlp.up(at::ones({2, 4})).sum().backward();
         optimizer.step();
       }},
      {"an optimizer's state of another shape",
       [](const DeviceMesh& mesh) {
         MlpImpl mlp;
         auto optimizer = momentum_of(mlp, at::ones({3}));
         parallelize_module(mlp, mesh, {{"up", ColwiseParallel()}});
         distribute_optimizer_state(optimizer);
       }},
      {"an optimizer's state that is on other ranks",
       [](const DeviceMesh& mesh) {
         MlpImpl mlp;
         auto optimizer = momentum_of(
             mlp, distribute_tensor(at::ones({4, 4}), mesh, {Shard(1)}));
         parallelize_module(mlp, mesh, {{"up", ColwiseParallel()}});
         distribute_optimizer_state(optimizer);
       }},
      {"a module replicated along two mesh dimensions",
       [](const DeviceMesh&) {
         MlpImpl mlp;
         replicate(mlp, init_device_mesh(at::kCPU, {1, 2}, {"dp", "tp"}));
       }},
      {"a replicated module that recomputes with shared parameters",
       [](const DeviceMesh& mesh) {
         torch::nn::Linear linear(4, 4);
         replicate(*linear, mesh, {.bucket_cap_bytes = 1});
         const auto x = at::ones({2, 4}).set_requires_grad(true);
         linear(Recomputed::apply(x, linear.get())).sum().backward();
       }},
      {"a module distributed after replicate",
       [](const DeviceMesh& mesh) {
         MlpImpl mlp;
         replicate(mlp, mesh);
         parallelize_module(mlp, mesh, {{"up", ColwiseParallel()}});
       }},
      {"a module replicated twice",
       [](const DeviceMesh& mesh) {
         MlpImpl mlp;
         replicate(mlp, mesh);
         replicate(mlp, mesh);
       }},
      {"a module replicated along tensor parallelism",
       [](const DeviceMesh& mesh) {
         MlpImpl mlp;
         parallelize_module(mlp, mesh, {{"up", ColwiseParallel()}});
         replicate(mlp, mesh);
       }},
      {"a replicated module without one of its parameters",
       [](const DeviceMesh& mesh) {
         MlpImpl mlp;
         replicate(mlp, mesh);
         mlp.up = mlp.replace_module("up", torch::nn::Linear(4, 4));
         mlp.down(at::ones({2, 4})).sum().backward();
       }},
      {"a sharded buffer broadcast",
       [](const DeviceMesh& mesh) {
         torch::nn::Module module("Table");
         module.register_buffer("table", rows(mesh));
         broadcast_buffers(module, mesh);
       }},
      {"a state dict of shards broadcast",
       [](const DeviceMesh& mesh) {
         MlpImpl mlp;
         StateDict state;
         state.insert("up.weight", rows(mesh));
         set_model_state_dict(mlp, state, {.broadcast_from_rank0 = true});
       }},
      {"a context on a mesh of two dimensions",
       [](const DeviceMesh&) {
         open_context(init_device_mesh(at::kCPU, {1, 2}, {"dp", "cp"}), {}, {});
       }},
      {"context buffers without dimensions",
       [](const DeviceMesh& mesh) {
         open_context(mesh, {at::ones({4}), at::ones({4})}, {0});
       }},
      {"a context buffer without that dimension",
       [](const DeviceMesh& mesh) {
         open_context(mesh, {at::ones({4})}, {1});
       }},
      {"context buffers of two sequences",
       [](const DeviceMesh& mesh) {
         open_context(mesh, {at::ones({4}), at::ones({2, 5})}, {0, 1});
       }},
      {"a context buffer that is a DTensor",
       [](const DeviceMesh& mesh) { open_context(mesh, {rows(mesh)}, {0}); }},
      {"a context buffer that requires grad",
       [](const DeviceMesh& mesh) {
         open_context(mesh, {at::ones({4}).requires_grad_()}, {0});
       }},
      {"a context buffer that is undefined",
       [](const DeviceMesh& mesh) { open_context(mesh, {at::Tensor()}, {0}); }},
      {"a context buffer given twice",
       [](const DeviceMesh& mesh) {
         const auto x = at::ones({4});
         open_context(mesh, {x, x}, {0, 0});
       }},
      {"a no_restore_buffers entry that is not a buffer",
       [](const DeviceMesh& mesh) {
         open_context(mesh, {at::ones({4})}, {0}, {at::ones({4})});
       }},
      {"load_balance with ulysses",
       [](const DeviceMesh& mesh) {
         const auto scope = context_parallel(
             mesh,
             {.rotate_method = RotateMethod::kUlysses, .load_balance = true});
       }},
      {"a rotate method that does not exist",
       [](const DeviceMesh&) { set_rotate_method("sideways"); }},
      {"a mask in a context",
       [](const DeviceMesh& mesh) {
         attend_in_scope(
             mesh, at::ones({1, 1, 2, 4}), at::ones({2, 4}, at::kBool));
       }},
      {"dropout in a context",
       [](const DeviceMesh& mesh) {
         attend_in_scope(mesh, at::ones({1, 1, 2, 4}), {}, 0.5);
       }},
      {"integers in a context",
       [](const DeviceMesh& mesh) {
         attend_in_scope(mesh, at::ones({1, 1, 2, 4}, at::kLong));
       }},
      {"heads of one dimension in a context",
       [](const DeviceMesh& mesh) {
         attend_in_scope(mesh, at::ones({2, 4}), {}, 0, true);
       }},
      {"a local shard of another length in a context",
       [](const DeviceMesh& mesh) {
         attend_in_scope(mesh, at::ones({1, 1, 3, 4}));
       }},
      {"a fused attention layer in a context",
       [](const DeviceMesh& mesh) {
         const auto scope = context_parallel(mesh);
         const auto x = at::ones({1, 2, 4});
         const auto w = at::ones({4, 4});
         at::_native_multi_head_attention(
             x, x, x, 4, 2, at::ones({12, 4}), at::ones({12}), w, w[0]);
       }},
      {"second derivatives of attention in a context",
       [](const DeviceMesh& mesh) {
         const auto q = at::ones({1, 1, 2, 4}).requires_grad_();
         torch::autograd::grad(
             {attend_in_scope(mesh, q).sum()}, {q}, {}, true, true);
       }},
      {"local tensors to unshard without dimensions",
       [](const DeviceMesh& mesh) {
         context_parallel_unshard(mesh, {at::ones({4})}, {});
       }},
      {"context_parallel_unshard of a DTensor",
       [](const DeviceMesh& mesh) {
         context_parallel_unshard(mesh, {rows(mesh)}, {0});
       }},
      {"an undefined local tensor to unshard",
       [](const DeviceMesh& mesh) {
         context_parallel_unshard(mesh, {at::Tensor()}, {0});
       }},
      {"an overlap_chunks of zero",
       [](const DeviceMesh& mesh) {
         style(mesh, {{"up", RowwiseParallel({.overlap_chunks = 0})}});
       }},
      {"a multiple_of that does not divide",
       [](const DeviceMesh& mesh) {
         style(mesh, {{"up", ColwiseParallel({.multiple_of = 5})}});
       }},
      {"a num_query_heads that is not a multiple of the heads",
       [](const DeviceMesh& mesh) {
         style(mesh, {{"up", ColwiseParallel({.multiple_of = 2, .num_query_heads = 3})}});
       }},
      {"num_query_heads with an output layout",
       [](const DeviceMesh& mesh) {
         style(
             mesh,
             {{"up",
               ColwiseParallel(
                   {.output_layouts = Replicate(),
                    .multiple_of = 2,
                    .num_query_heads = 4})}});
       }},
      {"num_query_heads with an embedding",
       [](const DeviceMesh& mesh) {
         parallelize_module(
             *torch::nn::Embedding(4, 4),
             mesh,
             ColwiseParallel({.multiple_of = 2, .num_query_heads = 4}));
       }},
      {"a fused_projections that does not divide",
       [](const DeviceMesh& mesh) {
         style(mesh, {{"up", ColwiseParallel({.fused_projections = 5})}});
       }},
      {"fused_projections with num_query_heads",
       [](const DeviceMesh& mesh) {
         style(mesh, {{"up", ColwiseParallel({.num_query_heads = 8, .fused_projections = 2})}});
       }},
      {"a mesh that is not a dimension of root_mesh",
       [](const DeviceMesh& mesh) {
         parallelize_module(
             *torch::nn::Linear(4, 4),
             mesh,
             ColwiseParallel(),
             {.keep_dtensors = true,
              .root_mesh = init_device_mesh(at::kCPU, {1, 2}, {"dp", "mp"})});
       }},
      {"a root_mesh without keep_dtensors",
       [](const DeviceMesh&) {
         const auto root = init_device_mesh(at::kCPU, {1, 2}, {"dp", "tp"});
         parallelize_module(
             *torch::nn::Linear(4, 4),
             root["tp"],
             ColwiseParallel(),
             {.root_mesh = root});
       }},
      // Deferred models.
      {"a meta tensor of no scope",
       [](const DeviceMesh&) { materialize({at::ones({2}, at::kMeta)}); }},
      {"a scope that is open",
       [](const DeviceMesh&) {
         const DeferredInit scope;
         materialize({at::ones({2})});
       }},
      {"a tensor from outside a scope, written to since",
       [](const DeviceMesh&) {
         const auto outside = at::ones({2});
         const auto t = deferred([&] { return at::ones({2}) + outside; });
         outside.add_(1);
         materialize({t});
       }},
      {"a deferred tensor that is written by its values",
       [](const DeviceMesh&) {
         deferred([] {
           auto out = at::empty({0}, at::kLong);
           return at::nonzero_out(out, at::ones({2}));
         });
       }},
      {"a deferred operator that fails",
       [](const DeviceMesh&) {
         materialize({deferred([] {
           const auto t = at::ones({2});
           return t.index({at::arange(5, 6)});
         })});
       }},
      // Styles of PyTorch 2.0.
      {"an input without a mesh",
       [](const DeviceMesh&) {
         torch_2_0::make_input_replicate_1d(at::ones({2}));
       }},
      {"an undefined input",
       [](const DeviceMesh& mesh) {
         torch_2_0::make_input_shard_1d({}, mesh);
       }},
      {"an input on a mesh of two dimensions",
       [](const DeviceMesh&) {
         torch_2_0::make_input_shard_1d(
             at::ones({2}), init_device_mesh(at::kCPU, {1, 2}, {"dp", "tp"}));
       }},
      {"a plain output",
       [](const DeviceMesh& mesh) {
         torch_2_0::make_output_tensor(at::ones({2}), mesh);
       }},
      {"an output for a mesh of two dimensions",
       [](const DeviceMesh& mesh) {
         torch_2_0::make_output_shard_1d(
             rows(mesh), init_device_mesh(at::kCPU, {1, 2}, {"dp", "tp"}));
       }},
      {"a style of PyTorch 2.0 for a module that it cannot style",
       [](const DeviceMesh& mesh) {
         style_as_2_0(mesh, {{"bare", torch_2_0::ColwiseParallel()}});
       }},
      {"a module without a pair",
       [](const DeviceMesh& mesh) {
         style_as_2_0(mesh, {{"up", torch_2_0::PairwiseParallel()}});
       }},
      {"an attention whose inputs are sharded",
       [](const DeviceMesh& mesh) {
         torch::nn::MultiheadAttention attention(4, 2);
         torch_2_0::parallelize_module(
             *attention, mesh, torch_2_0::SequenceParallel());
       }},
      {"a name that is a pattern",
       [](const DeviceMesh& mesh) {
         style_as_2_0(mesh, {{"u*", torch_2_0::ColwiseParallel()}});
       }},
      {"a name without a style",
       [](const DeviceMesh& mesh) {
         style_as_2_0(mesh, {{"up", std::shared_ptr<const ParallelStyle>()}});
       }},
      {"a dimension that the mesh does not have",
       [](const DeviceMesh& mesh) {
         MlpImpl mlp;
         torch_2_0::parallelize_module(
             mlp, mesh, torch_2_0::PairwiseParallel(), 1);
       }},
      {"a plan on no mesh",
       [](const DeviceMesh&) {
         style_as_2_0(DeviceMesh(), {{"up", torch_2_0::ColwiseParallel()}});
       }},
      {"an embed_dim that num_heads does not divide",
       [](const DeviceMesh&) {
         torch_2_0::TensorParallelMultiheadAttention(10, 4);
       }},
      {"a tp_size of zero",
       [](const DeviceMesh&) {
         torch_2_0::TensorParallelMultiheadAttention(
             8, 4, torch_2_0::AttentionOptions{.tp_size = 0});
       }},
      {"attention to a matrix",
       [](const DeviceMesh&) {
         torch_2_0::TensorParallelMultiheadAttention attention(8, 4);
         attention(at::ones({2, 8}));
       }},
      {"self-attention of different tensors",
       [](const DeviceMesh&) {
         torch_2_0::TensorParallelMultiheadAttention attention(8, 4);
         const auto x = at::ones({1, 2, 8});
         attention(x, x.clone(), x);
       }},
      {"a copy between different numbers of heads",
       [](const DeviceMesh&) {
         torch_2_0::TensorParallelMultiheadAttention attention(8, 4);
         attention->copy(torch::nn::MultiheadAttention(8, 2));
       }},
      {"a copy of attention with unsupported options",
       [](const DeviceMesh&) {
         torch_2_0::TensorParallelMultiheadAttention attention(8, 4);
         attention->copy(torch::nn::MultiheadAttention(
             torch::nn::MultiheadAttentionOptions(8, 4).add_zero_attn(true)));
       }},
      {"a copy to a module that is parallel",
       [](const DeviceMesh& mesh) {
         torch_2_0::TensorParallelMultiheadAttention attention(8, 4);
         torch_2_0::parallelize_module(
             *attention, mesh, torch_2_0::PairwiseParallel());
         attention->copy(torch::nn::MultiheadAttention(8, 4));
       }},
      // Ranks.
      {"an all_to_all along one dimension",
       [](const DeviceMesh& mesh) {
         get_group(mesh).shard_dim_alltoall(at::ones({2, 2}), 1, -1);
       }},
      {"an output that cannot take the result",
       [](const DeviceMesh& mesh) {
         get_group(mesh).all_reduce_async(
             at::ones({3, 2}), ReduceOp::kSum, at::ones({2, 3}).t());
       }},
      {"shards that do not add up to the gathered size",
       [](const DeviceMesh& mesh) {
         get_group(mesh).all_gather_async(at::ones({3}), 0, 7)->wait();
       }},
      {"sizes that are not one for each rank",
       [](const DeviceMesh& mesh) {
         get_group(mesh).all_gather(at::ones({3}), 0, {3, 3, 3});
       }},
      {"a shard of another size than in sizes",
       [](const DeviceMesh& mesh) {
         get_group(mesh).all_gather(at::ones({3}), 0, {2, 2});
       }},
      {"a shard of another shape than in shapes",
       [](const DeviceMesh& mesh) {
         const std::vector<Sizes> shapes = {{1}, {1}};
         get_group(mesh).all_to_all({at::ones({2}), at::ones({2})}, shapes);
       }},
      {"a partial sum in a checkpoint",
       [](const auto& mesh) { save_one(partial(mesh)); }},
      {"a checkpoint of a dtype that safetensors does not support",
       [](const auto&) { save_one(at::ones({3}, at::kComplexDouble)); }},
      {"a checkpoint of a tensor without values",
       [](const auto&) { save_one(at::ones({3}, at::device(at::kMeta))); }},
      {"ranks that save different tensors",
       [](const auto& mesh) {
         save_one(at::ones({3 + mesh.get_local_rank()}));
       }},
      {"a plain tensor in a checkpoint that differs between ranks",
       [](const auto& mesh) {
         save_one(at::full({3}, mesh.get_local_rank()));
       }},
      {"two tensors of one name in a checkpoint",
       [](const auto&) {
         torch::nn::Linear model(2, 2);
         StateDict more;
         more.insert("bias", at::ones({2}));
         save_checkpoint("run/1", {.model = model.get(), .tensors = &more});
       }},
      {"a checkpoint of a tensor with a reserved name",
       [](const auto&) {
         StateDict tensors;
         tensors.insert("__metadata__", at::ones({2}));
         save_checkpoint("run/1", {.tensors = &tensors});
       }},
      {"options that differ between parameters of one group",
       [](const auto&) {
         torch::nn::Linear model(2, 2);
         torch::optim::SGD sgd(model->parameters(), 0.1);
         auto state = get_optimizer_state_dict(*model, sgd);
         state["param_groups.bias.lr"].fill_(0.2);
         set_optimizer_state_dict(*model, sgd, state);
       }},
      {"a checkpoint of an optimizer alone",
       [](const auto&) {
         torch::optim::SGD optimizer({at::ones({2})}, 0.1);
         save_checkpoint("run/1", {.optimizer = &optimizer});
       }},
      {"a checkpoint that is not there",
       [](const auto&) { load_checkpoint("run/1", {}); }},
      {"a device in place of a file of weights",
       [](const auto&) { open_weights("/dev/null"); }},
      {"no checkpoint to keep", [](const auto&) { keep_last("run", 0); }},
      {"bytes that are not a random state",
       [](const auto&) { set_random_state(at::ones({3}, at::kByte)); }},
      {"a DTensor given to a collective",
       [](const DeviceMesh& mesh) {
         get_group(mesh).all_reduce(rows(mesh), ReduceOp::kSum);
       }},
      {"ranks that call different collectives",
       [](const DeviceMesh& mesh) {
         if (mesh.get_rank() == 0) {
           get_group(mesh).barrier();
         } else {
           get_group(mesh).all_reduce(at::ones({2}), ReduceOp::kSum);
         }
       }},
  };
  return all;
}

std::map<std::string, std::string> read_golden() {
  std::map<std::string, std::string> texts;
  std::ifstream in(golden_path());
  std::string line;
  std::string title;
  while (std::getline(in, line)) {
    if (line.rfind("== ", 0) == 0) {
      title = line.substr(3);
    } else if (!title.empty() && !line.empty()) {
      texts[title] = line;
    }
  }
  return texts;
}

std::string exception_in_one_rank() {
  return error_text([] {
    run_ranks(2, [](int64_t rank) {
      const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
      TORCH_CHECK(rank == 0, "the disk is full");
      get_group(mesh).barrier();
    });
  });
}

// Returns the error that rank 1 throws for rank 0's tensor.
std::string tensor_of_another_rank() {
  at::Tensor of_rank_0;
  std::string text;
  run_ranks(2, [&](int64_t rank) {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    const auto mine = rows(mesh);
    if (rank == 0) {
      of_rank_0 = mine;
    }
    get_group(mesh).barrier();
    if (rank == 1) {
      text = error_text([&] { of_rank_0 + 1; });
    }
    get_group(mesh).barrier();
  });
  return text;
}

std::string mesh_of_ended_ranks() {
  DeviceMesh kept;
  run_ranks(2, [&](int64_t rank) {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    if (rank == 0) {
      kept = mesh;
    }
  });
  return error_text([&] { rows(kept); });
}

std::string group_made_outside() {
  const auto alone = init_device_mesh(at::kCPU, {1}, {"tp"});
  std::string text;
  run_ranks(2, [&](int64_t rank) {
    if (rank == 1) {
      text = error_text([&] { get_group(alone).barrier(); });
    }
  });
  return text;
}

std::string ranks_that_failed() {
  Ranks ranks(2);
  error_text([&] { ranks.run([] { TORCH_CHECK(false, "stop"); }); });
  return error_text([&] { ranks.run([] {}); });
}

std::string ranks_that_are_running() {
  Ranks ranks(1);
  std::string text;
  ranks.run([&] {
    std::thread([&] { text = error_text([&] { ranks.run([] {}); }); }).join();
  });
  return text;
}

/// A world of two ranks, without communication.
class OtherWorld final : public World {
 public:
  explicit OtherWorld(int64_t rank) : World(rank, 2, "other world") {}

 protected:
  GroupBackendPtr make_backend(GroupMembers) override {
    return nullptr;
  }
};

void scope_of(std::shared_ptr<World> world) {
  const WorldScope scope(std::move(world));
}

std::string rank_of_two_worlds() {
  const WorldScope scope(std::make_shared<OtherWorld>(1));
  return error_text([] { scope_of(std::make_shared<OtherWorld>(0)); });
}

std::string world_that_has_ended() {
  const auto world = std::make_shared<OtherWorld>(1);
  world->end();
  return error_text([&] { scope_of(world); });
}

std::string joining(const ProcessGroupOptions& options) {
  return error_text([&] { init_process_group(options); });
}

std::string joining_twice() {
  init_process_group({.rank = 0, .world_size = 1});
  const auto text = joining({});
  destroy_process_group();
  return text;
}

std::string joining_with(const char* variable, const char* value) {
  setenv(variable, value, 1);
  const auto text = joining({});
  unsetenv(variable);
  return text;
}

std::string rank_that_has_come() {
  auto store = c10::make_intrusive<c10d::HashStore>();
  for (int session = 0; session < 100; ++session) {
    store->add(c10::str("dtensor/0/", session, "/seat/0"), 1);
  }
  return joining({.rank = 0, .world_size = 2, .store = store});
}

// Returns the error for a rank of another job that has left its greeting in the
// store.
std::string rank_of_another_job() {
  const std::string greeting = c10::str(
      "dtensor ",
      DTENSOR_VERSION_MAJOR,
      ".",
      DTENSOR_VERSION_MINOR,
      ".",
      DTENSOR_VERSION_PATCH,
      "\njob 17\n");
  auto store = c10::make_intrusive<c10d::HashStore>();
  for (int session = 0; session < 100; ++session) {
    store->set(
        c10::str("dtensor/0/", session, "/rank/1"),
        std::vector<uint8_t>(greeting.begin(), greeting.end()));
  }
  return joining({.rank = 0, .world_size = 2, .store = store});
}

// Errors of ranks that are processes.
void provoke_processes(std::map<std::string, std::string>& texts) {
  texts["a backend that does not exist"] =
      joining({.backend = "smoke", .rank = 0, .world_size = 1});
  texts["a device with two backends"] =
      joining({.backend = "cpu:gloo,cpu:shm", .rank = 0, .world_size = 1});
  texts["a backend's name that is taken"] =
      error_text([] { register_backend("gloo", nullptr); });
  texts["a process that is already a rank"] = joining_twice();
  texts["a rank outside of its world"] = joining({.rank = 2, .world_size = 2});
  texts["an init_method that does not exist"] =
      joining({.init_method = "udp://oak:1", .rank = 0, .world_size = 2});
  texts["RANK without WORLD_SIZE"] = joining_with("RANK", "1");
  texts["WORLD_SIZE without RANK"] = joining_with("WORLD_SIZE", "2");
  texts["a launcher's variable out of range"] =
      joining_with("DTENSOR_RANKS_PER_PROCESS", "1000000000");
  texts["a rank of another job"] = rank_of_another_job();
  texts["a rank that is already registered"] = rank_that_has_come();
  texts["an address without a port"] =
      joining({.init_method = "tcp://oak:99999", .rank = 0, .world_size = 2});
  texts["a rendezvous file in a folder that does not exist"] = joining(
      {.init_method = "file:///no/such/folder/file",
       .rank = 0,
       .world_size = 2});
  texts["a timeout that is not positive"] = joining(
      {.rank = 0, .world_size = 1, .timeout = std::chrono::milliseconds(-1)});
  texts["a world that is too large"] =
      joining({.rank = 0, .world_size = 100'000'000});
  texts["ranks without a rendezvous address"] =
      joining({.rank = 0, .world_size = 2});
}

std::string norm_on_other_ranks() {
  std::string text;
  run_ranks(2, [&](int64_t rank) {
    const auto mesh = make_device_mesh(at::kCPU, {1}, {0}, {"tp"});
    auto sharded = distribute_tensor(at::ones({2}), mesh, {Shard(0)});
    auto plain = at::ones({2});
    sharded.mutable_grad() = sharded.clone();
    plain.mutable_grad() = plain.clone();
    if (rank == 1) {
      text = error_text([&] { clip_grad_norm_({plain, sharded}, 1); });
    }
  });
  return text;
}

std::map<std::string, std::string> provoke_all() {
  std::map<std::string, std::string> texts;
  for (const auto& [title, provoke] : provocations()) {
    texts[title] = on_ranks(provoke);
  }
  texts["a DTensor of another rank"] = tensor_of_another_rank();
  texts["a group made outside of ranks"] = group_made_outside();
  texts["a mesh whose ranks have ended"] = mesh_of_ended_ranks();
  texts["an exception in one rank"] = exception_in_one_rank();
  texts["run_ranks inside a rank"] =
      error_text([] { run_ranks(1, [] { run_ranks(2, [] {}); }); });
  texts["a norm of gradients on other ranks"] = norm_on_other_ranks();
  texts["no ranks"] = error_text([] { run_ranks(0, [] {}); });
  texts["too many ranks"] = error_text([] { run_ranks(1'000'000'000, [] {}); });
  texts["Ranks that failed before"] = ranks_that_failed();
  texts["Ranks that are running"] = ranks_that_are_running();
  texts["a thread that is already a rank"] = rank_of_two_worlds();
  texts["a world without that rank"] =
      error_text([] { scope_of(std::make_shared<OtherWorld>(2)); });
  texts["a world that has ended"] = world_that_has_ended();
  provoke_processes(texts);
  return texts;
}

TEST(Errors, MatchTheGoldenFile) {
  const auto mine = provoke_all();
  if (std::getenv("DTENSOR_UPDATE_GOLDEN") != nullptr) {
    std::ofstream out(golden_path());
    out << "Every message that bad input provokes, once. See "
           "tests/errors/errors_test.cpp.\n";
    for (const auto& [title, text] : mine) {
      out << "\n== " << title << "\n" << text << "\n";
    }
    return;
  }
  const auto golden = read_golden();
  for (const auto& [title, text] : mine) {
    const auto found = golden.find(title);
    EXPECT_EQ(text, found == golden.end() ? "(not in the file)" : found->second)
        << title;
  }
  for (const auto& [title, text] : golden) {
    EXPECT_TRUE(mine.count(title)) << "nothing provokes: " << title;
  }
}

// Every error has the form "[where] what is wrong. What to do."
TEST(Errors, HaveOneForm) {
  for (const auto& [title, text] : read_golden()) {
    const auto message = text.substr(text.find(": ") + 2);
    EXPECT_EQ(message.front(), '[') << title;
    EXPECT_EQ(message.find("INTERNAL ASSERT"), std::string::npos) << title;
    if (title != "an exception in one rank") {
      EXPECT_EQ(message.back(), '.') << title;
    }
    EXPECT_EQ(text.find('\n'), std::string::npos) << title;
  }
}

} // namespace TEST_SOURCE
} // namespace dtensor
