/* What a Transformer's sublayers have in common. */

#ifndef SACCADE_SUBLAYERS_H
#define SACCADE_SUBLAYERS_H

#include "dot_product_gemm.h"
#include "blocked_gemm.h"
#include "transformer.h"

INLINE void normalise(int64_t rows, int64_t width, const float *x, norm by, float *to)
{
    for (int64_t row = 0; row < rows; row++, x += width, to += width) {
        float mean, inverse;
        moments(width, x, by.epsilon, &mean, &inverse);
        normalise_row(width, x, mean, inverse, by.scale, by.shift, to);
    }
}

/* What the first sublayer reads. */
INLINE void begin_sublayers(shape s, int64_t rows, const float *x, norm first, float *normal)
{
    if (s.pre)
        normalise(rows, s.width, x, first, normal);
    else
        memcpy(normal, x, 4 * (size_t)(rows * s.width));
}

/* x += sublayer + bias, and that normalised; with the norm last, x is the normalised sum itself. */
INLINE void add_and_normalise(shape s, int64_t rows, const float *sublayer, const float *bias, norm by, float *x,
                              float *normal)
{
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < s.width; i++) x[row * s.width + i] += sublayer[row * s.width + i] + bias[i];
    normalise(rows, s.width, x, by, normal);
    if (!s.pre) memcpy(x, normal, 4 * (size_t)(rows * s.width));
}

/* The outputs `first` to `last`, by the weight or by its turned form; `first` begins a block. Compiled once, so that shared
 * outputs have the bits of others. */
static __attribute__((noinline)) void some_outputs(int64_t first, int64_t last, int64_t rows, int64_t ins, int64_t outs,
                                                   const float *x, const float *weight, const float *turned, float *out)
{
    if (turned)
        product_by_turned(rows, ins, last - first, x, turned + first * ins, out + first, outs);
    else
        product(rows, ins, last - first, x, weight + first * ins, out + first, outs);
}

/* out (rows, outs) = x (rows, ins) · weight^T, by its other form at `place`, if there is one. Threads share the outputs, so
 * that each reads its own part of the weight. */
INLINE void linear(int threads, int64_t rows, int64_t ins, int64_t outs, const float *x, const float *weight,
                   other_forms other, int place, float *out)
{
    const float *turned = other.turned ? other.turned[place] : NULL;
    if (other.bytes)
        multiply_bytes(threads, rows, x, other.bytes + place, out);
    else if (threads == 1)
        some_outputs(0, outs, rows, ins, outs, x, weight, turned, out);
    else
#pragma omp parallel num_threads(threads)
    {
        int64_t first, last;
        own_part(blocks_of(outs), &first, &last);
        last = last * BLOCK < outs ? last * BLOCK : outs;
        some_outputs(first * BLOCK, last, rows, ins, outs, x, weight, turned, out);
    }
}

/* The last sublayer of a layer, with room for `hidden` (rows, inner) and for what comes of it, `fed` (rows, width). */
INLINE void feed_forward(int threads, shape s, int64_t rows, const float *expand, const float *expand_bias,
                         const float *contract, const float *contract_bias, other_forms other, norm after, float *hidden,
                         float *fed, float *x, float *normal)
{
    linear(threads, rows, s.width, s.inner, normal, expand, other, EXPAND, hidden);
    for (int64_t row = 0; row < rows; row++) rectify_row(s.inner, hidden + row * s.inner, expand_bias);
    linear(threads, rows, s.inner, s.width, hidden, contract, other, CONTRACT, fed);
    add_and_normalise(s, rows, fed, contract_bias, after, x, normal);
}

#endif
