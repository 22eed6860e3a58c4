/* A Transformer as the kernels see it: where its weights are, where its hypotheses stand, what a search is given and finds.
 * transformer.py has the same structures; layouts.c says how large they are here. */

#ifndef SACCADE_TRANSFORMER_H
#define SACCADE_TRANSFORMER_H

#include "int8_weight.h"

typedef struct {
    const float *scale, *shift;
    float epsilon;
} norm;

typedef struct {
    int64_t layers, heads, width, inner, pre; /* the norm comes first, not last */
} shape;

/* The weights of a layer that may have other forms, in this order. */
enum { OWN, OWN_OUTPUT, EXPAND, CONTRACT, CROSS, CROSS_OUTPUT, KEY_VALUE, MATRICES };

/* In bytes, or turned round for many rows (many_rows.h), or neither: NULL. */
typedef struct {
    const byte_table *bytes;
    float **turned;
} other_forms;

/* Weights (outs, ins) and biases of one layer, and the norm that follows each of its two sublayers. */
typedef struct {
    const float *own, *own_bias, *own_output, *own_output_bias; /* queries, keys and values side by side */
    const float *expand, *expand_bias, *contract, *contract_bias;
    other_forms other;
    norm after[2];
} encoder_weights;

typedef struct {
    shape shape;
    norm first_norm;
    const encoder_weights *weights;
} encoder;

/* The same of a layer with three sublayers; `key_value` makes the keys and values of the memory. */
typedef struct {
    const float *own, *own_bias, *own_output, *own_output_bias;
    const float *cross, *cross_bias, *key_value, *value_bias, *cross_output, *cross_output_bias;
    const float *expand, *expand_bias, *contract, *contract_bias;
    other_forms other;
    norm after[3];
} decoder_weights;

typedef struct {
    shape shape;
    norm first_norm;
    const decoder_weights *weights;
} decoder;

/* Sentence i has the rows first[i] to first[i] + counts[i] of values (layers, rows, 2 width). */
typedef struct {
    const float *values;
    int64_t rows;
    const int64_t *first, *counts;
} memory;

/* Where `rows` hypotheses stand that are equally far: hypothesis n was row origin[n * places + t] of step t, whose rows are
 * at steps[t], and those of the next layer layer_strides[t] further. A row has `row` numbers, the last of which are its keys
 * and values. Of `places` steps the first `count` are there, and the last of these is to be written. Hypothesis n looks at
 * sentence + n / beam of the memory. */
typedef struct {
    int64_t rows, count, places, row;
    float *const *steps;
    const int64_t *layer_strides, *origin;
    const memory *memory;
    int64_t sentence, beam;
} past;

/* Sentences to be encoded: the tokens starts[i] to starts[i + 1] are those of sentence i, each with its place in it. */
typedef struct {
    const encoder *encoder;
    float scale;
    const float *embedding, *positions; /* (vocabulary, width), (longest, width) */
    const int64_t *starts, *tokens, *places;
} sources;

/* How tokens become vectors and vectors logits. */
typedef struct {
    int64_t vocabulary;
    float scale;
    const float *embedding, *positions, *output; /* (vocabulary, width), (longest limit, width), (vocabulary, width) */
    const byte_table *bytes;                     /* the output in bytes for logits by bytes, or NULL */
    const byte_table *screen;                    /* the same to find the largest logit alone (screening.c), or NULL */
} words;

/* What the outputs of each sentence must keep to; before min_length the last of `never`, the end, is forbidden too. */
typedef struct {
    int64_t min_length, begin, end, nevers;
    const int64_t *never, *limits; /* (nevers), (sentences) */
    const float *penalties;        /* (longest limit), of length 1 first */
} rules;

/* Room for what is found: `most` hypotheses of each sentence, best first. Those of sentence i have their tokens and
 * log-probabilities (most, limit) from starts[i] on, and are counts[i]. */
typedef struct {
    int64_t most;
    const int64_t *starts;
    int64_t *counts, *tokens, *lengths, *finished;
    float *token_logs, *logs, *scores;
} hypotheses;

/* All places of some sentences: the rows starts[i] to starts[i + 1], counted from starts[0], are sentence i. x (rows, width)
 * is written over; out (rows, width) is its last norm. */
void encode_rows(int threads, const encoder *e, int64_t sentences, const int64_t *starts, float *x, float *out);

/* One more place of all hypotheses of some groups, one after another. x (rows, width) is written over; out (rows, width)
 * is its last norm. */
void decoder_step(int threads, const decoder *d, int64_t groups, const past *pasts, float *x, float *out);

/* Whether the products of a step with so many rows are worth several threads: one follows close upon another, so that these
 * need not be woken for each, and less is enough. */
int shares_products(const decoder *d, int64_t rows);

#endif
