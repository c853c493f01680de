#include "core/stream_trace.h"

#include <atomic>

namespace sinter::core {

static std::atomic<StreamTracer> stream_tracer{nullptr};

void set_stream_tracer(StreamTracer tracer) { stream_tracer = tracer; }

void trace_on(const char* name, Stream& stream, const std::function<void()>& call) {
  if (const StreamTracer tracer = stream_tracer) {
    tracer(name, stream, call);
  } else {
    call();
  }
}

}  // namespace sinter::core
