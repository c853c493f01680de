// A program that tells rewards: it reads a JSON object a line and answers each with a line.
//
//   to it:  {"prompt": "...", "completion": "...", "row": {...}, "tokens": 12, "finished": true}
//   back:   {"reward": 0.5}, 0.5, or null for no reward; in order
//
// It is started once and kept. A line that is no such answer is no reward. When it ends or is silent for too long, what
// it has not answered has no reward, and it is started anew for the next answers; after three starts in a row without
// one answer that is an error. What it writes to standard error goes to ours.
#pragma once
#include <string>
#include <vector>

#include "tune/rewards/reward.h"

namespace sinter::tune {

class OutsideProgram final : public Reward {
 public:
  OutsideProgram(std::vector<std::string> command, double seconds_an_answer);
  ~OutsideProgram() override;
  OutsideProgram(const OutsideProgram&) = delete;
  OutsideProgram& operator=(const OutsideProgram&) = delete;
  std::vector<double> score(std::span<const RewardInput> inputs) override;

 private:
  void start();
  void stop();
  // Sends `text` and takes lines into `answers` until there are `wanted`; false when it ended or was silent.
  bool talk(const std::string& text, size_t wanted, std::vector<std::string>& answers);
  double parse(const std::string& line);

  std::vector<std::string> command_;
  double seconds_;
  int socket_ = -1;
  int pid_ = -1;
  int starts_without_answer_ = 0;
  int64_t num_bad_lines_ = 0;
  std::string held_;  // of a line that is not whole yet
};

}  // namespace sinter::tune
