#include "base/mapped_pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <map>
#include <mutex>

namespace sinter::base {
namespace {

struct Maps {
  std::mutex mutex;
  std::map<uintptr_t, size_t> sizes;  // by address
};

Maps& maps() {
  static Maps* all = new Maps;  // outlives whatever is unmapped when the program ends
  return *all;
}

uintptr_t address_of(std::span<const std::byte> bytes) { return reinterpret_cast<uintptr_t>(bytes.data()); }

}  // namespace

void note_mapped(std::span<const std::byte> bytes) {
  std::lock_guard lock(maps().mutex);
  maps().sizes[address_of(bytes)] = bytes.size();
}

void note_unmapped(std::span<const std::byte> bytes) {
  std::lock_guard lock(maps().mutex);
  maps().sizes.erase(address_of(bytes));
}

void drop_mapped_pages(std::span<const std::byte> bytes) {
  const uintptr_t page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE)), first = address_of(bytes);
  const uintptr_t begin = (first + page - 1) / page * page, end = (first + bytes.size()) / page * page;
  std::lock_guard lock(maps().mutex);
  auto map = maps().sizes.upper_bound(first);
  if (begin >= end || map == maps().sizes.begin()) return;
  --map;
  if (first + bytes.size() > map->first + map->second) return;
  ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

}  // namespace sinter::base
