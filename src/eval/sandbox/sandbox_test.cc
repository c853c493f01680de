#include "eval/sandbox/sandbox.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

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

TEST_F(SandboxTest, NoStatusAndNoTextOfAProgramCountsAsItsEnd) {
  for (const int status : {0, 1, 77, 127, 255}) {
    EXPECT_FALSE(run_python(fmt::format("import os\nos._exit({})", status)).passed) << status;
    EXPECT_FALSE(run_python(fmt::format("import sys\nsys.exit({})", status)).passed) << status;
  }
  // The program's own text and all that it can still read, written to every descriptor that it has.
  const SandboxResult result = run_python(
      "import os, sys\nfound = [b'0' * 16, sys.stdin.buffer.read(), open('/tmp/program.py', 'rb').read(),\n"
      "         open('/proc/self/cmdline', 'rb').read(), open('/proc/self/environ', 'rb').read()]\n"
      "assert found[1] == b''\n"
      "for text in found:\n    for fd in os.listdir('/proc/self/fd'):\n"
      "        try:\n            os.write(int(fd), text[-16:])\n        except OSError:\n            pass\n"
      "os._exit(0)");
  EXPECT_EQ(result.status, 0) << result.output;
  EXPECT_FALSE(result.passed);
}

TEST_F(SandboxTest, ProgramsThatReplaceTheWayOutStillPass) {
  EXPECT_TRUE(run_python("import os, sys\nos._exit = sys.exit = os.write = None").passed);
  EXPECT_TRUE(run_python("import os\nos.close(0)\nos.close(1)\nos.close(2)").passed);
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

TEST_F(SandboxTest, MemoryIsBounded) {
  const SandboxLimits limits{.seconds = 60};  // on a busy machine a gigabyte may take longer than 3 s
  EXPECT_FALSE(run_python("x = bytearray(4 << 30)", limits).passed);
  const SandboxResult result =
      run_python("x = []\nwhile True:\n    x.append(bytearray(1 << 24))", limits);  // bit by bit
  EXPECT_FALSE(result.passed);
  EXPECT_NE(result.output.find("MemoryError"), std::string::npos) << result.output;
}

// This process, the parent of the sandbox, is not seen in it and is still there.
TEST_F(SandboxTest, ProcessesOutsideCannotBeKilled) {
  const std::string outside = std::to_string(::getpid());
  for (const std::string& target : {std::string("os.getppid()"), std::string("1"), std::string("-1"), outside}) {
    const SandboxResult result = run_python("import os, signal\nos.kill(" + target + ", signal.SIGKILL)\n");
    EXPECT_LE(result.status, 255) << target;  // reached: we are alive
  }
  EXPECT_FALSE(run_python("import os\nos.kill(" + outside + ", 0)").passed);
}

// The first half of a daemon's double fork, by every call that makes a process.
TEST_F(SandboxTest, NothingOutlivesTheProgram) {
  for (const char* call : {"os.fork()", "os.forkpty()", "os.posix_spawn('/bin/sleep', ['sleep', '60'], {})",
                           "os.system('sleep 60 &')", "__import__('multiprocessing').Process(target=print).start()"}) {
    const SandboxResult result = run_python(std::string("import os\nmade = ") + call + "\nassert made == 0");
    EXPECT_FALSE(result.passed) << call << ": " << result.output;
    EXPECT_FALSE(result.timed_out) << call;
  }
}

TEST_F(SandboxTest, TheKernelsSettingsCannotBeWritten) {
  for (const char* path :
       {"/proc/sys/kernel/core_pattern", "/proc/sys/vm/drop_caches", "/proc/sysrq-trigger", "/proc/1/oom_score_adj",
        "/proc/self/oom_score_adj", "/sys/kernel/uevent_helper", "/dev/kmsg", "/dev/mem"}) {
    // Opening is enough: a write that succeeds would change this machine.
    const SandboxResult result = run_python(std::string("import os\nos.open('") + path + "', os.O_WRONLY)");
    EXPECT_FALSE(result.passed) << path;
  }
}

TEST_F(SandboxTest, ProgramsThatCloseTheirOutputAndWaitEndInTime) {
  SandboxLimits limits;
  limits.seconds = 1;
  const SandboxResult result = run_python("import os, time\nos.close(1)\nos.close(2)\ntime.sleep(600)", limits);
  EXPECT_TRUE(result.timed_out);
  EXPECT_FALSE(result.passed);
}

TEST_F(SandboxTest, EndlessOutputIsCutAndEnds) {
  SandboxLimits limits;
  limits.seconds = 1;
  const SandboxResult result = run_python("while True:\n    print('x' * 1000)", limits);
  EXPECT_TRUE(result.timed_out);
  EXPECT_LE(static_cast<int64_t>(result.output.size()), limits.output_bytes);
}

}  // namespace
}  // namespace sinter::eval
