// Chat templates: what turns a list of messages into the text a model was trained on.
//
// A template is written in the Jinja language and comes with the model, in chat_template.jinja or
// tokenizer_config.json. It is rendered by our own interpreter with the settings of Hugging Face transformers
// (trim_blocks, lstrip_blocks, its tojson, raise_exception, strftime_now, {% generation %}, {% break %}), so the text
// is the same byte for byte. Templates are foreign input: whatever they hold, rendering ends with text or with an
// error, within bounded time and memory.
//
//   ChatTemplate chat = ChatTemplate::load(folder);
//   ChatInput input{.messages = jinja::from_json(messages), .add_generation_prompt = true};
//   std::string prompt = chat.render(input);
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/jinja/interpreter.h"

namespace sinter::tokenizer {

using jinja::TemplateError;

struct ChatInput {
  jinja::Value
      messages;  // list of {role, content, ...}; read from ordered_json, since templates print the keys in order
  jinja::Value tools = jinja::Value::none();  // list of JSON schemas
  jinja::Value documents = jinja::Value::none();
  bool add_generation_prompt = false;
  std::vector<std::pair<std::string, jinja::Value>>
      extra;                  // more variables, such as enable_thinking; they win over ours
  std::string template_name;  // "" takes "tool_use" when there are tools and such a template, else "default"
  int64_t now = 0;            // seconds since 1970 for strftime_now; 0 is the present
};

class ChatTemplate {
 public:
  // One template; `name` (a path, a model) stands in its errors. Throws TemplateError when it does not parse.
  ChatTemplate(std::string_view source, std::string name, std::map<std::string, std::string> special_tokens = {});

  // From a model folder, like transformers: chat_template.jinja (and additional_chat_templates/*.jinja), else
  // chat_template.json, else "chat_template" in tokenizer_config.json (a text or a list of named ones). The special
  // tokens (bos_token, eos_token, ...) come from tokenizer_config.json and special_tokens_map.json. Throws Error when
  // there is none. From a .gguf: its keys tokenizer.chat_template and tokenizer.chat_template.NAME.
  static ChatTemplate load(const std::string& folder);
  static bool exists(const std::string& folder);

  // The text to tokenize (it holds the special tokens already). Throws TemplateError: wrong template, or what it raises
  // itself about the messages. Safe to call from several threads.
  std::string render(const ChatInput& input) const { return render_marked(input).text; }
  // Also tells which bytes stand in {% generation %} blocks.
  jinja::Rendered render_marked(const ChatInput& input) const;

  std::vector<std::string> names() const;
  // The template's text. Throws Error naming those there are when `name` is unknown.
  const std::string& source(const std::string& name = "default") const;
  // "bos_token" to "<s>" and so on.
  const std::map<std::string, std::string>& special_tokens() const { return special_tokens_; }

  jinja::Limits limits;

 private:
  struct Named {
    std::string source, title;
    std::shared_ptr<const jinja::Statements> body;
  };
  ChatTemplate() = default;
  void add(const std::string& name, std::string_view source, std::string title);
  const Named& find(const std::string& name) const;

  std::map<std::string, Named> templates_;
  std::map<std::string, std::string> special_tokens_;
};

}  // namespace sinter::tokenizer
