#include "order/index_source.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/error.h"
#include "check.h"

using namespace fastload;
using State = IndexSource::State;
using Indices = std::vector<std::int64_t>;

int main() {
  check::promise("an array is cut into batches, the short last one kept or dropped", [] {
    const Indices data{5, 3, 8, 1, 9, 0, 2};
    for (std::int64_t batch = 1; batch <= 9; ++batch) {
      for (bool drop : {false, true}) {
        ArrayOrder order(data, batch, drop);
        Indices all, part;
        std::int64_t k = 0;
        for (; order.state(k) == State::kReady; ++k) {
          order.take(k, part, nullptr);
          CHECK(static_cast<std::int64_t>(part.size()) == batch || !drop);
          all.insert(all.end(), part.begin(), part.end());
        }
        CHECK(order.state(k) == State::kEnd);
        const auto whole = static_cast<std::ptrdiff_t>(7 / batch * batch);
        CHECK(all == Indices(data.begin(), drop ? data.begin() + whole : data.end()));
      }
    }
    ArrayOrder huge(data, INT64_MAX, false);
    Indices part;
    huge.take(0, part, nullptr);
    CHECK(part == data);
    CHECK(ArrayOrder({}, 3, false).state(0) == State::kEnd);
    CHECK_THROWS(std::invalid_argument, ArrayOrder(data, 0, false));
  });

  check::promise("pushed batches may be of any size, empty too, and taken in any order", [] {
    PushedOrder order;
    CHECK(order.state(0) == State::kPending);
    const std::vector<Indices> pushed{{1, 2, 3}, {}, {4}, {}, {5, 6}};
    for (const Indices& batch : pushed) order.push(batch);
    CHECK(order.state(4) == State::kReady);
    CHECK(order.state(5) == State::kPending);
    Indices part;
    for (std::int64_t k : {3, 0, 4, 1, 2}) {
      order.take(k, part, nullptr);
      CHECK(part == pushed[static_cast<std::size_t>(k)]);
    }
    order.push({7});
    order.finish();
    CHECK(order.state(5) == State::kReady);
    order.take(5, part, nullptr);
    CHECK(part == Indices{7});
    CHECK(order.state(6) == State::kEnd);
    CHECK_THROWS(std::invalid_argument, order.push({1}));
    order.finish();
  });

  check::promise("what comes again has a draw of its own, in whatever order batches are taken", [] {
    const Indices before{3, 3, 8}, data{5, 3, 5, 5, 8, 1, 3, 1};
    const auto counting = [&] {
      auto repeats = std::make_shared<Occurrences>(10);
      repeats->count(before);
      return repeats;
    };
    const auto repeat = [](std::int64_t index, std::uint64_t times) {
      return repeat_draw(index, times);
    };
    const std::vector<Indices> wanted{{5, repeat(3, 2), repeat(5, 1)},
                                      {repeat(5, 2), repeat(8, 1), 1},
                                      {repeat(3, 3), repeat(1, 1)}};
    for (const std::vector<std::int64_t>& turns : {Indices{0, 1, 2}, {2, 0, 1}, {1, 2, 0}}) {
      ArrayOrder array(data, 3, false, counting());
      PushedOrder pushed(counting());
      for (std::size_t first = 0; first < data.size(); first += 3) {
        const auto begin = data.begin() + static_cast<std::ptrdiff_t>(first);
        pushed.push({begin, std::min(begin + 3, data.end())});
      }
      Indices indices, draws{7};
      for (std::int64_t k : turns) {
        array.take(k, indices, &draws);
        CHECK(draws == wanted[static_cast<std::size_t>(k)]);
        pushed.take(k, indices, &draws);
        CHECK(draws == wanted[static_cast<std::size_t>(k)]);
        CHECK_EQUAL(indices[0], data[static_cast<std::size_t>(3 * k)]);
      }
    }
  });

  check::promise("nobody counts unless asked to: draws are the indices", [] {
    const Indices data{5, 5, 5};
    Indices indices, draws{7};
    ArrayOrder(data, 3, false).take(0, indices, &draws);
    CHECK(draws.empty());
    PushedOrder pushed;
    pushed.push(data);
    draws = {7};
    pushed.take(0, indices, &draws);
    CHECK(draws.empty());
    EpochSpec spec;
    spec.rows = 9;
    draws = {7};
    PlanOrder(EpochPlan(spec)).take(0, indices, &draws);
    CHECK(draws.empty());
  });

  check::promise("threads that take the batches of an array get the draws of their order", [] {
    Indices data;
    for (std::int64_t i = 0; i < 20'000; ++i) data.push_back(i * i % 97);
    auto repeats = std::make_shared<Occurrences>(97);
    ArrayOrder order(data, 10, false, repeats);
    Indices wanted;
    Occurrences(97).count(data, &wanted);
    std::atomic<std::int64_t> next{0};
    std::vector<std::thread> takers;
    for (int t = 0; t < 3; ++t) {
      takers.emplace_back([&] {
        Indices indices, draws;
        for (std::int64_t k = next.fetch_add(1); k < 2000; k = next.fetch_add(1)) {
          order.take(k, indices, &draws);
          CHECK(std::equal(draws.begin(), draws.end(), wanted.begin() + k * 10));
        }
      });
    }
    for (std::thread& taker : takers) taker.join();
  });

  check::promise("the listener hears each push and the end, and nothing after it has left", [] {
    PushedOrder order;
    std::atomic<int> heard{0};
    std::atomic<bool> listening{true};
    order.on_change([&] {
      CHECK(listening.load());
      ++heard;
    });
    order.push({1});
    order.push({});
    order.finish();
    CHECK_EQUAL(heard.load(), 3);
    PushedOrder busy;
    busy.on_change([&] { CHECK(listening.load()); });
    std::thread pusher([&] {
      for (int i = 0; i < 2000; ++i) busy.push({i});
    });
    std::this_thread::sleep_for(std::chrono::microseconds(300));
    busy.on_change(nullptr);
    listening = false;
    pusher.join();
  });

  check::promise("threads that push and take lose nothing", [] {
    PushedOrder order;
    constexpr std::int64_t kCount = 3000;
    std::atomic<std::int64_t> next{0}, sum{0};
    std::thread pusher([&] {
      for (std::int64_t i = 0; i < kCount; ++i) order.push({i, i});
      order.finish();
    });
    std::vector<std::thread> takers;
    for (int t = 0; t < 3; ++t) {
      takers.emplace_back([&] {
        Indices part;
        for (;;) {
          const std::int64_t k = next.fetch_add(1);
          while (order.state(k) == State::kPending) std::this_thread::yield();
          if (order.state(k) == State::kEnd) return;
          order.take(k, part, nullptr);
          CHECK(part == (Indices{k, k}));
          sum += k;
        }
      });
    }
    pusher.join();
    for (std::thread& taker : takers) taker.join();
    CHECK_EQUAL(sum.load(), kCount * (kCount - 1) / 2);
  });

  check::promise("a forked child cannot push into its parent's order, and does not hang", [] {
    PushedOrder order;
    const pid_t child = fork();
    if (child == 0) {
      CHECK_THROWS(StoppedError, order.push({1}));
      CHECK_THROWS(StoppedError, order.finish());
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    CHECK_EQUAL(status, 0);
  });
}
