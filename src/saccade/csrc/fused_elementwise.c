/* Row by row: dropout, residual sums with their normalisation, bias and rectifier, gated linear units. */

#include "dropout_rng.h"

/* out = x with entries dropped, the others scaled; its own gradient too. In place if they are the same. */
EXPORT void saccade_dropout(int threads, int64_t count, const float *x, float *out, int32_t dropped, uint64_t seed)
{
    chance c = chance_of(seed, dropped);
    int64_t blocks = (count + BLOCK - 1) / BLOCK;
#pragma omp parallel for num_threads(threads) if (count >= ALONE_BELOW) schedule(static)
    for (int64_t block = 0; block < blocks; block++) {
        lanes low, high;
        factors(&c, (uint32_t)block, &low, &high);
        int64_t at = block * BLOCK;
        int some = within(at, count), more = within(at + LANES, count);
        store_within(out + at, load_within(x + at, some) * low, some);
        store_within(out + at + LANES, load_within(x + at + LANES, more) * high, more);
    }
}

/* total = x + dropout(sublayer + bias), in the place of the sublayer; normal = (total - mean) / deviation * scale + shift.
 * Without a sublayer the total is x. `mean` and `inverse` (1 / deviation) are kept for the way back. */
EXPORT void saccade_residual_norm(int threads, int64_t rows, int64_t width, const float *x, float *sublayer,
                                  const float *bias, int32_t dropped, uint64_t seed, const float *scale,
                                  const float *shift, float epsilon, float *normal, float *mean, float *inverse)
{
    chance c = chance_of(seed, dropped);
    int64_t blocks = (width + BLOCK - 1) / BLOCK;
#pragma omp parallel for num_threads(threads) if (rows * width >= ALONE_BELOW) schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        const float *a = x + row * width, *total = sublayer ? sublayer + row * width : a;
        for (int64_t block = 0; sublayer && block < blocks; block++) {
            lanes factor[2] = {all(1.0f), all(1.0f)};
            if (dropped) factors(&c, (uint32_t)(row * blocks + block), factor, factor + 1);
            for (int half = 0; half < 2; half++) {
                int64_t at = block * BLOCK + half * LANES;
                int some = within(at, width);
                float *place = sublayer + row * width + at;
                lanes added = (load_within(place, some) + load_within(bias + at, some)) * factor[half];
                store_within(place, load_within(a + at, some) + added, some);
            }
        }
        moments(width, total, epsilon, mean + row, inverse + row);
        normalise_row(width, total, mean[row], inverse[row], scale, shift, normal + row * width);
    }
}

/* The way back: `of_total` may be missing, and without a sublayer `of_sublayer` and `of_bias` are. Sums over the rows
 * are the gradients of bias, scale and shift. */
EXPORT void saccade_residual_norm_backward(int threads, int64_t rows, int64_t width, const float *total,
                                           const float *scale, const float *mean, const float *inverse,
                                           const float *of_total, const float *of_normal, int32_t dropped,
                                           uint64_t seed, float *of_x, float *of_sublayer, float *of_bias,
                                           float *of_scale, float *of_shift)
{
    chance c = chance_of(seed, dropped);
    int64_t blocks = (width + BLOCK - 1) / BLOCK, padded = blocks * BLOCK;
    float *sums = zeros((size_t)(threads * 3 * padded));
    int used = 1;
#pragma omp parallel num_threads(threads) if (rows * width >= ALONE_BELOW)
    {
        int64_t first, last;
        own_part(rows, &first, &last);
        float *scales = sums + thread_number() * 3 * padded, *shifts = scales + padded, *biases = shifts + padded;
        if (thread_number() == 0) used = thread_count();
        for (int64_t row = first; row < last; row++) {
            const float *a = total + row * width, *slopes = of_normal + row * width;
            float middle = mean[row], one_over = inverse[row];
            lanes sum = {0}, product = {0};
            for (int64_t at = 0; at < width; at += LANES) {
                int some = within(at, width);
                lanes normal = (load_within(a + at, some) - middle) * one_over;
                lanes slope = load_within(slopes + at, some); /* 0 beyond the row */
                store(scales + at, load(scales + at) + slope * normal);
                store(shifts + at, load(shifts + at) + slope);
                slope *= load_within(scale + at, some);
                sum += slope;
                product += slope * normal;
            }
            float sum_part = sum_of(sum) / (float)width, product_part = sum_of(product) / (float)width;
            for (int64_t block = 0; block < blocks; block++) {
                lanes factor[2] = {all(1.0f), all(1.0f)};
                if (dropped) factors(&c, (uint32_t)(row * blocks + block), factor, factor + 1);
                for (int half = 0; half < 2; half++) {
                    int64_t at = block * BLOCK + half * LANES, place = row * width + at;
                    int some = within(at, width);
                    if (!some) continue;
                    lanes normal = (load_within(a + at, some) - middle) * one_over;
                    lanes slope = load_within(slopes + at, some) * load_within(scale + at, some);
                    slope = (slope - sum_part - normal * product_part) * one_over;
                    if (of_total) slope += load_within(of_total + place, some);
                    store_within(of_x + place, slope, some);
                    if (!of_sublayer) continue;
                    slope *= factor[half];
                    store_within(of_sublayer + place, slope, some);
                    store(biases + at, load(biases + at) + slope);
                }
            }
        }
    }
    float *all_sums = zeros((size_t)(3 * padded));
    add_parts(used, 3 * padded, sums, all_sums);
    memcpy(of_scale, all_sums, 4 * (size_t)width);
    memcpy(of_shift, all_sums + padded, 4 * (size_t)width);
    if (of_bias) memcpy(of_bias, all_sums + 2 * padded, 4 * (size_t)width);
    free(all_sums);
    free(sums);
}

/* x = max(0, x + bias), in place. */
EXPORT void saccade_bias_relu(int threads, int64_t rows, int64_t width, float *x, const float *bias)
{
#pragma omp parallel for num_threads(threads) if (rows * width >= ALONE_BELOW) schedule(static)
    for (int64_t row = 0; row < rows; row++) rectify_row(width, x + row * width, bias);
}

/* `out` is what came out on the way forward. */
EXPORT void saccade_bias_relu_backward(int threads, int64_t rows, int64_t width, const float *out,
                                       const float *gradient, float *x, float *bias)
{
    int64_t padded = (width + LANES - 1) / LANES * LANES;
    float *sums = zeros((size_t)(threads * padded));
    int used = 1;
#pragma omp parallel num_threads(threads) if (rows * width >= ALONE_BELOW)
    {
        int64_t first, last;
        own_part(rows, &first, &last);
        float *own = sums + thread_number() * padded;
        if (thread_number() == 0) used = thread_count();
        for (int64_t row = first; row < last; row++) {
            const float *a = out + row * width, *from = gradient + row * width;
            float *to = x + row * width;
            for (int64_t at = 0; at < width; at += LANES) {
                int some = within(at, width);
                lanes value = chosen(load_within(a + at, some) > 0.0f, load_within(from + at, some), all(0.0f));
                store_within(to + at, value, some);
                store(own + at, load(own + at) + value);
            }
        }
    }
    float *total = zeros((size_t)padded);
    add_parts(used, padded, sums, total);
    memcpy(bias, total, 4 * (size_t)width);
    free(total);
    free(sums);
}

/* out = (a * sigmoid(b) + residual) * factor, of rows x + bias = (a, b); the residual may be missing. */
EXPORT void saccade_glu(int threads, int64_t rows, int64_t width, const float *x, const float *bias,
                        const float *residual, float factor, float *out)
{
#pragma omp parallel for num_threads(threads) if (rows * width >= ALONE_BELOW) schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        const float *a = x + row * 2 * width, *b = a + width, *r = residual ? residual + row * width : NULL;
        for (int64_t at = 0; at < width; at += LANES) {
            int some = within(at, width);
            lanes first = load_within(a + at, some) + load_within(bias + at, some);
            lanes second = load_within(b + at, some) + load_within(bias + width + at, some);
            lanes value = first * sigmoid(second);
            if (r) value += load_within(r + at, some);
            store_within(out + row * width + at, value * factor, some);
        }
    }
}
