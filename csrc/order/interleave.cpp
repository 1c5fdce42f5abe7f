#include "order/interleave.h"

#include <algorithm>
#include <array>

namespace fastload {
namespace {

using Wide = unsigned __int128;

Wide product(std::int64_t a, std::int64_t b) {
  return static_cast<Wide>(static_cast<std::uint64_t>(a)) * static_cast<std::uint64_t>(b);
}

// floor(n * part / whole), and what is left of n * part. REQUIRES: 0 <= part <= whole.
struct Share {
  std::int64_t count;
  std::int64_t rest;
};

Share share_of(std::int64_t n, std::int64_t part, std::int64_t whole) {
  const Wide all = product(n, part);
  const auto divisor = static_cast<std::uint64_t>(whole);
  if (all >> 64 == 0) {  // a division of 64 bits is several times faster
    const auto low = static_cast<std::uint64_t>(all);
    return {static_cast<std::int64_t>(low / divisor), static_cast<std::int64_t>(low % divisor)};
  }
  const auto count = static_cast<std::uint64_t>(all / divisor);
  const std::uint64_t rest = static_cast<std::uint64_t>(all) - count * divisor;
  return {static_cast<std::int64_t>(count), static_cast<std::int64_t>(rest)};
}

// The sources [first, end) below a node; a leaf has one.
struct Node {
  std::size_t first;
  std::size_t end;

  bool leaf() const { return end - first == 1; }
  std::size_t middle() const { return first + (end - first) / 2; }
};

}  // namespace

Interleave::Interleave(std::span<const std::int64_t> weights) : sums_(1, 0) {
  sums_.reserve(weights.size() + 1);
  for (std::int64_t weight : weights) sums_.push_back(sums_.back() + weight);
}

Visit Interleave::at(std::int64_t position) const {
  std::int64_t n = position;
  Node node{0, source_count()};
  while (!node.leaf()) {
    const std::size_t middle = node.middle();
    const std::int64_t left = sums_[middle] - sums_[node.first];
    const std::int64_t whole = sums_[node.end] - sums_[node.first];
    const Share share = share_of(n, left, whole);
    if (share.rest >= whole - left) {  // the next visit has one more on the left
      node.end = middle;
      n = share.count;
    } else {
      node.first = middle;
      n -= share.count;
    }
  }
  return {node.first, n};
}

std::int64_t Interleave::position_of(std::size_t source, std::int64_t visit) const {
  struct Step {
    std::int64_t part;
    std::int64_t whole;
    bool left;
  };
  std::array<Step, 64> steps;
  std::size_t depth = 0;
  for (Node node{0, source_count()}; !node.leaf(); ++depth) {
    const std::size_t middle = node.middle();
    const bool left = source < middle;
    const std::int64_t whole = sums_[node.end] - sums_[node.first];
    (left ? node.end : node.first) = middle;
    steps[depth] = {sums_[node.end] - sums_[node.first], whole, left};
  }
  std::int64_t n = visit;
  while (depth > 0) {
    // The first n for which the part's share of n + 1 visits is above its n before: rounded down
    // on the left, and up on the right.
    const Step& step = steps[--depth];
    const auto part = static_cast<Wide>(step.part);
    const Wide found = step.left ? (product(n + 1, step.whole) + part - 1) / part - 1
                                 : product(n, step.whole) / part;
    if (found >= static_cast<Wide>(kEnd)) return kEnd;
    n = static_cast<std::int64_t>(found);
  }
  return n;
}

void Interleave::visits_before(std::int64_t position, std::span<std::int64_t> out) const {
  // Depth first, so that at most one node of each depth waits.
  struct Waiting {
    Node node;
    std::int64_t visits;
  };
  std::vector<Waiting> waiting{{{0, source_count()}, position}};
  while (!waiting.empty()) {
    const auto [node, visits] = waiting.back();
    waiting.pop_back();
    if (node.leaf()) {
      out[node.first] = visits;
      continue;
    }
    const std::size_t middle = node.middle();
    const std::int64_t whole = sums_[node.end] - sums_[node.first];
    const std::int64_t left =
        whole == 0 ? 0 : share_of(visits, sums_[middle] - sums_[node.first], whole).count;
    waiting.push_back({{middle, node.end}, visits - left});
    waiting.push_back({{node.first, middle}, left});
  }
}

}  // namespace fastload
