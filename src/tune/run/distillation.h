// Learning from a teacher beside the data: at every supervised token the teacher's likeliest tokens, with the rest of
// its probability as one.
#pragma once
#include <string>
#include <vector>

#include "models/open_model.h"
#include "train/objective.h"

namespace sinter::tune {

struct DistillationOptions {
  std::string teacher;  // a model folder
  int64_t top_k = 8;
  double weight = 1;  // of the divergence; the cross entropy of the data has 1 - weight
};

// Forward KL from teacher to student by objectives/policy.h's distillation_loss. The head runs once for each of the k
// tokens, forward and backward.
class Distillation : public train::Objective {
 public:
  explicit Distillation(const DistillationOptions& options) : options_(options) {}
  void forward(const train::ObjectivePass& pass) override;
  double count(const data::MicroBatch& batch) const override;  // the sum of the weights
  bool reads_values() const override { return true; }
  std::vector<Metric> take_metrics() override;

 private:
  struct Likeliest {
    std::vector<std::vector<int32_t>> tokens;   // [k] (T), -1 where nothing is supervised
    std::vector<std::vector<double>> logprobs;  // [k] (T)
  };
  Likeliest ask_teacher(const data::MicroBatch& batch) const;
  void open_teacher(const models::Transformer& student);

  const DistillationOptions options_;
  models::OpenModel teacher_;
  double divergence_ = 0, cross_entropy_ = 0, tokens_ = 0;
};

}  // namespace sinter::tune
