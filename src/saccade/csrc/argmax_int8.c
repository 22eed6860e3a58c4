/* The largest logit of each row without computing all logits.
 *
 * An int8 weight (int8_gemm.h) gives every logit approximately, in a quarter of the time or less, and a bound of
 * the error:
 *
 *     w · x = s t (q · p) + s q · f + e · x,    |s q · f + e · x| <= |s q| |f| + |e| |x|
 *
 * The largest logit is among those that could be as large as the lower bound of the largest: a few, which are then
 * computed in float32. So float32 logits decide, not int8 logits. */

#include "argmax_int8.h"

#include "int8_gemm.h"

#ifdef HAS_INT8

#define CAPACITY 64  /* candidates of a row */
#define SLACK 1.001f /* for the rounding of the bounds themselves */

#if defined(__AVX512BW__)
#define ANY_AT_LEAST(values, least) (_mm512_cmp_ps_mask((__m512)(values), _mm512_set1_ps(least), _CMP_GE_OQ) != 0)
#else
#define ANY_AT_LEAST(values, least) \
    (_mm256_movemask_ps(_mm256_cmp_ps((__m256)(values), _mm256_set1_ps(least), _CMP_GE_OQ)) != 0)
#endif

/* The candidates of one row. */
typedef struct {
    float least;   /* lower bound of the largest logit */
    float dropped; /* upper bound of the logits of candidates that found no room */
    int count;
    int32_t tokens[CAPACITY];
    float most[CAPACITY]; /* upper bounds of their logits */
} candidates;

/* Whether a token is one of `count` tokens. */
INLINE int is_among(int64_t token, int64_t count, const int64_t *tokens)
{
    int found = 0;
    for (int64_t i = 0; i < count; i++) found |= tokens[i] == token;
    return found;
}

/* Remove candidates whose upper bound is below the lower bound of the largest logit. */
static void prune(candidates *row)
{
    int count = row->count;
    row->count = 0;
    for (int i = 0; i < count; i++)
        if (row->most[i] >= row->least) {
            row->tokens[row->count] = row->tokens[i];
            row->most[row->count++] = row->most[i];
        }
}

/* Add a candidate whose logit is at most `most`, if there is room. */
static void add_candidate(candidates *row, int32_t token, float most)
{
    if (row->count == CAPACITY) prune(row);
    if (row->count < CAPACITY) {
        row->tokens[row->count] = token;
        row->most[row->count++] = most;
    } else if (most > row->dropped)
        row->dropped = most;
}

/* The vocabulary that is screened. */
typedef struct {
    const int8_weight *weight;
    int exact;
    int64_t suppressed_count;
    const int64_t *suppressed;
} screen;

/* Add the tokens of a panel whose logits may reach the lower bound. */
static void add_panel(const screen *s, int64_t panel, vec approximate, float bound, candidates *row)
{
    for (int lane = 0; lane < LANES; lane++) {
        int64_t token = panel * LANES + lane;
        if (token >= s->weight->outputs || is_among(token, s->suppressed_count, s->suppressed)) continue;
        if (!(approximate[lane] + bound >= row->least)) continue;
        if (approximate[lane] - bound > row->least) row->least = approximate[lane] - bound;
        add_candidate(row, (int32_t)token, approximate[lane] + bound);
    }
}

/* Add the candidates of one panel for one row, from its int8 sums. */
INLINE void screen_panel(const screen *s, int64_t panel, const int8_row *x, vec sums, candidates *row)
{
    const int8_weight *w = s->weight;
    float bound = SLACK * (w->errors[panel] * (x->norm + x->error) + w->norms[panel] * x->error);
    if (!(w->errors[panel] + x->error < INFINITY)) row->dropped = INFINITY;
    if (!s->exact) bound = 0.0f;
    vec approximate = sums * (load(w->scales + panel * LANES) * x->scale) + load(w->biases + panel * LANES);
    if (ANY_AT_LEAST(approximate, row->least - bound)) add_panel(s, panel, approximate, bound, row);
}

/* Screen the panels `first` to `last` for all rows. */
static void screen_panels(const screen *s, const int8_rows *rows, int64_t first, int64_t last, candidates *found)
{
    for (int64_t r = 0; r < rows->count; r++) {
        found[r].least = r < rows->real ? -INFINITY : INFINITY;
        found[r].dropped = -INFINITY;
    }
    for (int64_t panel = first; panel < last; panel += PANELS)
        for (int64_t r = 0; r < rows->count; r += TILE_ROWS) {
            vec sums[TILE_ROWS][PANELS];
            tile_sums(s->weight, rows, r, panel, sums);
            for (int i = 0; i < TILE_ROWS; i++)
                for (int p = 0; p < PANELS; p++)
                    screen_panel(s, panel + p, rows->rows + r + i, sums[i][p], found + r + i);
        }
}

/* Add the candidates of later panels. */
static void merge(candidates *row, const candidates *later)
{
    if (later->least > row->least) row->least = later->least;
    if (later->dropped > row->dropped) row->dropped = later->dropped;
    for (int i = 0; i < later->count; i++) add_candidate(row, later->tokens[i], later->most[i]);
}

/* The float32 logit of a token for x (inputs,). */
static float logit_of(const int8_weight *s, int64_t token, const float *x)
{
    const float *w = s->weight + token * s->inputs;
    vec sums[2] = {{0}, {0}};
    int64_t at = 0;
    for (; at + 2 * LANES <= s->inputs; at += 2 * LANES)
        for (int i = 0; i < 2; i++) sums[i] += load(w + at + i * LANES) * load(x + at + i * LANES);
    for (; at < s->inputs; at += LANES) {
        int n = lanes_left(at, s->inputs);
        sums[0] += load_n(w + at, n) * load_n(x + at, n);
    }
    return reduce_sum(sums[0] + sums[1]) + (s->bias ? s->bias[token] : 0.0f);
}

/* The best candidate, or the best of all tokens if a dropped one could be it; -inf and 0 if a logit is NaN. */
static void decide(const screen *s, const float *x, const candidates *row, float *value, int64_t *best)
{
    int complete = row->count > 0 && row->dropped < row->least;
    int64_t count = complete ? row->count : s->weight->outputs;
    *value = -INFINITY;
    *best = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t token = complete ? row->tokens[i] : i;
        if (complete ? row->most[i] < row->least : is_among(token, s->suppressed_count, s->suppressed)) continue;
        float logit = logit_of(s->weight, token, x);
        if (logit != logit) {
            *value = -INFINITY;
            *best = 0;
            return;
        }
        if (logit > *value) {
            *value = logit;
            *best = token;
        }
    }
}

/* Threads share the panels, so that each reads its own part of the weight, and then the rows. */
int argmax_int8(int threads, int64_t rows, const float *x, const int8_weight *w, int exact, int64_t suppressed_count,
                const int64_t *suppressed, float *values, int64_t *tokens)
{
    screen s = {w, exact, suppressed_count, suppressed};
    int64_t panels = panels_of(w->outputs), inputs = w->inputs;
    int8_rows r;
    int status = allocate_int8_rows(rows, depth_of(inputs), &r);
    if (status != SUCCESS) return status;
    candidates *found = zeroed(threads * r.count, sizeof(*found));
    if (!found) {
        free_int8_rows(&r);
        return OUT_OF_MEMORY;
    }
    quantize_rows(&r, w, 0, rows, x, 1);
    if (threads == 1) {
        screen_panels(&s, &r, 0, panels, found);
        for (int64_t row = 0; row < rows; row++) decide(&s, x + row * inputs, found + row, values + row, tokens + row);
    } else
#pragma omp parallel num_threads(threads)
    {
        int64_t first, last;
        thread_range_of_groups(panels, PANELS, &first, &last);
        screen_panels(&s, &r, first, last, found + thread_number() * r.count);
#pragma omp barrier
        thread_range(rows, &first, &last);
        for (int64_t row = first; row < last; row++) {
            for (int part = 1; part < thread_count(); part++) merge(found + row, found + part * r.count + row);
            decide(&s, x + row * inputs, found + row, values + row, tokens + row);
        }
    }
    free(found);
    free_int8_rows(&r);
    return SUCCESS;
}

#else /* this level has no int8 products */

int argmax_int8(int threads, int64_t rows, const float *x, const int8_weight *w, int exact, int64_t suppressed_count,
                const int64_t *suppressed, float *values, int64_t *tokens)
{
    (void)threads, (void)rows, (void)x, (void)w, (void)exact;
    (void)suppressed_count, (void)suppressed, (void)values, (void)tokens;
    return UNSUPPORTED;
}

#endif

/* argmax_int8 for x (rows, inputs), on one thread if there is little work. */
EXPORT int saccade_argmax_int8(int threads, int64_t rows, const float *x, const int8_weight *w, int exact,
                               int64_t suppressed_count, const int64_t *suppressed, float *values, int64_t *tokens)
{
    int team = rows * w->inputs * w->outputs < GEMM_PARALLEL_THRESHOLD ? 1 : threads;
    return argmax_int8(team, rows, x, w, exact, suppressed_count, suppressed, values, tokens);
}
