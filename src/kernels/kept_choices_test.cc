#include "kernels/kept_choices.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "base/file.h"

namespace sinter::kernels {
namespace {

namespace fs = std::filesystem;

// An environment variable for the length of a test.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before, was_set_ = true;
    value ? ::setenv(name, value, 1) : ::unsetenv(name);
  }
  ~Variable() { was_set_ ? ::setenv(name_, before_.c_str(), 1) : ::unsetenv(name_); }

 private:
  const char* name_;
  std::string before_;
  bool was_set_ = false;
};

std::string fresh_folder() {
  const std::string folder = testing::TempDir() + "/kept_choices";
  fs::remove_all(folder);
  return folder;
}

TEST(ChoicesFile, StandsInTheCacheFolderUnlessNamedOrSwitchedOff) {
  const Variable xdg("XDG_CACHE_HOME", "/x"), home("HOME", "/h");
  {
    const Variable none("SINTER_CHOICES", nullptr);
    const std::string a = ChoicesFile::of("a").path;
    EXPECT_EQ(a.rfind("/x/sinter/choices-", 0), 0u) << a;
    EXPECT_NE(a, ChoicesFile::of("b").path) << "another library, device or version has a file of its own";
    const Variable no_xdg("XDG_CACHE_HOME", nullptr);
    EXPECT_EQ(ChoicesFile::of("a").path.rfind("/h/.cache/sinter/choices-", 0), 0u);
    const Variable no_home("HOME", nullptr);
    EXPECT_EQ(ChoicesFile::of("a").path, "");
  }
  const Variable named("SINTER_CHOICES", "/some/file");
  EXPECT_EQ(ChoicesFile::of("a").path, "/some/file");
  const Variable off("SINTER_CHOICES", "0");
  EXPECT_EQ(ChoicesFile::of("a").path, "");
  EXPECT_TRUE(ChoicesFile::of("a").read().empty());
}

TEST(ChoicesFile, GivesBackWhatWasAddedTheLastForEachCall) {
  const ChoicesFile file{fresh_folder() + "/deep/choices.txt", "this machine"};
  EXPECT_TRUE(file.read().empty());
  file.add({"1 2 3 : one", "fused 7 : 0"});
  file.add({"1 2 3 : two", "4 5 6 : three"});
  EXPECT_EQ(file.read(), (std::vector<std::string>{"1 2 3 : two", "4 5 6 : three", "fused 7 : 0"}));
}

TEST(ChoicesFile, WhatIsDamagedOrOfAnotherMachineIsLeftOutAndReplaced) {
  const std::string path = fresh_folder() + "/choices.txt";
  const ChoicesFile file{path, "this machine"};
  file.add({"1 2 3 : one", "4 5 6 : two"});
  const std::string whole = base::read_file(path);
  for (size_t length = 0; length + 1 < whole.size(); ++length) {  // the last line may lack its end
    base::write_file_atomic(path, whole.substr(0, length));
    EXPECT_TRUE(file.read().empty()) << length;
  }
  for (size_t at = 0; at < whole.size(); ++at) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 4);
    base::write_file_atomic(path, damaged);
    EXPECT_TRUE(file.read().empty()) << at;
  }
  base::write_file_atomic(path, whole);
  EXPECT_TRUE((ChoicesFile{path, "another machine"}.read().empty()));
  EXPECT_EQ(file.read().size(), 2u);
  base::write_file_atomic(path, "nonsense");
  file.add({"7 : three"});
  EXPECT_EQ(file.read(), std::vector<std::string>{"7 : three"});
}

TEST(KeptChoices, ADeviceThatMeasuresNothingHasNoFile) {
  const std::string folder = fresh_folder();
  const Variable xdg("XDG_CACHE_HOME", folder.c_str()), none("SINTER_CHOICES", nullptr);
  { KeptChoices kept(core::Device{}); }
  EXPECT_FALSE(fs::exists(folder));
}

}  // namespace
}  // namespace sinter::kernels
