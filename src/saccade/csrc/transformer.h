/* The structures of a Transformer's kernels: weights, memory, KV cache, and what a search reads and writes.
 *
 * ops/kernel_abi.py declares the same structures with the same names; abi.c lists their fields, and
 * ops/kernel_library.py compares both. */

#ifndef SACCADE_TRANSFORMER_H
#define SACCADE_TRANSFORMER_H

#include "int8_weight.h"

typedef struct {
    const float *weight, *bias;
    float epsilon;
} layer_norm_weights;

typedef struct {
    int64_t layers, heads, width, inner, pre_norm;
} stack_shape;

/* The matrices of a layer that may have another form, in this order. */
enum { QKV, ATTENTION_OUTPUT, EXPAND, CONTRACT, CROSS_QUERY, CROSS_OUTPUT, CROSS_KV, MATRICES };

/* Other forms of a layer's matrices: int8, or block-transposed (blocked_gemm.h), or neither (NULL). */
typedef struct {
    const int8_weight *int8;
    float **transposed;
} weight_forms;

/* Weights (outputs, inputs) and biases of an encoder layer. norms[i] is the layer norm after sublayer i; with
 * pre-norm that is the norm before the next sublayer, or the last norm of the stack. */
typedef struct {
    const float *qkv, *qkv_bias, *attention_output, *attention_output_bias;
    const float *expand, *expand_bias, *contract, *contract_bias;
    weight_forms forms;
    layer_norm_weights norms[2];
} encoder_layer_weights;

typedef struct {
    stack_shape shape;
    layer_norm_weights first_norm;
    const encoder_layer_weights *layers;
} encoder_stack;

/* Weights of a decoder layer; `cross_kv` projects the memory to keys and values. */
typedef struct {
    const float *qkv, *qkv_bias, *attention_output, *attention_output_bias;
    const float *cross_query, *cross_query_bias, *cross_kv, *cross_value_bias, *cross_output, *cross_output_bias;
    const float *expand, *expand_bias, *contract, *contract_bias;
    weight_forms forms;
    layer_norm_weights norms[3];
} decoder_layer_weights;

typedef struct {
    stack_shape shape;
    layer_norm_weights first_norm;
    const decoder_layer_weights *layers;
} decoder_stack;

/* The projected memory of packed sentences: kv[l] points to the keys and values (rows, 2 width) of layer l.
 * Sentence i has the rows first[i] to first[i] + counts[i]. */
typedef struct {
    float *const *kv;
    int64_t rows;
    const int64_t *first, *counts;
    int64_t sentences;
} packed_memory;

/* The KV cache of hypotheses at one position. steps[t * layers + l] points to the projections (hypotheses at step
 * t, row_width) of step t in layer l; the last 2 width entries of a row are its key and value. Hypothesis n was row
 * origin[n * capacity + t] of step t, one of step_hypotheses[t] (NULL: origins are not checked). The decoder writes
 * the last of the `positions` steps. Hypothesis n attends to sentence first_sentence + n / beam of the memory. */
typedef struct {
    int64_t hypotheses, positions, capacity, row_width;
    float *const *steps;
    const int64_t *origin;
    const packed_memory *memory;
    int64_t first_sentence, beam;
    const int64_t *step_hypotheses;
} kv_cache_view;

/* Packed source sentences: sentence i has the tokens and position ids cu_seqlens[i] to cu_seqlens[i + 1]. */
typedef struct {
    const encoder_stack *encoder;
    float scale;
    const float *embedding, *positions; /* (vocabulary, width), (max_positions, width) */
    const int64_t *cu_seqlens, *tokens, *position_ids;
    int64_t vocabulary, max_positions;
} source_batch;

/* Target embedding and output layer. */
typedef struct {
    int64_t vocabulary;
    float scale;
    const float *embedding, *positions, *output; /* (vocabulary, width), (longest limit, width), (vocabulary, width) */
    const int8_weight *int8_output;              /* for int8 logits, or NULL */
    const int8_weight *int8_argmax;              /* for the largest logit alone (argmax_int8.c), or NULL */
} token_tables;

/* Constraints of a search. The last suppressed token is the end, which is allowed from min_length on. */
typedef struct {
    int64_t min_length, begin, end, suppressed_count;
    const int64_t *suppressed, *limits; /* (suppressed_count), (sentences) */
    const float *penalties;             /* (longest limit): length penalties of the lengths 1, 2, ... */
} search_limits;

/* Output of a search: at most `capacity` hypotheses per sentence, best first; sentence i has counts[i]. Their
 * tokens and log-probabilities (capacity, limit) begin at starts[i]; the other columns are (sentences, capacity). */
typedef struct {
    int64_t capacity;
    const int64_t *starts;
    int64_t *counts, *tokens, *lengths, *finished;
    float *token_log_probabilities, *log_probabilities, *scores;
} hypothesis_buffers;

/* The encoder over packed sentences: sentence i has the rows cu_seqlens[i] to cu_seqlens[i + 1], minus
 * cu_seqlens[0]. x (rows, width) is overwritten; out (rows, width) is the output of the last norm. Setting *stop
 * ends it within a layer; `stop` may be NULL. Returns a status. */
int encoder_forward(int threads, const encoder_stack *e, int64_t sentences, const int64_t *cu_seqlens, float *x,
                    float *out, const int *stop);

/* The decoder for the next position of the hypotheses of several KV caches, concatenated. x (hypotheses, width) is
 * overwritten; out (hypotheses, width) is the output of the last norm. Returns a status. */
int decoder_step(int threads, const decoder_stack *d, int64_t caches, const kv_cache_view *views, float *x,
                 float *out);

/* Whether several threads share the matrix products of a step. The threshold is low because the products follow
 * closely on each other: threads need not be woken for each. */
int parallel_step(const decoder_stack *d, int64_t hypotheses);

#endif
