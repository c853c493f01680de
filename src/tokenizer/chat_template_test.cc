#include "tokenizer/chat_template.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/source_dir.h"

namespace sinter::tokenizer {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr int64_t kNow = 1750000000;  // 2025-06-15 15:06:40 UTC, as in tools/make_chat_goldens.py
const std::string kGoldens = base::source_dir() + "/tests/golden/chat_templates";

ordered_json load(const fs::path& path) { return ordered_json::parse(base::read_file(path.string())); }

class ChatTemplateGoldens : public testing::Test {
 protected:
  void SetUp() override {
    ::setenv("TZ", "UTC", 1);
    ::tzset();
  }
};

// What the template gives for the variables, or its error after "error: ".
std::string outcome(const jinja::Statements& body, const std::string& name, const ordered_json& variables) {
  std::vector<std::pair<std::string, jinja::Value>> values;
  for (const auto& [key, value] : variables.items()) values.emplace_back(key, jinja::from_json(value));
  jinja::Interpreter interpreter(name, {});
  interpreter.now = kNow;
  try {
    return interpreter.render(body, values).text;
  } catch (const TemplateError& e) {
    return std::string("error: ") + e.what();
  }
}

TEST_F(ChatTemplateGoldens, PublicModelsRenderAsJinja2Does) {
  ordered_json conversations = load(kGoldens + "/conversations.json");
  int num_templates = 0;
  for (const auto& entry : fs::directory_iterator(kGoldens)) {
    std::string name = entry.path().stem().string();
    if (entry.path().extension() != ".json" || name == "conversations" || name == "features") continue;
    ++num_templates;
    ordered_json golden = load(entry.path());
    jinja::Statements body = jinja::parse_template(golden["template"].get<std::string>(), name);
    for (const auto& [conversation, result] : golden["cases"].items()) {
      std::string got = outcome(body, name, conversations[conversation]);
      if (result.contains("expected")) {
        EXPECT_EQ(got, result["expected"].get<std::string>()) << name << ", " << conversation;
      } else {
        EXPECT_EQ(got.substr(0, 7), "error: ") << name << ", " << conversation << ": jinja2 says " << result["error"];
      }
    }
  }
  EXPECT_GE(num_templates, 12);
}

TEST_F(ChatTemplateGoldens, EveryFeatureRendersAsJinja2Does) {
  ordered_json golden = load(kGoldens + "/features.json");
  EXPECT_GT(golden["cases"].size(), 700u);
  for (const ordered_json& feature : golden["cases"]) {
    auto source = feature["template"].get<std::string>();
    std::string got;
    try {
      got = outcome(jinja::parse_template(source, "t"), "t", golden["variables"]);
    } catch (const TemplateError& e) {
      got = std::string("error: ") + e.what();
    }
    if (feature.contains("expected")) {
      EXPECT_EQ(got, feature["expected"].get<std::string>()) << feature["name"] << ": " << source;
    } else {
      EXPECT_EQ(got.substr(0, 32), "error: chat template 't', line 1")
          << feature["name"] << ": " << source << "\njinja2 says " << feature["error"];
    }
  }
}

class ChatTemplateFolder : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = (fs::temp_directory_path() / ("sinter_chat_test_" + std::to_string(::getpid()))).string();
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  void put(const std::string& name, const std::string& content) {
    fs::create_directories(fs::path(folder_ + "/" + name).parent_path());
    base::write_file_atomic(folder_ + "/" + name, content);
  }
  std::string folder_;
};

ChatInput hello() {
  return {.messages = jinja::from_json(ordered_json::parse(R"([{"role": "user", "content": "Hi"}])"))};
}

TEST_F(ChatTemplateFolder, TokenizerConfigGivesTemplateAndSpecialTokens) {
  put("tokenizer_config.json",
      R"({"chat_template": "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}{{ unk_token }}",
      "bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": false}, "unk_token": null})");
  put("special_tokens_map.json", R"({"eos_token": "other", "unk_token": "<unk>"})");
  EXPECT_TRUE(ChatTemplate::exists(folder_));
  EXPECT_EQ(ChatTemplate::load(folder_).render(hello()), "<s>Hi</s><unk>");
}

TEST_F(ChatTemplateFolder, NamedTemplatesAreChosenByToolsOrByName) {
  put("tokenizer_config.json", R"({"chat_template": [{"name": "default", "template": "plain"},
      {"name": "tool_use", "template": "{{ tools|length }} tools"}, {"name": "rag", "template": "rag"}]})");
  ChatTemplate chat = ChatTemplate::load(folder_);
  EXPECT_EQ(chat.names(), (std::vector<std::string>{"default", "rag", "tool_use"}));
  ChatInput input = hello();
  EXPECT_EQ(chat.render(input), "plain");
  input.tools = jinja::from_json(ordered_json::parse("[{}, {}]"));
  EXPECT_EQ(chat.render(input), "2 tools");
  input.template_name = "rag";
  EXPECT_EQ(chat.render(input), "rag");
  input.template_name = "rug";
  try {
    chat.render(input);
    FAIL();
  } catch (const base::Error& e) {
    EXPECT_NE(std::string(e.what()).find("did you mean 'rag'"), std::string::npos) << e.what();
  }
}

TEST_F(ChatTemplateFolder, JinjaFileWinsOverTokenizerConfig) {
  put("tokenizer_config.json", R"({"chat_template": "old", "bos_token": "<s>"})");
  put("chat_template.jinja", "{{ bos_token }}new\n");
  put("additional_chat_templates/rag.jinja", "rag");
  ChatTemplate chat = ChatTemplate::load(folder_);
  EXPECT_EQ(chat.render(hello()), "<s>new");
  EXPECT_EQ(chat.source("rag"), "rag");
}

TEST_F(ChatTemplateFolder, FolderWithoutTemplateSaysSo) {
  put("tokenizer_config.json", "{}");
  EXPECT_FALSE(ChatTemplate::exists(folder_));
  try {
    ChatTemplate::load(folder_);
    FAIL();
  } catch (const base::Error& e) {
    EXPECT_NE(std::string(e.what()).find("has no chat template"), std::string::npos) << e.what();
  }
}

TEST(ChatTemplate, MarksTheBytesInsideGenerationBlocks) {
  ChatTemplate chat(
      "{% for m in messages %}[{{ m.role }}]{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}", "t");
  jinja::Rendered out = chat.render_marked(hello());
  EXPECT_EQ(out.text, "[user]Hi");
  ASSERT_EQ(out.generated.size(), 1u);
  EXPECT_EQ(out.text.substr(out.generated[0].first, out.generated[0].second - out.generated[0].first), "Hi");
}

TEST(ChatTemplate, LeavesTheCallersMessagesAsTheyAre) {
  ChatTemplate chat(
      "{% set _ = messages.append({'role': 'x'}) %}{% set _ = messages[0].update({'a': 1}) %}{{ messages|length }}",
      "t");
  ChatInput input = hello();
  EXPECT_EQ(chat.render(input), "2");
  EXPECT_EQ(chat.render(input), "2");
  EXPECT_EQ(input.messages.list()->items.size(), 1u);
  EXPECT_EQ(input.messages.list()->items[0].dict()->items().size(), 2u);
}

TEST(ChatTemplate, ExtraVariablesWinOverStandardOnes) {
  ChatTemplate chat("{{ bos_token }} {{ enable_thinking }} {{ add_generation_prompt }} {{ tools is none }}", "t",
                    {{"bos_token", "<s>"}});
  ChatInput input = hello();
  input.add_generation_prompt = true;
  input.extra = {{"enable_thinking", jinja::Value(false)}, {"bos_token", jinja::Value("<b>")}};
  EXPECT_EQ(chat.render(input), "<b> False True True");
}

}  // namespace
}  // namespace sinter::tokenizer
