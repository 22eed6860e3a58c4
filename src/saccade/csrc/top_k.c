/* The most probable tokens of each row of logits. */

#include "top_k.h"

#include "allocation.h"
#include "status.h"

#define CHUNK (16 * LANES) /* entries of a row that share one maximum */

/* The largest of `count` floats. */
INLINE float largest_in(const float *from, int64_t count)
{
    vec top = broadcast(-INFINITY);
    int64_t at = 0;
    for (; at + LANES <= count; at += LANES) top = vec_max(load(from + at), top);
    float largest = reduce_max(top);
    for (; at < count; at++) largest = from[at] > largest ? from[at] : largest;
    return largest;
}

/* top_k_rows for the rows `first` to `last`. */
static int top_k_range(int64_t first, int64_t last, int64_t vocabulary, float *logits, int64_t suppressed_count,
                       const int64_t *suppressed, int64_t k, float *values, int64_t *tokens)
{
    int64_t chunks = (vocabulary + CHUNK - 1) / CHUNK;
    float *tops = zeroed_floats(chunks);
    if (!tops) return OUT_OF_MEMORY;
    for (int64_t row = first; row < last; row++) {
        float *a = logits + row * vocabulary;
        for (int64_t c = 0; c < chunks; c++)
            tops[c] = largest_in(a + c * CHUNK, vocabulary - c * CHUNK < CHUNK ? vocabulary - c * CHUNK : CHUNK);
        float top = largest_in(tops, chunks);
        vec powers[2] = {{0}, {0}};
        int64_t at = 0;
        for (; at + 2 * LANES <= vocabulary; at += 2 * LANES)
            for (int i = 0; i < 2; i++) powers[i] += vec_exp(load(a + at + i * LANES) - top);
        float power = reduce_sum(powers[0] + powers[1]);
        for (; at < vocabulary; at += LANES) {
            int n = lanes_left(at, vocabulary);
            float rest[LANES] = {0};
            store_n(rest, vec_exp(load_n(a + at, n) - top), n);
            power += reduce_sum(load(rest));
        }
        float log_power = logf(power);
        for (int64_t i = 0; i < suppressed_count; i++) {
            int64_t c = suppressed[i] / CHUNK;
            a[suppressed[i]] = -INFINITY;
            tops[c] = largest_in(a + c * CHUNK, vocabulary - c * CHUNK < CHUNK ? vocabulary - c * CHUNK : CHUNK);
        }
        for (int64_t i = 0; i < k; i++) {
            float value = largest_in(tops, chunks);
            int64_t c = 0;
            while (c + 1 < chunks && tops[c] != value) c++;
            int64_t token = c * CHUNK, end = token + CHUNK < vocabulary ? token + CHUNK : vocabulary;
            while (token + 1 < end && a[token] != value) token++;
            values[row * k + i] = value - top - log_power;
            tokens[row * k + i] = token;
            a[token] = -INFINITY;
            tops[c] = largest_in(a + c * CHUNK, end - c * CHUNK);
        }
    }
    free(tops);
    return SUCCESS;
}

int top_k_rows(int threads, int64_t rows, int64_t vocabulary, float *logits, int64_t suppressed_count,
               const int64_t *suppressed, int64_t k, float *values, int64_t *tokens)
{
    if (threads == 1 || rows == 1 || rows * vocabulary < PARALLEL_THRESHOLD)
        return top_k_range(0, rows, vocabulary, logits, suppressed_count, suppressed, k, values, tokens);
    int status = SUCCESS;
#pragma omp parallel num_threads(threads)
    {
        int64_t first, last;
        thread_range(rows, &first, &last);
        record(&status, top_k_range(first, last, vocabulary, logits, suppressed_count, suppressed, k, values, tokens));
    }
    return status;
}

/* Whether all suppressed tokens are of the vocabulary, as a status. */
static int check_suppressed(int64_t count, const int64_t *suppressed, int64_t vocabulary)
{
    for (int64_t i = 0; i < count; i++)
        if (suppressed[i] < 0 || suppressed[i] >= vocabulary) return INDEX_OUT_OF_RANGE;
    return SUCCESS;
}

/* top_k_rows for logits (rows, vocabulary), after a check of the suppressed tokens. */
EXPORT int saccade_top_k(int threads, int64_t rows, int64_t vocabulary, float *logits, int64_t suppressed_count,
                         const int64_t *suppressed, int64_t k, float *values, int64_t *tokens)
{
    int status = check_suppressed(suppressed_count, suppressed, vocabulary);
    if (status != SUCCESS) return status;
    return top_k_rows(threads, rows, vocabulary, logits, suppressed_count, suppressed, k, values, tokens);
}

/* The positions of the suppressed tokens in an ascending list of tokens; returns how many of them the list has. */
static int64_t positions_in(int64_t length, const int64_t *list, int64_t count, const int64_t *suppressed,
                            int64_t *positions)
{
    int64_t found = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t low = 0, high = length;
        while (low < high) {
            int64_t middle = low + (high - low) / 2;
            if (list[middle] < suppressed[i])
                low = middle + 1;
            else
                high = middle;
        }
        if (low < length && list[low] == suppressed[i]) positions[found++] = low;
    }
    return found;
}

/* The top k among allowed tokens: row n may use list[starts[lists[n]]] to list[starts[lists[n] + 1]], ascending.
 * The logits are not overwritten. */
EXPORT int saccade_top_k_within(int threads, int64_t rows, int64_t vocabulary, const float *logits,
                                const int64_t *lists, const int64_t *starts, const int64_t *list,
                                int64_t suppressed_count, const int64_t *suppressed, int64_t k, float *values,
                                int64_t *tokens)
{
    int status = check_suppressed(suppressed_count, suppressed, vocabulary);
    if (status != SUCCESS) return status;
#pragma omp parallel num_threads(threads) if (rows * vocabulary >= PARALLEL_THRESHOLD)
    {
        int64_t first, last;
        thread_range(rows, &first, &last);
        float *own = zeroed_floats(vocabulary);
        int64_t *positions = zeroed(suppressed_count, sizeof(*positions));
        if (!own || !positions) {
            record(&status, OUT_OF_MEMORY);
            last = first;
        }
        for (int64_t row = first; row < last; row++) {
            const int64_t *allowed = list + starts[lists[row]];
            int64_t length = starts[lists[row] + 1] - starts[lists[row]], found = k < length ? k : length;
            if (length < 0) {
                record(&status, INDEX_OUT_OF_RANGE);
                break;
            }
            for (int64_t i = 0; i < length; i++) own[i] = logits[row * vocabulary + allowed[i]];
            int64_t count = positions_in(length, allowed, suppressed_count, suppressed, positions);
            int failure = top_k_rows(1, 1, length, own, count, positions, found, values + row * k, tokens + row * k);
            if (failure != SUCCESS) {
                record(&status, failure);
                break;
            }
            for (int64_t i = 0; i < found; i++) tokens[row * k + i] = allowed[tokens[row * k + i]];
            for (int64_t i = found; i < k; i++) {
                values[row * k + i] = -INFINITY;
                tokens[row * k + i] = 0;
            }
        }
        free(positions);
        free(own);
    }
    return status;
}
