/* Queries, keys or values as columns of a wider tensor. */

#ifndef SACCADE_PROJECTED_COLUMN_H
#define SACCADE_PROJECTED_COLUMN_H

#include <stdint.h>

typedef struct {
    float *values; /* (rows, heads * head), `stride` apart */
    float *bias;   /* (heads * head,), not added to the values yet */
    int64_t stride;
} projected_column;

#endif
