// A whole pipeline: parts of the input files to filtered documents, near duplicates out, the best kept, shards written.
//
// The work is cut into parts by bytes of the input, whatever the number of workers, and every part's results are files
// named by what they were made of: a run that was killed goes on where it was, and 1 or 100 workers write the same
// bytes. Threads share the parts of one process; ranks (mpirun, srun) share a folder.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "data/pipeline/recipe.h"

namespace sinter::data {

struct RunSummary {
  int64_t parts = 0, parts_done_before = 0;
  int64_t documents = 0, bytes = 0;  // read, and the UTF-8 bytes of their texts before the rules
  int64_t kept = 0, kept_bytes = 0, tokens = 0;
  int64_t bad_records = 0;
  std::map<std::string, int64_t> dropped;      // "stage/reason" to documents
  std::map<std::string, int64_t> bad_reasons;  // why records were set aside; # stands for a number
  double seconds = 0;
};

// Throws base::Error for a recipe or file that cannot be used; bad records are counted and kept in OUTPUT/aside.
//   OUTPUT/documents/NNNNN.jsonl.zst  what is kept, in the order of the input
//   OUTPUT/tokens/NNNNN.tok           token shards, where the recipe has a tokenizer
//   OUTPUT/columns/NNNNN.jsonl.zst    every document's id, verdict and columns, in the order of the input
//   OUTPUT/aside/NNNNN.jsonl          bad records
//   OUTPUT/report.json                counts by stage and reason, samples of what was kept and dropped
//   OUTPUT/manifest.json              every file of documents and tokens: its digest, and what it was made of
RunSummary run_pipeline(const PipelineRecipe& recipe, comm::Communicator& world);

}  // namespace sinter::data
