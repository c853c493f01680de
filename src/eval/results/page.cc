#include "eval/results/page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/html.h"
#include "base/text.h"

namespace sinter::eval {
namespace {

using Json = nlohmann::ordered_json;
using base::escape_html;

constexpr size_t kMostSamples = 200;  // of a task on the page; all are in the samples file
constexpr size_t kMostText = 20000;   // bytes of a prompt on the page

constexpr const char* kHead = R"html(<!doctype html><html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">
<title>Evaluation</title><style>
:root{--back:#fff;--text:#1c2024;--quiet:#60646c;--line:#d9d9e0;--soft:#f4f4f6;--bar:#3e63dd;--right:#18794e;--wrong:#c62a2f}
@media(prefers-color-scheme:dark){:root{--back:#16181b;--text:#e6e6e9;--quiet:#a0a3ab;--line:#363a3f;--soft:#202327;--bar:#849dff;--right:#4cc38a;--wrong:#ff8080}}
*{box-sizing:border-box}body{margin:0 auto;max-width:66rem;padding:1.5rem 1rem 4rem;background:var(--back);color:var(--text);font:15px/1.5 system-ui,sans-serif}
h1{font-size:1.5rem;margin:0 0 .25rem}h2{font-size:1.15rem;margin:2.25rem 0 .5rem}p.quiet,.quiet{color:var(--quiet);margin:0;overflow-wrap:anywhere}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}.wide{overflow-x:auto;margin:1rem 0}
th{font-weight:600;color:var(--quiet)}td,th{padding:.3rem .6rem;text-align:left;border-bottom:1px solid var(--line);white-space:nowrap}
td.n,th.n{text-align:right}td.b{width:40%;min-width:8rem}.bar{position:relative;height:.6rem;background:var(--soft);border-radius:3px}
.bar i{position:absolute;inset:0 auto 0 0;background:var(--bar);border-radius:3px}.bar b{position:absolute;top:.25rem;height:2px;background:var(--text)}
.tools{display:flex;gap:.5rem;flex-wrap:wrap;align-items:center;margin:.5rem 0}button,input{font:inherit;color:inherit;background:var(--soft);border:1px solid var(--line);border-radius:6px;padding:.2rem .7rem}
button[aria-pressed=true]{background:var(--bar);border-color:var(--bar);color:var(--back)}input{flex:1;min-width:10rem}
details{border:1px solid var(--line);border-left:4px solid var(--line);border-radius:6px;margin:.35rem 0}details.right{border-left-color:var(--right)}details.wrong{border-left-color:var(--wrong)}
summary{cursor:pointer;padding:.3rem .7rem;display:flex;gap:.7rem}summary>span:nth-child(2){flex:1;overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
summary:focus-visible,button:focus-visible,input:focus-visible{outline:2px solid var(--bar);outline-offset:1px}
.body{padding:0 .7rem .7rem}pre{white-space:pre-wrap;overflow-wrap:anywhere;background:var(--soft);border-radius:6px;padding:.6rem;margin:.4rem 0;font:13px/1.5 ui-monospace,monospace;max-height:24rem;overflow:auto}
.body td{white-space:normal;overflow-wrap:anywhere}.r{color:var(--right)}.w{color:var(--wrong)}h3{font-size:.85rem;margin:.6rem 0 0;color:var(--quiet)}
</style></head><body><main>
)html";

constexpr const char* kScript = R"html(</main><script>
for (const section of document.querySelectorAll("section")) {
  const buttons = section.querySelectorAll("button"), input = section.querySelector("input"), count = section.querySelector("output");
  let kind = "";
  const show = () => {
    const wanted = input.value.toLowerCase();
    let shown = 0;
    for (const one of section.querySelectorAll("details")) {
      one.hidden = (kind && !one.classList.contains(kind)) || (wanted && !one.textContent.toLowerCase().includes(wanted));
      shown += !one.hidden;
    }
    count.textContent = shown + " shown";
    for (const button of buttons) button.setAttribute("aria-pressed", button.dataset.kind === kind);
  };
  for (const button of buttons) button.onclick = () => { kind = button.dataset.kind; show(); };
  if (input) { input.oninput = show; show(); }
}
</script></body></html>
)html";

std::string text_block(std::string_view text) {
  const bool is_cut = text.size() > kMostText;
  size_t begin = is_cut ? text.size() - kMostText : 0;  // the end is what is asked
  while (begin < text.size() && (static_cast<unsigned char>(text[begin]) & 0xc0) == 0x80) ++begin;
  return "<pre>" + std::string(is_cut ? "…" : "") + escape_html(text.substr(begin)) + "</pre>";
}

// Whether a sample is right, by its first metric where that is 0 or 1.
std::optional<bool> verdict(const EvalSample& sample) {
  if (sample.filtered.empty() || sample.filtered[0].metrics.empty()) return std::nullopt;
  const double value = sample.filtered[0].metrics[0].value;
  if (value != 0 && value != 1) return std::nullopt;
  return value == 1;
}

// The last line of what was asked.
std::string title_of(const Question& question) {
  const std::string& text = question.contexts.empty() ? question.target : question.contexts[0];
  size_t end = text.find_last_not_of(" \n\r\t");
  if (end == std::string::npos) return "";
  size_t begin = text.find_last_of('\n', end);
  begin = begin == std::string::npos ? 0 : begin + 1;
  if (end - begin < 24 && begin > 1) {  // "Answer:": the line before tells more
    end = text.find_last_not_of(" \n\r\t", begin - 1);
    if (end == std::string::npos) return "";
    begin = text.find_last_of('\n', end);
    begin = begin == std::string::npos ? 0 : begin + 1;
  }
  return text.substr(begin, end + 1 - begin);
}

std::string results_table(const ResultTable& table) {
  std::string html =
      "<div class=\"wide\"><table><thead><tr><th>task<th>metric<th class=\"n\">shots<th class=\"n\">samples<th "
      "class=\"n\">score<th class=\"n\">±<th>0 to 1</tr></thead><tbody>";
  for (const ResultRow& row : table.rows) {
    bool is_first = true;
    for (const Aggregate& a : row.aggregates) {
      const std::string name = is_first ? escape_html(row.alias) : "";
      html += fmt::format("<tr><td style=\"padding-left:{}rem\">{}<td>{}{}<td class=\"n\">{}<td class=\"n\">{}",
                          0.6 + 1.2 * row.depth, row.is_group ? "<strong>" + name + "</strong>" : name,
                          escape_html(a.metric), a.filter == "none" ? "" : ", " + escape_html(a.filter),
                          row.num_few_shot >= 0 ? std::to_string(row.num_few_shot) : "", row.num_samples);
      html += fmt::format("<td class=\"n\">{:.4f}<td class=\"n\">{}", a.value,
                          a.error ? fmt::format("{:.4f}", *a.error) : "");
      const bool is_share = a.value >= 0 && a.value <= 1 && a.higher_is_better;
      html += "<td class=\"b\">";
      if (is_share) {
        const double error = a.error.value_or(0), low = std::max(0.0, a.value - 1.96 * error),
                     high = std::min(1.0, a.value + 1.96 * error);
        html += fmt::format("<div class=\"bar\"><i style=\"width:{:.1f}%\"></i>", 100 * a.value);
        if (error > 0)
          html += fmt::format("<b style=\"left:{:.1f}%;width:{:.1f}%\"></b>", 100 * low, 100 * (high - low));
        html += "</div>";
      }
      html += "</tr>";
      is_first = false;
    }
  }
  return html + "</tbody></table></div>";
}

std::string choices_table(const EvalSample& sample) {
  const Question& q = sample.question;
  size_t best = 0;
  double most = -1e300, sum = 0;
  for (size_t i = 0; i < sample.scores.size(); ++i) {
    if (sample.scores[i].log_likelihood > sample.scores[best].log_likelihood) best = i;
    most = std::max(most, sample.scores[i].log_likelihood);
  }
  for (const Score& score : sample.scores) sum += std::exp(score.log_likelihood - most);
  std::string html = "<div class=\"wide\"><table><tr><th><th>choice<th class=\"n\">log-likelihood<th>of these</tr>";
  for (size_t i = 0; i < sample.scores.size(); ++i) {
    const bool is_gold = static_cast<int64_t>(i) == q.gold, is_best = i == best;
    const char* mark = is_gold && is_best ? "<span class=\"r\">✓ likeliest</span>"
                       : is_gold          ? "<span class=\"r\">✓ right</span>"
                       : is_best          ? "<span class=\"w\">likeliest</span>"
                                          : "";
    const double share = std::exp(sample.scores[i].log_likelihood - most) / sum;
    html += fmt::format(
        "<tr><td>{}<td>{}<td class=\"n\">{:.3f}<td class=\"b\"><div class=\"bar\"><i "
        "style=\"width:{:.1f}%\"></i></div></tr>",
        mark, escape_html(i < q.choices.size() ? q.choices[i] : q.continuation(i)), sample.scores[i].log_likelihood,
        100 * share);
  }
  return html + "</table></div>";
}

std::string sample_html(const TaskRun& run, const EvalSample& sample) {
  const Question& q = sample.question;
  const std::optional<bool> is_right = verdict(sample);
  std::string told;
  for (const SampleMetric& m : sample.filtered[0].metrics) {
    if (told.size() < 60) told += fmt::format("{}{} {:.4g}", told.empty() ? "" : "  ", m.name, m.value);
  }
  std::string html = fmt::format(
      "<details{}><summary><span class=\"quiet\">{}</span><span>{}</span><span class=\"quiet\">{}</span></summary><div "
      "class=\"body\">",
      is_right ? (*is_right ? " class=\"right\"" : " class=\"wrong\"") : "", q.document, escape_html(title_of(q)),
      escape_html(told));
  if (!q.contexts.empty()) html += "<h3>asked</h3>" + text_block(q.contexts[0]);
  if (run.task->kind == TaskKind::multiple_choice) {
    html += choices_table(sample);
  } else {
    for (const GenerationResult& g : sample.generations) html += "<h3>answered</h3>" + text_block(g.text);
    for (size_t f = 0; f < sample.filtered.size() && run.task->kind == TaskKind::generate; ++f) {
      if (sample.filtered[f].answers.empty() || run.task->filters[f].name == "none") continue;
      html += fmt::format("<h3>{}</h3>", escape_html(run.task->filters[f].name));
      for (const std::string& answer : sample.filtered[f].answers) html += text_block(answer);
    }
    for (const Score& score : sample.scores)
      html += fmt::format("<p class=\"quiet\">log-likelihood {:.3f}{}</p>", score.log_likelihood,
                          score.is_greedy ? ", each token the likeliest" : "");
    if (!q.target.empty()) html += "<h3>expected</h3>" + text_block(q.target);
  }
  return html + "</div></details>\n";
}

std::string task_section(const TaskRun& run) {
  size_t right = 0, wrong = 0;
  const size_t shown = std::min(kMostSamples, run.samples.size());
  std::string samples;
  for (size_t s = 0; s < shown; ++s) {
    const std::optional<bool> is_right = verdict(run.samples[s]);
    if (is_right) ++(*is_right ? right : wrong);
    samples += sample_html(run, run.samples[s]);
  }
  std::string html = fmt::format("<section><h2>{}</h2><p class=\"quiet\">{}{}</p><div class=\"tools\">",
                                 escape_html(run.task->name), escape_html(run.documents.path),
                                 shown < run.samples.size()
                                     ? fmt::format("; the first {} of {} samples, all of them in samples_{}.jsonl",
                                                   shown, run.samples.size(), escape_html(run.task->name))
                                     : fmt::format("; {} samples", shown));
  html += fmt::format("<button data-kind=\"\">all</button>");
  if (right + wrong > 0)
    html += fmt::format("<button data-kind=\"right\">right {}</button><button data-kind=\"wrong\">wrong {}</button>",
                        right, wrong);
  html += fmt::format(
      "<input type=\"search\" placeholder=\"find in samples\" aria-label=\"find in samples of {}\"><output "
      "class=\"quiet\"></output></div>\n",
      escape_html(run.task->name));
  return html + samples + "</section>\n";
}

std::string about(const Json& report) {
  const auto date = report.value("date", int64_t{0});
  const std::time_t time = date;
  std::tm parts{};
  gmtime_r(&time, &parts);
  char when[32];
  std::strftime(when, sizeof when, "%Y-%m-%d %H:%M UTC", &parts);
  const Json &config = report.at("config"), &tokens = report.at("tokens");
  std::string text =
      fmt::format("{}, {} on {}{}, {:.1f} s", when, config.value("dtype", ""), config.value("device", ""),
                  config.value("apply_chat_template", false) ? ", chat template" : "",
                  report.value("total_evaluation_time_seconds", 0.0));
  if (const auto computed = tokens.value("computed", int64_t{0}); computed > 0)
    text += fmt::format("; {} tokens asked, {} computed", base::format_grouped(tokens.value("asked", int64_t{0})),
                        base::format_grouped(computed));
  if (report.contains("energy"))
    text += fmt::format("; {:.2f} Wh, {:.2f} g CO₂", report["energy"].value("joules", 0.0) / 3600,
                        report["energy"].value("co2_grams", 0.0));
  return fmt::format(
      "<h1>Evaluation</h1><p><strong>{}</strong> <span class=\"quiet\">{}</span></p><p class=\"quiet\">{}</p>",
      escape_html(report.value("model_name", "")), escape_html(report.value("model_hash", "")), escape_html(text));
}

}  // namespace

std::string make_page(const std::vector<TaskRun>& runs, const ResultTable& table, const Json& report) {
  std::string html = kHead + about(report) + results_table(table);
  for (const TaskRun& run : runs) html += task_section(run);
  return html + kScript;
}

}  // namespace sinter::eval
