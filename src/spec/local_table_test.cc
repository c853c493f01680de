#include "spec/local_table.h"

#include <gtest/gtest.h>

#include <map>

#include "base/rng.h"
#include "spec/adapter.h"

namespace sinter::spec {
namespace {

// Random numbers of one case.
class Draw {
 public:
  explicit Draw(uint64_t seed) : rng_{seed, 77} {}
  int64_t below(int64_t n) { return static_cast<int64_t>(rng_.bits(next_++) % static_cast<uint64_t>(n)); }
  bool coin() { return below(2) == 1; }

 private:
  base::CounterRng rng_;
  uint64_t next_ = 0;
};

ModelSpec random_model(Draw& draw, const TensorLayout& layout) {
  ModelSpec m;
  const Family families[] = {Family::gpt2, Family::llama, Family::qwen3, Family::mixtral};
  m.family = families[draw.below(4)];
  m.head_dim = 2 * (1 + draw.below(3));
  m.num_kv_heads = int64_t{1} << draw.below(3);
  while (m.num_kv_heads % layout.tp != 0 && layout.tp % m.num_kv_heads != 0) m.num_kv_heads = 1;
  m.num_heads = std::max(m.num_kv_heads, layout.tp) * (1 + draw.below(2));
  if (m.num_heads % m.num_kv_heads != 0) m.num_heads = m.num_kv_heads * layout.tp;
  m.hidden = 3 + draw.below(6);
  m.ffn = layout.tp * (1 + draw.below(5));
  m.vocab_size = 1 + draw.below(70);
  m.num_layers = layout.pp * layout.interleave + draw.below(4);
  m.max_positions = 5;
  m.learned_positions = m.family == Family::gpt2;
  m.gated_mlp = m.family != Family::gpt2;
  m.norm = m.family == Family::gpt2 ? NormKind::layer : NormKind::rms;
  m.qkv_bias = draw.coin(), m.out_bias = draw.coin(), m.mlp_bias = draw.coin();
  m.qk_norm = m.family == Family::qwen3;
  m.tied_head = draw.coin();
  m.mtp_heads = draw.below(3);
  if (m.family == Family::mixtral) {
    m.moe = {.num_experts = layout.ep * (1 + draw.below(3)), .experts_per_token = 1, .ffn = layout.tp * 3};
    for (int64_t l = 0; l < m.num_layers; ++l) m.sparse_layers.push_back(draw.coin());
  }
  return m;
}

// Stages of any sizes, at least one layer each.
std::vector<LayerRange> random_stages(Draw& draw, int64_t num_layers, int64_t num_stages) {
  std::vector<LayerRange> stages(static_cast<size_t>(num_stages), {0, 1});
  for (int64_t l = num_stages; l < num_layers; ++l) ++stages[static_cast<size_t>(draw.below(num_stages))].count;
  int64_t begin = 0;
  for (LayerRange& stage : stages) stage.begin = begin, begin += stage.count;
  return stages;
}

TEST(LocalTable, BoxesOfRandomLayoutsCoverEveryTensorExactlyOnce) {
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    Draw draw(seed);
    TensorLayout layout{int64_t{1} << draw.below(4), 1 + draw.below(3), 1 + draw.below(3), 1 + draw.below(2), {}};
    const ModelSpec model = random_model(draw, layout);
    if (draw.coin()) layout.stages = random_stages(draw, model.num_layers, layout.pp * layout.interleave);
    std::map<std::string, std::vector<int>> owners;
    for (const ParameterSpec& p : make_parameter_table(model))
      owners[p.name].assign(static_cast<size_t>(p.num_elements()), 0);
    std::map<std::string, base::Shape> shapes;
    for (int64_t tp = 0; tp < layout.tp; ++tp) {
      for (int64_t ep = 0; ep < layout.ep; ++ep) {
        for (int64_t pp = 0; pp < layout.pp; ++pp) {
          for (const LocalParameter& local : local_table(model, layout, {tp, ep, pp})) {
            // All ranks hold equal shapes, so that ranges of their buffers match.
            auto [shape, is_new] = shapes.try_emplace(local.info.name, local.info.shape);
            ASSERT_EQ(shape->second.to_string(), local.info.shape.to_string()) << seed << " " << local.info.name;
            std::vector<int> held(static_cast<size_t>(local.num_elements()), 0);
            for (const Box& box : local.boxes) {
              visit_runs(box, local.global_shape, local.info.shape, [&](int64_t global, int64_t at, int64_t count) {
                for (int64_t i = 0; i < count; ++i) {
                  ++held.at(static_cast<size_t>(at + i));
                  owners[local.info.name].at(static_cast<size_t>(global + i)) += box.is_owned;
                }
              });
            }
            const bool may_pad = local.info.role == ParameterRole::embedding || local.info.role == ParameterRole::head;
            for (int n : held) ASSERT_TRUE(n == 1 || (n == 0 && may_pad)) << seed << " " << local.info.name;
          }
        }
      }
    }
    for (const auto& [name, counts] : owners) {
      for (int n : counts) ASSERT_EQ(n, 1) << "layout " << seed << ": " << name;
    }
  }
}

// The global element that stands at each local one; -1 for padding.
std::vector<int64_t> origins(const LocalParameter& local) {
  std::vector<int64_t> from(static_cast<size_t>(local.num_elements()), -1);
  for (const Box& box : local.boxes) {
    visit_runs(box, local.global_shape, local.info.shape, [&](int64_t global, int64_t at, int64_t count) {
      for (int64_t i = 0; i < count; ++i) from[static_cast<size_t>(at + i)] = global + i;
    });
  }
  return from;
}

// b's rows stand beside the local rows of the weight that they stood beside, a's columns beside its local columns.
void check_adapter(const LocalParameter& term, const LocalParameter& weight, const AdapterPlace& global) {
  const std::vector<int64_t> own = origins(term), beside = origins(weight);
  const AdapterPlace& place = term.info.adapter;
  const int64_t width = weight.global_shape[1], local_width = weight.info.shape[1];
  if (place.term == AdapterTerm::a) {
    ASSERT_EQ(term.info.shape[1], local_width) << term.info.name;
    for (int64_t c = 0; c < local_width; ++c)
      ASSERT_EQ(own[static_cast<size_t>(c)], beside[static_cast<size_t>(c)] % width) << term.info.name;
    return;
  }
  ASSERT_EQ(term.info.shape[0], place.rows) << term.info.name;
  const int64_t columns = term.info.shape.rank() == 1 ? 1 : term.info.shape[1];
  for (int64_t r = 0; r < place.rows; ++r) {
    const int64_t row = beside[static_cast<size_t>((place.first_row + r) * local_width)] / width;
    ASSERT_EQ(global.first_row + own[static_cast<size_t>(r * columns)] / columns, row) << term.info.name;
  }
}

TEST(LocalTable, AdaptersOfRandomLayoutsAreCutAsTheirWeights) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Draw draw(seed + 5000);
    const TensorLayout layout{int64_t{1} << draw.below(4), 1 + draw.below(2), 1 + draw.below(3), 1 + draw.below(2), {}};
    ModelSpec model = random_model(draw, layout);
    model.mtp_heads = 0;
    const std::vector<ParameterSpec> table = make_adapter_table(model, {.rank = 2, .dora = draw.coin()});
    std::map<std::string, const ParameterSpec*> global;
    std::map<std::string, std::vector<int>> owners;
    for (const ParameterSpec& p : table) {
      global[p.name] = &p;
      owners[p.name].assign(static_cast<size_t>(p.num_elements()), 0);
    }
    for (int64_t rank = 0; rank < layout.tp * layout.ep * layout.pp; ++rank) {
      const TensorPlace at{rank % layout.tp, rank / layout.tp % layout.ep, rank / layout.tp / layout.ep};
      const std::vector<LocalParameter> local = local_table(model, table, layout, at);
      std::map<std::string, const LocalParameter*> here;
      for (const LocalParameter& p : local) {
        here[p.info.name] = &p;
        for (const Box& box : p.boxes) {
          visit_runs(box, p.global_shape, p.info.shape, [&](int64_t from, int64_t, int64_t count) {
            for (int64_t i = 0; i < count; ++i) owners[p.info.name].at(static_cast<size_t>(from + i)) += box.is_owned;
          });
        }
      }
      for (const LocalParameter& p : local) {
        if (p.info.adapter.term != AdapterTerm::none)
          check_adapter(p, *here.at(p.info.adapter.target), global.at(p.info.name)->adapter);
      }
    }
    for (const auto& [name, counts] : owners) {
      for (int n : counts) ASSERT_EQ(n, 1) << seed << " " << name;
    }
  }
}

TEST(LocalTable, FusedRowsAreCutByHeadAndByHalf) {
  ModelSpec m;
  m.hidden = 8, m.num_heads = 4, m.num_kv_heads = 2, m.head_dim = 2, m.ffn = 12, m.num_layers = 1, m.vocab_size = 10;
  const auto find = [&](const TensorLayout& layout, int64_t rank, const std::string& name) {
    for (const LocalParameter& p : local_table(m, layout, {rank, 0, 0}))
      if (p.info.name == name) return p;
    return LocalParameter{};
  };
  const auto rows = [](const LocalParameter& p) {
    std::vector<std::pair<int64_t, int64_t>> result;
    for (const Box& box : p.boxes) result.push_back({box.begin[0], box.size[0]});
    return result;
  };
  using Rows = std::vector<std::pair<int64_t, int64_t>>;
  EXPECT_EQ(rows(find({.tp = 2}, 1, "layers.0.attention.qkv.weight")), (Rows{{4, 4}, {10, 2}, {14, 2}}));
  // Four ranks share two KV heads: ranks 2 and 3 hold the second, rank 2 owns it.
  const LocalParameter third = find({.tp = 4}, 2, "layers.0.attention.qkv.weight");
  const LocalParameter last = find({.tp = 4}, 3, "layers.0.attention.qkv.weight");
  EXPECT_EQ(rows(third), (Rows{{4, 2}, {10, 2}, {14, 2}}));
  EXPECT_EQ(rows(last), (Rows{{6, 2}, {10, 2}, {14, 2}}));
  EXPECT_TRUE(third.boxes[1].is_owned);
  EXPECT_TRUE(last.boxes[0].is_owned);
  EXPECT_FALSE(last.boxes[1].is_owned);
  EXPECT_EQ(last.gradient_parts, 2);
  EXPECT_EQ(rows(find({.tp = 2}, 1, "layers.0.mlp.up.weight")), (Rows{{6, 6}, {18, 6}}));
  EXPECT_EQ(find({.tp = 2}, 1, "layers.0.mlp.down.weight").info.shape.to_string(), "(8, 6)");
  // 10 rows among 2 ranks: 8 each, of which the second holds 2.
  EXPECT_EQ(rows(find({.tp = 2}, 1, "embedding.weight")), (Rows{{8, 2}}));
  EXPECT_EQ(find({.tp = 2}, 1, "embedding.weight").info.shape[0], 8);
}

TEST(LocalTable, ATiedHeadIsACopyAtTheLastStage) {
  ModelSpec m;
  m.hidden = 4, m.num_heads = 1, m.num_kv_heads = 1, m.head_dim = 4, m.ffn = 4, m.num_layers = 3, m.vocab_size = 5;
  m.tied_head = true;
  std::vector<std::string> names;
  for (const LocalParameter& p : local_table(m, {.pp = 2}, {0, 0, 1})) {
    if (p.info.name == "embedding.weight") {
      EXPECT_FALSE(p.boxes[0].is_owned);
    }
    names.push_back(p.info.name);
  }
  EXPECT_EQ(names.front(), "embedding.weight");
  EXPECT_EQ(names[1], "layers.2.attention_norm.weight");
  EXPECT_EQ(names.back(), "final_norm.weight");
}

}  // namespace
}  // namespace sinter::spec
