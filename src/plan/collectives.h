// Time of collectives by the alpha-beta model over a cluster: ranks of a group that share a node talk over the device's
// own links, the rest over the network, of which every device has its share.
#pragma once
#include <cstdint>

#include "plan/hardware.h"

namespace sinter::plan {

// Shares of the line rates and latencies that collectives reach on this machine.
struct LinkEfficiency {
  double link_share = 0.75;    // of the device's links, large messages
  double link_latency = 8e-6;  // seconds per step of a ring inside a node
  double network_share = 0.8;
  double network_latency = 1.5e-5;
  double small_loss = 0;  // of the links' share: all of it for one rank of eight, a third of it for four of eight
  double crowding = 0;    // a ring over N nodes reaches 1 / (1 + crowding (N - 1)) of that share
};

// Ranks that take part, as they stand in the machine: rank numbers `stride` apart.
struct Group {
  int64_t size = 1;
  int64_t stride = 1;
};

class Collectives {
 public:
  // `single_rail`: a ring between nodes uses one adapter, not the adapters of all the group's devices in a node.
  Collectives(const Cluster& cluster, const LinkEfficiency& efficiency, bool single_rail = false)
      : cluster_(cluster), efficiency_(efficiency), single_rail_(single_rail) {}

  // `bytes` is the whole buffer: what every rank ends up with (all-gather), starts from (reduce-scatter) or both.
  double all_reduce(const Group& group, double bytes) const;
  double all_gather(const Group& group, double bytes) const;
  double reduce_scatter(const Group& group, double bytes) const { return all_gather(group, bytes); }
  // `bytes` is what one rank sends in all, its own part included; `far_share` of what goes to other nodes is sent.
  double all_to_all(const Group& group, double bytes, double far_share = 1) const;
  // Of `copies` of a token bound for random ranks, the share left when each other node gets it once.
  double distinct_share(const Group& group, double copies) const;
  // From one rank to another, in the same node or not.
  double send(bool inside_node, double bytes) const;

  // Of one pass round the group, however short the message.
  double ring_latency(const Group& group) const;

  int64_t ranks_per_node(const Group& group) const;
  int64_t nodes(const Group& group) const;

 private:
  double bandwidth(const Group& group) const;  // bytes/s through one rank of a ring over the group
  const Cluster& cluster_;
  LinkEfficiency efficiency_;
  bool single_rail_;
};

}  // namespace sinter::plan
