/* Quantization of weights to int8, and linear layers with them. */

#include "int8_gemm.h"

#ifdef HAS_INT8

/* Fill in all arrays of an int8 weight but the float32 weight and its bias; returns a status. */
static int pack(int threads, const int8_weight *w)
{
    int64_t depth = depth_of(w->inputs), panels = panels_of(w->outputs);
    int status = SUCCESS;
#pragma omp parallel num_threads(threads)
    {
        int8_t *row = zeroed(depth * DEPTH, 1);
        if (!row) record(&status, OUT_OF_MEMORY);
#pragma omp for schedule(static)
        for (int64_t panel = 0; panel < panels; panel++) {
            if (!row) continue;
            uint8_t *to = w->packed + panel * depth * LANES * DEPTH;
            float norm = 0.0f, error = 0.0f;
            for (int64_t lane = 0; lane < LANES; lane++) {
                int64_t out = panel * LANES + lane;
                w->scales[out] = 0.0f;
                w->biases[out] = -INFINITY;
                if (out < w->outputs) {
                    int8_row own = quantize_row(w->inputs, w->weight + out * w->inputs, 127.0f, 1, row);
                    w->scales[out] = own.scale;
                    w->biases[out] = w->bias ? w->bias[out] : 0.0f;
                    norm = own.norm <= norm ? norm : own.norm;
                    error = own.error <= error ? error : own.error;
                    if (!(error < INFINITY)) error = INFINITY; /* no bound: argmax_int8 computes all logits */
                }
                for (int64_t at = 0; at < depth; at++) {
                    uint32_t four;
                    memcpy(&four, row + at * DEPTH, DEPTH);
                    four ^= 0x80808080u; /* adds ZERO_POINT to each of the four */
                    memcpy(to + (at * LANES + lane) * DEPTH, &four, DEPTH);
                }
            }
            w->norms[panel] = norm;
            w->errors[panel] = error;
        }
        free(row);
    }
    return status;
}

/* The outputs of the panels `first` to `last` for the rows `begin` to `end`. */
static void multiply(const int8_rows *rows, const int8_weight *w, int64_t begin, int64_t end, int64_t first,
                     int64_t last, float *out)
{
    for (int64_t panel = first; panel < last; panel += PANELS)
        for (int64_t r = begin; r < end; r += TILE_ROWS) {
            vec sums[TILE_ROWS][PANELS];
            tile_sums(w, rows, r, panel, sums);
            int64_t at = panel * LANES;
            int n = r + TILE_ROWS <= rows->real ? TILE_ROWS : (int)(rows->real - r);
            int full = at + PANELS * LANES <= w->outputs;
            for (int i = 0; i < n; i++) {
                float *to = out + (r + i) * w->outputs + at, scale = rows->rows[r + i].scale;
                vec values[PANELS];
                for (int p = 0; p < PANELS; p++) values[p] = sums[i][p] * (load(w->scales + at + p * LANES) * scale);
                for (int p = 0; full && p < PANELS; p++) store(to + p * LANES, values[p]);
                for (int p = 0; !full && at + p * LANES < w->outputs; p++)
                    store_n(to + p * LANES, values[p], lanes_left(at + p * LANES, w->outputs));
            }
        }
}

/* Threads share the rows or the panels, whichever have more groups. */
int int8_linear(int threads, int64_t rows, const float *x, const int8_weight *w, float *out)
{
    int64_t panels = panels_of(w->outputs);
    int8_rows r;
    int status = allocate_int8_rows(rows, depth_of(w->inputs), &r);
    if (status != SUCCESS) return status;
    if (threads > 1 && r.count / TILE_ROWS > panels / PANELS) {
#pragma omp parallel num_threads(threads)
        {
            int64_t first, last;
            thread_range_of_groups(r.count, TILE_ROWS, &first, &last);
            quantize_rows(&r, w, first, last < rows ? last : rows, x, 0);
            multiply(&r, w, first, last, 0, panels, out);
        }
    } else {
        quantize_rows(&r, w, 0, rows, x, 0);
        if (threads == 1)
            multiply(&r, w, 0, rows, 0, panels, out);
        else
#pragma omp parallel num_threads(threads)
        {
            int64_t first, last;
            thread_range_of_groups(panels, PANELS, &first, &last);
            multiply(&r, w, 0, rows, first, last, out);
        }
    }
    free_int8_rows(&r);
    return SUCCESS;
}

/* Outputs of a panel, panels of a group, inputs of a group. */
static void panel_sizes(int64_t *outputs, int64_t *panels, int64_t *depth)
{
    *outputs = LANES;
    *panels = PANELS;
    *depth = DEPTH;
}

#else /* this level has no int8 products */

static int pack(int threads, const int8_weight *w)
{
    (void)threads, (void)w;
    return UNSUPPORTED;
}
int int8_linear(int threads, int64_t rows, const float *x, const int8_weight *w, float *out)
{
    (void)threads, (void)rows, (void)x, (void)w, (void)out;
    return UNSUPPORTED;
}
static void panel_sizes(int64_t *outputs, int64_t *panels, int64_t *depth) { *outputs = *panels = *depth = 0; }

#endif

/* The outputs of a panel, and the multiples to which panels and inputs are padded; zeros where there are no int8
 * products. */
EXPORT int saccade_int8_panel_sizes(int threads, int64_t *outputs, int64_t *panels, int64_t *depth)
{
    (void)threads;
    panel_sizes(outputs, panels, depth);
    return SUCCESS;
}

/* Quantize: fill in all arrays but the weight and its bias. */
EXPORT int saccade_int8_pack(int threads, const int8_weight *w) { return pack(threads, w); }

/* int8_linear for x (rows, inputs), on one thread if there is little work. */
EXPORT int saccade_int8_linear(int threads, int64_t rows, const float *x, const int8_weight *w, float *out)
{
    return int8_linear(rows * w->inputs * w->outputs < GEMM_PARALLEL_THRESHOLD ? 1 : threads, rows, x, w, out);
}
