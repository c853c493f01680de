#include "server/tool_calls.h"

#include <nlohmann/json.hpp>

namespace sinter::server {
namespace {

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

const std::string kThink = "<think>", kEndThink = "</think>";

std::string opening_of(ToolFormat format) {
  switch (format) {
    case ToolFormat::hermes:
      return "<tool_call>";
    case ToolFormat::llama3:
      return "<|python_tag|>";
    case ToolFormat::mistral:
      return "[TOOL_CALLS]";
    case ToolFormat::none:
      break;
  }
  return "";
}

}  // namespace

const char* tool_format_name(ToolFormat format) {
  static constexpr const char* kNames[] = {"none", "hermes", "llama3", "mistral"};
  return kNames[static_cast<int>(format)];
}

ToolFormat tool_format_of(std::string_view source) {
  if (source.find("tools") == std::string_view::npos) return ToolFormat::none;
  if (source.find("[TOOL_CALLS]") != std::string_view::npos) return ToolFormat::mistral;
  if (source.find("<tool_call>") != std::string_view::npos) return ToolFormat::hermes;
  if (source.find("\"parameters\"") != std::string_view::npos ||
      source.find("<|python_tag|>") != std::string_view::npos)
    return ToolFormat::llama3;
  return ToolFormat::none;
}

bool has_reasoning(std::string_view source) { return source.find(kThink) != std::string_view::npos; }

OutputParser::OutputParser(const Options& options)
    : options_(options), mode_(options.begins_in_thought ? Mode::thought : Mode::start) {}

void OutputParser::emit(OutputEvent::Kind kind, std::string_view text, int call) {
  if (text.empty() && kind != OutputEvent::Kind::call_begin && kind != OutputEvent::Kind::call_end) return;
  if (kind == OutputEvent::Kind::content) has_content_ = true;
  if (!events_.empty() && events_.back().kind == kind && events_.back().call == call &&
      kind != OutputEvent::Kind::call_begin) {
    events_.back().text += text;
  } else {
    events_.push_back({kind, std::string(text), call});
  }
}

std::vector<OutputEvent> OutputParser::push(std::string_view text) {
  events_.clear();
  for (char c : text) take(c);
  return std::move(events_);
}

std::vector<OutputEvent> OutputParser::finish() {
  events_.clear();
  const auto kind = mode_ == Mode::thought ? OutputEvent::Kind::reasoning : OutputEvent::Kind::content;
  switch (mode_) {
    case Mode::call:
    case Mode::name:
      if (is_named_) {
        end_call();
      } else {
        abandon_call();
      }
      break;
    case Mode::start:
    case Mode::thought:
    case Mode::content:
      emit(kind, held_);
      break;
    case Mode::between:
    case Mode::after_thought:
      break;
  }
  held_.clear();
  return std::move(events_);
}

// ---- text with markers ---------------------------------------------------------------------------------------------

void OutputParser::take(char c) {
  switch (mode_) {
    case Mode::start: {
      // Llama 3 writes a call as the whole answer, without a marker.
      if (options_.tools == ToolFormat::llama3 && c == '{' && held_.find_first_not_of(" \n\t\r") == std::string::npos) {
        opening_ = held_;
        held_.clear();
        begin_call();
        take_call(c);
        return;
      }
      if (is_space(c) && held_.find_first_not_of(" \n\t\r") == std::string::npos) {
        held_ += c;
        return;
      }
      std::string rest = std::exchange(held_, "") + c;
      if (options_.reasons) {
        const size_t first = rest.find_first_not_of(" \n\t\r");
        const std::string word = rest.substr(first);
        if (word == kThink) {
          mode_ = Mode::thought;
          return;
        }
        if (kThink.starts_with(word)) {
          held_ = rest;
          return;
        }
      }
      mode_ = Mode::content;
      for (char r : rest) take(r);
      return;
    }
    case Mode::thought:
      take_marked(c, {kEndThink});
      return;
    case Mode::after_thought:
      if (is_space(c)) return;
      if (options_.tools == ToolFormat::llama3 && c == '{') {
        opening_.clear();
        begin_call();
        take_call(c);
        return;
      }
      mode_ = Mode::content;
      take(c);
      return;
    case Mode::content: {
      const std::string opening = opening_of(options_.tools);
      take_marked(c, opening.empty() ? std::vector<std::string>{} : std::vector<std::string>{opening});
      return;
    }
    case Mode::call:
      take_call(c);
      return;
    case Mode::name:
      take_name(c);
      return;
    case Mode::between:
      take_between(c);
      return;
  }
}

// Emits what can be no part of a marker.
void OutputParser::take_marked(char c, const std::vector<std::string>& markers) {
  const auto kind = mode_ == Mode::thought ? OutputEvent::Kind::reasoning : OutputEvent::Kind::content;
  held_ += c;
  for (const std::string& marker : markers) {
    if (held_.ends_with(marker)) {
      emit(kind, std::string_view(held_).substr(0, held_.size() - marker.size()));
      held_.clear();
      on_marker(marker == kEndThink ? 1 : 0);
      return;
    }
  }
  size_t keep = 0;
  for (const std::string& marker : markers) {
    for (size_t n = std::min(held_.size(), marker.size() - 1); n > keep; --n) {
      if (held_.ends_with(std::string_view(marker).substr(0, n))) keep = n;
    }
  }
  emit(kind, std::string_view(held_).substr(0, held_.size() - keep));
  held_.erase(0, held_.size() - keep);
}

void OutputParser::on_marker(size_t marker) {
  if (marker == 1) {
    mode_ = Mode::after_thought;
    return;
  }
  opening_ = opening_of(options_.tools);
  begin_call();
}

// ---- a call --------------------------------------------------------------------------------------------------------

void OutputParser::begin_call() {
  mode_ = Mode::call;
  place_ = Place::before;
  raw_.clear();
  key_.clear();
  value_.clear();
  arguments_.clear();
  name_.clear();
  depth_ = 0;
  is_text_ = is_escaped_ = is_named_ = streams_value_ = is_bare_ = false;
}

// It was no call: the text as it stood.
void OutputParser::abandon_call() {
  mode_ = Mode::content;
  if (is_named_) {  // its beginning is out already
    emit(OutputEvent::Kind::call_end, "", num_calls_ - 1);
    return;
  }
  emit(OutputEvent::Kind::content, opening_ + raw_);
}

void OutputParser::end_call() {
  if (!is_named_) {
    abandon_call();
    return;
  }
  emit(OutputEvent::Kind::call_end, "", num_calls_ - 1);
  mode_ = Mode::between;
  held_.clear();
}

// The function's name is known: the call begins for whoever listens.
void OutputParser::set_arguments_done() {
  if (is_named_ || name_.empty()) return;
  is_named_ = true;
  emit(OutputEvent::Kind::call_begin, name_, num_calls_);
  ++num_calls_;
  emit(OutputEvent::Kind::call_arguments, arguments_, num_calls_ - 1);
  arguments_.clear();
}

void OutputParser::take_call(char c) {
  raw_ += c;
  switch (place_) {
    case Place::before:
      if (is_space(c)) return;
      if (c == '[' && options_.tools == ToolFormat::mistral && !is_list_) {
        is_list_ = true;
        return;
      }
      if (c == '{') {
        place_ = Place::key_or_end;
      } else if (options_.tools == ToolFormat::mistral && !is_list_) {  // a name, then its arguments
        mode_ = Mode::name;
        name_ = c;
      } else {
        abandon_call();
      }
      return;
    case Place::key_or_end:
      if (is_space(c) || c == ',') return;
      if (c == '}') {
        end_call();
      } else if (c == '"') {
        place_ = Place::key;
        key_.clear();
      } else {
        abandon_call();
      }
      return;
    case Place::key:
      if (c == '"') {
        place_ = Place::colon;
      } else {
        key_ += c;
      }
      return;
    case Place::colon:
      if (is_space(c)) return;
      if (c != ':') {
        abandon_call();
        return;
      }
      place_ = Place::value;
      value_.clear();
      depth_ = 0;
      is_text_ = is_escaped_ = false;
      streams_value_ = false;
      return;
    case Place::value:
      take_value(c);
      return;
    case Place::after_value:
      return;
  }
}

// One value of the call's object. Arguments that are an object go out as they come.
void OutputParser::take_value(char c) {
  const bool is_arguments = key_ == "arguments" || key_ == "parameters";
  if (value_.empty() && !streams_value_ && is_space(c)) return;
  if (depth_ == 0 && !is_text_ && (c == ',' || c == '}')) {  // the end of a plain value
    place_ = Place::key_or_end;
    if (is_arguments && !value_.empty()) arguments_ += value_;
    if (is_arguments && value_ == "null") arguments_ = "{}";
    value_.clear();
    if (c == '}') {
      set_arguments_done();
      end_call();
    }
    return;
  }
  if (value_.empty() && !streams_value_ && is_arguments && c == '{') streams_value_ = true;
  const bool was_text = is_text_;
  if (is_escaped_) {
    is_escaped_ = false;
  } else if (is_text_ && c == '\\') {
    is_escaped_ = true;
  } else if (c == '"') {
    is_text_ = !is_text_;
  } else if (!is_text_ && (c == '{' || c == '[')) {
    ++depth_;
  } else if (!is_text_ && (c == '}' || c == ']')) {
    --depth_;
  }
  if (streams_value_) {
    if (is_named_) {
      emit(OutputEvent::Kind::call_arguments, std::string_view(&c, 1), num_calls_ - 1);
    } else {
      arguments_ += c;
    }
    if (depth_ == 0) {
      place_ = Place::key_or_end;
      streams_value_ = false;
      if (is_bare_) end_call();
    }
    return;
  }
  value_ += c;
  const bool ends = depth_ == 0 && (was_text ? !is_text_ : c == '}' || c == ']');
  if (!ends) return;
  place_ = Place::key_or_end;
  const auto parsed = nlohmann::json::parse(value_, nullptr, false);
  if (key_ == "name" && parsed.is_string() && !is_named_) {
    name_ = parsed.get<std::string>();
    set_arguments_done();
  } else if (is_arguments) {
    const std::string text = parsed.is_string() ? parsed.get<std::string>() : value_;
    if (is_named_) {
      emit(OutputEvent::Kind::call_arguments, text, num_calls_ - 1);
    } else {
      arguments_ += text;
    }
  }
  value_.clear();
}

// Mistral's newer form: name[ARGS]{...} or name{...}.
void OutputParser::take_name(char c) {
  raw_ += c;
  if (c != '{') {
    name_ += c;
    if (name_.size() > 256) abandon_call();
    return;
  }
  const size_t args = name_.find("[ARGS]");
  if (args != std::string::npos) name_.resize(args);
  while (!name_.empty() && is_space(name_.back())) name_.pop_back();
  if (name_.empty() || name_.find_first_of(" \n[]") != std::string::npos) {
    abandon_call();
    return;
  }
  set_arguments_done();
  mode_ = Mode::call;
  place_ = Place::value;
  key_ = "arguments";
  raw_.clear();
  depth_ = 1;
  streams_value_ = is_bare_ = true;
  emit(OutputEvent::Kind::call_arguments, "{", num_calls_ - 1);
}

// Behind a call: the next one, or what ends the list.
void OutputParser::take_between(char c) {
  held_ += c;
  const std::string opening = opening_of(options_.tools);
  const size_t first = held_.find_first_not_of(" \n\t\r,;]");
  if (first == std::string::npos) return;
  const std::string word = held_.substr(first);
  if (word == opening || word == "{") {
    const bool is_object = word == "{";
    if (is_object && options_.tools == ToolFormat::hermes) {  // no marker: text
      mode_ = Mode::content;
      emit(OutputEvent::Kind::content, std::exchange(held_, ""));
      return;
    }
    opening_ = is_object ? "" : opening;
    held_.clear();
    if (!is_object) is_list_ = false;
    begin_call();
    if (is_object) take_call('{');
    return;
  }
  if (word == "</tool_call>") {
    held_.clear();
    return;
  }
  if (opening.starts_with(word) || std::string_view("</tool_call>").starts_with(word)) return;
  mode_ = Mode::content;
  const std::string rest = std::exchange(held_, "");
  for (char r : rest.substr(rest.find_first_not_of(" \n\t\r"))) take(r);
}

}  // namespace sinter::server
