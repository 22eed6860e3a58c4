/* An int8 weight, and products with it. */

#ifndef SACCADE_INT8_WEIGHT_H
#define SACCADE_INT8_WEIGHT_H

#include "simd.h"

/* A weight (outputs, inputs) in float32 and in int8. The int8 copy is packed in panels of LANES outputs: the first
 * DEPTH inputs of all outputs of a panel, then the next DEPTH. */
typedef struct {
    int64_t outputs, inputs;
    const float *weight, *bias; /* (outputs, inputs), (outputs) or NULL */
    uint8_t *packed;            /* (panels, inputs / DEPTH, LANES, DEPTH) */
    float *scales, *biases;     /* (panels * LANES): scale s; bias, -inf beyond the last output */
    float *errors, *norms;      /* (panels): the largest |e| and |s q| of its outputs; the error is inf if unbounded */
} int8_weight;

/* out (rows, outputs) = x (rows, inputs) · weight^T with x quantized row by row, without the bias; NaN stays NaN.
 * Returns a status. */
int int8_linear(int threads, int64_t rows, const float *x, const int8_weight *w, float *out);

#endif
