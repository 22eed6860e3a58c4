/* The most probable token of each row without all of its logits. */

#ifndef SACCADE_SCREENING_H
#define SACCADE_SCREENING_H

#include "int8_weight.h"

/* Of each row (rows, width) the token with the largest logit, those at `never` left out, and that logit; of equal ones
 * the first. If not `exactly`, the token is the one with the largest logit by bytes. */
void screen_best(int threads, int64_t rows, const float *x, const byte_table *s, int exactly, int64_t nevers,
                 const int64_t *never, float *values, int64_t *places);

#endif
