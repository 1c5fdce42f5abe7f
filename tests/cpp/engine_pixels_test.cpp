// Images and numbers that change on their way, through the engine.
#include <unistd.h>

#include <cstring>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/error.h"
#include "check.h"
#include "engine/engine.h"
#include "engine_fixtures.h"

using namespace fastload;
using namespace fixtures;

namespace {

constexpr std::int64_t kHeight = 40;
constexpr std::int64_t kWidth = 30;
constexpr std::int64_t kRows = 300;
constexpr ColumnSpec kImages{kHeight * kWidth * 3, 5, 7};
constexpr ColumnSpec kLabels{8};

ImageDelivery augmented(std::uint64_t epoch) {
  PixelSpec spec{1, 3, true};
  spec.conversion = Conversion{Number::u8, Number::bf16,       true,
                               1.0f / 255, {0.4f, 0.5f, 0.6f}, {0.2f, 0.3f, 0.4f}};
  spec.crop = RandomCrop{32, 32, 4, 4, 4, 4, 0};
  spec.flip = RandomFlip{0.5, false, 1};
  auto plan = std::make_shared<const PixelPlan>(spec);
  return {plan, plan->shape(kHeight, kWidth), plan->keys(9, epoch)};
}

EngineOptions with_images(const ImageDelivery& images, int workers) {
  EngineOptions options{workers, 3};
  options.images = {images, std::nullopt};
  return options;
}

// Whether `data` holds these samples, each delivered by itself. `draws`: theirs, if others than the
// indices.
void check_batch(const ImageDelivery& images, const Indices& indices, const std::byte* data,
                 const Indices& draws = {}) {
  const auto bytes = static_cast<std::size_t>(images.delivered_bytes());
  Bytes wanted(bytes);
  Bytes scratch(images.plan->scratch_bytes(images.shape));
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const std::int64_t index = indices[i];
    Bytes image;
    for (std::int64_t at = 0; at < kImages.row_bytes; ++at) {
      image.push_back(expected(0, index, at));
    }
    const std::byte* from = image.data();
    const ImageWindow window = images.window(draws.empty() ? index : draws[i]);
    deliver_images(*images.plan, images.shape, &from, {&window, 1}, wanted.data(), scratch.data());
    CHECK(std::memcmp(wanted.data(), data, bytes) == 0);
    data += bytes;
  }
}

void check_batch_of(const EngineOptions& options, const BatchTask& task) {
  if (options.images.empty()) return;
  check_batch(*options.images[0], task.indices, task.slots[0].data(), task.draws);
}

void check_epoch(const TestTable& data, const ImageDelivery& images, int workers,
                 std::int64_t batch, std::uint64_t seed) {
  const EpochSpec spec = shuffled(kRows, batch, seed);
  const EpochPlan plan(spec);
  Engine engine(data.table, new_pool(), plan_order(spec), with_images(images, workers));
  for (std::int64_t k = 0; k < plan.batch_count(); ++k) {
    const auto task = next_batch(engine);
    CHECK(task != nullptr);
    Indices indices;
    plan.indices(k, indices);
    CHECK(task->indices == indices);
    CHECK_EQUAL(task->slots[0].bytes(), indices.size() * 32 * 32 * 3 * 2);
    check_batch(images, indices, task->slots[0].data());
    data.check_samples(1, indices, task->slots[1].data());
  }
  CHECK(next_batch(engine) == nullptr);
}

// The same data mapped, by pread, and from memory.
void in_each_way(const std::function<void(const TestTable&)>& look) {
  const Folder folder;
  ColumnSpec memory = kImages;
  memory.in_memory = true;
  look(TestTable(folder, {100, 0, 200}, {kImages, kLabels}));
  look(TestTable(folder, {100, 0, 200}, {kImages, kLabels}, Io::kPread));
  look(TestTable(folder, {300}, {memory, kLabels}));
}

}  // namespace

int main() {
  check::promise("an augmented epoch, mapped, by pread, and from memory", [] {
    in_each_way([](const TestTable& data) {
      check_epoch(data, augmented(0), 0, 16, 1);
      check_epoch(data, augmented(1), 3, 7, 2);
      check_epoch(data, augmented(2), 2, 300, 3);
    });
  });
  check::promise("a sample that comes again is drawn anew, mapped, by pread, and from memory", [] {
    // Of several pieces, and of samples that lie side by side.
    Indices batch(300);
    for (std::size_t i = 0; i < 300; ++i) batch[i] = static_cast<std::int64_t>(i % 40);
    Indices draws;
    Occurrences(kRows).count(batch, &draws);
    in_each_way([&](const TestTable& data) {
      for (int workers : {0, 3}) {
        auto order = std::make_shared<PushedOrder>(std::make_shared<Occurrences>(kRows));
        Engine engine(data.table, new_pool(), order, with_images(augmented(0), workers));
        order->push(batch);
        order->finish();
        const auto task = next_batch(engine);
        CHECK(task->draws == draws);
        CHECK(task->indices == batch);
        check_batch(augmented(0), batch, task->slots[0].data(), draws);
        data.check_samples(1, batch, task->slots[1].data());
      }
    });
  });
  check::promise("draws are made where somebody needs them, and only there", [] {
    const Folder folder;
    const TestTable data(folder, {100, 200}, {kImages, kLabels});
    const std::vector<double> weights(kRows, 1.0);
    EpochSpec spec = shuffled(kRows, 16);
    spec.order = OrderKind::kWeighted;
    spec.weights = std::make_shared<const WeightTable>(std::span(weights));
    const auto draws_of = [&](const EngineOptions& options) {
      Engine engine(data.table, new_pool(), plan_order(spec), options);
      const auto task = next_batch(engine);
      check_batch_of(options, *task);
      return task->draws;
    };
    Indices positions(16);
    for (std::size_t i = 0; i < 16; ++i) positions[i] = static_cast<std::int64_t>(i);
    CHECK(draws_of(with_images(augmented(3), 0)) == positions);
    CHECK(draws_of({}).empty());
    EngineOptions wanted;
    wanted.wants_draws = true;
    CHECK(draws_of(wanted) == positions);
    ImageDelivery fixed = augmented(0);
    PixelSpec plain = fixed.plan->spec();
    plain.crop.reset();
    plain.flip.reset();
    fixed.plan = std::make_shared<const PixelPlan>(plain);
    fixed.shape = fixed.plan->shape(kHeight, kWidth);
    CHECK(draws_of(with_images(fixed, 0)).empty());
  });
  check::promise("an epoch that begins while the files are cold", [] {
    const Folder folder;
    const TestTable data(folder, {100, 200}, {kImages, kLabels});
    for (const std::string& path : data.paths) make_cold(path);
    check_epoch(data, augmented(0), 2, 32, 4);
  });
  check::promise("a file that was cut short names the sample", [] {
    const Folder folder;
    const TestTable data(folder, {100, 200}, {kImages, kLabels});
    auto order = std::make_shared<PushedOrder>();
    Engine engine(data.table, new_pool(), order, with_images(augmented(0), 1));
    order->push({5, 110, 2});
    CHECK(next_batch(engine) != nullptr);
    CHECK(truncate(data.paths[1].c_str(), 4096) == 0);
    order->push({5, 250, 2});
    order->push({1, 2, 3});
    order->finish();
    const std::string text = CHECK_THROWS(OsError, next_batch(engine));
    CHECK(text.find("field 'field0' of sample 250") != std::string::npos);
    const auto task = next_batch(engine);
    check_batch(augmented(0), {1, 2, 3}, task->slots[0].data());
  });
}
