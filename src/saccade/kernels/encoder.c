/* A few places through all layers of a Transformer's encoder, in one call: for one sentence the library's operations take
 * longer to begin than their work. */

#include "few_rows.h"
#include "one_place.h"
#include "sublayers.h"

/* Weights (outs, ins) and biases of one layer, and the norm that follows each of its two sublayers. */
typedef struct {
    const float *own, *own_bias, *own_output, *own_output_bias; /* queries, keys and values side by side */
    const float *expand, *expand_bias, *contract, *contract_bias;
    norm after[2];
} encoder_layer;

typedef struct {
    int64_t layers, heads, head, inner;
    residual ending;
    norm first_norm;
    const encoder_layer *weights;
} encoder;

/* x (rows, width) is written over; out (rows, width) is its last norm. The rows starts[i] to starts[i + 1] are sentence i.
 * A thread has its own rows throughout; only the attention looks at those of others. */
EXPORT void saccade_encode_few(int threads, const encoder *e, int64_t rows, int64_t sentences, const int64_t *starts,
                               float *x, float *out)
{
    int64_t width = e->heads * e->head, longest = 0;
    for (int64_t s = 0; s < sentences; s++)
        if (starts[s + 1] - starts[s] > longest) longest = starts[s + 1] - starts[s];
    float *projected[2] = {zeros((size_t)(rows * 3 * width)), zeros((size_t)(rows * 3 * width))};
#pragma omp parallel num_threads(threads) if (rows * width * width >= 8 * ALONE_BELOW)
    {
        int64_t first, last;
        own_part(rows, &first, &last);
        int64_t count = last - first;
        float *scores = zeros((size_t)rounded(longest, LANES)), *context = zeros((size_t)(count * width));
        float *hidden = zeros((size_t)(count * (e->inner > width ? e->inner : width)));
        const float **keys = malloc(2 * (size_t)(longest ? longest : 1) * sizeof(*keys)), **values = keys + longest;
        if (!keys) abort();
        float *own_x = x + first * width, *own_out = out + first * width;
        begin_sublayers(e->ending, count, own_x, e->first_norm, own_out);
        for (int64_t l = 0; l < e->layers; l++) {
            const encoder_layer *w = e->weights + l;
            float *all_rows = projected[l % 2]; /* whoever is slow may still look at those of the layer before */
            product(count, width, 3 * width, own_out, w->own, all_rows + first * 3 * width, 3 * width);
#pragma omp barrier
            for (int64_t row = first, s = 0; row < last; row++) {
                while (starts[s + 1] <= row) s++;
                for (int64_t t = starts[s]; t < starts[s + 1]; t++) {
                    keys[t - starts[s]] = all_rows + t * 3 * width + width;
                    values[t - starts[s]] = keys[t - starts[s]] + width;
                }
                attend_row(e->heads, e->head, starts[s + 1] - starts[s], keys, values, all_rows + row * 3 * width,
                           w->own_bias, w->own_bias + 2 * width, scores, context + (row - first) * width, NULL, 0);
            }
            product(count, width, width, context, w->own_output, hidden, width);
            add_and_normalise(e->ending, count, hidden, w->own_output_bias, w->after[0], own_x, own_out);
            product(count, width, e->inner, own_out, w->expand, hidden, e->inner);
            rectify(count, e->inner, hidden, w->expand_bias);
            product(count, e->inner, width, hidden, w->contract, context, width);
            add_and_normalise(e->ending, count, context, w->contract_bias, w->after[1], own_x, own_out);
        }
        free(keys);
        free(hidden);
        free(context);
        free(scores);
    }
    free(projected[0]);
    free(projected[1]);
}
