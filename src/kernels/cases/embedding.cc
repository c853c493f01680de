// Cases: embeddings of tokens and positions, and their gradients.
#include "kernels/cases/case.h"

namespace sinter::kernels::cases {
namespace {

struct Embedding {
  int64_t tokens, vocab, max_positions, channels;
  Size size;
};

// Zipf-like: long runs of one token, so that runs cross pieces of the sorted order.
std::vector<int32_t> ids_of(const Embedding& e) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < e.tokens; ++i) ids.push_back(static_cast<int32_t>(i % 3 == 0 ? 7 : (i * 31) % e.vocab));
  return ids;
}
std::vector<int32_t> places_of(const Embedding& e) {
  std::vector<int32_t> places;
  for (int64_t i = 0; i < e.tokens; ++i) places.push_back(static_cast<int32_t>(i % e.max_positions));
  return places;
}

void forward(Case& c, DType t, const Embedding& e, bool positions) {
  const int token = c.integers({e.tokens}, ids_of(e)), place = c.integers({e.tokens}, places_of(e)),
            rows = c.random({e.vocab, e.channels}, t),
            position_rows = positions ? c.random({e.max_positions, e.channels}, t) : -1,
            y = c.output({e.tokens, e.channels}, t);
  c.run([&](const KernelTable& table, Stream& s, const Case::At& at) {
    table.embedding_forward(s, {at(token), at(place), at(rows), at(position_rows), at(y)});
  });
  c.expect_close(y, "y", Result::rounded);
}

void backward(Case& c, DType t, const Embedding& e, bool positions) {
  const int token = c.integers({e.tokens}, ids_of(e)), place = c.integers({e.tokens}, places_of(e)),
            dy = c.random({e.tokens, e.channels}, t), dtable = c.random({e.vocab, e.channels}, DType::f32),
            dposition = positions ? c.random({e.max_positions, e.channels}, DType::f32) : -1;
  c.run([&](const KernelTable& table, Stream& s, const Case::At& at) {
    table.embedding_backward(s, {at(token), at(place), at(dy), at(dtable), at(dposition)});
  });
  c.expect_close(dtable, "dtable", Result::statistic);
  if (positions) c.expect_close(dposition, "dposition", Result::statistic);
}

// Some rows without noise.
void row_noise(Case& c, DType t, int64_t rows, int64_t channels) {
  std::vector<int32_t> halves;
  std::vector<float> bounds;
  for (int32_t r = 0; r < rows; ++r) {
    halves.insert(halves.end(), {r * 0x123456, ~r});
    bounds.push_back(r % 4 == 3 ? 0.0f : 0.5f * static_cast<float>(r % 5));
  }
  const int streams = c.integers({rows, 2}, halves), scales = c.floats({rows}, bounds),
            y = c.random({rows, channels}, t);
  c.run([&](const KernelTable& table, Stream& s, const Case::At& at) {
    table.row_noise(s, {at(streams), at(scales), at(y)});
  });
  c.expect_close(y, "y", Result::rounded);
}

}  // namespace

void register_embedding_cases() {
  std::vector<Embedding> shapes = {
      {217, 50, 40, 64, Size::small}, {217, 50, 40, 33, Size::small}, {1500, 50, 40, 768, Size::medium}};
  for (int64_t channels : {1, 3, 7, 17, 63, 65, 130}) shapes.push_back({101, 23, 40, channels, Size::medium});
  for (DType t : kFormats) {
    for (int64_t channels : {64, 37})
      add("RowNoise", t, fmt::format("300x{}", channels), Size::small,
          [=](Case& c) { row_noise(c, t, 300, channels); });
    for (const Embedding& e : shapes) {
      for (bool positions : {true, false}) {
        const std::string shape =
            fmt::format("{}_of_{}x{}{}", e.tokens, e.vocab, e.channels, positions ? "_and_positions" : "");
        add("EmbeddingForward", t, shape, e.size, [=](Case& c) { forward(c, t, e, positions); });
        add("EmbeddingBackward", t, shape, e.size, [=](Case& c) { backward(c, t, e, positions); });
      }
    }
  }
}

}  // namespace sinter::kernels::cases
