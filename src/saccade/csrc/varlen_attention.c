/* Multi-head attention over packed sequences, forward and backward. */

#include "allocation.h"
#include "projected_column.h"
#include "simd.h"
#include "status.h"

/* One head of one sequence at a time, small enough for the first cache. Scores are transposed, (keys, queries):
 * lanes are queries, so that the softmax over the keys needs no reduction. Sizes are rounded up, queries to LANES,
 * keys and queries to GROUP; entries beyond a size do not influence entries within it. */
#define GROUP 8

/* c (rows, columns) = a (rows, k) · b (k, columns) for a tile; a with any strides. */
INLINE void gemm_tile(int rows, int vectors, int64_t k, const float *a, int64_t a_row, int64_t a_column,
                      const float *b, int64_t b_row, float *c, int64_t c_row)
{
    vec sums[GROUP][2];
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < vectors; j++) sums[i][j] = broadcast(0.0f);
    for (int64_t l = 0; l < k; l++) {
        vec right[2];
        for (int j = 0; j < vectors; j++) right[j] = load(b + l * b_row + j * LANES);
        for (int i = 0; i < rows; i++) {
            vec left = broadcast(a[i * a_row + l * a_column]);
            for (int j = 0; j < vectors; j++) sums[i][j] += left * right[j];
        }
    }
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < vectors; j++) store(c + i * c_row + j * LANES, sums[i][j]);
}

/* c (m, n) = a (m, k) · b (k, n): m is a multiple of GROUP, n of LANES. */
INLINE void gemm(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_row, int64_t a_column, const float *b,
                 int64_t b_row, float *c, int64_t c_row)
{
    int64_t column = 0;
    for (; column + 2 * LANES <= n; column += 2 * LANES)
        for (int64_t row = 0; row < m; row += GROUP / 2)
            gemm_tile(GROUP / 2, 2, k, a + row * a_row, a_row, a_column, b + column, b_row,
                      c + row * c_row + column, c_row);
    for (; column < n; column += LANES)
        for (int64_t row = 0; row < m; row += GROUP)
            gemm_tile(GROUP, 1, k, a + row * a_row, a_row, a_column, b + column, b_row, c + row * c_row + column,
                      c_row);
}

/* Copy rows of one head of a projection, plus the bias if there is one, to (rows, padded). */
INLINE void gather_head(int64_t rows, int64_t head, int64_t padded, const float *from, int64_t stride,
                        const float *bias, float *to)
{
    for (int64_t at = 0; at < padded; at += LANES) {
        int n = lanes_left(at, head);
        vec added = bias ? load_n(bias + at, n) : broadcast(0.0f);
        for (int64_t row = 0; row < rows; row++)
            store(to + row * padded + at, load_n(from + row * stride + at, n) + added);
    }
}

/* Write rows of one head, times a factor, back into a projection; adds the sum of the rows to `sums` (head,). */
INLINE void scatter_head(int64_t rows, int64_t head, int64_t padded, float factor, const float *from, float *to,
                         int64_t stride, float *sums)
{
    for (int64_t at = 0; at < padded; at += LANES) {
        int n = lanes_left(at, head);
        vec sum = {0};
        for (int64_t row = 0; row < rows; row++) {
            vec value = load(from + row * padded + at) * factor;
            sum += value;
            store_n(to + row * stride + at, value, n);
        }
        store_n(sums + at, load_n(sums + at, n) + sum, n);
    }
}

/* Scores (keys, queries) to attention weights: a softmax over the visible keys of each query, 0 for the others. */
INLINE void attention_weights(int64_t keys, int64_t queries, float scale, int causal, float *scores)
{
    const ivec lane = LANE_INDICES;
    for (int64_t at = 0; at < queries; at += LANES) {
        vec top = broadcast(-INFINITY), powers = {0};
        for (int64_t key = 0; key < keys; key++) {
            vec value = load(scores + key * queries + at);
            if (causal && key > at) {
                value = blend(lane + (int32_t)at < (int32_t)key, broadcast(-INFINITY), value);
                store(scores + key * queries + at, value);
            }
            top = vec_max(value, top);
        }
        for (int64_t key = 0; key < keys; key++) {
            vec value = vec_exp((load(scores + key * queries + at) - top) * scale);
            powers += value;
            store(scores + key * queries + at, value);
        }
        vec inverse = 1.0f / powers;
        for (int64_t key = 0; key < keys; key++)
            store(scores + key * queries + at, load(scores + key * queries + at) * inverse);
    }
}

/* The gradient of weights (keys, queries) to that of scores: weights (gradient - sum over the keys of weights
 * gradient). */
INLINE void softmax_gradient(int64_t keys, int64_t queries, const float *weights, float *gradients)
{
    for (int64_t at = 0; at < queries; at += LANES) {
        vec sum = {0};
        for (int64_t key = 0; key < keys; key++)
            sum += load(weights + key * queries + at) * load(gradients + key * queries + at);
        for (int64_t key = 0; key < keys; key++) {
            int64_t index = key * queries + at;
            store(gradients + index, load(weights + index) * (load(gradients + index) - sum));
        }
    }
}

/* Prefetch rows. */
INLINE void prefetch(const float *rows, int64_t count, int64_t stride, int64_t width)
{
    for (int64_t row = 0; row < count; row++)
        for (int64_t at = 0; at < width; at += 16) __builtin_prefetch(rows + row * stride + at, 0, 2);
}

/* Sequence i has the rows query_starts[i] to query_starts[i + 1] of the queries; likewise keys and values. */
typedef struct {
    int64_t sequences, heads, head;
    const int64_t *query_starts, *key_starts;
} varlen_layout;

/* The length of the longest sequence. */
INLINE int64_t longest(const varlen_layout *l, const int64_t *starts)
{
    int64_t found = 0;
    for (int64_t i = 0; i < l->sequences; i++)
        if (starts[i + 1] - starts[i] > found) found = starts[i + 1] - starts[i];
    return found;
}

/* Scratch memory for one head; `piece` returns the next part of it. `start` is NULL if the allocation failed. */
typedef struct {
    float *start, *free;
} scratch;

/* Scratch for matrices (queries, padded), (keys, padded) and (keys, queries), as many as are given. */
static scratch scratch_of(int64_t queries, int64_t keys, int64_t padded, int of_queries, int of_keys, int of_both)
{
    int64_t by_query = size_product(size_product(queries, padded), of_queries);
    int64_t by_key = size_product(size_product(keys, padded), of_keys);
    int64_t weights = size_product(size_product(keys, queries), of_both);
    int64_t most = INT64_MAX / 32, alignment = 16 * (of_queries + of_keys + of_both); /* piece() rounds up to 16 */
    int fits = by_query >= 0 && by_key >= 0 && weights >= 0 && by_query < most && by_key < most && weights < most;
    float *start = zeroed_floats(fits ? by_query + by_key + weights + alignment : -1);
    return (scratch){start, start};
}

/* The next `count` floats of the scratch. */
INLINE float *piece(scratch *s, int64_t count)
{
    float *found = s->free;
    s->free += round_up(count, 16);
    return found;
}

/* Prefetch the projections of sequence i. */
INLINE void prefetch_sequence(const varlen_layout *l, int64_t i, const projected_column *query,
                              const projected_column *key, const projected_column *value)
{
    int64_t width = l->heads * l->head, q = l->query_starts[i], k = l->key_starts[i];
    prefetch(query->values + q * query->stride, l->query_starts[i + 1] - q, query->stride, width);
    prefetch(key->values + k * key->stride, l->key_starts[i + 1] - k, key->stride, width);
    prefetch(value->values + k * value->stride, l->key_starts[i + 1] - k, value->stride, width);
}

/* Whether the starts of sequences do not descend and stay within [0, rows]. */
static int are_starts(int64_t sequences, const int64_t *starts, int64_t rows)
{
    if (starts[0] < 0 || starts[sequences] > rows) return 0;
    for (int64_t i = 0; i < sequences; i++)
        if (starts[i + 1] < starts[i]) return 0;
    return 1;
}

/* Attention of packed queries (query_rows, heads * head) to packed keys and values (key_rows, heads * head): contexts
 * `out` (query_rows, heads * head). Sequence i has the queries query_starts[i] to query_starts[i + 1], and the keys
 * of key_starts. */
EXPORT int saccade_varlen_attention(int threads, int64_t sequences, int64_t query_rows, int64_t key_rows,
                                    int64_t heads, int64_t head, int causal, const int64_t *query_starts,
                                    const int64_t *key_starts, projected_column query, projected_column key,
                                    projected_column value, float *out)
{
    if (!are_starts(sequences, query_starts, query_rows) || !are_starts(sequences, key_starts, key_rows))
        return INDEX_OUT_OF_RANGE;
    varlen_layout l = {sequences, heads, head, query_starts, key_starts};
    int64_t width = heads * head, padded = round_up(head, LANES);
    int64_t most_queries = round_up(round_up(longest(&l, query_starts), LANES), GROUP);
    int64_t most_keys = round_up(longest(&l, key_starts), GROUP);
    float scale = 1.0f / sqrtf((float)head);
    int status = SUCCESS;
#pragma omp parallel num_threads(threads) if (query_starts[sequences] * width >= PARALLEL_THRESHOLD)
    {
        int64_t first, last;
        thread_range(sequences, &first, &last);
        scratch r = scratch_of(most_queries, most_keys, padded, 3, 2, 1);
        if (r.start) {
            float *q = piece(&r, most_queries * padded), *q_transposed = piece(&r, most_queries * padded);
            float *context = piece(&r, most_queries * padded), *k = piece(&r, most_keys * padded);
            float *v = piece(&r, most_keys * padded), *weights = piece(&r, most_keys * most_queries);
            for (int64_t i = first; i < last; i++) {
                if (i + 1 < last) prefetch_sequence(&l, i + 1, &query, &key, &value);
                int64_t q_first = query_starts[i], k_first = key_starts[i];
                int64_t queries = query_starts[i + 1] - q_first, keys = key_starts[i + 1] - k_first;
                int64_t q_lanes = round_up(queries, LANES), k_rows = round_up(keys, GROUP);
                for (int64_t column = 0; column < width; column += head) {
                    gather_head(queries, head, padded, query.values + q_first * query.stride + column, query.stride,
                                query.bias + column, q);
                    gather_head(keys, head, padded, key.values + k_first * key.stride + column, key.stride,
                                key.bias + column, k);
                    gather_head(keys, head, padded, value.values + k_first * value.stride + column, value.stride,
                                value.bias + column, v);
                    transpose(queries, padded, q, q_transposed, q_lanes);
                    gemm(k_rows, q_lanes, head, k, padded, 1, q_transposed, q_lanes, weights, q_lanes);
                    attention_weights(keys, q_lanes, scale, causal, weights);
                    gemm(round_up(queries, GROUP), padded, keys, weights, 1, q_lanes, v, padded, context, padded);
                    for (int64_t row = 0; row < queries; row++)
                        memcpy(out + (q_first + row) * width + column, context + row * padded, 4 * (size_t)head);
                }
            }
        } else
            record(&status, OUT_OF_MEMORY);
        free(r.start);
    }
    return status;
}

/* The gradients of the projections and of their biases; the attention weights are computed again. */
EXPORT int saccade_varlen_attention_backward(int threads, int64_t sequences, int64_t query_rows, int64_t key_rows,
                                             int64_t heads, int64_t head, int causal, const int64_t *query_starts,
                                             const int64_t *key_starts, projected_column query, projected_column key,
                                             projected_column value, const float *out_grad,
                                             projected_column query_grad, projected_column key_grad,
                                             projected_column value_grad)
{
    if (!are_starts(sequences, query_starts, query_rows) || !are_starts(sequences, key_starts, key_rows))
        return INDEX_OUT_OF_RANGE;
    varlen_layout l = {sequences, heads, head, query_starts, key_starts};
    int64_t width = heads * head, padded = round_up(head, LANES), bias_size = round_up(width, 16);
    int64_t most_queries = round_up(round_up(longest(&l, query_starts), LANES), GROUP);
    int64_t most_keys = round_up(longest(&l, key_starts), GROUP);
    float scale = 1.0f / sqrtf((float)head);
    float *parts = zeroed_floats(threads * 3 * bias_size), *sums = zeroed_floats(3 * bias_size);
    int used = 1, status = parts && sums ? SUCCESS : OUT_OF_MEMORY;
#pragma omp parallel num_threads(threads) if (query_starts[sequences] * width >= PARALLEL_THRESHOLD)
    {
        int64_t first, last;
        thread_range(sequences, &first, &last);
        if (thread_number() == 0) used = thread_count();
        scratch r = scratch_of(most_queries, most_keys, padded, 5, 3, 2);
        if (!r.start) record(&status, OUT_OF_MEMORY);
        if (r.start && parts) {
            float *query_sums = parts + thread_number() * 3 * bias_size, *key_sums = query_sums + bias_size;
            float *value_sums = key_sums + bias_size;
            float *q = piece(&r, most_queries * padded), *q_transposed = piece(&r, most_queries * padded);
            float *d_out = piece(&r, most_queries * padded), *d_out_transposed = piece(&r, most_queries * padded);
            float *d_query = piece(&r, most_queries * padded), *k = piece(&r, most_keys * padded);
            float *v = piece(&r, most_keys * padded), *d_kv = piece(&r, most_keys * padded);
            float *weights = piece(&r, most_keys * most_queries), *d_weights = piece(&r, most_keys * most_queries);
            for (int64_t i = first; i < last; i++) {
                int64_t q_first = query_starts[i], k_first = key_starts[i];
                int64_t queries = query_starts[i + 1] - q_first, keys = key_starts[i + 1] - k_first;
                int64_t q_lanes = round_up(queries, LANES), q_rows = round_up(queries, GROUP);
                int64_t k_rows = round_up(keys, GROUP);
                if (i + 1 < last) {
                    prefetch_sequence(&l, i + 1, &query, &key, &value);
                    prefetch(out_grad + (q_first + queries) * width, query_starts[i + 2] - q_first - queries, width,
                             width);
                }
                for (int64_t column = 0; column < width; column += head) {
                    gather_head(queries, head, padded, query.values + q_first * query.stride + column, query.stride,
                                query.bias + column, q);
                    gather_head(queries, head, padded, out_grad + q_first * width + column, width, NULL, d_out);
                    gather_head(keys, head, padded, key.values + k_first * key.stride + column, key.stride,
                                key.bias + column, k);
                    gather_head(keys, head, padded, value.values + k_first * value.stride + column, value.stride,
                                value.bias + column, v);
                    transpose(queries, padded, q, q_transposed, q_lanes);
                    transpose(queries, padded, d_out, d_out_transposed, q_lanes);
                    gemm(k_rows, q_lanes, head, k, padded, 1, q_transposed, q_lanes, weights, q_lanes);
                    attention_weights(keys, q_lanes, scale, causal, weights);
                    gemm(k_rows, padded, queries, weights, q_lanes, 1, d_out, padded, d_kv, padded);
                    scatter_head(keys, head, padded, 1.0f, d_kv,
                                 value_grad.values + k_first * value_grad.stride + column,
                                 value_grad.stride, value_sums + column);
                    gemm(k_rows, q_lanes, head, v, padded, 1, d_out_transposed, q_lanes, d_weights, q_lanes);
                    softmax_gradient(keys, q_lanes, weights, d_weights);
                    gemm(k_rows, padded, queries, d_weights, q_lanes, 1, q, padded, d_kv, padded);
                    scatter_head(keys, head, padded, scale, d_kv, key_grad.values + k_first * key_grad.stride + column,
                                 key_grad.stride, key_sums + column);
                    gemm(q_rows, padded, keys, d_weights, 1, q_lanes, k, padded, d_query, padded);
                    scatter_head(queries, head, padded, scale, d_query,
                                 query_grad.values + q_first * query_grad.stride + column, query_grad.stride,
                                 query_sums + column);
                }
            }
        }
        free(r.start);
    }
    if (status == SUCCESS) {
        sum_over_threads(used, 3 * bias_size, parts, sums);
        memcpy(query_grad.bias, sums, 4 * (size_t)width);
        memcpy(key_grad.bias, sums + bias_size, 4 * (size_t)width);
        memcpy(value_grad.bias, sums + 2 * bias_size, 4 * (size_t)width);
    }
    free(sums);
    free(parts);
    return status;
}
