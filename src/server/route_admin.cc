// Routes behind the admin key: the prefix cache, the weights.
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "base/threads.h"
#include "server/service.h"

namespace sinter::server {

void Service::reset_prefix_cache(const HttpRequest&, std::shared_ptr<Reply>& reply) {
  model_.engine->weights_changed();
  reply->send(200, "application/json", dump_json({{"status", "ok"}}));
}

// Weights are read on a thread of their own: HTTP threads have others to answer.
void Service::reload_weights(const HttpRequest& request, std::shared_ptr<Reply>& reply) {
  const Json body = request.body.empty() ? Json::object() : parse_body(request.body);
  const Fields fields(body);
  fields.check_known({"folder"});
  const std::string folder = fields.text("folder").value_or("");
  if (!model_.replace_weights) throw ApiError(501, "this server cannot replace its model's weights");
  const std::lock_guard lock(reload_mutex_);
  if (is_draining_) throw ApiError(503, "the server shuts down");
  if (is_reloading_) throw ApiError(409, "weights are being read already; ask again when they are there");
  if (reload_.joinable()) reload_.join();  // it has ended
  is_reloading_ = true;
  reload_ = std::thread([this, folder, reply] {
    base::leave_pool();
    const auto start = engine::Clock::now();
    std::optional<ApiError> error;
    try {
      model_.replace_weights(folder);
    } catch (const base::Error& e) {
      error.emplace(400, e.what(), "folder");
    } catch (const std::exception& e) {
      base::log_error("reading weights: {}", e.what());
      error.emplace(500, "internal error");
    }
    const double seconds = std::chrono::duration<double>(engine::Clock::now() - start).count();
    {
      const std::lock_guard done(reload_mutex_);
      is_reloading_ = false;
    }
    if (error) {
      reply->send(error->status, "application/json", openai_error_body(*error));
    } else {
      base::log_info("weights read again in {:.1f} s", seconds);
      reply->send(200, "application/json", dump_json({{"status", "ok"}, {"seconds", seconds}}));
    }
  });
}

void Service::stop() {
  std::thread last;
  {
    const std::lock_guard lock(reload_mutex_);
    is_draining_ = true;
    last.swap(reload_);
  }
  if (last.joinable()) last.join();
}

}  // namespace sinter::server
