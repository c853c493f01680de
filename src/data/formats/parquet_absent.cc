#include "base/error.h"
#include "data/formats/document.h"

namespace sinter::data {

bool has_parquet() { return false; }
void read_parquet(const std::string& path, const ParquetVisitor&) {
  base::fail(
      "'{}' is a Parquet file, and this program was built without Apache Arrow: run tools/setup, which fetches it, and "
      "build again, or turn the file into .jsonl",
      path);
}

void read_parquet_bytes(std::string_view, const ParquetVisitor& visitor) {
  visitor.bad("Parquet: this program was built without Apache Arrow");
}

}  // namespace sinter::data
