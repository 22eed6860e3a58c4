/* The searches of saccade.decoding for a Transformer and any number of sentences, in one call.
 *
 * They do what greedy.py and beam.py do, step for step and in the same order; those say why. No step waits for Python, and
 * when a sentence ends the next one takes its place: a step has rows of sentences that are at different places, and is as
 * large as it is fastest with until the last sentences are begun. Sentences that are not encoded yet are encoded a few at a
 * time when their turn comes, so that their memory is in the cache and never that of all. What is found does not depend on
 * who is beside whom, but for rounding where a few rows are multiplied in another way than many. */

#include "argmax_int8.h"
#include "transformer_sublayers.h"
#include "top_k.h"

#define ROWS_AT_ONCE 30   /* of a step, about: few enough for the cache (docs/log.md) */
#define LOGITS_AT_ONCE 12 /* of these, whose logits are made before anybody looks at them: for the cache too */
#define LARGE (16 << 20)  /* bytes of weights that are in no cache anyway: */
#define TIMES_IF_LARGE 4  /* as many of both then, so that each weight is read for more rows */
#define MANY_ROWS 12      /* of a step: worth turning the decoder's weights round for */
#define MANY_PLACES 48    /* of all sources: the same for what encodes them */
#define TAKEN_AT_ONCE 8   /* sentences that a thread takes, and encodes together */
#define STEPS_A_BLOCK 16  /* whose keys and values are beside each other */

static _Atomic int searches; /* calls that run now, of several threads of Python */

/* As many threads as a step may take: several teams on the same cores would wait for each other at every product. */
static int team_of(int threads) { return searches > 1 ? 1 : threads; }

/* What to search for. */
typedef struct {
    const decoder *decoder;
    const words *words;
    const sources *sources; /* or NULL, and there is a memory */
    memory memory;
    const rules *rules;
    int64_t sentences, taken, beam;
    int64_t wanted, logits; /* continuations of a hypothesis that are looked at, LOGITS_AT_ONCE */
    hypotheses found;
    float *turned_output;        /* or NULL */
    float *const *turned_memory; /* (layers): what makes the keys and values of the memory, or NULL */
} task;

/* Sentences that were taken together, and their memory, which is let go with the last of them. */
typedef struct {
    memory memory;
    int64_t before, left; /* number of the memory's first sentence; how many are not done */
    float *values;        /* those of the memory, if they were made for these sentences alone */
    int64_t *places;
} bunch;

/* A sentence that is being searched: its live hypotheses, at most `most` of them, and what all their steps have left. */
typedef struct {
    bunch *bunch;
    int64_t number, rows, most, limit, count;
    float **steps;          /* (limit): some of them are parts of one block (layers, STEPS_A_BLOCK, most, 2 width) */
    int64_t *layer_strides; /* (limit) */
    int64_t *origin, *next_origin;       /* (most, limit) */
    int64_t *tokens, *next_tokens;       /* (most, limit), without the beginning */
    float *token_logs, *next_token_logs; /* (most, limit) */
    float *logs;                         /* (most) */
} live;

static void *room(int64_t count, size_t size)
{
    void *place = calloc((size_t)(count ? count : 1), size);
    if (!place) abort();
    return place;
}

/* A token at a place as a row. */
INLINE void embed(int64_t width, const float *table, int64_t token, float scale, const float *positions, int64_t place,
                  float *x)
{
    for (int64_t at = 0; at < width; at++) x[at] = table[token * width + at] * scale + positions[place * width + at];
}

/* Keys and values of `count` sentences from `first` on, from their tokens. */
static void encode_bunch(int threads, const task *t, int64_t first, int64_t count, bunch *own)
{
    const sources *s = t->sources;
    shape d = t->decoder->shape;
    const int64_t *starts = s->starts + first;
    int64_t width = d.width, begin = starts[0], rows = starts[count] - begin;
    float *x = room(rows * width, 4), *out = room(rows * width, 4);
    own->values = room(d.layers * rows * 2 * width, 4);
    own->places = room(2 * count, sizeof(*own->places));
    for (int64_t i = 0; i < count; i++) {
        own->places[i] = starts[i] - begin;
        own->places[count + i] = starts[i + 1] - starts[i];
    }
    for (int64_t row = 0; row < rows; row++)
        embed(width, s->embedding, s->tokens[begin + row], s->scale, s->positions, s->places[begin + row],
              x + row * width);
    encode_rows(threads, s->encoder, count, starts, x, out);
#pragma omp parallel for num_threads(threads) if (rows * width * width >= 8 * ALONE_BELOW) schedule(static)
    for (int64_t l = 0; l < d.layers; l++) {
        const decoder_weights *w = t->decoder->weights + l;
        float *turned[MATRICES] = {[KEY_VALUE] = t->turned_memory ? t->turned_memory[l] : NULL};
        other_forms other = {w->other.bytes, t->turned_memory ? turned : NULL};
        linear(1, rows, width, 2 * width, out, w->key_value, other, KEY_VALUE, own->values + l * rows * 2 * width);
    }
    own->before = first;
    own->memory = (memory){own->values, rows, own->places, own->places + count};
    free(x);
    free(out);
}

/* The next sentences that nobody has taken, *first to *last; who takes which depends on the clock. NULL: there are none. */
static bunch *take_next(int threads, const task *t, int64_t *next, int64_t *first, int64_t *last)
{
#pragma omp atomic capture
    {
        *first = *next;
        *next += t->taken;
    }
    if (*first >= t->sentences) return NULL;
    *last = *first + t->taken < t->sentences ? *first + t->taken : t->sentences;
    bunch *own = room(1, sizeof(*own));
    own->left = *last - *first;
    if (t->sources)
        encode_bunch(threads, t, *first, own->left, own);
    else
        own->memory = t->memory;
    return own;
}

static void leave(bunch *own)
{
    if (--own->left) return;
    free(own->values);
    free(own->places);
    free(own);
}

static live begin_live(const task *t, bunch *own, int64_t number)
{
    int64_t most = t->beam, limit = t->rules->limits[number];
    live l = {.bunch = own, .number = number, .rows = 1, .most = most, .limit = limit};
    l.steps = room(limit, sizeof(*l.steps));
    l.layer_strides = room(limit, sizeof(*l.layer_strides));
    l.origin = room(2 * most * limit, sizeof(*l.origin));
    l.tokens = room(2 * most * limit, sizeof(*l.tokens));
    l.token_logs = room(2 * most * limit, sizeof(*l.token_logs));
    l.logs = room(most, sizeof(*l.logs));
    l.next_origin = l.origin + most * limit;
    l.next_tokens = l.tokens + most * limit;
    l.next_token_logs = l.token_logs + most * limit;
    return l;
}

static void end_live(live *l)
{
    leave(l->bunch);
    for (int64_t t = 0; t < l->count; t += STEPS_A_BLOCK) free(l->steps[t]);
    free(l->steps);
    free(l->layer_strides);
    free(l->origin < l->next_origin ? l->origin : l->next_origin);
    free(l->tokens < l->next_tokens ? l->tokens : l->next_tokens);
    free(l->token_logs < l->next_token_logs ? l->token_logs : l->next_token_logs);
    free(l->logs);
}

/* Room for a step of all sentences. */
typedef struct {
    past *groups;    /* (sentences) */
    float *x, *out;  /* (rows, width) */
    float *logits;   /* (logits, vocabulary), unless only the largest is looked for */
    float *values;   /* (rows, wanted) */
    int64_t *places; /* (rows, wanted) */
    int64_t *nevers; /* (rows): how many tokens each may not write */
} buffers;

/* Where the rows end that may write what the first of them may. */
static int64_t end_of_alike(const int64_t *nevers, int64_t first, int64_t rows)
{
    int64_t last = first + 1;
    while (last < rows && nevers[last] == nevers[first]) last++;
    return last;
}

/* The most probable token of each row. */
static void choose_one(int threads, const task *t, int64_t rows, buffers b)
{
    const words *w = t->words;
    for (int64_t first = 0, last; first < rows; first = last) {
        last = end_of_alike(b.nevers, first, rows);
        screen_best(threads, last - first, b.out + first * t->decoder->shape.width, w->screen, !w->bytes, b.nevers[first],
                    t->rules->never, b.values + first, b.places + first);
    }
}

/* The most probable tokens of each row, with their log-probabilities: (rows, wanted). */
static void choose_some(int threads, const task *t, int64_t rows, buffers b)
{
    const words *w = t->words;
    int64_t width = t->decoder->shape.width;
    float *turned = t->turned_output;
    other_forms output = {w->bytes, turned ? &turned : NULL};
    for (int64_t at = 0; at < rows; at += t->logits) {
        int64_t end = at + t->logits < rows ? at + t->logits : rows;
        const float *x = b.out + at * width;
        linear(threads, end - at, width, w->vocabulary, x, w->output, output, 0, b.logits);
        for (int64_t first = at, last; first < end; first = last) {
            last = end_of_alike(b.nevers, first, end);
            largest(threads, last - first, w->vocabulary, b.logits + (first - at) * w->vocabulary, b.nevers[first],
                    t->rules->never, t->wanted, b.values + first * t->wanted, b.places + first * t->wanted);
        }
    }
}

/* One more place of all live hypotheses: the most probable tokens of each, (rows, wanted). */
static void look_further(int threads, const task *t, int64_t count, live *some, buffers b)
{
    const words *w = t->words;
    const rules *r = t->rules;
    int64_t width = t->decoder->shape.width, layers = t->decoder->shape.layers, rows = 0;
    for (int64_t i = 0; i < count; i++) {
        live *l = some + i;
        int64_t place = l->count++;
        int64_t step = l->most * 2 * width, block = layers * STEPS_A_BLOCK * step;
        l->steps[place] = place % STEPS_A_BLOCK ? l->steps[place - 1] + step : room(block, 4);
        l->layer_strides[place] = STEPS_A_BLOCK * step;
        b.groups[i] = (past){.rows = l->rows, .count = l->count, .places = l->limit, .row = 2 * width, .steps = l->steps,
                             .layer_strides = l->layer_strides, .origin = l->origin, .memory = &l->bunch->memory,
                             .sentence = l->number - l->bunch->before, .beam = l->rows};
        for (int64_t row = 0; row < l->rows; row++, rows++) {
            int64_t token = place ? l->tokens[row * l->limit + place - 1] : r->begin;
            l->origin[row * l->limit + place] = row;
            b.nevers[rows] = r->nevers - (place >= r->min_length);
            embed(width, w->embedding, token, w->scale, w->positions, place, b.x + rows * width);
        }
    }
    decoder_step(threads, t->decoder, count, b.groups, b.x, b.out);
    int64_t work = rows * width * w->vocabulary / (w->screen || w->bytes ? 4 : 1);
    if (!shares_products(t->decoder, rows) && work < 4 * PRODUCT_ALONE_BELOW) threads = 1;
    if (w->screen)
        choose_one(threads, t, rows, b);
    else
        choose_some(threads, t, rows, b);
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

/* Put a hypothesis among the `most` best of its sentence: a finished one before every other, else by score, after its
 * equals. */
static void keep(const hypotheses *h, const live *l, candidate last, float score, int64_t finished)
{
    int64_t *lengths = h->lengths + l->number * h->most, *ended = h->finished + l->number * h->most;
    float *logs = h->logs + l->number * h->most, *scores = h->scores + l->number * h->most;
    int64_t *tokens = h->tokens + h->starts[l->number], *count = h->counts + l->number, at = *count;
    float *token_logs = h->token_logs + h->starts[l->number];
    while (at && (ended[at - 1] < finished || (ended[at - 1] == finished && scores[at - 1] < score))) at--;
    if (at == h->most) return;
    int64_t moved = (*count < h->most ? *count : h->most - 1) - at, limit = l->limit, length = l->count;
#define MOVE(column, each) \
    memmove((column) + (at + 1) * (each), (column) + at * (each), (size_t)(moved * (each)) * sizeof(*(column)))
    MOVE(tokens, limit);
    MOVE(token_logs, limit);
    MOVE(lengths, 1);
    MOVE(ended, 1);
    MOVE(logs, 1);
    MOVE(scores, 1);
#undef MOVE
    memcpy(tokens + at * limit, l->tokens + last.parent * limit, 8 * (size_t)(length - 1));
    memcpy(token_logs + at * limit, l->token_logs + last.parent * limit, 4 * (size_t)(length - 1));
    tokens[at * limit + length - 1] = last.token;
    token_logs[at * limit + length - 1] = last.log;
    lengths[at] = length;
    ended[at] = finished;
    logs[at] = last.total;
    scores[at] = score;
    *count += *count < h->most;
}

/* Continue with the first `rows` of `going`. */
static void advance(live *l, int64_t rows, const candidate *going)
{
    int64_t limit = l->limit, done = l->count - 1;
    for (int64_t row = 0; row < rows; row++) {
        int64_t from = going[row].parent * limit, to = row * limit;
        memcpy(l->next_origin + to, l->origin + from, 8 * (size_t)l->count);
        memcpy(l->next_tokens + to, l->tokens + from, 8 * (size_t)done);
        memcpy(l->next_token_logs + to, l->token_logs + from, 4 * (size_t)done);
        l->next_tokens[to + done] = going[row].token;
        l->next_token_logs[to + done] = going[row].log;
        l->logs[row] = going[row].total;
    }
    live before = *l;
    l->rows = rows;
    l->origin = before.next_origin, l->next_origin = before.origin;
    l->tokens = before.next_tokens, l->next_tokens = before.tokens;
    l->token_logs = before.next_token_logs, l->next_token_logs = before.token_logs;
}

/* Whether a sentence goes on after a step with a beam; `all_of_them` has room for every candidate. */
static int further_by_beam(const task *t, live *l, const float *values, const int64_t *places, candidate *all_of_them)
{
    const rules *r = t->rules;
    const hypotheses *found = &t->found;
    int64_t beam = t->beam, count = l->rows * t->wanted, rows = 0, worst_place = (l->number + 1) * found->most - 1;
    for (int64_t i = 0; i < count; i++) {
        int64_t parent = i / t->wanted;
        float total = l->logs[parent] + values[i];
        all_of_them[i] = (candidate){parent, places[i], values[i], total == total ? total : -INFINITY};
    }
    sort_candidates(count, all_of_them);
    count = count < 2 * beam ? count : 2 * beam;
    float penalty = r->penalties[l->count - 1];
    for (int64_t i = 0; i < count; i++) { /* those that go on come to the front */
        candidate one = all_of_them[i];
        if (!(one.total > -INFINITY)) break;
        if (one.token == r->end)
            keep(found, l, one, one.total / penalty, 1);
        else if (rows < beam)
            all_of_them[rows++] = one;
    }
    if (l->count == l->limit) {
        for (int64_t i = 0; i < rows; i++) keep(found, l, all_of_them[i], all_of_them[i].total / penalty, 0);
        return 0;
    }
    int full = found->counts[l->number] == found->most && found->finished[worst_place];
    float worst = full ? found->scores[worst_place] : -INFINITY;
    int64_t hopeful = 0;
    while (hopeful < rows && !(worst >= all_of_them[hopeful].total / r->penalties[l->limit - 1])) hopeful++;
    if (hopeful) advance(l, hopeful, all_of_them);
    return hopeful > 0;
}

/* The same with the most probable token alone. */
static int further_greedily(const task *t, live *l, float value, int64_t token)
{
    int64_t ended = token == t->rules->end;
    float log = isfinite(value) ? l->logs[0] + value : -INFINITY;
    candidate next = {0, token, value, log};
    if (ended || l->count == l->limit || !isfinite(log)) {
        keep(&t->found, l, next, log / t->rules->penalties[l->count - 1], ended);
        return 0;
    }
    l->tokens[l->count - 1] = token;
    l->token_logs[l->count - 1] = value;
    l->logs[0] = log;
    return 1;
}

/* Search sentences until there are no more, at most `together` of them at a time. */
static void search_some(int threads, const task *t, int64_t together, int64_t *next)
{
    int64_t most = together * t->beam, width = t->decoder->shape.width, count = 0, number = 0, last = 0;
    bunch *taken = NULL;
    live *some = room(together, sizeof(*some));
    candidate *candidates = room(t->beam * t->wanted, sizeof(*candidates));
    buffers b = {room(together, sizeof(past)),
                 room(most * width, 4),
                 room(most * width, 4),
                 t->words->screen ? NULL : room(t->logits * t->words->vocabulary, 4),
                 room(most * t->wanted, 4),
                 room(most * t->wanted, 8),
                 room(most, 8)};
    for (int64_t more = 1;;) {
        while (more && count < together) {
            if (number == last) taken = take_next(threads, t, next, &number, &last);
            more = taken != NULL;
            if (more) some[count++] = begin_live(t, taken, number++);
        }
        if (!count) break;
        look_further(team_of(threads), t, count, some, b);
        int64_t row = 0, left = 0;
        for (int64_t i = 0; i < count; i++) {
            live *l = some + i;
            const float *values = b.values + row * t->wanted;
            const int64_t *places = b.places + row * t->wanted;
            row += l->rows;
            if (t->beam > 1 ? further_by_beam(t, l, values, places, candidates) : further_greedily(t, l, *values, *places))
                some[left++] = *l;
            else
                end_live(l);
        }
        count = left;
    }
    free(b.nevers);
    free(b.places);
    free(b.values);
    free(b.logits);
    free(b.out);
    free(b.x);
    free(b.groups);
    free(candidates);
    free(some);
}

/* How many bytes of weights a step reads. */
static int64_t weights_of(const decoder *d, const words *w)
{
    int64_t width = d->shape.width, layer = width * (6 * width + 2 * d->shape.inner);
    int64_t in_layers = d->shape.layers * layer, in_output = w->vocabulary * width;
    return in_layers * (d->weights->other.bytes ? 1 : 4) + in_output * (w->bytes || w->screen ? 1 : 4);
}

/* What both stacks have of a layer, turned round, with room for the rest. */
static float **turned_matrices(int threads, shape s, const float *own, const float *own_output, const float *expand,
                               const float *contract)
{
    float **turned = room(MATRICES, sizeof(*turned));
    turned[OWN] = turned_round(threads, s.width, 3 * s.width, own);
    turned[OWN_OUTPUT] = turned_round(threads, s.width, s.width, own_output);
    turned[EXPAND] = turned_round(threads, s.width, s.inner, expand);
    turned[CONTRACT] = turned_round(threads, s.inner, s.width, contract);
    return turned;
}

static void free_matrices(float **turned)
{
    for (int place = 0; place < MATRICES; place++) free(turned[place]);
    free(turned);
}

/* The layers with all of their weights turned round. */
static decoder_weights *turned_decoder(int threads, const decoder *d)
{
    int64_t width = d->shape.width;
    decoder_weights *layers = room(d->shape.layers, sizeof(*layers));
    for (int64_t l = 0; l < d->shape.layers; l++) {
        decoder_weights *w = layers + l;
        *w = d->weights[l];
        float **turned = turned_matrices(threads, d->shape, w->own, w->own_output, w->expand, w->contract);
        turned[CROSS] = turned_round(threads, width, width, w->cross);
        turned[CROSS_OUTPUT] = turned_round(threads, width, width, w->cross_output);
        w->other.turned = turned;
    }
    return layers;
}

static encoder_weights *turned_encoder(int threads, const encoder *e)
{
    encoder_weights *layers = room(e->shape.layers, sizeof(*layers));
    for (int64_t l = 0; l < e->shape.layers; l++) {
        encoder_weights *w = layers + l;
        *w = e->weights[l];
        w->other.turned = turned_matrices(threads, e->shape, w->own, w->own_output, w->expand, w->contract);
    }
    return layers;
}

static float **turned_keys_values(int threads, const decoder *d)
{
    float **turned = room(d->shape.layers, sizeof(*turned));
    for (int64_t l = 0; l < d->shape.layers; l++)
        turned[l] = turned_round(threads, d->shape.width, 2 * d->shape.width, d->weights[l].key_value);
    return turned;
}

/* The best hypotheses of every sentence, greedy if the beam is 1, from their sources or from a memory. Threads share the
 * sentences, or the products of fewer sentences than threads. */
EXPORT void saccade_search(int threads, const decoder *d, const words *w, const sources *s, memory m, const rules *r,
                           int64_t sentences, int64_t beam, hypotheses found)
{
    int64_t wanted = beam == 1 ? 1 : 2 * beam < w->vocabulary ? 2 * beam : w->vocabulary, next = 0;
    int64_t times = weights_of(d, w) > LARGE ? TIMES_IF_LARGE : 1;
    int64_t together = times * ROWS_AT_ONCE / beam > 1 ? times * ROWS_AT_ONCE / beam : 1;
    int64_t share = sentences < threads ? sentences : (sentences + threads - 1) / threads;
    together = together < share ? together : share;
    decoder own = *d;
    decoder_weights *turned = together * beam < MANY_ROWS || d->weights->other.bytes ? NULL : turned_decoder(threads, d);
    float *output = NULL;
    if (turned) {
        own.weights = turned;
        if (!w->screen && !w->bytes) output = turned_round(threads, d->shape.width, w->vocabulary, w->output);
    }
    sources from = {0};
    encoder reading = {0};
    encoder_weights *read = NULL;
    float **turned_memory = NULL;
    if (s) {
        int many = s->starts[sentences] - s->starts[0] >= MANY_PLACES;
        reading = *s->encoder;
        from = *s;
        from.encoder = &reading;
        if (many && !reading.weights->other.bytes) reading.weights = read = turned_encoder(threads, s->encoder);
        if (many && !d->weights->other.bytes) turned_memory = turned_keys_values(threads, d);
    }
    int64_t taken = share / 4 < TAKEN_AT_ONCE ? share / 4 : TAKEN_AT_ONCE; /* a last share of one thread stays small */
    task t = {.decoder = &own, .words = w, .sources = s ? &from : NULL, .memory = m, .rules = r, .sentences = sentences,
              .taken = taken ? taken : 1, .beam = beam, .wanted = wanted, .logits = times * LOGITS_AT_ONCE,
              .found = found, .turned_output = output, .turned_memory = turned_memory};
    searches++;
    if (sentences < threads)
        search_some(threads, &t, together, &next);
    else
#pragma omp parallel num_threads(threads)
        search_some(1, &t, together, &next);
    searches--;
    for (int64_t l = 0; turned && l < d->shape.layers; l++) free_matrices(turned[l].other.turned);
    for (int64_t l = 0; read && l < s->encoder->shape.layers; l++) free_matrices(read[l].other.turned);
    for (int64_t l = 0; turned_memory && l < d->shape.layers; l++) free(turned_memory[l]);
    free(turned_memory);
    free(turned);
    free(read);
    free(output);
}
