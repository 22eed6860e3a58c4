/* The most probable token of each row without all of its logits.
 *
 * A table in bytes gives every logit roughly, in a quarter of the time or less, and a bound on the error: with a row of
 * the table w = s q + e and a row of the input x = t p + f, where q and p are bytes,
 *
 *     w · x = s t (q · p) + s q · f + e · x,    |s q · f + e · x| <= |s q| |f| + |e| |x|
 *
 * The most probable token is among those whose logit could be as large as the largest certainly is: a few, whose logits
 * are then made from floats. So the outcome is that of the floats, not of the bytes.
 */

#include "lanes.h"

/* A table, and the same in bytes: panels of LANES tokens, in each the first DEPTH entries of all its tokens, then the
 * next. */
typedef struct {
    int64_t vocabulary, width;
    const float *table, *bias; /* (vocabulary, width), (vocabulary) or NULL */
    uint8_t *packed;           /* (panels, width / DEPTH, LANES, DEPTH) */
    float *scales, *biases;    /* (panels * LANES): s; the bias, -inf for what is no token */
    float *errors, *norms;     /* (panels): the largest |e| and |s q| of its tokens */
} screen;

#if defined(__AVX512BW__) || defined(__AVX2__)

#include <immintrin.h>

#define DEPTH 4        /* entries of a row side by side in a lane: what one instruction multiplies and adds up */
#define MIDDLE 128     /* is added to the bytes of the table, which have no sign then */
#define MOST 64        /* tokens of a row that are kept for a second look */
#define CERTAIN 1.001f /* for the rounding of the bounds themselves */

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
#define REACHES(values, least) (_mm512_cmp_ps_mask((__m512)(values), _mm512_set1_ps(least), _CMP_GE_OQ) != 0)
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
#define REACHES(values, least) \
    (_mm256_movemask_ps(_mm256_cmp_ps((__m256)(values), _mm256_set1_ps(least), _CMP_GE_OQ)) != 0)
#endif

/* One row of the input. */
typedef struct {
    float scale, norm, error; /* t, |x|, |f| */
    int32_t shift;            /* takes away what MIDDLE adds to every sum */
    float least;              /* the largest logit is certainly no smaller */
    int count;                /* of the tokens that are kept; -1: there were too many */
    int32_t tokens[MOST];
    float most[MOST]; /* their logits are certainly no larger */
} looked_at;

INLINE int64_t panels_of(int64_t vocabulary) { return rounded((vocabulary + LANES - 1) / LANES, PANELS); }
INLINE int64_t depth_of(int64_t width) { return (width + DEPTH - 1) / DEPTH; }

INLINE lanes size_of(lanes values) { return larger(values, -values); }

/* Bytes of a row with a scale so that the largest becomes `top`, and the lengths of what they stand for and leave. What is
 * no number makes the error none. */
INLINE float to_bytes(int64_t width, const float *row, float top, int8_t *made, float *norm, float *error)
{
    const float shift = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    lanes most = {0}, kept = {0}, left = {0};
    for (int64_t at = 0; at < width; at += LANES) most = larger(size_of(load_within(row + at, within(at, width))), most);
    float largest = largest_of(most);
    float scale = largest / top, inverse = largest > 0.0f ? top / largest : 0.0f;
    for (int64_t at = 0; at < width; at += LANES) {
        int some = within(at, width);
        lanes own = load_within(row + at, some), value = own * inverse + shift - shift, rest = own - value * scale;
        int_lanes whole = __builtin_convertvector(chosen(size_of(value) <= top, value, all(0.0f)), int_lanes);
        for (int i = 0; i < some; i++) made[at + i] = (int8_t)whole[i];
        kept += value * value;
        left += rest * rest;
    }
    *norm = scale * sqrtf(sum_of(kept));
    *error = sqrtf(sum_of(left));
    return scale;
}

static void pack(int threads, const screen *s)
{
    int64_t depth = depth_of(s->width), panels = panels_of(s->vocabulary);
#pragma omp parallel num_threads(threads)
    {
        int8_t *row = calloc((size_t)(depth * DEPTH), 1);
        if (!row) abort();
#pragma omp for schedule(static)
        for (int64_t panel = 0; panel < panels; panel++) {
            uint8_t *to = s->packed + panel * depth * LANES * DEPTH;
            float norm = 0.0f, error = 0.0f;
            for (int64_t lane = 0; lane < LANES; lane++) {
                int64_t token = panel * LANES + lane;
                s->scales[token] = 0.0f;
                s->biases[token] = -INFINITY;
                if (token < s->vocabulary) {
                    float own_norm, own_error;
                    s->scales[token] =
                        to_bytes(s->width, s->table + token * s->width, 127.0f, row, &own_norm, &own_error);
                    s->biases[token] = s->bias ? s->bias[token] : 0.0f;
                    norm = own_norm <= norm ? norm : own_norm;
                    error = own_error <= error ? error : own_error;
                    if (!(error < INFINITY)) error = INFINITY; /* what is no number: look at all of them */
                }
                for (int64_t at = 0; at < depth; at++) {
                    uint32_t four;
                    memcpy(&four, row + at * DEPTH, DEPTH);
                    four ^= 0x80808080u; /* MIDDLE more, each of them */
                    memcpy(to + (at * LANES + lane) * DEPTH, &four, DEPTH);
                }
            }
            s->norms[panel] = norm;
            s->errors[panel] = error;
        }
        free(row);
    }
}

INLINE int is_among(int64_t token, int64_t count, const int64_t *tokens)
{
    int found = 0;
    for (int64_t i = 0; i < count; i++) found |= tokens[i] == token;
    return found;
}

/* Leave out the tokens of a row that are too small by now; whether there is room again. */
static int has_room(looked_at *row)
{
    int count = row->count;
    if (count < MOST) return count >= 0;
    row->count = 0;
    for (int i = 0; i < count; i++)
        if (row->most[i] >= row->least) {
            row->tokens[row->count] = row->tokens[i];
            row->most[row->count++] = row->most[i];
        }
    if (row->count == MOST) row->count = -1;
    return row->count >= 0;
}

/* Keep the tokens of a panel whose logits may be as large as the largest so far must be. */
static void keep_of(const screen *s, int64_t panel, lanes roughly, float bound, int64_t nevers, const int64_t *never,
                    looked_at *row)
{
    for (int lane = 0; lane < LANES; lane++) {
        int64_t token = panel * LANES + lane;
        if (token >= s->vocabulary || is_among(token, nevers, never)) continue;
        if (!(roughly[lane] + bound >= row->least)) continue;
        if (roughly[lane] - bound > row->least) row->least = roughly[lane] - bound;
        if (!has_room(row)) return;
        row->tokens[row->count] = (int32_t)token;
        row->most[row->count++] = roughly[lane] + bound;
    }
}

/* The rough logits of SOME_ROWS rows and PANELS panels, and what is kept of them. Every sum has a name of its own: an
 * array of them would be in memory. */
#define BEGIN_SUM(r, p) bytes sum_##r##_##p = EVERY(rows[r].shift);
#define BEGIN_ROW(r) EACH_PANEL(BEGIN_SUM, r)
#define FETCH_PANEL(r, p) bytes own_##p = FETCH(w + (p * depth + at) * LANES * DEPTH);
#define ADD_TO_SUM(r, p) MULTIPLY_ADD(sum_##r##_##p, own_##p, same_##r);
#define ADD_TO_ROW(r) bytes same_##r = EVERY(four_of(x + (r * depth + at) * DEPTH)); EACH_PANEL(ADD_TO_SUM, r)
#define END_SUM(r, p) found[r][p] = __builtin_convertvector((int_lanes)sum_##r##_##p, lanes);
#define END_ROW(r) EACH_PANEL(END_SUM, r)
#define LOOK(name)                                                                                                     \
    static void name(const screen *s, int64_t first, const int8_t *x, int64_t nevers, const int64_t *never,            \
                     looked_at *rows)                                                                                  \
    {                                                                                                                  \
        int64_t depth = depth_of(s->width);                                                                            \
        const uint8_t *w = s->packed + first * depth * LANES * DEPTH;                                                  \
        lanes found[SOME_ROWS][PANELS];                                                                                \
        EACH_ROW(BEGIN_ROW)                                                                                            \
        for (int64_t at = 0; at < depth; at++) {                                                                       \
            EACH_PANEL(FETCH_PANEL, 0)                                                                                 \
            EACH_ROW(ADD_TO_ROW)                                                                                       \
        }                                                                                                              \
        EACH_ROW(END_ROW)                                                                                              \
        for (int r = 0; r < SOME_ROWS; r++)                                                                            \
            for (int p = 0; p < PANELS; p++)                                                                           \
                look_at(s, first + p, found[r][p], nevers, never, rows + r);                                           \
    }

INLINE int32_t four_of(const int8_t *from)
{
    int32_t four;
    memcpy(&four, from, DEPTH);
    return four;
}

INLINE void look_at(const screen *s, int64_t panel, lanes sums, int64_t nevers, const int64_t *never, looked_at *row)
{
    float bound = CERTAIN * (s->errors[panel] * row->norm + s->norms[panel] * row->error);
    lanes roughly = sums * (load(s->scales + panel * LANES) * row->scale) + load(s->biases + panel * LANES);
    if (REACHES(roughly, row->least - bound)) keep_of(s, panel, roughly, bound, nevers, never, row);
}

#define MULTIPLY_ADD(sum, unsigned_ones, signed_ones) sum = PLUS(sum, FOURS(PAIRS(unsigned_ones, signed_ones)))
LOOK(look_by_pairs)
#undef MULTIPLY_ADD

#if defined(__AVX512BW__)
/* Not the intrinsic, around which compilers move all sums to memory and back. */
#define MULTIPLY_ADD(sum, unsigned_ones, signed_ones) \
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(unsigned_ones), "v"(signed_ones))
LOOK(look_by_fours)
#undef MULTIPLY_ADD
#define HAS_FOURS() __builtin_cpu_supports("avx512vnni")
#else
#define look_by_fours look_by_pairs
#define HAS_FOURS() 0
#endif

static float logit_of(const screen *s, int64_t token, const float *x)
{
    const float *w = s->table + token * s->width;
    lanes sums[2] = {{0}, {0}};
    int64_t at = 0;
    for (; at + 2 * LANES <= s->width; at += 2 * LANES)
        for (int i = 0; i < 2; i++) sums[i] += load(w + at + i * LANES) * load(x + at + i * LANES);
    for (; at < s->width; at += LANES) {
        int some = within(at, s->width);
        sums[0] += load_within(w + at, some) * load_within(x + at, some);
    }
    return sum_of(sums[0] + sums[1]) + (s->bias ? s->bias[token] : 0.0f);
}

/* The best of the tokens that were kept, or of all if they were too many or none; -inf and 0 if a logit is no number. */
static void decide(const screen *s, const float *x, const looked_at *row, int64_t nevers, const int64_t *never,
                   float *value, int64_t *place)
{
    int kept = row->count > 0;
    int64_t count = kept ? row->count : s->vocabulary;
    *value = -INFINITY;
    *place = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t token = kept ? row->tokens[i] : i;
        if (kept ? row->most[i] < row->least : is_among(token, nevers, never)) continue;
        float logit = logit_of(s, token, x);
        if (logit != logit) {
            *value = -INFINITY;
            *place = 0;
            return;
        }
        if (logit > *value) {
            *value = logit;
            *place = token;
        }
    }
}

static void best(int threads, int64_t rows, const float *x, const screen *s, int64_t nevers, const int64_t *never,
                 float *values, int64_t *places)
{
    int64_t depth = depth_of(s->width), panels = panels_of(s->vocabulary);
    int64_t groups = rounded(rows, SOME_ROWS) / SOME_ROWS;
    int by_fours = HAS_FOURS();
#pragma omp parallel num_threads(threads)
    {
        int64_t from, to;
        own_part(groups, &from, &to);
        int64_t first = from * SOME_ROWS, count = (to - from) * SOME_ROWS;
        int64_t real = first + count < rows ? count : rows - first; /* the last group may have fewer rows */
        looked_at *looked = calloc((size_t)count + 1, sizeof(*looked));
        int8_t *made = calloc((size_t)(count * depth * DEPTH) + 1, 1);
        if (!looked || !made) abort();
        for (int64_t r = 0; r < count; r++) {
            int8_t *own = made + r * depth * DEPTH;
            looked[r].least = INFINITY;
            if (r >= real) continue;
            float kept;
            looked[r].scale =
                to_bytes(s->width, x + (first + r) * s->width, by_fours ? 127.0f : 63.0f, own, &kept, &looked[r].error);
            looked[r].norm = kept + looked[r].error;
            looked[r].least = -INFINITY;
            for (int64_t i = 0; i < s->width; i++) looked[r].shift -= MIDDLE * own[i];
        }
        for (int64_t panel = 0; panel < panels; panel += PANELS)
            for (int64_t r = 0; r < count; r += SOME_ROWS)
                if (by_fours)
                    look_by_fours(s, panel, made + r * depth * DEPTH, nevers, never, looked + r);
                else
                    look_by_pairs(s, panel, made + r * depth * DEPTH, nevers, never, looked + r);
        for (int64_t r = 0; r < real; r++)
            decide(s, x + (first + r) * s->width, looked + r, nevers, never, values + first + r, places + first + r);
        free(made);
        free(looked);
    }
}

static void sizes(int64_t *tokens, int64_t *panels, int64_t *depth)
{
    *tokens = LANES;
    *panels = PANELS;
    *depth = DEPTH;
}

#else /* no products of bytes */

static void pack(int threads, const screen *s) { (void)threads, (void)s; }
static void best(int threads, int64_t rows, const float *x, const screen *s, int64_t nevers, const int64_t *never,
                 float *values, int64_t *places)
{
    (void)threads, (void)rows, (void)x, (void)s, (void)nevers, (void)never, (void)values, (void)places;
}
static void sizes(int64_t *tokens, int64_t *panels, int64_t *depth) { *tokens = *panels = *depth = 0; }

#endif

/* How many tokens a panel has, of how many the number of panels is a multiple, and of how many the width; 0: nothing is
 * screened here. */
EXPORT void saccade_screen_sizes(int threads, int64_t *tokens, int64_t *panels, int64_t *depth)
{
    (void)threads;
    sizes(tokens, panels, depth);
}

/* Fill in all but the table and its bias. */
EXPORT void saccade_screen_pack(int threads, const screen *s) { pack(threads, s); }

/* Of each row (rows, width) the token with the largest logit, those at `never` left out, and that logit; of equal ones
 * the first. */
EXPORT void saccade_screen_best(int threads, int64_t rows, const float *x, const screen *s, int64_t nevers,
                                const int64_t *never, float *values, int64_t *places)
{
    best(threads, rows, x, s, nevers, never, values, places);
}
