/* Attention of one place to keys wherever they are. */

#ifndef SACCADE_ONE_PLACE_H
#define SACCADE_ONE_PLACE_H

#include "simd.h"

/* What a head asks for. A bias of the keys moves all scores of a head alike and changes nothing. */
INLINE lanes asked_at(int64_t at, int64_t head, const float *query, const float *bias, float scale)
{
    int some = within(at, head);
    return (load_within(query + at, some) + load_within(bias + at, some)) * scale;
}

/* The scores of one head, whose width is so many whole lanes, a number that the compiler knows: four keys at a time. */
INLINE void scores_of(const int whole, int64_t count, const float *const *keys, int64_t from, const float *query,
                      const float *bias, float scale, float *scores)
{
    lanes asked[8];
    for (int i = 0; i < whole; i++) asked[i] = asked_at(i * LANES, whole * LANES, query, bias, scale);
    for (int64_t t = 0; t < count; t += 4) {
        lanes sums[4];
        for (int k = 0; k < 4; k++) {
            const float *key = keys[t + k < count ? t + k : t] + from;
            sums[k] = asked[0] * load(key);
            for (int i = 1; i < whole; i++) sums[k] += asked[i] * load(key + i * LANES);
        }
        sums_of(sums, scores + t);
    }
}

/* The same of any width. */
INLINE void any_scores_of(int64_t head, int64_t count, const float *const *keys, int64_t from, const float *query,
                          const float *bias, float scale, float *scores)
{
    for (int64_t t = 0; t < count; t++) {
        lanes sum = {0};
        for (int64_t at = 0; at < head; at += LANES)
            sum += asked_at(at, head, query, bias, scale) * load_within(keys[t] + from + at, within(at, head));
        scores[t] = sum_of(sum);
    }
}

/* One row: `keys` and `values` are the addresses of as many rows of all heads; there is room for whole lanes of scores.
 * Weights (heads, stride) are kept if there is a place for them. The bias of the values is added once, since the weights
 * sum to 1. */
INLINE void attend_row(int64_t heads, int64_t head, int64_t count, const float *const *keys, const float *const *values,
                       const float *query, const float *query_bias, const float *value_bias, float *scores, float *out,
                       float *weights, int64_t weights_stride)
{
    float scale = 1.0f / sqrtf((float)head);
    for (int64_t h = 0; h < heads; h++) {
        int64_t from = h * head;
        const float *q = query + from, *bias = query_bias + from;
        if (head == LANES)
            scores_of(1, count, keys, from, q, bias, scale, scores);
        else if (head == 2 * LANES)
            scores_of(2, count, keys, from, q, bias, scale, scores);
        else if (head == 4 * LANES)
            scores_of(4, count, keys, from, q, bias, scale, scores);
        else if (head == 8 * LANES)
            scores_of(8, count, keys, from, q, bias, scale, scores);
        else
            any_scores_of(head, count, keys, from, q, bias, scale, scores);
        softmax(scores, count);
        if (weights) memcpy(weights + h * weights_stride, scores, 4 * (size_t)count);
        int64_t at = 0;
        for (; at + 2 * LANES <= head; at += 2 * LANES) {
            lanes left = load(value_bias + from + at), right = load(value_bias + from + at + LANES);
            for (int64_t t = 0; t < count; t++) {
                const float *value = values[t] + from + at;
                left += scores[t] * load(value);
                right += scores[t] * load(value + LANES);
            }
            store(out + from + at, left);
            store(out + from + at + LANES, right);
        }
        for (; at < head; at += LANES) {
            int some = within(at, head);
            lanes sum = load_within(value_bias + from + at, some);
            for (int64_t t = 0; t < count; t++) sum += scores[t] * load_within(values[t] + from + at, some);
            store_within(out + from + at, sum, some);
        }
    }
}

#endif
