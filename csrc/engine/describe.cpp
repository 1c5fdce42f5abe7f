// What an engine says about the batch that is late.
#include "engine/engine.h"

namespace fastload {
namespace {

constexpr std::size_t kNamedFiles = 3;

// Adds the sources of a column in which the samples lie.
void add_sources(const Table& table, const Column& column, std::span<const std::int64_t> indices,
                 std::set<std::int32_t>& sources) {
  std::vector<RowPlace> places(indices.size());
  std::vector<std::int64_t> rows;
  table.group_of(column).locate(table.mapped(indices, rows).rows(), places);
  for (const RowPlace& place : places) {
    sources.insert(column.sources[static_cast<std::size_t>(place.shard)]);
  }
}

std::string named(const Table& table, const std::set<std::int32_t>& sources) {
  std::set<std::string> names;  // all memory has one
  for (std::int32_t source : sources) names.insert(table.source_name(source));
  std::string text;
  std::size_t count = 0;
  for (const std::string& name : names) {
    if (++count > kNamedFiles) break;
    text += (count == 1 ? "; from " : ", ") + name;
  }
  if (names.size() > kNamedFiles) {
    text += " and " + std::to_string(names.size() - kNamedFiles) + " more";
  }
  return text;
}

}  // namespace

// The sources that are read for a batch in its stage.
std::set<std::int32_t> Engine::sources_read(const BatchTask& task) const {
  std::set<std::int32_t> sources;
  const Stage stage = task.stage.load();
  const auto columns = table_->columns();
  if (stage == Stage::checking || stage == Stage::lengths) {
    for (const Column& column : columns) {
      if (column.bounds) add_sources(*table_, column.bounds->column, task.head, sources);
      if (stage == Stage::checking) add_sources(*table_, column, task.head, sources);
    }
  }
  if (stage != Stage::gathering) return sources;
  const std::span<const std::int64_t> indices(task.indices);
  for (const Piece& piece : task.pieces) {
    if (std::atomic_ref(const_cast<bool&>(piece.done)).load()) continue;
    add_sources(*table_, columns[piece.column], indices.subspan(piece.first, piece.count), sources);
  }
  return sources;
}

std::string Engine::describe_due() const {
  if (generation_ != fork_generation()) return "it belongs to the parent process";
  MutexLock lock(mutex_);
  if (tasks_.empty()) {
    const bool ready = order_->state(delivered_) == IndexSource::State::kReady;
    return ready ? "not begun" : "waiting for indices";
  }
  const BatchTask& task = *tasks_.front();
  if (task.done) return "ready";
  std::string files;
  try {
    files = named(*table_, sources_read(task));
  } catch (const std::exception&) {  // an index map that was written to
  }
  switch (task.stage.load()) {
    case Stage::begun:
      return "taking its indices";
    case Stage::checking:
      return "checking" + files;
    case Stage::lengths:
      return "reading lengths" + files;
    case Stage::layout:
      return "laying out";
    case Stage::gathering:
      break;
  }
  const std::size_t total = task.pieces.size();
  return "gathering, " + std::to_string(total - task.pieces_left.load()) + " of " +
         std::to_string(total) + " pieces done" + files;
}

}  // namespace fastload
