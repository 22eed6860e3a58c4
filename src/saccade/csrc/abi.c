/* What ops/kernel_library.py checks when it loads a library: the hash of its sources, the layout of its structures. */

#include <stddef.h>

#include "projected_column.h"
#include "recurrent_gates.h"
#include "simd.h"
#include "transformer.h"

/* SHA-256 of the sources that this library was built from (ops/source_hash.py). */
EXPORT const char saccade_source_hash[] = SACCADE_SOURCE_HASH;

/* A field of a structure; the field "" has the size of the structure. */
typedef struct {
    const char *structure, *field;
    int64_t offset, size;
} structure_field;

#define SIZE(type) {#type, "", 0, sizeof(type)},
#define FIELD(type, field) {#type, #field, offsetof(type, field), sizeof(((type *)0)->field)},

/* All fields of the structures that ops/kernel_abi.py declares, in order; the last entry is empty. */
EXPORT const structure_field saccade_structure_fields[] = {
    /* clang-format off */
    SIZE(int8_weight) FIELD(int8_weight, outputs) FIELD(int8_weight, inputs) FIELD(int8_weight, weight)
        FIELD(int8_weight, bias) FIELD(int8_weight, packed) FIELD(int8_weight, scales)
        FIELD(int8_weight, biases) FIELD(int8_weight, errors) FIELD(int8_weight, norms)
    SIZE(projected_column) FIELD(projected_column, values) FIELD(projected_column, bias)
        FIELD(projected_column, stride)
    SIZE(recurrent_gates) FIELD(recurrent_gates, inputs) FIELD(recurrent_gates, step_input)
        FIELD(recurrent_gates, recurrent) FIELD(recurrent_gates, input_bias)
        FIELD(recurrent_gates, recurrent_bias) FIELD(recurrent_gates, input_rows)
        FIELD(recurrent_gates, output_rows) FIELD(recurrent_gates, out) FIELD(recurrent_gates, out_stride)
    SIZE(layer_norm_weights) FIELD(layer_norm_weights, weight) FIELD(layer_norm_weights, bias)
        FIELD(layer_norm_weights, epsilon)
    SIZE(stack_shape) FIELD(stack_shape, layers) FIELD(stack_shape, heads) FIELD(stack_shape, width)
        FIELD(stack_shape, inner) FIELD(stack_shape, pre_norm)
    SIZE(weight_forms) FIELD(weight_forms, int8) FIELD(weight_forms, transposed)
    SIZE(encoder_layer_weights) FIELD(encoder_layer_weights, qkv) FIELD(encoder_layer_weights, qkv_bias)
        FIELD(encoder_layer_weights, attention_output) FIELD(encoder_layer_weights, attention_output_bias)
        FIELD(encoder_layer_weights, expand) FIELD(encoder_layer_weights, expand_bias)
        FIELD(encoder_layer_weights, contract) FIELD(encoder_layer_weights, contract_bias)
        FIELD(encoder_layer_weights, forms) FIELD(encoder_layer_weights, norms)
    SIZE(encoder_stack) FIELD(encoder_stack, shape) FIELD(encoder_stack, first_norm)
        FIELD(encoder_stack, layers)
    SIZE(decoder_layer_weights) FIELD(decoder_layer_weights, qkv) FIELD(decoder_layer_weights, qkv_bias)
        FIELD(decoder_layer_weights, attention_output) FIELD(decoder_layer_weights, attention_output_bias)
        FIELD(decoder_layer_weights, cross_query) FIELD(decoder_layer_weights, cross_query_bias)
        FIELD(decoder_layer_weights, cross_kv) FIELD(decoder_layer_weights, cross_value_bias)
        FIELD(decoder_layer_weights, cross_output) FIELD(decoder_layer_weights, cross_output_bias)
        FIELD(decoder_layer_weights, expand) FIELD(decoder_layer_weights, expand_bias)
        FIELD(decoder_layer_weights, contract) FIELD(decoder_layer_weights, contract_bias)
        FIELD(decoder_layer_weights, forms) FIELD(decoder_layer_weights, norms)
    SIZE(decoder_stack) FIELD(decoder_stack, shape) FIELD(decoder_stack, first_norm)
        FIELD(decoder_stack, layers)
    SIZE(packed_memory) FIELD(packed_memory, kv) FIELD(packed_memory, rows) FIELD(packed_memory, first)
        FIELD(packed_memory, counts) FIELD(packed_memory, sentences)
    SIZE(kv_cache_view) FIELD(kv_cache_view, hypotheses) FIELD(kv_cache_view, positions)
        FIELD(kv_cache_view, capacity) FIELD(kv_cache_view, row_width) FIELD(kv_cache_view, steps)
        FIELD(kv_cache_view, origin) FIELD(kv_cache_view, memory) FIELD(kv_cache_view, first_sentence)
        FIELD(kv_cache_view, beam) FIELD(kv_cache_view, step_hypotheses)
    SIZE(source_batch) FIELD(source_batch, encoder) FIELD(source_batch, scale) FIELD(source_batch, embedding)
        FIELD(source_batch, positions) FIELD(source_batch, cu_seqlens) FIELD(source_batch, tokens)
        FIELD(source_batch, position_ids) FIELD(source_batch, vocabulary) FIELD(source_batch, max_positions)
    SIZE(token_tables) FIELD(token_tables, vocabulary) FIELD(token_tables, scale)
        FIELD(token_tables, embedding) FIELD(token_tables, positions) FIELD(token_tables, output)
        FIELD(token_tables, int8_output) FIELD(token_tables, int8_argmax)
    SIZE(search_limits) FIELD(search_limits, min_length) FIELD(search_limits, begin) FIELD(search_limits, end)
        FIELD(search_limits, suppressed_count) FIELD(search_limits, suppressed) FIELD(search_limits, limits)
        FIELD(search_limits, penalties)
    SIZE(hypothesis_buffers) FIELD(hypothesis_buffers, capacity) FIELD(hypothesis_buffers, starts)
        FIELD(hypothesis_buffers, counts) FIELD(hypothesis_buffers, tokens) FIELD(hypothesis_buffers, lengths)
        FIELD(hypothesis_buffers, finished) FIELD(hypothesis_buffers, token_log_probabilities)
        FIELD(hypothesis_buffers, log_probabilities) FIELD(hypothesis_buffers, scores)
    {NULL, NULL, 0, 0},
    /* clang-format on */
};
