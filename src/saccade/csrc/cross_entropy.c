/* Cross-entropy of rows of logits, and its gradient. */

#include "allocation.h"
#include "simd.h"
#include "status.h"

static int check_targets(int64_t rows, const int64_t *targets, int64_t vocabulary)
{
    int64_t outside = 0;
    for (int64_t row = 0; row < rows; row++) outside |= targets[row] < 0 || targets[row] >= vocabulary;
    return outside ? INDEX_OUT_OF_RANGE : SUCCESS;
}

/* Per row: -log p(target), and the mean of -log p over the vocabulary. With `needs_grad` the logits become the
 * gradient of (1 - smoothing) * target_loss + smoothing * mean_loss. */
EXPORT int saccade_cross_entropy(int threads, int64_t rows, int64_t vocabulary, float *logits, const int64_t *targets,
                                 float smoothing, int needs_grad, float *target_loss, float *mean_loss)
{
    int status = check_targets(rows, targets, vocabulary);
    if (status != SUCCESS) return status;
    int64_t full = vocabulary / LANES * LANES;
#pragma omp parallel for num_threads(threads) if (rows * vocabulary >= PARALLEL_THRESHOLD) schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        float *a = logits + row * vocabulary;
        vec top[2] = {broadcast(-INFINITY), broadcast(-INFINITY)}, sum[2] = {{0}, {0}};
        int64_t at = 0;
        for (; at + 2 * LANES <= full; at += 2 * LANES)
            for (int i = 0; i < 2; i++) {
                vec value = load(a + at + i * LANES);
                top[i] = vec_max(value, top[i]);
                sum[i] += value;
            }
        float largest = reduce_max(vec_max(top[0], top[1]));
        float total = reduce_sum(sum[0] + sum[1]);
        for (int64_t i = at; i < vocabulary; i++) {
            largest = a[i] > largest ? a[i] : largest;
            total += a[i];
        }
        float target = a[targets[row]];
        vec powers[2] = {{0}, {0}};
        for (at = 0; at + 2 * LANES <= full; at += 2 * LANES)
            for (int i = 0; i < 2; i++) {
                vec value = vec_exp(load(a + at + i * LANES) - largest);
                powers[i] += value;
                if (needs_grad) store(a + at + i * LANES, value);
            }
        float power = reduce_sum(powers[0] + powers[1]);
        for (; at < vocabulary; at += LANES) {
            int n = lanes_left(at, vocabulary);
            float values[LANES] = {0};
            store_partial(values, vec_exp(load_partial(a + at, n) - largest), n);
            power += reduce_sum(load(values));
            if (needs_grad) memcpy(a + at, values, 4 * (size_t)n);
        }
        float rest = logf(power); /* log-sum-exp of the logits, minus the largest */
        target_loss[row] = largest - target + rest;
        mean_loss[row] = largest - total / (float)vocabulary + rest;
        if (!needs_grad) continue;
        float inverse = 1.0f / power, spread = smoothing / (float)vocabulary;
        for (at = 0; at < full; at += LANES) store(a + at, load(a + at) * inverse - spread);
        for (; at < vocabulary; at++) a[at] = a[at] * inverse - spread;
        a[targets[row]] -= 1.0f - smoothing;
    }
    return SUCCESS;
}

/* The cross-entropy of pairs of rows, i and pairs + i, two predictions p and q, and their divergence
 * (KL(p, q) + KL(q, p)) / 2. The gradient is that of both losses and of `weight` times the divergence:
 *     d KL(p, q) / d logits of p = p * (log p - log q - KL(p, q)),   d KL(q, p) / d logits of p = p - q. */
EXPORT int saccade_paired_cross_entropy(int threads, int64_t pairs, int64_t vocabulary, float *logits,
                                        const int64_t *targets, float smoothing, float weight, int needs_grad,
                                        float *target_loss, float *mean_loss, float *divergence)
{
    int status = check_targets(2 * pairs, targets, vocabulary);
    if (status != SUCCESS) return status;
#pragma omp parallel num_threads(threads) if (pairs * vocabulary >= PARALLEL_THRESHOLD)
    {
        int64_t first, last;
        thread_range(pairs, &first, &last);
        float *differences = zeroed_floats(round_up(vocabulary, LANES));
        if (!differences) {
            record(&status, OUT_OF_MEMORY);
            last = first;
        }
        for (int64_t row = first; row < last; row++) {
            float *a[2] = {logits + row * vocabulary, logits + (pairs + row) * vocabulary};
            float largest[2], total[2], power[2], mean_difference[2], target[2], rest[2];
            for (int i = 0; i < 2; i++) {
                vec top = broadcast(-INFINITY), sum = {0};
                for (int64_t at = 0; at < vocabulary; at += LANES) {
                    int n = lanes_left(at, vocabulary);
                    vec value = load_n(a[i] + at, n);
                    sum += value;
                    if (n == LANES) top = vec_max(value, top);
                }
                largest[i] = reduce_max(top);
                for (int64_t at = vocabulary / LANES * LANES; at < vocabulary; at++)
                    largest[i] = a[i][at] > largest[i] ? a[i][at] : largest[i];
                total[i] = reduce_sum(sum);
                target[i] = a[i][targets[i * pairs + row]];
            }
            vec powers[2] = {{0}, {0}}, products[2] = {{0}, {0}};
            for (int64_t at = 0; at < vocabulary; at += LANES) {
                int n = lanes_left(at, vocabulary);
                vec one = load_n(a[0] + at, n), other = load_n(a[1] + at, n), difference = one - other;
                vec values[2] = {vec_exp(one - largest[0]), vec_exp(other - largest[1])};
                for (int i = 0; i < 2; i++) {
                    if (n < LANES) { /* 0 beyond the row */
                        float kept[LANES] = {0};
                        store_partial(kept, values[i], n);
                        values[i] = load(kept);
                    }
                    powers[i] += values[i];
                    products[i] += values[i] * difference;
                    if (needs_grad) store_n(a[i] + at, values[i], n);
                }
                store(differences + at, difference);
            }
            for (int i = 0; i < 2; i++) {
                power[i] = reduce_sum(powers[i]);
                mean_difference[i] = reduce_sum(products[i]) / power[i];
                rest[i] = logf(power[i]);
                target_loss[i * pairs + row] = largest[i] - target[i] + rest[i];
                mean_loss[i * pairs + row] = largest[i] - total[i] / (float)vocabulary + rest[i];
            }
            float shift = largest[1] + rest[1] - largest[0] - rest[0]; /* log p - log q = difference + shift */
            float kl_pq = mean_difference[0] + shift, kl_qp = -mean_difference[1] - shift;
            divergence[row] = 0.5f * (kl_pq + kl_qp);
            if (!needs_grad) continue;
            float inverse[2] = {1.0f / power[0], 1.0f / power[1]}, spread = smoothing / (float)vocabulary;
            float half = 0.5f * weight;
            for (int64_t at = 0; at < vocabulary; at += LANES) {
                int n = lanes_left(at, vocabulary);
                vec p = load_n(a[0] + at, n) * inverse[0], q = load_n(a[1] + at, n) * inverse[1];
                vec difference = load(differences + at) + shift;
                store_n(a[0] + at, p - spread + half * (p * (difference - kl_pq) + (p - q)), n);
                store_n(a[1] + at, q - spread + half * (q * (-difference - kl_qp) + (q - p)), n);
            }
            for (int i = 0; i < 2; i++) a[i][targets[i * pairs + row]] -= 1.0f - smoothing;
        }
        free(differences);
    }
    return status;
}
