#include "spec/adapter.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "base/text.h"

namespace sinter::spec {
namespace {

constexpr const char* kAllLinear = "all-linear";

// "model.layers.0.mlp.up_proj.weight" -> "model.layers.0.mlp.up_proj".
std::string module_of(const std::string& tensor) { return tensor.substr(0, tensor.rfind('.')); }

bool ends_with_module(const std::string& module, const std::string& end) {
  return module == end || module.ends_with("." + end);
}

class AdapterTable {
 public:
  AdapterTable(const ModelSpec& model, const AdapterSpec& adapter) : adapter_(adapter) {
    table_ = make_parameter_table(model);
  }

  std::vector<ParameterSpec> build() {
    SINTER_CHECK(!adapter_.targets.empty(), "an adapter needs targets: modules by name, or \"{}\"", kAllLinear);
    std::vector<ParameterSpec> added;
    for (ParameterSpec& p : table_) {
      p.trainable = is_saved(p);
      for (const ParameterPart& part : p.parts) {
        if (is_target(p, part)) add(p, part, added);
      }
    }
    for (const std::vector<std::string>* names : {&adapter_.targets, &adapter_.modules_to_save}) {
      for (const std::string& name : *names) check_found(name);
    }
    table_.insert(table_.end(), added.begin(), added.end());
    return std::move(table_);
  }

 private:
  bool is_saved(const ParameterSpec& p) {
    size_t saved = 0;
    for (const ParameterPart& part : p.parts) {
      const std::string module = module_of(part.hf_name);
      modules_.insert(module);
      for (const std::string& name : adapter_.modules_to_save) {
        if (!module.ends_with(name)) continue;  // as PEFT: "norm" is input_layernorm too
        found_.insert(name);
        ++saved;
        break;
      }
    }
    SINTER_CHECK(saved == 0 || saved == p.parts.size(),
                 "modules_to_save names a part of '{}'; name all of its modules: {}", p.name,
                 fmt::join(modules_of(p), ", "));
    return saved > 0;
  }

  static std::set<std::string> modules_of(const ParameterSpec& p) {
    std::set<std::string> modules;
    for (const ParameterPart& part : p.parts) modules.insert(module_of(part.hf_name));
    return modules;
  }

  bool is_target(const ParameterSpec& p, const ParameterPart& part) {
    if (!part.hf_name.ends_with(".weight") || p.role == ParameterRole::norm) return false;
    const std::string module = module_of(part.hf_name);
    for (const std::string& target : adapter_.targets) {
      if (target == kAllLinear) {
        found_.insert(target);
        if (p.role == ParameterRole::matrix) return true;
        continue;
      }
      if (!ends_with_module(module, target)) continue;
      SINTER_CHECK(
          p.role == ParameterRole::matrix || p.role == ParameterRole::embedding,
          "'{}' cannot have an adapter: those stand beside linear layers of the blocks and the token table, not "
          "beside experts, routers and the head (which modules_to_save may train whole)",
          module);
      found_.insert(target);
      return true;
    }
    return false;
  }

  template <class T>
  T of_pattern(const std::map<std::string, T>& patterns, const std::string& module, T otherwise) const {
    for (const auto& [end, value] : patterns) {
      if (ends_with_module(module, end)) return value;
    }
    return otherwise;
  }

  void add(const ParameterSpec& weight, const ParameterPart& part, std::vector<ParameterSpec>& added) const {
    const std::string module = module_of(part.hf_name), peft = kPeftPrefix + module;
    const int64_t r = of_pattern(adapter_.rank_pattern, module, adapter_.rank);
    const double alpha = of_pattern(adapter_.alpha_pattern, module, adapter_.alpha);
    SINTER_CHECK(r >= 1, "the rank of '{}' is {}; expected 1 or more", module, r);
    const bool is_table = weight.role == ParameterRole::embedding;
    SINTER_CHECK(!is_table || !adapter_.dora,
                 "'{}': DoRA stands beside linear layers only; take the table out of targets", module);
    const double scale = alpha / (adapter_.rslora ? std::sqrt(static_cast<double>(r)) : static_cast<double>(r));
    const int64_t columns = weight.shape[-1];
    AdapterPlace place{.target = weight.name,
                       .first_row = is_table ? 0 : part.row_begin,
                       .rows = is_table ? columns : part.rows,
                       .scale = static_cast<float>(scale),
                       .dropout = is_table ? 0.0f : static_cast<float>(adapter_.dropout)};
    // Where the weight's rows are cut so are b's and the magnitude's, where its columns are a's.
    auto make = [&](AdapterTerm term, const std::string& name, const std::string& hf, base::Shape shape) {
      ParameterSpec p;
      p.name = fmt::format("{}.{}.{}", weight.name, part.row_begin, name);
      p.shape = shape;
      p.role = ParameterRole::adapter;
      p.init = InitKind::zeros;
      p.decays = shape.rank() > 1;
      p.layer = weight.layer;
      if (!is_table && weight.tp_axis == (term == AdapterTerm::a ? 1 : 0)) p.tp_axis = weight.tp_axis;
      p.adapter = place;
      p.adapter.term = term;
      p.parts = {{peft + "." + hf, 0, shape[0]}};
      return p;
    };
    if (is_table) {
      ParameterSpec a = make(AdapterTerm::a, "lora_a", "lora_embedding_A", {weight.shape[0], r});
      a.parts[0].transposed = true;
      ParameterSpec b = make(AdapterTerm::b, "lora_b", "lora_embedding_B", {columns, r});
      b.init = InitKind::normal;
      b.init_std = 1.0f;
      added.push_back(std::move(a));
      added.push_back(std::move(b));
      return;
    }
    ParameterSpec a = make(AdapterTerm::a, "lora_a", "lora_A.weight", {r, columns});
    a.init = InitKind::normal;
    a.init_std = 1.0f / std::sqrt(3.0f * static_cast<float>(columns));  // as wide as PEFT's uniform numbers
    added.push_back(std::move(a));
    added.push_back(make(AdapterTerm::b, "lora_b", "lora_B.weight", {part.rows, r}));
    if (adapter_.dora)
      added.push_back(make(AdapterTerm::magnitude, "lora_magnitude", "lora_magnitude_vector", {part.rows}));
  }

  void check_found(const std::string& name) const {
    if (found_.count(name)) return;
    std::set<std::string> ends;
    for (const std::string& module : modules_) ends.insert(module.substr(module.rfind('.') + 1));
    base::fail("the model has no module '{}'{}; its modules end with {}", name,
               base::did_you_mean(name, {ends.begin(), ends.end()}), fmt::join(ends, ", "));
  }

  const AdapterSpec& adapter_;
  std::vector<ParameterSpec> table_;
  std::set<std::string> modules_, found_;
};

}  // namespace

std::vector<ParameterSpec> make_adapter_table(const ModelSpec& model, const AdapterSpec& adapter) {
  return AdapterTable(model, adapter).build();
}

}  // namespace sinter::spec
