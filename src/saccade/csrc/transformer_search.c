/* Greedy and beam search of a Transformer for any number of sentences, in one call.
 *
 * The algorithms are those of decoding/greedy.py and decoding/beam.py, step for step. No step waits for Python, and
 * when a sentence ends the next one takes its slot (continuous batching): the rows of a step belong to sentences at
 * different positions, and a step keeps its best size until the last sentences have begun. Sentences that are not
 * encoded yet are encoded a few at a time, just before their search, so that their memory is in the cache. Results
 * do not depend on which sentences share a step, except for rounding where a few rows are multiplied by another
 * kernel than many. */

#include "allocation.h"
#include "argmax_int8.h"
#include "top_k.h"
#include "transformer_sublayers.h"

#define ROWS_PER_STEP 30          /* about: few enough for the cache (docs/log.md) */
#define LOGIT_ROWS 12             /* rows of logits that are computed before their top k: for the cache too */
#define LARGE_WEIGHTS (16 << 20)  /* bytes of weights that no cache holds anyway, so that */
#define LARGE_FACTOR 4            /* times as many rows share each read of a weight */
#define MIN_TRANSPOSE_ROWS 12     /* rows per step from which block-transposing the decoder's weights pays off */
#define MIN_TRANSPOSE_TOKENS 48   /* source tokens from which it pays off for the encoder */
#define SENTENCES_PER_GROUP 8     /* that a thread takes and encodes together */
#define STEPS_PER_BLOCK 16        /* steps whose keys and values are allocated together */

static _Atomic int searches; /* calls that run now, from several Python threads */

/* The number of threads of a step: several OpenMP teams on the same cores would wait for each other at every
 * product. */
static int team_size(int threads) { return searches > 1 ? 1 : threads; }

/* The arguments of a search, and what its threads share. */
typedef struct {
    const decoder_stack *decoder;
    const token_tables *tables;
    const source_batch *sources; /* NULL if there is a memory */
    packed_memory memory;
    const search_limits *limits;
    int64_t sentences, group_size, beam;
    int64_t candidates; /* continuations of a hypothesis that are ranked */
    int64_t logit_rows;
    hypothesis_buffers found;
    float *transposed_output;       /* or NULL */
    float *const *transposed_cross; /* (layers): the block-transposed cross_kv weights, or NULL */
    const int *stop;                /* a flag that ends the search when it is set, or NULL */
    int *status;                    /* the first failure of any thread ends all */
} search_task;

/* Whether the search was stopped or has failed. */
static int ended(const search_task *task)
{
    if (is_set(task->stop)) record(task->status, STOPPED);
    return recorded(task->status) != SUCCESS;
}

/* Sentences that were taken together, and their memory, which is freed with the last of them. */
typedef struct {
    packed_memory memory;
    int64_t first_sentence, remaining;
    float **kv;     /* (layers): pointers into `storage` */
    float *storage; /* (layers, rows, 2 width), if the memory was made for this group */
    int64_t *ranges; /* the first row and the number of rows of each sentence */
} sentence_group;

/* A sentence in search: its live hypotheses, at most `beam` of them. */
typedef struct {
    sentence_group *group;
    int64_t number, hypotheses, beam, limit, positions;
    float **steps;                 /* (limit, layers): into blocks (layers, STEPS_PER_BLOCK, beam, 2 width) */
    int64_t *origin, *next_origin; /* (beam, limit) */
    int64_t *tokens, *next_tokens; /* (beam, limit), without the begin token */
    float *token_log_probabilities, *next_token_log_probabilities; /* (beam, limit) */
    float *log_probabilities;                                      /* (beam) */
} live_sentence;

/* The embedding of a token at a position. */
INLINE void embed(int64_t width, const float *table, int64_t token, float scale, const float *positions,
                  int64_t position, float *x)
{
    for (int64_t at = 0; at < width; at++) x[at] = table[token * width + at] * scale + positions[position * width + at];
}

/* Encode the sentences of a group and project their memory. */
static int encode_group(int threads, const search_task *task, int64_t first, int64_t count, sentence_group *group)
{
    const source_batch *s = task->sources;
    stack_shape shape = task->decoder->shape;
    const int64_t *cu_seqlens = s->cu_seqlens + first;
    int64_t width = shape.width, begin = cu_seqlens[0], rows = cu_seqlens[count] - begin;
    float *x = zeroed(rows * width, 4), *out = zeroed(rows * width, 4);
    group->storage = zeroed(shape.layers * rows * 2 * width, 4);
    group->kv = zeroed(shape.layers, sizeof(*group->kv));
    group->ranges = zeroed(2 * count, sizeof(*group->ranges));
    int status = x && out && group->storage && group->kv && group->ranges ? SUCCESS : OUT_OF_MEMORY;
    if (status == SUCCESS) {
        for (int64_t i = 0; i < count; i++) {
            group->ranges[i] = cu_seqlens[i] - begin;
            group->ranges[count + i] = cu_seqlens[i + 1] - cu_seqlens[i];
        }
        for (int64_t row = 0; row < rows; row++)
            embed(width, s->embedding, s->tokens[begin + row], s->scale, s->positions, s->position_ids[begin + row],
                  x + row * width);
        status = encoder_forward(threads, s->encoder, count, cu_seqlens, x, out, task->stop);
    }
    if (status == SUCCESS) {
#pragma omp parallel for num_threads(threads) if (rows * width * width >= 8 * PARALLEL_THRESHOLD) schedule(static)
        for (int64_t l = 0; l < shape.layers; l++) {
            const decoder_layer_weights *w = task->decoder->layers + l;
            float *transposed[MATRICES] = {[CROSS_KV] = task->transposed_cross ? task->transposed_cross[l] : NULL};
            weight_forms forms = {w->forms.int8, task->transposed_cross ? transposed : NULL};
            group->kv[l] = group->storage + l * rows * 2 * width;
            record(&status, linear(1, rows, width, 2 * width, out, w->cross_kv, forms, CROSS_KV, group->kv[l]));
        }
    }
    group->first_sentence = first;
    group->memory = (packed_memory){group->kv, rows, group->ranges, group->ranges + count, count};
    free(x);
    free(out);
    return status;
}

/* Release some sentences of a group; the last ones free it. */
static void release_group(sentence_group *group, int64_t sentences)
{
    group->remaining -= sentences;
    if (group->remaining) return;
    free(group->storage);
    free(group->kv);
    free(group->ranges);
    free(group);
}

/* The next sentences that no thread has taken, *first to *last; NULL if there are none, or after a failure. Which
 * thread takes which sentences depends on the clock. */
static sentence_group *take_group(int threads, const search_task *task, int64_t *next, int64_t *first, int64_t *last)
{
    int64_t taken;
#pragma omp atomic capture
    {
        taken = *next;
        *next += task->group_size;
    }
    *first = *last = taken;
    if (taken >= task->sentences) return NULL;
    int64_t end = taken + task->group_size < task->sentences ? taken + task->group_size : task->sentences;
    sentence_group *group = zeroed(1, sizeof(*group));
    if (!group) {
        record(task->status, OUT_OF_MEMORY);
        return NULL;
    }
    group->remaining = end - taken;
    int status = SUCCESS;
    if (task->sources)
        status = encode_group(threads, task, taken, group->remaining, group);
    else
        group->memory = task->memory;
    if (status != SUCCESS) {
        record(task->status, status);
        release_group(group, group->remaining);
        return NULL;
    }
    *last = end;
    return group;
}

/* Free a sentence's own buffers. */
static void free_live(live_sentence *l, int64_t layers)
{
    for (int64_t t = 0; l->steps && t < l->positions; t += STEPS_PER_BLOCK) free(l->steps[t * layers]);
    free(l->steps);
    free(l->origin < l->next_origin ? l->origin : l->next_origin);
    free(l->tokens < l->next_tokens ? l->tokens : l->next_tokens);
    free(l->token_log_probabilities < l->next_token_log_probabilities ? l->token_log_probabilities
                                                                      : l->next_token_log_probabilities);
    free(l->log_probabilities);
}

/* Begin the search of sentence `number`; returns a status. */
static int begin_live(const search_task *task, sentence_group *group, int64_t number, live_sentence *found)
{
    int64_t beam = task->beam, limit = task->limits->limits[number], layers = task->decoder->shape.layers;
    live_sentence l = {.group = group, .number = number, .hypotheses = 1, .beam = beam, .limit = limit};
    int64_t slots = size_product(2 * beam, limit);
    int64_t *origin = zeroed(slots, sizeof(*origin)), *tokens = zeroed(slots, sizeof(*tokens));
    float *logs = zeroed(slots, sizeof(*logs));
    l.steps = zeroed(size_product(limit, layers), sizeof(*l.steps));
    l.log_probabilities = zeroed(beam, sizeof(*l.log_probabilities));
    if (!origin || !tokens || !logs || !l.steps || !l.log_probabilities) {
        free(origin);
        free(tokens);
        free(logs);
        free(l.steps);
        free(l.log_probabilities);
        return OUT_OF_MEMORY;
    }
    l.origin = origin, l.next_origin = origin + beam * limit;
    l.tokens = tokens, l.next_tokens = tokens + beam * limit;
    l.token_log_probabilities = logs, l.next_token_log_probabilities = logs + beam * limit;
    *found = l;
    return SUCCESS;
}

/* Buffers for one step of all live sentences. */
typedef struct {
    kv_cache_view *views;      /* (live sentences) */
    float *x, *out;            /* (rows, width) */
    float *logits;             /* (logit_rows, vocabulary), unless only the largest logit is needed */
    float *values;             /* (rows, candidates) */
    int64_t *tokens;           /* (rows, candidates) */
    int64_t *suppressed_count; /* (rows) */
} step_buffers;

/* Allocate the buffers of a step for some sentences; returns a status. The caller frees them after a failure too. */
static int allocate_buffers(const search_task *task, int64_t sentences, step_buffers *b)
{
    int64_t rows = sentences * task->beam, width = task->decoder->shape.width;
    b->views = zeroed(sentences, sizeof(*b->views));
    b->x = zeroed(rows * width, 4);
    b->out = zeroed(rows * width, 4);
    b->logits = task->tables->int8_argmax ? NULL : zeroed(size_product(task->logit_rows, task->tables->vocabulary), 4);
    b->values = zeroed(size_product(rows, task->candidates), 4);
    b->tokens = zeroed(size_product(rows, task->candidates), 8);
    b->suppressed_count = zeroed(rows, 8);
    int complete = b->views && b->x && b->out && b->values && b->tokens && b->suppressed_count;
    return complete && (b->logits || task->tables->int8_argmax) ? SUCCESS : OUT_OF_MEMORY;
}

/* Free the buffers of a step. */
static void free_buffers(step_buffers *b)
{
    free(b->suppressed_count);
    free(b->tokens);
    free(b->values);
    free(b->logits);
    free(b->out);
    free(b->x);
    free(b->views);
}

/* The end of the rows from `first` on that have the same suppressed tokens. */
static int64_t end_of_alike(const int64_t *suppressed_count, int64_t first, int64_t rows)
{
    int64_t last = first + 1;
    while (last < rows && suppressed_count[last] == suppressed_count[first]) last++;
    return last;
}

/* The most probable token of each row, without all logits. */
static int argmax_tokens(int threads, const search_task *task, int64_t rows, step_buffers b)
{
    const token_tables *w = task->tables;
    int status = SUCCESS;
    for (int64_t first = 0, last; status == SUCCESS && first < rows; first = last) {
        last = end_of_alike(b.suppressed_count, first, rows);
        status = argmax_int8(threads, last - first, b.out + first * task->decoder->shape.width, w->int8_argmax,
                             !w->int8_output, b.suppressed_count[first], task->limits->suppressed, b.values + first,
                             b.tokens + first);
    }
    return status;
}

/* The most probable tokens of each row and their log-probabilities, (rows, candidates). */
static int top_k_tokens(int threads, const search_task *task, int64_t rows, step_buffers b)
{
    const token_tables *w = task->tables;
    int64_t width = task->decoder->shape.width, k = task->candidates;
    float *transposed = task->transposed_output;
    weight_forms forms = {w->int8_output, transposed ? &transposed : NULL};
    int status = SUCCESS;
    for (int64_t at = 0; status == SUCCESS && at < rows; at += task->logit_rows) {
        int64_t end = at + task->logit_rows < rows ? at + task->logit_rows : rows;
        const float *x = b.out + at * width;
        status = linear(threads, end - at, width, w->vocabulary, x, w->output, forms, 0, b.logits);
        for (int64_t first = at, last; status == SUCCESS && first < end; first = last) {
            last = end_of_alike(b.suppressed_count, first, end);
            status = top_k_rows(threads, last - first, w->vocabulary, b.logits + (first - at) * w->vocabulary,
                                b.suppressed_count[first], task->limits->suppressed, k, b.values + first * k,
                                b.tokens + first * k);
        }
    }
    return status;
}

/* Pointers to the keys and values of a sentence's next step, in all layers. */
static int append_step(live_sentence *l, stack_shape s)
{
    int64_t step = l->beam * 2 * s.width, slot = l->positions % STEPS_PER_BLOCK;
    float **pointers = l->steps + l->positions * s.layers;
    float *block = slot ? l->steps[(l->positions - slot) * s.layers] : zeroed(s.layers * STEPS_PER_BLOCK * step, 4);
    if (!block) return OUT_OF_MEMORY;
    for (int64_t layer = 0; layer < s.layers; layer++)
        pointers[layer] = block + (layer * STEPS_PER_BLOCK + slot) * step;
    l->positions++;
    return SUCCESS;
}

/* One step of all live hypotheses: the most probable next tokens of each, (rows, candidates). */
static int search_step(int threads, const search_task *task, int64_t count, live_sentence *live, step_buffers b)
{
    const token_tables *w = task->tables;
    const search_limits *limits = task->limits;
    int64_t width = task->decoder->shape.width, rows = 0;
    for (int64_t i = 0; i < count; i++) {
        live_sentence *l = live + i;
        int64_t position = l->positions;
        int status = append_step(l, task->decoder->shape);
        if (status != SUCCESS) return status;
        b.views[i] = (kv_cache_view){.hypotheses = l->hypotheses, .positions = l->positions, .capacity = l->limit,
                                     .row_width = 2 * width, .steps = l->steps, .origin = l->origin,
                                     .memory = &l->group->memory,
                                     .first_sentence = l->number - l->group->first_sentence, .beam = l->hypotheses};
        for (int64_t n = 0; n < l->hypotheses; n++, rows++) {
            int64_t token = position ? l->tokens[n * l->limit + position - 1] : limits->begin;
            l->origin[n * l->limit + position] = n;
            b.suppressed_count[rows] = limits->suppressed_count - (position >= limits->min_length);
            embed(width, w->embedding, token, w->scale, w->positions, position, b.x + rows * width);
        }
    }
    int status = decoder_step(threads, task->decoder, count, b.views, b.x, b.out);
    if (status != SUCCESS) return status;
    int64_t work = rows * width * w->vocabulary / (w->int8_argmax || w->int8_output ? 4 : 1);
    if (!parallel_step(task->decoder, rows) && work < 4 * GEMM_PARALLEL_THRESHOLD) threads = 1;
    return w->int8_argmax ? argmax_tokens(threads, task, rows, b) : top_k_tokens(threads, task, rows, b);
}

/* A continuation of hypothesis `parent`: its next token, and the log-probabilities of token and hypothesis. */
typedef struct {
    int64_t parent, token;
    float log, total;
} candidate;

/* Sort candidates by descending total; equal ones keep their order. */
static void sort_candidates(int64_t count, candidate *candidates)
{
    for (int64_t i = 1; i < count; i++) {
        candidate one = candidates[i];
        int64_t at = i;
        for (; at && candidates[at - 1].total < one.total; at--) candidates[at] = candidates[at - 1];
        candidates[at] = one;
    }
}

/* Insert a hypothesis into the n-best list of its sentence: finished ones first, then by score, after equal ones. */
static void insert_hypothesis(const hypothesis_buffers *h, const live_sentence *l, candidate last, float score,
                              int64_t finished)
{
    int64_t *lengths = h->lengths + l->number * h->capacity, *ends = h->finished + l->number * h->capacity;
    float *logs = h->log_probabilities + l->number * h->capacity, *scores = h->scores + l->number * h->capacity;
    int64_t *tokens = h->tokens + h->starts[l->number], *count = h->counts + l->number, at = *count;
    float *token_logs = h->token_log_probabilities + h->starts[l->number];
    while (at && (ends[at - 1] < finished || (ends[at - 1] == finished && scores[at - 1] < score))) at--;
    if (at == h->capacity) return;
    int64_t moved = (*count < h->capacity ? *count : h->capacity - 1) - at, limit = l->limit, length = l->positions;
#define SHIFT(column, size) \
    memmove((column) + (at + 1) * (size), (column) + at * (size), (size_t)(moved * (size)) * sizeof(*(column)))
    SHIFT(tokens, limit);
    SHIFT(token_logs, limit);
    SHIFT(lengths, 1);
    SHIFT(ends, 1);
    SHIFT(logs, 1);
    SHIFT(scores, 1);
#undef SHIFT
    memcpy(tokens + at * limit, l->tokens + last.parent * limit, 8 * (size_t)(length - 1));
    memcpy(token_logs + at * limit, l->token_log_probabilities + last.parent * limit, 4 * (size_t)(length - 1));
    tokens[at * limit + length - 1] = last.token;
    token_logs[at * limit + length - 1] = last.log;
    lengths[at] = length;
    ends[at] = finished;
    logs[at] = last.total;
    scores[at] = score;
    *count += *count < h->capacity;
}

/* Continue with `count` candidates as the live hypotheses. */
static void reorder(live_sentence *l, int64_t count, const candidate *candidates)
{
    int64_t limit = l->limit, done = l->positions - 1;
    for (int64_t n = 0; n < count; n++) {
        int64_t from = candidates[n].parent * limit, to = n * limit;
        memcpy(l->next_origin + to, l->origin + from, 8 * (size_t)l->positions);
        memcpy(l->next_tokens + to, l->tokens + from, 8 * (size_t)done);
        memcpy(l->next_token_log_probabilities + to, l->token_log_probabilities + from, 4 * (size_t)done);
        l->next_tokens[to + done] = candidates[n].token;
        l->next_token_log_probabilities[to + done] = candidates[n].log;
        l->log_probabilities[n] = candidates[n].total;
    }
    live_sentence before = *l;
    l->hypotheses = count;
    l->origin = before.next_origin, l->next_origin = before.origin;
    l->tokens = before.next_tokens, l->next_tokens = before.tokens;
    l->token_log_probabilities = before.next_token_log_probabilities;
    l->next_token_log_probabilities = before.token_log_probabilities;
}

/* Extend a sentence by beam search; returns whether it continues. `candidates` is scratch for
 * beam * task->candidates of them. */
static int extend_beam(const search_task *task, live_sentence *l, const float *values, const int64_t *tokens,
                       candidate *candidates)
{
    const search_limits *limits = task->limits;
    const hypothesis_buffers *found = &task->found;
    int64_t beam = task->beam, count = l->hypotheses * task->candidates, live = 0;
    int64_t worst_slot = (l->number + 1) * found->capacity - 1;
    for (int64_t i = 0; i < count; i++) {
        int64_t parent = i / task->candidates;
        float total = l->log_probabilities[parent] + values[i];
        candidates[i] = (candidate){parent, tokens[i], values[i], total == total ? total : -INFINITY};
    }
    sort_candidates(count, candidates);
    count = count < 2 * beam ? count : 2 * beam;
    float penalty = limits->penalties[l->positions - 1];
    for (int64_t i = 0; i < count; i++) { /* unfinished ones move to the front */
        candidate one = candidates[i];
        if (!(one.total > -INFINITY)) break;
        if (one.token == limits->end)
            insert_hypothesis(found, l, one, one.total / penalty, 1);
        else if (live < beam)
            candidates[live++] = one;
    }
    if (l->positions == l->limit) {
        for (int64_t i = 0; i < live; i++) insert_hypothesis(found, l, candidates[i], candidates[i].total / penalty, 0);
        return 0;
    }
    int full = found->counts[l->number] == found->capacity && found->finished[worst_slot];
    float worst = full ? found->scores[worst_slot] : -INFINITY;
    int64_t hopeful = 0; /* hypotheses that could still be better than the worst finished one */
    while (hopeful < live && !(worst >= candidates[hopeful].total / limits->penalties[l->limit - 1])) hopeful++;
    if (hopeful) reorder(l, hopeful, candidates);
    return hopeful > 0;
}

/* Extend a sentence by its most probable token; returns whether it continues. */
static int extend_greedy(const search_task *task, live_sentence *l, float value, int64_t token)
{
    int64_t finished = token == task->limits->end;
    float log = isfinite(value) ? l->log_probabilities[0] + value : -INFINITY;
    candidate next = {0, token, value, log};
    if (finished || l->positions == l->limit || !isfinite(log)) {
        insert_hypothesis(&task->found, l, next, log / task->limits->penalties[l->positions - 1], finished);
        return 0;
    }
    l->tokens[l->positions - 1] = token;
    l->token_log_probabilities[l->positions - 1] = value;
    l->log_probabilities[0] = log;
    return 1;
}

/* Search sentences until none is left, at most `slots` of them at a time. */
static void search_sentences(int threads, const search_task *task, int64_t slots, int64_t *next)
{
    int64_t layers = task->decoder->shape.layers, count = 0, number = 0, last = 0, more = 1;
    sentence_group *group = NULL;
    step_buffers b;
    int status = allocate_buffers(task, slots, &b);
    live_sentence *live = zeroed(slots, sizeof(*live));
    candidate *candidates = zeroed(task->beam * task->candidates, sizeof(*candidates));
    record(task->status, live && candidates ? status : OUT_OF_MEMORY);
    while (!ended(task)) {
        while (more && count < slots) {
            if (number == last) group = take_group(threads, task, next, &number, &last);
            more = number < last;
            if (!more) break;
            status = begin_live(task, group, number, live + count);
            if (status != SUCCESS) {
                record(task->status, status);
                break;
            }
            number++, count++;
        }
        if (!count || ended(task)) break;
        status = search_step(team_size(threads), task, count, live, b);
        if (status != SUCCESS) {
            record(task->status, status);
            break;
        }
        int64_t row = 0, kept = 0;
        for (int64_t i = 0; i < count; i++) {
            live_sentence *l = live + i;
            const float *values = b.values + row * task->candidates;
            const int64_t *tokens = b.tokens + row * task->candidates;
            row += l->hypotheses;
            int continues = task->beam > 1 ? extend_beam(task, l, values, tokens, candidates)
                                           : extend_greedy(task, l, *values, *tokens);
            if (continues)
                live[kept++] = *l;
            else {
                release_group(l->group, 1);
                free_live(l, layers);
            }
        }
        count = kept;
    }
    for (int64_t i = 0; i < count; i++) { /* after a failure */
        release_group(live[i].group, 1);
        free_live(live + i, layers);
    }
    if (number < last) release_group(group, last - number);
    free(candidates);
    free(live);
    free_buffers(&b);
}

/* Bytes of weights that a step reads. */
static int64_t weight_bytes(const decoder_stack *d, const token_tables *w)
{
    int64_t width = d->shape.width, layer = width * (6 * width + 2 * d->shape.inner);
    int64_t in_layers = d->shape.layers * layer, in_output = w->vocabulary * width;
    return in_layers * (d->layers->forms.int8 ? 1 : 4) + in_output * (w->int8_output || w->int8_argmax ? 1 : 4);
}

/* Block-transpose the matrices that encoder and decoder layers have in common into `to`; false if memory is short. */
static int transpose_shared(int threads, stack_shape s, const float *qkv, const float *attention_output,
                            const float *expand, const float *contract, float **to)
{
    to[QKV] = block_transposed(threads, s.width, 3 * s.width, qkv);
    to[ATTENTION_OUTPUT] = block_transposed(threads, s.width, s.width, attention_output);
    to[EXPAND] = block_transposed(threads, s.width, s.inner, expand);
    to[CONTRACT] = block_transposed(threads, s.inner, s.width, contract);
    return to[QKV] && to[ATTENTION_OUTPUT] && to[EXPAND] && to[CONTRACT];
}

/* Free an array of `count` matrices; NULL is allowed. */
static void free_matrices(int64_t count, float **matrices)
{
    for (int64_t i = 0; matrices && i < count; i++) free(matrices[i]);
    free(matrices);
}

/* Copies of decoder layers with block-transposed weights; returns a status. */
static int transpose_decoder(int threads, const decoder_stack *d, decoder_layer_weights *layers)
{
    int64_t width = d->shape.width;
    for (int64_t l = 0; l < d->shape.layers; l++) {
        const decoder_layer_weights *w = d->layers + l;
        float **to = zeroed(MATRICES, sizeof(*to));
        layers[l] = *w;
        layers[l].forms.transposed = to;
        if (!to || !transpose_shared(threads, d->shape, w->qkv, w->attention_output, w->expand, w->contract, to))
            return OUT_OF_MEMORY;
        to[CROSS_QUERY] = block_transposed(threads, width, width, w->cross_query);
        to[CROSS_OUTPUT] = block_transposed(threads, width, width, w->cross_output);
        if (!to[CROSS_QUERY] || !to[CROSS_OUTPUT]) return OUT_OF_MEMORY;
    }
    return SUCCESS;
}

/* Copies of encoder layers with block-transposed weights; returns a status. */
static int transpose_encoder(int threads, const encoder_stack *e, encoder_layer_weights *layers)
{
    for (int64_t l = 0; l < e->shape.layers; l++) {
        const encoder_layer_weights *w = e->layers + l;
        float **to = zeroed(MATRICES, sizeof(*to));
        layers[l] = *w;
        layers[l].forms.transposed = to;
        if (!to || !transpose_shared(threads, e->shape, w->qkv, w->attention_output, w->expand, w->contract, to))
            return OUT_OF_MEMORY;
    }
    return SUCCESS;
}

/* The block-transposed cross_kv of all decoder layers; returns a status. */
static int transpose_cross(int threads, const decoder_stack *d, float **matrices)
{
    for (int64_t l = 0; l < d->shape.layers; l++) {
        matrices[l] = block_transposed(threads, d->shape.width, 2 * d->shape.width, d->layers[l].cross_kv);
        if (!matrices[l]) return OUT_OF_MEMORY;
    }
    return SUCCESS;
}

/* Block-transposed weights of a search: NULL where the search has too few rows for them. */
typedef struct {
    decoder_layer_weights *decoder;
    encoder_layer_weights *encoder;
    float **cross, *output;
} transposed_weights;

/* Block-transpose what a search with many rows or many source tokens reads; returns a status. */
static int transpose_weights(int threads, const decoder_stack *d, const token_tables *w, const source_batch *s,
                             int many_rows, int many_tokens, transposed_weights *to)
{
    int status = SUCCESS;
    if (many_rows && !d->layers->forms.int8) {
        to->decoder = zeroed(d->shape.layers, sizeof(*to->decoder));
        status = to->decoder ? transpose_decoder(threads, d, to->decoder) : OUT_OF_MEMORY;
        if (status == SUCCESS && !w->int8_argmax && !w->int8_output) {
            to->output = block_transposed(threads, d->shape.width, w->vocabulary, w->output);
            status = to->output ? SUCCESS : OUT_OF_MEMORY;
        }
    }
    if (status == SUCCESS && many_tokens && !s->encoder->layers->forms.int8) {
        to->encoder = zeroed(s->encoder->shape.layers, sizeof(*to->encoder));
        status = to->encoder ? transpose_encoder(threads, s->encoder, to->encoder) : OUT_OF_MEMORY;
    }
    if (status == SUCCESS && many_tokens && !d->layers->forms.int8) {
        to->cross = zeroed(d->shape.layers, sizeof(*to->cross));
        status = to->cross ? transpose_cross(threads, d, to->cross) : OUT_OF_MEMORY;
    }
    return status;
}

/* Free the block-transposed weights of a search. */
static void free_transposed(const decoder_stack *d, const source_batch *s, transposed_weights *w)
{
    for (int64_t l = 0; w->decoder && l < d->shape.layers; l++) free_matrices(MATRICES, w->decoder[l].forms.transposed);
    for (int64_t l = 0; w->encoder && l < s->encoder->shape.layers; l++)
        free_matrices(MATRICES, w->encoder[l].forms.transposed);
    free_matrices(d->shape.layers, w->cross);
    free(w->decoder);
    free(w->encoder);
    free(w->output);
}

/* Whether an index is outside of [0, size). */
static int outside(int64_t index, int64_t size) { return index < 0 || index >= size; }

/* Whether all indices of a search are in range, as a status. */
static int check_search(const token_tables *w, const source_batch *s, const packed_memory *m,
                        const search_limits *limits, int64_t sentences, int64_t beam, const hypothesis_buffers *found)
{
    if (beam < 1 || found->capacity < 1 || w->vocabulary < 1) return INDEX_OUT_OF_RANGE;
    if (limits->suppressed_count < 1) return INDEX_OUT_OF_RANGE;
    if (outside(limits->begin, w->vocabulary) || outside(limits->end, w->vocabulary)) return INDEX_OUT_OF_RANGE;
    for (int64_t i = 0; i < limits->suppressed_count; i++)
        if (outside(limits->suppressed[i], w->vocabulary)) return INDEX_OUT_OF_RANGE;
    for (int64_t i = 0; i < sentences; i++) {
        if (limits->limits[i] < 1) return INDEX_OUT_OF_RANGE;
        if (s ? s->cu_seqlens[i] < 0 || s->cu_seqlens[i + 1] < s->cu_seqlens[i]
              : i >= m->sentences || m->first[i] < 0 || m->counts[i] < 0 || m->first[i] > m->rows - m->counts[i])
            return INDEX_OUT_OF_RANGE;
    }
    for (int64_t i = s ? s->cu_seqlens[0] : 0; s && i < s->cu_seqlens[sentences]; i++)
        if (outside(s->tokens[i], s->vocabulary) || outside(s->position_ids[i], s->max_positions))
            return INDEX_OUT_OF_RANGE;
    return SUCCESS;
}

/* The best hypotheses of every sentence, from their sources or from a memory; greedy search if the beam is 1.
 * Threads share the sentences, or the matrix products of fewer sentences than threads. Setting *stop ends the
 * search after its current step; `stop` may be NULL. */
EXPORT int saccade_search(int threads, const decoder_stack *d, const token_tables *w, const source_batch *s,
                          packed_memory m, const search_limits *limits, int64_t sentences, int64_t beam,
                          hypothesis_buffers found, const int *stop)
{
    int status = check_search(w, s, &m, limits, sentences, beam, &found);
    if (status != SUCCESS) return status;
    int64_t candidates = beam == 1 ? 1 : 2 * beam < w->vocabulary ? 2 * beam : w->vocabulary, next = 0;
    int64_t factor = weight_bytes(d, w) > LARGE_WEIGHTS ? LARGE_FACTOR : 1;
    int64_t slots = factor * ROWS_PER_STEP / beam > 1 ? factor * ROWS_PER_STEP / beam : 1;
    int64_t share = sentences < threads ? sentences : (sentences + threads - 1) / threads;
    slots = slots < share ? slots : share;
    int many_tokens = s && s->cu_seqlens[sentences] - s->cu_seqlens[0] >= MIN_TRANSPOSE_TOKENS;
    transposed_weights transposed = {0};
    status = transpose_weights(threads, d, w, s, slots * beam >= MIN_TRANSPOSE_ROWS, many_tokens, &transposed);
    decoder_stack decoder = *d;
    if (transposed.decoder) decoder.layers = transposed.decoder;
    source_batch sources = {0};
    encoder_stack encoder = {0};
    if (s) {
        sources = *s;
        encoder = *s->encoder;
        sources.encoder = &encoder;
        if (transposed.encoder) encoder.layers = transposed.encoder;
    }
    /* at most a quarter of a thread's share, so that no thread waits long at the end */
    int64_t group = share / 4 < SENTENCES_PER_GROUP ? share / 4 : SENTENCES_PER_GROUP;
    search_task task = {.decoder = &decoder, .tables = w, .sources = s ? &sources : NULL, .memory = m,
                        .limits = limits, .sentences = sentences, .group_size = group ? group : 1, .beam = beam,
                        .candidates = candidates,
                        .logit_rows = factor * LOGIT_ROWS, .found = found, .transposed_output = transposed.output,
                        .transposed_cross = transposed.cross, .stop = stop, .status = &status};
    if (status == SUCCESS) {
        searches++;
        if (sentences < threads)
            search_sentences(threads, &task, slots, &next);
        else
#pragma omp parallel num_threads(threads)
            search_sentences(1, &task, slots, &next);
        searches--;
    }
    free_transposed(d, s, &transposed);
    return status;
}
