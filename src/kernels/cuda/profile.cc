#include "kernels/cuda/profile.h"

#include <cuda_runtime_api.h>
#include <nvtx3/nvToolsExt.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <type_traits>
#include <vector>

#include "base/file.h"
#include "base/log.h"
#include "core/cuda/check.h"
#include "core/stream_trace.h"
#include "kernels/cuda/cuda_kernels.h"

namespace sinter::kernels::cuda {
namespace {

// One kernel call: where it began and ended on the device.
struct Span {
  const char* name;
  std::string detail;
  void* stream;
  cudaEvent_t begin, end;
};

struct Trace {
  std::string path;
  int64_t step = 3, current = 1;
  std::vector<Span> spans;
  bool is_done = false;
  const KernelTable* table = nullptr;

  bool is_recording() const { return !is_done && current == step; }

  cudaEvent_t mark(const Stream& stream) {
    cudaEvent_t event = nullptr;
    SINTER_CUDA_CHECK(cudaEventCreate(&event));
    SINTER_CUDA_CHECK(cudaEventRecord(event, static_cast<cudaStream_t>(stream.native)));
    return event;
  }

  // Times in microseconds from the first call on. Each event pair is a complete event ("X") of the trace format.
  void write() {
    is_done = true;
    if (spans.empty()) return;
    std::vector<void*> streams;  // a row each
    for (const Span& span : spans) {
      SINTER_CUDA_CHECK(cudaEventSynchronize(span.end));
      if (std::find(streams.begin(), streams.end(), span.stream) == streams.end()) streams.push_back(span.stream);
    }
    std::string text = "{\"traceEvents\":[";
    for (size_t i = 0; i < spans.size(); ++i) {
      float begin = 0, length = 0;
      SINTER_CUDA_CHECK(cudaEventElapsedTime(&begin, spans[0].begin, spans[i].begin));
      SINTER_CUDA_CHECK(cudaEventElapsedTime(&length, spans[i].begin, spans[i].end));
      text += fmt::format(
          "{}\n{{\"name\":\"{}\",\"ph\":\"X\",\"pid\":0,\"tid\":{},\"ts\":{:.2f},\"dur\":{:.2f},"
          "\"args\":{{\"shape\":\"{}\"}}}}",
          i ? "," : "", spans[i].name, std::find(streams.begin(), streams.end(), spans[i].stream) - streams.begin(),
          begin * 1e3, length * 1e3, spans[i].detail);
    }
    for (const Span& span : spans) {  // not before: all times are from the first one's begin
      SINTER_CUDA_CHECK(cudaEventDestroy(span.begin));
      SINTER_CUDA_CHECK(cudaEventDestroy(span.end));
    }
    text += "\n]}\n";
    base::write_file_atomic(path, text);
    base::log_info("wrote the timeline of step {} ({} calls on {} stream{}) to {}", step, spans.size(), streams.size(),
                   streams.size() == 1 ? "" : "s", path);
    spans.clear();
  }
};

Trace& trace() {
  static Trace* trace = new Trace;
  return *trace;
}

// What a call worked on, for the trace: the shape of its main tensors.
template <class Args>
std::string detail_of(const Args&) {
  return "";
}
std::string detail_of(const MatmulArgs& args) {
  return fmt::format("c {} a {}{}{}", args.c.shape().to_string(), args.a.shape().to_string(),
                     args.accumulate ? " add" : "", base::is_fp8(args.a.dtype()) ? " fp8" : "");
}
std::string detail_of(const NormForwardArgs& args) { return args.x.shape().to_string(); }
std::string detail_of(const NormBackwardArgs& args) { return args.s.shape().to_string(); }
std::string detail_of(const ActivationForwardArgs& args) { return args.x.shape().to_string(); }
std::string detail_of(const ActivationBackwardArgs& args) { return args.x.shape().to_string(); }
std::string detail_of(const CrossEntropyArgs& args) { return args.logits.shape().to_string(); }
std::string detail_of(const Fp8QuantizeArgs& args) { return args.x.shape().to_string(); }
std::string detail_of(const AdamwArgs& args) { return args.master.shape().to_string(); }

// Runs one call between two events and inside an NVTX range. A call that returns false did nothing and leaves no span.
template <class Args, class Call>
void run_traced(const char* name, Stream& stream, const Args& args, Call&& call) {
  nvtxRangePushA(name);
  Trace& t = trace();
  bool records = t.is_recording();
  Span span{name, records ? detail_of(args) : std::string(), stream.native, records ? t.mark(stream) : nullptr,
            nullptr};
  bool is_done = true;
  if constexpr (std::is_same_v<std::invoke_result_t<Call>, bool>) {
    is_done = call();
  } else {
    call();
  }
  if (records && is_done) {
    span.end = t.mark(stream);
    t.spans.push_back(std::move(span));
  } else if (records) {
    SINTER_CUDA_CHECK(cudaEventDestroy(span.begin));
  }
  nvtxRangePop();
}

template <auto kMember>
inline const char* name_of = "";

template <auto kMember, class Args>
void traced(Stream& stream, const Args& args) {
  Trace& t = trace();
  run_traced(name_of<kMember>, stream, args, [&] { (t.table->*kMember)(stream, args); });
  if constexpr (std::is_same_v<Args, StepControlArgs>) {
    if (!t.is_done && ++t.current > t.step) t.write();
  }
}
template <auto kMember, class Args>
bool traced_fused(Stream& stream, const Args& args) {
  bool is_taken = false;
  run_traced(name_of<kMember>, stream, args, [&] { return is_taken = (trace().table->*kMember)(stream, args); });
  return is_taken;
}

// Puts the traced call in the place of each entry; linear_cross_entropy traces its own parts.
struct PutTraces {
  KernelTable& table;
  template <auto kMember>
  void operator()(const char* name) {
    name_of<kMember> = name;
    put<kMember>(table.*kMember);
  }
  template <auto kMember, class Args>
  void put(void (*&entry)(Stream&, const Args&)) {
    entry = &traced<kMember, Args>;
  }
  template <auto kMember, class Args>
  void put(bool (*&entry)(Stream&, const Args&)) {
    if (entry && !std::is_same_v<Args, LinearCrossEntropyArgs>) entry = &traced_fused<kMember, Args>;
  }
};

}  // namespace

void trace_call(const char* name, Stream& stream, const std::function<void()>& call) {
  if (trace().table) {
    run_traced(name, stream, name, call);
  } else {
    call();
  }
}

const KernelTable* traced_table(const KernelTable* table) {
  const char* path = std::getenv("SINTER_TRACE");
  if (!path || !*path) return table;
  trace().path = path;
  trace().table = table;
  if (const char* step = std::getenv("SINTER_TRACE_STEP")) trace().step = std::max(1, std::atoi(step));
  core::set_stream_tracer(
      [](const char* name, Stream& stream, const std::function<void()>& call) { trace_call(name, stream, call); });
  static KernelTable made = [&] {
    KernelTable t = *table;
    visit_kernels(PutTraces{t});
    visit_fused_kernels(PutTraces{t});
    return t;
  }();
  return &made;
}

bool is_tracing() {
  cuda_table();  // its first call decides
  return trace().table != nullptr;
}

}  // namespace sinter::kernels::cuda
