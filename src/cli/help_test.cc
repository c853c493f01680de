#include "cli/help.h"

#include <gtest/gtest.h>

#include <sstream>

#include "cli/command.h"
#include "cli/verbs.h"
#include "cli/version.h"

namespace sinter::cli {
namespace {

CommandHelp whole_program() {
  const CommandLine line("sinter", version_text);
  add_verbs(line.root());
  return line.describe();
}

void expect_narrow(const CommandHelp& command) {
  std::istringstream lines(help_text(command));
  for (std::string text; std::getline(lines, text);) EXPECT_LE(text.size(), kHelpWidth) << command.path << ": " << text;
  for (const CommandHelp& verb : command.verbs) expect_narrow(verb);
}

TEST(Help, NoLineOfAnyVerbIsWiderThanAHundredColumns) { expect_narrow(whole_program()); }

TEST(Help, EveryVerbAndOptionSaysWhatItIs) {
  auto check = [](auto&& self, const CommandHelp& command) -> void {
    EXPECT_FALSE(command.help.empty()) << command.path;
    for (const OptionHelp& option : command.options)
      EXPECT_FALSE(option.help.empty()) << command.path << option.names[0];
    for (const CommandHelp& verb : command.verbs) self(self, verb);
  };
  check(check, whole_program());
}

TEST(Help, EveryVerbHasAPageAndTheListLeadsToIt) {
  const CommandHelp program = whole_program();
  const auto pages = verb_pages(program);
  ASSERT_EQ(pages.size(), program.verbs.size() + 1);
  EXPECT_EQ(pages.back().first, "README.md");
  for (size_t i = 0; i + 1 < pages.size(); ++i)
    EXPECT_NE(pages.back().second.find("(" + pages[i].first + ")"), std::string::npos) << pages[i].first;
}

TEST(Help, LongWordsAndIndentedExamplesKeepTheirPlace) {
  EXPECT_EQ(wrap_text("one two three", 2, 9), "  one two\n  three\n");
  EXPECT_EQ(wrap_text("Examples:\n  sinter x", 0, 20), "Examples:\n  sinter x\n");
  EXPECT_EQ(wrap_text("    a long line here", 0, 12), "    a long\n      line\n      here\n");
}

}  // namespace
}  // namespace sinter::cli
