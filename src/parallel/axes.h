// A rank's place on the axes that cut a model and its batches, and what runs on each of them.
#pragma once
#include <memory>
#include <vector>

#include "parallel/context.h"
#include "parallel/expert.h"
#include "parallel/mesh.h"
#include "parallel/tensor.h"
#include "spec/local_table.h"

namespace sinter::parallel {

class Axes {
 public:
  // Keeps references to the mesh's groups; talks to no one. The layout must fit the model.
  Axes(const Mesh& mesh, const spec::ModelSpec& spec);

  const spec::TensorLayout& layout() const { return layout_; }
  const spec::TensorPlace& place() const { return place_; }
  // Null where the axis has one rank.
  const TensorAxis* tensor() const { return tensor_.get(); }
  const ContextAxis* context() const { return context_.get(); }
  const ExpertAxis* expert() const { return expert_.get(); }
  // Whether this rank has the whole model for whole sequences.
  bool is_whole() const { return layout_.pp == 1 && !tensor_ && !context_ && !expert_; }

  // This rank's tensors. A box is owned by one rank of those that differ in tp and pp, and of the experts' in ep; ranks
  // of the other axes hold copies. `all`: of a model with adapters, whose table is another.
  std::vector<spec::LocalParameter> table(const spec::ModelSpec& spec) const;
  std::vector<spec::LocalParameter> table(const spec::ModelSpec& spec,
                                          const std::vector<spec::ParameterSpec>& all) const;

 private:
  spec::TensorLayout layout_;
  spec::TensorPlace place_;
  std::unique_ptr<TensorAxis> tensor_;
  std::unique_ptr<ContextAxis> context_;
  std::unique_ptr<ExpertAxis> expert_;
};

}  // namespace sinter::parallel
