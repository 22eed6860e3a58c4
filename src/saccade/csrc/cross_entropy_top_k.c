/* Rows of logits: cross-entropy, and the most probable tokens. */

#include "top_k.h"

/* Of each row of logits: -log p(target), and the mean of -log p over the vocabulary. If `slope` is set, the logits
 * become the gradient of (1 - smoothing) * the one + smoothing * the other. */
EXPORT void saccade_cross_entropy(int threads, int64_t rows, int64_t width, float *logits, const int64_t *targets,
                                  float smoothing, int slope, float *of_target, float *of_all)
{
    int64_t whole = width / LANES * LANES;
#pragma omp parallel for num_threads(threads) if (rows * width >= ALONE_BELOW) schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        float *a = logits + row * width;
        lanes top[2] = {all(-INFINITY), all(-INFINITY)}, sum[2] = {{0}, {0}};
        int64_t at = 0;
        for (; at + 2 * LANES <= whole; at += 2 * LANES)
            for (int i = 0; i < 2; i++) {
                lanes value = load(a + at + i * LANES);
                top[i] = larger(value, top[i]);
                sum[i] += value;
            }
        float largest = largest_of(larger(top[0], top[1]));
        float total = sum_of(sum[0] + sum[1]);
        for (int64_t i = at; i < width; i++) {
            largest = a[i] > largest ? a[i] : largest;
            total += a[i];
        }
        float target = a[targets[row]];
        lanes powers[2] = {{0}, {0}};
        for (at = 0; at + 2 * LANES <= whole; at += 2 * LANES)
            for (int i = 0; i < 2; i++) {
                lanes value = exponential(load(a + at + i * LANES) - largest);
                powers[i] += value;
                if (slope) store(a + at + i * LANES, value);
            }
        float power = sum_of(powers[0] + powers[1]);
        for (; at < width; at += LANES) {
            int some = within(at, width);
            float values[LANES] = {0};
            store_some(values, exponential(load_some(a + at, some) - largest), some);
            power += sum_of(load(values));
            if (slope) memcpy(a + at, values, 4 * (size_t)some);
        }
        float rest = logf(power); /* log of the sum of e^logit, less the largest */
        of_target[row] = largest - target + rest;
        of_all[row] = largest - total / (float)width + rest;
        if (!slope) continue;
        float one_over = 1.0f / power, spread = smoothing / (float)width;
        for (at = 0; at < whole; at += LANES) store(a + at, load(a + at) * one_over - spread);
        for (; at < width; at++) a[at] = a[at] * one_over - spread;
        a[targets[row]] -= 1.0f - smoothing;
    }
}

/* The same of pairs of rows, i and rows + i, two answers to one question with one target; and how far apart they are,
 * (KL(p, q) + KL(q, p)) / 2. The gradient is that of both losses and `weight` times the divergence:
 *     d KL(p, q) / d logits of p = p * (log p - log q - KL(p, q)),   d KL(q, p) / d logits of p = p - q. */
EXPORT void saccade_paired_cross_entropy(int threads, int64_t rows, int64_t width, float *logits,
                                         const int64_t *targets, float smoothing, float weight, int slope,
                                         float *of_target, float *of_all, float *divergence)
{
#pragma omp parallel num_threads(threads) if (rows * width >= ALONE_BELOW)
    {
        int64_t first, last;
        own_part(rows, &first, &last);
        float *apart = zeros((size_t)rounded(width, LANES));
        for (int64_t row = first; row < last; row++) {
            float *a[2] = {logits + row * width, logits + (rows + row) * width};
            float largest[2], total[2], power[2], crossed[2], target[2], rest[2];
            for (int i = 0; i < 2; i++) {
                lanes top = all(-INFINITY), sum = {0};
                for (int64_t at = 0; at < width; at += LANES) {
                    int some = within(at, width);
                    lanes value = load_within(a[i] + at, some);
                    sum += value;
                    if (some == LANES) top = larger(value, top);
                }
                largest[i] = largest_of(top);
                for (int64_t at = width / LANES * LANES; at < width; at++)
                    largest[i] = a[i][at] > largest[i] ? a[i][at] : largest[i];
                total[i] = sum_of(sum);
                target[i] = a[i][targets[row]];
            }
            lanes powers[2] = {{0}, {0}}, products[2] = {{0}, {0}};
            for (int64_t at = 0; at < width; at += LANES) {
                int some = within(at, width);
                lanes one = load_within(a[0] + at, some), other = load_within(a[1] + at, some), away = one - other;
                lanes values[2] = {exponential(one - largest[0]), exponential(other - largest[1])};
                for (int i = 0; i < 2; i++) {
                    if (some < LANES) { /* nothing beyond the row */
                        float kept[LANES] = {0};
                        store_some(kept, values[i], some);
                        values[i] = load(kept);
                    }
                    powers[i] += values[i];
                    products[i] += values[i] * away;
                    if (slope) store_within(a[i] + at, values[i], some);
                }
                store(apart + at, away);
            }
            for (int i = 0; i < 2; i++) {
                power[i] = sum_of(powers[i]);
                crossed[i] = sum_of(products[i]) / power[i]; /* the mean difference of the logits */
                rest[i] = logf(power[i]);
                of_target[i * rows + row] = largest[i] - target[i] + rest[i];
                of_all[i * rows + row] = largest[i] - total[i] / (float)width + rest[i];
            }
            float shift = largest[1] + rest[1] - largest[0] - rest[0]; /* log p - log q = difference + shift */
            float there = crossed[0] + shift, back = -crossed[1] - shift;
            divergence[row] = 0.5f * (there + back);
            if (!slope) continue;
            float one_over[2] = {1.0f / power[0], 1.0f / power[1]}, spread = smoothing / (float)width;
            float half = 0.5f * weight;
            for (int64_t at = 0; at < width; at += LANES) {
                int some = within(at, width);
                lanes p = load_within(a[0] + at, some) * one_over[0], q = load_within(a[1] + at, some) * one_over[1];
                lanes away = load(apart + at) + shift;
                store_within(a[0] + at, p - spread + half * (p * (away - there) + (p - q)), some);
                store_within(a[1] + at, q - spread + half * (q * (-away - back) + (q - p)), some);
            }
            for (int i = 0; i < 2; i++) a[i][targets[row]] -= 1.0f - smoothing;
        }
        free(apart);
    }
}

#define CHUNK (16 * LANES) /* entries whose maximum is remembered */

INLINE float largest_in(const float *from, int64_t count)
{
    lanes top = all(-INFINITY);
    int64_t at = 0;
    for (; at + LANES <= count; at += LANES) top = larger(load(from + at), top);
    float largest = largest_of(top);
    for (; at < count; at++) largest = from[at] > largest ? from[at] : largest;
    return largest;
}

/* The rows `first` to `last`. */
static void largest_of_rows(int64_t first, int64_t last, int64_t width, float *logits, int64_t nevers,
                            const int64_t *never, int64_t count, float *values, int64_t *places)
{
    int64_t chunks = (width + CHUNK - 1) / CHUNK;
    float *tops = zeros((size_t)chunks);
    for (int64_t row = first; row < last; row++) {
        float *a = logits + row * width;
        for (int64_t c = 0; c < chunks; c++)
            tops[c] = largest_in(a + c * CHUNK, width - c * CHUNK < CHUNK ? width - c * CHUNK : CHUNK);
        float top = largest_in(tops, chunks);
        lanes powers[2] = {{0}, {0}};
        int64_t at = 0;
        for (; at + 2 * LANES <= width; at += 2 * LANES)
            for (int i = 0; i < 2; i++) powers[i] += exponential(load(a + at + i * LANES) - top);
        float power = sum_of(powers[0] + powers[1]);
        for (; at < width; at += LANES) {
            int some = within(at, width);
            float rest[LANES] = {0};
            store_within(rest, exponential(load_within(a + at, some) - top), some);
            power += sum_of(load(rest));
        }
        float log_power = logf(power);
        for (int64_t i = 0; i < nevers; i++) {
            int64_t c = never[i] / CHUNK;
            a[never[i]] = -INFINITY;
            tops[c] = largest_in(a + c * CHUNK, width - c * CHUNK < CHUNK ? width - c * CHUNK : CHUNK);
        }
        for (int64_t i = 0; i < count; i++) {
            float value = largest_in(tops, chunks);
            int64_t c = 0;
            while (c + 1 < chunks && tops[c] != value) c++;
            int64_t place = c * CHUNK, end = place + CHUNK < width ? place + CHUNK : width;
            while (place + 1 < end && a[place] != value) place++;
            values[row * count + i] = value - top - log_power;
            places[row * count + i] = place;
            a[place] = -INFINITY;
            tops[c] = largest_in(a + c * CHUNK, end - c * CHUNK);
        }
    }
    free(tops);
}

void largest(int threads, int64_t rows, int64_t width, float *logits, int64_t nevers, const int64_t *never,
             int64_t count, float *values, int64_t *places)
{
    if (threads == 1 || rows == 1 || rows * width < ALONE_BELOW)
        largest_of_rows(0, rows, width, logits, nevers, never, count, values, places);
    else
#pragma omp parallel num_threads(threads)
    {
        int64_t first, last;
        own_part(rows, &first, &last);
        largest_of_rows(first, last, width, logits, nevers, never, count, values, places);
    }
}

EXPORT void saccade_top_k(int threads, int64_t rows, int64_t width, float *logits, int64_t nevers,
                            const int64_t *never, int64_t count, float *values, int64_t *places)
{
    largest(threads, rows, width, logits, nevers, never, count, values, places);
}

/* The same, but of row n only the columns columns[starts[lists[n]]] to columns[starts[lists[n] + 1]] count, which rise and
 * begin with those of the symbols, so that `never` names their places in the list too. Logits stay as they are. */
EXPORT void saccade_top_k_within(int threads, int64_t rows, int64_t width, const float *logits, const int64_t *lists,
                                   const int64_t *starts, const int64_t *columns, int64_t nevers, const int64_t *never,
                                   int64_t count, float *values, int64_t *places)
{
#pragma omp parallel num_threads(threads) if (rows * width >= ALONE_BELOW)
    {
        int64_t first, last;
        own_part(rows, &first, &last);
        float *own = zeros((size_t)width);
        for (int64_t row = first; row < last; row++) {
            const int64_t *some = columns + starts[lists[row]];
            int64_t length = starts[lists[row] + 1] - starts[lists[row]], found = count < length ? count : length;
            for (int64_t i = 0; i < length; i++) own[i] = logits[row * width + some[i]];
            largest(1, 1, length, own, nevers, never, found, values + row * count, places + row * count);
            for (int64_t i = 0; i < found; i++) places[row * count + i] = some[places[row * count + i]];
            for (int64_t i = found; i < count; i++) {
                values[row * count + i] = -INFINITY;
                places[row * count + i] = 0;
            }
        }
        free(own);
    }
}
