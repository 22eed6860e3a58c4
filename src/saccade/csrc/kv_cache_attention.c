/* Attention of one place of each hypothesis to keys wherever they are: decoding. */

#include "single_query_attention.h"

/* To the past: at step t hypothesis n stood in row origin[n][t] of steps[t], whose rows are queries, keys and values of
 * all heads side by side; `steps` are the addresses of the first rows. Weights (rows, heads, count). */
EXPORT void saccade_kv_cache_attention(int threads, int64_t rows, int64_t heads, int64_t head, int64_t count,
                                const int64_t *steps, const int64_t *origin, const float *query, const float *bias,
                                float *out, float *weights)
{
    int64_t width = heads * head;
#pragma omp parallel num_threads(threads) if (rows * width * count >= ALONE_BELOW)
    {
        int64_t first, last;
        own_part(rows, &first, &last);
        float *scores = zeros((size_t)rounded(count, LANES));
        const float **keys = malloc(2 * (size_t)count * sizeof(*keys)), **values = keys + count;
        if (!keys) abort();
        for (int64_t row = first; row < last; row++) {
            for (int64_t t = 0; t < count; t++) {
                keys[t] = (const float *)steps[t] + origin[row * count + t] * 3 * width + width;
                values[t] = keys[t] + width;
            }
            attend_row(heads, head, count, keys, values, query + row * 3 * width, bias, bias + 2 * width, scores,
                       out + row * width, weights ? weights + row * heads * count : NULL, count);
        }
        free(keys);
        free(scores);
    }
}

/* To the memory: `beam` hypotheses in a row share the rows first[i] to first[i] + counts[i] of keys and values side by
 * side. Weights (rows, heads, longest), 0 beyond the count. */
EXPORT void saccade_memory_attention(int threads, int64_t rows, int64_t heads, int64_t head, int64_t beam, int64_t longest,
                                  const int64_t *first_rows, const int64_t *counts, const float *memory,
                                  const float *query, const float *query_bias, const float *value_bias, float *out,
                                  float *weights)
{
    int64_t width = heads * head;
#pragma omp parallel num_threads(threads) if (rows * width * longest >= ALONE_BELOW)
    {
        int64_t first, last;
        own_part(rows, &first, &last);
        float *scores = zeros((size_t)rounded(longest, LANES));
        const float **keys = malloc(2 * (size_t)(longest ? longest : 1) * sizeof(*keys)), **values = keys + longest;
        if (!keys) abort();
        for (int64_t row = first; row < last; row++) {
            int64_t sentence = row / beam, count = counts[sentence];
            for (int64_t t = 0; t < count; t++) {
                keys[t] = memory + (first_rows[sentence] + t) * 2 * width;
                values[t] = keys[t] + width;
            }
            float *own = weights ? weights + row * heads * longest : NULL;
            attend_row(heads, head, count, keys, values, query + row * width, query_bias, value_bias, scores,
                       out + row * width, own, longest);
        }
        free(keys);
        free(scores);
    }
}
