#include "eval/sandbox/sandbox.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>

namespace sinter::eval {
namespace {

class SandboxTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!sandbox_problem().empty()) GTEST_SKIP() << "no sandbox here: " << sandbox_problem();
  }
};

TEST_F(SandboxTest, ProgramsThatComeToTheirEndPass) {
  EXPECT_TRUE(run_python("assert 1 + 1 == 2").passed);
  EXPECT_TRUE(run_python("import math, re, json, collections, heapq\nassert math.gcd(4, 6) == 2").passed);
}

TEST_F(SandboxTest, ExceptionsAndEarlyExitsFail) {
  EXPECT_FALSE(run_python("assert 1 + 1 == 3").passed);
  EXPECT_FALSE(run_python("import sys\nsys.exit(0)").passed);
  EXPECT_FALSE(run_python("import os\nos._exit(0)").passed);
  EXPECT_FALSE(run_python("return (").passed);
}

TEST_F(SandboxTest, EndlessLoopsEndInTime) {
  SandboxLimits limits;
  limits.seconds = 1;
  const SandboxResult result = run_python("while True:\n    pass", limits);
  EXPECT_TRUE(result.timed_out);
  EXPECT_FALSE(result.passed);
}

TEST_F(SandboxTest, ForkBombsMakeNoProcess) {
  const SandboxResult result = run_python("import os\nwhile True:\n    os.fork()");
  EXPECT_FALSE(result.passed);
  EXPECT_NE(result.output.find("PermissionError"), std::string::npos) << result.output;
  EXPECT_FALSE(run_python("import subprocess\nsubprocess.run(['/bin/true'])").passed);
}

TEST_F(SandboxTest, ThreadBombsAreBounded) {
  SandboxLimits limits;
  limits.seconds = 2;
  const SandboxResult result = run_python(
      "import threading, time\nfor i in range(100000):\n"
      "    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
      limits);
  EXPECT_FALSE(result.passed);
}

TEST_F(SandboxTest, TheSystemsFilesAreNotThere) {
  for (const char* path : {"/etc/passwd", "/etc/shadow", "/home", "/root", "/proc/1/root/etc/passwd"}) {
    const SandboxResult result = run_python(std::string("import os\nassert not os.path.exists('") + path + "')");
    EXPECT_TRUE(result.passed) << path << ": " << result.output;
  }
  EXPECT_FALSE(run_python("open('/etc/passwd').read()").passed);
}

TEST_F(SandboxTest, SocketsAreRefused) {
  const SandboxResult result = run_python("import socket\nsocket.socket()");
  EXPECT_FALSE(result.passed);
  EXPECT_NE(result.output.find("PermissionError"), std::string::npos) << result.output;
}

TEST_F(SandboxTest, TheDiskCannotBeFilled) {
  SandboxLimits limits;
  limits.file_bytes = 1 << 20;
  for (const char* folder : {"/tmp", "/dev/shm", "/usr", "/"}) {
    const SandboxResult result = run_python(std::string("import os\nfor i in range(50):\n    with open('") + folder +
                                                "/f%d' % i, 'wb') as f:\n        f.write(b'x' * 200000)",
                                            limits);
    EXPECT_FALSE(result.passed) << folder;
  }
  EXPECT_FALSE(std::filesystem::exists("/tmp/f0"));
}

TEST_F(SandboxTest, MemoryIsBounded) { EXPECT_FALSE(run_python("x = bytearray(4 << 30)").passed); }

TEST_F(SandboxTest, EndlessOutputIsCutAndEnds) {
  SandboxLimits limits;
  limits.seconds = 1;
  const SandboxResult result = run_python("while True:\n    print('x' * 1000)", limits);
  EXPECT_TRUE(result.timed_out);
  EXPECT_LE(static_cast<int64_t>(result.output.size()), limits.output_bytes);
}

}  // namespace
}  // namespace sinter::eval
