/* The searches of saccade.decoding for one sentence and a Transformer, in one call.
 *
 * They do what greedy.py and beam.py do, step for step and in the same order; those say why. Here a step of a few
 * hypotheses does not wait for Python, which takes twice as long as the model itself. */

#include "transformer.h"
#include "vocabulary.h"

/* Live hypotheses, at most `most` of them, and what all steps so far have left. */
typedef struct {
    int64_t rows, most, limit, count;
    float **steps;      /* (limit) */
    int64_t *step_rows; /* (limit) */
    int64_t *origin;    /* (most, limit) */
    int64_t *tokens;    /* (most, limit), without the beginning */
    float *token_logs;  /* (most, limit) */
    float *logs;        /* (most) */
} live;

static void *room(int64_t count, size_t size)
{
    void *place = calloc((size_t)(count ? count : 1), size);
    if (!place) abort();
    return place;
}

static live begin_live(int64_t most, int64_t limit)
{
    live l = {.rows = 1, .most = most, .limit = limit};
    l.steps = room(limit, sizeof(*l.steps));
    l.step_rows = room(limit, sizeof(*l.step_rows));
    l.origin = room(most * limit, sizeof(*l.origin));
    l.tokens = room(most * limit, sizeof(*l.tokens));
    l.token_logs = room(most * limit, sizeof(*l.token_logs));
    l.logs = room(most, sizeof(*l.logs));
    return l;
}

static void end_live(live *l)
{
    for (int64_t t = 0; t < l->count; t++) free(l->steps[t]);
    free(l->steps);
    free(l->step_rows);
    free(l->origin);
    free(l->tokens);
    free(l->token_logs);
    free(l->logs);
}

/* One more place of all live hypotheses: the most probable `count` tokens of each, (rows, count). */
static void look_further(int threads, const decoder *d, const words *w, memory m, const rules *r, live *l, int64_t count,
                         float *logits, float *values, int64_t *places)
{
    int64_t width = d->shape.width, place = l->count;
    float *x = room(l->rows * width, 4), *out = room(l->rows * width, 4);
    l->steps[place] = room(d->shape.layers * l->rows * 3 * width, 4);
    l->step_rows[place] = l->rows;
    l->count++;
    for (int64_t row = 0; row < l->rows; row++) {
        int64_t token = place ? l->tokens[row * l->limit + place - 1] : r->begin;
        l->origin[row * l->limit + place] = row;
        for (int64_t i = 0; i < width; i++)
            x[row * width + i] = w->embedding[token * width + i] * w->scale + w->positions[place * width + i];
    }
    m.beam = l->rows;
    past p = {l->count, l->limit, l->steps, l->step_rows, l->origin};
    decoder_step(d, l->rows, p, m, x, out);
    if (w->bytes)
        multiply_bytes(l->rows, out, w->bytes, logits);
    else
        few_products(threads, l->rows, width, w->vocabulary, out, w->output, NULL, logits);
    int64_t nevers = r->nevers - (place >= r->min_length);
    largest(threads, l->rows, w->vocabulary, logits, nevers, r->never, count, values, places);
    free(x);
    free(out);
}

typedef struct {
    int64_t parent, token;
    float log, total;
} candidate;

/* The best candidates, falling, equal ones in their order. */
static void sort_candidates(int64_t count, candidate *all_of_them)
{
    for (int64_t i = 1; i < count; i++) {
        candidate one = all_of_them[i];
        int64_t at = i;
        for (; at && all_of_them[at - 1].total < one.total; at--) all_of_them[at] = all_of_them[at - 1];
        all_of_them[at] = one;
    }
}

/* Put a hypothesis among the `most` best: a finished one before every other, else by score, after its equals. */
static void keep(hypotheses *h, int64_t most, const live *l, candidate last, float score, int64_t finished)
{
    int64_t at = h->count;
    while (at && (h->finished[at - 1] < finished || (h->finished[at - 1] == finished && h->scores[at - 1] < score))) at--;
    if (at == most) return;
    int64_t moved = (h->count < most ? h->count : most - 1) - at, limit = l->limit, length = l->count;
#define MOVE(column, each) memmove((column) + (at + 1) * (each), (column) + at * (each), (size_t)(moved * (each)) * sizeof(*(column)))
    MOVE(h->tokens, limit);
    MOVE(h->token_logs, limit);
    MOVE(h->lengths, 1);
    MOVE(h->finished, 1);
    MOVE(h->logs, 1);
    MOVE(h->scores, 1);
#undef MOVE
    memcpy(h->tokens + at * limit, l->tokens + last.parent * limit, 8 * (size_t)(length - 1));
    memcpy(h->token_logs + at * limit, l->token_logs + last.parent * limit, 4 * (size_t)(length - 1));
    h->tokens[at * limit + length - 1] = last.token;
    h->token_logs[at * limit + length - 1] = last.log;
    h->lengths[at] = length;
    h->finished[at] = finished;
    h->logs[at] = last.total;
    h->scores[at] = score;
    h->count += h->count < most;
}

/* Continue with the first `rows` of `going`. */
static void advance(live *l, int64_t rows, const candidate *going)
{
    int64_t limit = l->limit, done = l->count - 1;
    live before = *l;
    l->origin = room(l->most * limit, sizeof(*l->origin));
    l->tokens = room(l->most * limit, sizeof(*l->tokens));
    l->token_logs = room(l->most * limit, sizeof(*l->token_logs));
    for (int64_t row = 0; row < rows; row++) {
        int64_t from = going[row].parent * limit, to = row * limit;
        memcpy(l->origin + to, before.origin + from, 8 * (size_t)l->count);
        memcpy(l->tokens + to, before.tokens + from, 8 * (size_t)done);
        memcpy(l->token_logs + to, before.token_logs + from, 4 * (size_t)done);
        l->tokens[to + done] = going[row].token;
        l->token_logs[to + done] = going[row].log;
        l->logs[row] = going[row].total;
    }
    l->rows = rows;
    free(before.origin);
    free(before.tokens);
    free(before.token_logs);
}

/* The `nbest` hypotheses of a beam of `beam`; penalties (limit) of length 1 first. */
EXPORT void saccade_search_beam(int threads, const decoder *d, const words *w, memory m, const rules *r, int64_t beam,
                                int64_t nbest, const float *penalties, hypotheses *found)
{
    int64_t wanted = 2 * beam < w->vocabulary ? 2 * beam : w->vocabulary;
    live l = begin_live(beam, r->limit);
    float *logits = room(beam * w->vocabulary, 4), *values = room(beam * wanted, 4);
    int64_t *places = room(beam * wanted, 8);
    candidate *all_of_them = room(beam * wanted, sizeof(*all_of_them)), *going = room(beam, sizeof(*going));
    for (int64_t length = 1; length <= r->limit; length++) {
        look_further(threads, d, w, m, r, &l, wanted, logits, values, places);
        int64_t count = l.rows * wanted, rows = 0;
        for (int64_t i = 0; i < count; i++) {
            int64_t parent = i / wanted;
            all_of_them[i] = (candidate){parent, places[i], values[i], l.logs[parent] + values[i]};
        }
        sort_candidates(count, all_of_them);
        count = count < 2 * beam ? count : 2 * beam;
        for (int64_t i = 0; i < count; i++) {
            candidate one = all_of_them[i];
            if (!(one.total > -INFINITY)) break;
            if (one.token == r->end)
                keep(found, nbest, &l, one, one.total / penalties[length - 1], 1);
            else if (rows < beam)
                going[rows++] = one;
        }
        if (length == r->limit)
            for (int64_t i = 0; i < rows; i++) keep(found, nbest, &l, going[i], going[i].total / penalties[length - 1], 0);
        float worst = found->count < nbest || !found->finished[nbest - 1] ? -INFINITY : found->scores[nbest - 1];
        int64_t hopeful = 0;
        while (hopeful < rows && !(worst >= going[hopeful].total / penalties[r->limit - 1])) hopeful++;
        if (!hopeful || length == r->limit) break;
        advance(&l, hopeful, going);
    }
    free(going);
    free(all_of_them);
    free(places);
    free(values);
    free(logits);
    end_live(&l);
}

/* The one hypothesis of the most probable tokens; its score is left to the caller. */
EXPORT void saccade_search_greedy(int threads, const decoder *d, const words *w, memory m, const rules *r,
                                  hypotheses *found)
{
    live l = begin_live(1, r->limit);
    float *logits = room(w->vocabulary, 4), value;
    int64_t token;
    for (int64_t length = 1; length <= r->limit; length++) {
        look_further(threads, d, w, m, r, &l, 1, logits, &value, &token);
        l.logs[0] += value;
        found->tokens[length - 1] = l.tokens[length - 1] = token;
        found->token_logs[length - 1] = value;
        found->lengths[0] = length;
        found->finished[0] = token == r->end;
        if (token == r->end || !(value > -INFINITY)) break;
    }
    found->logs[0] = l.logs[0];
    found->count = 1;
    free(logits);
    end_live(&l);
}
