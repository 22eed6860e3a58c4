/* Memory for intermediate results. A failed allocation is NULL, and the exported function returns OUT_OF_MEMORY. */

#ifndef SACCADE_ALLOCATION_H
#define SACCADE_ALLOCATION_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/* a * b for a size, or -1 if it overflows or one is negative: the allocation of a negative size fails. */
static inline int64_t size_product(int64_t a, int64_t b)
{
    int64_t found;
    return a < 0 || b < 0 || __builtin_mul_overflow(a, b, &found) ? -1 : found;
}

/* `count` zeros, aligned to a cache line; `free` releases them. At least one cache line, also for a count of 0; NULL
 * for a negative count. */
float *zeroed_floats(int64_t count);

/* `count` zeroed elements of `size` bytes; `free` releases them. Not NULL for a count of 0; NULL for a negative
 * count. */
void *zeroed(int64_t count, size_t size);

#endif
