// SPDX-License-Identifier: BSD-3-Clause
// Serves a model: ranks that live between requests, a thread that batches
// waiting requests, and recovery from a failed request. Then serves on ranks
// that are processes, with rank 0 as the leader.
#include "../check.h"
#include "../state_file.h"
#include "../tutorial/model.h"

#include <dtensor/dtensor.h>
#include <torch/torch.h>

#include <condition_variable>
#include <deque>
#include <filesystem>
#include <future>
#include <iostream>
#include <mutex>
#include <optional>
#include <thread>

#include <unistd.h>

using namespace dtensor;
using tutorial::kVocab;
using tutorial::Model;

// [plan]
const ParallelizePlan kPlan = {
    {"*.up", ColwiseParallel()},
    {"*.down", RowwiseParallel()},
    {"head", ColwiseParallel({.output_layouts = Replicate()})},
};
// [/plan]

// [model]
// Ranks that live as long as the object, with a model on each.
class ShardedModel {
 public:
  ShardedModel(int64_t ranks, const StateDict& weights)
      : ranks_(ranks),
        models_(static_cast<size_t>(ranks), nullptr) {
    std::mutex one_at_a_time; // limits memory to one full model and the shards
    ranks_.run([&](int64_t rank) {
      const auto mesh = init_device_mesh(torch::kCPU, {ranks_.size()}, {"tp"});
      const std::lock_guard<std::mutex> lock(one_at_a_time);
      Model model;
      model->eval();
      set_model_state_dict(*model, weights);
      parallelize_module(*model, mesh, kPlan, {.src_data_rank = std::nullopt});
      models_[static_cast<size_t>(rank)] = model;
    });
  }

  torch::Tensor operator()(const torch::Tensor& ids) { // (B, T) -> (B, T, V)
    const torch::NoGradGuard no_grad; // also applies to the ranks
    torch::Tensor logits;
    ranks_.run([&](int64_t rank) {
      const auto mine = models_[static_cast<size_t>(rank)](ids);
      if (rank == 0) {
        logits = mine; // plain and replicated, by the head's style
      }
    });
    return logits;
  }

 private:
  Ranks ranks_;
  std::vector<Model> models_; // destroyed before the ranks end
};
// [/model]

// [check]
// Refuses ids that would fail on the ranks, because an error there ends the
// ranks.
void check_ids(const torch::Tensor& ids) {
  TORCH_CHECK_VALUE(
      ids.dim() == 1 && ids.numel() > 0 && ids.scalar_type() == torch::kLong,
      "expected a nonempty 1-D int64 tensor of ids");
  TORCH_CHECK_VALUE(
      ids.min().item<int64_t>() >= 0 && ids.max().item<int64_t>() < kVocab,
      "expected ids from 0 to below ",
      kVocab);
}
// [/check]

// [server]
class Server {
 public:
  using Check = std::function<void(const torch::Tensor&)>;

  Server(int64_t ranks, StateDict weights, Check check = check_ids)
      : ranks_(ranks),
        weights_(std::move(weights)),
        check_(std::move(check)),
        leader_([this] { lead(); }) {}

  ~Server() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ended_ = true;
    }
    changed_.notify_one();
    leader_.join();
  }

  // Returns the logits (T, V) of ids (T). Thread-safe.
  std::future<torch::Tensor> ask(const torch::Tensor& ids) {
    check_(ids);
    Request request{ids, {}};
    auto answer = request.answer.get_future();
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      waiting_.push_back(std::move(request));
    }
    changed_.notify_one();
    return answer;
  }

 private:
  struct Request {
    torch::Tensor ids;
    std::promise<torch::Tensor> answer;
  };
  static constexpr size_t kMost = 16; // requests per batch

  // Returns all waiting requests that fit in a batch; empty when the server
  // ends.
  std::vector<Request> take() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return ended_ || !waiting_.empty(); });
    std::vector<Request> batch;
    while (!waiting_.empty() && batch.size() < kMost) {
      batch.push_back(std::move(waiting_.front()));
      waiting_.pop_front();
    }
    return batch;
  }

  void lead() {
    std::optional<ShardedModel> model;
    for (auto batch = take(); !batch.empty(); batch = take()) {
      try {
        if (!model) {
          model.emplace(ranks_, weights_);
        }
        answer(*model, batch);
      } catch (...) {
        for (auto& request : batch) {
          request.answer.set_exception(std::current_exception());
        }
        model.reset(); // its ranks may have ended; made again on demand
      }
    }
  }

  static void answer(ShardedModel& model, std::vector<Request>& batch) {
    std::vector<torch::Tensor> ids; // later the answers
    for (const auto& request : batch) {
      ids.push_back(request.ids);
    }
    const auto logits = model(torch::nn::utils::rnn::pad_sequence(ids, true));
    for (size_t i = 0; i < batch.size(); ++i) {
      ids[i] = logits[static_cast<int64_t>(i)].slice(0, 0, ids[i].size(0));
    }
    for (size_t i = 0; i < batch.size(); ++i) {
      batch[i].answer.set_value(ids[i].clone());
    }
  }

  int64_t ranks_;
  StateDict weights_;
  Check check_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Request> waiting_;
  bool ended_ = false;
  std::thread leader_; // declared last because it uses all members above
};
// [/server]

// [follow]
// Returns the leader's batch on every rank; undefined when there are no more.
// `take` is called on rank 0 only.
torch::Tensor batch_of_leader(
    Group& group,
    const std::function<torch::Tensor()>& take) {
  const bool leads = group.rank() == 0;
  const auto batch = leads ? take() : torch::Tensor();
  auto sizes = torch::zeros({2}, torch::kLong);
  if (leads && batch.defined()) {
    sizes = torch::tensor(batch.sizes().vec());
  }
  sizes = group.broadcast(sizes, 0);
  const auto rows = sizes[0].item<int64_t>();
  const auto length = sizes[1].item<int64_t>();
  if (rows == 0) {
    return {};
  }
  return group.broadcast(
      leads ? batch : torch::empty({rows, length}, torch::kLong), 0);
}

void serve_as_rank(
    const StateDict& weights,
    const std::function<torch::Tensor()>& take,
    const std::function<void(const torch::Tensor&)>& reply) {
  const auto mesh = init_device_mesh(torch::kCPU, {get_world_size()}, {"tp"});
  // Ranks wait here until a request comes.
  const auto requests =
      new_group(mesh.ranks(), "requests", {.timeout = std::chrono::hours(24)});
  Model model;
  model->eval();
  set_model_state_dict(*model, weights, {.broadcast_from_rank0 = true});
  parallelize_module(*model, mesh, kPlan, {.src_data_rank = std::nullopt});

  const torch::NoGradGuard no_grad;
  while (true) {
    const auto ids = batch_of_leader(*requests, take);
    if (!ids.defined()) {
      return;
    }
    const auto logits = model(ids);
    if (get_rank() == 0) {
      reply(logits);
    }
  }
}
// [/follow]

void serve_on_threads(int64_t ranks, Model& plain, const StateDict& weights) {
  std::vector<std::string> errors;
  const auto note = [&](const auto& ask) {
    try {
      ask();
    } catch (const c10::Error& error) {
      errors.emplace_back(error.what_without_backtrace());
    }
  };
  std::vector<torch::Tensor> questions;
  for (int64_t i = 0; i < 40; ++i) {
    questions.push_back(torch::randint(kVocab, {1 + i % 7}, torch::kLong));
  }
  // [ask]
  Server server(ranks, weights);
  std::vector<std::future<torch::Tensor>> answers;
  for (const auto& question : questions) {
    answers.push_back(server.ask(question));
  }
  for (size_t i = 0; i < answers.size(); ++i) {
    CHECK_THAT(torch::allclose(
        answers[i].get(), plain(questions[i]), /*rtol=*/1e-4, /*atol=*/1e-5));
  }
  // [/ask]
  note([&] { server.ask(torch::tensor({kVocab})); });

  // [fail]
  Server careless(ranks, weights, [](const torch::Tensor&) {});
  note([&] { careless.ask(torch::tensor({kVocab})).get(); });
  // The ranks have ended; the next request starts new ones.
  const auto question = torch::arange(5);
  CHECK_THAT(torch::allclose(
      careless.ask(question).get(), plain(question), 1e-4, 1e-5));
  // [/fail]
  CHECK_THAT(errors.size() == 2);
  for (const auto& error : errors) {
    std::cout << error.substr(0, error.find('\n')) << "\n";
  }
}

void serve_in_a_world(int64_t ranks, Model& plain, const StateDict& weights) {
  // [world]
  std::deque<torch::Tensor> questions = {
      torch::randint(kVocab, {2, 5}), torch::randint(kVocab, {1, 9})};
  std::vector<torch::Tensor> answers;
  run_world(ranks, [&] {
    serve_as_rank(
        get_rank() == 0 ? weights : StateDict(),
        [&] { // waits for a request, in a server
          const size_t next = answers.size();
          return next < questions.size() ? questions[next] : torch::Tensor();
        },
        [&](const torch::Tensor& logits) { answers.push_back(logits); });
  });
  // [/world]
  for (size_t i = 0; i < answers.size(); ++i) {
    CHECK_THAT(torch::allclose(answers[i], plain(questions[i]), 1e-4, 1e-5));
  }
}

int main(int argc, char** argv) {
  const auto ranks = tutorial::ranks_of(argc, argv);
  torch::manual_seed(0);
  const torch::NoGradGuard no_grad;
  Model plain;
  // [load]
  const auto file = std::filesystem::temp_directory_path() /
      ("served-" + std::to_string(getpid()) + ".pt");
  save_state(file, get_model_state_dict(*plain)); // written by training
  const StateDict weights = load_state(file); // plain full tensors, read once
  // [/load]
  std::filesystem::remove(file);
  if (!launched()) {
    serve_on_threads(ranks, plain, weights);
  }
  serve_in_a_world(ranks, plain, weights);
  std::cout << "served by " << ranks << " ranks\n";
}
