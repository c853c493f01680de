// Structured output: grammars compiled before a request is admitted, kept for those that come again.
#include <nlohmann/json.hpp>

#include "engine/grammar/json_schema.h"
#include "server/service.h"

namespace sinter::server {

namespace grammar = engine::grammar;

const grammar::TokenBytes& Service::vocabulary() {
  if (!vocabulary_) {
    vocabulary_ = std::make_unique<grammar::TokenBytes>(grammar::make_vocabulary(*model_.tokenizer, stop_tokens_));
  }
  return *vocabulary_;
}

std::shared_ptr<grammar::CompiledGrammar> Service::grammar_for(const std::string& key, const std::string& param,
                                                               const std::function<grammar::Program()>& compile) {
  constexpr size_t kKept = 64;
  {
    std::lock_guard lock(grammar_mutex_);
    for (auto at = grammars_.begin(); at != grammars_.end(); ++at) {
      if (at->first != key) continue;
      if (at->second->is_worn()) {
        grammars_.erase(at);
        break;
      }
      grammars_.splice(grammars_.begin(), grammars_, at);
      return at->second;
    }
    vocabulary();
  }
  std::shared_ptr<grammar::CompiledGrammar> made;
  try {
    made = std::make_shared<grammar::CompiledGrammar>(compile(), *vocabulary_);
  } catch (const base::Error& e) {
    throw ApiError(400, fmt::format("'{}' cannot be honoured: {}", param, e.what()), param,
                   "invalid_structured_output");
  }
  std::lock_guard lock(grammar_mutex_);
  grammars_.emplace_front(key, made);
  if (grammars_.size() > kKept) grammars_.pop_back();
  return made;
}

std::shared_ptr<engine::TokenMask> Service::make_mask(const StructuredOutput& output) {
  using Kind = StructuredOutput::Kind;
  if (output.kind == Kind::none) return nullptr;
  std::string key = std::to_string(static_cast<int>(output.kind)) + output.text;
  for (const std::string& choice : output.choices) key += '\0' + choice;
  auto compile = [&]() -> grammar::Program {
    const grammar::GrammarLimits limits;
    switch (output.kind) {
      case Kind::json_object:
        return grammar::compile_schema(R"({"type":"object"})", limits);
      case Kind::schema:
        return grammar::compile_schema(output.text, limits);
      case Kind::regex:
        return grammar::compile_regex_program(output.text, limits);
      case Kind::grammar:
        return grammar::compile_gbnf(output.text, limits);
      default:
        return grammar::compile_choice(output.choices, limits);
    }
  };
  return std::make_shared<grammar::GrammarMask>(grammar_for(key, output.param, compile));
}

// A call that must come is written in the model's own form.
std::shared_ptr<engine::TokenMask> Service::make_tool_mask(const ChatCall& call, ToolFormat format) {
  grammar::CallForm form;
  form.arguments_key = format == ToolFormat::llama3 ? "parameters" : "arguments";
  if (format == ToolFormat::hermes) {
    form.open = "<tool_call>\n";
    form.close = "\n</tool_call>";
    form.between = "\n";
  } else if (format == ToolFormat::mistral) {
    form.open_all = "[TOOL_CALLS][";
    form.between = ", ";
    form.close_all = "]";
  } else {
    form.between = "; ";
  }
  form.max_calls = call.allows_parallel_calls ? 8 : 1;
  // A marker that is one special token stands for itself.
  auto mark = [&](std::string& text) {
    for (int32_t id : marker_tokens_) {
      const std::string marker = model_.tokenizer->token_text(id);
      if (const size_t at = text.find(marker); at != std::string::npos)
        text.insert(at, 1, static_cast<char>(grammar::kSpecialMark));
    }
  };
  mark(form.open);
  mark(form.close);
  mark(form.open_all);
  std::string key = "tools " + std::string(tool_format_name(format)) + std::to_string(form.max_calls);
  std::vector<grammar::CallSchema> calls;
  for (const Tool& tool : call.tool_list) {
    if (call.tool_choice.kind == ToolChoice::Kind::named && tool.name != call.tool_choice.name) continue;
    calls.push_back({tool.name, tool.parameters});
    key += '\0' + tool.name + '\0' + tool.parameters;
  }
  auto compile = [&] { return grammar::compile_calls(calls, form, grammar::GrammarLimits{}); };
  return std::make_shared<grammar::GrammarMask>(grammar_for(key, "tools", compile));
}

}  // namespace sinter::server
