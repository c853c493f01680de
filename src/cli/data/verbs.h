// The verbs below `sinter data` that make a training set of raw text.
#pragma once

namespace sinter::cli {

class Command;

void add_data_stages(Command data);    // extract, language, filter, scrub, dedup, decontaminate
void add_data_cut(Command data);       // stats, cut
void add_data_rank(Command data);      // rank train, rank ngrams, rank apply
void add_data_pipeline(Command data);  // run, report
void add_data_synth(Command data);     // synth
void add_data_mix(Command data);       // mix
void add_data_tokens(Command data);    // preview, shards

}  // namespace sinter::cli
