#include "eval/language/data.h"

#include "data/formats/compression.h"

// The files as they are, between two symbols each. SINTER_LANGUAGE_DATA is their folder.
#define SINTER_INCLUDE_FILE(symbol, name)                                                                  \
  __asm__(".pushsection .rodata\n.balign 16\n" #symbol "_begin:\n.incbin \"" SINTER_LANGUAGE_DATA "/" name \
          "\"\n" #symbol "_end:\n.byte 0\n.popsection\n");                                                 \
  extern "C" const char symbol##_begin[], symbol##_end[]

SINTER_INCLUDE_FILE(sinter_language_profiles, "language_profiles.zst");
SINTER_INCLUDE_FILE(sinter_punkt_english, "punkt_english.zst");

namespace sinter::eval {

void read_language_data(LanguageData which, const std::function<void(const std::vector<std::string_view>&)>& on_line) {
  const std::string_view packed = which == LanguageData::profiles
                                      ? std::string_view(sinter_language_profiles_begin, sinter_language_profiles_end)
                                      : std::string_view(sinter_punkt_english_begin, sinter_punkt_english_end);
  const std::string text = data::unpack_all(packed, "the program's language data");
  std::vector<std::string_view> cells;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    cells.clear();
    for (size_t at = begin; at <= end;) {
      const size_t stop = std::min(text.find('\t', at), end);
      cells.push_back(std::string_view(text).substr(at, stop - at));
      at = stop + 1;
    }
    on_line(cells);
    begin = end + 1;
  }
}

}  // namespace sinter::eval
