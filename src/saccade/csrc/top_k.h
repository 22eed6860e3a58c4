/* The most probable tokens of each row of logits. */

#ifndef SACCADE_TOP_K_H
#define SACCADE_TOP_K_H

#include "simd.h"

/* Log-probabilities and tokens (rows, k) of the most probable entries of each row of logits (rows, vocabulary), in
 * descending order, without the suppressed tokens; equal ones in the order of their ids; -inf where fewer are left.
 * Overwrites the logits. Returns a status. */
int top_k_rows(int threads, int64_t rows, int64_t vocabulary, float *logits, int64_t suppressed_count,
               const int64_t *suppressed, int64_t k, float *values, int64_t *tokens);

#endif
