#include <algorithm>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/threads.h"
#include "data/pipeline/work.h"

namespace sinter::data {
namespace {

struct Entry {
  uint64_t key;
  uint32_t document;
};

// Slices of the keys' range that are sorted one at a time, so that the entries of one fit the memory.
size_t num_slices(size_t entries, uint64_t memory, int threads) {
  const uint64_t room = std::max<uint64_t>(memory / 2 / static_cast<uint64_t>(threads), uint64_t{1} << 20);
  return std::max<size_t>(1, (entries * sizeof(Entry) + room - 1) / room);
}

// Pairs (earlier, later) of documents with an equal key: neighbours in sorted order.
void add_pairs(std::vector<Entry>& entries, std::vector<uint32_t>& pairs) {
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return a.key != b.key ? a.key < b.key : a.document < b.document; });
  for (size_t i = 1; i < entries.size(); ++i) {
    if (entries[i].key != entries[i - 1].key) continue;
    pairs.push_back(entries[i - 1].document);
    pairs.push_back(entries[i].document);
  }
}

}  // namespace

Duplicates find_duplicates(const std::vector<WorkPart>& parts, const std::vector<size_t>& first_document,
                           const PipelineRecipe& recipe, const WorkFolder& folder, int rank, int num_ranks,
                           const std::function<void()>& barrier) {
  const size_t count = first_document.back();
  SINTER_CHECK(count < UINT32_MAX, "{} documents; at most {} in one run", count, UINT32_MAX);
  Duplicates result{std::vector<bool>(count), std::vector<bool>(count)};
  const size_t num_bands = recipe.dedup_minhash ? static_cast<size_t>(recipe.minhash.bands) : 0;
  uint64_t key = num_bands;
  for (const WorkPart& part : parts) key = base::mix_bits(key, part.key);
  const int threads = base::num_threads();
  const size_t slices = num_slices(count * (num_bands + 1), recipe.memory, threads);
  auto path_of = [&](size_t slice) {
    return fmt::format("{}/work/pairs-{:016x}-{:05}-of-{:05}", folder.output(), key, slice, slices);
  };
  // Keys of all bands of a slice together: a band's number is mixed in, so bands do not meet.
  auto find_slice = [&](size_t slice) {
    if (std::filesystem::exists(path_of(slice))) return;
    std::vector<Entry> exact, near;
    for (size_t p = 0; p < parts.size(); ++p) {
      const PartMarks marks = read_marks(folder.stem(parts[p]) + ".marks", num_bands);
      for (size_t d = 0; d < marks.documents.size(); ++d) {
        const auto document = static_cast<uint32_t>(first_document[p] + d);
        const DocumentMark& mark = marks.documents[d];
        if (recipe.dedup_exact && mark.text_low % slices == slice)
          exact.push_back({base::mix_bits(mark.text_low, mark.text_high), document});
        for (size_t band = 0; mark.has_signature && band < num_bands; ++band) {
          const uint64_t h = base::mix_bits(marks.bands[d * num_bands + band], band);
          if (h % slices == slice) near.push_back({h, document});
        }
      }
    }
    std::vector<uint32_t> exact_pairs, near_pairs;
    add_pairs(exact, exact_pairs);
    add_pairs(near, near_pairs);
    const uint64_t num_exact = exact_pairs.size();
    base::AtomicFile file(path_of(slice));
    file.append(std::as_bytes(std::span(&num_exact, 1)));
    file.append(std::as_bytes(std::span(exact_pairs)));
    file.append(std::as_bytes(std::span(near_pairs)));
    file.commit();
  };
  std::vector<size_t> mine;
  for (size_t slice = 0; slice < slices; ++slice) {
    if (slice % static_cast<size_t>(num_ranks) == static_cast<size_t>(rank)) mine.push_back(slice);
  }
  base::parallel_for(static_cast<int64_t>(mine.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) find_slice(mine[static_cast<size_t>(i)]);
  });
  barrier();
  DisjointSets sets(count);
  for (size_t slice = 0; slice < slices; ++slice) {
    const std::string bytes = base::read_file(path_of(slice));
    uint64_t num_exact = 0;
    std::memcpy(&num_exact, bytes.data(), 8);
    std::vector<uint32_t> pairs((bytes.size() - 8) / 4);
    if (!pairs.empty()) std::memcpy(pairs.data(), bytes.data() + 8, pairs.size() * 4);
    for (size_t i = 0; i + 1 < pairs.size(); i += 2) {
      sets.join(pairs[i], pairs[i + 1]);
      if (i < num_exact) result.exact[pairs[i + 1]] = true;
    }
  }
  for (uint32_t d = 0; d < count; ++d) result.near[d] = sets.root(d) != d && !result.exact[d];
  return result;
}

}  // namespace sinter::data
