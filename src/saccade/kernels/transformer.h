/* A Transformer as the kernels see it: where its weights are, where its hypotheses stand, what a search is given and finds.
 * transformer.py has the same structures; layouts.c says how large they are here. */

#ifndef SACCADE_TRANSFORMER_H
#define SACCADE_TRANSFORMER_H

#include "byte_table.h"

typedef struct {
    const float *scale, *shift;
    float epsilon;
} norm;

typedef struct {
    int64_t layers, heads, width, inner, pre; /* the norm comes first, not last */
} shape;

/* The weights of a layer that may also be in bytes, in this order. */
enum { OWN, OWN_OUTPUT, EXPAND, CONTRACT, CROSS, CROSS_OUTPUT };

/* Weights (outs, ins) and biases of one layer, and the norm that follows each of its two sublayers. */
typedef struct {
    const float *own, *own_bias, *own_output, *own_output_bias; /* queries, keys and values side by side */
    const float *expand, *expand_bias, *contract, *contract_bias;
    const byte_table *bytes; /* or NULL */
    norm after[2];
} encoder_weights;

typedef struct {
    shape shape;
    norm first_norm;
    const encoder_weights *weights;
} encoder;

/* The same of a layer with three sublayers. */
typedef struct {
    const float *own, *own_bias, *own_output, *own_output_bias;
    const float *cross, *cross_bias, *value_bias, *cross_output, *cross_output_bias;
    const float *expand, *expand_bias, *contract, *contract_bias;
    const byte_table *bytes;
    norm after[3];
} decoder_weights;

typedef struct {
    shape shape;
    norm first_norm;
    const decoder_weights *weights;
} decoder;

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

/* How tokens become vectors and vectors logits. */
typedef struct {
    int64_t vocabulary;
    float scale;
    const float *embedding, *positions, *output; /* (vocabulary, width), (limit, width), (vocabulary, width) */
    const byte_table *bytes;                     /* the output in bytes, or NULL */
} words;

/* What an output must keep to; before min_length the last of `never`, the end, is forbidden too. */
typedef struct {
    int64_t limit, min_length, begin, end, nevers;
    const int64_t *never;
} rules;

/* What was found: `count` hypotheses, best first, as columns; tokens and their log-probabilities (most, limit). */
typedef struct {
    int64_t count, *tokens, *lengths, *finished;
    float *token_logs, *logs, *scores;
} hypotheses;

/* One more place of each hypothesis. x (rows, width) is written over; out (rows, width) is its last norm. */
void decoder_step(const decoder *d, int64_t rows, past p, memory m, float *x, float *out);

/* out (rows, outs) = x (rows, ins) · weight (outs, ins)^T + bias, if there is one. */
void few_products(int threads, int64_t rows, int64_t ins, int64_t outs, const float *x, const float *weight,
                  const float *bias, float *out);

#endif
