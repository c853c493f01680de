// Parquet by Apache Arrow; the only file that includes its headers.
#include <arrow/api.h>
#include <arrow/io/file.h>
#include <arrow/io/memory.h>
#include <arrow/memory_pool.h>
#include <arrow/util/decimal.h>
#include <fmt/format.h>
#include <parquet/arrow/reader.h>
#include <parquet/exception.h>
#include <parquet/properties.h>

#include <cmath>
#include <functional>
#include <memory>
#include <string>

#include "base/base64.h"
#include "data/formats/document.h"
#include "data/text/characters.h"

namespace sinter::data {
namespace {

void append_base64(std::string& out, std::string_view bytes) {
  out += "{\"b64\":\"" + base::encode_base64(bytes) + "\"}";
}

void append_float(std::string& out, double value) {
  if (std::isfinite(value)) {
    fmt::format_to(std::back_inserter(out), "{}", value);
    if (value == std::floor(value) && out.find_last_of(".e") == std::string::npos) out += ".0";
  } else {
    out += std::isnan(value) ? "{\"float\":\"nan\"}" : value > 0 ? "{\"float\":\"inf\"}" : "{\"float\":\"-inf\"}";
  }
}

// Days since 1970 as year, month, day (proleptic Gregorian).
std::string iso_date(int64_t days) {
  const int64_t z = days + 719468, era = (z >= 0 ? z : z - 146096) / 146097;
  const int64_t day_of_era = z - era * 146097;
  const int64_t year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146096) / 365;
  const int64_t day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
  const int64_t month_index = (5 * day_of_year + 2) / 153;
  const int64_t day = day_of_year - (153 * month_index + 2) / 5 + 1,
                month = month_index < 10 ? month_index + 3 : month_index - 9;
  return fmt::format("{:04}-{:02}-{:02}", year_of_era + era * 400 + (month <= 2), month, day);
}

std::string iso_time(int64_t micros) {
  std::string out =
      fmt::format("{:02}:{:02}:{:02}", micros / 3600000000, micros / 60000000 % 60, micros / 1000000 % 60);
  if (micros % 1000000 != 0) out += fmt::format(".{:06}", micros % 1000000);
  return out;
}

int64_t to_micros(int64_t value, arrow::TimeUnit::type unit) {
  switch (unit) {
    case arrow::TimeUnit::SECOND:
      return value * 1000000;
    case arrow::TimeUnit::MILLI:
      return value * 1000;
    case arrow::TimeUnit::MICRO:
      return value;
    case arrow::TimeUnit::NANO:
      return (value - ((value % 1000) + 1000) % 1000) / 1000;
  }
  return value;
}

std::string iso_timestamp(int64_t micros, bool has_zone) {
  constexpr int64_t kDay = 86400000000;
  const int64_t days = (micros >= 0 ? micros : micros - kDay + 1) / kDay;
  return iso_date(days) + "T" + iso_time(micros - days * kDay) + (has_zone ? "+00:00" : "");
}

void append_value(std::string& out, const arrow::Array& array, int64_t i);

void append_list(std::string& out, const arrow::Array& values, int64_t begin, int64_t end) {
  out.push_back('[');
  for (int64_t k = begin; k < end; ++k) {
    if (k > begin) out.push_back(',');
    append_value(out, values, k);
  }
  out.push_back(']');
}

template <class Array>
void append_range(std::string& out, const arrow::Array& array, int64_t i) {
  const auto& list = static_cast<const Array&>(array);
  append_list(out, *list.values(), list.value_offset(i), list.value_offset(i) + list.value_length(i));
}

template <class Array>
std::string_view view_of(const arrow::Array& array, int64_t i) {
  return static_cast<const Array&>(array).GetView(i);
}

void append_struct(std::string& out, const arrow::StructArray& array, int64_t i) {
  out.push_back('{');
  for (int f = 0; f < array.num_fields(); ++f) {
    if (f > 0) out.push_back(',');
    append_json_string(out, array.struct_type()->field(f)->name());
    out.push_back(':');
    append_value(out, *array.field(f), i);
  }
  out.push_back('}');
}

void append_map(std::string& out, const arrow::MapArray& array, int64_t i) {
  out.push_back('[');
  for (int64_t k = array.value_offset(i); k < array.value_offset(i) + array.value_length(i); ++k) {
    if (k > array.value_offset(i)) out.push_back(',');
    out.push_back('[');
    append_value(out, *array.keys(), k);
    out.push_back(',');
    append_value(out, *array.items(), k);
    out.push_back(']');
  }
  out.push_back(']');
}

void append_value(std::string& out, const arrow::Array& array, int64_t i) {
  using T = arrow::Type;
  if (array.IsNull(i)) {
    out += "null";
    return;
  }
  auto number = [&](auto value) { out += std::to_string(value); };
  switch (array.type_id()) {
    case T::BOOL:
      out += static_cast<const arrow::BooleanArray&>(array).Value(i) ? "true" : "false";
      return;
    case T::INT8:
      return number(static_cast<const arrow::Int8Array&>(array).Value(i));
    case T::INT16:
      return number(static_cast<const arrow::Int16Array&>(array).Value(i));
    case T::INT32:
      return number(static_cast<const arrow::Int32Array&>(array).Value(i));
    case T::INT64:
      return number(static_cast<const arrow::Int64Array&>(array).Value(i));
    case T::UINT8:
      return number(static_cast<const arrow::UInt8Array&>(array).Value(i));
    case T::UINT16:
      return number(static_cast<const arrow::UInt16Array&>(array).Value(i));
    case T::UINT32:
      return number(static_cast<const arrow::UInt32Array&>(array).Value(i));
    case T::UINT64:
      return number(static_cast<const arrow::UInt64Array&>(array).Value(i));
    case T::FLOAT:
      return append_float(out, static_cast<const arrow::FloatArray&>(array).Value(i));
    case T::DOUBLE:
      return append_float(out, static_cast<const arrow::DoubleArray&>(array).Value(i));
    case T::HALF_FLOAT: {
      const auto scalar = array.GetScalar(i);
      return append_float(out, scalar.ok() ? std::strtod((*scalar)->ToString().c_str(), nullptr) : 0);
    }
    case T::STRING:
      return append_json_string(out, to_valid_utf8(view_of<arrow::StringArray>(array, i)));
    case T::LARGE_STRING:
      return append_json_string(out, to_valid_utf8(view_of<arrow::LargeStringArray>(array, i)));
    case T::STRING_VIEW:
      return append_json_string(out, to_valid_utf8(view_of<arrow::StringViewArray>(array, i)));
    case T::BINARY:
      return append_base64(out, view_of<arrow::BinaryArray>(array, i));
    case T::LARGE_BINARY:
      return append_base64(out, view_of<arrow::LargeBinaryArray>(array, i));
    case T::FIXED_SIZE_BINARY:
      return append_base64(out, view_of<arrow::FixedSizeBinaryArray>(array, i));
    case T::DECIMAL128:
      return append_json_string(out, static_cast<const arrow::Decimal128Array&>(array).FormatValue(i));
    case T::DATE32:
      return append_json_string(out, iso_date(static_cast<const arrow::Date32Array&>(array).Value(i)));
    case T::TIME32:
      return append_json_string(out, iso_time(to_micros(static_cast<const arrow::Time32Array&>(array).Value(i),
                                                        static_cast<const arrow::Time32Type&>(*array.type()).unit())));
    case T::TIME64:
      return append_json_string(out, iso_time(to_micros(static_cast<const arrow::Time64Array&>(array).Value(i),
                                                        static_cast<const arrow::Time64Type&>(*array.type()).unit())));
    case T::TIMESTAMP: {
      const auto& type = static_cast<const arrow::TimestampType&>(*array.type());
      return append_json_string(
          out, iso_timestamp(to_micros(static_cast<const arrow::TimestampArray&>(array).Value(i), type.unit()),
                             !type.timezone().empty()));
    }
    case T::LIST:
      return append_range<arrow::ListArray>(out, array, i);
    case T::LARGE_LIST:
      return append_range<arrow::LargeListArray>(out, array, i);
    case T::FIXED_SIZE_LIST:
      return append_range<arrow::FixedSizeListArray>(out, array, i);
    case T::STRUCT:
      return append_struct(out, static_cast<const arrow::StructArray&>(array), i);
    case T::MAP:
      return append_map(out, static_cast<const arrow::MapArray&>(array), i);
    case T::DICTIONARY: {
      const auto& dictionary = static_cast<const arrow::DictionaryArray&>(array);
      return append_value(out, *dictionary.dictionary(), dictionary.GetValueIndex(i));
    }
    default: {
      const auto scalar = array.GetScalar(i);
      append_json_string(out, scalar.ok() ? (*scalar)->ToString() : "");
    }
  }
}

// Of all columns of a row group; a damaged page may claim any size.
constexpr int64_t kMostMemory = int64_t{2} << 30;

arrow::Status read_batches(std::shared_ptr<arrow::io::RandomAccessFile> file, const ParquetVisitor& visitor) {
  arrow::CappedMemoryPool pool(arrow::default_memory_pool(), kMostMemory);
  parquet::ReaderProperties properties(&pool);
  properties.set_page_checksum_verification(true);
  parquet::arrow::FileReaderBuilder builder;
  ARROW_RETURN_NOT_OK(builder.Open(std::move(file), properties));
  builder.memory_pool(&pool);
  parquet::ArrowReaderProperties arrow_properties;
  arrow_properties.set_use_threads(false);
  arrow_properties.set_batch_size(1024);
  builder.properties(arrow_properties);
  ARROW_ASSIGN_OR_RAISE(auto reader, builder.Build());
  ARROW_ASSIGN_OR_RAISE(auto batches, reader->GetRecordBatchReader());
  for (;;) {
    ARROW_ASSIGN_OR_RAISE(auto batch, batches->Next());
    if (!batch) return arrow::Status::OK();
    ARROW_RETURN_NOT_OK(batch->ValidateFull());
    for (int64_t i = 0; i < batch->num_rows(); ++i) {
      std::string row = "{";
      for (int c = 0; c < batch->num_columns(); ++c) {
        if (c > 0) row.push_back(',');
        append_json_string(row, batch->schema()->field(c)->name());
        row.push_back(':');
        append_value(row, *batch->column(c), i);
      }
      row.push_back('}');
      visitor.row(std::move(row));
    }
  }
}

}  // namespace

bool has_parquet() { return true; }

namespace {

void read_file(const std::function<arrow::Status()>& read, const ParquetVisitor& visitor) {
  try {
    const arrow::Status status = read();
    if (!status.ok()) visitor.bad("Parquet: " + status.ToString());
  } catch (const std::exception& e) {  // what the library throws for damaged pages
    visitor.bad(std::string("Parquet: ") + e.what());
  }
}

}  // namespace

void read_parquet(const std::string& path, const ParquetVisitor& visitor) {
  read_file(
      [&]() -> arrow::Status {
        ARROW_ASSIGN_OR_RAISE(auto file, arrow::io::MemoryMappedFile::Open(path, arrow::io::FileMode::READ));
        return read_batches(file, visitor);
      },
      visitor);
}

void read_parquet_bytes(std::string_view bytes, const ParquetVisitor& visitor) {
  auto buffer = std::make_shared<arrow::Buffer>(reinterpret_cast<const uint8_t*>(bytes.data()), std::ssize(bytes));
  read_file([&] { return read_batches(std::make_shared<arrow::io::BufferReader>(buffer), visitor); }, visitor);
}

}  // namespace sinter::data
