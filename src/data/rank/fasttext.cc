#include "data/rank/fasttext.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/file.h"
#include "data/rank/fasttext_format.h"

namespace sinter::data {
namespace {

constexpr int32_t kHierarchical = 1, kNegativeSampling = 2, kSoftmax = 3, kOneVsAll = 4;

// Reads a file's fields in order; every read past the end is an error that names the file.
class FieldReader {
 public:
  FieldReader(std::string_view bytes, const std::string& origin) : bytes_(bytes), origin_(origin) {}
  template <class T>
  T get() {
    T value;
    std::memcpy(&value, take(sizeof(T)), sizeof(T));
    return value;
  }
  template <class T>
  std::vector<T> get_many(int64_t count, const char* what) {
    SINTER_CHECK(count >= 0 && static_cast<uint64_t>(count) <= left() / sizeof(T),
                 "'{}': {} has {} values; the file has {} bytes left: it is damaged or cut off", origin_, what, count,
                 left());
    std::vector<T> values(static_cast<size_t>(count));
    if (count > 0) std::memcpy(values.data(), take(values.size() * sizeof(T)), values.size() * sizeof(T));
    return values;
  }
  std::string_view text() {
    const size_t end = bytes_.find('\0', at_);
    SINTER_CHECK(end != std::string_view::npos, "'{}': a word of the dictionary does not end", origin_);
    const std::string_view word = bytes_.substr(at_, end - at_);
    at_ = end + 1;
    return word;
  }
  size_t left() const { return bytes_.size() - at_; }

 private:
  const char* take(size_t size) {
    SINTER_CHECK(size <= left(), "'{}': the file ends early, at byte {}; expected {} more", origin_, bytes_.size(),
                 size);
    at_ += size;
    return bytes_.data() + at_ - size;
  }
  std::string_view bytes_;
  const std::string& origin_;
  size_t at_ = 0;
};

// Product quantizer: every sub-vector is one of 256 centroids.
struct ProductQuantizer {
  int32_t dim = 0, num_sub = 0, sub_dim = 0, last_dim = 0;
  std::vector<float> centroids;
  void read(FieldReader& in, const std::string& origin) {
    dim = in.get<int32_t>();
    num_sub = in.get<int32_t>();
    sub_dim = in.get<int32_t>();
    last_dim = in.get<int32_t>();
    const bool is_sound = dim > 0 && num_sub > 0 && sub_dim > 0 && last_dim > 0 && last_dim <= sub_dim &&
                          (int64_t{num_sub} - 1) * sub_dim + last_dim == dim;
    SINTER_CHECK(is_sound, "'{}': a quantizer of {} values in {} parts of {} and {} is not sound", origin, dim, num_sub,
                 sub_dim, last_dim);
    centroids = in.get_many<float>(int64_t{dim} * 256, "a quantizer");
  }
  const float* centroid(int32_t sub, uint8_t code) const {
    const int32_t size = sub == num_sub - 1 ? last_dim : sub_dim;
    return centroids.data() + static_cast<size_t>(sub) * 256 * static_cast<size_t>(sub_dim) +
           static_cast<size_t>(code) * static_cast<size_t>(size);
  }
};

// A dense or quantized matrix (M, N).
struct Matrix {
  int64_t rows = 0, columns = 0;
  std::vector<float> dense;
  bool is_quantized = false, has_norms = false;
  std::vector<uint8_t> codes, norm_codes;
  ProductQuantizer quantizer, norm_quantizer;

  void read_dense(FieldReader& in, const std::string& origin) {
    rows = in.get<int64_t>();
    columns = in.get<int64_t>();
    check_shape(origin);
    dense = in.get_many<float>(rows * columns, "a matrix");
  }
  void read_quantized(FieldReader& in, const std::string& origin) {
    is_quantized = true;
    has_norms = in.get<uint8_t>() != 0;
    rows = in.get<int64_t>();
    columns = in.get<int64_t>();
    check_shape(origin);
    codes = in.get_many<uint8_t>(in.get<int32_t>(), "a quantized matrix");
    quantizer.read(in, origin);
    SINTER_CHECK(quantizer.dim == columns && static_cast<int64_t>(codes.size()) == rows * quantizer.num_sub,
                 "'{}': {} codes of {} parts do not make a matrix of {} x {}", origin, codes.size(), quantizer.num_sub,
                 rows, columns);
    if (!has_norms) return;
    norm_codes = in.get_many<uint8_t>(rows, "the norms");
    norm_quantizer.read(in, origin);
    SINTER_CHECK(norm_quantizer.dim == 1, "'{}': norms have {} values each; expected 1", origin, norm_quantizer.dim);
  }
  void check_shape(const std::string& origin) const {
    SINTER_CHECK(rows >= 0 && columns > 0 && columns < (1 << 20) && rows < (int64_t{1} << 40),
                 "'{}': a matrix of {} x {} is not sound", origin, rows, columns);
  }
  void add_row(int64_t row, float* out) const {
    const auto n = static_cast<size_t>(columns);
    if (!is_quantized) {
      const float* from = dense.data() + static_cast<size_t>(row) * n;
      for (size_t j = 0; j < n; ++j) out[j] += from[j];
      return;
    }
    const float norm = has_norms ? *norm_quantizer.centroid(0, norm_codes[static_cast<size_t>(row)]) : 1.0f;
    for (int32_t sub = 0; sub < quantizer.num_sub; ++sub) {
      const uint8_t code = codes[static_cast<size_t>(row * quantizer.num_sub + sub)];
      const float* c = quantizer.centroid(sub, code);
      const int32_t size = sub == quantizer.num_sub - 1 ? quantizer.last_dim : quantizer.sub_dim;
      for (int32_t k = 0; k < size; ++k) out[sub * quantizer.sub_dim + k] += norm * c[k];
    }
  }
  float dot_row(int64_t row, const float* vector) const {
    const auto n = static_cast<size_t>(columns);
    float sum = 0;
    if (!is_quantized) {
      const float* from = dense.data() + static_cast<size_t>(row) * n;
      for (size_t j = 0; j < n; ++j) sum += from[j] * vector[j];
      return sum;
    }
    std::vector<float> values(n);
    add_row(row, values.data());
    for (size_t j = 0; j < n; ++j) sum += values[j] * vector[j];
    return sum;
  }
};

struct TreeNode {
  int32_t left = -1, right = -1;
  int64_t count = 0;
};

// Huffman tree over the labels' counts: leaves from the end of the list, where the rarest stand.
std::vector<TreeNode> make_tree(const Dictionary& dictionary) {
  const int32_t n = dictionary.num_labels;
  std::vector<TreeNode> tree(static_cast<size_t>(2 * n - 1));
  for (int32_t i = 0; i < 2 * n - 1; ++i)
    tree[static_cast<size_t>(i)].count =
        i < n ? dictionary.entries[static_cast<size_t>(dictionary.num_words + i)].count : int64_t{1000000000000000};
  int32_t leaf = n - 1, node = n;
  for (int32_t i = n; i < 2 * n - 1; ++i) {
    int32_t two[2];
    for (int32_t& child : two) {
      const bool is_leaf = leaf >= 0 && tree[static_cast<size_t>(leaf)].count < tree[static_cast<size_t>(node)].count;
      child = is_leaf ? leaf-- : node++;
    }
    auto& parent = tree[static_cast<size_t>(i)];
    parent.left = two[0];
    parent.right = two[1];
    parent.count = tree[static_cast<size_t>(two[0])].count + tree[static_cast<size_t>(two[1])].count;
  }
  return tree;
}

float safe_log(float p) { return std::log(p + 1e-5f); }

// fastText's table of the sigmoid: 512 steps over [-8, 8].
float table_sigmoid(float x) {
  if (x < -8) return 0;
  if (x > 8) return 1;
  const auto i = static_cast<int64_t>((x + 8) * 512 / 8 / 2);
  const float at = static_cast<float>(i) * 16 / 512 - 8;
  return 1.0f / (1.0f + std::exp(-at));
}

}  // namespace

struct FastText::Parts {
  FastTextArgs args;
  Dictionary dictionary;
  Matrix input, output;
  std::vector<TreeNode> tree;

  void read_dictionary(FieldReader& in, const std::string& origin) {
    const auto size = in.get<int32_t>();
    dictionary.num_words = in.get<int32_t>();
    dictionary.num_labels = in.get<int32_t>();
    dictionary.num_tokens = in.get<int64_t>();
    dictionary.prune_size = in.get<int64_t>();
    SINTER_CHECK(size >= 0 && dictionary.num_words >= 0 && dictionary.num_labels >= 0 &&
                     int64_t{dictionary.num_words} + dictionary.num_labels == size &&
                     static_cast<size_t>(size) <= in.left() / 10,
                 "'{}': a dictionary of {} entries, {} words and {} labels is not sound", origin, size,
                 dictionary.num_words, dictionary.num_labels);
    for (int32_t i = 0; i < size; ++i) {
      const std::string text(in.text());
      const auto count = in.get<int64_t>();
      const bool is_label = in.get<int8_t>() == 1;
      SINTER_CHECK(is_label == (i >= dictionary.num_words), "'{}': words and labels are not in order", origin);
      dictionary.index.emplace(text, i);
      dictionary.entries.push_back({text, count, is_label});
    }
    SINTER_CHECK(dictionary.prune_size <= static_cast<int64_t>(in.left() / 8), "'{}': {} pruned entries", origin,
                 dictionary.prune_size);
    for (int64_t i = 0; i < dictionary.prune_size; ++i) {
      const auto from = in.get<int32_t>();
      dictionary.prune[from] = in.get<int32_t>();
    }
  }

  // The rows that a dictionary can ask for must be there.
  void check(const std::string& origin) const {
    int64_t buckets = dictionary.prune_size < 0 ? args.bucket : 0;
    for (const auto& [from, to] : dictionary.prune) {
      SINTER_CHECK(to >= 0, "'{}': a pruned row {}", origin, to);
      buckets = std::max<int64_t>(buckets, int64_t{to} + 1);
    }
    const bool uses_buckets = args.max_n > 0 || args.word_ngrams > 1;
    const int64_t needed = dictionary.num_words + (uses_buckets ? buckets : 0);
    SINTER_CHECK(input.rows >= needed && input.columns == args.dim && output.columns == args.dim,
                 "'{}': the input matrix is {} x {}; expected {} rows of {}", origin, input.rows, input.columns, needed,
                 args.dim);
    const int64_t outputs = args.loss == kHierarchical ? dictionary.num_labels - 1 : dictionary.num_labels;
    SINTER_CHECK(dictionary.num_labels > 0 && output.rows >= outputs,
                 "'{}' has {} labels and {} rows of output; expected a supervised model", origin, dictionary.num_labels,
                 output.rows);
  }

  bool hidden(std::string_view text, std::vector<float>& vector) const {
    static thread_local std::vector<int32_t> rows;
    dictionary.line_rows(text, args, rows);
    if (rows.empty()) return false;
    vector.assign(static_cast<size_t>(args.dim), 0);
    for (int32_t row : rows) input.add_row(row, vector.data());
    const float scale = 1.0f / static_cast<float>(rows.size());
    for (float& v : vector) v *= scale;
    return true;
  }

  // (log probability, label) of every label that fastText would list.
  void score(const std::vector<float>& h, std::vector<std::pair<float, int32_t>>& out) const {
    const int32_t n = dictionary.num_labels;
    if (args.loss == kHierarchical) {
      const float floor = safe_log(0);
      std::vector<std::pair<int32_t, float>> stack{{2 * n - 2, 0.0f}};
      while (!stack.empty()) {
        const auto [node, sum] = stack.back();
        stack.pop_back();
        if (sum < floor) continue;
        const TreeNode& at = tree[static_cast<size_t>(node)];
        if (at.left < 0) {
          out.emplace_back(sum, node);
          continue;
        }
        const float f = 1.0f / (1.0f + std::exp(-output.dot_row(node - n, h.data())));
        stack.emplace_back(at.left, sum + safe_log(1.0f - f));
        stack.emplace_back(at.right, sum + safe_log(f));
      }
      return;
    }
    std::vector<float> z(static_cast<size_t>(n));
    for (int32_t i = 0; i < n; ++i) z[static_cast<size_t>(i)] = output.dot_row(i, h.data());
    if (args.loss == kSoftmax) {
      const float top = *std::max_element(z.begin(), z.end());
      float sum = 0;
      for (float& v : z) sum += v = std::exp(v - top);
      for (float& v : z) v /= sum;
    } else {
      for (float& v : z) v = table_sigmoid(v);
    }
    for (int32_t i = 0; i < n; ++i) out.emplace_back(safe_log(z[static_cast<size_t>(i)]), i);
  }
};

FastText::FastText(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
FastText::FastText(FastText&&) noexcept = default;
FastText& FastText::operator=(FastText&&) noexcept = default;
FastText::~FastText() = default;

FastText FastText::load(const std::string& path) { return from_bytes(base::read_file(path), path); }

FastText FastText::from_bytes(std::string_view bytes, const std::string& origin) {
  FieldReader in(bytes, origin);
  const auto magic = in.get<int32_t>();
  SINTER_CHECK(magic == kFastTextMagic, "'{}' is not a fastText model: it begins with {:08x}; expected {:08x}", origin,
               static_cast<uint32_t>(magic), static_cast<uint32_t>(kFastTextMagic));
  const auto version = in.get<int32_t>();
  SINTER_CHECK(version == kFastTextVersion, "'{}' has version {} of fastText's format; expected {}", origin, version,
               kFastTextVersion);
  auto parts = std::make_unique<Parts>();
  FastTextArgs& a = parts->args;
  for (int32_t* field : {&a.dim, &a.window, &a.epoch, &a.min_count, &a.negatives, &a.word_ngrams, &a.loss, &a.model,
                         &a.bucket, &a.min_n, &a.max_n, &a.lr_update_rate})
    *field = in.get<int32_t>();
  a.sampling = in.get<double>();
  SINTER_CHECK(a.model == 3, "'{}' holds word vectors (model {}); expected a supervised model", origin, a.model);
  SINTER_CHECK(a.dim > 0 && a.dim < (1 << 20) && a.bucket >= 0 && a.max_n >= 0 && a.max_n < 64 && a.word_ngrams >= 0 &&
                   a.word_ngrams < 64 && a.loss >= kHierarchical && a.loss <= kOneVsAll,
               "'{}': dim {}, bucket {}, maxn {}, wordNgrams {}, loss {} are not sound", origin, a.dim, a.bucket,
               a.max_n, a.word_ngrams, a.loss);
  parts->read_dictionary(in, origin);
  const bool is_quantized = in.get<uint8_t>() != 0;
  if (is_quantized) {
    parts->input.read_quantized(in, origin);
  } else {
    parts->input.read_dense(in, origin);
  }
  const bool is_output_quantized = in.get<uint8_t>() != 0;
  if (is_quantized && is_output_quantized) {
    parts->output.read_quantized(in, origin);
  } else {
    parts->output.read_dense(in, origin);
  }
  parts->check(origin);
  if (a.loss == kHierarchical) parts->tree = make_tree(parts->dictionary);
  return FastText(std::move(parts));
}

std::vector<Prediction> FastText::predict(std::string_view text, int k) const {
  std::vector<float> h;
  std::vector<Prediction> result;
  if (!parts_->hidden(text, h)) return result;
  std::vector<std::pair<float, int32_t>> scores;
  parts_->score(h, scores);
  const size_t count = k < 0 ? scores.size() : std::min(scores.size(), static_cast<size_t>(k));
  std::stable_sort(scores.begin(), scores.end(), [](const auto& x, const auto& y) { return x.first > y.first; });
  for (size_t i = 0; i < count; ++i) {
    const auto label = static_cast<size_t>(parts_->dictionary.num_words + scores[i].second);
    result.push_back({parts_->dictionary.entries[label].text, std::exp(scores[i].first)});
  }
  return result;
}

double FastText::probability(std::string_view text, std::string_view label) const {
  for (const Prediction& p : predict(text, -1)) {
    if (p.label == label) return p.probability;
  }
  return 0;
}

const FastTextArgs& FastText::args() const { return parts_->args; }
int64_t FastText::num_words() const { return parts_->dictionary.num_words; }

std::vector<std::string> FastText::labels() const {
  std::vector<std::string> labels;
  for (const Dictionary::Entry& entry : parts_->dictionary.entries) {
    if (entry.is_label) labels.push_back(entry.text);
  }
  return labels;
}

std::vector<int32_t> FastText::word_rows(std::string_view word) const {
  std::vector<int32_t> rows;
  parts_->dictionary.word_rows(word, parts_->args, rows);
  return rows;
}

std::vector<float> FastText::input_row(int64_t row) const {
  SINTER_CHECK(row >= 0 && row < parts_->input.rows, "row {} of {}", row, parts_->input.rows);
  std::vector<float> values(static_cast<size_t>(parts_->args.dim));
  parts_->input.add_row(row, values.data());
  return values;
}

}  // namespace sinter::data
