// A training loop over a GPU: threads that fill slots, a consumer that runs ahead of its streams.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "base/bytes.h"
#include "base/hash.h"
#include "check.h"
#include "device/pinned_memory.h"
#include "device/pixel_launch.h"
#include "device/transfer.h"
#include "fake_cuda.h"

namespace fastload::loop {

inline DevicePointer pointer(const std::byte* data) {
  return reinterpret_cast<DevicePointer>(data);
}

// Memory of a GPU as torch hands it out: what was freed is given at once to what the same stream
// does next, also while the stream has not come to the end of what was done with it before.
class StreamMemory {
 public:
  explicit StreamMemory(void* owner) : stream(owner) {}
  ~StreamMemory() {
    for (auto& [bytes, blocks] : free_) {
      for (std::byte* block : blocks) std::free(block);
    }
  }
  StreamMemory(const StreamMemory&) = delete;
  StreamMemory& operator=(const StreamMemory&) = delete;

  std::byte* take(std::size_t bytes) {
    auto& blocks = free_[room(bytes)];
    if (blocks.empty()) return static_cast<std::byte*>(std::aligned_alloc(512, room(bytes)));
    std::byte* const block = blocks.back();
    blocks.pop_back();
    return block;
  }
  void give(std::byte* block, std::size_t bytes) { free_[room(bytes)].push_back(block); }
  // A kernel of the user's that needs memory for a moment.
  void disturb(std::size_t bytes) {
    std::byte* const block = take(bytes);
    fake_cuda_fill(stream, block, 0xDB, bytes);
    give(block, bytes);
  }

  void* const stream;

 private:
  static std::size_t room(std::size_t bytes) {
    return align_up(std::max<std::size_t>(bytes, 1), 4096);
  }
  std::map<std::size_t, std::vector<std::byte*>> free_;
};

constexpr std::int64_t kSide = 9, kWindow = 7;  // of images of three colours

inline std::byte pattern(std::int64_t batch, std::size_t array, std::size_t at) {
  return static_cast<std::byte>(mix(static_cast<std::uint64_t>(batch) * 131 + array * 17 + at) &
                                0xFF);
}

inline ImageDelivery cropped(std::uint64_t epoch) {
  PixelSpec spec{1, 3, true};
  spec.conversion = Conversion{Number::u8, Number::f32, true, 1.0f / 255, {0.5f}, {0.25f}};
  spec.crop = RandomCrop{kWindow, kWindow, 0, 0, 0, 0, 0};
  spec.flip = RandomFlip{0.5, false, 1};
  const auto plan = std::make_shared<const PixelPlan>(spec);
  return {plan, plan->shape(kSide, kSide), plan->keys(1, epoch)};
}

// Array 0 is large, 1 to 3 are small, 4 holds images.
constexpr std::size_t kArrays = 5;
struct Batch {
  std::int64_t number = 0;
  std::vector<Lease> arrays;
  std::size_t images = 0;
};

// Fills slots in several threads, a few batches ahead of whoever takes them.
class Producers {
 public:
  Producers(std::shared_ptr<SlotPool> pool, std::int64_t batches, int threads)
      : pool_(std::move(pool)), batches_(batches) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
  }
  ~Producers() {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  Producers(const Producers&) = delete;
  Producers& operator=(const Producers&) = delete;

  // In any order. Not twice for one.
  Batch next() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !ready_.empty(); });
    Batch batch = std::move(ready_.front());
    ready_.pop_front();
    changed_.notify_all();
    return batch;
  }

 private:
  void work() {
    constexpr std::size_t kDepth = 3;
    for (;;) {
      Batch batch;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return stopped_ || ready_.size() < kDepth; });
        if (stopped_ || begun_ == batches_) return;
        batch.number = begun_++;
      }
      batch.images = static_cast<std::size_t>(batch.number % 4);
      const std::size_t sizes[kArrays] = {
          static_cast<std::size_t>(5000 + 1000 * (batch.number % 3)), 8, 0, 300,
          batch.images * kSide * kSide * 3};
      for (std::size_t a = 0; a < kArrays; ++a) {
        batch.arrays.push_back(pool_->acquire(sizes[a]));
        for (std::size_t i = 0; i < sizes[a]; ++i) {
          batch.arrays[a].data()[i] = pattern(batch.number, a, i);
        }
      }
      const std::lock_guard lock(mutex_);
      ready_.push_back(std::move(batch));
      changed_.notify_all();
    }
  }

  const std::shared_ptr<SlotPool> pool_;
  const std::int64_t batches_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Batch> ready_;
  std::int64_t begun_ = 0;
  bool stopped_ = false;
  std::vector<std::thread> threads_;
};

// What the loop may do wrong, to see that it is found.
struct Mistakes {
  bool sources_dropped = false;  // given back when the copies have been enqueued
  bool targets_dropped = false;  // of batches that nobody takes
};

// Batches on a GPU: the memory of both sides, and who may still use it.
class Loop {
 public:
  Loop(const std::shared_ptr<CudaDevice>& device, std::uint64_t seed, Mistakes mistakes = {},
       std::shared_ptr<StreamTimes> times = nullptr)
      : random_(seed),
        mistakes_(mistakes),
        pool_(std::make_shared<SlotPool>(std::make_shared<PinnedMemory>(device))),
        homes_{std::make_unique<StreamMemory>(fake_cuda_make_stream(device->ordinal())),
               std::make_unique<StreamMemory>(fake_cuda_make_stream(device->ordinal()))},
        transfer_(std::make_unique<Transfer>(
            device, pool_, times ? times : std::make_shared<StreamTimes>(device))) {
    pool_->add_demand(1 << 20);
  }

  ~Loop() {
    for (Coming& coming : coming_) {
      if (!mistakes_.targets_dropped) wait(coming.ticket);
      release(coming);
      homes_[coming.home]->disturb(coming.bytes[0]);
    }
    transfer_.reset();
    for (Kept& kept : kept_) {  // whoever gets the slots fills them
      for (const Lease& slot : kept.sources) std::memset(slot.data(), 0, slot.bytes());
      std::memset(kept.raw, 0, kept.raw_bytes);
    }
    while (!kept_.empty()) drop_first();
    for (const auto& home : homes_) {
      fake_cuda_synchronize(home->stream);
      fake_cuda_destroy_stream(home->stream);
    }
    check_seen();
  }
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  void run(std::int64_t batches, bool breaks_off) {
    Producers producers(pool_, batches, 2);
    const std::int64_t end = breaks_off ? batches / 2 : batches;
    for (std::int64_t i = 0; i < batches; ++i) {
      if (random_() % 4 == 0) homes_[home_]->disturb(5000 + random_() % 3 * 1000);
      drop_done();  // not after the last one: the destructor meets copies that are running
      if (random_() % 8 != 0) ask();
      submit(producers.next());
      if (coming_.size() < 2) continue;
      if (breaks_off && i == end) return;
      take();
      // As happens where a model has several streams.
      if (random_() % 16 == 0) home_ = 1 - home_;
    }
    while (!coming_.empty()) take();
  }

 private:
  struct Coming {
    Transfer::Ticket ticket;
    std::int64_t number;
    std::size_t home, images;
    bool is_handed_over;
    std::vector<std::byte*> targets;  // large, slab, raw, images
    std::vector<std::size_t> bytes;
  };
  struct Kept {
    Transfer::Ticket ticket;
    std::vector<Lease> sources;
    std::byte* raw;
    std::size_t raw_bytes, home;
  };
  struct Seen {
    std::int64_t number;
    std::size_t images;
    std::vector<std::vector<std::byte>> arrays;  // large, slab, images
  };

  static constexpr std::size_t kSlab = 256 * 2 + 300;

  void submit(Batch batch) {
    StreamMemory& home = *homes_[home_];
    const ImageDelivery images = cropped(0);
    Coming coming{0, batch.number, home_, batch.images, false, {}, {}};
    const std::size_t out = batch.images * static_cast<std::size_t>(images.delivered_bytes());
    coming.bytes = {batch.arrays[0].bytes(), kSlab, raw_bytes(images, batch.images), out};
    for (const std::size_t bytes : coming.bytes) coming.targets.push_back(home.take(bytes));
    const auto& to = coming.targets;
    Shipment shipment;
    shipment.copies = {{pointer(to[0]), batch.arrays[0].data(), batch.arrays[0].bytes()}};
    for (std::size_t a = 1; a < 4; ++a) {
      shipment.packed.push_back(
          {pointer(to[1] + 256 * (a - 1)), batch.arrays[a].data(), batch.arrays[a].bytes()});
    }
    PixelJob job{images, {}, batch.arrays[4].data(), pointer(to[2]), pointer(to[3])};
    for (std::size_t i = 0; i < batch.images; ++i) {
      job.draws.push_back(batch.number * 10 + static_cast<std::int64_t>(i));
    }
    shipment.pixels = {job};
    Transfer::Ticket first = Transfer::kNone;
    if (!coming_.empty() && random_() % 2 == 0) {  // it is taken next
      first = coming_.front().ticket;
      coming_.front().is_handed_over = true;
    }
    coming.ticket = transfer_->submit(shipment, static_cast<CudaStream>(home.stream), first);
    if (mistakes_.sources_dropped) batch.arrays.clear();
    kept_.push_back({coming.ticket, std::move(batch.arrays), to[2], coming.bytes[2], home_});
    coming_.push_back(std::move(coming));
  }

  // The consumer gets a batch, computes with it, writes to it, and drops it.
  void take() {
    Coming coming = std::move(coming_.front());
    coming_.pop_front();
    StreamMemory& here = *homes_[home_];
    const auto consumer = static_cast<CudaStream>(here.stream);
    if (!coming.is_handed_over) transfer_->deliver(coming.ticket, consumer);
    Seen& seen = seen_.emplace_back(Seen{coming.number, coming.images, {}});
    for (const std::size_t i : {0, 1, 3}) {
      auto& array = seen.arrays.emplace_back(coming.bytes[i]);
      fake_cuda_copy(here.stream, array.data(), coming.targets[i], array.size());
      fake_cuda_fill(here.stream, coming.targets[i], 0xDB, array.size());
    }
    // What torch does about memory of another stream (record_stream), only sooner.
    if (coming.home != home_) fake_cuda_synchronize(here.stream);
    release(coming);
    if (random_() % 2 == 0) here.disturb(coming.bytes[0]);
  }

  void release(const Coming& coming) {
    for (const std::size_t i : {0, 1, 3}) {
      homes_[coming.home]->give(coming.targets[i], coming.bytes[i]);
    }
  }

  void ask() {
    const auto consumer = static_cast<CudaStream>(homes_[home_]->stream);
    const Transfer::Ticket oldest = transfer_->ask(consumer).oldest;
    while (!kept_.empty() && kept_.front().ticket < oldest) drop_first();
  }

  void drop_done() {
    constexpr std::size_t kMostRunning = 6;
    while (kept_.size() > kMostRunning) wait(kept_.front().ticket);
    while (!kept_.empty() && transfer_->done(kept_.front().ticket)) drop_first();
  }

  void wait(Transfer::Ticket ticket) {
    while (!transfer_->wait_until(ticket, Transfer::Clock::now() + std::chrono::seconds(1))) {
    }
    while (!kept_.empty() && kept_.front().ticket <= ticket) drop_first();
  }

  void drop_first() {
    const Kept& first = kept_.front();
    homes_[first.home]->give(first.raw, first.raw_bytes);
    kept_.pop_front();
  }

  void check_seen() const {
    for (const Seen& seen : seen_) {
      const auto& arrays = seen.arrays;
      for (std::size_t i = 0; i < arrays[0].size(); ++i) {
        CHECK(arrays[0][i] == pattern(seen.number, 0, i));
      }
      for (std::size_t i = 0; i < 8; ++i) CHECK(arrays[1][i] == pattern(seen.number, 1, i));
      for (std::size_t i = 0; i < 300; ++i) {
        CHECK(arrays[1][512 + i] == pattern(seen.number, 3, i));
      }
      check_images(seen);
    }
  }

  static void check_images(const Seen& seen) {
    const ImageDelivery images = cropped(0);
    const auto stored = static_cast<std::size_t>(images.stored_bytes());
    std::vector<std::byte> source(seen.images * stored),
        scratch(images.plan->scratch_bytes(images.shape));
    for (std::size_t i = 0; i < source.size(); ++i) source[i] = pattern(seen.number, 4, i);
    std::vector<const std::byte*> rows;
    std::vector<ImageWindow> windows;
    for (std::size_t i = 0; i < seen.images; ++i) {
      rows.push_back(source.data() + i * stored);
      windows.push_back(images.window(seen.number * 10 + static_cast<std::int64_t>(i)));
    }
    std::vector<std::byte> wanted(seen.arrays[2].size());
    deliver_images(*images.plan, images.shape, rows.data(), windows, wanted.data(), scratch.data());
    CHECK(seen.arrays[2] == wanted);
  }

  std::mt19937 random_;
  const Mistakes mistakes_;
  std::shared_ptr<SlotPool> pool_;
  std::unique_ptr<StreamMemory> homes_[2];
  std::size_t home_ = 0;
  std::unique_ptr<Transfer> transfer_;
  std::deque<Coming> coming_;  // submitted, not taken yet
  std::deque<Kept> kept_;      // what is in use by copies
  std::deque<Seen> seen_;
};

}  // namespace fastload::loop
