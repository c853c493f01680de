#include "parallel/axes.h"

#include "spec/adapter.h"
#include "spec/stages.h"

namespace sinter::parallel {

Axes::Axes(const Mesh& mesh, const spec::ModelSpec& spec)
    : layout_{.tp = mesh.layout().tp,
              .ep = mesh.layout().ep,
              .pp = mesh.layout().pp,
              .interleave = mesh.layout().interleave,
              .stages = spec::stages_of(spec, mesh.layout().pp * mesh.layout().interleave)},
      place_{mesh.at().tensor, mesh.at().expert, mesh.at().pipeline} {
  const spec::ParallelSpec& p = mesh.layout();
  if (p.tp > 1) tensor_ = std::make_unique<TensorAxis>(mesh.tensor(), spec, p.sequence_parallel);
  if (p.cp > 1) context_ = std::make_unique<ContextAxis>(mesh.context(), p.context);
  if (p.ep > 1) expert_ = std::make_unique<ExpertAxis>(mesh.expert(), spec.moe.num_experts, p.expert_capacity);
}

std::vector<spec::LocalParameter> Axes::table(const spec::ModelSpec& spec) const {
  return table(spec, spec::make_parameter_table(spec));
}

std::vector<spec::LocalParameter> Axes::table(const spec::ModelSpec& spec,
                                              const std::vector<spec::ParameterSpec>& all) const {
  std::vector<spec::LocalParameter> table = spec::local_table(spec, all, layout_, place_);
  if (place_.ep == 0) return table;
  // What is no expert is the same on the ranks of the expert axis, which is laid over others: those tell its owner.
  const std::vector<spec::LocalParameter> first = spec::local_table(spec, all, layout_, {place_.tp, 0, place_.pp});
  for (size_t i = 0; i < table.size(); ++i) {
    if (table[i].info.expert_axis < 0) table[i].boxes = first[i].boxes;
  }
  return table;
}

}  // namespace sinter::parallel
