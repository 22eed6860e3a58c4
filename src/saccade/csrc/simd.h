/* What all kernels share: vectors of floats, e^x, threads.
 *
 * All tensors are float32, row-major; a row has `width` numbers and rows follow each other without a gap, unless a
 * stride is given. Work is shared by rows, always in the same way, so that equal calls with an equal number of threads
 * give equal bits. Sums over rows are made by each thread for its own rows, then over the threads in their order. Products
 * of few rows are shared by their outputs; no bit of them depends on who makes which.
 *
 * Nothing here knows of Python or torch: `__init__.py` makes the calls. All is compiled once for each level of the
 * processor's instructions.
 */

#ifndef SACCADE_LANES_H
#define SACCADE_LANES_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__AVX__)
#include <immintrin.h>
#endif
#ifdef _OPENMP
#include <omp.h>
#endif

#define EXPORT __attribute__((visibility("default")))
#define INLINE static inline __attribute__((always_inline))

#if defined(__AVX512F__)
#define LANES 16
#define COUNTING {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
#elif defined(__AVX__)
#define LANES 8
#define COUNTING {0, 1, 2, 3, 4, 5, 6, 7}
#else
#define LANES 4
#define COUNTING {0, 1, 2, 3}
#endif
typedef float lanes __attribute__((vector_size(4 * LANES)));
typedef float loose_lanes __attribute__((vector_size(4 * LANES), aligned(4)));
typedef int32_t int_lanes __attribute__((vector_size(4 * LANES)));
typedef uint32_t word_lanes __attribute__((vector_size(4 * LANES)));

/* Not worth waking a second thread for fewer numbers. */
#define ALONE_BELOW 16384
/* Nor for a product of fewer multiplications. */
#define PRODUCT_ALONE_BELOW (64 * ALONE_BELOW)

INLINE lanes load(const float *from) { return *(const loose_lanes *)from; }
INLINE void store(float *to, lanes values) { *(loose_lanes *)to = values; }
INLINE lanes all(float value) { return value - (lanes){0}; }
INLINE lanes chosen(int_lanes mask, lanes yes, lanes no)
{
    return (lanes)(((int_lanes)yes & mask) | ((int_lanes)no & ~mask));
}
/* a where a > b, else b: also where one of them is no number. */
INLINE lanes larger(lanes a, lanes b)
{
#if defined(__AVX512F__)
    return (lanes)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX__)
    return (lanes)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return chosen(a > b, a, b);
#endif
}
INLINE int_lanes larger_whole(int_lanes a, int_lanes b)
{
#if defined(__AVX512F__)
    return (int_lanes)_mm512_max_epi32((__m512i)a, (__m512i)b);
#else
    return (a & (a > b)) | (b & ~(a > b));
#endif
}

INLINE lanes load_some(const float *from, int count)
{
    float values[LANES] = {0};
    memcpy(values, from, 4 * (size_t)count);
    return load(values);
}
INLINE void store_some(float *to, lanes values, int count) { memcpy(to, &values, 4 * (size_t)count); }

/* The lanes in another order: lane i takes what stands `apart` from it, `apart` a power of two. */
INLINE lanes exchanged(lanes values, int apart)
{
    const int_lanes counting = COUNTING;
    float from[LANES], to[LANES];
    (void)counting;
#if defined(__clang__)
    store(from, values);
    for (int i = 0; i < LANES; i++) to[i] = from[i ^ apart];
    return load(to);
#else
    (void)from;
    (void)to;
    return __builtin_shuffle(values, counting ^ apart);
#endif
}
INLINE float sum_of(lanes values)
{
    for (int apart = LANES / 2; apart; apart /= 2) values += exchanged(values, apart);
    return values[0];
}
INLINE float largest_of(lanes values)
{
    for (int apart = LANES / 2; apart; apart /= 2) values = larger(values, exchanged(values, apart));
    return values[0];
}

/* Half of the sums of two vectors: the lanes whose number has the bit `apart` hold those of b, the others those of a. */
INLINE lanes folded(lanes a, lanes b, int apart)
{
    const int_lanes counting = COUNTING;
    int_lanes of_b = (counting & apart) != 0;
    return chosen(of_b, b, a) + exchanged(chosen(of_b, a, b), apart);
}

/* The sums of four vectors, one after another. */
INLINE void sums_of(const lanes *four, float *to)
{
    lanes sums = folded(folded(four[0], four[1], 1), folded(four[2], four[3], 1), 2);
    for (int apart = LANES / 2; apart > 2; apart /= 2) sums += exchanged(sums, apart);
    store_some(to, sums, 4);
}

/* e^x, to about one unit in the last place; 0 below -87.3. What is no number stays none. */
INLINE lanes exponential(lanes x)
{
    const float shift = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    int_lanes tiny = x < -87.3f;
    lanes capped = chosen(x > 88.0f, all(88.0f), chosen(tiny, all(-87.3f), x));
    lanes shifted = capped * 1.44269504f + shift;
    lanes n = shifted - shift;
    lanes r = capped - n * 0.693359375f + n * 2.12194440e-4f;
    lanes p = all(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    int_lanes exponent = ((int_lanes)shifted - (int_lanes)all(shift)) << 23;
    return (lanes)(((int_lanes)p + exponent) & ~tiny);
}

INLINE lanes sigmoid(lanes x) { return 1.0f / (1.0f + exponential(-x)); }

/* tanh x, to a few units in the last place: a polynomial near 0, where the quotient would lose its digits. */
INLINE lanes tangent(lanes x)
{
    int_lanes sign = (int_lanes)x & INT32_MIN;
    lanes size = (lanes)((int_lanes)x ^ sign), square = x * x;
    lanes far = 1.0f - 2.0f / (exponential(size + size) + 1.0f);
    lanes p = all(-5.70498872745e-3f);
    p = p * square + 2.06390887954e-2f;
    p = p * square - 5.37397155531e-2f;
    p = p * square + 1.33314422036e-1f;
    p = p * square - 3.33332819422e-1f;
    return chosen(size < 0.625f, x + x * square * p, (lanes)((int_lanes)far | sign));
}

/* How many of `count` entries from `place` on the lanes hold: at most LANES, at least 0. */
INLINE int within(int64_t place, int64_t count)
{
    int64_t left = count - place;
    return left >= LANES ? LANES : left > 0 ? (int)left : 0;
}

INLINE lanes load_within(const float *from, int some) { return some == LANES ? load(from) : load_some(from, some); }
INLINE void store_within(float *to, lanes values, int some)
{
    if (some == LANES)
        store(to, values);
    else
        store_some(to, values, some);
}

INLINE int64_t rounded(int64_t count, int64_t to) { return (count + to - 1) / to * to; }

/* (rows, wide) to (wide, turned_rows), a square of LANES by LANES at a time: halves of it change places, then halves of
 * the halves, and so on. Rows beyond the last are read as they are. */
INLINE void turn(int64_t rows, int64_t wide, const float *from, float *to, int64_t turned_rows)
{
    const int_lanes lane = COUNTING;
    for (int64_t row = 0; row < rows; row += LANES)
        for (int64_t column = 0; column < wide; column += LANES) {
            lanes square[LANES];
            for (int i = 0; i < LANES; i++) square[i] = load(from + (row + i) * wide + column);
#pragma GCC unroll 4
            for (int apart = LANES / 2; apart; apart /= 2)
#pragma GCC unroll 16
                for (int i = 0; i < LANES; i++)
                    if (!(i & apart)) {
                        lanes upper = square[i], lower = square[i | apart];
                        int_lanes kept = (lane & apart) == 0;
                        square[i] = chosen(kept, upper, exchanged(lower, apart));
                        square[i | apart] = chosen(kept, exchanged(upper, apart), lower);
                    }
            for (int i = 0; i < LANES; i++) store(to + (column + i) * turned_rows + row, square[i]);
        }
}

/* Mean of a row, and one over its deviation. */
INLINE void moments(int64_t width, const float *row, float epsilon, float *mean, float *inverse)
{
    lanes sum = {0}, squares = {0};
    for (int64_t at = 0; at < width; at += LANES) sum += load_within(row + at, within(at, width));
    float middle = sum_of(sum) / (float)width;
    int64_t at = 0;
    for (; at + LANES <= width; at += LANES) {
        lanes apart = load(row + at) - middle;
        squares += apart * apart;
    }
    if (at < width) {
        float apart[LANES] = {0};
        store_some(apart, load_some(row + at, within(at, width)) - middle, within(at, width));
        squares += load(apart) * load(apart);
    }
    *mean = middle;
    *inverse = 1.0f / sqrtf(sum_of(squares) / (float)width + epsilon);
}

/* (row - mean) / deviation * scale + shift */
INLINE void normalise_row(int64_t width, const float *row, float mean, float inverse, const float *scale,
                          const float *shift, float *to)
{
    for (int64_t at = 0; at < width; at += LANES) {
        int some = within(at, width);
        lanes value = (load_within(row + at, some) - mean) * inverse;
        store_within(to + at, value * load_within(scale + at, some) + load_within(shift + at, some), some);
    }
}

/* max(0, row + bias), in place; what is no number stays none. */
INLINE void rectify_row(int64_t width, float *row, const float *bias)
{
    for (int64_t at = 0; at < width; at += LANES) {
        int some = within(at, width);
        lanes value = load_within(row + at, some) + load_within(bias + at, some);
        store_within(row + at, chosen(value < 0.0f, all(0.0f), value), some);
    }
}

/* Scores to weights that sum to 1, in place; there is room for whole lanes. */
INLINE void softmax(float *scores, int64_t count)
{
    int64_t padded = rounded(count, LANES);
    for (int64_t i = count; i < padded; i++) scores[i] = -INFINITY;
    lanes top = all(-INFINITY), powers = {0};
    for (int64_t at = 0; at < padded; at += LANES) top = larger(load(scores + at), top);
    float largest = largest_of(top);
    for (int64_t at = 0; at < padded; at += LANES) {
        lanes power = exponential(load(scores + at) - largest);
        powers += power;
        store(scores + at, power);
    }
    float one_over = 1.0f / sum_of(powers);
    for (int64_t at = 0; at < padded; at += LANES) store(scores + at, load(scores + at) * one_over);
}

/* ---- threads ----------------------------------------------------------------------------------------------------- */

INLINE int thread_number(void)
{
#ifdef _OPENMP
    return omp_get_thread_num();
#else
    return 0;
#endif
}
INLINE int thread_count(void)
{
#ifdef _OPENMP
    return omp_get_num_threads();
#else
    return 1;
#endif
}

/* The part of `count` items that belongs to this thread. */
INLINE void own_part(int64_t count, int64_t *first, int64_t *last)
{
    int64_t threads = thread_count(), number = thread_number();
    *first = count * number / threads;
    *last = count * (number + 1) / threads;
}

INLINE float *zeros(size_t count)
{
    size_t bytes = (4 * count + 63) / 64 * 64;
    float *place = aligned_alloc(64, bytes ? bytes : 64);
    if (!place) abort();
    memset(place, 0, bytes);
    return place;
}

/* total[i] = the sum of parts[t][i] over the threads t, in their order */
INLINE void add_parts(int threads, int64_t count, const float *parts, float *total)
{
    memcpy(total, parts, 4 * (size_t)count);
    for (int t = 1; t < threads; t++)
        for (int64_t i = 0; i < count; i++) total[i] += parts[t * count + i];
}

#endif
