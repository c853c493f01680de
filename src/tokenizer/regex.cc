#include "tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/error.h"
#include "tokenizer/oniguruma.h"

namespace sinter::tokenizer {

struct Regex::Code {
  pcre2_code* code = nullptr;
  ~Code() { pcre2_code_free(code); }
};

namespace {

std::string error_text(int number) {
  PCRE2_UCHAR message[256];
  pcre2_get_error_message(number, message, sizeof message);
  return reinterpret_cast<const char*>(message);
}

// Of the compiled code; one for each thread, taken as far as it is used.
struct MatchContext {
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(size_t{32} << 10, size_t{16} << 20, nullptr);
  MatchContext() { pcre2_jit_stack_assign(context, nullptr, stack); }
  ~MatchContext() {
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }
};

struct MatchData {
  pcre2_match_data* data;
  explicit MatchData(const pcre2_code* code) : data(pcre2_match_data_create_from_pattern(code, nullptr)) {}
  ~MatchData() { pcre2_match_data_free(data); }
};

}  // namespace

Regex::Regex(std::string_view pattern, const std::string& origin) : code_(new Code), pattern_(pattern) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  constexpr uint32_t kOptions =
      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_MATCH_INVALID_UTF | PCRE2_NEVER_BACKSLASH_C;
  const std::string own = oniguruma_to_pcre2(pattern, origin);
  code_->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(own.data()), own.size(), kOptions, &error, &offset, nullptr);
  SINTER_CHECK(code_->code, "{}: the regular expression '{}' is wrong at position {}: {}", origin, own, offset,
               error_text(error));
  pcre2_jit_compile(code_->code, PCRE2_JIT_COMPLETE);  // where there is no JIT, pcre2_match interprets
}

Regex::~Regex() = default;

void Regex::for_each_match(std::string_view text, base::FunctionRef<void(size_t, size_t)> visit) const {
  const MatchData match(code_->code);
  static thread_local const MatchContext t_context;
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data() ? text.data() : "");
  uint32_t options = 0;
  for (size_t pos = 0; pos <= text.size();) {
    int rc = pcre2_match(code_->code, subject, text.size(), pos, options, match.data, t_context.context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {  // this match by interpretation, which is slow
      options |= PCRE2_NO_JIT;
      continue;
    }
    options = 0;
    if (rc == PCRE2_ERROR_NOMATCH) return;
    SINTER_CHECK(rc > 0, "the regular expression '{}' cannot be matched at byte {} of a text of {} bytes: {}", pattern_,
                 pos, text.size(), error_text(rc));
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(match.data);
    if (range[1] > range[0]) {
      visit(range[0], range[1]);
      pos = range[1];
    } else {  // an empty match: step over one character
      pos = range[0] + 1;
      while (pos < text.size() && (static_cast<unsigned char>(text[pos]) & 0xc0) == 0x80) ++pos;
    }
  }
}

}  // namespace sinter::tokenizer
