#include "data/pipeline/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/html.h"
#include "base/text.h"

namespace sinter::data {
namespace {

using Json = nlohmann::json;

std::vector<std::pair<std::string, int64_t>> sorted_counts(const Json& counts) {
  std::vector<std::pair<std::string, int64_t>> rows;
  for (const auto& [name, count] : counts.items()) rows.emplace_back(name, count.get<int64_t>());
  std::stable_sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  return rows;
}

std::string bar_row(const std::string& name, int64_t count, double all, const char* kind) {
  const double share = all > 0 ? 100.0 * static_cast<double>(count) / all : 0;
  return fmt::format(
      "<tr><td class=name>{}</td><td class=n>{}</td><td class=n>{:.1f} %</td><td class=b><i class={} "
      "style='width:{:.2f}%'></i></td></tr>\n",
      base::escape_html(name), base::format_grouped(count), share, kind, std::min(share, 100.0));
}

// What is left after each stage that dropped something, in the order in which documents meet them.
std::string funnel(const Json& dropped, int64_t documents, int64_t kept) {
  static constexpr const char* kStages[] = {"url",   "extract", "language",  "gopher_repetition", "gopher_quality",
                                            "c4",    "fineweb", "bad_words", "decontaminate",     "nsfw",
                                            "dedup", "rank"};
  std::string rows = bar_row("read", documents, double(documents), "l");
  int64_t left = documents;
  for (const char* stage : kStages) {
    int64_t gone = 0;
    for (const auto& [name, count] : dropped.items()) {
      if (name.substr(0, name.find('/')) == stage) gone += count.get<int64_t>();
    }
    left -= gone;
    if (gone > 0) rows += bar_row(fmt::format("after {}", stage), left, double(documents), "l");
  }
  rows += bar_row("kept, with epochs", kept, double(documents), "k");
  return "<h2>What is left after each stage</h2><table>\n" + rows + "</table>\n";
}

std::string sources_table(const Json& sources) {
  if (!sources.is_object() || sources.size() < 2) return "";
  std::string page = "<h2>Sources <small>kept by the rules, before duplicates go</small></h2><table>\n";
  for (const auto& [name, counts] : sources.items())
    page += bar_row(fmt::format("{} ({} read)", name, base::format_grouped(counts.value("documents", int64_t{0}))),
                    counts.value("kept_by_rules", int64_t{0}), counts.value("documents", 0.0), "l");
  return page + "</table>\n";
}

std::string length_name(int power) {
  return fmt::format("{} to {}", base::format_bytes(static_cast<double>(uint64_t{1} << power)),
                     base::format_bytes(static_cast<double>(uint64_t{2} << power)));
}

constexpr const char* kStyle = R"(<style>
:root{color-scheme:light dark}body{font:15px/1.5 system-ui,sans-serif;max-width:980px;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem}h2{font-size:1.1rem;margin-top:2rem}table{border-collapse:collapse;width:100%}
td{padding:.15rem .5rem;vertical-align:middle}td.n{text-align:right;white-space:nowrap;width:7rem;font-variant-numeric:tabular-nums}
td.b{width:40%}i{display:block;height:.8rem;border-radius:2px;min-width:1px}i.k{background:#2a8a5f}i.d{background:#c0553a}i.l{background:#4a78b5}
.cards{display:flex;gap:1rem;flex-wrap:wrap}.card{border:1px solid #8884;border-radius:8px;padding:.6rem 1rem;min-width:8rem}
.card b{display:block;font-size:1.3rem}details{border-left:3px solid #c0553a88;padding-left:.8rem;margin:.5rem 0}
details.kept{border-color:#2a8a5f}details.v{border:0;padding:0}details.v span{display:inline-block;margin-right:1rem;font-size:.8rem}
pre{white-space:pre-wrap;overflow-wrap:anywhere;background:#8881;padding:.6rem;border-radius:6px;max-height:14rem;overflow:auto}small{opacity:.7}
@media(max-width:700px){body{margin:1rem auto}table,tbody{display:block}tr{display:grid;grid-template-columns:1fr auto 4.5rem;margin:.3rem 0}
td{padding:.05rem .3rem}td.n{width:auto}td.name{overflow-wrap:anywhere}td.b{grid-column:1/4;width:auto}}
</style>)";

std::string card(const char* name, const std::string& value) {
  return fmt::format("<div class=card><b>{}</b>{}</div>", value, name);
}

std::string bad_table(const Json& report) {
  const Json reasons = report.value("bad_reasons", Json::object());
  if (!reasons.is_object() || reasons.empty()) return "";
  std::string page = "<h2>Bad records <small>set aside in aside/, # stands for a number</small></h2><table>\n";
  for (const auto& [name, count] : sorted_counts(reasons)) page += bar_row(name, count, report.value("bad", 0.0), "d");
  return page + "</table>\n";
}

std::string sample_block(const Json& sample) {
  std::string values;
  if (sample.contains("values") && sample["values"].is_object()) {
    for (const auto& [name, value] : sample["values"].items())
      values += fmt::format("<span>{} <b>{:.4g}</b></span> ", base::escape_html(name), value.get<double>());
  }
  if (!values.empty())
    values = "<details class=v><summary><small>its columns</small></summary>" + values + "</details>";
  return fmt::format("<p><small>{} {}</small></p><pre>{}</pre>{}\n", base::escape_html(sample.value("id", "")),
                     base::escape_html(sample.value("url", "")), base::escape_html(sample.value("text", "")), values);
}

// What was kept first, then what was dropped, the commonest reason first.
std::string samples_list(const Json& samples, const Json& dropped, int64_t kept) {
  if (!samples.is_object() || samples.empty()) return "";
  std::vector<std::pair<std::string, int64_t>> names = sorted_counts(dropped);
  names.insert(names.begin(), {"kept", kept});
  std::string page = "<h2>Samples</h2>\n";
  for (const auto& [name, count] : names) {
    if (!samples.contains(name) || samples[name].empty()) continue;
    page +=
        fmt::format("<details{}><summary>{} <small>{} of {}</small></summary>\n", name == "kept" ? " class=kept" : "",
                    base::escape_html(name), samples[name].size(), base::format_grouped(count));
    for (const Json& sample : samples[name]) page += sample_block(sample);
    page += "</details>\n";
  }
  return page;
}

}  // namespace

void merge_statistics(Json& report, const Json& part, int64_t samples) {
  for (const char* key : {"dropped", "languages", "lengths", "sources", "samples", "bad_reasons"}) {
    if (!report[key].is_object()) report[key] = Json::object();
  }
  for (const char* key : {"documents", "bytes", "bad"})
    report[key] = report.value(key, int64_t{0}) + part[key].get<int64_t>();
  for (const char* key : {"dropped", "languages", "lengths", "bad_reasons"}) {
    if (!part[key].is_object()) continue;
    for (const auto& [name, count] : part[key].items())
      report[key][name] = report[key].value(name, int64_t{0}) + count.get<int64_t>();
  }
  const std::string source = part["source"];
  Json& of_source = report["sources"][source];
  if (!of_source.is_object()) of_source = Json::object();
  of_source["documents"] = of_source.value("documents", int64_t{0}) + part["documents"].get<int64_t>();
  of_source["kept_by_rules"] = of_source.value("kept_by_rules", int64_t{0}) + part["kept"].get<int64_t>();
  merge_samples(report, part, samples);
}

void merge_samples(Json& report, const Json& part, int64_t samples) {
  if (!part.contains("samples") || !part["samples"].is_object()) return;
  for (const auto& [name, list] : part["samples"].items()) {
    for (const Json& sample : list) {
      Json& to = report["samples"][name];
      if (static_cast<int64_t>(to.size()) < samples) to.push_back(sample);
    }
  }
}

std::string report_html(const Json& report, const std::string& title) {
  const auto documents = report.value("documents", int64_t{0}), kept = report.value("kept", int64_t{0});
  std::string page = fmt::format(
      "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport "
      "content='width=device-width,initial-scale=1'><title>{0}</title>{1}<h1>{0}</h1>\n<div class=cards>",
      base::escape_html(title), kStyle);
  page += card("documents read", base::format_grouped(documents));
  page += card("kept", base::format_grouped(kept));
  page += card("of text kept", base::format_bytes(report.value("kept_bytes", 0.0)));
  page += card("tokens", base::format_count(report.value("tokens", 0.0)));
  page += card("bad records", base::format_grouped(report.value("bad", int64_t{0})));
  const Json dropped = report.value("dropped", Json::object());
  page += "</div>\n" + funnel(dropped, documents, kept);
  page += "<h2>Why documents went</h2><table>\n";
  for (const auto& [name, count] : sorted_counts(dropped)) page += bar_row(name, count, double(documents), "d");
  page += "</table>\n" + sources_table(report.value("sources", Json::object()));
  const Json languages = report.value("languages", Json::object()), lengths = report.value("lengths", Json::object());
  auto total = [](const Json& counts) {
    double sum = 0;
    for (const auto& [name, count] : counts.items()) sum += count.get<double>();
    return sum;
  };
  if (languages.is_object() && !languages.empty()) {
    page += "<h2>Languages <small>kept by the rules</small></h2><table>\n";
    size_t shown = 0;
    for (const auto& [name, count] : sorted_counts(languages)) {
      if (++shown <= 20) page += bar_row(name, count, total(languages), "l");
    }
    page += "</table>\n";
  }
  if (lengths.is_object() && !lengths.empty()) {
    page += "<h2>Lengths <small>bytes of text, kept by the rules</small></h2><table>\n";
    for (int power = 0; power < 40; ++power) {
      if (lengths.contains(std::to_string(power)))
        page += bar_row(length_name(power), lengths[std::to_string(power)], total(lengths), "l");
    }
    page += "</table>\n";
  }
  page += bad_table(report) + samples_list(report.value("samples", Json::object()), dropped, kept);
  return page + "</html>\n";
}

}  // namespace sinter::data
