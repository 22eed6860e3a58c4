/* Places through all layers of a Transformer's encoder, in one call: for one sentence the library's operations take longer to
 * begin than their work, and a few sentences stay in the cache from layer to layer. */

#include "single_query_attention.h"
#include "transformer_sublayers.h"

/* A thread has its own rows throughout; only the attention looks at those of others. */
void encode_rows(int threads, const encoder *e, int64_t sentences, const int64_t *starts, float *x, float *out)
{
    shape s = e->shape;
    int64_t width = s.width, begin = starts[0], rows = starts[sentences] - begin, longest = 0;
    for (int64_t i = 0; i < sentences; i++)
        if (starts[i + 1] - starts[i] > longest) longest = starts[i + 1] - starts[i];
    float *projected[2] = {zeros((size_t)(rows * 3 * width)), zeros((size_t)(rows * 3 * width))};
#pragma omp parallel num_threads(threads) if (rows * width * width >= 8 * ALONE_BELOW)
    {
        int64_t first, last;
        own_part(rows, &first, &last);
        int64_t count = last - first;
        float *scores = zeros((size_t)rounded(longest, LANES)), *context = zeros((size_t)(count * width));
        float *hidden = zeros((size_t)(count * (s.inner > width ? s.inner : width)));
        const float **keys = malloc(2 * (size_t)(longest ? longest : 1) * sizeof(*keys)), **values = keys + longest;
        if (!keys) abort();
        float *own_x = x + first * width, *own_out = out + first * width;
        begin_sublayers(s, count, own_x, e->first_norm, own_out);
        for (int64_t l = 0; l < s.layers; l++) {
            const encoder_weights *w = e->weights + l;
            float *all_rows = projected[l % 2]; /* whoever is slow may still look at those of the layer before */
            linear(1, count, width, 3 * width, own_out, w->own, w->other, OWN, all_rows + first * 3 * width);
#pragma omp barrier
            for (int64_t row = first, own = 0; row < last; row++) {
                while (starts[own + 1] - begin <= row) own++;
                int64_t places = starts[own + 1] - starts[own];
                for (int64_t t = 0; t < places; t++) {
                    keys[t] = all_rows + (starts[own] - begin + t) * 3 * width + width;
                    values[t] = keys[t] + width;
                }
                attend_row(s.heads, width / s.heads, places, keys, values, all_rows + row * 3 * width, w->own_bias,
                           w->own_bias + 2 * width, scores, context + (row - first) * width, NULL, 0);
            }
            linear(1, count, width, width, context, w->own_output, w->other, OWN_OUTPUT, hidden);
            add_and_normalise(s, count, hidden, w->own_output_bias, w->after[0], own_x, own_out);
            feed_forward(1, s, count, w->expand, w->expand_bias, w->contract, w->contract_bias, w->other, w->after[1],
                         hidden, context, own_x, own_out);
        }
        free(keys);
        free(hidden);
        free(context);
        free(scores);
    }
    free(projected[0]);
    free(projected[1]);
}

EXPORT void saccade_encoder_forward(int threads, const encoder *e, int64_t sentences, const int64_t *starts, float *x,
                               float *out)
{
    encode_rows(threads, e, sentences, starts, x, out);
}
