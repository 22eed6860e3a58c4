/* Gated linear units with bias, residual sum and scale in one pass. */

#include "simd.h"
#include "status.h"

/* out = (a * sigmoid(b) + residual) * scale with (a, b) = x + bias for rows x (rows, 2 width); the residual may be
 * NULL. */
EXPORT int saccade_glu(int threads, int64_t rows, int64_t width, const float *x, const float *bias,
                       const float *residual, float scale, float *out)
{
#pragma omp parallel for num_threads(threads) if (rows * width >= PARALLEL_THRESHOLD) schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        const float *a = x + row * 2 * width, *b = a + width, *r = residual ? residual + row * width : NULL;
        for (int64_t at = 0; at < width; at += LANES) {
            int n = lanes_left(at, width);
            vec linear = load_n(a + at, n) + load_n(bias + at, n);
            vec gate = load_n(b + at, n) + load_n(bias + width + at, n);
            vec value = linear * vec_sigmoid(gate);
            if (r) value += load_n(r + at, n);
            store_n(out + row * width + at, value * scale, n);
        }
    }
    return SUCCESS;
}
