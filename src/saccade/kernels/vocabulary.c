/* Rows of logits: cross-entropy, and the most probable tokens. */

#include "vocabulary.h"

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

void largest(int threads, int64_t rows, int64_t width, float *logits, int64_t nevers, const int64_t *never,
             int64_t count, float *values, int64_t *places)
{
    int64_t chunks = (width + CHUNK - 1) / CHUNK;
#pragma omp parallel num_threads(threads) if (rows * width >= ALONE_BELOW)
    {
        int64_t first, last;
        own_part(rows, &first, &last);
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
}

EXPORT void saccade_largest(int threads, int64_t rows, int64_t width, float *logits, int64_t nevers,
                            const int64_t *never, int64_t count, float *values, int64_t *places)
{
    largest(threads, rows, width, logits, nevers, never, count, values, places);
}

/* The same, but of row n only the columns columns[starts[lists[n]]] to columns[starts[lists[n] + 1]] count, which rise and
 * begin with those of the symbols, so that `never` names their places in the list too. Logits stay as they are. */
EXPORT void saccade_largest_within(int threads, int64_t rows, int64_t width, const float *logits, const int64_t *lists,
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
