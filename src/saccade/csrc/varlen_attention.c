/* Attention within each sentence of a packed batch, forward and backward. */

#include "simd.h"

/* One head of one sentence at a time, small enough for the nearest cache. Scores are kept turned, (keys, queries): the
 * lanes are queries, so that the softmax over the keys goes lane by lane. Counts are rounded up: queries to whole lanes,
 * keys and queries to GROUP rows; what is beyond them is never read by what is not. */
#define GROUP 8

/* c (m, n) = a (m, k) b (k, n): a with any strides, m a multiple of GROUP, n of LANES. */
INLINE void product_block(int height, int wide, int64_t k, const float *a, int64_t a_row, int64_t a_column,
                          const float *b, int64_t b_row, float *c, int64_t c_row)
{
    lanes sums[GROUP][2];
    for (int i = 0; i < height; i++)
        for (int j = 0; j < wide; j++) sums[i][j] = all(0.0f);
    for (int64_t l = 0; l < k; l++) {
        lanes right[2];
        for (int j = 0; j < wide; j++) right[j] = load(b + l * b_row + j * LANES);
        for (int i = 0; i < height; i++) {
            lanes left = all(a[i * a_row + l * a_column]);
            for (int j = 0; j < wide; j++) sums[i][j] += left * right[j];
        }
    }
    for (int i = 0; i < height; i++)
        for (int j = 0; j < wide; j++) store(c + i * c_row + j * LANES, sums[i][j]);
}
INLINE void product(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_row, int64_t a_column, const float *b,
                    int64_t b_row, float *c, int64_t c_row)
{
    int64_t column = 0;
    for (; column + 2 * LANES <= n; column += 2 * LANES)
        for (int64_t row = 0; row < m; row += GROUP / 2)
            product_block(GROUP / 2, 2, k, a + row * a_row, a_row, a_column, b + column, b_row,
                          c + row * c_row + column, c_row);
    for (; column < n; column += LANES)
        for (int64_t row = 0; row < m; row += GROUP)
            product_block(GROUP, 1, k, a + row * a_row, a_row, a_column, b + column, b_row, c + row * c_row + column,
                          c_row);
}

/* Rows of one head of a projection, with their bias if there is one, as (rows, wide). */
INLINE void take(int64_t rows, int64_t head, int64_t wide, const float *from, int64_t stride, const float *bias,
                 float *to)
{
    for (int64_t at = 0; at < wide; at += LANES) {
        int some = within(at, head);
        lanes extra = bias ? load_within(bias + at, some) : all(0.0f);
        for (int64_t row = 0; row < rows; row++)
            store(to + row * wide + at, load_within(from + row * stride + at, some) + extra);
    }
}

/* What `take` took, back in its place times a factor; `sums` (head,) adds up the rows. */
INLINE void put(int64_t rows, int64_t head, int64_t wide, float factor, const float *from, float *to, int64_t stride,
                float *sums)
{
    for (int64_t at = 0; at < wide; at += LANES) {
        int some = within(at, head);
        lanes sum = {0};
        for (int64_t row = 0; row < rows; row++) {
            lanes value = load(from + row * wide + at) * factor;
            sum += value;
            store_within(to + row * stride + at, value, some);
        }
        store_within(sums + at, load_within(sums + at, some) + sum, some);
    }
}

/* Scores (keys, queries) to weights: for each query a softmax over the keys that it sees, 0 for the others. */
INLINE void weights_of(int64_t keys, int64_t queries, float scale, int causal, float *scores)
{
    const int_lanes lane = COUNTING;
    for (int64_t at = 0; at < queries; at += LANES) {
        lanes top = all(-INFINITY), powers = {0};
        for (int64_t key = 0; key < keys; key++) {
            lanes value = load(scores + key * queries + at);
            if (causal && key > at) {
                value = chosen(lane + (int32_t)at < (int32_t)key, all(-INFINITY), value);
                store(scores + key * queries + at, value);
            }
            top = larger(value, top);
        }
        for (int64_t key = 0; key < keys; key++) {
            lanes value = exponential((load(scores + key * queries + at) - top) * scale);
            powers += value;
            store(scores + key * queries + at, value);
        }
        lanes one_over = 1.0f / powers;
        for (int64_t key = 0; key < keys; key++)
            store(scores + key * queries + at, load(scores + key * queries + at) * one_over);
    }
}

/* d weights (keys, queries) to d scores: weights (d weights - the sum over the keys of weights d weights). */
INLINE void slopes_of_scores(int64_t keys, int64_t queries, const float *weights, float *slopes)
{
    for (int64_t at = 0; at < queries; at += LANES) {
        lanes sum = {0};
        for (int64_t key = 0; key < keys; key++)
            sum += load(weights + key * queries + at) * load(slopes + key * queries + at);
        for (int64_t key = 0; key < keys; key++) {
            int64_t place = key * queries + at;
            store(slopes + place, load(weights + place) * (load(slopes + place) - sum));
        }
    }
}

/* Bring rows nearer that are wanted soon. */
INLINE void expect(const float *rows, int64_t count, int64_t stride, int64_t width)
{
    for (int64_t row = 0; row < count; row++)
        for (int64_t at = 0; at < width; at += 16) __builtin_prefetch(rows + row * stride + at, 0, 2);
}

typedef struct {
    float *values; /* (rows, heads * head), each row `stride` after the last */
    float *bias;   /* (heads * head,), still to be added to each row */
    int64_t stride;
} projected;

/* Where the sentences are: rows query_starts[i] to query_starts[i + 1] of the queries, likewise of keys and values. */
typedef struct {
    int64_t sentences, heads, head;
    const int64_t *query_starts, *key_starts;
    int causal;
} layout;

INLINE int64_t most(const layout *l, const int64_t *starts)
{
    int64_t longest = 0;
    for (int64_t i = 0; i < l->sentences; i++)
        if (starts[i + 1] - starts[i] > longest) longest = starts[i + 1] - starts[i];
    return longest;
}

/* Room for one head: pieces are cut off as they are asked for. */
typedef struct {
    float *all, *free;
} room;
static room room_of(size_t count)
{
    float *place = aligned_alloc(64, rounded(4 * (int64_t)count, 64) + 64);
    if (!place) abort();
    return (room){place, place};
}
INLINE float *piece(room *r, int64_t count)
{
    float *place = r->free;
    r->free += rounded(count, 16);
    return place;
}

INLINE void expect_sentence(const layout *l, int64_t i, const projected *query, const projected *key,
                            const projected *value)
{
    int64_t width = l->heads * l->head, q = l->query_starts[i], k = l->key_starts[i];
    expect(query->values + q * query->stride, l->query_starts[i + 1] - q, query->stride, width);
    expect(key->values + k * key->stride, l->key_starts[i + 1] - k, key->stride, width);
    expect(value->values + k * value->stride, l->key_starts[i + 1] - k, value->stride, width);
}

/* out (rows, heads * head) without a gap */
EXPORT void saccade_varlen_attention(int threads, int64_t sentences, int64_t heads, int64_t head, int causal,
                              const int64_t *query_starts, const int64_t *key_starts, projected query, projected key,
                              projected value, float *out)
{
    layout l = {sentences, heads, head, query_starts, key_starts, causal};
    int64_t width = heads * head, wide = rounded(head, LANES);
    int64_t most_queries = rounded(rounded(most(&l, query_starts), LANES), GROUP);
    int64_t most_keys = rounded(most(&l, key_starts), GROUP);
    float scale = 1.0f / sqrtf((float)head);
#pragma omp parallel num_threads(threads) if (query_starts[sentences] * width >= ALONE_BELOW)
    {
        int64_t first, last;
        own_part(sentences, &first, &last);
        room r = room_of((size_t)(3 * most_queries * wide + 2 * most_keys * wide + most_keys * most_queries + 128));
        float *q = piece(&r, most_queries * wide), *q_turned = piece(&r, most_queries * wide);
        float *context = piece(&r, most_queries * wide), *k = piece(&r, most_keys * wide);
        float *v = piece(&r, most_keys * wide), *weights = piece(&r, most_keys * most_queries);
        memset(r.all, 0, 4 * (size_t)(r.free - r.all));
        for (int64_t i = first; i < last; i++) {
            if (i + 1 < last) expect_sentence(&l, i + 1, &query, &key, &value);
            int64_t q_first = query_starts[i], k_first = key_starts[i];
            int64_t queries = query_starts[i + 1] - q_first, keys = key_starts[i + 1] - k_first;
            int64_t q_lanes = rounded(queries, LANES), k_rows = rounded(keys, GROUP);
            for (int64_t column = 0; column < width; column += head) {
                take(queries, head, wide, query.values + q_first * query.stride + column, query.stride,
                     query.bias + column, q);
                take(keys, head, wide, key.values + k_first * key.stride + column, key.stride, key.bias + column, k);
                take(keys, head, wide, value.values + k_first * value.stride + column, value.stride,
                     value.bias + column, v);
                turn(queries, wide, q, q_turned, q_lanes);
                product(k_rows, q_lanes, head, k, wide, 1, q_turned, q_lanes, weights, q_lanes);
                weights_of(keys, q_lanes, scale, causal, weights);
                product(rounded(queries, GROUP), wide, keys, weights, 1, q_lanes, v, wide, context, wide);
                for (int64_t row = 0; row < queries; row++)
                    memcpy(out + (q_first + row) * width + column, context + row * wide, 4 * (size_t)head);
            }
        }
        free(r.all);
    }
}

/* The gradients of the projections and of their biases; the weights are computed again. */
EXPORT void saccade_varlen_attention_backward(int threads, int64_t sentences, int64_t heads, int64_t head, int causal,
                                       const int64_t *query_starts, const int64_t *key_starts, projected query,
                                       projected key, projected value, const float *gradient, projected query_out,
                                       projected key_out, projected value_out)
{
    layout l = {sentences, heads, head, query_starts, key_starts, causal};
    int64_t width = heads * head, wide = rounded(head, LANES), summed = rounded(width, 16);
    int64_t most_queries = rounded(rounded(most(&l, query_starts), LANES), GROUP);
    int64_t most_keys = rounded(most(&l, key_starts), GROUP);
    float scale = 1.0f / sqrtf((float)head);
    float *sums = zeros((size_t)(threads * 3 * summed));
    int used = 1;
#pragma omp parallel num_threads(threads) if (query_starts[sentences] * width >= ALONE_BELOW)
    {
        int64_t first, last;
        own_part(sentences, &first, &last);
        if (thread_number() == 0) used = thread_count();
        float *query_sums = sums + thread_number() * 3 * summed, *key_sums = query_sums + summed;
        float *value_sums = key_sums + summed;
        room r = room_of((size_t)(5 * most_queries * wide + 3 * most_keys * wide + 2 * most_keys * most_queries + 256));
        float *q = piece(&r, most_queries * wide), *q_turned = piece(&r, most_queries * wide);
        float *slope = piece(&r, most_queries * wide), *slope_turned = piece(&r, most_queries * wide);
        float *q_out = piece(&r, most_queries * wide), *k = piece(&r, most_keys * wide);
        float *v = piece(&r, most_keys * wide), *k_out = piece(&r, most_keys * wide);
        float *weights = piece(&r, most_keys * most_queries), *slopes = piece(&r, most_keys * most_queries);
        memset(r.all, 0, 4 * (size_t)(r.free - r.all));
        for (int64_t i = first; i < last; i++) {
            int64_t q_first = query_starts[i], k_first = key_starts[i];
            int64_t queries = query_starts[i + 1] - q_first, keys = key_starts[i + 1] - k_first;
            int64_t q_lanes = rounded(queries, LANES), q_rows = rounded(queries, GROUP), k_rows = rounded(keys, GROUP);
            if (i + 1 < last) {
                expect_sentence(&l, i + 1, &query, &key, &value);
                expect(gradient + (q_first + queries) * width, query_starts[i + 2] - q_first - queries, width, width);
            }
            for (int64_t column = 0; column < width; column += head) {
                take(queries, head, wide, query.values + q_first * query.stride + column, query.stride,
                     query.bias + column, q);
                take(queries, head, wide, gradient + q_first * width + column, width, NULL, slope);
                take(keys, head, wide, key.values + k_first * key.stride + column, key.stride, key.bias + column, k);
                take(keys, head, wide, value.values + k_first * value.stride + column, value.stride,
                     value.bias + column, v);
                turn(queries, wide, q, q_turned, q_lanes);
                turn(queries, wide, slope, slope_turned, q_lanes);
                product(k_rows, q_lanes, head, k, wide, 1, q_turned, q_lanes, weights, q_lanes);
                weights_of(keys, q_lanes, scale, causal, weights);
                product(k_rows, wide, queries, weights, q_lanes, 1, slope, wide, k_out, wide);
                put(keys, head, wide, 1.0f, k_out, value_out.values + k_first * value_out.stride + column,
                    value_out.stride, value_sums + column);
                product(k_rows, q_lanes, head, v, wide, 1, slope_turned, q_lanes, slopes, q_lanes);
                slopes_of_scores(keys, q_lanes, weights, slopes);
                product(k_rows, wide, queries, slopes, q_lanes, 1, q, wide, k_out, wide);
                put(keys, head, wide, scale, k_out, key_out.values + k_first * key_out.stride + column,
                    key_out.stride, key_sums + column);
                product(q_rows, wide, keys, slopes, 1, q_lanes, k, wide, q_out, wide);
                put(queries, head, wide, scale, q_out, query_out.values + q_first * query_out.stride + column,
                    query_out.stride, query_sums + column);
            }
        }
        free(r.all);
    }
    float *total = zeros((size_t)(3 * summed));
    add_parts(used, 3 * summed, sums, total);
    memcpy(query_out.bias, total, 4 * (size_t)width);
    memcpy(key_out.bias, total + summed, 4 * (size_t)width);
    memcpy(value_out.bias, total + 2 * summed, 4 * (size_t)width);
    free(total);
    free(sums);
}
