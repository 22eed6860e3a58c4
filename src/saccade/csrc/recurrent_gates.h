/* The arguments of recurrent cells. */

#ifndef SACCADE_RECURRENT_GATES_H
#define SACCADE_RECURRENT_GATES_H

#include <stdint.h>

/* The projections whose sum is the gates, each row (gates * width): of the input, from row input_rows[i] if given;
 * of a second input, `step_input`, or NULL; of the state. Biases may be NULL. A negative input row means that the
 * sequence has no position here: its state stays. The new state is also written to row output_rows[i] of `out`, if
 * given. */
typedef struct {
    const float *inputs, *step_input, *recurrent, *input_bias, *recurrent_bias;
    const int64_t *input_rows, *output_rows;
    float *out;
    int64_t out_stride;
} recurrent_gates;

#endif
