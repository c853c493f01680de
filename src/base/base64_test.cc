#include "base/base64.h"

#include <gtest/gtest.h>

namespace sinter::base {
namespace {

// The examples of RFC 4648, section 10.
TEST(Base64, EncodesAsTheStandardSays) {
  EXPECT_EQ(encode_base64(""), "");
  EXPECT_EQ(encode_base64("f"), "Zg==");
  EXPECT_EQ(encode_base64("fo"), "Zm8=");
  EXPECT_EQ(encode_base64("foo"), "Zm9v");
  EXPECT_EQ(encode_base64("foob"), "Zm9vYg==");
  EXPECT_EQ(encode_base64("fooba"), "Zm9vYmE=");
  EXPECT_EQ(encode_base64("foobar"), "Zm9vYmFy");
  EXPECT_EQ(encode_base64("\xff\xfe\xfd"), "//79");
}

}  // namespace
}  // namespace sinter::base
