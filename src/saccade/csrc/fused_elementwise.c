/* Elementwise operations fused over rows: dropout; residual sum, dropout and layer norm; bias and rectifier. */

#include "allocation.h"
#include "dropout_rng.h"
#include "status.h"

/* out = x with entries zeroed, the others scaled; the gradient is the same function. In place if out == x. */
EXPORT int saccade_dropout(int threads, int64_t count, const float *x, float *out, int32_t threshold, uint64_t seed)
{
    dropout_rng rng = dropout_rng_of(seed, threshold);
    int64_t blocks = (count + DROPOUT_BLOCK - 1) / DROPOUT_BLOCK;
#pragma omp parallel for num_threads(threads) if (count >= PARALLEL_THRESHOLD) schedule(static)
    for (int64_t block = 0; block < blocks; block++) {
        vec low, high;
        dropout_factors(&rng, (uint32_t)block, &low, &high);
        int64_t at = block * DROPOUT_BLOCK;
        int n = lanes_left(at, count), m = lanes_left(at + LANES, count);
        store_n(out + at, load_n(x + at, n) * low, n);
        store_n(out + at + LANES, load_n(x + at + LANES, m) * high, m);
    }
    return SUCCESS;
}

/* total = x + dropout(sublayer + bias), written over the sublayer; normal = (total - mean) / deviation * weight +
 * norm_bias. Without a sublayer (NULL) the total is x. `mean` and `inverse` (1 / deviation) are for the backward
 * pass. */
EXPORT int saccade_residual_norm(int threads, int64_t rows, int64_t width, const float *x, float *sublayer,
                                 const float *bias, int32_t threshold, uint64_t seed, const float *weight,
                                 const float *norm_bias, float epsilon, float *normal, float *mean, float *inverse)
{
    dropout_rng rng = dropout_rng_of(seed, threshold);
    int64_t blocks = (width + DROPOUT_BLOCK - 1) / DROPOUT_BLOCK;
#pragma omp parallel for num_threads(threads) if (rows * width >= PARALLEL_THRESHOLD) schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        const float *a = x + row * width, *total = sublayer ? sublayer + row * width : a;
        for (int64_t block = 0; sublayer && block < blocks; block++) {
            vec factor[2] = {broadcast(1.0f), broadcast(1.0f)};
            if (threshold) dropout_factors(&rng, (uint32_t)(row * blocks + block), factor, factor + 1);
            for (int half = 0; half < 2; half++) {
                int64_t at = block * DROPOUT_BLOCK + half * LANES;
                int n = lanes_left(at, width);
                if (!n) continue;
                float *to = sublayer + row * width + at;
                vec added = (load_n(to, n) + load_n(bias + at, n)) * factor[half];
                store_n(to, load_n(a + at, n) + added, n);
            }
        }
        mean_and_inverse_std(width, total, epsilon, mean + row, inverse + row);
        layer_norm_row(width, total, mean[row], inverse[row], weight, norm_bias, normal + row * width);
    }
    return SUCCESS;
}

/* Room for sums over rows: `width` zeros per thread, and for their total; false if there is no memory. */
static int allocate_sums(int threads, int64_t width, float **parts, float **sums)
{
    *parts = zeroed_floats(threads * width);
    *sums = zeroed_floats(width);
    if (*parts && *sums) return 1;
    free(*parts);
    free(*sums);
    return 0;
}

/* The backward pass of residual_norm. total_grad may be NULL; without a sublayer, sublayer_grad and bias_grad are.
 * The gradients of bias, weight and norm_bias are sums over the rows. */
EXPORT int saccade_residual_norm_backward(int threads, int64_t rows, int64_t width, const float *total,
                                          const float *weight, const float *mean, const float *inverse,
                                          const float *total_grad, const float *normal_grad, int32_t threshold,
                                          uint64_t seed, float *x_grad, float *sublayer_grad, float *bias_grad,
                                          float *weight_grad, float *norm_bias_grad)
{
    dropout_rng rng = dropout_rng_of(seed, threshold);
    int64_t blocks = (width + DROPOUT_BLOCK - 1) / DROPOUT_BLOCK, padded = blocks * DROPOUT_BLOCK;
    float *parts, *sums;
    if (!allocate_sums(threads, 3 * padded, &parts, &sums)) return OUT_OF_MEMORY;
    int used = 1;
#pragma omp parallel num_threads(threads) if (rows * width >= PARALLEL_THRESHOLD)
    {
        int64_t first, last;
        thread_range(rows, &first, &last);
        float *weight_sums = parts + thread_number() * 3 * padded, *norm_bias_sums = weight_sums + padded;
        float *bias_sums = norm_bias_sums + padded;
        if (thread_number() == 0) used = thread_count();
        for (int64_t row = first; row < last; row++) {
            const float *a = total + row * width, *gradients = normal_grad + row * width;
            float center = mean[row], scale = inverse[row];
            vec sum = {0}, product = {0};
            for (int64_t at = 0; at < width; at += LANES) {
                int n = lanes_left(at, width);
                vec normal = (load_n(a + at, n) - center) * scale;
                vec gradient = load_n(gradients + at, n); /* 0 beyond the row */
                store(weight_sums + at, load(weight_sums + at) + gradient * normal);
                store(norm_bias_sums + at, load(norm_bias_sums + at) + gradient);
                gradient *= load_n(weight + at, n);
                sum += gradient;
                product += gradient * normal;
            }
            float sum_part = reduce_sum(sum) / (float)width, product_part = reduce_sum(product) / (float)width;
            for (int64_t block = 0; block < blocks; block++) {
                vec factor[2] = {broadcast(1.0f), broadcast(1.0f)};
                if (threshold) dropout_factors(&rng, (uint32_t)(row * blocks + block), factor, factor + 1);
                for (int half = 0; half < 2; half++) {
                    int64_t at = block * DROPOUT_BLOCK + half * LANES, index = row * width + at;
                    int n = lanes_left(at, width);
                    if (!n) continue;
                    vec normal = (load_n(a + at, n) - center) * scale;
                    vec gradient = load_n(gradients + at, n) * load_n(weight + at, n);
                    gradient = (gradient - sum_part - normal * product_part) * scale;
                    if (total_grad) gradient += load_n(total_grad + index, n);
                    store_n(x_grad + index, gradient, n);
                    if (!sublayer_grad) continue;
                    gradient *= factor[half];
                    store_n(sublayer_grad + index, gradient, n);
                    store(bias_sums + at, load(bias_sums + at) + gradient);
                }
            }
        }
    }
    sum_over_threads(used, 3 * padded, parts, sums);
    memcpy(weight_grad, sums, 4 * (size_t)width);
    memcpy(norm_bias_grad, sums + padded, 4 * (size_t)width);
    if (bias_grad) memcpy(bias_grad, sums + 2 * padded, 4 * (size_t)width);
    free(sums);
    free(parts);
    return SUCCESS;
}

/* x = max(0, x + bias), in place. */
EXPORT int saccade_bias_relu(int threads, int64_t rows, int64_t width, float *x, const float *bias)
{
#pragma omp parallel for num_threads(threads) if (rows * width >= PARALLEL_THRESHOLD) schedule(static)
    for (int64_t row = 0; row < rows; row++) bias_relu_row(width, x + row * width, bias);
    return SUCCESS;
}

/* The backward pass of bias_relu; `out` is its output. */
EXPORT int saccade_bias_relu_backward(int threads, int64_t rows, int64_t width, const float *out,
                                      const float *out_grad, float *x_grad, float *bias_grad)
{
    int64_t padded = (width + LANES - 1) / LANES * LANES;
    float *parts, *sums;
    if (!allocate_sums(threads, padded, &parts, &sums)) return OUT_OF_MEMORY;
    int used = 1;
#pragma omp parallel num_threads(threads) if (rows * width >= PARALLEL_THRESHOLD)
    {
        int64_t first, last;
        thread_range(rows, &first, &last);
        float *own = parts + thread_number() * padded;
        if (thread_number() == 0) used = thread_count();
        for (int64_t row = first; row < last; row++) {
            const float *a = out + row * width, *from = out_grad + row * width;
            float *to = x_grad + row * width;
            for (int64_t at = 0; at < width; at += LANES) {
                int n = lanes_left(at, width);
                vec value = blend(load_n(a + at, n) > 0.0f, load_n(from + at, n), broadcast(0.0f));
                store_n(to + at, value, n);
                store(own + at, load(own + at) + value);
            }
        }
    }
    sum_over_threads(used, padded, parts, sums);
    if (width) memcpy(bias_grad, sums, 4 * (size_t)width); /* an empty tensor has a null pointer */
    free(sums);
    free(parts);
    return SUCCESS;
}
