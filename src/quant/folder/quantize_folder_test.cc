// Written words against those of the libraries that folders are for (tests/golden/quant), rounding, and killed runs.
#include "quant/folder/quantize_folder.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "base/rng.h"
#include "base/source_dir.h"
#include "io/tensor_folder.h"
#include "models/open_model.h"
#include "models/quantized/unpack.h"
#include "quant/folder/packing.h"
#include "quant/folder/refine.h"

namespace sinter::quant {
namespace {

namespace fs = std::filesystem;

std::string golden(const std::string& name) { return base::source_dir() + "/tests/golden/" + name; }

// What a reader finds in packed words, as whole numbers again.
IntegerWeight integers_of(const core::WeightPart& part, int64_t columns, int64_t group) {
  IntegerWeight w{.rows = part.rows, .columns = columns, .num_groups = part.scales.size(-1)};
  for (int64_t i = 0; i < part.rows * columns; ++i) {
    const auto byte = part.data.data<uint8_t>()[i / 2];
    w.codes.push_back(i % 2 == 0 ? byte & 15 : byte >> 4);
  }
  const float *scales = part.scales.data<float>(), *zeros = part.zeros ? part.zeros.data<float>() : nullptr;
  for (int64_t i = 0; i < part.rows * w.num_groups; ++i) {
    w.scales.push_back(scales[i]);
    w.zeros.push_back(static_cast<uint8_t>(zeros ? zeros[i] : 8));
  }
  for (int64_t c = 0; c < columns; ++c)
    w.group_of.push_back(part.permutation ? part.permutation.data<int32_t>()[c] : static_cast<int32_t>(c / group));
  return w;
}

void expect_same_bytes(const std::vector<PackedTensor>& written, const io::TensorFolder& folder) {
  for (const PackedTensor& tensor : written) {
    const io::TensorEntry& expected = folder.get(tensor.name);
    EXPECT_EQ(tensor.shape, expected.shape) << tensor.name;
    EXPECT_EQ(tensor.dtype, expected.dtype) << tensor.name;
    EXPECT_TRUE(std::equal(tensor.bytes.begin(), tensor.bytes.end(), expected.bytes.begin(), expected.bytes.end()))
        << tensor.name;
  }
}

TEST(Packing, GptqWordsAreThoseOfGptqModel) {
  const io::TensorFolder folder(golden("quant/gptq-b4-32-sym-act-v1"));
  const std::string module = "model.layers.1.mlp.down_proj";
  models::quantized::PackedTensors t{.name = module,
                                     .codes = folder.find(module + ".qweight"),
                                     .scales = folder.find(module + ".scales"),
                                     .zeros = folder.find(module + ".qzeros"),
                                     .groups = folder.find(module + ".g_idx")};
  const core::WeightPart part = models::quantized::unpack_gptq(t, {128, 384}, 4, 32, 1);
  expect_same_bytes(pack_gptq(module, integers_of(part, 384, 32), 4), folder);
}

TEST(Packing, AwqWordsAreThoseOfGptqModel) {
  const io::TensorFolder folder(golden("quant/awq-g128"));
  const std::string module = "model.layers.0.mlp.up_proj";
  models::quantized::PackedTensors t{.name = module,
                                     .codes = folder.find(module + ".qweight"),
                                     .scales = folder.find(module + ".scales"),
                                     .zeros = folder.find(module + ".qzeros")};
  const core::WeightPart part = models::quantized::unpack_awq(t, {384, 128}, 128);
  expect_same_bytes(pack_awq(module, integers_of(part, 128, 128)), folder);
}

TEST(Packing, Fp8BlocksAreThoseOfPyTorch) {
  const io::TensorFolder folder(golden("quant/fp8-block128"));
  const std::string module = "model.layers.0.self_attn.k_proj";  // (64, 128): half a block
  const io::TensorEntry &codes = folder.get(module + ".weight"), &scale = folder.get(module + ".weight_scale_inv");
  std::vector<float> numbers(64 * 128);
  base::convert_elements(base::DType::f8e4m3, codes.bytes.data(), base::DType::f32, numbers.data(), numbers.size());
  float factor = 0;
  std::memcpy(&factor, scale.bytes.data(), sizeof factor);
  for (float& x : numbers) x *= factor;
  const std::vector<PackedTensor> written = pack_fp8(module, numbers, 64, 128, 128);
  EXPECT_TRUE(std::equal(codes.bytes.begin(), codes.bytes.end(), written[0].bytes.begin(), written[0].bytes.end()));
  EXPECT_EQ(written[1].name, module + ".weight_scale_inv");
}

// Inputs that depend on each other, and a weight.
struct Case {
  explicit Case(uint64_t seed, int64_t k) : columns(k), inputs(k) {
    const base::CounterRng rng{seed, 7};
    auto normal = [&](uint64_t i) { return rng.normal(i); };
    constexpr int64_t kTokens = 300;
    std::vector<float> x(static_cast<size_t>(kTokens * columns));
    for (int64_t t = 0; t < kTokens; ++t) {
      for (int64_t c = 0; c < columns; ++c) {
        const auto i = static_cast<size_t>(t * columns + c);
        x[i] = normal(i) * (c % 7 == 0 ? 5.0f : 1.0f) + (c > 0 ? 0.8f * x[i - 1] : 0.0f);
      }
    }
    inputs.add(core::make_tensor(core::runtime({}).allocator(), {kTokens, columns}, x));
    for (int64_t i = 0; i < rows * columns; ++i) w.push_back(normal(1000000 + static_cast<uint64_t>(i)));
  }
  // The sum of squares by which the outputs move.
  double error_of(const IntegerWeight& rounded) const {
    double sum = 0;
    for (int64_t r = 0; r < rows; ++r) {
      std::vector<double> d;
      for (int64_t c = 0; c < columns; ++c)
        d.push_back(static_cast<double>(w[static_cast<size_t>(r * columns + c)] - rounded.number(r, c)));
      for (int64_t i = 0; i < columns; ++i) {
        for (int64_t j = 0; j < columns; ++j)
          sum += d[static_cast<size_t>(i)] * d[static_cast<size_t>(j)] * static_cast<double>(inputs.row(i)[j]);
      }
    }
    return sum;
  }
  const int64_t rows = 24, columns;
  Hessian inputs;
  std::vector<float> w;
};

TEST(Hessian, TheRootMultipliedOutIsTheInverse) {
  const Case c(3, 200);  // several blocks of the factorization
  const RoundingInputs inputs(c.inputs, 0.01);
  const std::vector<int32_t>& order = inputs.order;
  const float* u = inputs.root.data<float>();
  double mean = 0;
  for (float d : c.inputs.diagonal()) mean += static_cast<double>(d) / 200;
  // (H + damping) (U^T U) = 1
  double worst = 0;
  for (int64_t i = 0; i < 200; i += 13) {
    std::vector<double> row(200);  // of U^T U
    for (int64_t j = 0; j < 200; ++j) {
      for (int64_t k = 0; k <= std::min(i, j); ++k)
        row[static_cast<size_t>(j)] += static_cast<double>(u[k * 200 + i]) * static_cast<double>(u[k * 200 + j]);
    }
    for (int64_t j = 0; j < 200; ++j) {
      double sum = 0.01 * mean * row[static_cast<size_t>(j)];
      for (int64_t k = 0; k < 200; ++k)
        sum += row[static_cast<size_t>(k)] *
               static_cast<double>(c.inputs.row(order[static_cast<size_t>(k)])[order[static_cast<size_t>(j)]]);
      worst = std::max(worst, std::fabs(sum - (i == j ? 1 : 0)));
    }
  }
  EXPECT_LT(worst, 1e-3);
}

TEST(MakeUp, BringsResultsBackThatDriftedInputsMoved) {
  // Inputs that are off by what depends on them: x' = x + 0.3 (x of the column before).
  constexpr int64_t kTokens = 400, kColumns = 96, kRows = 16;
  const base::CounterRng rng{19, 7};
  std::vector<float> x(kTokens * kColumns), off(x.size()), w(kRows * kColumns);
  for (size_t i = 0; i < x.size(); ++i) x[i] = rng.normal(i), off[i] = x[i] + (i % kColumns ? 0.3f * x[i - 1] : 0.0f);
  for (size_t i = 0; i < w.size(); ++i) w[i] = rng.normal(1000000 + i);
  auto result = [&](const std::vector<float>& inputs, const std::vector<float>& weight, size_t t, size_t r) {
    double sum = 0;
    for (size_t c = 0; c < kColumns; ++c)
      sum += static_cast<double>(inputs[t * kColumns + c]) * static_cast<double>(weight[r * kColumns + c]);
    return sum;
  };
  core::Allocator& memory = core::runtime({}).allocator();
  const core::Tensor drift(memory, {kRows, kColumns}, core::DType::f32);
  std::memset(drift.raw(), 0, drift.bytes());
  for (size_t t = 0; t < kTokens; ++t) {
    for (size_t r = 0; r < kRows; ++r) {
      const auto missing = static_cast<float>(result(x, w, t, r) - result(off, w, t, r));
      for (size_t c = 0; c < kColumns; ++c) drift.data<float>()[r * kColumns + c] += missing * off[t * kColumns + c];
    }
  }
  Hessian hessian(kColumns);
  hessian.add(core::make_tensor(memory, {kTokens, kColumns}, off));
  std::vector<float> corrected = w;
  make_up(corrected, RoundingInputs(hessian, 1e-4), drift);
  double before = 0, after = 0;
  for (size_t t = 0; t < kTokens; ++t) {
    for (size_t r = 0; r < kRows; ++r) {
      before += std::pow(result(x, w, t, r) - result(off, w, t, r), 2);
      after += std::pow(result(x, w, t, r) - result(off, corrected, t, r), 2);
    }
  }
  EXPECT_LT(after, 1e-3 * before);
}

TEST(RoundWeight, MovesOutputsLessThanNearestCodes) {
  for (const IntegerForm& form : {IntegerForm{.bits = 4, .group = 32}, IntegerForm{.bits = 3, .group = -1},
                                  IntegerForm{.bits = 4, .group = 64, .symmetric = false},
                                  IntegerForm{.bits = 2, .group = 32, .orders_groups = true}}) {
    const Case c(11, 160);
    const double rounded = c.error_of(round_weight(c.w, c.rows, RoundingInputs(c.inputs, 0.01), form));
    const double nearest = c.error_of(round_nearest(c.w, c.rows, c.inputs, form));
    EXPECT_LT(rounded, 0.8 * nearest) << form.bits << " bits, group " << form.group;
  }
}

TEST(Refine, LowersTheErrorOfWhateverItIsGiven) {
  for (const IntegerForm& form : {IntegerForm{.bits = 4, .group = 32}, IntegerForm{.bits = 4, .group = -1},
                                  IntegerForm{.bits = 3, .group = 64, .symmetric = false},
                                  IntegerForm{.bits = 4, .group = 32, .orders_groups = true}}) {
    const Case c(13, 160);
    const RoundingInputs inputs(c.inputs, 0.01);
    IntegerWeight nearest = round_nearest(c.w, c.rows, c.inputs, form);
    const IntegerWeight before = nearest;
    refine(c.w, inputs, form, nearest);
    EXPECT_LT(c.error_of(nearest), 0.7 * c.error_of(before)) << form.bits << " bits, group " << form.group;
    EXPECT_EQ(nearest.zeros, before.zeros);
    EXPECT_EQ(nearest.group_of, before.group_of);
    // Rounding in order is a better start than nearest codes.
    EXPECT_LT(c.error_of(round_weight(c.w, c.rows, inputs, form)), 1.05 * c.error_of(nearest));
  }
}

TEST(Refine, KeepsGroupsTooLargeToFit) {
  const Case c(17, kMostGroup + 64);
  const RoundingInputs inputs(c.inputs, 0.05);
  const IntegerForm form{.bits = 4, .group = -1};
  IntegerWeight rounded = round_nearest(c.w, c.rows, c.inputs, form);
  const IntegerWeight before = rounded;
  refine(c.w, inputs, form, rounded);
  EXPECT_EQ(rounded.scales, before.scales);
  EXPECT_LT(c.error_of(rounded), c.error_of(before));
}

class FolderTest : public testing::Test {
 protected:
  FolderTest() : folder_(fs::temp_directory_path() / fmt::format("sinter_quantize_folder_{}", ::getpid())) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    for (int32_t i = 0; i < 300; ++i) tokens_.push_back(3 + i * 37 % 400);
  }
  ~FolderTest() override { fs::remove_all(folder_); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  FolderOptions options(FolderOptions::Method method) const {
    FolderOptions o{.method = method, .tokens = tokens_, .prefix_token = 1};
    o.form.group = 16;
    o.form.symmetric = method == FolderOptions::gptq;
    return o;
  }
  fs::path folder_;
  std::vector<int32_t> tokens_;
};

TEST_F(FolderTest, AKilledRunGoesOnAndWritesTheSameFolder) {
  struct Killed {};
  for (const auto method : {FolderOptions::gptq, FolderOptions::awq, FolderOptions::fp8}) {
    const std::string model = golden("models/llama");
    write_quantized_folder(model, path("whole"), options(method));
    size_t calls = 0, again = 0;
    auto kill = [&](const Progress& p) {
      if (++calls == p.count * 3 / 4) throw Killed();
    };
    EXPECT_THROW(write_quantized_folder(model, path("killed"), options(method), kill), Killed);
    EXPECT_FALSE(fs::exists(path("killed")));
    write_quantized_folder(model, path("killed"), options(method), [&](const Progress&) { ++again; });
    EXPECT_LT(again, calls) << "begun anew";
    EXPECT_EQ(base::read_file(path("killed/model.safetensors")), base::read_file(path("whole/model.safetensors")));
    EXPECT_FALSE(fs::exists(path("killed.part")));
    fs::remove_all(path("whole")), fs::remove_all(path("killed"));
  }
}

TEST_F(FolderTest, EveryFamilyOpensAgain) {
  for (const char* family : {"llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen3_moe"}) {
    for (const auto method : {FolderOptions::gptq, FolderOptions::awq, FolderOptions::fp8}) {
      write_quantized_folder(golden(std::string("models/") + family), path("out"), options(method));
      EXPECT_NO_THROW(models::open_model(path("out"), {})) << family;
      fs::remove_all(path("out"));
    }
  }
}

TEST_F(FolderTest, ShapesThatDoNotFitAreRefusedByName) {
  auto error_of = [&](const char* family, FolderOptions o) {
    try {
      write_quantized_folder(golden(std::string("models/") + family), path("out"), o);
    } catch (const base::Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  FolderOptions wide = options(FolderOptions::awq);
  wide.form.group = 48;
  EXPECT_NE(error_of("llama", wide).find("q_proj"), std::string::npos);
  EXPECT_NE(error_of("gpt2", options(FolderOptions::fp8)).find("c_attn"), std::string::npos);
  EXPECT_FALSE(fs::exists(path("out.part")));
}

TEST_F(FolderTest, AnEmptyCalibrationTextIsRefused) {
  FolderOptions o = options(FolderOptions::gptq);
  o.tokens.clear();
  try {
    write_quantized_folder(golden("models/llama"), path("out"), o);
    FAIL() << "nothing was refused";
  } catch (const base::Error& e) {
    EXPECT_NE(std::string(e.what()).find("empty"), std::string::npos) << e.what();
  }
}

TEST_F(FolderTest, AnotherFolderWhereThePartsWouldLieIsLeftAlone) {
  fs::create_directories(path("out.part"));
  EXPECT_THROW(write_quantized_folder(golden("models/llama"), path("out"), options(FolderOptions::fp8)), base::Error);
  EXPECT_TRUE(fs::exists(path("out.part")));
}

}  // namespace
}  // namespace sinter::quant
