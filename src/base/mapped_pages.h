// Memory of mapped files: what was copied out of them need not stay, and copies need not fault pages in.
#pragma once
#include <sys/stat.h>

#include <cstddef>
#include <span>
#include <string>

namespace sinter::base {

// Lets the system drop the whole pages among these bytes of a MappedFile (base/file.h); they are read from the file
// again when they are asked for. Bytes that are no MappedFile's are left alone.
void drop_mapped_pages(std::span<const std::byte> bytes);

// Copies bytes that may be a MappedFile's. Those are read from its file, so that threads that copy side by side do not
// meet in page faults. Any thread.
void copy_mapped(std::byte* to, std::span<const std::byte> from);

// MappedFile says what it maps; `info` is that of the open file.
void note_mapped(std::span<const std::byte> bytes, const std::string& path, const struct stat& info);
void note_unmapped(std::span<const std::byte> bytes);

}  // namespace sinter::base
