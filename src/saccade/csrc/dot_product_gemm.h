/* Matrix products of a few rows: one dot product per row and output, with the weight as it is. From some tens of
 * rows on PyTorch's products are faster, and ours with block-transposed weights (blocked_gemm.h); for fewer rows
 * those take longer to start than these take in all (docs/log.md). */

#ifndef SACCADE_DOT_PRODUCT_GEMM_H
#define SACCADE_DOT_PRODUCT_GEMM_H

#include "simd.h"

#define DOT_ROWS 6 /* at once: with DOT_OUTPUTS, as many sums as there are registers */
#define DOT_OUTPUTS 4

/* out (rows, outputs) = x (rows, inputs) · weight (outputs, inputs)^T; the compiler knows the number of rows. */
INLINE void dot_products(const int rows, int64_t inputs, int64_t outputs, const float *x, const float *weight,
                         float *out, int64_t stride)
{
    for (int64_t first = 0; first < outputs; first += DOT_OUTPUTS) {
        int n = outputs - first < DOT_OUTPUTS ? (int)(outputs - first) : DOT_OUTPUTS;
        const float *w[DOT_OUTPUTS];
        for (int o = 0; o < DOT_OUTPUTS; o++) w[o] = weight + (first + (o < n ? o : 0)) * inputs;
        vec sums[DOT_ROWS][DOT_OUTPUTS];
        for (int r = 0; r < rows; r++)
            for (int o = 0; o < DOT_OUTPUTS; o++) sums[r][o] = broadcast(0.0f);
        int64_t at = 0;
        for (; at + LANES <= inputs; at += LANES)
            for (int o = 0; o < DOT_OUTPUTS; o++) {
                vec weights = load(w[o] + at);
                for (int r = 0; r < rows; r++) sums[r][o] += weights * load(x + r * inputs + at);
            }
        if (at < inputs)
            for (int o = 0; o < DOT_OUTPUTS; o++) {
                vec weights = load_partial(w[o] + at, lanes_left(at, inputs));
                for (int r = 0; r < rows; r++)
                    sums[r][o] += weights * load_partial(x + r * inputs + at, lanes_left(at, inputs));
            }
        for (int r = 0; r < rows; r++) {
            float found[DOT_OUTPUTS];
            reduce_sum4(sums[r], found);
            for (int o = 0; o < n; o++) out[r * stride + first + o] = found[o];
        }
    }
}

/* Dot products of any number of rows; `stride` is the distance of the rows of `out`. */
INLINE void dot_product_gemm(int64_t rows, int64_t inputs, int64_t outputs, const float *x, const float *weight,
                             float *out, int64_t stride)
{
    while (rows) {
        int now = rows > DOT_ROWS ? DOT_ROWS : (int)rows;
        switch (now) {
        case 1: dot_products(1, inputs, outputs, x, weight, out, stride); break;
        case 2: dot_products(2, inputs, outputs, x, weight, out, stride); break;
        case 3: dot_products(3, inputs, outputs, x, weight, out, stride); break;
        case 4: dot_products(4, inputs, outputs, x, weight, out, stride); break;
        case 5: dot_products(5, inputs, outputs, x, weight, out, stride); break;
        default: dot_products(DOT_ROWS, inputs, outputs, x, weight, out, stride);
        }
        rows -= now;
        x += now * inputs;
        out += now * stride;
    }
}

#endif
