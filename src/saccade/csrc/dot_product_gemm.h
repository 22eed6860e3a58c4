/* Products of a few rows: a dot product for each row and output, with the weights as they lie. From some tens of rows on
 * the library's products are faster, and ours by turned weights (many_rows.h); for fewer they take longer to begin than
 * these take in all (docs/log.md). */

#ifndef SACCADE_FEW_ROWS_H
#define SACCADE_FEW_ROWS_H

#include "simd.h"

#define ROWS 6 /* at once: with OUTS, as many sums as there are registers for */
#define OUTS 4

/* out (rows, outs) = x (rows, ins) · weight (outs, ins)^T for a number of rows that the compiler knows. */
INLINE void product_of(const int rows, int64_t ins, int64_t outs, const float *x, const float *weight, float *out,
                       int64_t stride)
{
    for (int64_t first = 0; first < outs; first += OUTS) {
        int some = outs - first < OUTS ? (int)(outs - first) : OUTS;
        const float *w[OUTS];
        for (int o = 0; o < OUTS; o++) w[o] = weight + (first + (o < some ? o : 0)) * ins;
        lanes sums[ROWS][OUTS];
        for (int r = 0; r < rows; r++)
            for (int o = 0; o < OUTS; o++) sums[r][o] = all(0.0f);
        int64_t at = 0;
        for (; at + LANES <= ins; at += LANES)
            for (int o = 0; o < OUTS; o++) {
                lanes own = load(w[o] + at);
                for (int r = 0; r < rows; r++) sums[r][o] += own * load(x + r * ins + at);
            }
        if (at < ins)
            for (int o = 0; o < OUTS; o++) {
                lanes own = load_some(w[o] + at, within(at, ins));
                for (int r = 0; r < rows; r++) sums[r][o] += own * load_some(x + r * ins + at, within(at, ins));
            }
        for (int r = 0; r < rows; r++) {
            float found[OUTS];
            sums_of(sums[r], found);
            for (int o = 0; o < some; o++) out[r * stride + first + o] = found[o];
        }
    }
}

/* The rows of `out` are `stride` apart. */
INLINE void product(int64_t rows, int64_t ins, int64_t outs, const float *x, const float *weight, float *out,
                    int64_t stride)
{
    while (rows) {
        int now = rows > ROWS ? ROWS : (int)rows;
        switch (now) {
        case 1: product_of(1, ins, outs, x, weight, out, stride); break;
        case 2: product_of(2, ins, outs, x, weight, out, stride); break;
        case 3: product_of(3, ins, outs, x, weight, out, stride); break;
        case 4: product_of(4, ins, outs, x, weight, out, stride); break;
        case 5: product_of(5, ins, outs, x, weight, out, stride); break;
        default: product_of(ROWS, ins, outs, x, weight, out, stride);
        }
        rows -= now;
        x += now * ins;
        out += now * stride;
    }
}

#endif
