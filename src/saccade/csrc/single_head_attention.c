/* Single-head attention of recurrent and convolutional decoders. Inference only. */

#include "allocation.h"
#include "simd.h"
#include "status.h"

/* Queries (rows, width) to keys (sentences, positions, width) and values (sentences, positions, depth), `beam` rows
 * per sentence. Scores are vector * tanh(query + key), or query * key without a vector, with a softmax over the
 * positions whose mask is not 0. Weights (rows, positions) are 0 elsewhere; a row without visible positions gets
 * zeros. */
EXPORT int saccade_single_head_attention(int threads, int64_t rows, int64_t beam, int64_t positions, int64_t width,
                                         int64_t depth, const uint8_t *mask, const float *query, const float *keys,
                                         const float *vector, const float *values, float *out, float *weights)
{
    int status = SUCCESS;
#pragma omp parallel num_threads(threads) if (rows * positions * width >= PARALLEL_THRESHOLD)
    {
        int64_t first, last;
        thread_range(rows, &first, &last);
        float *scores = zeroed_floats(round_up(positions, LANES));
        int64_t *visible = zeroed(positions, sizeof(*visible));
        if (!scores || !visible) {
            record(&status, OUT_OF_MEMORY);
            last = first;
        }
        for (int64_t row = first; row < last; row++) {
            int64_t sentence = row / beam, count = 0;
            for (int64_t t = 0; t < positions; t++)
                if (mask[sentence * positions + t]) visible[count++] = t;
            const float *q = query + row * width;
            for (int64_t i = 0; i < count; i++) {
                const float *k = keys + (sentence * positions + visible[i]) * width;
                vec sum = {0};
                for (int64_t at = 0; at < width; at += LANES) {
                    int n = lanes_left(at, width);
                    vec q_part = load_n(q + at, n), k_part = load_n(k + at, n);
                    sum += vector ? load_n(vector + at, n) * vec_tanh(q_part + k_part) : q_part * k_part;
                }
                scores[i] = reduce_sum(sum);
            }
            softmax(scores, count);
            float *own = weights + row * positions;
            if (positions) memset(own, 0, 4 * (size_t)positions);
            for (int64_t i = 0; i < count; i++) own[visible[i]] = scores[i];
            for (int64_t at = 0; at < depth; at += LANES) {
                int n = lanes_left(at, depth);
                vec sum = {0};
                for (int64_t i = 0; i < count; i++)
                    sum += scores[i] * load_n(values + (sentence * positions + visible[i]) * depth + at, n);
                store_n(out + row * depth + at, sum, n);
            }
        }
        free(visible);
        free(scores);
    }
    return status;
}
