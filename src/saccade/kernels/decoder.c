/* One place of a few hypotheses through all layers of a Transformer's decoder, in one call: a decoder of four layers is
 * sixty calls otherwise, each of which takes longer to begin than its work. */

#include "one_place.h"
#include "sublayers.h"

void few_products(int threads, int64_t rows, int64_t ins, int64_t outs, const float *x, const float *weight,
                  const float *bias, float *out)
{
#pragma omp parallel num_threads(threads) if (rows * ins * outs >= 64 * ALONE_BELOW)
    {
        int64_t first, last;
        own_part((outs + OUTS - 1) / OUTS, &first, &last);
        first *= OUTS;
        last = last * OUTS < outs ? last * OUTS : outs;
        product(rows, ins, last - first, x, weight + first * ins, out + first, outs);
        for (int64_t row = 0; bias && row < rows; row++)
            for (int64_t i = first; i < last; i++) out[row * outs + i] += bias[i];
    }
}

EXPORT void saccade_few_products(int threads, int64_t rows, int64_t ins, int64_t outs, const float *x,
                                 const float *weight, const float *bias, float *out)
{
    few_products(threads, rows, ins, outs, x, weight, bias, out);
}

/* The rows `first` to `last` of so many. */
static void step_rows(const decoder *d, int64_t rows, int64_t first, int64_t last, past p, memory m, float *x, float *out)
{
    shape s = d->shape;
    int64_t width = s.width, wide = 3 * width > s.inner ? 3 * width : s.inner, count = last - first;
    int64_t most = p.count > m.longest ? p.count : m.longest;
    float *hidden = zeros((size_t)(count * wide)), *context = zeros((size_t)(count * width));
    float *scores = zeros((size_t)rounded(most, LANES));
    const float **keys = malloc(2 * (size_t)(most ? most : 1) * sizeof(*keys)), **values = keys + most;
    if (!keys) abort();
    x += first * width;
    out += first * width;
    begin_sublayers(s, count, x, d->first_norm, out);
    for (int64_t l = 0; l < s.layers; l++) {
        const decoder_weights *w = d->weights + l;
        float *projected = p.steps[p.count - 1] + (l * rows + first) * 3 * width;
        linear(count, width, 3 * width, out, w->own, w->bytes, OWN, projected);
        for (int64_t row = 0; row < count; row++) {
            for (int64_t t = 0; t < p.count; t++) {
                keys[t] = p.steps[t] + (l * p.step_rows[t] + p.origin[(first + row) * p.places + t]) * 3 * width + width;
                values[t] = keys[t] + width;
            }
            attend_row(s.heads, width / s.heads, p.count, keys, values, projected + row * 3 * width, w->own_bias,
                       w->own_bias + 2 * width, scores, context + row * width, NULL, 0);
        }
        linear(count, width, width, context, w->own_output, w->bytes, OWN_OUTPUT, hidden);
        add_and_normalise(s, count, hidden, w->own_output_bias, w->after[0], x, out);

        linear(count, width, width, out, w->cross, w->bytes, CROSS, hidden);
        for (int64_t row = 0; row < count; row++) {
            int64_t sentence = (first + row) / m.beam;
            for (int64_t t = 0; t < m.counts[sentence]; t++) {
                keys[t] = m.values + (l * m.rows + m.first[sentence] + t) * 2 * width;
                values[t] = keys[t] + width;
            }
            attend_row(s.heads, width / s.heads, m.counts[sentence], keys, values, hidden + row * width, w->cross_bias,
                       w->value_bias, scores, context + row * width, NULL, 0);
        }
        linear(count, width, width, context, w->cross_output, w->bytes, CROSS_OUTPUT, hidden);
        add_and_normalise(s, count, hidden, w->cross_output_bias, w->after[1], x, out);

        feed_forward(s, count, w->expand, w->expand_bias, w->contract, w->contract_bias, w->bytes, w->after[2], hidden,
                     context, x, out);
    }
    free(keys);
    free(scores);
    free(context);
    free(hidden);
}

void decoder_step(const decoder *d, int64_t rows, past p, memory m, float *x, float *out)
{
    step_rows(d, rows, 0, rows, p, m, x, out);
}

/* A row looks at no other row of this step, so that threads have no need to wait for each other. */
EXPORT void saccade_decoder_step(int threads, const decoder *d, int64_t rows, past p, memory m, float *x, float *out)
{
#pragma omp parallel num_threads(threads) if (rows * d->shape.width * d->shape.width >= 64 * ALONE_BELOW)
    {
        int64_t first, last;
        own_part(rows, &first, &last);
        if (last > first) step_rows(d, rows, first, last, p, m, x, out);
    }
}
