/* Weights to bytes, and products with them. */

#include "int8_gemm.h"

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
                    byte_row own = to_bytes(s->ins, s->weight + out * s->ins, 127.0f, 1, row);
                    s->scales[out] = own.scale;
                    s->biases[out] = s->bias ? s->bias[out] : 0.0f;
                    norm = own.norm <= norm ? norm : own.norm;
                    error = own.error <= error ? error : own.error;
                    if (!(error < INFINITY)) error = INFINITY; /* no bound: look at all tokens */
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

/* The outputs of the panels `first` to `last` for the rows `begin` to `end`. */
static void multiply_some(const byte_rows *own, const byte_table *s, int64_t begin, int64_t end, int64_t first,
                          int64_t last, float *out)
{
    for (int64_t panel = first; panel < last; panel += PANELS)
        for (int64_t r = begin; r < end; r += SOME_ROWS) {
            lanes found[SOME_ROWS][PANELS];
            find_sums(s, own, r, panel, found);
            int64_t at = panel * LANES;
            int some = r + SOME_ROWS <= own->real ? SOME_ROWS : (int)(own->real - r);
            int whole = at + PANELS * LANES <= s->outs;
            for (int i = 0; i < some; i++) {
                float *to = out + (r + i) * s->outs + at, scale = own->rows[r + i].scale;
                lanes values[PANELS];
                for (int p = 0; p < PANELS; p++) values[p] = found[i][p] * (load(s->scales + at + p * LANES) * scale);
                for (int p = 0; whole && p < PANELS; p++) store(to + p * LANES, values[p]);
                for (int p = 0; !whole && at + p * LANES < s->outs; p++)
                    store_within(to + p * LANES, values[p], within(at + p * LANES, s->outs));
            }
        }
}

/* Threads share the rows or the panels, whichever have more groups to share. */
void multiply_bytes(int threads, int64_t rows, const float *x, const byte_table *s, float *out)
{
    int64_t panels = panels_of(s->outs);
    byte_rows own = room_for_rows(rows, depth_of(s->ins));
    if (threads > 1 && own.count / SOME_ROWS > panels / PANELS) {
#pragma omp parallel num_threads(threads)
        {
            int64_t first, last;
            own_groups(own.count, SOME_ROWS, &first, &last);
            fill_rows(&own, s, first, last < rows ? last : rows, x, 0);
            multiply_some(&own, s, first, last, 0, panels, out);
        }
    } else {
        fill_rows(&own, s, 0, rows, x, 0);
        if (threads == 1)
            multiply_some(&own, s, 0, rows, 0, panels, out);
        else
#pragma omp parallel num_threads(threads)
        {
            int64_t first, last;
            own_groups(panels, PANELS, &first, &last);
            multiply_some(&own, s, 0, rows, first, last, out);
        }
    }
    end_rows(&own);
}

static void sizes(int64_t *outs, int64_t *panels, int64_t *depth)
{
    *outs = LANES;
    *panels = PANELS;
    *depth = DEPTH;
}

#else /* no products of bytes */

static void pack(int threads, const byte_table *s) { (void)threads, (void)s; }
void multiply_bytes(int threads, int64_t rows, const float *x, const byte_table *s, float *out)
{
    (void)threads, (void)rows, (void)x, (void)s, (void)out;
}
static void sizes(int64_t *outs, int64_t *panels, int64_t *depth) { *outs = *panels = *depth = 0; }

#endif

/* How many outputs a panel has, of how many the number of panels is a multiple, and of how many the width; 0: there are no
 * products of bytes here. */
EXPORT void saccade_int8_panel_sizes(int threads, int64_t *outs, int64_t *panels, int64_t *depth)
{
    (void)threads;
    sizes(outs, panels, depth);
}

/* Fill in all but the weight and its bias. */
EXPORT void saccade_int8_pack(int threads, const byte_table *s) { pack(threads, s); }

/* Without the bias. */
EXPORT void saccade_int8_linear(int threads, int64_t rows, const float *x, const byte_table *s, float *out)
{
    multiply_bytes(rows * s->ins * s->outs < PRODUCT_ALONE_BELOW ? 1 : threads, rows, x, s, out);
}
