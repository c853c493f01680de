// /v1/embeddings: the last token's hidden state after the last norm, scaled to length 1.
#include <cmath>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/base64.h"
#include "server/service.h"

namespace sinter::server {
namespace {

std::vector<float> to_unit_length(std::vector<float> state) {
  double sum = 0;
  for (float x : state) sum += static_cast<double>(x) * x;
  const auto scale = static_cast<float>(sum > 0 ? 1 / std::sqrt(sum) : 0);
  for (float& x : state) x *= scale;
  return state;
}

// One call: so many of its texts under way that others find a place too, the reply when the last has ended.
class EmbeddingJob : public std::enable_shared_from_this<EmbeddingJob> {
 public:
  EmbeddingJob(std::shared_ptr<Reply> reply, std::string model, bool as_base64, GenerationContext context)
      : reply_(std::move(reply)), model_(std::move(model)), as_base64_(as_base64), context_(std::move(context)) {}

  // At most `most_at_once` of them. Throws ApiError where not even one is taken.
  void start(std::vector<engine::Request> requests, int64_t most_at_once) {
    {
      const std::lock_guard lock(mutex_);
      outputs_.resize(requests.size());
      requests_ = std::move(requests);
      most_at_once_ = most_at_once;
      submit_more();
      if (error_) throw *error_;
    }
    reply_->on_close([self = shared_from_this()] { self->cancel(); });
  }

 private:
  // With the lock. A queue that is full is tried again when one of these has ended.
  void submit_more() {
    while (!error_ && next_ < requests_.size() && num_under_way_ < most_at_once_) {
      try {
        engine::Request request = requests_[next_];
        request.on_output = [self = shared_from_this(), i = next_](engine::Output&& output) {
          self->take(i, std::move(output));
        };
        ids_.push_back(submit_request(*context_.loop, std::move(request)));
        requests_[next_] = {};
        ++next_;
        ++num_under_way_;
      } catch (const ApiError& e) {
        if (e.status == 429 && num_under_way_ > 0) return;
        error_ = e;
        for (engine::RequestId id : ids_) context_.loop->cancel(id);
      }
    }
  }

  void cancel() {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = ApiError(503, "the request was cancelled");
    for (engine::RequestId id : ids_) context_.loop->cancel(id);
  }

  // On the engine's thread.
  void take(size_t index, engine::Output&& output) {
    const std::lock_guard lock(mutex_);
    if (output.finish == engine::FinishReason::none) return;
    outputs_[index] = std::move(output);
    --num_under_way_;
    submit_more();
    if (num_under_way_ == 0) context_.post([self = shared_from_this()] { self->answer(); });
  }

  // All have ended.
  void answer() {
    std::optional<ApiError> error;
    {
      const std::lock_guard lock(mutex_);
      error = error_;
    }
    if (error) {
      reply_->send(error->status, "application/json", openai_error_body(*error));
      return;
    }
    Json body{{"object", "list"}, {"data", Json::array()}, {"model", model_}};
    int64_t tokens = 0;
    for (size_t i = 0; i < outputs_.size(); ++i) {
      engine::Output& out = outputs_[i];
      if (out.finish != engine::FinishReason::stop) {
        const bool is_late = out.finish == engine::FinishReason::deadline;
        const ApiError error(is_late ? 504 : 503, is_late ? "the request took longer than its time limit"
                                                          : "the request was cancelled: " + out.error);
        reply_->send(error.status, "application/json", openai_error_body(error));
        return;
      }
      tokens += out.usage.prompt_tokens;
      const std::vector<float> state = to_unit_length(std::move(out.embedding));
      Json entry{{"object", "embedding"}, {"index", i}};
      if (as_base64_) {
        entry["embedding"] =
            base::encode_base64({reinterpret_cast<const char*>(state.data()), state.size() * sizeof(float)});
      } else {
        entry["embedding"] = state;
      }
      body["data"].push_back(std::move(entry));
    }
    body["usage"] = {{"prompt_tokens", tokens}, {"total_tokens", tokens}};
    reply_->send(200, "application/json", dump_json(body));
  }

  std::shared_ptr<Reply> reply_;
  std::string model_;
  bool as_base64_;
  GenerationContext context_;
  std::mutex mutex_;  // of what follows
  std::vector<engine::Request> requests_;
  std::vector<engine::RequestId> ids_;
  std::vector<engine::Output> outputs_;
  std::optional<ApiError> error_;
  size_t next_ = 0;
  int64_t most_at_once_ = 1, num_under_way_ = 0;
};

}  // namespace

void Service::embeddings(const HttpRequest& request, std::shared_ptr<Reply>& reply) {
  const Json body = parse_body(request.body);
  const Fields fields(body);
  fields.check_slips({"input", "model", "encoding_format", "dimensions", "user", "timeout"});
  check_model(fields.text("model").value_or(""));
  const std::string format = fields.text("encoding_format").value_or("float");
  if (format != "float" && format != "base64")
    refuse("encoding_format", "'encoding_format' is '{}'; expected float or base64", format.substr(0, 40));
  const int64_t width = model_.spec->hidden;
  if (fields.integer("dimensions", 1, 1 << 24).value_or(width) != width)
    refuse("dimensions", "'dimensions' cannot be chosen: this model's embeddings have {}", width);
  GenerationCall call;
  call.max_tokens = 1;
  call.max_seconds = fields.number("timeout", 0.001, options_.limits.max_seconds).value_or(0);
  std::vector<engine::Request> requests;
  for (const CallPrompt& prompt : read_prompts(fields, "input", options_.limits.max_inputs)) {
    requests.push_back(make_request(call, encode(prompt, "input"), 1));
    requests.back().embeds = true;
  }
  auto job = std::make_shared<EmbeddingJob>(reply, model_.name, format == "base64", context());
  job->start(std::move(requests), model_.engine->options().max_running);
}

}  // namespace sinter::server
