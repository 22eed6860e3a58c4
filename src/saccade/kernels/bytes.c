/* Weights to bytes, and products with them. */

#include "bytes.h"

#ifdef HAS_BYTES

static void pack(int threads, const byte_table *s)
{
    int64_t depth = depth_of(s->ins), panels = panels_of(s->outs);
#pragma omp parallel num_threads(threads)
    {
        int8_t *row = calloc((size_t)(depth * DEPTH), 1);
        if (!row) abort();
#pragma omp for schedule(static)
        for (int64_t panel = 0; panel < panels; panel++) {
            uint8_t *to = s->packed + panel * depth * LANES * DEPTH;
            float norm = 0.0f, error = 0.0f;
            for (int64_t lane = 0; lane < LANES; lane++) {
                int64_t out = panel * LANES + lane;
                s->scales[out] = 0.0f;
                s->biases[out] = -INFINITY;
                if (out < s->outs) {
                    float own_norm, own_error;
                    s->scales[out] =
                        to_bytes(s->ins, s->weight + out * s->ins, 127.0f, row, &own_norm, &own_error);
                    s->biases[out] = s->bias ? s->bias[out] : 0.0f;
                    norm = own_norm <= norm ? norm : own_norm;
                    error = own_error <= error ? error : own_error;
                    if (!(error < INFINITY)) error = INFINITY; /* no bound: look at all of them */
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

void multiply_bytes(int64_t rows, const float *x, const byte_table *s, float *out)
{
    int64_t panels = panels_of(s->outs);
    byte_rows own = rows_to_bytes(s, rows, x);
    for (int64_t panel = 0; panel < panels; panel += PANELS)
        for (int64_t r = 0; r < rows; r += SOME_ROWS) {
            lanes found[SOME_ROWS][PANELS];
            find_sums(s, &own, r, panel, found);
            for (int p = 0; p < PANELS && (panel + p) * LANES < s->outs; p++) {
                int64_t at = (panel + p) * LANES;
                lanes scales = load(s->scales + at);
                for (int i = 0; i < SOME_ROWS && r + i < rows; i++)
                    store_within(out + (r + i) * s->outs + at, found[i][p] * (scales * own.rows[r + i].scale),
                                 within(at, s->outs));
            }
        }
    end_rows(&own);
}

static void multiply(int threads, int64_t rows, const float *x, const byte_table *s, float *out)
{
#pragma omp parallel num_threads(threads) if (rows * s->ins * s->outs >= 64 * ALONE_BELOW)
    {
        int64_t first, last;
        own_groups(rows, &first, &last);
        if (last > first) multiply_bytes(last - first, x + first * s->ins, s, out + first * s->outs);
    }
}

static void sizes(int64_t *outs, int64_t *panels, int64_t *depth)
{
    *outs = LANES;
    *panels = PANELS;
    *depth = DEPTH;
}

#else /* no products of bytes */

static void pack(int threads, const byte_table *s) { (void)threads, (void)s; }
void multiply_bytes(int64_t rows, const float *x, const byte_table *s, float *out) { (void)rows, (void)x, (void)s, (void)out; }
static void multiply(int threads, int64_t rows, const float *x, const byte_table *s, float *out)
{
    (void)threads, (void)rows, (void)x, (void)s, (void)out;
}
static void sizes(int64_t *outs, int64_t *panels, int64_t *depth) { *outs = *panels = *depth = 0; }

#endif

/* How many outputs a panel has, of how many the number of panels is a multiple, and of how many the width; 0: there are no
 * products of bytes here. */
EXPORT void saccade_byte_sizes(int threads, int64_t *outs, int64_t *panels, int64_t *depth)
{
    (void)threads;
    sizes(outs, panels, depth);
}

/* Fill in all but the weight and its bias. */
EXPORT void saccade_byte_pack(int threads, const byte_table *s) { pack(threads, s); }

/* Without the bias. */
EXPORT void saccade_byte_product(int threads, int64_t rows, const float *x, const byte_table *s, float *out)
{
    multiply(threads, rows, x, s, out);
}
