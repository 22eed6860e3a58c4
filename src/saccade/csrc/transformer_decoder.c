/* One position of some hypotheses through all layers of a Transformer decoder, in one call: four layers are sixty
 * calls otherwise, and each takes longer to start than to run for a few hypotheses. */

#include "allocation.h"
#include "single_query_attention.h"
#include "transformer_sublayers.h"

#define ROWS_PER_THREAD 32 /* of a step with so many rows each thread computes its own */

/* One row of a step: a hypothesis of a KV cache. */
typedef struct {
    const kv_cache_view *cache;
    int64_t hypothesis;
} step_row;

/* The sentence of the memory that a hypothesis attends to. */
static int64_t sentence_of(step_row row) { return row.cache->first_sentence + row.hypothesis / row.cache->beam; }

/* Self-attention of the hypotheses at their last position; `qkv` (count, 3 width) are their projections. */
INLINE void self_attention(stack_shape s, int64_t l, const decoder_layer_weights *w, int64_t count,
                           const step_row *rows, const float *qkv, const float **keys, const float **values,
                           float *scores, float *context)
{
    int64_t width = s.width;
    for (int64_t row = 0; row < count; row++) {
        const kv_cache_view *c = rows[row].cache;
        const int64_t *origin = c->origin + rows[row].hypothesis * c->capacity;
        const float *own = qkv + row * 3 * width;
        int64_t key_offset = c->row_width - 2 * width, last = c->positions - 1;
        memcpy(c->steps[last * s.layers + l] + rows[row].hypothesis * c->row_width + key_offset, own + width,
               8 * (size_t)width);
        for (int64_t t = 0; t < c->positions; t++) {
            keys[t] = c->steps[t * s.layers + l] + origin[t] * c->row_width + key_offset;
            values[t] = keys[t] + width;
        }
        attend_row(s.heads, width / s.heads, c->positions, keys, values, own, w->qkv_bias, w->qkv_bias + 2 * width,
                   scores, context + row * width, NULL, 0);
    }
}

/* Attention of the hypotheses to the memory of their sentence; `query` (count, width) has no bias yet. */
INLINE void cross_attention(stack_shape s, int64_t l, const decoder_layer_weights *w, int64_t count,
                            const step_row *rows, const float *query, const float **keys, const float **values,
                            float *scores, float *context)
{
    int64_t width = s.width;
    for (int64_t row = 0; row < count; row++) {
        const packed_memory *m = rows[row].cache->memory;
        int64_t sentence = sentence_of(rows[row]), length = m->counts[sentence];
        for (int64_t t = 0; t < length; t++) {
            keys[t] = m->kv[l] + (m->first[sentence] + t) * 2 * width;
            values[t] = keys[t] + width;
        }
        attend_row(s.heads, width / s.heads, length, keys, values, query + row * width, w->cross_query_bias,
                   w->cross_value_bias, scores, context + row * width, NULL, 0);
    }
}

/* The rows `first` to `last` of a step. */
static int step_rows(int threads, const decoder_stack *d, const step_row *rows, int64_t first, int64_t last, float *x,
                     float *out)
{
    stack_shape s = d->shape;
    int64_t width = s.width, widest = 3 * width > s.inner ? 3 * width : s.inner, count = last - first, longest = 0;
    for (int64_t row = first; row < last; row++) {
        const kv_cache_view *c = rows[row].cache;
        int64_t length = c->memory->counts[sentence_of(rows[row])];
        longest = c->positions > longest ? c->positions : longest;
        longest = length > longest ? length : longest;
    }
    float *hidden = zeroed_floats(count * widest), *context = zeroed_floats(count * width);
    float *scores = zeroed_floats(round_up(longest, LANES));
    const float **keys = zeroed(2 * longest, sizeof(*keys)), **values = keys ? keys + longest : NULL;
    int status = hidden && context && scores && keys ? SUCCESS : OUT_OF_MEMORY;
    rows += first;
    x += first * width;
    out += first * width;
    if (status == SUCCESS) first_sublayer_input(s, count, x, d->first_norm, out);
    for (int64_t l = 0; status == SUCCESS && l < s.layers; l++) {
        const decoder_layer_weights *w = d->layers + l;
        record(&status, linear(threads, count, width, 3 * width, out, w->qkv, w->forms, QKV, hidden));
        self_attention(s, l, w, count, rows, hidden, keys, values, scores, context);
        record(&status, linear(threads, count, width, width, context, w->attention_output, w->forms,
                               ATTENTION_OUTPUT, hidden));
        residual_layer_norm(s, count, hidden, w->attention_output_bias, w->norms[0], x, out);

        record(&status, linear(threads, count, width, width, out, w->cross_query, w->forms, CROSS_QUERY, hidden));
        cross_attention(s, l, w, count, rows, hidden, keys, values, scores, context);
        record(&status, linear(threads, count, width, width, context, w->cross_output, w->forms, CROSS_OUTPUT,
                               hidden));
        residual_layer_norm(s, count, hidden, w->cross_output_bias, w->norms[1], x, out);

        record(&status, feed_forward(threads, s, count, w->expand, w->expand_bias, w->contract, w->contract_bias,
                                     w->forms, w->norms[2], hidden, context, x, out));
    }
    free(keys);
    free(scores);
    free(context);
    free(hidden);
    return status;
}

int parallel_step(const decoder_stack *d, int64_t hypotheses)
{
    return hypotheses * d->shape.width * d->shape.width >= GEMM_PARALLEL_THRESHOLD / 4;
}

/* A row does not depend on the other rows of its step: with many rows each thread computes its own, without
 * barriers. With fewer the threads share each product, so that a weight is read once. */
int decoder_step(int threads, const decoder_stack *d, int64_t caches, const kv_cache_view *views, float *x, float *out)
{
    int64_t count = 0;
    for (int64_t i = 0; i < caches; i++) count += views[i].hypotheses;
    step_row *rows = zeroed(count, sizeof(*rows)), *row = rows;
    if (!rows) return OUT_OF_MEMORY;
    for (int64_t i = 0; i < caches; i++)
        for (int64_t n = 0; n < views[i].hypotheses; n++) *row++ = (step_row){views + i, n};
    int status = SUCCESS;
    if (!parallel_step(d, count)) threads = 1;
    if (threads == 1 || count < threads * ROWS_PER_THREAD)
        status = step_rows(threads, d, rows, 0, count, x, out);
    else
#pragma omp parallel num_threads(threads)
    {
        int64_t first, last;
        thread_range(count, &first, &last);
        if (last > first) record(&status, step_rows(1, d, rows, first, last, x, out));
    }
    free(rows);
    return status;
}

/* Whether all indices of a KV cache are in range. */
static int check_cache(const kv_cache_view *c)
{
    const packed_memory *m = c->memory;
    if (c->positions < 1 || c->capacity < c->positions) return INDEX_OUT_OF_RANGE;
    if (c->beam < 1 || c->first_sentence < 0) return INDEX_OUT_OF_RANGE;
    for (int64_t n = 0; n < c->hypotheses; n++) {
        int64_t sentence = c->first_sentence + n / c->beam;
        if (sentence >= m->sentences || m->first[sentence] < 0 || m->counts[sentence] < 0) return INDEX_OUT_OF_RANGE;
        if (m->first[sentence] > m->rows - m->counts[sentence]) return INDEX_OUT_OF_RANGE;
        for (int64_t t = 0; c->step_hypotheses && t < c->positions; t++) {
            int64_t origin = c->origin[n * c->capacity + t];
            if (origin < 0 || origin >= c->step_hypotheses[t]) return INDEX_OUT_OF_RANGE;
        }
    }
    return SUCCESS;
}

/* One position of all hypotheses of a KV cache: embeddings x (hypotheses, width) to `out` of the same shape. */
EXPORT int saccade_decoder_step(int threads, const decoder_stack *d, const kv_cache_view *c, float *x, float *out)
{
    int status = check_cache(c);
    return status == SUCCESS ? decoder_step(threads, d, 1, c, x, out) : status;
}
