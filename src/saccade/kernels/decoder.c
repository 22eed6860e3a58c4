/* One place of a few hypotheses through all layers of a Transformer's decoder, in one call and one thread: a decoder of
 * four layers is sixty calls otherwise, each of which takes longer to begin than its work. */

#include "few_rows.h"
#include "one_place.h"

/* out (rows, outs) = x (rows, ins) · weight (outs, ins)^T + bias, if there is one. */
EXPORT void saccade_few_products(int threads, int64_t rows, int64_t ins, int64_t outs, const float *x,
                                 const float *weight, const float *bias, float *out)
{
#pragma omp parallel num_threads(threads) if (rows * ins * outs >= 64 * ALONE_BELOW)
    {
        int64_t first, last;
        own_part(outs / OUTS, &first, &last);
        last = last == outs / OUTS ? outs : last * OUTS;
        product(rows, ins, last - first * OUTS, x, weight + first * OUTS * ins, out + first * OUTS, outs);
        for (int64_t row = 0; bias && row < rows; row++)
            for (int64_t i = first * OUTS; i < last; i++) out[row * outs + i] += bias[i];
    }
}

typedef struct {
    const float *scale, *shift;
} norm;

/* Weights (outs, ins) and biases of one layer, and the norm that follows each of its three sublayers. */
typedef struct {
    const float *own, *own_bias, *own_output, *own_output_bias; /* queries, keys and values side by side */
    const float *cross, *cross_bias, *value_bias, *cross_output, *cross_output_bias;
    const float *expand, *expand_bias, *contract, *contract_bias;
    norm after[3];
} layer;

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
static void add_and_normalise(int pre, int64_t rows, int64_t width, const float *sublayer, const float *bias, norm by,
                              float epsilon, float *x, float *normal)
{
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < width; i++) x[row * width + i] += sublayer[row * width + i] + bias[i];
    normalise(rows, width, x, by, epsilon, normal);
    if (!pre) memcpy(x, normal, 4 * (size_t)(rows * width));
}

/* Hypothesis n stood in row origin[n][t] of step t, whose tensor (layers, step_rows[t], 3 width) is at steps[t]; the last
 * step is this one and is written. `beam` hypotheses in a row share the rows first_rows[i] to first_rows[i] + counts[i] of
 * memory (layers, memory_rows, 2 width). x (rows, width) is written over, out (rows, width) is its last norm. */
EXPORT void saccade_decoder_step(int threads, int64_t layers, const layer *weights, norm first_norm, float epsilon, int pre,
                                 int64_t rows, int64_t heads, int64_t head, int64_t inner, int64_t count,
                                 const int64_t *steps, const int64_t *step_rows, const int64_t *origin, int64_t beam,
                                 int64_t longest, const int64_t *first_rows, const int64_t *counts, const float *memory,
                                 int64_t memory_rows, float *x, float *out)
{
    (void)threads;
    int64_t width = heads * head, wide = 3 * width > inner ? 3 * width : inner;
    int64_t most = count > longest ? count : longest;
    float *hidden = zeros((size_t)(rows * wide)), *context = zeros((size_t)(rows * width));
    float *scores = zeros((size_t)rounded(most, LANES));
    const float **keys = malloc(2 * (size_t)(most ? most : 1) * sizeof(*keys)), **values = keys + most;
    if (!keys) abort();
    if (pre)
        normalise(rows, width, x, first_norm, epsilon, out);
    else
        memcpy(out, x, 4 * (size_t)(rows * width));
    for (int64_t l = 0; l < layers; l++) {
        const layer *w = weights + l;
        float *projected = (float *)steps[count - 1] + l * rows * 3 * width;
        product(rows, width, 3 * width, out, w->own, projected, 3 * width);
        for (int64_t row = 0; row < rows; row++) {
            for (int64_t t = 0; t < count; t++) {
                keys[t] = (const float *)steps[t] + (l * step_rows[t] + origin[row * count + t]) * 3 * width + width;
                values[t] = keys[t] + width;
            }
            attend_row(heads, head, count, keys, values, projected + row * 3 * width, w->own_bias,
                       w->own_bias + 2 * width, scores, context + row * width, NULL, 0);
        }
        product(rows, width, width, context, w->own_output, hidden, width);
        add_and_normalise(pre, rows, width, hidden, w->own_output_bias, w->after[0], epsilon, x, out);

        product(rows, width, width, out, w->cross, hidden, width);
        for (int64_t row = 0; row < rows; row++) {
            int64_t sentence = row / beam, places = counts[sentence];
            for (int64_t t = 0; t < places; t++) {
                keys[t] = memory + (l * memory_rows + first_rows[sentence] + t) * 2 * width;
                values[t] = keys[t] + width;
            }
            attend_row(heads, head, places, keys, values, hidden + row * width, w->cross_bias, w->value_bias, scores,
                       context + row * width, NULL, 0);
        }
        product(rows, width, width, context, w->cross_output, hidden, width);
        add_and_normalise(pre, rows, width, hidden, w->cross_output_bias, w->after[1], epsilon, x, out);

        product(rows, width, inner, out, w->expand, hidden, inner);
        for (int64_t row = 0; row < rows; row++)
            for (int64_t i = 0; i < inner; i++) {
                float value = hidden[row * inner + i] + w->expand_bias[i];
                hidden[row * inner + i] = value > 0 ? value : 0;
            }
        product(rows, inner, width, hidden, w->contract, context, width);
        add_and_normalise(pre, rows, width, context, w->contract_bias, w->after[2], epsilon, x, out);
    }
    free(keys);
    free(scores);
    free(context);
    free(hidden);
}
