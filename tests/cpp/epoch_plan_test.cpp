#include "order/epoch_plan.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <stdexcept>
#include <vector>

#include "base/hash.h"
#include "check.h"

using namespace fastload;

namespace {

using Indices = std::vector<std::int64_t>;

Tail next(Tail tail) { return static_cast<Tail>(static_cast<int>(tail) + 1); }

// The whole order of an epoch, position by position, without any shortcut.
Indices slow_order(const EpochSpec& spec) {
  Indices order;
  if (spec.rows == 0) return order;
  if (spec.order == OrderKind::kSequential) {
    for (std::int64_t i = 0; i < spec.rows; ++i) order.push_back(i);
    return order;
  }
  if (spec.order == OrderKind::kFull) {
    const Permutation permutation(spec.rows, hash_key(spec.seed, spec.epoch, 0));
    for (std::int64_t i = 0; i < spec.rows; ++i) order.push_back(permutation.index_at(i));
    return order;
  }
  std::vector<Indices> blocks;
  for (std::int64_t i = 0; i < spec.rows; ++i) {
    if (i % spec.block_rows == 0) blocks.emplace_back();
    blocks.back().push_back(i);
  }
  const auto count = static_cast<std::int64_t>(blocks.size());
  const Permutation outer(count, hash_key(spec.seed, spec.epoch, 0));
  for (std::int64_t first = 0, window = 0; first < count; first += spec.window_blocks, ++window) {
    Indices rows;
    for (std::int64_t b = first; b < std::min(count, first + spec.window_blocks); ++b) {
      const Indices& block = blocks[static_cast<std::size_t>(outer.index_at(b))];
      rows.insert(rows.end(), block.begin(), block.end());
    }
    const Permutation inner(
        static_cast<std::int64_t>(rows.size()),
        hash_key(spec.seed, spec.epoch, static_cast<std::uint64_t>(window) + 1));
    for (std::int64_t i = 0; i < inner.size(); ++i) {
      order.push_back(rows[static_cast<std::size_t>(inner.index_at(i))]);
    }
  }
  return order;
}

std::vector<Indices> batches_of(const EpochSpec& spec) {
  const EpochPlan plan(spec);
  std::vector<Indices> batches(static_cast<std::size_t>(plan.batch_count()));
  for (std::int64_t k = 0; k < plan.batch_count(); ++k) {
    Indices& batch = batches[static_cast<std::size_t>(k)];
    plan.indices(k, batch);
    CHECK_EQUAL(plan.batch_size(k), batch.size());
  }
  return batches;
}

// The batches of every rank, and what they must be together.
void check_plan(const EpochSpec& spec, const Indices& order) {
  const std::int64_t global_batch = spec.batch * spec.world;
  const std::int64_t rest = spec.rows - spec.first_position;
  const std::int64_t whole = rest / global_batch;
  const std::int64_t tail = spec.tail == Tail::kDrop ? 0 : rest % global_batch;
  std::vector<std::vector<Indices>> of_rank;
  std::int64_t real = 0;
  for (std::int64_t rank = 0; rank < spec.world; ++rank) {
    EpochSpec mine = spec;
    mine.rank = rank;
    of_rank.push_back(batches_of(mine));
    const bool has_tail = spec.tail == Tail::kShort ? rank < tail : tail > 0;
    CHECK_EQUAL(of_rank.back().size(), whole + (has_tail ? 1 : 0));
    const EpochPlan plan(mine);
    for (std::int64_t k = 0; k < plan.batch_count(); ++k) real += plan.real_count(k);
    of_rank.back().resize(static_cast<std::size_t>(whole + (tail ? 1 : 0)));
  }
  CHECK_EQUAL(real, whole * global_batch + tail);
  for (std::int64_t k = 0; k < whole + (tail ? 1 : 0); ++k) {
    const std::int64_t start = spec.first_position + k * global_batch;
    const std::int64_t left = std::min(global_batch, spec.rows - start);
    Indices global;
    std::size_t longest = 0, shortest = order.size() + 1;
    for (const auto& batches : of_rank) {
      const Indices& batch = batches[static_cast<std::size_t>(k)];
      global.insert(global.end(), batch.begin(), batch.end());
      longest = std::max(longest, batch.size());
      shortest = std::min(shortest, batch.size());
    }
    const std::int64_t padded = (left + spec.world - 1) / spec.world * spec.world;
    CHECK_EQUAL(global.size(), spec.tail == Tail::kPad ? padded : left);
    CHECK(spec.tail == Tail::kShort ? longest - shortest <= 1 : longest == shortest);
    for (std::size_t i = 0; i < global.size(); ++i) {
      CHECK_EQUAL(global[i], order[(static_cast<std::size_t>(start) + i) % order.size()]);
    }
  }
}

void check_every_tail(EpochSpec spec) {
  const Indices order = slow_order(spec);
  for (Tail tail : {Tail::kDrop, Tail::kPad, Tail::kShort}) {
    spec.tail = tail;
    for (std::int64_t world = 1; world <= 4; ++world) {
      spec.world = world;
      for (std::int64_t batch = 1; batch <= 5; ++batch) {
        spec.batch = batch;
        const std::int64_t step = 1 + spec.rows / (check::kSanitized ? 3 : 9);
        for (std::int64_t first = 0; first <= spec.rows; first += step) {
          spec.first_position = first;
          check_plan(spec, order);
        }
        spec.first_position = spec.rows;
        check_plan(spec, order);
      }
    }
  }
}

}  // namespace

int main() {
  check::promise("sequential and full order: ranks together get each position once, in order", [] {
    for (std::int64_t rows = 0; rows <= 40; ++rows) {
      EpochSpec spec;
      spec.rows = rows;
      spec.seed = 3;
      spec.epoch = static_cast<std::uint64_t>(rows);
      spec.order = OrderKind::kSequential;
      check_every_tail(spec);
      spec.order = OrderKind::kFull;
      check_every_tail(spec);
    }
  });

  check::promise("block order equals its slow definition, wherever the short block falls", [] {
    EpochSpec spec;
    spec.order = OrderKind::kBlock;
    std::set<std::pair<std::int64_t, std::int64_t>> places;
    for (std::int64_t rows : {0, 1, 2, 7, 12, 13, 23, 40}) {
      spec.rows = rows;
      for (std::int64_t block_rows : {1, 2, 3, 5, 7, 12, 40, 1000}) {
        spec.block_rows = block_rows;
        for (std::int64_t window_blocks : {1, 2, 3, 4, 100}) {
          spec.window_blocks = window_blocks;
          for (std::uint64_t seed = 0; seed < (check::kSanitized ? 1U : 3U); ++seed) {
            spec.seed = seed;
            check_every_tail(spec);
          }
        }
      }
    }
    // Every place of the short block, with whole batches and batches that cut windows.
    spec.rows = 23;
    spec.block_rows = 4;
    spec.batch = 5;
    for (spec.window_blocks = 1; spec.window_blocks <= 6; ++spec.window_blocks) {
      for (spec.seed = 0; spec.seed < 60; ++spec.seed) {
        const Indices order = slow_order(spec);
        Indices sorted = order;
        std::sort(sorted.begin(), sorted.end());
        for (std::int64_t i = 0; i < 23; ++i) CHECK_EQUAL(sorted[static_cast<std::size_t>(i)], i);
        check_plan(spec, order);
        const Permutation outer(6, hash_key(spec.seed, 0, 0));
        places.insert({spec.window_blocks, outer.position_of(5)});
      }
    }
    CHECK_EQUAL(places.size(), 36);
  });

  check::promise("a block of rows stays inside its window", [] {
    EpochSpec spec;
    spec.rows = 1003;
    spec.order = OrderKind::kBlock;
    spec.block_rows = 10;
    spec.window_blocks = 4;
    spec.batch = 1003;
    const Indices order = batches_of(spec).at(0);
    std::map<std::int64_t, std::pair<std::int64_t, std::int64_t>> spread;
    for (std::int64_t i = 0; i < 1003; ++i) {
      const std::int64_t block = order[static_cast<std::size_t>(i)] / 10;
      const auto [it, fresh] = spread.try_emplace(block, i, i);
      if (!fresh) it->second.second = i;
    }
    for (const auto& [block, range] : spread) CHECK(range.second - range.first < 40);
  });

  check::promise(
      "global batches are the same for every world size that keeps the global batch", [] {
        for (OrderKind order : {OrderKind::kSequential, OrderKind::kFull, OrderKind::kBlock}) {
          std::vector<std::vector<Indices>> of_world;
          for (std::int64_t world : {1, 2, 3, 4, 6, 12}) {
            std::vector<Indices> global(9);
            for (std::int64_t rank = 0; rank < world; ++rank) {
              EpochSpec spec;
              spec.rows = 101;
              spec.batch = 12 / world;
              spec.world = world;
              spec.rank = rank;
              spec.seed = 5;
              spec.order = order;
              spec.block_rows = 7;
              spec.window_blocks = 3;
              const auto batches = batches_of(spec);
              CHECK_EQUAL(batches.size(), rank < 101 % 12 ? 9 : 8);
              for (std::size_t k = 0; k < batches.size(); ++k) {
                global[k].insert(global[k].end(), batches[k].begin(), batches[k].end());
              }
            }
            of_world.push_back(global);
          }
          for (const auto& global : of_world) CHECK(global == of_world.front());
        }
      });

  check::promise("a plan from position p on continues the plan from 0, at any global batch", [] {
    for (OrderKind order : {OrderKind::kFull, OrderKind::kBlock}) {
      EpochSpec spec;
      spec.rows = 97;
      spec.order = order;
      spec.block_rows = 5;
      spec.window_blocks = 4;
      spec.batch = 97;
      const Indices whole = batches_of(spec).at(0);
      for (spec.first_position = 0; spec.first_position <= 97; ++spec.first_position) {
        for (std::int64_t batch : {1, 8, 13}) {
          spec.batch = batch;
          Indices rest;
          for (const Indices& part : batches_of(spec)) {
            rest.insert(rest.end(), part.begin(), part.end());
          }
          CHECK(rest == Indices(whole.begin() + spec.first_position, whole.end()));
        }
      }
    }
  });

  check::promise("fewer rows than ranks: padding wraps as often as needed", [] {
    for (std::int64_t rows : {1, 2, 3}) {
      for (std::int64_t rank = 0; rank < 7; ++rank) {
        EpochSpec spec;
        spec.rows = rows;
        spec.batch = 4;
        spec.world = 7;
        spec.rank = rank;
        spec.tail = Tail::kPad;
        spec.order = OrderKind::kSequential;
        CHECK(batches_of(spec) == std::vector<Indices>{{rank % rows}});
      }
    }
  });

  check::promise("sizes near the limits do not overflow", [] {
    EpochSpec spec;
    spec.rows = Permutation::kMaxSize;
    spec.batch = std::int64_t{1} << 31;
    spec.world = std::int64_t{1} << 24;
    spec.rank = spec.world - 1;
    for (Tail tail : {Tail::kDrop, Tail::kPad, Tail::kShort}) {
      spec.tail = tail;
      for (std::int64_t first : {std::int64_t{0}, spec.rows / 3, spec.rows - 5, spec.rows}) {
        spec.first_position = first;
        const EpochPlan plan(spec);
        if (plan.batch_count() > 0) CHECK(plan.batch_size(plan.batch_count() - 1) >= 0);
      }
    }
    spec = {};
    spec.rows = Permutation::kMaxSize;
    spec.batch = 8;
    spec.order = OrderKind::kBlock;
    for (std::int64_t block_rows : {std::int64_t{1}, spec.rows / 2 + 1, spec.rows}) {
      spec.block_rows = block_rows;
      for (std::int64_t window : {std::int64_t{1}, std::int64_t{64}, spec.rows}) {
        spec.window_blocks = window;
        const EpochPlan plan(spec);
        Indices out;
        for (std::int64_t k : {std::int64_t{0}, plan.batch_count() / 2, plan.batch_count() - 1}) {
          plan.indices(k, out);
          for (std::int64_t index : out) CHECK(index >= 0 && index < spec.rows);
        }
      }
    }
  });

  check::promise("an offset is added to each index, wherever a tail wraps", [] {
    EpochSpec spec;
    spec.rows = 11;
    spec.batch = 3;
    spec.world = 2;
    spec.tail = Tail::kPad;
    for (spec.rank = 0; spec.rank < 2; ++spec.rank) {
      const auto plain = batches_of(spec);
      spec.index_offset = Permutation::kMaxSize - 11;
      auto moved = batches_of(spec);
      for (Indices& batch : moved) {
        for (std::int64_t& index : batch) index -= spec.index_offset;
      }
      CHECK(moved == plain);
      spec.index_offset = 0;
    }
  });

  check::promise(
      "draws of a weighted order are its positions, whoever has them; of others none", [] {
        const std::vector<double> weights{1, 0, 5};
        EpochSpec spec;
        spec.rows = 23;
        spec.batch = 3;
        spec.weights = std::make_shared<const WeightTable>(std::span(weights));
        Indices order;
        for (std::int64_t p = 0; p < spec.rows; ++p) {
          const auto key = hash_key(spec.seed, spec.epoch, 0);
          const auto bits = mix(key + kGolden * (static_cast<std::uint64_t>(p) + 1));
          order.push_back(spec.weights->index_at(bits));
        }
        for (spec.tail = Tail::kDrop; spec.tail <= Tail::kShort; spec.tail = next(spec.tail)) {
          for (spec.world = 1; spec.world <= 9; ++spec.world) {
            for (spec.first_position = 0; spec.first_position <= 23; ++spec.first_position) {
              std::set<std::int64_t> seen;
              for (spec.rank = 0; spec.rank < spec.world; ++spec.rank) {
                spec.order = OrderKind::kWeighted;
                const EpochPlan plan(spec);
                spec.order = OrderKind::kFull;
                const EpochPlan full(spec);
                Indices indices, draws{7};
                for (std::int64_t k = 0; k < plan.batch_count(); ++k) {
                  plan.indices(k, indices);
                  plan.draws(k, draws);
                  CHECK_EQUAL(draws.size(), indices.size());
                  for (std::size_t i = 0; i < draws.size(); ++i) {
                    CHECK_EQUAL(indices[i], order[static_cast<std::size_t>(draws[i])]);
                    const bool real = static_cast<std::int64_t>(i) < plan.real_count(k);
                    CHECK(!real || seen.insert(draws[i]).second);
                  }
                  full.draws(k, draws);
                  CHECK(draws.empty());
                }
              }
              const std::int64_t rest = spec.rows - spec.first_position;
              CHECK_EQUAL(seen.size(),
                          spec.tail == Tail::kDrop ? rest - rest % (3 * spec.world) : rest);
            }
            spec.first_position = 0;
          }
        }
      });

  check::promise("a wrong spec is refused by name", [] {
    const auto refuses = [](const char* field, auto change) {
      EpochSpec spec;
      spec.rows = 10;
      spec.world = 2;
      spec.block_rows = spec.window_blocks = 1;
      change(spec);
      const std::string message = CHECK_THROWS(std::invalid_argument, EpochPlan{spec});
      CHECK(message.find(field) != std::string::npos);
    };
    refuses("rows", [](EpochSpec& s) { s.rows = -1; });
    refuses("rows", [](EpochSpec& s) { s.rows = Permutation::kMaxSize + 1; });
    refuses("batch", [](EpochSpec& s) { s.batch = 0; });
    refuses("batch", [](EpochSpec& s) { s.batch = INT64_MAX; });
    refuses("world", [](EpochSpec& s) { s.world = 0; });
    refuses("rank", [](EpochSpec& s) { s.rank = 2; });
    refuses("rank", [](EpochSpec& s) { s.rank = -1; });
    refuses("first_position", [](EpochSpec& s) { s.first_position = 11; });
    refuses("first_position", [](EpochSpec& s) { s.first_position = -1; });
    refuses("index_offset", [](EpochSpec& s) { s.index_offset = -1; });
    refuses("index_offset", [](EpochSpec& s) { s.index_offset = Permutation::kMaxSize - 9; });
    refuses("block_rows", [](EpochSpec& s) {
      s.order = OrderKind::kBlock;
      s.block_rows = 0;
    });
    refuses("window_blocks", [](EpochSpec& s) {
      s.order = OrderKind::kBlock;
      s.window_blocks = -3;
    });
  });
}
