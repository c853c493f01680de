#include "parallel/mesh.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/text.h"

namespace sinter::parallel {
namespace {

spec::ParallelSpec all_data_parallel(int ranks) {
  spec::ParallelSpec layout;
  layout.shard = ranks;
  layout.global_batch = ranks;
  return layout;
}

}  // namespace

Coordinates coordinates_of(const spec::ParallelSpec& p, int64_t rank) {
  Coordinates at;
  at.tensor = rank % p.tp;
  at.context = rank / p.tp % p.cp;
  at.shard = rank / (p.tp * p.cp) % p.shard;
  at.replica = rank / (p.tp * p.cp * p.shard) % p.replica;
  at.pipeline = rank / (p.tp * p.cp * p.dp());
  at.data = at.replica * p.shard + at.shard;
  at.expert = rank % (p.tp * p.cp * p.dp()) / p.tp % p.ep;
  return at;
}

Mesh::Mesh(comm::Communicator& all) : Mesh(all, all_data_parallel(all.size())) {}

Mesh::Mesh(comm::Communicator& all, const spec::ParallelSpec& layout)
    : all_(all), layout_(layout), at_(coordinates_of(layout, all.rank())) {
  const spec::ParallelSpec& p = layout_;
  SINTER_CHECK(p.ranks() == all.size(), "layout {} has {} ranks (dp {} x tp {} x pp {} x cp {}), the launch has {}",
               spec::describe(p), p.ranks(), p.dp(), p.tp, p.pp, p.cp, all.size());
  const Coordinates& a = at_;
  const int64_t per_stage = p.dp() * p.cp * p.tp;
  const int64_t place = all.rank() % per_stage;  // in the stage
  // A color numbers what the ranks of a group have in common, a key what tells them apart.
  data_ = group("dp", p.dp(), (a.pipeline * p.cp + a.context) * p.tp + a.tensor, a.data);
  shard_ =
      group("shard", p.shard, ((a.pipeline * p.replica + a.replica) * p.cp + a.context) * p.tp + a.tensor, a.shard);
  replica_ =
      group("replica", p.replica, ((a.pipeline * p.shard + a.shard) * p.cp + a.context) * p.tp + a.tensor, a.replica);
  pipeline_ = group("pp", p.pp, place, a.pipeline);
  context_ = group("cp", p.cp, (a.pipeline * p.dp() + a.data) * p.tp + a.tensor, a.context);
  tensor_ = group("tp", p.tp, (a.pipeline * p.dp() + a.data) * p.cp + a.context, a.tensor);
  const int64_t split = p.dp() * p.cp, among = place / p.tp;  // the ranks that experts are laid over
  SINTER_CHECK(split % p.ep == 0, "layout {}: ep {} does not divide dp {} x cp {}", spec::describe(p), p.ep, p.dp(),
               p.cp);
  expert_ = group("ep", p.ep, (a.pipeline * (split / p.ep) + among / p.ep) * p.tp + a.tensor, a.expert);
  gradient_ = group("dp x cp", p.dp() * p.cp, a.pipeline * p.tp + a.tensor, a.data * p.cp + a.context);
  expert_gradient_ = group("experts' dp", split / p.ep, (a.pipeline * p.ep + a.expert) * p.tp + a.tensor, among / p.ep);
  copies_ = group("replica x cp", p.replica * p.cp, (a.pipeline * p.shard + a.shard) * p.tp + a.tensor,
                  a.replica * p.cp + a.context);
  stage_ = group("stage", per_stage, a.pipeline, place);
  model_ = group("pp x tp", p.pp * p.tp, a.data * p.cp + a.context, a.pipeline * p.tp + a.tensor);
}

comm::Communicator* Mesh::group(const char* label, int64_t size, int64_t color, int64_t key) {
  if (size == all_.size()) return &all_;
  if (size == 1) {
    owned_.push_back(comm::make_self());
  } else {
    owned_.push_back(all_.split(static_cast<int>(color), static_cast<int>(key), label));
  }
  SINTER_CHECK(owned_.back()->size() == size, "group '{}' has {} ranks; expected {}", label, owned_.back()->size(),
               size);
  return owned_.back().get();
}

std::string Mesh::map(const spec::ParallelSpec& p) {
  struct Column {
    const char* name;
    int64_t size, Coordinates::*at;
  };
  std::vector<Column> columns;
  for (const Column& c :
       {Column{"pp", p.pp, &Coordinates::pipeline}, Column{"replica", p.replica, &Coordinates::replica},
        Column{p.replica > 1 ? "shard" : "dp", p.shard, &Coordinates::shard}, Column{"cp", p.cp, &Coordinates::context},
        Column{"tp", p.tp, &Coordinates::tensor}, Column{"ep", p.ep, &Coordinates::expert}}) {
    if (c.size > 1) columns.push_back(c);
  }
  std::vector<std::string> header{"rank"};
  for (const Column& c : columns) header.push_back(fmt::format("{} of {}", c.name, c.size));
  base::Table table(header);
  for (int64_t rank = 0; rank < p.ranks(); ++rank) {
    const Coordinates at = coordinates_of(p, rank);
    std::vector<std::string> row{std::to_string(rank)};
    for (const Column& c : columns) row.push_back(std::to_string(at.*c.at));
    table.add_row(row);
  }
  return table.to_string();
}

}  // namespace sinter::parallel
