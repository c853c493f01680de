#include "base/error.h"
#include "data/formats/document.h"

namespace sinter::data {

bool has_parquet() { return false; }
void read_parquet(const std::string& path, const ParquetVisitor&) {
  base::fail(
      "'{}' is a Parquet file, and this program was built without Apache Arrow: build it with the pyarrow wheel or "
      "Arrow's packages installed, or turn the file into .jsonl",
      path);
}

}  // namespace sinter::data
