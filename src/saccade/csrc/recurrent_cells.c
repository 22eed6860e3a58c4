/* GRU and LSTM cells: the next state from projections that are already computed. Inference only. */

#include "recurrent_gates.h"
#include "simd.h"
#include "status.h"

/* The entries `at` to `at + n` of a projection (gates * width) plus its bias; both may be NULL. */
INLINE vec projection(const float *row, const float *bias, int64_t at, int n)
{
    vec sum = row ? load_n(row + at, n) : (vec){0};
    return bias ? sum + load_n(bias + at, n) : sum;
}

/* The projections of one row. */
typedef struct {
    const float *input, *step_input, *recurrent;
    float *out;
    int real;
} gate_row;

/* The projections of a row, whose gates have `gates` entries. */
INLINE gate_row gate_row_of(const recurrent_gates *g, int64_t row, int64_t gates)
{
    int64_t from = g->input_rows ? g->input_rows[row] : row;
    gate_row own = {NULL, NULL, g->recurrent + row * gates, NULL, from >= 0};
    if (!own.real) return own;
    own.input = g->inputs + from * gates;
    if (g->step_input) own.step_input = g->step_input + row * gates;
    if (g->out) own.out = g->out + (g->output_rows ? g->output_rows[row] : row) * g->out_stride;
    return own;
}

/* r, z = s(input + state);  n = tanh(input + r * state);  next = n + z * (hidden - n). In place if next == hidden. */
EXPORT int saccade_gru_cell(int threads, int64_t rows, int64_t width, const recurrent_gates *g, const float *hidden,
                            float *next)
{
#pragma omp parallel for num_threads(threads) if (rows * width >= PARALLEL_THRESHOLD) schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        gate_row own = gate_row_of(g, row, 3 * width);
        const float *before = hidden + row * width;
        float *to = next + row * width;
        if (!own.real) {
            if (to != before) memcpy(to, before, 4 * (size_t)width);
            continue;
        }
        for (int64_t at = 0; at < width; at += LANES) {
            int n = lanes_left(at, width);
            vec input[3], state[3];
            for (int gate = 0; gate < 3; gate++) {
                int64_t column = gate * width + at;
                input[gate] =
                    projection(own.input, g->input_bias, column, n) + projection(own.step_input, NULL, column, n);
                state[gate] = projection(own.recurrent, g->recurrent_bias, column, n);
            }
            vec reset = vec_sigmoid(input[0] + state[0]), update = vec_sigmoid(input[1] + state[1]);
            vec new = vec_tanh(input[2] + reset * state[2]);
            vec value = new + update * (load_n(before + at, n) - new);
            store_n(to + at, value, n);
            if (own.out) store_n(own.out + at, value, n);
        }
    }
    return SUCCESS;
}

/* i, f, g, o = s, s, tanh, s of the sums;  cell' = f * cell + i * g;  hidden' = o * tanh(cell'). */
EXPORT int saccade_lstm_cell(int threads, int64_t rows, int64_t width, const recurrent_gates *g, const float *hidden,
                             const float *cell, float *next_hidden, float *next_cell)
{
#pragma omp parallel for num_threads(threads) if (rows * width >= PARALLEL_THRESHOLD) schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        gate_row own = gate_row_of(g, row, 4 * width);
        const float *cell_before = cell + row * width;
        float *to = next_hidden + row * width, *cell_to = next_cell + row * width;
        if (!own.real) {
            if (to != hidden + row * width) memcpy(to, hidden + row * width, 4 * (size_t)width);
            if (cell_to != cell_before) memcpy(cell_to, cell_before, 4 * (size_t)width);
            continue;
        }
        for (int64_t at = 0; at < width; at += LANES) {
            int n = lanes_left(at, width);
            vec gates[4];
            for (int gate = 0; gate < 4; gate++) {
                int64_t column = gate * width + at;
                gates[gate] = projection(own.input, g->input_bias, column, n) +
                              projection(own.step_input, NULL, column, n) +
                              projection(own.recurrent, g->recurrent_bias, column, n);
            }
            vec new_cell =
                vec_sigmoid(gates[1]) * load_n(cell_before + at, n) + vec_sigmoid(gates[0]) * vec_tanh(gates[2]);
            vec value = vec_sigmoid(gates[3]) * vec_tanh(new_cell);
            store_n(cell_to + at, new_cell, n);
            store_n(to + at, value, n);
            if (own.out) store_n(own.out + at, value, n);
        }
    }
    return SUCCESS;
}
