/* A Transformer's decoder as the kernels see it: where its weights are, and where its hypotheses stand. */

#ifndef SACCADE_DECODER_H
#define SACCADE_DECODER_H

#include "sublayers.h"

/* Weights (outs, ins) and biases of one layer, and the norm that follows each of its three sublayers. */
typedef struct {
    const float *own, *own_bias, *own_output, *own_output_bias; /* queries, keys and values side by side */
    const float *cross, *cross_bias, *value_bias, *cross_output, *cross_output_bias;
    const float *expand, *expand_bias, *contract, *contract_bias;
    norm after[3];
} layer;

/* Where N hypotheses stand: hypothesis n was row origin[n * places + t] of step t, whose tensor (layers, step_rows[t],
 * 3 width) is at steps[t]; of `places` steps the first `count` are there, and the last of these is to be written. */
typedef struct {
    int64_t count, places;
    float *const *steps;
    const int64_t *step_rows, *origin;
} past;

/* `beam` hypotheses in a row share the rows first[i] to first[i] + counts[i] of values (layers, rows, 2 width). */
typedef struct {
    const float *values;
    int64_t rows, beam, longest;
    const int64_t *first, *counts;
} memory;

typedef struct {
    int64_t layers, heads, head, inner;
    residual ending;
    norm first_norm;
    const layer *weights;
} decoder;

/* One more place of each hypothesis. x (rows, width) is written over; out (rows, width) is its last norm. */
void decoder_step(const decoder *d, int64_t rows, past p, memory m, float *x, float *out);

/* out (rows, outs) = x (rows, ins) · weight (outs, ins)^T + bias, if there is one. */
void few_products(int threads, int64_t rows, int64_t ins, int64_t outs, const float *x, const float *weight,
                  const float *bias, float *out);

#endif
