// FL_INLINE: a function that is inlined even where the compiler would not, so that it is compiled
// for the instructions of its caller (`target` attributes).
#pragma once

#define FL_INLINE inline __attribute__((always_inline))
