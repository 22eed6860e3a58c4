/* One place of recurrent layers, the products already made; and where a recurrent decoder looks. Inference only. */

#include "simd.h"

/* What the gates are made of, each row (gates * width) if it is there: the input's share, of row which[i] if that is
 * given, a second one, and the state's, which have no bias yet. A row with a negative number has no place here: its
 * state stays. `out` gets the new state too, in row where[i]. */
typedef struct {
    const float *inputs, *fed, *recurrent, *input_bias, *recurrent_bias;
    const int64_t *which, *where;
    float *out;
    int64_t out_stride;
} shares;

INLINE lanes share_of(const float *row, const float *bias, int64_t at, int some)
{
    lanes sum = row ? load_within(row + at, some) : (lanes){0};
    return bias ? sum + load_within(bias + at, some) : sum;
}

/* The rows that make the gates of a row. */
typedef struct {
    const float *input, *fed, *recurrent;
    float *out;
    int there;
} share;

INLINE share row_of(const shares *all_rows, int64_t row, int64_t wide)
{
    int64_t from = all_rows->which ? all_rows->which[row] : row;
    share own = {NULL, NULL, all_rows->recurrent + row * wide, NULL, from >= 0};
    if (!own.there) return own;
    own.input = all_rows->inputs + from * wide;
    if (all_rows->fed) own.fed = all_rows->fed + row * wide;
    if (all_rows->out) own.out = all_rows->out + (all_rows->where ? all_rows->where[row] : row) * all_rows->out_stride;
    return own;
}

/* r, z = s(input + state);  n = tanh(input + r * state);  next = n + z * (hidden - n). In place if they are the same. */
EXPORT void saccade_gru_cell(int threads, int64_t rows, int64_t width, const shares *all_rows, const float *hidden,
                        float *next)
{
#pragma omp parallel for num_threads(threads) if (rows * width >= ALONE_BELOW) schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        share own = row_of(all_rows, row, 3 * width);
        const float *before = hidden + row * width, *ours = all_rows->input_bias, *theirs = all_rows->recurrent_bias;
        float *to = next + row * width;
        if (!own.there) {
            if (to != before) memcpy(to, before, 4 * (size_t)width);
            continue;
        }
        for (int64_t at = 0; at < width; at += LANES) {
            int some = within(at, width);
            lanes gates[3], state[3];
            for (int gate = 0; gate < 3; gate++) {
                int64_t place = gate * width + at;
                gates[gate] = share_of(own.input, ours, place, some) + share_of(own.fed, NULL, place, some);
                state[gate] = share_of(own.recurrent, theirs, place, some);
            }
            lanes reset = sigmoid(gates[0] + state[0]), update = sigmoid(gates[1] + state[1]);
            lanes new = tangent(gates[2] + reset * state[2]);
            lanes value = new + update * (load_within(before + at, some) - new);
            store_within(to + at, value, some);
            if (own.out) store_within(own.out + at, value, some);
        }
    }
}

/* i, f, g, o = s, s, tanh, s of the sums;  cell' = f * cell + i * g;  hidden' = o * tanh(cell'). */
EXPORT void saccade_lstm_cell(int threads, int64_t rows, int64_t width, const shares *all_rows, const float *hidden,
                         const float *cell, float *next_hidden, float *next_cell)
{
#pragma omp parallel for num_threads(threads) if (rows * width >= ALONE_BELOW) schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        share own = row_of(all_rows, row, 4 * width);
        const float *kept = cell + row * width;
        float *to = next_hidden + row * width, *keep = next_cell + row * width;
        if (!own.there) {
            if (to != hidden + row * width) memcpy(to, hidden + row * width, 4 * (size_t)width);
            if (keep != kept) memcpy(keep, kept, 4 * (size_t)width);
            continue;
        }
        for (int64_t at = 0; at < width; at += LANES) {
            int some = within(at, width);
            lanes gates[4];
            for (int gate = 0; gate < 4; gate++) {
                int64_t place = gate * width + at;
                gates[gate] = share_of(own.input, all_rows->input_bias, place, some) +
                              share_of(own.fed, NULL, place, some) +
                              share_of(own.recurrent, all_rows->recurrent_bias, place, some);
            }
            lanes held = sigmoid(gates[1]) * load_within(kept + at, some) + sigmoid(gates[0]) * tangent(gates[2]);
            lanes value = sigmoid(gates[3]) * tangent(held);
            store_within(keep + at, held, some);
            store_within(to + at, value, some);
            if (own.out) store_within(own.out + at, value, some);
        }
    }
}

/* Queries (rows, width) to a memory of keys (sentences, places, width) and values (sentences, places, depth), `beam` rows
 * in a sentence: scores vector * tanh(query + key), or query * key without a vector; a softmax over the places where the
 * mask is not 0; the weighted sum. Weights (rows, places) are 0 elsewhere; a row that sees nothing gets zeros. */
EXPORT void saccade_single_head_attention(int threads, int64_t rows, int64_t beam, int64_t places, int64_t width, int64_t depth,
                         const uint8_t *mask, const float *query, const float *keys, const float *vector,
                         const float *values, float *out, float *weights)
{
#pragma omp parallel num_threads(threads) if (rows * places * width >= ALONE_BELOW)
    {
        int64_t first, last;
        own_part(rows, &first, &last);
        float *scores = zeros((size_t)rounded(places, LANES));
        int64_t *seen = malloc((size_t)(places ? places : 1) * sizeof(*seen));
        if (!seen) abort();
        for (int64_t row = first; row < last; row++) {
            int64_t sentence = row / beam, count = 0;
            for (int64_t t = 0; t < places; t++)
                if (mask[sentence * places + t]) seen[count++] = t;
            const float *q = query + row * width;
            for (int64_t i = 0; i < count; i++) {
                const float *key = keys + (sentence * places + seen[i]) * width;
                lanes sum = {0};
                for (int64_t at = 0; at < width; at += LANES) {
                    int some = within(at, width);
                    lanes asked = load_within(q + at, some), known = load_within(key + at, some);
                    sum += vector ? load_within(vector + at, some) * tangent(asked + known) : asked * known;
                }
                scores[i] = sum_of(sum);
            }
            softmax(scores, count);
            float *own = weights + row * places;
            memset(own, 0, 4 * (size_t)places);
            for (int64_t i = 0; i < count; i++) own[seen[i]] = scores[i];
            for (int64_t at = 0; at < depth; at += LANES) {
                int some = within(at, depth);
                lanes sum = {0};
                for (int64_t i = 0; i < count; i++)
                    sum += scores[i] * load_within(values + (sentence * places + seen[i]) * depth + at, some);
                store_within(out + row * depth + at, sum, some);
            }
        }
        free(seen);
        free(scores);
    }
}
