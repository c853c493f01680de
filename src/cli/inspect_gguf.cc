#include "cli/inspect_gguf.h"

#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "io/gguf.h"
#include "models/gguf.h"
#include "spec/parameters.h"
#include "tokenizer/gguf.h"

namespace sinter::cli {
namespace {

using nlohmann::ordered_json;

// A value in a line: arrays by their length and first elements, texts cut.
std::string short_text(const io::GgufValue& value) {
  constexpr size_t kMost = 60, kElements = 4;
  auto cut = [](std::string_view text) {
    std::string line(text.substr(0, text.size() > kMost ? kMost : text.size()));
    while (!line.empty() && (static_cast<unsigned char>(line.back()) & 0xc0) == 0x80) line.pop_back();
    for (char& c : line) c = c == '\n' || c == '\r' || c == '\t' ? ' ' : c;
    return text.size() > kMost ? fmt::format("{}... ({} bytes)", line, text.size()) : line;
  };
  if (value.type == io::GgufType::string) return cut(value.string());
  if (value.type == io::GgufType::boolean) return value.boolean() ? "true" : "false";
  if (value.is_integer()) return std::to_string(value.integer());
  if (!value.is_array()) return fmt::format("{:g}", value.number());
  std::string text = fmt::format("{} {}:", value.count, io::gguf_type_name(value.element));
  if (value.element == io::GgufType::string) {
    const auto all = value.strings();
    for (size_t i = 0; i < std::min(kElements, all.size()); ++i) text += fmt::format(" '{}'", cut(all[i]));
  } else {
    const auto all = value.numbers();
    for (size_t i = 0; i < std::min(kElements, all.size()); ++i) text += fmt::format(" {:g}", all[i]);
  }
  return value.count > kElements ? text + " ..." : text;
}

ordered_json json_of(const io::GgufValue& value) {
  if (value.is_array()) return {{"type", io::gguf_type_name(value.element)}, {"count", value.count}};
  if (value.type == io::GgufType::string) return value.string();
  if (value.type == io::GgufType::boolean) return value.boolean();
  if (value.is_integer()) return value.integer();
  return value.number();
}

struct TypeSum {
  int64_t tensors = 0, elements = 0;
  uint64_t bytes = 0;
};

}  // namespace

void inspect_gguf(const std::string& path, bool is_summary, bool as_json) {
  const io::GgufFile file(path);
  ordered_json report{{"path", path}, {"version", file.header().version}, {"files", file.num_files()}};
  std::vector<std::pair<std::string, std::string>> lines;
  try {
    const spec::ModelSpec spec = models::gguf_model_spec(file);
    const spec::ParameterCounts counts = spec::count_parameters(spec);
    lines.emplace_back("model",
                       fmt::format("{}: {} layers, width {}, {} heads of {} on {} KV heads, context {}, {} parameters",
                                   spec::family_name(spec.family), spec.num_layers, spec.hidden, spec.num_heads,
                                   spec.head_dim, spec.num_kv_heads, base::format_grouped(spec.max_positions),
                                   base::format_count(static_cast<double>(counts.total))));
    report["model"] = {{"family", spec::family_name(spec.family)},
                       {"layers", spec.num_layers},
                       {"hidden", spec.hidden},
                       {"parameters", counts.total}};
  } catch (const base::Error& e) {
    lines.emplace_back("model", fmt::format("not one this program runs: {}", e.what()));
    report["model"] = {{"problem", e.what()}};
  }
  try {
    const auto tokenizer = tokenizer::tokenizer_from_gguf(file);
    lines.emplace_back("tokenizer", tokenizer.description());
    report["tokenizer"] = tokenizer.description();
  } catch (const base::Error& e) {
    lines.emplace_back("tokenizer", fmt::format("not one this program reads: {}", e.what()));
  }
  std::map<std::string, TypeSum> types;
  base::Table table({"tensor", "type", "shape", "bytes"});
  ordered_json list = ordered_json::array();
  for (const io::GgufTensor& tensor : file.tensors()) {
    TypeSum& sum = types[std::string(tensor.type_name())];
    ++sum.tensors, sum.elements += tensor.num_elements(), sum.bytes += tensor.bytes.size();
    std::string shape;
    for (int64_t axis : tensor.shape) shape += (shape.empty() ? "" : ", ") + std::to_string(axis);
    table.add_row({tensor.name, std::string(tensor.type_name()), "(" + shape + ")",
                   base::format_grouped(static_cast<int64_t>(tensor.bytes.size()))});
    list.push_back(
        {{"name", tensor.name}, {"type", tensor.type_name()}, {"shape", tensor.shape}, {"bytes", tensor.bytes.size()}});
  }
  double bits = 0, elements = 0;
  std::string text;
  for (const auto& [name, sum] : types) {
    bits += 8 * static_cast<double>(sum.bytes), elements += static_cast<double>(sum.elements);
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", sum.tensors, name);
    report["types"][name] = {{"tensors", sum.tensors}, {"elements", sum.elements}, {"bytes", sum.bytes}};
  }
  lines.emplace_back("tensors", fmt::format("{} in {} file{}, {}, {:.2f} bits a number: {}", file.tensors().size(),
                                            file.num_files(), file.num_files() == 1 ? "" : "s",
                                            base::format_bytes(static_cast<double>(file.tensor_bytes())),
                                            elements > 0 ? bits / elements : 0, text));
  for (const auto& [key, value] : file.header().metadata) report["metadata"][key] = json_of(value);
  if (!is_summary) report["tensors"] = std::move(list);
  if (as_json) {
    std::printf("%s\n", report.dump(2, ' ', false, ordered_json::error_handler_t::replace).c_str());
    return;
  }
  std::printf("%s (GGUF version %u)\n", path.c_str(), file.header().version);
  for (const auto& [label, line] : lines) std::printf("  %-14s%s\n", label.c_str(), line.c_str());
  std::printf("\n");
  for (const auto& [key, value] : file.header().metadata)
    std::printf("  %-42s%s\n", key.c_str(), short_text(value).c_str());
  if (!is_summary) std::printf("\n%s", table.to_string(2).c_str());
}

}  // namespace sinter::cli
