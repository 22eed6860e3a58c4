/* The most probable token of each row without all of its logits.
 *
 * A table in bytes (bytes.h) gives every logit roughly, in a quarter of the time or less, and a bound on the error:
 *
 *     w · x = s t (q · p) + s q · f + e · x,    |s q · f + e · x| <= |s q| |f| + |e| |x|
 *
 * The most probable token is among those whose logit could be as large as the largest certainly is: a few, whose logits
 * are then made from floats. So the outcome is that of the floats, not of the bytes.
 */

#include "argmax_int8.h"
#include "int8_gemm.h"

#ifdef HAS_BYTES

#define MOST 64        /* tokens of a row that are kept for a second look */
#define CERTAIN 1.001f /* for the rounding of the bounds themselves */

#if defined(__AVX512BW__)
#define REACHES(values, least) (_mm512_cmp_ps_mask((__m512)(values), _mm512_set1_ps(least), _CMP_GE_OQ) != 0)
#else
#define REACHES(values, least) \
    (_mm256_movemask_ps(_mm256_cmp_ps((__m256)(values), _mm256_set1_ps(least), _CMP_GE_OQ)) != 0)
#endif

/* One row of the input. */
typedef struct {
    float least; /* the largest logit is certainly no smaller */
    float lost;  /* no token for which there was no room has a larger one */
    int count;   /* of the tokens that are kept */
    int32_t tokens[MOST];
    float most[MOST]; /* their logits are certainly no larger */
} looked_at;

INLINE int is_among(int64_t token, int64_t count, const int64_t *tokens)
{
    int found = 0;
    for (int64_t i = 0; i < count; i++) found |= tokens[i] == token;
    return found;
}

/* Leave out the tokens of a row that are too small by now. */
static void make_room(looked_at *row)
{
    int count = row->count;
    row->count = 0;
    for (int i = 0; i < count; i++)
        if (row->most[i] >= row->least) {
            row->tokens[row->count] = row->tokens[i];
            row->most[row->count++] = row->most[i];
        }
}

/* Keep a token whose logit is no larger than `most`, if there is room. */
static void keep_one(looked_at *row, int32_t token, float most)
{
    if (row->count == MOST) make_room(row);
    if (row->count < MOST) {
        row->tokens[row->count] = token;
        row->most[row->count++] = most;
    } else if (most > row->lost)
        row->lost = most;
}

/* What rows are compared with. */
typedef struct {
    const byte_table *table;
    int exactly;
    int64_t nevers;
    const int64_t *never;
} screen;

/* Keep the tokens of a panel whose logits may be as large as the largest so far must be. */
static void keep_of(const screen *s, int64_t panel, lanes roughly, float bound, looked_at *row)
{
    for (int lane = 0; lane < LANES; lane++) {
        int64_t token = panel * LANES + lane;
        if (token >= s->table->outs || is_among(token, s->nevers, s->never)) continue;
        if (!(roughly[lane] + bound >= row->least)) continue;
        if (roughly[lane] - bound > row->least) row->least = roughly[lane] - bound;
        keep_one(row, (int32_t)token, roughly[lane] + bound);
    }
}

INLINE void look_at(const screen *s, int64_t panel, const byte_row *x, lanes sums, looked_at *row)
{
    const byte_table *t = s->table;
    float bound = CERTAIN * (t->errors[panel] * (x->norm + x->error) + t->norms[panel] * x->error);
    if (!(t->errors[panel] + x->error < INFINITY)) row->lost = INFINITY;
    if (!s->exactly) bound = 0.0f;
    lanes roughly = sums * (load(t->scales + panel * LANES) * x->scale) + load(t->biases + panel * LANES);
    if (REACHES(roughly, row->least - bound)) keep_of(s, panel, roughly, bound, row);
}

/* Look at the panels `first` to `last` for all rows. */
static void look_through(const screen *s, const byte_rows *own, int64_t first, int64_t last, looked_at *looked)
{
    for (int64_t r = 0; r < own->count; r++) {
        looked[r].least = r < own->real ? -INFINITY : INFINITY;
        looked[r].lost = -INFINITY;
    }
    for (int64_t panel = first; panel < last; panel += PANELS)
        for (int64_t r = 0; r < own->count; r += SOME_ROWS) {
            lanes found[SOME_ROWS][PANELS];
            find_sums(s->table, own, r, panel, found);
            for (int i = 0; i < SOME_ROWS; i++)
                for (int p = 0; p < PANELS; p++)
                    look_at(s, panel + p, own->rows + r + i, found[i][p], looked + r + i);
        }
}

/* Add what was kept of later panels. */
static void join(looked_at *row, const looked_at *later)
{
    if (later->least > row->least) row->least = later->least;
    if (later->lost > row->lost) row->lost = later->lost;
    for (int i = 0; i < later->count; i++) keep_one(row, later->tokens[i], later->most[i]);
}

static float logit_of(const byte_table *s, int64_t token, const float *x)
{
    const float *w = s->weight + token * s->ins;
    lanes sums[2] = {{0}, {0}};
    int64_t at = 0;
    for (; at + 2 * LANES <= s->ins; at += 2 * LANES)
        for (int i = 0; i < 2; i++) sums[i] += load(w + at + i * LANES) * load(x + at + i * LANES);
    for (; at < s->ins; at += LANES) {
        int some = within(at, s->ins);
        sums[0] += load_within(w + at, some) * load_within(x + at, some);
    }
    return sum_of(sums[0] + sums[1]) + (s->bias ? s->bias[token] : 0.0f);
}

/* The best of the tokens that were kept, or of all if one that was not could be it; -inf and 0 if a logit is no number. */
static void decide(const screen *s, const float *x, const looked_at *row, float *value, int64_t *place)
{
    int kept = row->count > 0 && row->lost < row->least;
    int64_t count = kept ? row->count : s->table->outs;
    *value = -INFINITY;
    *place = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t token = kept ? row->tokens[i] : i;
        if (kept ? row->most[i] < row->least : is_among(token, s->nevers, s->never)) continue;
        float logit = logit_of(s->table, token, x);
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

/* Threads share the panels, so that each reads its own part of the table, and then the rows. */
void screen_best(int threads, int64_t rows, const float *x, const byte_table *table, int exactly, int64_t nevers,
                 const int64_t *never, float *values, int64_t *places)
{
    screen s = {table, exactly, nevers, never};
    int64_t panels = panels_of(table->outs), ins = table->ins;
    byte_rows own = room_for_rows(rows, depth_of(ins));
    looked_at *looked = calloc((size_t)(threads * own.count) + 1, sizeof(*looked));
    if (!looked) abort();
    fill_rows(&own, table, 0, rows, x, 1);
    if (threads == 1) {
        look_through(&s, &own, 0, panels, looked);
        for (int64_t r = 0; r < rows; r++) decide(&s, x + r * ins, looked + r, values + r, places + r);
    } else
#pragma omp parallel num_threads(threads)
    {
        int64_t first, last;
        own_groups(panels, PANELS, &first, &last);
        look_through(&s, &own, first, last, looked + thread_number() * own.count);
#pragma omp barrier
        own_part(rows, &first, &last);
        for (int64_t r = first; r < last; r++) {
            for (int part = 1; part < thread_count(); part++) join(looked + r, looked + part * own.count + r);
            decide(&s, x + r * ins, looked + r, values + r, places + r);
        }
    }
    free(looked);
    end_rows(&own);
}

#else /* no products of bytes */

void screen_best(int threads, int64_t rows, const float *x, const byte_table *s, int exactly, int64_t nevers,
                 const int64_t *never, float *values, int64_t *places)
{
    (void)threads, (void)rows, (void)x, (void)s, (void)exactly;
    (void)nevers, (void)never, (void)values, (void)places;
}

#endif

EXPORT void saccade_argmax_int8(int threads, int64_t rows, const float *x, const byte_table *s, int exactly,
                                int64_t nevers, const int64_t *never, float *values, int64_t *places)
{
    int team = rows * s->ins * s->outs < PRODUCT_ALONE_BELOW ? 1 : threads;
    screen_best(team, rows, x, s, exactly, nevers, never, values, places);
}
