/* All layers of a Transformer encoder in one call: for one sentence PyTorch's operations take longer to start than
 * to run, and a few sentences stay in the cache from layer to layer. */

#include "allocation.h"
#include "single_query_attention.h"
#include "transformer_sublayers.h"

/* Each thread owns a range of rows in all layers; only attention reads the rows of other threads. A thread whose
 * allocation failed still meets the others at every barrier. */
int encoder_forward(int threads, const encoder_stack *e, int64_t sentences, const int64_t *cu_seqlens, float *x,
                    float *out, const int *stop)
{
    stack_shape s = e->shape;
    int64_t width = s.width, begin = cu_seqlens[0], rows = cu_seqlens[sentences] - begin, longest = 0;
    for (int64_t i = 0; i < sentences; i++)
        if (cu_seqlens[i + 1] - cu_seqlens[i] > longest) longest = cu_seqlens[i + 1] - cu_seqlens[i];
    /* two: a slow thread may still read the projections of the layer before */
    float *projections[2] = {zeroed_floats(rows * 3 * width), zeroed_floats(rows * 3 * width)};
    int status = projections[0] && projections[1] ? SUCCESS : OUT_OF_MEMORY;
#pragma omp parallel num_threads(threads) if (rows * width * width >= 8 * PARALLEL_THRESHOLD)
    {
        int64_t first, last;
        thread_range(rows, &first, &last);
        int64_t count = last - first;
        float *scores = zeroed_floats(round_up(longest, LANES)), *context = zeroed_floats(count * width);
        float *hidden = zeroed_floats(count * (s.inner > width ? s.inner : width));
        const float **keys = zeroed(2 * longest, sizeof(*keys)), **values = keys ? keys + longest : NULL;
        if (!scores || !context || !hidden || !keys) record(&status, OUT_OF_MEMORY);
#pragma omp barrier
        int ready = recorded(&status) == SUCCESS; /* equal in all threads: none records before the next barrier */
#pragma omp barrier
        float *own_x = x + first * width, *own_out = out + first * width;
        if (ready) first_sublayer_input(s, count, own_x, e->first_norm, own_out);
        for (int64_t l = 0; ready && l < s.layers; l++) {
            const encoder_layer_weights *w = e->layers + l;
            float *qkv = projections[l % 2];
            if (!is_set(stop))
                record(&status, linear(1, count, width, 3 * width, own_out, w->qkv, w->forms, QKV,
                                       qkv + first * 3 * width));
#pragma omp barrier /* that every thread meets, also after a stop */
            for (int64_t row = first, sentence = 0; row < last && !is_set(stop); row++) {
                while (cu_seqlens[sentence + 1] - begin <= row) sentence++;
                int64_t length = cu_seqlens[sentence + 1] - cu_seqlens[sentence];
                for (int64_t t = 0; t < length; t++) {
                    keys[t] = qkv + (cu_seqlens[sentence] - begin + t) * 3 * width + width;
                    values[t] = keys[t] + width;
                }
                attend_row(s.heads, width / s.heads, length, keys, values, qkv + row * 3 * width, w->qkv_bias,
                           w->qkv_bias + 2 * width, scores, context + (row - first) * width, NULL, 0);
            }
            if (is_set(stop)) continue;
            record(&status, linear(1, count, width, width, context, w->attention_output, w->forms, ATTENTION_OUTPUT,
                                   hidden));
            residual_layer_norm(s, count, hidden, w->attention_output_bias, w->norms[0], own_x, own_out);
            record(&status, feed_forward(1, s, count, w->expand, w->expand_bias, w->contract, w->contract_bias,
                                         w->forms, w->norms[1], hidden, context, own_x, own_out));
        }
        free(keys);
        free(hidden);
        free(context);
        free(scores);
    }
    free(projections[0]);
    free(projections[1]);
    if (is_set(stop)) record(&status, STOPPED);
    return status;
}

/* All layers over packed sentences: embeddings x (rows, width), which are overwritten, to `out` (rows, width). */
EXPORT int saccade_encoder_forward(int threads, const encoder_stack *e, int64_t sentences, const int64_t *cu_seqlens,
                                   float *x, float *out)
{
    for (int64_t i = 0; i < sentences; i++)
        if (cu_seqlens[i] < 0 || cu_seqlens[i + 1] < cu_seqlens[i]) return INDEX_OUT_OF_RANGE;
    return encoder_forward(threads, e, sentences, cu_seqlens, x, out, NULL);
}
