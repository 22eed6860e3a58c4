/* Attention of one place to keys wherever they are. */

#ifndef SACCADE_ONE_PLACE_H
#define SACCADE_ONE_PLACE_H

#include "lanes.h"

/* One row: `keys` and `values` are the addresses of as many rows of all heads. Weights (heads, stride) are kept if there
 * is a place for them. A bias of the keys moves all scores of a head alike and changes nothing; that of the values is
 * added once, since the weights sum to 1. */
INLINE void attend_row(int64_t heads, int64_t head, int64_t count, const float *const *keys, const float *const *values,
                       const float *query, const float *query_bias, const float *value_bias, float *scores, float *out,
                       float *weights, int64_t weights_stride)
{
    float scale = 1.0f / sqrtf((float)head);
    for (int64_t h = 0; h < heads; h++) {
        const float *q = query + h * head, *bias = query_bias + h * head;
        for (int64_t t = 0; t < count; t++) {
            lanes sum = {0};
            for (int64_t at = 0; at < head; at += LANES) {
                int some = within(at, head);
                lanes asked = (load_within(q + at, some) + load_within(bias + at, some)) * scale;
                sum += asked * load_within(keys[t] + h * head + at, some);
            }
            scores[t] = sum_of(sum);
        }
        softmax(scores, count);
        if (weights) memcpy(weights + h * weights_stride, scores, 4 * (size_t)count);
        for (int64_t at = 0; at < head; at += LANES) {
            int some = within(at, head);
            lanes sum = load_within(value_bias + h * head + at, some);
            for (int64_t t = 0; t < count; t++) sum += scores[t] * load_within(values[t] + h * head + at, some);
            store_within(out + h * head + at, sum, some);
        }
    }
}

#endif
