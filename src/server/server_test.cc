#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "server/calls.h"
#include "server/chat_choice.h"
#include "server/generation.h"
#include "server/tool_calls.h"

namespace sinter::server {
namespace {

std::string summary(const std::vector<OutputEvent>& events, std::string so_far = "") {
  static constexpr const char* kKinds[] = {"C", "R", "B", "A", "E"};
  std::string last = so_far.empty() ? "" : so_far;
  for (const OutputEvent& e : events)
    last += std::string(kKinds[static_cast<int>(e.kind)]) + std::to_string(e.call) + "(" + e.text + ")";
  return last;
}

// Pieces of one kind together, as a client adds them up.
std::string parse(const OutputParser::Options& options, const std::vector<std::string>& pieces) {
  OutputParser parser(options);
  std::vector<OutputEvent> all;
  auto add = [&](std::vector<OutputEvent> events) {
    for (OutputEvent& e : events) {
      const bool joins = !all.empty() && all.back().kind == e.kind && all.back().call == e.call &&
                         e.kind != OutputEvent::Kind::call_begin;
      if (joins) {
        all.back().text += e.text;
      } else {
        all.push_back(std::move(e));
      }
    }
  };
  for (const std::string& piece : pieces) add(parser.push(piece));
  add(parser.finish());
  return summary(all);
}

struct Case {
  ToolFormat format;
  std::string text, expected;
  bool reasons = false;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> kCases{
      {ToolFormat::hermes,
       "Let me see.\n<tool_call>\n{\"name\": \"get\", \"arguments\": {\"c\": \"Pa\\\"}ris\"}}\n</tool_call>",
       "C-1(Let me see.\n)B0(get)A0({\"c\": \"Pa\\\"}ris\"})E0()"},
      {ToolFormat::hermes,
       "<tool_call>{\"name\":\"a\",\"arguments\":{}}</"
       "tool_call>\n<tool_call>{\"arguments\":{\"x\":[1,{}]},\"name\":\"b\"}</tool_call> bye",
       "B0(a)A0({})E0()B1(b)A1({\"x\":[1,{}]})E1()C-1(bye)"},
      {ToolFormat::hermes, "a < b and <tool is no call", "C-1(a < b and <tool is no call)"},
      {ToolFormat::hermes, "<tool_call>oops</tool_call>", "C-1(<tool_call>oops</tool_call>)"},
      {ToolFormat::llama3, "{\"name\": \"f\", \"parameters\": {\"q\": 1}}", "B0(f)A0({\"q\": 1})E0()"},
      {ToolFormat::llama3,
       "<|python_tag|>{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\", \"parameters\": {\"a\": null}}",
       "B0(f)A0({})E0()B1(g)A1({\"a\": null})E1()"},
      {ToolFormat::llama3, "{\"answer\": 42}", "C-1({\"answer\": 42})"},
      {ToolFormat::mistral,
       "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"q\": \"]\"}}, {\"name\": \"g\", \"arguments\": {}}]",
       "B0(f)A0({\"q\": \"]\"})E0()B1(g)A1({})E1()"},
      {ToolFormat::mistral, "[TOOL_CALLS]get_time[ARGS]{\"zone\": \"UTC\"}", "B0(get_time)A0({\"zone\": \"UTC\"})E0()"},
      {ToolFormat::none, "<think>\nhm</think>\n\nYes <think>", "R-1(\nhm)C-1(Yes <think>)", true},
      {ToolFormat::hermes,
       "<think>use it</think>\n<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call>",
       "R-1(use it)B0(f)A0({\"a\": 1})E0()", true},
      {ToolFormat::none, "plain", "C-1(plain)", true},
  };
  return kCases;
}

TEST(ToolCalls, AreFoundWhereverTheStreamIsCut) {
  for (const Case& c : cases()) {
    const OutputParser::Options options{.tools = c.format, .reasons = c.reasons};
    EXPECT_EQ(parse(options, {c.text}), c.expected);
    for (size_t i = 0; i <= c.text.size(); ++i) {
      EXPECT_EQ(parse(options, {c.text.substr(0, i), c.text.substr(i)}), c.expected) << "cut at " << i;
      const size_t j = std::min(c.text.size(), i + 3);
      EXPECT_EQ(parse(options, {c.text.substr(0, i), c.text.substr(i, j - i), c.text.substr(j)}), c.expected)
          << "cut at " << i;
    }
    std::vector<std::string> letters;
    for (char letter : c.text) letters.emplace_back(1, letter);
    EXPECT_EQ(parse(options, letters), c.expected);
  }
}

TEST(ToolCalls, CutOffCallsAreEnded) {
  const OutputParser::Options options{.tools = ToolFormat::hermes};
  EXPECT_EQ(parse(options, {"<tool_call>{\"name\": \"f\", \"arguments\": {\"a"}), "B0(f)A0({\"a)E0()");
  EXPECT_EQ(parse(options, {"<tool_call>{\"na"}), "C-1(<tool_call>{\"na)");
}

// A stream's piece may hold the end of one call and the beginning of the next.
TEST(ToolCalls, EachEventOfAPieceIsToldWithItsOwnCall) {
  ChatChoice choice({.tools = ToolFormat::hermes});
  std::vector<std::string> seen;
  choice.push(
      R"(<tool_call>{"name": "a", "arguments": {"x": 1}}</tool_call><tool_call>{"name": "b", "arguments": {}}</tool_call>)",
      true, [&](const OutputEvent& e) {
        if (e.kind == OutputEvent::Kind::call_begin) seen.push_back("begin " + choice.calls.back().name);
        if (e.kind == OutputEvent::Kind::call_end)
          seen.push_back("end " + choice.calls.back().name + " " + choice.calls.back().arguments);
      });
  EXPECT_EQ(seen, (std::vector<std::string>{"begin a", "end a {\"x\": 1}", "begin b", "end b {}"}));
}

TEST(StopTexts, AreCutWhereverTheStreamIsCut) {
  const std::string text = "one two END three";
  for (size_t i = 0; i <= text.size(); ++i) {
    StopCutter cutter({"END", "never"}, false);
    std::string out = cutter.push(text.substr(0, i));
    out += cutter.push(text.substr(i));
    out += cutter.finish();
    EXPECT_EQ(out, "one two ") << "cut at " << i;
    EXPECT_EQ(cutter.stop_text(), "END");
  }
  StopCutter open({"END"}, false);
  EXPECT_EQ(open.push("an E"), "an ");
  EXPECT_EQ(open.finish(), "E");
}

ApiError error_of(const std::string& body, bool is_chat) {
  try {
    const Json json = parse_body(body);
    if (is_chat) {
      read_chat_call(json, {});
    } else {
      read_completion_call(json, {});
    }
  } catch (const ApiError& e) {
    return e;
  }
  return ApiError(200, "");
}

TEST(Calls, WrongFieldsAreRefusedByName) {
  const std::vector<std::pair<std::string, std::string>> kWrong{
      {R"({"prompt":"x","temperature":-1})", "temperature"},
      {R"({"prompt":"x","temperature":1e400})", ""},
      {R"({"prompt":"x","top_p":0})", "top_p"},
      {R"({"prompt":"x","n":100000})", "n"},
      {R"({"prompt":"x","max_tokens":"5"})", "max_tokens"},
      {R"({"prompt":"x","repetition_penalty":0})", "repetition_penalty"},
      {R"({"prompt":"x","stop":["a",1]})", "stop"},
      {R"({"prompt":"x","temprature":1})", "temprature"},
      {R"({"prompt":{}})", "prompt"},
      {R"({"prompt":[]})", "prompt"},
      {R"({})", "prompt"},
      {R"({"prompt":"x","suffix":"y"})", "suffix"},
      {R"({"prompt":"x","logit_bias":{"a":1}})", "logit_bias"},
      {R"({"prompt":[1,"a"]})", "prompt"},
      {R"({"prompt":[99999999999]})", "prompt"},
      {R"([])", ""},
      {R"(nonsense)", ""},
      {std::string(100000, '['), ""},
      {R"({"prompt":"x","response_format":{"type":"xml"}})", "response_format"},
      {R"({"prompt":"x","guided_regex":"a","guided_json":{}})", "guided_regex"},
      {R"({"prompt":"x","seed":1.5})", "seed"},
      {R"({"prompt":"x","best_of":2,"n":3})", "best_of"}};
  for (const auto& [body, param] : kWrong) {
    const ApiError error = error_of(body, false);
    EXPECT_EQ(error.status, 400) << body.substr(0, 100);
    if (!param.empty()) {
      EXPECT_EQ(error.param, param) << body;
    }
  }
  EXPECT_EQ(error_of(R"({"messages":[{"role":"user","content":[{"type":"image_url"}]}]})", true).param, "messages");
  EXPECT_EQ(error_of(R"({"messages":[{"role":"user","content":"x"}],"tool_choice":"required"})", true).param,
            "tool_choice");
  EXPECT_EQ(error_of(R"({"messages":[{"role":"user","content":"x"}],"top_logprobs":2})", true).param, "top_logprobs");
  EXPECT_EQ(error_of(R"({"messages":[{"role":"user","content":"x"}]})", true).status, 200);
}

}  // namespace
}  // namespace sinter::server
