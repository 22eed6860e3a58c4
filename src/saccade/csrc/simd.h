/* SIMD vectors of floats, elementary functions of them, and the split of work over threads.
 *
 * All tensors are float32 and row-major; rows are contiguous unless a stride is given. Work is split statically by
 * rows, so that equal calls with an equal number of threads give equal bits. Sums over rows are computed by each
 * thread for its own rows, then added in the order of the threads. Products of few rows are split by their outputs;
 * no bit depends on the split.
 *
 * The kernels include no Python or torch headers: ops/kernel_library.py calls them through ctypes. All
 * sources are compiled once per level of the x86-64 instruction set. */

#ifndef SACCADE_SIMD_H
#define SACCADE_SIMD_H

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
#define LANE_INDICES {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
#elif defined(__AVX__)
#define LANES 8
#define LANE_INDICES {0, 1, 2, 3, 4, 5, 6, 7}
#else
#define LANES 4
#define LANE_INDICES {0, 1, 2, 3}
#endif
typedef float vec __attribute__((vector_size(4 * LANES)));
typedef float unaligned_vec __attribute__((vector_size(4 * LANES), aligned(4)));
typedef int32_t ivec __attribute__((vector_size(4 * LANES)));
typedef uint32_t uvec __attribute__((vector_size(4 * LANES)));

/* Loops over fewer numbers run on one thread, */
#define PARALLEL_THRESHOLD 16384
/* and so do matrix products of fewer multiplications. */
#define GEMM_PARALLEL_THRESHOLD (64 * PARALLEL_THRESHOLD)

/* Load and store of LANES floats at any address; one float in all lanes. */
INLINE vec load(const float *from) { return *(const unaligned_vec *)from; }
INLINE void store(float *to, vec values) { *(unaligned_vec *)to = values; }
INLINE vec broadcast(float value) { return value - (vec){0}; }
/* `yes` in the lanes whose mask is -1, `no` where it is 0. */
INLINE vec blend(ivec mask, vec yes, vec no)
{
    return (vec)(((ivec)yes & mask) | ((ivec)no & ~mask));
}
/* a where a > b, else b: b if one of them is NaN. */
INLINE vec vec_max(vec a, vec b)
{
#if defined(__AVX512F__)
    return (vec)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX__)
    return (vec)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return blend(a > b, a, b);
#endif
}
/* The larger integer of each lane. */
INLINE ivec vec_max_int(ivec a, ivec b)
{
#if defined(__AVX512F__)
    return (ivec)_mm512_max_epi32((__m512i)a, (__m512i)b);
#else
    return (a & (a > b)) | (b & ~(a > b));
#endif
}

/* The first `count` lanes, at most LANES; a load sets the others to 0. */
INLINE vec load_partial(const float *from, int count)
{
    float values[LANES] = {0};
    memcpy(values, from, 4 * (size_t)count);
    return load(values);
}
INLINE void store_partial(float *to, vec values, int count) { memcpy(to, &values, 4 * (size_t)count); }

/* Lane i gets the value of lane i ^ distance; the distance is a power of two. */
INLINE vec shuffle_xor(vec values, int distance)
{
    const ivec indices = LANE_INDICES;
    float from[LANES], to[LANES];
    (void)indices;
#if defined(__clang__)
    store(from, values);
    for (int i = 0; i < LANES; i++) to[i] = from[i ^ distance];
    return load(to);
#else
    (void)from;
    (void)to;
    return __builtin_shuffle(values, indices ^ distance);
#endif
}
/* Sum and maximum over the lanes. */
INLINE float reduce_sum(vec values)
{
    for (int distance = LANES / 2; distance; distance /= 2) values += shuffle_xor(values, distance);
    return values[0];
}
INLINE float reduce_max(vec values)
{
    for (int distance = LANES / 2; distance; distance /= 2) values = vec_max(values, shuffle_xor(values, distance));
    return values[0];
}

/* Pairwise sums of two vectors: lanes whose index has the bit `distance` hold those of b, the others those of a. */
INLINE vec pairwise_sums(vec a, vec b, int distance)
{
    const ivec indices = LANE_INDICES;
    ivec of_b = (indices & distance) != 0;
    return blend(of_b, b, a) + shuffle_xor(blend(of_b, a, b), distance);
}

/* The sums of four vectors, as four floats. */
INLINE void reduce_sum4(const vec *four, float *to)
{
    vec sums = pairwise_sums(pairwise_sums(four[0], four[1], 1), pairwise_sums(four[2], four[3], 1), 2);
    for (int distance = LANES / 2; distance > 2; distance /= 2) sums += shuffle_xor(sums, distance);
    store_partial(to, sums, 4);
}

/* e^x, to about one unit in the last place; 0 below -87.3. NaN stays NaN. */
INLINE vec vec_exp(vec x)
{
    const float shift = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    ivec tiny = x < -87.3f;
    vec capped = blend(x > 88.0f, broadcast(88.0f), blend(tiny, broadcast(-87.3f), x));
    vec shifted = capped * 1.44269504f + shift;
    vec n = shifted - shift;
    vec r = capped - n * 0.693359375f + n * 2.12194440e-4f;
    vec p = broadcast(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    ivec exponent = ((ivec)shifted - (ivec)broadcast(shift)) << 23;
    return (vec)(((ivec)p + exponent) & ~tiny);
}

/* 1 / (1 + e^-x). */
INLINE vec vec_sigmoid(vec x) { return 1.0f / (1.0f + vec_exp(-x)); }

/* tanh x, to a few units in the last place: a polynomial near 0, where the quotient would cancel. */
INLINE vec vec_tanh(vec x)
{
    ivec sign = (ivec)x & INT32_MIN;
    vec size = (vec)((ivec)x ^ sign), square = x * x;
    vec far = 1.0f - 2.0f / (vec_exp(size + size) + 1.0f);
    vec p = broadcast(-5.70498872745e-3f);
    p = p * square + 2.06390887954e-2f;
    p = p * square - 5.37397155531e-2f;
    p = p * square + 1.33314422036e-1f;
    p = p * square - 3.33332819422e-1f;
    return blend(size < 0.625f, x + x * square * p, (vec)((ivec)far | sign));
}

/* The number of lanes that are used at `position` of `count` entries: at most LANES, at least 0. */
INLINE int lanes_left(int64_t position, int64_t count)
{
    int64_t left = count - position;
    return left >= LANES ? LANES : left > 0 ? (int)left : 0;
}

/* The first n lanes, at most LANES: faster than load_partial if n is LANES. */
INLINE vec load_n(const float *from, int n) { return n == LANES ? load(from) : load_partial(from, n); }
INLINE void store_n(float *to, vec values, int n)
{
    if (n == LANES)
        store(to, values);
    else
        store_partial(to, values, n);
}

/* The next multiple, or the count itself; both are small enough not to overflow. */
INLINE int64_t round_up(int64_t count, int64_t multiple) { return (count + multiple - 1) / multiple * multiple; }

/* (rows, columns) to (columns, out_stride), in tiles of LANES by LANES: the off-diagonal halves of a tile are
 * exchanged, then those of its quarters, and so on. Rows up to the next multiple of LANES are read. */
INLINE void transpose(int64_t rows, int64_t columns, const float *from, float *to, int64_t out_stride)
{
    const ivec lane = LANE_INDICES;
    for (int64_t row = 0; row < rows; row += LANES)
        for (int64_t column = 0; column < columns; column += LANES) {
            vec tile[LANES];
            for (int i = 0; i < LANES; i++) tile[i] = load(from + (row + i) * columns + column);
#pragma GCC unroll 4
            for (int distance = LANES / 2; distance; distance /= 2)
#pragma GCC unroll 16
                for (int i = 0; i < LANES; i++)
                    if (!(i & distance)) {
                        vec upper = tile[i], lower = tile[i | distance];
                        ivec kept = (lane & distance) == 0;
                        tile[i] = blend(kept, upper, shuffle_xor(lower, distance));
                        tile[i | distance] = blend(kept, shuffle_xor(upper, distance), lower);
                    }
            for (int i = 0; i < LANES; i++) store(to + (column + i) * out_stride + row, tile[i]);
        }
}

/* Mean of a row, and 1 / its standard deviation. */
INLINE void mean_and_inverse_std(int64_t width, const float *row, float epsilon, float *mean, float *inverse)
{
    vec sum = {0}, squares = {0};
    for (int64_t at = 0; at < width; at += LANES) sum += load_n(row + at, lanes_left(at, width));
    float center = reduce_sum(sum) / (float)width;
    int64_t at = 0;
    for (; at + LANES <= width; at += LANES) {
        vec centered = load(row + at) - center;
        squares += centered * centered;
    }
    if (at < width) {
        float centered[LANES] = {0};
        store_partial(centered, load_partial(row + at, lanes_left(at, width)) - center, lanes_left(at, width));
        squares += load(centered) * load(centered);
    }
    *mean = center;
    *inverse = 1.0f / sqrtf(reduce_sum(squares) / (float)width + epsilon);
}

/* (row - mean) / deviation * weight + bias */
INLINE void layer_norm_row(int64_t width, const float *row, float mean, float inverse, const float *weight,
                           const float *bias, float *to)
{
    for (int64_t at = 0; at < width; at += LANES) {
        int n = lanes_left(at, width);
        vec value = (load_n(row + at, n) - mean) * inverse;
        store_n(to + at, value * load_n(weight + at, n) + load_n(bias + at, n), n);
    }
}

/* max(0, row + bias), in place; NaN stays NaN. */
INLINE void bias_relu_row(int64_t width, float *row, const float *bias)
{
    for (int64_t at = 0; at < width; at += LANES) {
        int n = lanes_left(at, width);
        vec value = load_n(row + at, n) + load_n(bias + at, n);
        store_n(row + at, blend(value < 0.0f, broadcast(0.0f), value), n);
    }
}

/* Scores to weights that sum to 1, in place; the buffer has a multiple of LANES entries. */
INLINE void softmax(float *scores, int64_t count)
{
    int64_t padded = round_up(count, LANES);
    for (int64_t i = count; i < padded; i++) scores[i] = -INFINITY;
    vec top = broadcast(-INFINITY), powers = {0};
    for (int64_t at = 0; at < padded; at += LANES) top = vec_max(load(scores + at), top);
    float largest = reduce_max(top);
    for (int64_t at = 0; at < padded; at += LANES) {
        vec power = vec_exp(load(scores + at) - largest);
        powers += power;
        store(scores + at, power);
    }
    float inverse = 1.0f / reduce_sum(powers);
    for (int64_t at = 0; at < padded; at += LANES) store(scores + at, load(scores + at) * inverse);
}

/* The number of this thread in its team, and the size of the team; 0 and 1 without OpenMP. */
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
INLINE void thread_range(int64_t count, int64_t *first, int64_t *last)
{
    int64_t threads = thread_count(), number = thread_number();
    *first = count * number / threads;
    *last = count * (number + 1) / threads;
}

/* total[i] = the sum of parts[t][i] over the threads t, in their order */
INLINE void sum_over_threads(int threads, int64_t count, const float *parts, float *total)
{
    memcpy(total, parts, 4 * (size_t)count);
    for (int t = 1; t < threads; t++)
        for (int64_t i = 0; i < count; i++) total[i] += parts[t * count + i];
}

#endif
