// Rows of tuning data, whatever form they were written in: read from JSON lines, JSON arrays and Parquet, recognised by
// their fields or by the name of their format, and brought to one form.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/jinja/value.h"

namespace sinter::tune {

enum class RecordFormat {
  automatic,
  messages,           // {"messages": [{"role", "content"}, ...], "tools"?}
  sharegpt,           // {"conversations": [{"from", "value"}, ...], "system"?, "tools"?}
  alpaca,             // {"instruction", "input"?, "output" or "response"}
  question,           // {"question", "answer"} or {"input", "output"}
  prompt_completion,  // {"prompt", "completion" or "response"}: texts, or lists of messages
  preference,         // {"chosen", "rejected", "prompt"?, "margin"?}
  labelled,           // an answer in any of the forms above, and "label" (KTO)
  prompts,            // {"prompt"}: no answer
  text,               // {"text"}: all of it is learned
};
const std::vector<std::string>& format_names();
RecordFormat parse_format(std::string_view name);  // throws base::Error with the nearest name
const char* format_name(RecordFormat format);

struct Message {
  std::string role;               // system, user, assistant, tool, or what else the row says
  std::string content;            // text; parts of a list joined
  tokenizer::jinja::Value value;  // the message as templates see it
  std::optional<double> weight;   // "weight" or "loss_weight" of the row, or 0 and 1 for "train": false and true
};

// One side of a row: a list of messages, and a text where the row has no messages but texts.
struct Part {
  std::vector<Message> messages;
  std::string text;
  bool is_empty() const { return messages.empty() && text.empty(); }
};

struct Record {
  RecordFormat format = RecordFormat::automatic;
  bool is_chat = false;       // messages are meant; else texts, which a chat template leaves alone
  Part prompt;                // what is given; empty for a conversation
  Part completion;            // what is learned: a conversation, an answer, the chosen answer
  Part rejected;              // of a preference pair
  std::optional<bool> label;  // of a labelled row
  double weight = 1, margin = 0;
  tokenizer::jinja::Value tools = tokenizer::jinja::Value::none();
  std::string row;     // the row as JSON
  std::string origin;  // "answers.jsonl:17": the line, or the row counted from 1
};

struct RecordSource {
  std::string path;  // a file, or a folder's files in order of name
  RecordFormat format = RecordFormat::automatic;
  // Names of fields to the names that the rows use: {"prompt", "question"}. Fields: messages, prompt, completion,
  // chosen, rejected, label, system, tools, text, input, margin, weight.
  std::map<std::string, std::string> fields;
  std::optional<bool> as_chat;  // whether texts are messages of a chat; the default is the format's
  int64_t max_rows = 0;         // 0: all
};

struct BadRow {
  std::string origin, problem;  // the problem begins with the origin
};
struct RecordVisitor {
  std::function<void(Record&&)> record;
  std::function<void(BadRow&&)> bad;  // a row that cannot be read; reading goes on
};
// Throws base::Error for a field that is none.
void check_source(const RecordSource& source);
// Reads the rows in order. An automatic format is decided by each row. Throws base::Error for what is wrong with a file
// as a whole: not there, of an unknown kind, no row readable.
void read_records(const RecordSource& source, const RecordVisitor& visitor);

// One row. Throws base::Error saying which fields were found and which would do.
Record parse_record(std::string_view json, const RecordSource& source, const std::string& origin);

}  // namespace sinter::tune
