/* A weight in bytes. */

#ifndef SACCADE_BYTE_TABLE_H
#define SACCADE_BYTE_TABLE_H

#include "simd.h"

/* A weight (outs, ins), and the same in bytes: panels of LANES outputs, in each the first DEPTH entries of all its
 * outputs, then the next. */
typedef struct {
    int64_t outs, ins;
    const float *weight, *bias; /* (outs, ins), (outs) or NULL */
    uint8_t *packed;            /* (panels, ins / DEPTH, LANES, DEPTH) */
    float *scales, *biases;     /* (panels * LANES): s; the bias, -inf for what is no output */
    float *errors, *norms;      /* (panels): the largest |e| and |s q| of its outputs; the error is inf if there is no bound */
} byte_table;

/* out (rows, outs) = x (rows, ins) · weight^T, roughly, without the bias; what is no number stays none. */
void multiply_bytes(int threads, int64_t rows, const float *x, const byte_table *s, float *out);

#endif
