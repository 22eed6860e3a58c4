/* What other kernels ask of a vocabulary. */

#ifndef SACCADE_VOCABULARY_H
#define SACCADE_VOCABULARY_H

#include "simd.h"

/* Log-probabilities and places of the `count` most probable entries of each row of logits, falling, those at `never`
 * left out; equal ones in their order. What is found is written over. Where fewer are left the rest is -inf. */
void largest(int threads, int64_t rows, int64_t width, float *logits, int64_t nevers, const int64_t *never,
             int64_t count, float *values, int64_t *places);

#endif
