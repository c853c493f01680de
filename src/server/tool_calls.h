// Tool calls and reasoning in a model's output, found as the text comes. Works character by character: how the text is
// cut into pieces makes no difference.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace sinter::server {

enum class ToolFormat {
  none,
  hermes,   // Qwen, Hermes: <tool_call>{"name": ..., "arguments": {...}}</tool_call>
  llama3,   // {"name": ..., "parameters": {...}}, <|python_tag|> before it or not, ';' between several
  mistral,  // [TOOL_CALLS][{"name": ..., "arguments": {...}}, ...] or [TOOL_CALLS]name{...} / name[ARGS]{...}
};
const char* tool_format_name(ToolFormat format);
// By what the model's chat template writes; none where it says nothing of tools.
ToolFormat tool_format_of(std::string_view chat_template);
// Whether the template thinks aloud between <think> and </think>.
bool has_reasoning(std::string_view chat_template);

struct OutputEvent {
  enum class Kind { content, reasoning, call_begin, call_arguments, call_end } kind;
  std::string text;  // the function's name for call_begin; a piece of JSON for call_arguments
  int call = -1;     // number of the call, from 0
};

// What one reads: text, reasoning, calls.
class OutputParser {
 public:
  struct Options {
    ToolFormat tools = ToolFormat::none;
    bool reasons = false;            // look for <think> at the beginning
    bool begins_in_thought = false;  // the prompt ended with <think>
  };
  explicit OutputParser(const Options& options);
  std::vector<OutputEvent> push(std::string_view text);
  // At the end of the output: what was held back.
  std::vector<OutputEvent> finish();
  int num_calls() const { return num_calls_; }

 private:
  enum class Mode { start, thought, after_thought, content, call, name, between };
  void take(char c);
  void take_marked(char c, const std::vector<std::string>& markers);
  void on_marker(size_t marker);
  void take_call(char c);
  void take_value(char c);
  void take_name(char c);
  void take_between(char c);
  void begin_call();
  void end_call();
  void abandon_call();
  void emit(OutputEvent::Kind kind, std::string_view text, int call = -1);
  void set_arguments_done();

  Options options_;
  Mode mode_;
  std::vector<OutputEvent> events_;
  std::string held_;  // may be the beginning of a marker
  bool has_content_ = false;
  int num_calls_ = 0;

  // The call that is read now.
  enum class Place { before, key_or_end, key, colon, value, after_value };
  Place place_ = Place::before;
  std::string raw_;      // everything since the call's marker, to give back when it is no call
  std::string opening_;  // the marker
  std::string key_, value_, arguments_;
  std::string name_;
  int depth_ = 0;
  bool is_text_ = false, is_escaped_ = false;
  bool is_named_ = false, is_list_ = false, streams_value_ = false;
  bool is_bare_ = false;  // arguments without an object around them
};

}  // namespace sinter::server
