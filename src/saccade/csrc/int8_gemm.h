/* Quantization of rows to int8, and products of int8 rows.
 *
 * A row of a weight is w = s q + e, a row of an input x = t p + f, with q and p in int8, so that
 *
 *     w · x = s t (q · p) + s q · f + e · x
 *
 * and the first term, an int8 product, is nearly all of it. */

#ifndef SACCADE_INT8_GEMM_H
#define SACCADE_INT8_GEMM_H

#include "allocation.h"
#include "int8_weight.h"
#include "status.h"

#if defined(__AVX512BW__) || defined(__AVX2__)
#define HAS_INT8 1

#define DEPTH 4        /* adjacent entries of a row in a lane: what one instruction multiplies and adds up */
#define ZERO_POINT 128 /* is added to the int8 entries of the weight, which makes them unsigned */

#if defined(__AVX512BW__)
#define TILE_ROWS 6 /* rows at once: with PANELS, as many sums as there are registers */
#define PANELS 4
#define EACH_ROW(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5)
#define EACH_PANEL(DO, r) DO(r, 0) DO(r, 1) DO(r, 2) DO(r, 3)
typedef __m512i int8_vec;
#define BROADCAST_INT(number) _mm512_set1_epi32(number)
#define LOAD_INT8(from) _mm512_loadu_si512(from)
#define MULTIPLY_PAIRS(unsigned_ones, signed_ones) _mm512_maddubs_epi16(unsigned_ones, signed_ones)
#define ADD_PAIRS(pairs) _mm512_madd_epi16(pairs, _mm512_set1_epi16(1))
#define ADD_INT(a, b) _mm512_add_epi32(a, b)
#else
#define TILE_ROWS 4
#define PANELS 2
#define EACH_ROW(DO) DO(0) DO(1) DO(2) DO(3)
#define EACH_PANEL(DO, r) DO(r, 0) DO(r, 1)
typedef __m256i int8_vec;
#define BROADCAST_INT(number) _mm256_set1_epi32(number)
#define LOAD_INT8(from) _mm256_loadu_si256((const __m256i *)(from))
#define MULTIPLY_PAIRS(unsigned_ones, signed_ones) _mm256_maddubs_epi16(unsigned_ones, signed_ones)
#define ADD_PAIRS(pairs) _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))
#define ADD_INT(a, b) _mm256_add_epi32(a, b)
#endif

/* The number of panels of a number of outputs, and of groups of DEPTH of a number of inputs. */
INLINE int64_t panels_of(int64_t outputs) { return round_up((outputs + LANES - 1) / LANES, PANELS); }
INLINE int64_t depth_of(int64_t inputs) { return (inputs + DEPTH - 1) / DEPTH; }

typedef uint8_t byte_vec __attribute__((vector_size(LANES)));

/* The scale of a quantized row t p + f, and bounds. */
typedef struct {
    float scale;        /* t */
    float norm, error;  /* |t p|, |f|, if `bounded` */
    int32_t correction; /* cancels what ZERO_POINT adds to every sum with this row */
} int8_row;

/* The largest absolute value of a row, by its bits as an integer: larger values have larger integers, and NaN the
 * largest, so that one NaN makes the maximum NaN. */
INLINE float absolute_max(int64_t width, const float *row)
{
    ivec most = {0};
    for (int64_t at = 0; at < width; at += LANES)
        most = vec_max_int((ivec)load_n(row + at, lanes_left(at, width)) & INT32_MAX, most);
    for (int distance = LANES / 2; distance; distance /= 2)
        most = vec_max_int(most, (ivec)shuffle_xor((vec)most, distance));
    return ((vec)most)[0];
}

/* Quantize one vector of a row; adds up the int8 entries, and the squares of their values and of the errors. */
INLINE void quantize_vector(vec values, int n, const int bounded, float inverse, float scale, uint8_t *to, uvec *sum,
                            vec *square_norm, vec *square_error)
{
    const float shift = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer, which is then in the last bits */
    vec shifted = values * inverse + shift;
    uvec integers = (uvec)shifted - (uvec)broadcast(shift);
    byte_vec narrow = __builtin_convertvector(integers, byte_vec);
    if (n == LANES)
        memcpy(to, &narrow, LANES);
    else
        memcpy(to, &narrow, (size_t)n);
    *sum += integers;
    if (!bounded) return;
    vec rounded = shifted - shift, error = values - rounded * scale;
    *square_norm += rounded * rounded;
    *square_error += error * error;
}

/* Quantize a row so that its largest entry becomes `top`. A row that is nearly 0 becomes 0. A row with NaN or
 * infinity gets the scale and the error NaN; a row whose squares overflow gets an infinite error. */
INLINE int8_row quantize_row(int64_t width, const float *row, float top, const int bounded, int8_t *to)
{
    float largest = absolute_max(width, row), smallest = 1e-36f; /* its inverse is finite */
    float scale = (largest > smallest ? largest : 0.0f) / top, inverse = largest > smallest ? top / largest : 0.0f;
    scale += largest - largest; /* 0, unless it is NaN or infinite */
    uvec sum = {0};
    vec square_norm = {0}, square_error = {0};
    int64_t at = 0;
    for (; at + LANES <= width; at += LANES)
        quantize_vector(load(row + at), LANES, bounded, inverse, scale, (uint8_t *)to + at, &sum, &square_norm,
                        &square_error);
    if (at < width)
        quantize_vector(load_partial(row + at, lanes_left(at, width)), lanes_left(at, width), bounded, inverse, scale,
                        (uint8_t *)to + at, &sum, &square_norm, &square_error);
    uint32_t total = 0;
    for (int lane = 0; lane < LANES; lane++) total += sum[lane];
    int8_row found = {.scale = scale, .correction = (int32_t)(0u - ZERO_POINT * total)};
    if (bounded) {
        found.norm = scale * sqrtf(reduce_sum(square_norm));
        found.error = sqrtf(reduce_sum(square_error));
    }
    return found;
}

/* DEPTH adjacent int8 entries as one integer. */
INLINE int32_t four_entries(const int8_t *from)
{
    int32_t four;
    memcpy(&four, from, DEPTH);
    return four;
}

/* The sums q · p of TILE_ROWS rows and of PANELS panels from the one at w on. Every sum is a variable of its own:
 * an array would be in memory. */
#define BEGIN_SUM(r, p) int8_vec sum_##r##_##p = BROADCAST_INT(rows[r].correction);
#define BEGIN_ROW(r) EACH_PANEL(BEGIN_SUM, r)
#define LOAD_PANEL(r, p) int8_vec weights_##p = LOAD_INT8(w + (p * depth + at) * LANES * DEPTH);
#define ADD_TO_SUM(r, p) MULTIPLY_ADD(sum_##r##_##p, weights_##p, inputs_##r);
#define ADD_TO_ROW(r)                                                                    \
    int8_vec inputs_##r = BROADCAST_INT(four_entries(x + (r * depth + at) * DEPTH)); \
    EACH_PANEL(ADD_TO_SUM, r)
#define END_SUM(r, p) sums[r][p] = __builtin_convertvector((ivec)sum_##r##_##p, vec);
#define END_ROW(r) EACH_PANEL(END_SUM, r)
#define DEFINE_TILE_SUMS(name)                                                                                         \
    static void name(int64_t depth, const uint8_t *w, const int8_t *x, const int8_row *rows,                           \
                     vec sums[TILE_ROWS][PANELS])                                                                      \
    {                                                                                                                  \
        EACH_ROW(BEGIN_ROW)                                                                                            \
        for (int64_t at = 0; at < depth; at++) {                                                                       \
            EACH_PANEL(LOAD_PANEL, 0)                                                                                  \
            EACH_ROW(ADD_TO_ROW)                                                                                       \
        }                                                                                                              \
        EACH_ROW(END_ROW)                                                                                              \
    }

#define MULTIPLY_ADD(sum, unsigned_ones, signed_ones) \
    sum = ADD_INT(sum, ADD_PAIRS(MULTIPLY_PAIRS(unsigned_ones, signed_ones)))
DEFINE_TILE_SUMS(tile_sums_pairs)
#undef MULTIPLY_ADD

#if defined(__AVX512BW__)
/* Not the intrinsic, around which compilers move all sums to memory and back. */
#define MULTIPLY_ADD(sum, unsigned_ones, signed_ones) \
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(unsigned_ones), "v"(signed_ones))
DEFINE_TILE_SUMS(tile_sums_vnni)
#undef MULTIPLY_ADD
#define HAS_VNNI() __builtin_cpu_supports("avx512vnni")
#else
#define tile_sums_vnni tile_sums_pairs
#define HAS_VNNI() 0
#endif

/* Quantized rows, padded with zero rows to a multiple of TILE_ROWS. */
typedef struct {
    int64_t real, count; /* without and with the padding */
    int vnni;
    int8_row *rows;
    int8_t *entries; /* (count, depth, DEPTH) */
} int8_rows;

/* Free the memory of quantized rows. */
INLINE void free_int8_rows(int8_rows *r)
{
    free(r->rows);
    free(r->entries);
}

/* Allocate quantized rows (rows, depth, DEPTH); returns a status. */
INLINE int allocate_int8_rows(int64_t rows, int64_t depth, int8_rows *r)
{
    *r = (int8_rows){.real = rows, .count = round_up(rows, TILE_ROWS), .vnni = HAS_VNNI()};
    r->rows = zeroed(r->count, sizeof(*r->rows));
    r->entries = zeroed(size_product(r->count, depth), DEPTH);
    if (r->rows && r->entries) return SUCCESS;
    free_int8_rows(r);
    return OUT_OF_MEMORY;
}

/* Quantize the rows `first` to `last` of x (rows, inputs). Without VNNI the sum of two products must fit into 16
 * bits, so the entries are smaller. */
INLINE void quantize_rows(const int8_rows *r, const int8_weight *w, int64_t first, int64_t last, const float *x,
                          const int bounded)
{
    int64_t depth = depth_of(w->inputs);
    for (int64_t row = first; row < last; row++)
        r->rows[row] = quantize_row(w->inputs, x + row * w->inputs, r->vnni ? 127.0f : 63.0f, bounded,
                                    r->entries + row * depth * DEPTH);
}

/* The part of `count` items that belongs to this thread, in full groups. */
INLINE void thread_range_of_groups(int64_t count, int64_t group, int64_t *first, int64_t *last)
{
    thread_range(count / group, first, last);
    *first *= group;
    *last *= group;
}

/* The int8 products of TILE_ROWS rows from `row` on with PANELS panels from `panel` on. */
INLINE void tile_sums(const int8_weight *w, const int8_rows *r, int64_t row, int64_t panel,
                      vec sums[TILE_ROWS][PANELS])
{
    int64_t depth = depth_of(w->inputs);
    const uint8_t *packed = w->packed + panel * depth * LANES * DEPTH;
    const int8_t *x = r->entries + row * depth * DEPTH;
    if (r->vnni)
        tile_sums_vnni(depth, packed, x, r->rows + row, sums);
    else
        tile_sums_pairs(depth, packed, x, r->rows + row, sums);
}

#endif
#endif
