// Tables of comma-separated values whose first row names the columns.
#pragma once
#include "data/formats/document.h"

namespace sinter::data {

// Documents of the rows, in bounded memory; a row of another number of fields, or longer than max_record_bytes, is bad.
void read_csv(const FilePart& part, const ReadOptions& options, const ReadVisitor& visitor);

}  // namespace sinter::data
