# Mistakes in the order of things that csrc/device/transfer.cpp must not make. Each is built into a
# transfer_race, which fails unless ThreadSanitizer finds it.

file(READ ${CMAKE_CURRENT_SOURCE_DIR}/csrc/device/transfer.cpp TRANSFER)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS csrc/device/transfer.cpp)

add_library(race_loop OBJECT tests/cpp/transfer_race.cpp)
target_include_directories(race_loop PRIVATE tests/cpp)
target_link_libraries(race_loop PUBLIC fastload_core fake_cuda)
target_compile_definitions(race_loop PRIVATE FAKE_CUDA="$<TARGET_FILE:fake_cuda>")

# A transfer.cpp in which `right`, which must be there, is `wrong`.
function(add_mutant name right wrong)
  string(FIND "${TRANSFER}" "${right}" first)
  string(FIND "${TRANSFER}" "${right}" last REVERSE)
  if(first EQUAL -1 OR NOT first EQUAL last)
    message(FATAL_ERROR "mutant ${name}: transfer.cpp must have once: ${right}")
  endif()
  string(REPLACE "${right}" "${wrong}" mutated "${TRANSFER}")
  set(source ${CMAKE_CURRENT_BINARY_DIR}/mutants/${name}.cpp)
  file(CONFIGURE OUTPUT ${source} CONTENT "${mutated}" @ONLY)
  add_executable(mutant_${name} ${source})
  target_link_libraries(mutant_${name} PRIVATE race_loop)
  add_test(NAME mutant_${name} COMMAND mutant_${name})
  set_tests_properties(mutant_${name} PROPERTIES TIMEOUT 300)
endfunction()

add_mutant(copies_do_not_wait_for_the_consumer
  [[device_->check(driver.cuStreamWaitEvent(side, running.ready.get(), 0), "cuStreamWaitEvent");]] "")
add_mutant(copies_wait_for_themselves
  [[record(running.ready, consumer);]] [[record(running.ready, side);]])
add_mutant(ready_is_before_the_copies
  [[record(running.ready, side);]] "")
add_mutant(deliver_does_not_wait
  [[cuStreamWaitEvent(consumer, running->ready.get(), 0)]] [[cuEventQuery(nullptr) * 0]])
add_mutant(another_stream_waits_at_deliver
  [[cuStreamWaitEvent(consumer, running->ready.get(), 0)]]
  [[cuStreamWaitEvent(side_->handle(), running->ready.get(), 0)]])
add_mutant(copies_go_to_the_default_stream
  [[cuMemcpyHtoDAsync(to, from, bytes, side_->handle())]]
  [[cuMemcpyHtoDAsync(to, from, bytes, nullptr)]])
add_mutant(copies_go_to_another_side_stream
  [[cuMemcpyHtoDAsync(to, from, bytes, side_->handle())]]
  [[cuMemcpyHtoDAsync(to, from, bytes, device_->take_side_stream()->handle())]])
add_mutant(the_end_is_recorded_on_another_side_stream
  [[record(running.ready, side);]] [[record(running.ready, device_->take_side_stream()->handle());]])
add_mutant(kernels_go_to_the_default_stream
  [[launch_pixels(*device_, side_->handle()]] [[launch_pixels(*device_, nullptr]])
add_mutant(staging_is_given_back_at_once
  [[running_.push_back(std::move(running));]]
  [[running.staged.reset(); running_.push_back(std::move(running));]])
add_mutant(what_runs_is_done
  [[if (result == kCudaNotReady) return;]]
  [[if (result == kCudaNotReady) { running_.pop_front(); continue; }]])
add_mutant(the_oldest_that_runs_is_done
  [[return ticket < first ? nullptr]] [[return ticket <= first ? nullptr]])
add_mutant(one_more_than_what_is_done_is_done
  [[return {next_ - static_cast<Ticket>(running_.size()), captured};]]
  [[return {next_ + 1 - static_cast<Ticket>(running_.size()), captured};]])
add_mutant(the_destructor_does_not_wait
  [[for (drop_done(); !running_.empty(); drop_done()) std::this_thread::sleep_for(kQueryInterval);]]
  "")
add_mutant(only_timed_batches_record_their_end
  [[record(running.ready, side);]] [[if (timed > 0) record(running.ready, side);]])

# What whoever uses transfers may do wrong.
add_executable(transfer_race)
target_link_libraries(transfer_race PRIVATE race_loop)
foreach(mistake sources targets)
  add_test(NAME race_${mistake}_dropped COMMAND transfer_race ${mistake})
  set_tests_properties(race_${mistake}_dropped PROPERTIES TIMEOUT 300)
endforeach()
