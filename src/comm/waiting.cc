#include "comm/waiting.h"

namespace sinter::comm {
namespace {

double total = 0;

}  // namespace

double waited_seconds() { return total; }
void add_waited_seconds(double seconds) { total += seconds; }

}  // namespace sinter::comm
