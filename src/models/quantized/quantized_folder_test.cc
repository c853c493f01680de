// Packed words and quantized folders against what the libraries that made them say (tests/golden/quant).
#include "models/quantized/quantized_folder.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/error.h"
#include "base/source_dir.h"
#include "core/host_batch.h"
#include "kernels/table.h"
#include "kernels/weight_rows.h"
#include "models/open_model.h"
#include "models/quantized/unpack.h"

namespace sinter::models {
namespace {

using quantized::PackedTensors;

std::string golden(const std::string& name) { return base::source_dir() + "/tests/golden/quant/" + name; }

const float* floats(const io::TensorEntry& entry) { return reinterpret_cast<const float*>(entry.bytes.data()); }

// Numbers of a part of `columns` columns that differ from the answer.
int64_t count_differing(const core::WeightPart& part, int64_t columns, const io::TensorEntry& answer, float tolerance) {
  auto blocks = std::make_shared<core::WeightBlocks>();
  *blocks = {.rows = part.rows, .columns = columns, .parts = {part}};
  std::vector<float> row(static_cast<size_t>(columns));
  int64_t differing = 0;
  for (int64_t r = 0; r < part.rows; ++r) {
    kernels::read_weight_row({.blocks = blocks}, 0, r, row.data());
    for (int64_t c = 0; c < columns; ++c) {
      const float expected = floats(answer)[r * columns + c];
      if (std::abs(row[static_cast<size_t>(c)] - expected) > tolerance * std::abs(expected)) ++differing;
    }
  }
  return differing;
}

TEST(Unpack, GptqOfEveryWidthAndVersionGivesTheSameBits) {
  const io::SafetensorsFile file(golden("packing.safetensors"));
  for (int bits : {2, 3, 4, 8}) {
    for (const char* order : {"", "_act"}) {
      for (int version : {1, 2}) {
        const std::string name = fmt::format("gptq{}{}", bits, order);
        PackedTensors t{.name = name,
                        .codes = file.find(name + ".qweight"),
                        .scales = file.find(name + ".scales"),
                        .zeros = file.find(fmt::format("{}.qzeros_v{}", name, version)),
                        .groups = file.find(name + ".g_idx")};
        const core::WeightPart part = quantized::unpack_gptq(t, {32, 128}, bits, 32, version);
        EXPECT_EQ(static_cast<bool>(part.permutation), *order != 0);
        EXPECT_EQ(count_differing(part, 128, *file.find(name + ".dequant"), 0), 0) << name << " v" << version;
      }
    }
  }
}

TEST(Unpack, AwqAndPackedIntegersGiveTheSameBits) {
  const io::SafetensorsFile file(golden("packing.safetensors"));
  const PackedTensors awq{.name = "awq",
                          .codes = file.find("awq.qweight"),
                          .scales = file.find("awq.scales"),
                          .zeros = file.find("awq.qzeros")};
  EXPECT_EQ(count_differing(quantized::unpack_awq(awq, {32, 128}, 32), 128, *file.find("awq.dequant"), 0), 0);
  for (auto [bits, group] : {std::pair{4, 32}, {8, 64}}) {
    const std::string name = fmt::format("pack_quantized{}", bits);
    const PackedTensors t{
        .name = name, .codes = file.find(name + ".weight_packed"), .scales = file.find(name + ".weight_scale")};
    const core::WeightPart part = quantized::unpack_packed_integers(t, {32, 128}, bits, group);
    EXPECT_EQ(count_differing(part, 128, *file.find(name + ".dequant"), 0), 0) << name;
  }
}

TEST(Unpack, FourBitFloatsGiveTheSameNumbers) {
  const io::SafetensorsFile file(golden("fp4.safetensors"));
  const PackedTensors mx{
      .name = "mxfp4", .codes = file.find("mxfp4.weight_packed"), .scales = file.find("mxfp4.weight_scale")};
  EXPECT_EQ(count_differing(quantized::unpack_mxfp4(mx, {10, 128}), 128, *file.find("mxfp4.dequant"), 0), 0);
  PackedTensors nv{.name = "nvfp4",
                   .codes = file.find("nvfp4.weight_packed"),
                   .scales = file.find("nvfp4.weight_scale"),
                   .global_scale = file.find("nvfp4.weight_global_scale")};
  // The scale of the whole tensor multiplies here, where the library divides: the last bit may differ.
  EXPECT_EQ(count_differing(quantized::unpack_nvfp4(nv, {10, 128}, true), 128, *file.find("nvfp4.dequant"), 2e-7f), 0);
  nv.global_scale = file.find("nvfp4.modelopt_weight_scale_2");
  EXPECT_EQ(count_differing(quantized::unpack_nvfp4(nv, {10, 128}, false), 128, *file.find("nvfp4.dequant"), 2e-7f), 0);
}

TEST(QuantizedFolder, DoublyQuantizedNf4GivesTheSameWeightsAndLogits) {
  const OpenModel model = open_model(golden("nf4-llama"), {});
  const io::SafetensorsFile answers(golden("nf4-llama/answers.safetensors")),
      inputs(golden("nf4-llama/inputs.safetensors"));
  for (const ParameterStore::Slot& slot : model.store->slots()) {
    if (slot.info.name != "layers.0.mlp.down.weight") continue;
    EXPECT_EQ(slot.parameter.weight.format_name(), "nf4");
    const std::vector<float> values = model.store->values_of(slot);
    const io::TensorEntry& expected = *answers.find("dequantized.model.layers.0.mlp.down_proj.weight");
    ASSERT_EQ(values.size() * 4, expected.bytes.size());
    EXPECT_EQ(std::memcmp(values.data(), expected.bytes.data(), expected.bytes.size()), 0);
  }
  const auto* ids = reinterpret_cast<const int64_t*>(inputs.find("input_ids")->bytes.data());
  core::HostBatch host;
  for (int r = 0; r < 2; ++r) host.add_sequence(std::vector<int32_t>(ids + r * 24, ids + r * 24 + 24));
  core::DeviceRuntime& device = core::runtime({});
  const core::RaggedBatch batch = core::upload(device.allocator(), host);
  ops::Context context{kernels::kernels_for({}), device.stream(), device.allocator(), nullptr};
  const std::vector<float> logits =
      core::to_host_floats(model.transformer->logits(context, model.transformer->forward(context, batch, {}).value));
  const float* expected = floats(*answers.find("logits"));
  double worst = 0;
  for (size_t i = 0; i < logits.size(); ++i)
    worst = std::max(worst, std::abs(static_cast<double>(logits[i]) - static_cast<double>(expected[i])));
  EXPECT_LE(worst, 1e-4);
}

}  // namespace
}  // namespace sinter::models
