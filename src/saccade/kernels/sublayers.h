/* What surrounds the products of a Transformer's sublayers, for a few rows. */

#ifndef SACCADE_SUBLAYERS_H
#define SACCADE_SUBLAYERS_H

#include "lanes.h"

typedef struct {
    const float *scale, *shift;
} norm;

/* How the sublayers of a model end. */
typedef struct {
    int64_t width, pre; /* the norm comes first, not last */
    float epsilon;
} residual;

INLINE void normalise(int64_t rows, int64_t width, const float *x, norm by, float epsilon, float *to)
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

/* What the first sublayer reads. */
INLINE void begin_sublayers(residual r, int64_t rows, const float *x, norm first, float *normal)
{
    if (r.pre)
        normalise(rows, r.width, x, first, r.epsilon, normal);
    else
        memcpy(normal, x, 4 * (size_t)(rows * r.width));
}

/* x += sublayer + bias, and that normalised; with the norm last, x is the normalised sum itself. */
INLINE void add_and_normalise(residual r, int64_t rows, const float *sublayer, const float *bias, norm by, float *x,
                              float *normal)
{
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < r.width; i++) x[row * r.width + i] += sublayer[row * r.width + i] + bias[i];
    normalise(rows, r.width, x, by, r.epsilon, normal);
    if (!r.pre) memcpy(x, normal, 4 * (size_t)(rows * r.width));
}

/* max(0, x + bias), in place */
INLINE void rectify(int64_t rows, int64_t width, float *x, const float *bias)
{
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < width; i++) {
            float value = x[row * width + i] + bias[i];
            x[row * width + i] = value > 0 ? value : 0;
        }
}

#endif
