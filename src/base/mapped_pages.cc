#include "base/mapped_pages.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>

namespace sinter::base {
namespace {

struct Map {
  size_t size = 0;
  std::string path;
  dev_t device = 0;
  ino_t inode = 0;
  bool is_tried = false;
  int file = -1;  // opened when it is first read: a program may map more files than it may hold open
};

struct Maps {
  std::mutex mutex;
  std::map<uintptr_t, Map> by_address;

  // The map that holds all of these bytes, or null.
  std::pair<const uintptr_t, Map>* find(uintptr_t first, size_t size) {
    auto map = by_address.upper_bound(first);
    if (map == by_address.begin()) return nullptr;
    --map;
    return first + size > map->first + map->second.size ? nullptr : &*map;
  }
};

Maps& maps() {
  static Maps* all = new Maps;  // outlives whatever is unmapped when the program ends
  return *all;
}

uintptr_t address_of(std::span<const std::byte> bytes) { return reinterpret_cast<uintptr_t>(bytes.data()); }

// The file that was mapped, unless another has taken its name since.
void open_file(Map& map) {
  map.is_tried = true;
  const int file = ::open(map.path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return;
  struct stat info {};
  if (::fstat(file, &info) == 0 && info.st_dev == map.device && info.st_ino == map.inode) {
    map.file = file;
  } else {
    ::close(file);
  }
}

}  // namespace

void note_mapped(std::span<const std::byte> bytes, const std::string& path, const struct stat& info) {
  std::lock_guard lock(maps().mutex);
  maps().by_address[address_of(bytes)] = {
      .size = bytes.size(), .path = path, .device = info.st_dev, .inode = info.st_ino};
}

void note_unmapped(std::span<const std::byte> bytes) {
  std::lock_guard lock(maps().mutex);
  const auto map = maps().by_address.find(address_of(bytes));
  if (map == maps().by_address.end()) return;
  if (map->second.file >= 0) ::close(map->second.file);
  maps().by_address.erase(map);
}

void drop_mapped_pages(std::span<const std::byte> bytes) {
  const uintptr_t page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE)), first = address_of(bytes);
  const uintptr_t begin = (first + page - 1) / page * page, end = (first + bytes.size()) / page * page;
  std::lock_guard lock(maps().mutex);
  if (begin >= end || !maps().find(first, bytes.size())) return;
  ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

void copy_mapped(std::byte* to, std::span<const std::byte> from) {
  int file = -1;
  off_t offset = 0;
  {
    std::lock_guard lock(maps().mutex);
    if (auto* map = maps().find(address_of(from), from.size())) {
      if (!map->second.is_tried) open_file(map->second);
      file = map->second.file;
      offset = static_cast<off_t>(address_of(from) - map->first);
    }
  }
  size_t done = 0;
  while (file >= 0 && done < from.size()) {
    const ssize_t n = ::pread(file, to + done, from.size() - done, offset + static_cast<off_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;  // the rest as it is mapped
    done += static_cast<size_t>(n);
  }
  std::memcpy(to + done, from.data() + done, from.size() - done);
}

}  // namespace sinter::base
