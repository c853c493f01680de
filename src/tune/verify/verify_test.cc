#include "tune/verify/verify.h"

#include <gtest/gtest.h>

#include "base/source_dir.h"

namespace sinter::tune {
namespace {

// Answers of TRL and transformers, copied from runs of theirs (tests/golden/tune/README.md).
TEST(TuneVerify, GoldenAnswersHold) {
  const std::vector<TuneCase> cases = find_tune_cases(base::source_dir() + "/tests/golden/tune");
  EXPECT_FALSE(cases.empty());
  for (const TuneCase& one : cases) {
    for (const eval::VerifyCheck& check : verify_tune_case(one, {}))
      EXPECT_TRUE(check.holds()) << one.folder << ": " << check.name << ": " << check.error << " of " << check.limit
                                 << " " << check.note;
  }
}

TEST(TuneVerify, AFolderOfAnotherFormHasNoCases) {
  EXPECT_TRUE(find_tune_cases(base::source_dir() + "/tests/golden/models").empty());
  EXPECT_TRUE(find_tune_cases("/no/such/folder").empty());
}

}  // namespace
}  // namespace sinter::tune
