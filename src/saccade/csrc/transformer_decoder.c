/* One place of some hypotheses through all layers of a Transformer's decoder, in one call: a decoder of four layers is
 * sixty calls otherwise, each of which takes longer to begin than its work with a few of them. */

#include "single_query_attention.h"
#include "transformer_sublayers.h"

#define ROWS_A_THREAD 32 /* of a step: enough for each to have its own */

/* out (rows, outs) = x (rows, ins) · weight (outs, ins)^T + bias, if there is one. */
EXPORT void saccade_linear(int threads, int64_t rows, int64_t ins, int64_t outs, const float *x,
                                 const float *weight, const float *bias, float *out)
{
    int team = rows * ins * outs < PRODUCT_ALONE_BELOW ? 1 : threads;
    linear(team, rows, ins, outs, x, weight, (other_forms){NULL, NULL}, 0, out);
    for (int64_t row = 0; bias && row < rows; row++)
        for (int64_t i = 0; i < outs; i++) out[row * outs + i] += bias[i];
}

/* Which hypothesis of which group a row is. */
typedef struct {
    const past *group;
    int64_t number;
} member;

static int64_t sentence_of(member row) { return row.group->sentence + row.number / row.group->beam; }

/* The rows `first` to `last` of all. */
static void step_rows(int threads, const decoder *d, const member *rows, int64_t first, int64_t last, float *x, float *out)
{
    shape s = d->shape;
    int64_t width = s.width, wide = 3 * width > s.inner ? 3 * width : s.inner, count = last - first, most = 0;
    for (int64_t row = first; row < last; row++) {
        const past *p = rows[row].group;
        int64_t places = p->memory->counts[sentence_of(rows[row])];
        most = p->count > most ? p->count : most;
        most = places > most ? places : most;
    }
    float *hidden = zeros((size_t)(count * wide)), *context = zeros((size_t)(count * width));
    float *scores = zeros((size_t)rounded(most, LANES));
    const float **keys = malloc(2 * (size_t)(most ? most : 1) * sizeof(*keys)), **values = keys + most;
    if (!keys) abort();
    rows += first;
    x += first * width;
    out += first * width;
    begin_sublayers(s, count, x, d->first_norm, out);
    for (int64_t l = 0; l < s.layers; l++) {
        const decoder_weights *w = d->weights + l;
        linear(threads, count, width, 3 * width, out, w->own, w->other, OWN, hidden);
        for (int64_t row = 0; row < count; row++) {
            const past *p = rows[row].group;
            const int64_t *origin = p->origin + rows[row].number * p->places;
            const float *projected = hidden + row * 3 * width;
            int64_t before = p->row - 2 * width, last_step = p->count - 1;
            memcpy(p->steps[last_step] + l * p->layer_strides[last_step] + rows[row].number * p->row + before,
                   projected + width, 8 * (size_t)width);
            for (int64_t t = 0; t < p->count; t++) {
                keys[t] = p->steps[t] + l * p->layer_strides[t] + origin[t] * p->row + before;
                values[t] = keys[t] + width;
            }
            attend_row(s.heads, width / s.heads, p->count, keys, values, projected, w->own_bias,
                       w->own_bias + 2 * width, scores, context + row * width, NULL, 0);
        }
        linear(threads, count, width, width, context, w->own_output, w->other, OWN_OUTPUT, hidden);
        add_and_normalise(s, count, hidden, w->own_output_bias, w->after[0], x, out);

        linear(threads, count, width, width, out, w->cross, w->other, CROSS, hidden);
        for (int64_t row = 0; row < count; row++) {
            const memory *m = rows[row].group->memory;
            int64_t sentence = sentence_of(rows[row]), places = m->counts[sentence];
            for (int64_t t = 0; t < places; t++) {
                keys[t] = m->values + (l * m->rows + m->first[sentence] + t) * 2 * width;
                values[t] = keys[t] + width;
            }
            attend_row(s.heads, width / s.heads, places, keys, values, hidden + row * width, w->cross_bias, w->value_bias,
                       scores, context + row * width, NULL, 0);
        }
        linear(threads, count, width, width, context, w->cross_output, w->other, CROSS_OUTPUT, hidden);
        add_and_normalise(s, count, hidden, w->cross_output_bias, w->after[1], x, out);

        feed_forward(threads, s, count, w->expand, w->expand_bias, w->contract, w->contract_bias, w->other, w->after[2],
                     hidden, context, x, out);
    }
    free(keys);
    free(scores);
    free(context);
    free(hidden);
}

int shares_products(const decoder *d, int64_t rows)
{
    return rows * d->shape.width * d->shape.width >= PRODUCT_ALONE_BELOW / 4;
}

/* A row looks at no other row of this step: with many rows each thread has its own and waits for nobody. With fewer the
 * threads share each product, so that a weight is read once. */
void decoder_step(int threads, const decoder *d, int64_t groups, const past *pasts, float *x, float *out)
{
    int64_t count = 0;
    for (int64_t i = 0; i < groups; i++) count += pasts[i].rows;
    member *rows = malloc((size_t)(count ? count : 1) * sizeof(*rows)), *row = rows;
    if (!rows) abort();
    for (int64_t i = 0; i < groups; i++)
        for (int64_t number = 0; number < pasts[i].rows; number++) *row++ = (member){pasts + i, number};
    if (!shares_products(d, count)) threads = 1;
    if (threads == 1 || count < threads * ROWS_A_THREAD)
        step_rows(threads, d, rows, 0, count, x, out);
    else
#pragma omp parallel num_threads(threads)
    {
        int64_t first, last;
        own_part(count, &first, &last);
        if (last > first) step_rows(1, d, rows, first, last, x, out);
    }
    free(rows);
}

EXPORT void saccade_decoder_step(int threads, const decoder *d, const past *p, float *x, float *out)
{
    decoder_step(threads, d, 1, p, x, out);
}
