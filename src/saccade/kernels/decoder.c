/* One place of a few hypotheses through all layers of a Transformer's decoder, in one call: a decoder of four layers is
 * sixty calls otherwise, each of which takes longer to begin than its work. */

#include "decoder.h"
#include "few_rows.h"
#include "one_place.h"

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

static void normalise(int64_t rows, int64_t width, const float *x, norm by, float epsilon, float *to)
{
    for (int64_t row = 0; row < rows; row++, x += width, to += width) {
        float mean, inverse;
        moments(width, x, epsilon, &mean, &inverse);
        for (int64_t at = 0; at < width; at += LANES) {
            int some = within(at, width);
            lanes value = (load_within(x + at, some) - mean) * inverse;
            value = value * load_within(by.scale + at, some) + load_within(by.shift + at, some);
            store_within(to + at, value, some);
        }
    }
}

/* x += sublayer + bias, and that normalised; with the norm last, x is the normalised sum itself. */
static void add_and_normalise(const decoder *d, int64_t rows, const float *sublayer, const float *bias, norm by, float *x,
                              float *normal)
{
    int64_t width = d->heads * d->head;
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < width; i++) x[row * width + i] += sublayer[row * width + i] + bias[i];
    normalise(rows, width, x, by, d->epsilon, normal);
    if (!d->pre) memcpy(x, normal, 4 * (size_t)(rows * width));
}

void decoder_step(const decoder *d, int64_t rows, past p, memory m, float *x, float *out)
{
    int64_t width = d->heads * d->head, wide = 3 * width > d->inner ? 3 * width : d->inner;
    int64_t most = p.count > m.longest ? p.count : m.longest, size = rows * width;
    float *hidden = zeros((size_t)(rows * wide)), *context = zeros((size_t)size);
    float *scores = zeros((size_t)rounded(most, LANES));
    const float **keys = malloc(2 * (size_t)(most ? most : 1) * sizeof(*keys)), **values = keys + most;
    if (!keys) abort();
    if (d->pre)
        normalise(rows, width, x, d->first_norm, d->epsilon, out);
    else
        memcpy(out, x, 4 * (size_t)size);
    for (int64_t l = 0; l < d->layers; l++) {
        const layer *w = d->weights + l;
        float *projected = p.steps[p.count - 1] + l * rows * 3 * width;
        product(rows, width, 3 * width, out, w->own, projected, 3 * width);
        for (int64_t row = 0; row < rows; row++) {
            for (int64_t t = 0; t < p.count; t++) {
                keys[t] = p.steps[t] + (l * p.step_rows[t] + p.origin[row * p.places + t]) * 3 * width + width;
                values[t] = keys[t] + width;
            }
            attend_row(d->heads, d->head, p.count, keys, values, projected + row * 3 * width, w->own_bias,
                       w->own_bias + 2 * width, scores, context + row * width, NULL, 0);
        }
        product(rows, width, width, context, w->own_output, hidden, width);
        add_and_normalise(d, rows, hidden, w->own_output_bias, w->after[0], x, out);

        product(rows, width, width, out, w->cross, hidden, width);
        for (int64_t row = 0; row < rows; row++) {
            int64_t sentence = row / m.beam;
            for (int64_t t = 0; t < m.counts[sentence]; t++) {
                keys[t] = m.values + (l * m.rows + m.first[sentence] + t) * 2 * width;
                values[t] = keys[t] + width;
            }
            attend_row(d->heads, d->head, m.counts[sentence], keys, values, hidden + row * width, w->cross_bias,
                       w->value_bias, scores, context + row * width, NULL, 0);
        }
        product(rows, width, width, context, w->cross_output, hidden, width);
        add_and_normalise(d, rows, hidden, w->cross_output_bias, w->after[1], x, out);

        product(rows, width, d->inner, out, w->expand, hidden, d->inner);
        for (int64_t row = 0; row < rows; row++)
            for (int64_t i = 0; i < d->inner; i++) {
                float value = hidden[row * d->inner + i] + w->expand_bias[i];
                hidden[row * d->inner + i] = value > 0 ? value : 0;
            }
        product(rows, d->inner, width, hidden, w->contract, context, width);
        add_and_normalise(d, rows, context, w->contract_bias, w->after[2], x, out);
    }
    free(keys);
    free(scores);
    free(context);
    free(hidden);
}

EXPORT void saccade_decoder_step(int threads, const decoder *d, int64_t rows, past p, memory m, float *x, float *out)
{
    (void)threads;
    decoder_step(d, rows, p, m, x, out);
}
