#include "data/formats/token_files.h"

#include <fmt/format.h>

#include <cstring>
#include <filesystem>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/file.h"
#include "base/text.h"

namespace sinter::data {
namespace {

constexpr std::string_view kMegatronMagic("MMIDIDX\0\0", 9);
constexpr uint8_t kUint16Code = 8, kInt32Code = 4;

template <class T>
T load(std::string_view bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

std::vector<int32_t> ids_of(std::string_view bytes, size_t begin, size_t count, int token_bytes) {
  std::vector<int32_t> ids(count);
  for (size_t i = 0; i < count; ++i) {
    ids[i] = token_bytes == 2 ? load<uint16_t>(bytes, (begin + i) * 2)
                              : static_cast<int32_t>(load<uint32_t>(bytes, (begin + i) * 4));
  }
  return ids;
}

std::string bytes_of(const std::vector<std::vector<int32_t>>& documents, int token_bytes, const std::string& path) {
  std::string out;
  for (const std::vector<int32_t>& document : documents) {
    for (int32_t id : document) {
      SINTER_CHECK(id >= 0 && (token_bytes == 4 || id < 65536), "'{}': token {} does not fit {} bytes", path, id,
                   token_bytes);
      out.append(reinterpret_cast<const char*>(&id), static_cast<size_t>(token_bytes));
    }
  }
  return out;
}

}  // namespace

TokenDocuments read_datatrove(const std::string& path, int token_bytes) {
  const base::MappedFile tokens(path), index(path + ".index");
  const std::string_view bytes = tokens.text(), ends = index.text();
  SINTER_CHECK(ends.size() % 8 == 0, "'{}' has {} bytes; expected a multiple of 8", index.path(), ends.size());
  TokenDocuments result;
  result.token_bytes = token_bytes;
  std::string mask;
  if (std::filesystem::exists(path + ".loss")) {
    mask = base::read_file(path + ".loss");
    SINTER_CHECK(mask.size() * static_cast<size_t>(token_bytes) == bytes.size(), "'{}.loss' has {} bytes for {} tokens",
                 path, mask.size(), bytes.size() / static_cast<size_t>(token_bytes));
  }
  uint64_t begin = 0;
  for (size_t i = 0; i < ends.size() / 8; ++i) {
    const auto end = load<uint64_t>(ends, i * 8);
    SINTER_CHECK(end >= begin && end <= bytes.size() / static_cast<size_t>(token_bytes),
                 "'{}': document {} ends at token {}; expected {} to {}", index.path(), i, end, begin,
                 bytes.size() / static_cast<size_t>(token_bytes));
    result.documents.push_back(ids_of(bytes, begin, end - begin, token_bytes));
    if (!mask.empty())
      result.loss_masks.emplace_back(mask.begin() + static_cast<int64_t>(begin),
                                     mask.begin() + static_cast<int64_t>(end));
    begin = end;
  }
  return result;
}

void write_datatrove(const std::string& path, const TokenDocuments& tokens, std::string_view tokenizer_name) {
  std::string index, mask;
  uint64_t end = 0;
  for (size_t i = 0; i < tokens.documents.size(); ++i) {
    end += tokens.documents[i].size();
    index.append(reinterpret_cast<const char*>(&end), 8);
    if (!tokens.loss_masks.empty()) mask.append(tokens.loss_masks[i].begin(), tokens.loss_masks[i].end());
  }
  base::write_file_atomic(path, bytes_of(tokens.documents, tokens.token_bytes, path));
  base::write_file_atomic(path + ".index", index);
  if (!tokens.loss_masks.empty()) base::write_file_atomic(path + ".loss", mask);
  base::write_file_atomic(path + ".metadata", fmt::format("{}|{}\n{}\n{}", tokenizer_name, tokens.token_bytes, end,
                                                          base::format_count(static_cast<double>(end))));
}

TokenDocuments read_megatron(const std::string& stem) {
  const base::MappedFile tokens(stem + ".bin"), index(stem + ".idx");
  const std::string_view bytes = tokens.text(), idx = index.text();
  SINTER_CHECK(idx.size() >= 34 && idx.starts_with(kMegatronMagic), "'{}' is not an index of Megatron's", index.path());
  const auto version = load<uint64_t>(idx, 9);
  const auto code = load<uint8_t>(idx, 17);
  const auto sequences = load<uint64_t>(idx, 18), documents = load<uint64_t>(idx, 26);
  SINTER_CHECK(version == 1 && (code == kUint16Code || code == kInt32Code),
               "'{}': version {} and type {}; expected 1, and 8 or 4", index.path(), version, code);
  SINTER_CHECK(sequences < (uint64_t{1} << 40) && documents < (uint64_t{1} << 40) &&
                   idx.size() == 34 + 12 * sequences + 8 * documents,
               "'{}' has {} bytes for {} sequences and {} documents", index.path(), idx.size(), sequences, documents);
  TokenDocuments result;
  result.token_bytes = code == kUint16Code ? 2 : 4;
  for (size_t i = 0; i < sequences; ++i) {
    const auto length = load<int32_t>(idx, 34 + 4 * i);
    const auto offset = load<int64_t>(idx, 34 + 4 * sequences + 8 * i);
    const auto size = static_cast<uint64_t>(length) * static_cast<uint64_t>(result.token_bytes);
    SINTER_CHECK(length >= 0 && offset >= 0 && static_cast<uint64_t>(offset) + size <= bytes.size() &&
                     offset % result.token_bytes == 0,
                 "'{}': sequence {} at {} with {} tokens lies outside '{}'", index.path(), i, offset, length,
                 tokens.path());
    result.documents.push_back(ids_of(bytes, static_cast<size_t>(offset / result.token_bytes),
                                      static_cast<size_t>(length), result.token_bytes));
  }
  return result;
}

void write_megatron(const std::string& stem, const TokenDocuments& tokens) {
  std::string idx(kMegatronMagic);
  auto put = [&](auto value) { idx.append(reinterpret_cast<const char*>(&value), sizeof value); };
  const uint64_t n = tokens.documents.size();
  put(uint64_t{1});
  put(tokens.token_bytes == 2 ? kUint16Code : kInt32Code);
  put(n);
  put(n + 1);
  for (const auto& document : tokens.documents) put(static_cast<int32_t>(document.size()));
  int64_t offset = 0;
  for (const auto& document : tokens.documents) {
    put(offset);
    offset += static_cast<int64_t>(document.size()) * tokens.token_bytes;
  }
  for (uint64_t i = 0; i <= n; ++i) put(static_cast<int64_t>(i));
  base::write_file_atomic(stem + ".bin", bytes_of(tokens.documents, tokens.token_bytes, stem + ".bin"));
  base::write_file_atomic(stem + ".idx", idx);
}

}  // namespace sinter::data
