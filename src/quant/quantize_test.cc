// Between GGUF files and folders.
#include "quant/quantize.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "base/source_dir.h"
#include "io/gguf.h"

namespace sinter::quant {
namespace {

namespace fs = std::filesystem;

TEST(WriteFolder, KeepsEveryPlainNumberOfAFile) {
  const fs::path folder = fs::temp_directory_path() / fmt::format("sinter_quantize_{}", ::getpid());
  for (const char* name : {"gpt2/gpt2.q8_0.gguf", "qwen2/qwen2.q5_0.gguf", "mixtral/mixtral.q4_0.gguf"}) {
    fs::remove_all(folder);
    fs::create_directories(folder);
    auto path = [&](const char* file) { return (folder / file).string(); };
    // Matrices in f16, norms in f32.
    write_gguf(base::source_dir() + "/tests/golden/gguf/models/" + name, path("first.gguf"), {.type = "f16"});
    write_folder(path("first.gguf"), path("model"), "");
    write_gguf(path("model"), path("second.gguf"), {.type = "f16"});
    const io::GgufFile first(path("first.gguf")), second(path("second.gguf"));
    ASSERT_EQ(first.tensors().size(), second.tensors().size());
    for (const io::GgufTensor& tensor : first.tensors()) {
      const io::GgufTensor& again = second.tensor(tensor.name);
      EXPECT_EQ(tensor.dtype, again.dtype) << tensor.name;
      EXPECT_TRUE(std::ranges::equal(tensor.bytes, again.bytes)) << name << ": " << tensor.name;
    }
  }
  fs::remove_all(folder);
}

}  // namespace
}  // namespace sinter::quant
