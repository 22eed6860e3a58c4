/* Memory for intermediate results. A failed allocation is NULL, and the exported function returns OUT_OF_MEMORY. */

#ifndef SACCADE_ALLOCATION_H
#define SACCADE_ALLOCATION_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/* Zeros, aligned to a cache line; `free` releases them. At least one cache line, also for a count of 0. */
float *zeroed_floats(int64_t count);

/* `count` zeroed elements of `size` bytes; `free` releases them. Not NULL for a count of 0. */
void *zeroed(int64_t count, size_t size);

#endif
