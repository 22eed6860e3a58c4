/* Multi-head attention of one query to keys and values given by pointers. */

#ifndef SACCADE_SINGLE_QUERY_ATTENTION_H
#define SACCADE_SINGLE_QUERY_ATTENTION_H

#include "simd.h"

/* The scaled query of a head from `at` on. The bias of the keys shifts all scores of a head alike: it has no
 * effect. */
INLINE vec scaled_query(int64_t at, int64_t head, const float *query, const float *bias, float scale)
{
    int n = lanes_left(at, head);
    return (load_n(query + at, n) + load_n(bias + at, n)) * scale;
}

/* The scores of one head of `vectors` vectors, a number that the compiler knows: four keys at a time. */
INLINE void vector_scores(const int vectors, int64_t count, const float *const *keys, int64_t from, const float *query,
                          const float *bias, float scale, float *scores)
{
    vec scaled[8];
    for (int i = 0; i < vectors; i++) scaled[i] = scaled_query(i * LANES, vectors * LANES, query, bias, scale);
    for (int64_t t = 0; t < count; t += 4) {
        vec sums[4];
        for (int k = 0; k < 4; k++) {
            const float *key = keys[t + k < count ? t + k : t] + from;
            sums[k] = scaled[0] * load(key);
            for (int i = 1; i < vectors; i++) sums[k] += scaled[i] * load(key + i * LANES);
        }
        reduce_sum4(sums, scores + t);
    }
}

/* The scores of one head of any width. */
INLINE void general_scores(int64_t head, int64_t count, const float *const *keys, int64_t from, const float *query,
                           const float *bias, float scale, float *scores)
{
    for (int64_t t = 0; t < count; t++) {
        vec sum = {0};
        for (int64_t at = 0; at < head; at += LANES)
            sum += scaled_query(at, head, query, bias, scale) * load_n(keys[t] + from + at, lanes_left(at, head));
        scores[t] = reduce_sum(sum);
    }
}

/* The context of one query of all heads. `keys` and `values` are `count` pointers to rows of all heads; `scores` is
 * scratch for `count` floats, rounded up to LANES. Weights (heads, weights_stride) may be NULL. The bias of the
 * values is added once: the weights sum to 1. Without keys the context is 0. */
INLINE void attend_row(int64_t heads, int64_t head, int64_t count, const float *const *keys,
                       const float *const *values, const float *query, const float *query_bias,
                       const float *value_bias, float *scores, float *out, float *weights, int64_t weights_stride)
{
    if (!count) {
        memset(out, 0, 4 * (size_t)(heads * head));
        return;
    }
    float scale = 1.0f / sqrtf((float)head);
    for (int64_t h = 0; h < heads; h++) {
        int64_t from = h * head;
        const float *q = query + from, *bias = query_bias + from;
        if (head == LANES)
            vector_scores(1, count, keys, from, q, bias, scale, scores);
        else if (head == 2 * LANES)
            vector_scores(2, count, keys, from, q, bias, scale, scores);
        else if (head == 4 * LANES)
            vector_scores(4, count, keys, from, q, bias, scale, scores);
        else if (head == 8 * LANES)
            vector_scores(8, count, keys, from, q, bias, scale, scores);
        else
            general_scores(head, count, keys, from, q, bias, scale, scores);
        softmax(scores, count);
        if (weights) memcpy(weights + h * weights_stride, scores, 4 * (size_t)count);
        int64_t at = 0;
        for (; at + 2 * LANES <= head; at += 2 * LANES) {
            vec left = load(value_bias + from + at), right = load(value_bias + from + at + LANES);
            for (int64_t t = 0; t < count; t++) {
                const float *value = values[t] + from + at;
                left += scores[t] * load(value);
                right += scores[t] * load(value + LANES);
            }
            store(out + from + at, left);
            store(out + from + at + LANES, right);
        }
        for (; at < head; at += LANES) {
            int n = lanes_left(at, head);
            vec sum = load_n(value_bias + from + at, n);
            for (int64_t t = 0; t < count; t++) sum += scores[t] * load_n(values[t] + from + at, n);
            store_n(out + from + at, sum, n);
        }
    }
}

#endif
