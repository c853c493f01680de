#include "comm/together.h"

#include <fmt/format.h>

#include <map>

namespace sinter::comm {
namespace {

// "rank 1", "ranks 0, 2, 3", "all 8 ranks", "ranks 1 to 7"
std::string name_ranks(const std::vector<int>& ranks, int size) {
  if (static_cast<int>(ranks.size()) == size) return fmt::format("all {} ranks", size);
  if (ranks.size() == 1) return fmt::format("rank {}", ranks[0]);
  const bool is_row = ranks.back() - ranks.front() + 1 == static_cast<int>(ranks.size());
  if (is_row && ranks.size() > 2) return fmt::format("ranks {} to {}", ranks.front(), ranks.back());
  return fmt::format("ranks {}", fmt::join(ranks, ", "));
}

// Each rank's complaint ("" for none) becomes one error on all ranks, each text said once.
void throw_jointly(Communicator& comm, const std::string& complaint, bool is_usage) {
  if (comm.max(complaint.empty() ? 0 : 1) == 0) return;
  const bool all_usage = comm.max(complaint.empty() || is_usage ? 0 : 1) == 0;
  const std::vector<std::string> texts = comm.gather_texts(complaint);
  std::map<std::string, std::vector<int>> by_text;
  for (size_t r = 0; r < texts.size(); ++r) {
    if (!texts[r].empty()) by_text[texts[r]].push_back(static_cast<int>(r));
  }
  std::string text;
  for (const auto& [what, ranks] : by_text) {
    if (!text.empty()) text += '\n';
    text += static_cast<int>(ranks.size()) == comm.size() ? what : name_ranks(ranks, comm.size()) + ": " + what;
  }
  throw JointError(text, all_usage);
}

}  // namespace

void together(Communicator& comm, const std::function<void()>& work) {
  if (comm.size() == 1) return work();
  std::string complaint;
  bool is_usage = false;
  try {
    work();
  } catch (const base::UsageError& e) {
    complaint = e.what();
    is_usage = true;
  } catch (const std::exception& e) {
    complaint = *e.what() ? e.what() : "an error without a text";
  }
  throw_jointly(comm, complaint, is_usage);
}

void check_same(Communicator& comm, const std::string& text,
                const std::function<std::string(const std::string& first, const std::string& own)>& explain) {
  if (comm.size() == 1) return;
  const std::string first = comm.broadcast_text(text);
  throw_jointly(comm, first == text ? "" : explain(first, text), false);
}

}  // namespace sinter::comm
