// Memory of mapped files that need not stay: what was copied out of them.
#pragma once
#include <cstddef>
#include <span>

namespace sinter::base {

// Lets the system drop the whole pages among these bytes of a MappedFile (base/file.h); they are read from the file
// again when they are asked for. Bytes that are no MappedFile's are left alone.
void drop_mapped_pages(std::span<const std::byte> bytes);

// MappedFile says what it maps.
void note_mapped(std::span<const std::byte> bytes);
void note_unmapped(std::span<const std::byte> bytes);

}  // namespace sinter::base
