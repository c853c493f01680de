// The verbs below `sinter data` that make a training set of raw text.
#pragma once

namespace sinter::cli {

class Command;

void add_data_stages(Command data);    // extract, language, filter, scrub, dedup, decontaminate, mix, stats
void add_data_rank(Command data);      // rank train, rank apply
void add_data_pipeline(Command data);  // run, report

}  // namespace sinter::cli
