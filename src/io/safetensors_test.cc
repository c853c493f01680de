#include "io/safetensors.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <numeric>

#include "base/error.h"
#include "io/tensor_folder.h"

namespace sinter::io {
namespace {

namespace fs = std::filesystem;
using base::DType;

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

// A file image: header length, header, then `data_bytes` zeros.
std::string image(std::string_view header, size_t data_bytes) {
  uint64_t length = header.size();
  std::string file(reinterpret_cast<const char*>(&length), sizeof length);
  return file.append(header).append(data_bytes, '\0');
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const base::Error& e) {
    return e.what();
  }
  return "(no error)";
}

std::string parse_error(std::string_view file) {
  return error_of([&] { parse_safetensors(bytes_of(file), "x.safetensors"); });
}

void expect_error(std::string_view file, const std::vector<std::string>& words) {
  std::string error = parse_error(file);
  EXPECT_NE(error.find("x.safetensors"), std::string::npos) << error;
  for (const std::string& word : words) EXPECT_NE(error.find(word), std::string::npos) << error << "\n  lacks " << word;
}

class SafetensorsFolder : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = (fs::temp_directory_path() / ("sinter_io_test_" + std::to_string(::getpid()))).string();
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  size_t num_files() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(folder_), fs::directory_iterator{}));
  }
  std::string folder_;
};

TEST(Safetensors, ReadsATensorOfEachKindAndTheMetadata) {
  std::string file =
      image(R"({"__metadata__":{"format":"pt"},"w":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]},)"
            R"("s":{"dtype":"F32","shape":[],"data_offsets":[12,16]},)"
            R"("none":{"dtype":"I64","shape":[0,4],"data_offsets":[16,16]}}   )",
            16);
  SafetensorsHeader header = parse_safetensors(bytes_of(file), "x.safetensors");
  ASSERT_EQ(header.entries.size(), 3u);
  EXPECT_EQ(header.metadata.at("format"), "pt");
  EXPECT_EQ(header.entries[0].name, "w");
  EXPECT_EQ(header.entries[0].dtype, DType::bf16);
  EXPECT_EQ(header.entries[0].shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(header.entries[0].num_elements(), 6);
  EXPECT_EQ(header.entries[1].num_elements(), 1);
  EXPECT_TRUE(header.entries[1].shape.empty());
  EXPECT_EQ(header.entries[2].num_elements(), 0);
  EXPECT_EQ(reinterpret_cast<const char*>(header.entries[1].bytes.data()), file.data() + file.size() - 4);
}

TEST(Safetensors, EveryHeaderProblemIsOneClearError) {
  expect_error("1234", {"4 bytes", "at least 8"});
  expect_error(std::string(16, '\xff'), {"claims a header of 18446744073709551615 bytes"});
  expect_error(image("{}", 0).substr(0, 9), {"claims a header of 2 bytes", "only 1", "cut short"});
  expect_error(image("[]", 0), {"does not begin with '{'"});
  expect_error(image("", 0), {"does not begin with '{'"});
  expect_error(image("{\"w\":", 0), {"not valid JSON"});
  expect_error(image(R"({"w":{"dtype":"F32","shape":[[[[1]]]],"data_offsets":[0,4]}})", 4), {"nests deeper"});
  expect_error(image(R"({"w":3})", 0), {"'w'", "not described by an object"});
  expect_error(image(R"({"w":{"dtype":"F32","shape":[1]}})", 4), {"'w'", "no 'data_offsets'"});
  expect_error(image(R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1}})", 4), {"'w'", "unknown key 'x'"});
  expect_error(image(R"({"w":{"dtype":"Q4","shape":[1],"data_offsets":[0,4]}})", 4), {"'w'", "unknown dtype 'Q4'"});
  expect_error(image(R"({"w":{"dtype":"f32","shape":[1],"data_offsets":[0,4]}})", 4), {"'w'", "unknown dtype 'f32'"});
  expect_error(image(R"({"w":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4), {"'w'", "shape holds -1"});
  expect_error(image(R"({"w":{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}})", 4), {"'w'", "shape holds 1.5"});
  expect_error(image(R"({"w":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0),
               {"'w'", "too large"});
  expect_error(image(R"({"w":{"dtype":"F32","shape":[0,9223372036854775808],"data_offsets":[0,0]}})", 0),
               {"'w'", "too large"});
  expect_error(image(R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}})", 4), {"'w'", "not a pair"});
  expect_error(image(R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4), {"'w'", "run backwards"});
  expect_error(image(R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4),
               {"'w'", "give 4 bytes", "shape (2) of F32 takes 8"});
  expect_error(image(R"({"__metadata__":{"n":1}})", 0), {"__metadata__", "'n'", "not text"});
}

TEST(Safetensors, TensorsMustCoverTheDataExactly) {
  std::string two =
      R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":)";
  EXPECT_EQ(parse_error(image(two + "[4,8]}}", 8)), "(no error)");
  expect_error(image(two + "[4,8]}}", 7), {"'b'", "ends at byte 8 of 7", "cut short"});
  expect_error(image(two + "[3,7]}}", 7), {"'a' and 'b' overlap"});
  expect_error(image(two + "[5,9]}}", 9), {"1 bytes before tensor 'b'"});
  expect_error(image(two + "[4,8]}}", 10), {"2 bytes at the end"});
  expect_error(image(two + "[18446744073709551612,18446744073709551615]}}", 8), {"'b'"});
  expect_error(image(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"a":{"dtype":"U8","shape":[4],)"
                     R"("data_offsets":[0,4]}})",
                     4),
               {"'a' stands twice"});
}

TEST(Safetensors, EveryTruncationIsAnError) {
  std::string whole = image(R"({"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})", 16);
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_NE(parse_error(whole.substr(0, size)), "(no error)") << size;
  }
}

TEST_F(SafetensorsFolder, WriterGivesTheSameFileForAnyOrderOfCalls) {
  std::vector<float> w(6);
  std::iota(w.begin(), w.end(), 1.0f);
  std::vector<int64_t> ids{7, 8};
  std::vector<uint8_t> mask{1, 0, 1};
  auto w_bytes = std::as_bytes(std::span(w));
  {
    SafetensorsWriter writer(path("one.safetensors"));
    writer.declare("mask", DType::boolean, {3});
    writer.declare("w", DType::f32, {2, 3});
    writer.declare("ids", DType::i64, {2});
    writer.write("mask", std::as_bytes(std::span(mask)));
    writer.write("w", w_bytes);
    writer.write("ids", std::as_bytes(std::span(ids)));
    EXPECT_FALSE(fs::exists(path("one.safetensors")));  // nothing under the final name before commit
    writer.commit();
  }
  {
    SafetensorsWriter writer(path("two.safetensors"));
    writer.declare("w", DType::f32, {2, 3});
    writer.declare("ids", DType::i64, {2});
    writer.declare("mask", DType::boolean, {3});
    writer.write("w", w_bytes.first(5));  // in pieces, between others
    writer.write("ids", std::as_bytes(std::span(ids)));
    writer.write("w", w_bytes.subspan(5));
    writer.write("mask", std::as_bytes(std::span(mask)));
    writer.commit();
  }
  EXPECT_EQ(base::read_file(path("one.safetensors")), base::read_file(path("two.safetensors")));
  EXPECT_EQ(num_files(), 2u);  // no temporary left

  SafetensorsFile file(path("one.safetensors"));
  ASSERT_EQ(file.entries().size(), 3u);
  EXPECT_EQ(file.entries()[0].name, "ids");  // widest elements first: all aligned
  EXPECT_EQ(file.metadata().at("format"), "pt");
  ASSERT_NE(file.find("w"), nullptr);
  EXPECT_EQ(std::memcmp(file.find("w")->bytes.data(), w.data(), 24), 0);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(file.find("ids")->bytes.data()) % 8, 0u);
  EXPECT_EQ(file.find("nothing"), nullptr);
}

TEST_F(SafetensorsFolder, WriterRefusesMisuseAndLeavesNothingBehind) {
  {
    SafetensorsWriter writer(path("a.safetensors"));
    writer.declare("w", DType::f32, {2});
    EXPECT_NE(error_of([&] { writer.declare("w", DType::f32, {2}); }).find("declared twice"), std::string::npos);
    EXPECT_NE(error_of([&] { writer.declare("n", DType::f32, {-2}); }).find("impossible shape"), std::string::npos);
    EXPECT_NE(error_of([&] { writer.write("v", bytes_of("1234")); }).find("'v' was not declared"), std::string::npos);
    EXPECT_NE(error_of([&] { writer.write("w", bytes_of("123456789")); }).find("takes 8 bytes"), std::string::npos);
    writer.write("w", bytes_of("1234"));
    EXPECT_NE(error_of([&] { writer.declare("x", DType::f32, {2}); }).find("after the first write"), std::string::npos);
    EXPECT_NE(error_of([&] { writer.commit(); }).find("'w' has 4 of its 8 bytes"), std::string::npos);
  }
  EXPECT_EQ(num_files(), 0u);
  EXPECT_NE(error_of([&] { SafetensorsWriter writer(path("no/such/folder.safetensors")); }).find("cannot create"),
            std::string::npos);
}

TEST_F(SafetensorsFolder, WriterReachesBeyondFourGigabytes) {
  // Only the last tensor gets its bytes: the others stay holes of a sparse file and the commit must refuse them.
  SafetensorsWriter writer(path("large.safetensors"));
  writer.declare("a", DType::u8, {int64_t{5} << 30});
  writer.declare("b", DType::u8, {4});
  writer.write("b", bytes_of("tail"));
  std::string temporary = fs::directory_iterator(folder_)->path().string();
  EXPECT_GT(fs::file_size(temporary), uint64_t{5} << 30);
  SafetensorsFile file(temporary);
  EXPECT_EQ(std::memcmp(file.find("b")->bytes.data(), "tail", 4), 0);
  EXPECT_NE(error_of([&] { writer.commit(); }).find("'a' has 0 of its"), std::string::npos);
}

TEST_F(SafetensorsFolder, ShardedFolderReadsBackAsOne) {
  TensorFolderWriter writer(folder_, 20);
  std::map<std::string, std::string> contents{{"a", "aaaabbbb"}, {"b", "ccccdddd"}, {"c", "eeeeffff"}, {"d", "gggg"}};
  for (auto& [name, text] : contents) writer.declare(name, DType::f32, {static_cast<int64_t>(text.size() / 4)});
  for (auto& [name, text] : contents) writer.write(name, bytes_of(text));
  writer.commit();
  EXPECT_TRUE(fs::exists(path("model-00001-of-00002.safetensors")));
  EXPECT_TRUE(fs::exists(path("model.safetensors.index.json")));
  TensorFolder folder(folder_);
  EXPECT_EQ(folder.files().size(), 2u);
  ASSERT_EQ(folder.entries().size(), 4u);
  EXPECT_EQ(folder.size_bytes(), 28u);
  for (auto& [name, text] : contents) {
    EXPECT_EQ(std::memcmp(folder.get(name).bytes.data(), text.data(), text.size()), 0) << name;
  }
  EXPECT_EQ(folder.find("e"), nullptr);

  TensorFolderWriter smaller(folder_);  // one file now: the old index must not hide it
  smaller.declare("only", DType::u8, {1});
  smaller.write("only", bytes_of("x"));
  smaller.commit();
  EXPECT_EQ(TensorFolder(folder_).entries().size(), 1u);
}

TEST_F(SafetensorsFolder, IndexProblemsNameTheIndexAndTheTensor) {
  auto index_error = [&](const std::string& text) {
    base::write_file_atomic(path("model.safetensors.index.json"), text);
    return error_of([&] { TensorFolder folder(folder_); });
  };
  base::write_file_atomic(path("part.safetensors"),
                          image(R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1));
  EXPECT_NE(index_error("{}").find("weight_map"), std::string::npos);
  EXPECT_NE(index_error(R"({"weight_map":{"w":1}})").find("['w'] is not a file name"), std::string::npos);
  EXPECT_NE(index_error(R"({"weight_map":{"w":"../part.safetensors"}})").find("plain name"), std::string::npos);
  EXPECT_NE(index_error(R"({"weight_map":{"w":"/etc/passwd"}})").find("plain name"), std::string::npos);
  EXPECT_NE(index_error(R"({"weight_map":{"w":"gone.safetensors"}})").find("not in the folder"), std::string::npos);
  EXPECT_NE(index_error(R"({"weight_map":{"v":"part.safetensors"}})").find("no such tensor"), std::string::npos);
  EXPECT_EQ(index_error(R"({"weight_map":{"w":"part.safetensors"}})"), "(no error)");
  fs::remove(path("model.safetensors.index.json"));
  EXPECT_NE(error_of([&] { TensorFolder folder(folder_); }).find("neither"), std::string::npos);
}

}  // namespace
}  // namespace sinter::io
