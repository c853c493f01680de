// What a run did, to look at before training on it: a funnel by stage and reason, lengths, languages, samples.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace sinter::data {

// Adds a part's statistics to a report's; at most `samples` samples of each reason stay.
void merge_statistics(nlohmann::json& report, const nlohmann::json& part, int64_t samples);
// Adds what the second stage shows of a part: documents that were kept, and those that went as duplicates or by rank.
void merge_samples(nlohmann::json& report, const nlohmann::json& part, int64_t samples);
// A page that needs nothing else, of OUTPUT/report.json.
std::string report_html(const nlohmann::json& report, const std::string& title);

}  // namespace sinter::data
