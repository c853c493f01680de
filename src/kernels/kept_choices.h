// Measured choices (kernels/choices.h) in a file between processes: whoever starts again on the same machine does not
// measure again. For work whose last bits may differ from start to start: serving, not training.
#pragma once
#include <string>
#include <vector>

#include "core/device.h"

namespace sinter::kernels {

// A file of choices. Whatever is wrong with it, reading gives none and says why in a warning.
struct ChoicesFile {
  std::string path;   // "": none
  std::string title;  // what the choices hold for

  // Where choices with this title are kept: $SINTER_CHOICES, or choices-HASH.txt in $XDG_CACHE_HOME/sinter or
  // ~/.cache/sinter. None with SINTER_CHOICES=0 and where there is no home.
  static ChoicesFile of(const std::string& title);
  std::vector<std::string> read() const;
  // Puts the lines in, in the place of those for the same calls, and leaves the others. The old file or the new one is
  // there whole at any time; what two processes add at once may be the last one's alone. Throws base::Error.
  void add(const std::vector<std::string>& lines) const;
};

// Takes up a device's kept choices, and keeps those that are made while it lives. Does nothing on a device that
// measures nothing, nor where choices must not depend on earlier runs (deterministic, batch-invariant).
class KeptChoices {
 public:
  // Before the calls that it is for.
  explicit KeptChoices(core::Device device);
  ~KeptChoices();  // save()
  KeptChoices(const KeptChoices&) = delete;
  KeptChoices& operator=(const KeptChoices&) = delete;
  // Writes what is new, if anything is. What goes wrong is a warning.
  void save();

 private:
  core::Device device_;
  ChoicesFile file_;
  size_t num_saved_ = 0;  // lines
};

}  // namespace sinter::kernels
