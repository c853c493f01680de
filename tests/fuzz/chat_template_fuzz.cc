// Any bytes taken as a chat template either render or throw base::Error, within their limits.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/error.h"
#include "tokenizer/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sinter::tokenizer;
  static const nlohmann::ordered_json messages = nlohmann::ordered_json::parse(R"([
    {"role": "system", "content": "Be terse."}, {"role": "user", "content": [{"type": "text", "text": " Grüße\n"}]},
    {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": {"x": [1, 2.5, true]}}}]},
    {"role": "tool", "content": "<think>a</think>b"}])");
  try {
    ChatTemplate chat({reinterpret_cast<const char*>(data), size}, "fuzz",
                      {{"bos_token", "<s>"}, {"eos_token", "</s>"}});
    chat.limits = {.max_work = 100'000, .max_output_bytes = 1 << 20};
    ChatInput input{.messages = jinja::from_json(messages), .tools = jinja::from_json(messages), .now = 1750000000};
    chat.render(input);
  } catch (const sinter::base::Error&) {
  }
  return 0;
}
