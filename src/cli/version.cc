#include "cli/version.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <openssl/opensslv.h>
#include <pcre2.h>
#include <spdlog/version.h>
#include <utf8proc.h>
#include <zstd.h>

#include "base/cpu.h"

namespace sinter::cli {
namespace {

// What decides about results or about what can be read. utf8proc's Unicode says which characters are letters.
std::string libraries() {
  return fmt::format(
      "fmt {}.{}, spdlog {}.{}, PCRE2 {}.{}, utf8proc {} (Unicode {}), zstd {}, OpenSSL {}.{}, "
      "Apache Arrow {}",
      FMT_VERSION / 10000, FMT_VERSION / 100 % 100, SPDLOG_VER_MAJOR, SPDLOG_VER_MINOR, PCRE2_MAJOR, PCRE2_MINOR,
      utf8proc_version(), utf8proc_unicode_version(), ZSTD_versionString(), OPENSSL_VERSION_MAJOR,
      OPENSSL_VERSION_MINOR, SINTER_ARROW_TEXT);
}

}  // namespace

// The definitions come from module.cmake, for this file alone.
std::string version_text() {
  return fmt::format("sinter {} ({})\ncpu   {}\ncuda  {}\nmpi   {}\nbuilt with {}\n{}", SINTER_VERSION, SINTER_COMMIT,
                     base::cpu_description(), SINTER_CUDA_TEXT, SINTER_MPI_TEXT, SINTER_COMPILER_TEXT, libraries());
}

}  // namespace sinter::cli
