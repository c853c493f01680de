// Records to tokens: chats by the model's template with a mask over what the assistant says, texts by segments.
//
// A conversation is rendered once and encoded once, with the bytes that every token stands for. Which bytes the
// assistant says is told by the template's {% generation %} blocks, or else by rendering prefixes: turn i is what
// render(messages[:i + 1]) adds to render(messages[:i], generation prompt). A template that does not keep prefixes is
// refused for conversations it changes; there is no guessing. A token belongs to a turn when it shares a byte with it.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "tokenizer/chat_template.h"
#include "tokenizer/traced.h"
#include "tune/data/record.h"
#include "tune/data/sample.h"

namespace sinter::tune {

enum class TrainOn { assistant, last, all };  // assistant turns, the last of them, every token
enum class MaskBy { automatic, generation, prefixes };

struct RenderOptions {
  TrainOn train_on = TrainOn::assistant;
  MaskBy mask_by = MaskBy::automatic;  // generation blocks where the template has them
  bool markers_are_text = true;        // special tokens written inside messages are only text
  bool add_eos = true;                 // behind a completion that is text
  std::vector<std::pair<std::string, tokenizer::jinja::Value>> template_arguments;  // such as enable_thinking
};

// A conversation as its template writes it.
struct RenderedChat {
  std::string text;
  std::vector<size_t> plain_at;                // places of special tokens' text inside messages (tokenizer/traced.h)
  std::vector<tokenizer::ByteSpan> assistant;  // bytes of each assistant turn, in order
  std::vector<size_t> assistant_messages;      // which message each of them is
};

class Renderer {
 public:
  // Both must outlive it; `chat` may be null: then rows of messages are refused with what to do about it.
  Renderer(const tokenizer::Tokenizer& tokenizer, const tokenizer::ChatTemplate* chat, RenderOptions options);

  // Each throws base::Error naming the record's origin. A sample without supervised tokens is an error too.
  Sample sample(const Record& record) const;
  PreferencePair pair(const Record& record) const;
  LabelledSample labelled(const Record& record) const;
  Prompt prompt(const Record& record) const;

  // ---- parts, for tests and for other programs' answers ----
  // `needs_turns` asks for the assistant's bytes.
  RenderedChat render(const std::vector<Message>& messages, const tokenizer::jinja::Value& tools,
                      bool add_generation_prompt, bool needs_turns) const;
  tokenizer::TracedText encode(const RenderedChat& chat) const { return encoder_.encode(chat.text, chat.plain_at); }
  // Prompt and what follows it. `prompt_tokens` receives how many tokens are the prompt's.
  TokenSegments prompt_and_completion(const Record& record, const Part& prompt, const Part& completion,
                                      int64_t& prompt_tokens) const;

 private:
  TokenSegments conversation(const Record& record) const;
  TokenSegments text_segments(const std::string& prompt, const std::string& completion, int64_t& prompt_tokens) const;
  void find_turns(const std::vector<Message>& messages, const tokenizer::jinja::Value& tools, RenderedChat& chat) const;
  void check_ends_open(const std::vector<Message>& messages, const tokenizer::jinja::Value& tools, const std::string& p,
                       const std::string& q) const;
  std::string render_plain(const std::vector<Message>& messages, const tokenizer::jinja::Value& tools,
                           bool add_generation_prompt, std::vector<size_t>* plain_at,
                           std::vector<std::pair<size_t, size_t>>* generated) const;
  bool uses_chat(const Record& record) const { return chat_ && record.is_chat; }

  const tokenizer::Tokenizer& tokenizer_;
  const tokenizer::ChatTemplate* chat_;
  RenderOptions options_;
  tokenizer::TracedEncoder encoder_;
  bool has_generation_ = false;
};

// Bytes to tokens: [first, past) of the tokens that share a byte with the span.
struct TokenSpan {
  int64_t first = 0, past = 0;
  bool operator==(const TokenSpan&) const = default;
};
TokenSpan tokens_of(const tokenizer::TracedText& text, tokenizer::ByteSpan bytes);

}  // namespace sinter::tune
