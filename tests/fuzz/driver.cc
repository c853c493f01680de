// Runs a fuzz target without libFuzzer: every seed file as it is, then `--count` mutations of them.
//
//   json_fuzz [--count N] [--seed S] [--limit-seconds T] FILE...
//
// The mutations are a function of (seed files, S, index), so a failure repeats with the same command. An input that
// crashes or takes longer than T seconds is written to `crash-<program>` in the working folder and the program ends by
// the signal; give that file as the only seed with --count 0 to see it again.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

const std::string* g_input = nullptr;  // what is being run, for the signal handler
char g_crash_path[256];

void write_crash(int signal_number) {
  int fd = ::open(g_crash_path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (fd >= 0 && g_input) {
    for (size_t done = 0; done < g_input->size();) {
      ssize_t n = ::write(fd, g_input->data() + done, g_input->size() - done);
      if (n <= 0) break;
      done += static_cast<size_t>(n);
    }
    ::close(fd);
  }
  const char* what = signal_number == SIGALRM ? "input takes too long; it is in " : "input crashes; it is in ";
  (void)!::write(2, what, std::strlen(what));
  (void)!::write(2, g_crash_path, std::strlen(g_crash_path));
  (void)!::write(2, "\n", 1);
  ::signal(signal_number, SIG_DFL);
  ::raise(signal_number);
}

struct Random {  // splitmix64
  uint64_t state;
  uint64_t next() {
    uint64_t z = state += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  size_t below(size_t n) { return n == 0 ? 0 : static_cast<size_t>(next() % n); }
};

constexpr unsigned char kTellingBytes[] = {0,   1,   0x7f, 0x80, 0xff, '"', '\\', '{',  '}',  '[',
                                           ']', ':', ',',  '-',  '0',  '9', ' ',  '\n', 0xc0, 0xed};
constexpr uint64_t kTellingNumbers[] = {0,
                                        1,
                                        0x7f,
                                        0x80,
                                        0xff,
                                        0x7fff,
                                        0xffff,
                                        0x7fffffff,
                                        0x80000000,
                                        0xffffffff,
                                        0x7fffffffffffffffull,
                                        0x8000000000000000ull,
                                        0xffffffffffffffffull};

void mutate_once(std::string& input, const std::vector<std::string>& seeds, Random& random) {
  const size_t size = input.size(), at = random.below(size),
               length = 1 + random.below(std::min<size_t>(size, 1 + random.below(64)));
  switch (random.below(9)) {
    case 0:  // one bit
      if (size) input[at] = static_cast<char>(input[at] ^ (1 << random.below(8)));
      break;
    case 1:  // one byte of those that parsers care about
      if (size) input[at] = static_cast<char>(kTellingBytes[random.below(sizeof kTellingBytes)]);
      break;
    case 2:  // a hole
      input.erase(at, length);
      break;
    case 3:  // a repeated stretch
      input.insert(at, input.substr(random.below(size), length));
      break;
    case 4: {  // random bytes put in
      std::string noise(1 + random.below(8), '\0');
      for (char& c : noise) c = static_cast<char>(random.next());
      input.insert(at, noise);
      break;
    }
    case 5:  // cut off
      input.resize(at);
      break;
    case 6: {  // the head of one seed and the tail of another
      const std::string& other = seeds[random.below(seeds.size())];
      input = input.substr(0, at) + other.substr(random.below(other.size()));
      break;
    }
    case 7: {  // a little-endian number that overflows something
      uint64_t number = kTellingNumbers[random.below(std::size(kTellingNumbers))];
      size_t width = size_t{1} << random.below(4);
      if (at + width <= size) std::memcpy(&input[at], &number, width);
      break;
    }
    case 8:  // decimal numbers changed
      if (size_t digit = input.find_first_of("0123456789", at); digit != std::string::npos) {
        input[digit] = static_cast<char>('0' + random.below(10));
        if (random.below(4) == 0) input.insert(digit, "99999999999999999999", random.below(20));
      }
      break;
  }
}

std::string read_seed(const char* path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    std::fprintf(stderr, "cannot open seed '%s'\n", path);
    std::exit(2);
  }
  return {std::istreambuf_iterator<char>(file), {}};
}

void run_one(const std::string& input, unsigned limit_seconds) {
  g_input = &input;
  ::alarm(limit_seconds);
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
  ::alarm(0);
}

}  // namespace

int main(int argc, char** argv) {
  long count = 1000;
  uint64_t seed = 1;
  unsigned limit_seconds = 20;
  std::vector<std::string> seeds;
  for (int i = 1; i < argc; ++i) {
    auto value = [&] { return i + 1 < argc ? argv[++i] : ""; };
    if (!std::strcmp(argv[i], "--count"))
      count = std::atol(value());
    else if (!std::strcmp(argv[i], "--seed"))
      seed = std::strtoull(value(), nullptr, 10);
    else if (!std::strcmp(argv[i], "--limit-seconds"))
      limit_seconds = static_cast<unsigned>(std::atol(value()));
    else
      seeds.push_back(read_seed(argv[i]));
  }
  if (seeds.empty()) seeds.push_back("");
  const char* name = std::strrchr(argv[0], '/');
  std::snprintf(g_crash_path, sizeof g_crash_path, "crash-%s", name ? name + 1 : argv[0]);
  for (int s : {SIGSEGV, SIGABRT, SIGFPE, SIGBUS, SIGILL, SIGALRM}) ::signal(s, write_crash);

  for (const std::string& input : seeds) run_one(input, limit_seconds);
  for (long i = 0; i < count; ++i) {
    Random random{seed * 0x100000001b3ull + static_cast<uint64_t>(i)};
    std::string input = seeds[random.below(seeds.size())];
    for (size_t n = 1 + random.below(4); n > 0; --n) mutate_once(input, seeds, random);
    run_one(input, limit_seconds);
  }
  std::printf("%zu seeds, %ld mutations: no crash\n", seeds.size(), count);
  return 0;
}
