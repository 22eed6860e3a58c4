/* The largest logit of each row without computing all logits. */

#ifndef SACCADE_ARGMAX_INT8_H
#define SACCADE_ARGMAX_INT8_H

#include "int8_weight.h"

/* The largest logit of each row of x (rows, inputs) and its token, the suppressed tokens left out; the first of
 * equal ones. If not `exact`, the int8 logits decide. Returns a status. */
int argmax_int8(int threads, int64_t rows, const float *x, const int8_weight *w, int exact, int64_t suppressed_count,
                const int64_t *suppressed, float *values, int64_t *tokens);

#endif
