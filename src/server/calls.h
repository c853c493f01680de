// What clients may ask for, as plain structs, and how they are read from JSON. No sockets, no engine.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/sampler.h"
#include "server/fields.h"

namespace sinter::server {

// Limits on one request; what is above is refused with a 400.
struct CallLimits {
  int64_t max_choices = 16;  // n and best_of
  size_t max_stops = 16;
  size_t max_stop_bytes = 1024;  // of one stop text
  int64_t max_logprobs = 20;
  size_t max_prompts = 64;   // of one call of /v1/completions
  size_t max_inputs = 2048;  // of one call of /v1/embeddings
  size_t max_tools = 128;
  double max_seconds = 600;  // for one request
};

struct StructuredOutput {
  enum class Kind { none, json_object, schema, regex, grammar, choice } kind = Kind::none;
  std::string text;                  // schema (JSON), regex or grammar
  std::vector<std::string> choices;  // of kind choice
  std::string param;                 // the field it came from, for errors
};

// What every way of asking has in common.
struct GenerationCall {
  std::string model;
  engine::SamplingOptions sampling;
  bool has_seed = false;  // without one the service draws it
  std::vector<std::string> bad_words;
  std::optional<int64_t> max_tokens;
  int64_t min_tokens = 0;
  std::vector<std::string> stops;
  std::vector<int32_t> stop_ids;
  bool ignores_eos = false, includes_stop = false, skips_special = true;
  int32_t n = 1, best_of = 0;
  int32_t logprobs = -1;         // as engine::Request
  int32_t prompt_logprobs = -1;  // likewise
  bool streams = false, includes_usage = false;
  int32_t priority = 0;
  double max_seconds = 0;  // 0: the server's
  std::string cache_salt;
  StructuredOutput output;
};

struct CallPrompt {
  std::string text;
  std::vector<int32_t> ids;
  bool is_ids = false;
};

struct CompletionCall : GenerationCall {
  std::vector<CallPrompt> prompts;
  bool echoes = false;
};

struct ToolChoice {
  enum class Kind { none, automatic, required, named } kind = Kind::automatic;
  std::string name;
};

struct Tool {
  std::string name, parameters;  // the arguments' JSON schema
};

struct ChatCall : GenerationCall {
  std::shared_ptr<Json> messages;         // as templates expect them
  std::shared_ptr<Json> tools;            // null: none
  std::shared_ptr<Json> template_values;  // chat_template_kwargs; null: none
  std::vector<Tool> tool_list;
  ToolChoice tool_choice;
  bool allows_parallel_calls = true;
  bool continues_last = false;  // continue_final_message
  bool adds_prompt = true;      // add_generation_prompt
};

// Each throws ApiError naming the field.
// A text, a list of texts, or token ids, of the field `name`.
std::vector<CallPrompt> read_prompts(const Fields& fields, const std::string& name, size_t most);
CompletionCall read_completion_call(const Json& body, const CallLimits& limits);
ChatCall read_chat_call(const Json& body, const CallLimits& limits);
// Messages, tools and template values only: /apply-template and /tokenize.
ChatCall read_messages(const Json& body, const CallLimits& limits);
void read_sampling(const Fields& fields, const CallLimits& limits, GenerationCall& call);
void read_tools(const Fields& fields, const CallLimits& limits, ChatCall& call);
// Of another API's request: the fields that mean there what they mean in a chat, for a body that read_chat_call reads.
// `own` are those with a meaning of their own; one that is almost one of either is a slip.
Json shared_fields(const Fields& fields, const std::vector<std::string>& own);
// A message's content as one text: a text, or a list of parts of type text. Throws for images and the like.
std::string content_text(const Json& content, const std::string& param);

}  // namespace sinter::server
