/* What an exported function returns; ops/kernel_library.py raises an exception for every value but SUCCESS. */

#ifndef SACCADE_STATUS_H
#define SACCADE_STATUS_H

enum { SUCCESS, OUT_OF_MEMORY, INDEX_OUT_OF_RANGE, STOPPED, UNSUPPORTED };

/* The status of a call that several threads work on: any failure stays. */
static inline void record(int *status, int own)
{
    if (own != SUCCESS) __atomic_store_n(status, own, __ATOMIC_RELAXED);
}
/* The status that any thread recorded so far. */
static inline int recorded(const int *status) { return __atomic_load_n(status, __ATOMIC_RELAXED); }

/* Whether a flag is set that another thread may set at any time; `flag` may be NULL. */
static inline int is_set(const int *flag) { return flag && __atomic_load_n(flag, __ATOMIC_RELAXED); }

#endif
