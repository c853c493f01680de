// How long this rank has waited for others, over all groups: in a step whose ranks wait for each other the one that
// waits least is the one that the others wait for.
#pragma once

namespace sinter::comm {

double waited_seconds();
void add_waited_seconds(double seconds);  // by the backends; from the thread that talks

}  // namespace sinter::comm
