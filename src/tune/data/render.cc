#include "tune/data/render.h"

#include <algorithm>

#include "base/error.h"
#include "tokenizer/tokenizer_parts.h"
#include "tune/data/message.h"

namespace sinter::tune {
namespace {

using base::fail;
using tokenizer::ByteSpan;
using tokenizer::TracedText;
namespace jinja = tokenizer::jinja;

// Noncharacters of Unicode: no text of people holds them.
constexpr std::string_view kSentinels[] = {"\xEF\xB7\x90", "\xEF\xB7\x91", "\xEF\xB7\x92", "\xEF\xB7\x93"};

// Every text inside a value changed by `change`.
template <class Change>
jinja::Value map_texts(const jinja::Value& value, const Change& change) {
  if (value.is(jinja::Kind::text)) return jinja::Value(change(value.text()));
  if (value.is(jinja::Kind::list)) {
    std::vector<jinja::Value> items;
    for (const jinja::Value& item : value.list()->items) items.push_back(map_texts(item, change));
    return jinja::make_list(std::move(items));
  }
  if (!value.is(jinja::Kind::dict)) return value;
  auto copy = jinja::make_dict();
  for (const auto& [key, item] : value.dict()->items()) copy->set(key, map_texts(item, change));
  copy->nesting = value.dict()->nesting;
  return jinja::Value(copy);
}

Role role_of(const std::string& name) {
  if (name == "system" || name == "developer") return Role::system;
  if (name == "user") return Role::user;
  if (name == "assistant") return Role::assistant;
  if (name == "tool" || name == "ipython" || name == "function") return Role::tool;
  return Role::markup;
}

void check_has_loss(const TokenSegments& tokens, const std::string& origin, const char* why) {
  SINTER_CHECK(tokens.num_supervised() > 0, "{}: none of its {} tokens is supervised: {}", origin, tokens.num_tokens(),
               why);
}

}  // namespace

TokenSpan tokens_of(const TracedText& text, ByteSpan bytes) {
  TokenSpan span{-1, -1};
  for (size_t t = 0; t < text.ids.size(); ++t) {
    const ByteSpan& token = text.bytes[t];
    if (token.end <= token.begin || token.begin >= bytes.end || token.end <= bytes.begin) continue;
    if (span.first < 0) span.first = static_cast<int64_t>(t);
    span.past = static_cast<int64_t>(t) + 1;
  }
  return span.first < 0 ? TokenSpan{} : span;
}

Renderer::Renderer(const tokenizer::Tokenizer& tokenizer, const tokenizer::ChatTemplate* chat, RenderOptions options)
    : tokenizer_(tokenizer), chat_(chat), options_(std::move(options)), encoder_(tokenizer) {
  if (!chat_) return;
  for (const std::string& name : chat_->names()) {
    const std::string& source = chat_->source(name);
    for (size_t at = 0; (at = source.find("generation", at)) != std::string::npos; ++at) {
      size_t before = at;
      while (before > 0 && (source[before - 1] == ' ' || source[before - 1] == '-' || source[before - 1] == '+'))
        --before;
      has_generation_ |= before >= 2 && source[before - 1] == '%' && source[before - 2] == '{';
    }
  }
  SINTER_CHECK(options_.mask_by != MaskBy::generation || has_generation_,
               "the chat template has no {{% generation %}} block to take the mask from; use mask_by = \"prefixes\"");
}

// Where message contents hold texts of special tokens, each is broken by a sentinel that is taken out of the result
// again: so it is known where they came to stand.
std::string Renderer::render_plain(const std::vector<Message>& messages, const jinja::Value& tools,
                                   bool add_generation_prompt, std::vector<size_t>* plain_at,
                                   std::vector<std::pair<size_t, size_t>>* generated) const {
  std::vector<jinja::Value> values;
  for (const Message& message : messages) values.push_back(message.value);
  tokenizer::ChatInput input{.messages = jinja::make_list(values),
                             .tools = tools,
                             .add_generation_prompt = add_generation_prompt,
                             .extra = options_.template_arguments};
  jinja::Rendered rendered = chat_->render_marked(input);
  if (generated) *generated = rendered.generated;
  if (!plain_at || !options_.markers_are_text) return rendered.text;
  bool has_marker = false;
  auto look = [&](const std::string& text) {
    has_marker |= !encoder_.marker_places(text).empty();
    return text;
  };
  for (const jinja::Value& value : values) map_texts(value, look);
  map_texts(tools, look);
  if (!has_marker) return rendered.text;
  const auto unused = std::find_if(std::begin(kSentinels), std::end(kSentinels),
                                   [&](std::string_view s) { return rendered.text.find(s) == std::string::npos; });
  SINTER_CHECK(unused != std::end(kSentinels), "a message holds noncharacters of Unicode (U+FDD0 to U+FDD3)");
  const std::string_view sentinel = *unused;
  auto broken = [&](const std::string& text) {
    std::string out = text;
    const std::vector<size_t> places = encoder_.marker_places(text);
    for (auto place = places.rbegin(); place != places.rend(); ++place) out.insert(*place, sentinel);
    return out;
  };
  for (jinja::Value& value : values) value = map_texts(value, broken);
  input.messages = jinja::make_list(std::move(values));
  input.tools = map_texts(tools, broken);
  std::string text = chat_->render(input);
  for (size_t at = 0; (at = text.find(sentinel, at)) != std::string::npos;) {
    text.erase(at, sentinel.size());
    plain_at->push_back(at);
  }
  SINTER_CHECK(text == rendered.text,
               "a message holds the text of a special token, and the template changes it so that it cannot be traced; "
               "take it out, or say that markers in messages are special (markers = \"special\")");
  return text;
}

RenderedChat Renderer::render(const std::vector<Message>& messages, const jinja::Value& tools,
                              bool add_generation_prompt, bool needs_turns) const {
  SINTER_CHECK(chat_ != nullptr,
               "the rows hold messages and the model has no chat template: name one (chat_template = \"FILE.jinja\"), "
               "or give texts (prompt and completion)");
  RenderedChat chat;
  std::vector<std::pair<size_t, size_t>> generated;
  chat.text = render_plain(messages, tools, add_generation_prompt, &chat.plain_at, &generated);
  if (!needs_turns) return chat;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].role == "assistant") chat.assistant_messages.push_back(i);
  }
  if (options_.mask_by == MaskBy::generation || (options_.mask_by == MaskBy::automatic && has_generation_)) {
    for (const auto& [begin, end] : generated) chat.assistant.push_back({begin, end});
    SINTER_CHECK(chat.assistant.size() == chat.assistant_messages.size(),
                 "the template has {} {{% generation %}} blocks for {} assistant messages", chat.assistant.size(),
                 chat.assistant_messages.size());
    return chat;
  }
  find_turns(messages, tools, chat);
  return chat;
}

void Renderer::find_turns(const std::vector<Message>& messages, const jinja::Value& tools, RenderedChat& chat) const {
  for (const size_t i : chat.assistant_messages) {
    const std::vector<Message> before(messages.begin(), messages.begin() + static_cast<ptrdiff_t>(i));
    const std::vector<Message> with(messages.begin(), messages.begin() + static_cast<ptrdiff_t>(i) + 1);
    std::string p, q;
    try {
      p = render_plain(before, tools, true, nullptr, nullptr);
      q = i + 1 == messages.size() ? chat.text : render_plain(with, tools, false, nullptr, nullptr);
    } catch (const tokenizer::TemplateError& e) {
      fail(
          "the template cannot render the first {} of {} messages alone, so it cannot be told what the assistant "
          "says: {}",
          i, messages.size(), e.what());
    }
    const char* advice =
        "; the mask of the assistant's tokens would be a guess: use a template that only adds to what stands, or one "
        "with {% generation %} blocks (chat_template = \"FILE.jinja\")";
    SINTER_CHECK(q.starts_with(p),
                 "the template does not keep prefixes: the first {} messages with a generation prompt are not how the "
                 "first {} begin{}",
                 i, i + 1, advice);
    SINTER_CHECK(chat.text.starts_with(q),
                 "the template does not keep prefixes: the first {} messages are not how the whole conversation "
                 "begins{}",
                 i + 1, advice);
    if (i + 1 == messages.size()) check_ends_open(with, tools, p, q);
    chat.assistant.push_back({p.size(), q.size()});
  }
}

// A template that always ends with the header of an answer, whether one was asked for or not, would have its learned.
void Renderer::check_ends_open(const std::vector<Message>& messages, const jinja::Value& tools, const std::string& p,
                               const std::string& q) const {
  std::vector<Message> before(messages.begin(), messages.end() - 1), more = messages;
  more.push_back(make_message("user", "x"));
  std::string longer;
  try {
    if (render_plain(before, tools, false, nullptr, nullptr) != p) return;  // it heeds what was asked for
    longer = render_plain(more, tools, false, nullptr, nullptr);
  } catch (const tokenizer::TemplateError&) {
    return;
  }
  SINTER_CHECK(longer.starts_with(q),
               "the template ends a conversation with what belongs to a next answer: it would be learned as part of "
               "this one; use a template that heeds add_generation_prompt, or one with {{% generation %}} blocks "
               "(chat_template = \"FILE.jinja\")");
}

TokenSegments Renderer::conversation(const Record& record) const {
  std::vector<Message> messages = record.prompt.messages;
  messages.insert(messages.end(), record.completion.messages.begin(), record.completion.messages.end());
  const bool everything = options_.train_on == TrainOn::all;
  RenderedChat chat;
  try {
    chat = render(messages, record.tools, false, true);
  } catch (const base::Error&) {
    if (!everything || !chat_) throw;
    chat = render(messages, record.tools, false, false);
  }
  const TracedText text = encode(chat);
  TokenSegments out;
  out.append(text.ids, Role::markup, everything ? 1.0f : 0.0f);
  // Who says what, as far as the contents stand in the text as they are.
  size_t at = 0;
  for (const Message& message : messages) {
    const std::string_view content = jinja::strip(message.content, nullptr, true, true);
    const size_t found = content.empty() ? std::string::npos : chat.text.find(content, at);
    if (found == std::string::npos) continue;
    const TokenSpan span = tokens_of(text, {found, found + content.size()});
    for (int64_t t = span.first; t < span.past; ++t) out.roles[static_cast<size_t>(t)] = role_of(message.role);
    at = found + content.size();
  }
  for (size_t turn = 0; turn < chat.assistant.size(); ++turn) {
    const TokenSpan span = tokens_of(text, chat.assistant[turn]);
    const Message& message = messages[chat.assistant_messages[turn]];
    const bool counts = everything || options_.train_on == TrainOn::assistant || turn + 1 == chat.assistant.size();
    const double weight = counts ? record.weight * message.weight.value_or(1) : 0;
    for (int64_t t = span.first; t < span.past; ++t) {
      out.roles[static_cast<size_t>(t)] = Role::assistant;
      out.weights[static_cast<size_t>(t)] = static_cast<float>(weight);
    }
  }
  return out;
}

TokenSegments Renderer::text_segments(const std::string& prompt, const std::string& completion,
                                      int64_t& prompt_tokens) const {
  TokenSegments out;
  const std::vector<int32_t>& before = tokenizer_.parts().around.before;
  const TracedText first = encoder_.encode(prompt);
  const bool has_bos = !first.ids.empty() && !before.empty() && first.ids[0] == before[0];
  if (!has_bos) out.append(before, Role::markup, 0);
  out.append(first.ids, Role::prompt, 0);
  prompt_tokens = out.num_tokens();
  const TracedText second = encoder_.encode(
      completion, {},
      prompt.empty() ? tokenizer::TracedEncoder::Starts::text : tokenizer::TracedEncoder::Starts::nothing);
  out.append(second.ids, Role::completion, 1);
  const int32_t eos = tokenizer_.special_ids().eos;
  if (options_.add_eos && eos >= 0 && (out.ids.empty() || out.ids.back() != eos))
    out.append({eos}, Role::completion, 1);
  return out;
}

TokenSegments Renderer::prompt_and_completion(const Record& record, const Part& prompt, const Part& completion,
                                              int64_t& prompt_tokens) const {
  if (!uses_chat(record)) {
    SINTER_CHECK(!completion.text.empty() || !prompt.text.empty(),
                 "the rows hold messages and the model has no chat template: name one (chat_template = "
                 "\"FILE.jinja\"), or give texts (prompt and completion)");
    return text_segments(prompt.text, completion.text, prompt_tokens);
  }
  std::vector<Message> messages = prompt.messages;
  messages.insert(messages.end(), completion.messages.begin(), completion.messages.end());
  const RenderedChat all = render(messages, record.tools, false, false);
  const RenderedChat before = render(prompt.messages, record.tools, true, false);
  SINTER_CHECK(all.text.starts_with(before.text),
               "the template does not keep prefixes: the prompt with a generation prompt is not how prompt and answer "
               "begin; use a template that only adds to what stands");
  const TracedText text = encode(all);
  const TokenSpan span = tokens_of(text, {before.text.size(), all.text.size()});
  TokenSegments out;
  out.append(text.ids, Role::prompt, 0);
  prompt_tokens = span.past > 0 ? span.first : out.num_tokens();
  for (int64_t t = prompt_tokens; t < out.num_tokens(); ++t) {
    out.roles[static_cast<size_t>(t)] = Role::completion;
    out.weights[static_cast<size_t>(t)] = 1;
  }
  return out;
}

Sample Renderer::sample(const Record& record) const try {
  Sample sample;
  sample.origin = record.origin;
  SINTER_CHECK(!record.completion.is_empty(), "it has no answer to learn");
  const bool is_conversation = record.format == RecordFormat::messages || record.format == RecordFormat::sharegpt;
  if (is_conversation) {
    SINTER_CHECK(
        chat_ != nullptr,
        "the row holds messages and the model has no chat template: name one (chat_template = \"FILE.jinja\"), "
        "or give texts (prompt and completion)");
    sample.tokens = conversation(record);
  } else {
    int64_t prompt_tokens = 0;
    sample.tokens = prompt_and_completion(record, record.prompt, record.completion, prompt_tokens);
    for (float& weight : sample.tokens.weights) {
      if (options_.train_on == TrainOn::all) weight = 1;
      weight *= static_cast<float>(record.weight);
    }
  }
  check_has_loss(sample.tokens, "the row", "it has no assistant message, or all of them weigh 0");
  return sample;
} catch (const base::Error& e) {
  fail("{}: {}", record.origin, e.what());
}

PreferencePair Renderer::pair(const Record& record) const try {
  SINTER_CHECK(!record.completion.is_empty() && !record.rejected.is_empty(),
               "a preference pair needs \"chosen\" and \"rejected\"");
  PreferencePair pair;
  pair.origin = record.origin;
  pair.margin = static_cast<float>(record.margin);
  int64_t other = 0;
  pair.chosen = prompt_and_completion(record, record.prompt, record.completion, pair.prompt_tokens);
  pair.rejected = prompt_and_completion(record, record.prompt, record.rejected, other);
  // A tokenizer may join the prompt's last bytes with an answer's first: both then count as the answer's.
  pair.prompt_tokens = std::min(pair.prompt_tokens, other);
  check_has_loss(pair.chosen, "its chosen answer", "it is empty");
  check_has_loss(pair.rejected, "its rejected answer", "it is empty");
  return pair;
} catch (const base::Error& e) {
  fail("{}: {}", record.origin, e.what());
}

LabelledSample Renderer::labelled(const Record& record) const try {
  SINTER_CHECK(record.label.has_value(), "a labelled row needs \"label\"");
  LabelledSample sample;
  sample.origin = record.origin;
  sample.is_desirable = *record.label;
  sample.tokens = prompt_and_completion(record, record.prompt, record.completion, sample.prompt_tokens);
  check_has_loss(sample.tokens, "its answer", "it is empty");
  return sample;
} catch (const base::Error& e) {
  fail("{}: {}", record.origin, e.what());
}

Prompt Renderer::prompt(const Record& record) const try {
  Prompt prompt;
  prompt.origin = record.origin;
  prompt.row = record.row;
  Part part = record.prompt;
  if (part.is_empty()) {  // a conversation: what stands before the last answer
    part = record.completion;
    while (!part.messages.empty() && part.messages.back().role == "assistant") part.messages.pop_back();
  }
  SINTER_CHECK(!part.is_empty(), "it has no prompt");
  if (uses_chat(record)) {
    const RenderedChat chat = render(part.messages, record.tools, true, false);
    prompt.text = chat.text;
    prompt.ids = encode(chat).ids;
  } else {
    SINTER_CHECK(!part.text.empty(), "it holds messages and the model has no chat template");
    const std::vector<int32_t>& before = tokenizer_.parts().around.before;
    prompt.text = part.text;
    prompt.ids = encoder_.encode(part.text).ids;
    if (!before.empty() && (prompt.ids.empty() || prompt.ids[0] != before[0]))
      prompt.ids.insert(prompt.ids.begin(), before.begin(), before.end());
  }
  SINTER_CHECK(!prompt.ids.empty(), "its prompt is empty");
  return prompt;
} catch (const base::Error& e) {
  fail("{}: {}", record.origin, e.what());
}

}  // namespace sinter::tune
