#include "plan/collectives.h"

#include <algorithm>
#include <cmath>

namespace sinter::plan {

int64_t Collectives::ranks_per_node(const Group& group) const {
  int64_t room = std::max<int64_t>(1, cluster_.per_node / std::max<int64_t>(1, group.stride));
  return std::min(group.size, room);
}

int64_t Collectives::nodes(const Group& group) const {
  int64_t local = ranks_per_node(group);
  return (group.size + local - 1) / local;
}

double Collectives::bandwidth(const Group& group) const {
  // Devices whose links are not switched reach only their pair's link when few take part.
  double link = cluster_.device.link_bandwidth;
  int64_t local = ranks_per_node(group);
  if (cluster_.device.pair_bandwidth > 0) {
    link = std::min(link, cluster_.device.pair_bandwidth * static_cast<double>(std::max<int64_t>(1, local - 1)));
  }
  // Few ranks cannot use every channel of the switch.
  double missing = std::max(0.0, std::log2(8.0 / static_cast<double>(local))) / 3;
  double inside = link * efficiency_.link_share * (1 - efficiency_.small_loss * missing);
  if (nodes(group) == 1) return inside;
  // A ring through a node enters and leaves it once per adapter; the group owns the adapters of its own devices.
  double adapters = single_rail_ ? 1.0 : static_cast<double>(local);
  double crowded = 1 + efficiency_.crowding * static_cast<double>(nodes(group) - 1);
  double outside = cluster_.device_network_bandwidth() * adapters * efficiency_.network_share / crowded;
  return local == 1 ? outside : std::min(inside, outside);
}

// A ring takes one step per rank it passes: cheap ones inside a node, dear ones between nodes.
double Collectives::ring_latency(const Group& group) const {
  double steps = static_cast<double>(group.size - 1), far = static_cast<double>(nodes(group) - 1);
  return (steps - far) * efficiency_.link_latency + far * efficiency_.network_latency;
}

double Collectives::all_gather(const Group& group, double bytes) const {
  if (group.size <= 1) return 0;
  double n = static_cast<double>(group.size);
  return ring_latency(group) + (n - 1) / n * bytes / bandwidth(group);
}

double Collectives::all_reduce(const Group& group, double bytes) const {
  if (group.size <= 1) return 0;
  double n = static_cast<double>(group.size), far = static_cast<double>(nodes(group));
  double ring = 2 * ring_latency(group) + 2 * (n - 1) / n * bytes / bandwidth(group);
  // A pair of trees passes the nodes in logarithmic time at some cost in bandwidth.
  double local = static_cast<double>(ranks_per_node(group) - 1) * efficiency_.link_latency;
  double tree = 2 * (local + std::log2(far) * efficiency_.network_latency) + 2 * bytes / (0.85 * bandwidth(group));
  return far > 1 ? std::min(ring, tree) : ring;
}

double Collectives::distinct_share(const Group& group, double copies) const {
  double far = static_cast<double>(nodes(group));
  if (far <= 1 || copies <= 1) return 1;
  double distinct = far * (1 - std::pow(1 - 1 / far, copies));
  return std::min(1.0, distinct / copies);
}

double Collectives::all_to_all(const Group& group, double bytes, double far_share) const {
  if (group.size <= 1) return 0;
  double n = static_cast<double>(group.size), local = static_cast<double>(ranks_per_node(group));
  double far_bytes = far_share * bytes * (n - local) / n, near_bytes = bytes * (local - 1) / n;
  double inside = near_bytes / (cluster_.device.link_bandwidth * efficiency_.link_share);
  double outside = far_bytes / (cluster_.device_network_bandwidth() * efficiency_.network_share);
  double latency = efficiency_.link_latency + (nodes(group) > 1 ? efficiency_.network_latency : 0);
  return latency + std::max(inside, outside);
}

double Collectives::send(bool inside, double bytes) const {
  double pair = cluster_.device.pair_link() * efficiency_.link_share;
  double rate = inside ? pair : cluster_.device_network_bandwidth() * efficiency_.network_share;
  return (inside ? efficiency_.link_latency : efficiency_.network_latency) + bytes / rate;
}

}  // namespace sinter::plan
