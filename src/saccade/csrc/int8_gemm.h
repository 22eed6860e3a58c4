/* Weights in bytes, and products with them.
 *
 * Rows of a weight w = s q + e and of an input x = t p + f, where q and p are bytes, so that
 *
 *     w · x = s t (q · p) + s q · f + e · x
 *
 * and the first term, which is a product of bytes, is nearly all of it. */

#ifndef SACCADE_BYTES_H
#define SACCADE_BYTES_H

#include "int8_weight.h"

#if defined(__AVX512BW__) || defined(__AVX2__)
#define HAS_BYTES 1

#define DEPTH 4        /* entries of a row side by side in a lane: what one instruction multiplies and adds up */
#define MIDDLE 128     /* is added to the bytes of the weight, which have no sign then */

#if defined(__AVX512BW__)
#define SOME_ROWS 6 /* at once: with PANELS, as many sums as there are registers for */
#define PANELS 4
#define EACH_ROW(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5)
#define EACH_PANEL(DO, r) DO(r, 0) DO(r, 1) DO(r, 2) DO(r, 3)
typedef __m512i bytes;
#define EVERY(number) _mm512_set1_epi32(number)
#define FETCH(from) _mm512_loadu_si512(from)
#define PAIRS(unsigned_ones, signed_ones) _mm512_maddubs_epi16(unsigned_ones, signed_ones)
#define FOURS(pairs) _mm512_madd_epi16(pairs, _mm512_set1_epi16(1))
#define PLUS(a, b) _mm512_add_epi32(a, b)
#else
#define SOME_ROWS 4
#define PANELS 2
#define EACH_ROW(DO) DO(0) DO(1) DO(2) DO(3)
#define EACH_PANEL(DO, r) DO(r, 0) DO(r, 1)
typedef __m256i bytes;
#define EVERY(number) _mm256_set1_epi32(number)
#define FETCH(from) _mm256_loadu_si256((const __m256i *)(from))
#define PAIRS(unsigned_ones, signed_ones) _mm256_maddubs_epi16(unsigned_ones, signed_ones)
#define FOURS(pairs) _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))
#define PLUS(a, b) _mm256_add_epi32(a, b)
#endif

INLINE int64_t panels_of(int64_t outs) { return rounded((outs + LANES - 1) / LANES, PANELS); }
INLINE int64_t depth_of(int64_t ins) { return (ins + DEPTH - 1) / DEPTH; }

typedef uint8_t byte_lanes __attribute__((vector_size(LANES)));

/* A row in bytes, t p + f. */
typedef struct {
    float scale;       /* t */
    float norm, error; /* |t p|, |f|, if somebody asked for them */
    int32_t shift;     /* takes away what MIDDLE adds to every sum with it */
} byte_row;

/* The size of the largest entry. The numbers that stand for sizes rise with them, those of what is no number beyond all, so
 * that one such entry makes it none. */
INLINE float largest_size(int64_t width, const float *row)
{
    int_lanes most = {0};
    for (int64_t at = 0; at < width; at += LANES)
        most = larger_whole((int_lanes)load_within(row + at, within(at, width)) & INT32_MAX, most);
    for (int apart = LANES / 2; apart; apart /= 2) most = larger_whole(most, (int_lanes)exchanged((lanes)most, apart));
    return ((lanes)most)[0];
}

/* Some entries of a row to bytes; adds up the bytes, and the squares of what they stand for and of what they leave. */
INLINE void some_to_bytes(lanes own, int some, const int bounded, float inverse, float scale, uint8_t *made,
                          word_lanes *sum, lanes *kept, lanes *left)
{
    const float shift = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer, which is in the last bits then */
    lanes shifted = own * inverse + shift;
    word_lanes whole = (word_lanes)shifted - (word_lanes)all(shift);
    byte_lanes narrow = __builtin_convertvector(whole, byte_lanes);
    if (some == LANES)
        memcpy(made, &narrow, LANES);
    else
        memcpy(made, &narrow, (size_t)some);
    *sum += whole;
    if (!bounded) return;
    lanes value = shifted - shift, rest = own - value * scale;
    *kept += value * value;
    *left += rest * rest;
}

/* Bytes of a row with a scale so that the largest becomes `top`. A row that is as good as 0 becomes 0; one with what is no
 * number has no number for its scale and its error, and so has the error of one whose squares are too large. */
INLINE byte_row to_bytes(int64_t width, const float *row, float top, const int bounded, int8_t *made)
{
    float largest = largest_size(width, row), smallest = 1e-36f; /* one over which is a number */
    float scale = (largest > smallest ? largest : 0.0f) / top, inverse = largest > smallest ? top / largest : 0.0f;
    scale += largest - largest; /* 0, unless it is no number */
    word_lanes sum = {0};
    lanes kept = {0}, left = {0};
    int64_t at = 0;
    for (; at + LANES <= width; at += LANES)
        some_to_bytes(load(row + at), LANES, bounded, inverse, scale, (uint8_t *)made + at, &sum, &kept, &left);
    if (at < width)
        some_to_bytes(load_some(row + at, within(at, width)), within(at, width), bounded, inverse, scale,
                      (uint8_t *)made + at, &sum, &kept, &left);
    uint32_t total = 0;
    for (int lane = 0; lane < LANES; lane++) total += sum[lane];
    byte_row found = {.scale = scale, .shift = (int32_t)(0u - MIDDLE * total)};
    if (bounded) {
        found.norm = scale * sqrtf(sum_of(kept));
        found.error = sqrtf(sum_of(left));
    }
    return found;
}

INLINE int32_t four_of(const int8_t *from)
{
    int32_t four;
    memcpy(&four, from, DEPTH);
    return four;
}

/* The sums q · p of SOME_ROWS rows and of PANELS panels from the one at w on. Every sum has a name of its own: an array of
 * them would be in memory. */
#define BEGIN_SUM(r, p) bytes sum_##r##_##p = EVERY(rows[r].shift);
#define BEGIN_ROW(r) EACH_PANEL(BEGIN_SUM, r)
#define FETCH_PANEL(r, p) bytes own_##p = FETCH(w + (p * depth + at) * LANES * DEPTH);
#define ADD_TO_SUM(r, p) MULTIPLY_ADD(sum_##r##_##p, own_##p, same_##r);
#define ADD_TO_ROW(r) bytes same_##r = EVERY(four_of(x + (r * depth + at) * DEPTH)); EACH_PANEL(ADD_TO_SUM, r)
#define END_SUM(r, p) found[r][p] = __builtin_convertvector((int_lanes)sum_##r##_##p, lanes);
#define END_ROW(r) EACH_PANEL(END_SUM, r)
#define SUMS(name)                                                                                                      \
    static void name(int64_t depth, const uint8_t *w, const int8_t *x, const byte_row *rows,                            \
                     lanes found[SOME_ROWS][PANELS])                                                                    \
    {                                                                                                                  \
        EACH_ROW(BEGIN_ROW)                                                                                            \
        for (int64_t at = 0; at < depth; at++) {                                                                       \
            EACH_PANEL(FETCH_PANEL, 0)                                                                                 \
            EACH_ROW(ADD_TO_ROW)                                                                                       \
        }                                                                                                              \
        EACH_ROW(END_ROW)                                                                                              \
    }

#define MULTIPLY_ADD(sum, unsigned_ones, signed_ones) sum = PLUS(sum, FOURS(PAIRS(unsigned_ones, signed_ones)))
SUMS(sums_by_pairs)
#undef MULTIPLY_ADD

#if defined(__AVX512BW__)
/* Not the intrinsic, around which compilers move all sums to memory and back. */
#define MULTIPLY_ADD(sum, unsigned_ones, signed_ones) \
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(unsigned_ones), "v"(signed_ones))
SUMS(sums_by_fours)
#undef MULTIPLY_ADD
#define HAS_FOURS() __builtin_cpu_supports("avx512vnni")
#else
#define sums_by_fours sums_by_pairs
#define HAS_FOURS() 0
#endif

/* Some rows, filled up with empty ones to a multiple of SOME_ROWS. */
typedef struct {
    int64_t real, count; /* how many they are, and with the empty ones */
    int by_fours;
    byte_row *rows;
    int8_t *bytes; /* (count, depth, DEPTH) */
} byte_rows;

INLINE byte_rows room_for_rows(int64_t rows, int64_t depth)
{
    byte_rows own = {.real = rows, .count = rounded(rows, SOME_ROWS), .by_fours = HAS_FOURS()};
    own.rows = calloc((size_t)own.count + 1, sizeof(*own.rows));
    own.bytes = calloc((size_t)(own.count * depth * DEPTH) + 1, 1);
    if (!own.rows || !own.bytes) abort();
    return own;
}

/* The rows `first` to `last` of x (rows, ins). Without sums of four products at once, two of them must fit into 16 bits, and
 * so the bytes are smaller. */
INLINE void fill_rows(const byte_rows *own, const byte_table *s, int64_t first, int64_t last, const float *x,
                      const int bounded)
{
    int64_t depth = depth_of(s->ins);
    for (int64_t r = first; r < last; r++)
        own->rows[r] = to_bytes(s->ins, x + r * s->ins, own->by_fours ? 127.0f : 63.0f, bounded,
                                own->bytes + r * depth * DEPTH);
}

/* The part of so many panels, or rows with the empty ones, that belongs to this thread: whole groups. */
INLINE void own_groups(int64_t count, int64_t group, int64_t *first, int64_t *last)
{
    own_part(count / group, first, last);
    *first *= group;
    *last *= group;
}

INLINE void end_rows(byte_rows *own)
{
    free(own->rows);
    free(own->bytes);
}

/* The sums of SOME_ROWS rows from `row` on, with PANELS panels from `panel` on. */
INLINE void find_sums(const byte_table *s, const byte_rows *own, int64_t row, int64_t panel,
                      lanes found[SOME_ROWS][PANELS])
{
    int64_t depth = depth_of(s->ins);
    const uint8_t *w = s->packed + panel * depth * LANES * DEPTH;
    const int8_t *x = own->bytes + row * depth * DEPTH;
    if (own->by_fours)
        sums_by_fours(depth, w, x, own->rows + row, found);
    else
        sums_by_pairs(depth, w, x, own->rows + row, found);
}

#endif
#endif
