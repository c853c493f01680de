// One choice of a chat as it is read: content, reasoning, calls. Shared by the three chat APIs.
#pragma once
#include <string>
#include <vector>

#include "server/tool_calls.h"

namespace sinter::server {

std::string make_id(const std::string& prefix);

struct ChatChoice {
  struct Call {
    std::string id, name, arguments;
  };
  explicit ChatChoice(const OutputParser::Options& parsing) : parser(parsing) {}

  // New text; each event that it holds is kept here, then told: calls.back() is the event's then.
  template <class OnEvent>
  void push(const std::string& text, bool is_last, OnEvent on_event) {
    std::vector<OutputEvent> events = parser.push(text);
    if (is_last) {
      for (OutputEvent& e : parser.finish()) events.push_back(std::move(e));
    }
    for (const OutputEvent& e : events) {
      take(e);
      on_event(e);
    }
  }
  void take(const OutputEvent& e) {
    switch (e.kind) {
      case OutputEvent::Kind::content:
        content += e.text;
        break;
      case OutputEvent::Kind::reasoning:
        reasoning += e.text;
        break;
      case OutputEvent::Kind::call_begin:
        calls.push_back({make_id("call"), e.text, ""});
        break;
      case OutputEvent::Kind::call_arguments:
        calls.back().arguments += e.text;
        break;
      case OutputEvent::Kind::call_end:
        break;
    }
  }
  // The whole answer at once.
  void read(const std::string& text) {
    push(text, true, [](const OutputEvent&) {});
  }
  std::string finish_reason(const std::string& finish) const {
    return finish == "stop" && !calls.empty() ? "tool_calls" : finish;
  }

  OutputParser parser;
  std::string content, reasoning;
  std::vector<Call> calls;
};

}  // namespace sinter::server
