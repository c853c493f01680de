#include "kernels/kept_choices.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "kernels/backend.h"
#include "kernels/choices.h"

namespace sinter::kernels {
namespace {

constexpr std::string_view kHeader = "sinter kernel choices 1";

std::string variable(const char* name) {
  const char* text = std::getenv(name);
  return text ? text : "";
}

// Algorithms may be slower or faster with another driver.
std::string driver() {
  std::ifstream file("/proc/driver/nvidia/version");
  std::string line;
  std::getline(file, line);
  return line.empty() ? "an unknown driver" : line;
}

// What a line's choice is for.
std::string call_of(const std::string& line) { return line.substr(0, line.find(" : ")); }

std::string checksum(const std::string& title, const std::string& body) {
  return fmt::format("{:016x}", base::hash_text(body, base::hash_text(title)));
}

}  // namespace

ChoicesFile ChoicesFile::of(const std::string& title) {
  std::string path = variable("SINTER_CHOICES");
  if (path == "0") return {"", title};
  if (!path.empty()) return {path, title};
  if (path = variable("XDG_CACHE_HOME"); path.empty()) {
    path = variable("HOME");
    if (path.empty()) return {"", title};
    path += "/.cache";
  }
  return {fmt::format("{}/sinter/choices-{:016x}.txt", path, base::hash_text(title)), title};
}

std::vector<std::string> ChoicesFile::read() const {
  std::vector<std::string> lines;
  std::error_code error;
  if (path.empty() || !std::filesystem::exists(path, error)) return lines;
  try {
    std::istringstream text(base::read_file(path));
    std::string header, named, sum, line, body;
    std::getline(text, header), std::getline(text, named), std::getline(text, sum);
    SINTER_CHECK(header == kHeader, "it begins with '{:.40}'; expected '{}'", header, kHeader);
    SINTER_CHECK(named == title, "it is of {:.200}; this is {}", named, title);
    while (std::getline(text, line)) {
      body += line + "\n";
      lines.push_back(std::move(line));
    }
    SINTER_CHECK(sum == checksum(title, body), "it is damaged: its checksum is {:.40}, expected {}", sum,
                 checksum(title, body));
  } catch (const std::exception& e) {
    base::log_warning("{}: kernels' choices are not taken up and will be measured anew: {}", path, e.what());
    lines.clear();
  }
  return lines;
}

void ChoicesFile::add(const std::vector<std::string>& lines) const {
  std::map<std::string, std::string> all;  // by the call
  for (const std::string& line : read()) all[call_of(line)] = line;
  for (const std::string& line : lines) all[call_of(line)] = line;
  std::string body;
  for (const auto& [call, line] : all) body += line + "\n";
  base::create_folders(std::filesystem::path(path).parent_path().string());
  base::write_file_atomic(path, fmt::format("{}\n{}\n{}\n{}", kHeader, title, checksum(title, body), body));
}

KeptChoices::KeptChoices(core::Device device) : device_(device) {
  const std::vector<std::string> now = kernel_choices(device);
  if (now.empty() || !may_keep_choices()) return;
  file_ = ChoicesFile::of(fmt::format("sinter {} on {} by {}", SINTER_VERSION, now.front(), driver()));
  num_saved_ = now.size();
  std::vector<std::string> kept = file_.read();
  if (kept.empty()) return;
  kept.insert(kept.begin(), now.front());
  try {
    restore_kernel_choices(device, kept);
  } catch (const std::exception& e) {
    base::log_warning("{}: {}; what follows it is measured anew", file_.path, e.what());
  }
}

KeptChoices::~KeptChoices() { save(); }

void KeptChoices::save() {
  if (file_.path.empty()) return;
  std::vector<std::string> lines = kernel_choices(device_);
  if (lines.size() == num_saved_) return;
  num_saved_ = lines.size();
  lines.erase(lines.begin());  // the title
  try {
    file_.add(lines);
  } catch (const std::exception& e) {
    base::log_warning("kernels' choices are not kept: {}", e.what());
    file_.path.clear();
  }
}

}  // namespace sinter::kernels
