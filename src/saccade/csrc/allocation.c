/* Allocation, and a hook that makes it fail in tests. */

#include "allocation.h"

#include <stdatomic.h>
#include <string.h>

#include "simd.h"
#include "status.h"

#define OFF INT64_MAX
#define CACHE_LINE 64

static _Atomic int64_t successes_left = OFF;
static _Atomic int later_ones_fail;

/* Whether this allocation fails for a test; costs one relaxed load otherwise. */
static int fails(void)
{
    if (atomic_load_explicit(&successes_left, memory_order_relaxed) == OFF) return 0;
    int64_t left = atomic_fetch_sub(&successes_left, 1);
    return left == 0 || (left < 0 && atomic_load(&later_ones_fail));
}

float *zeroed_floats(int64_t count)
{
    if (count < 0 || count > INT64_MAX / 8 || fails()) return NULL;
    size_t bytes = (size_t)round_up(4 * (count ? count : 1), CACHE_LINE);
    float *found = aligned_alloc(CACHE_LINE, bytes);
    if (found) memset(found, 0, bytes);
    return found;
}

void *zeroed(int64_t count, size_t size)
{
    if (size_product(count, (int64_t)size) < 0 || fails()) return NULL;
    return calloc((size_t)(count ? count : 1), size);
}

/* For tests: `n` allocations of all threads succeed, then one fails, or all do. A negative n switches it off. */
EXPORT int saccade_fail_allocation_after(int threads, int64_t n, int persistently)
{
    (void)threads;
    atomic_store(&later_ones_fail, persistently);
    atomic_store(&successes_left, n < 0 ? OFF : n);
    return SUCCESS;
}
