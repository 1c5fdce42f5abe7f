#include "engine/describe.h"

#include <atomic>
#include <exception>
#include <set>
#include <span>
#include <vector>

namespace fastload {
namespace {

constexpr std::size_t kMaxNamedFiles = 3;  // a message of one line

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
  std::set<std::string> names;  // memory has one name for all
  for (std::int32_t source : sources) names.insert(table.source_name(source));
  std::string text;
  std::size_t count = 0;
  for (const std::string& name : names) {
    if (++count > kMaxNamedFiles) break;
    text += (count == 1 ? "; from " : ", ") + name;
  }
  if (names.size() > kMaxNamedFiles) {
    text += " and " + std::to_string(names.size() - kMaxNamedFiles) + " more";
  }
  return text;
}

// The sources that are read for a task in its current stage.
std::set<std::int32_t> sources_read(const Table& table, const BatchTask& task) {
  std::set<std::int32_t> sources;
  const Stage stage = task.stage.load();
  const auto columns = table.columns();
  if (stage == Stage::kChecking || stage == Stage::kLengths) {
    for (const Column& column : columns) {
      if (column.bounds) add_sources(table, column.bounds->column, task.head, sources);
      if (stage == Stage::kChecking) add_sources(table, column, task.head, sources);
    }
  }
  if (stage != Stage::kGathering) return sources;
  const std::span<const std::int64_t> indices(task.indices);
  for (const Piece& piece : task.pieces) {
    if (std::atomic_ref(const_cast<bool&>(piece.done)).load()) continue;
    add_sources(table, columns[piece.column], indices.subspan(piece.first, piece.count), sources);
  }
  return sources;
}

}  // namespace

std::string describe_progress(const Table& table, const BatchTask& task) {
  std::string files;
  try {
    files = named(table, sources_read(table, task));
  } catch (const std::exception&) {
    // The index map's memory was changed: the files are not known.
  }
  switch (task.stage.load()) {
    case Stage::kIndices:
      return "taking its indices";
    case Stage::kChecking:
      return "checking" + files;
    case Stage::kLengths:
      return "reading lengths" + files;
    case Stage::kLayout:
      return "laying out";
    case Stage::kGathering:
      break;
  }
  const std::size_t total = task.pieces.size();
  return "gathering, " + std::to_string(total - task.pieces_left.load()) + " of " +
         std::to_string(total) + " pieces done" + files;
}

}  // namespace fastload
