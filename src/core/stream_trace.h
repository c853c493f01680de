// How what other folders put on a device's streams gets into the timeline that times a step's kernels.
#pragma once
#include <functional>

#include "core/device.h"

namespace sinter::core {

// Enqueues `call` on `stream`, timed where a timeline is being made.
void trace_on(const char* name, Stream& stream, const std::function<void()>& call);

using StreamTracer = void (*)(const char* name, Stream& stream, const std::function<void()>& call);
void set_stream_tracer(StreamTracer tracer);  // by who makes the timeline, once

}  // namespace sinter::core
