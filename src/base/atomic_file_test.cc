#include "base/atomic_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "base/file.h"

namespace sinter::base {
namespace {

namespace fs = std::filesystem;

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

class AtomicFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = (fs::temp_directory_path() / ("sinter_atomic_file_" + std::to_string(::getpid()))).string();
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::set<std::string> names() const {
    std::set<std::string> out;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder_)) out.insert(entry.path().filename());
    return out;
  }
  std::string at(const std::string& name) const { return folder_ + "/" + name; }
  std::string folder_;
};

// Another process that writes `path` until it is killed.
class Writer {
 public:
  explicit Writer(const std::string& path) {
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      AtomicFile file(path);
      file.append(bytes_of("half"));
      if (::write(ends[1], "x", 1) == 1) ::pause();
      ::_exit(1);
    }
    char started = 0;
    EXPECT_EQ(::read(ends[0], &started, 1), 1);
    ::close(ends[0]);
    ::close(ends[1]);
  }
  ~Writer() { kill(); }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
};

TEST_F(AtomicFiles, AppearWholeWithCommitAndNotAtAllWithout) {
  {
    AtomicFile file(at("a"));
    file.append(bytes_of("0000"));
    file.append(bytes_of(" and more"));
    file.write_at(bytes_of("head"), 0);
    file.append(bytes_of("!"));
    EXPECT_FALSE(fs::exists(at("a")));
    file.commit();
    EXPECT_TRUE(file.is_committed());
    EXPECT_THROW(file.commit(), Error);
  }
  EXPECT_EQ(read_file(at("a")), "head and more!");
  { AtomicFile(at("a")).append(bytes_of("other")); }
  EXPECT_EQ(read_file(at("a")), "head and more!");
  EXPECT_EQ(names(), std::set<std::string>{"a"});
}

TEST_F(AtomicFiles, WhatAKilledWriterLeftIsRemovedByTheNextAndALivingOnesStays) {
  Writer writer(at("a"));
  const std::string temporary = "a.tmp." + std::to_string(writer.pid());
  write_file_atomic(at("a"), "one");
  EXPECT_EQ(names(), (std::set<std::string>{"a", temporary}));
  writer.kill();
  write_file_atomic(at("b"), "of another name");
  EXPECT_EQ(names(), (std::set<std::string>{"a", "b", temporary}));
  write_file_atomic(at("a"), "two");
  EXPECT_EQ(names(), (std::set<std::string>{"a", "b"}));
}

TEST_F(AtomicFiles, OfOneNameAreWrittenSideBySideInOneProcess) {
  AtomicFile first(at("a")), second(at("a"));
  first.append(bytes_of("first"));
  second.append(bytes_of("second"));
  second.commit();
  EXPECT_EQ(read_file(at("a")), "second");
  first.commit();
  EXPECT_EQ(read_file(at("a")), "first");
  EXPECT_EQ(names(), std::set<std::string>{"a"});
}

TEST_F(AtomicFiles, TakeThePlaceOfWhatALinkLeadsToAndOfNothingElseThanFiles) {
  write_file_atomic(at("a"), "before");
  fs::create_symlink("a", at("link"));
  write_file_atomic(at("link"), "after");
  EXPECT_TRUE(fs::is_symlink(at("link")));
  EXPECT_EQ(read_file(at("a")), "after");
  ASSERT_EQ(::mkfifo(at("pipe").c_str(), 0600), 0);
  EXPECT_THROW(AtomicFile file(at("pipe")), Error);
  EXPECT_THROW(AtomicFile file("/dev/null"), Error);
  EXPECT_TRUE(fs::is_fifo(at("pipe")) && fs::is_character_file("/dev/null"));
}

TEST_F(AtomicFiles, AbandonedOnesAreKnownByTheirNamesAndLocks) {
  Writer writer(at("living.tok"));
  const std::string living = "living.tok.tmp." + std::to_string(writer.pid());
  const std::set<std::string> others{"a.tok", "a.txt.tmp.12", "a.tok.tmp", "a.tok.tmp.", "a.tok.tmp.1x", "a.tok.12"};
  for (const std::string& name : others) write_file_atomic(at(name), "kept");
  for (const char* name : {"b.tok.tmp.12", "b.tok.tmp.12.3"}) fs::copy_file(at("a.tok"), at(name));
  fs::create_directory(at("c.tok.tmp.12"));
  remove_abandoned_files(folder_, ".tok");
  std::set<std::string> expected = others;
  expected.insert({living, "c.tok.tmp.12"});
  EXPECT_EQ(names(), expected);
  remove_abandoned_files(at("absent"), ".tok");
}

}  // namespace
}  // namespace sinter::base
