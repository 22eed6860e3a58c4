/* Attention of one position per hypothesis to its KV cache and to the memory. */

#include "allocation.h"
#include "single_query_attention.h"
#include "status.h"

/* What a thread needs to attend from one position at a time. */
typedef struct {
    float *scores;
    const float **keys, **values;
} attention_scratch;

/* Scratch for this number of keys; false, and a status, if there is no memory. */
static int allocate_scratch(int64_t positions, attention_scratch *scratch, int *status)
{
    scratch->scores = zeroed_floats(round_up(positions, LANES));
    scratch->keys = zeroed(size_product(2, positions), sizeof(*scratch->keys));
    scratch->values = scratch->keys ? scratch->keys + positions : NULL;
    if (scratch->scores && scratch->keys) return 1;
    record(status, OUT_OF_MEMORY);
    return 0;
}

/* Free the scratch of a thread. */
static void free_scratch(attention_scratch *scratch)
{
    free(scratch->keys);
    free(scratch->scores);
}

/* To the KV cache: at step t hypothesis n was row origin[n][t] of steps[t], whose rows are queries, keys and values
 * of all heads, concatenated. Weights (hypotheses, heads, positions) may be NULL. */
EXPORT int saccade_kv_cache_attention(int threads, int64_t hypotheses, int64_t heads, int64_t head, int64_t positions,
                                      const float *const *steps, const int64_t *origin, const float *query,
                                      const float *bias, float *out, float *weights)
{
    int64_t width = heads * head;
    int status = SUCCESS;
#pragma omp parallel num_threads(threads) if (hypotheses * width * positions >= PARALLEL_THRESHOLD)
    {
        int64_t first, last;
        thread_range(hypotheses, &first, &last);
        attention_scratch scratch;
        if (!allocate_scratch(positions, &scratch, &status)) last = first;
        for (int64_t n = first; n < last; n++) {
            for (int64_t t = 0; t < positions; t++) {
                scratch.keys[t] = steps[t] + origin[n * positions + t] * 3 * width + width;
                scratch.values[t] = scratch.keys[t] + width;
            }
            attend_row(heads, head, positions, scratch.keys, scratch.values, query + n * 3 * width, bias,
                       bias + 2 * width, scratch.scores, out + n * width,
                       weights ? weights + n * heads * positions : NULL, positions);
        }
        free_scratch(&scratch);
    }
    return status;
}

/* To the memory: `beam` consecutive hypotheses attend to the rows first_rows[i] to first_rows[i] + counts[i] of
 * `memory`, keys and values concatenated. Weights (hypotheses, heads, longest) may be NULL; they are not written
 * beyond the count. */
EXPORT int saccade_memory_attention(int threads, int64_t hypotheses, int64_t heads, int64_t head, int64_t beam,
                                    int64_t longest, const int64_t *first_rows, const int64_t *counts,
                                    const float *memory, const float *query, const float *query_bias,
                                    const float *value_bias, float *out, float *weights)
{
    int64_t width = heads * head;
    int status = SUCCESS;
#pragma omp parallel num_threads(threads) if (hypotheses * width * longest >= PARALLEL_THRESHOLD)
    {
        int64_t first, last;
        thread_range(hypotheses, &first, &last);
        attention_scratch scratch;
        if (!allocate_scratch(longest, &scratch, &status)) last = first;
        for (int64_t n = first; n < last; n++) {
            int64_t sentence = n / beam, count = counts[sentence];
            for (int64_t t = 0; t < count; t++) {
                scratch.keys[t] = memory + (first_rows[sentence] + t) * 2 * width;
                scratch.values[t] = scratch.keys[t] + width;
            }
            float *own = weights ? weights + n * heads * longest : NULL;
            attend_row(heads, head, count, scratch.keys, scratch.values, query + n * width, query_bias, value_bias,
                       scratch.scores, out + n * width, own, longest);
        }
        free_scratch(&scratch);
    }
    return status;
}
