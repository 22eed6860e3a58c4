/* Products of many rows by weights that are turned round, a block of outputs at a time, so that the lanes are outputs. Every
 * entry is added up in the order of the inputs, whatever rows are beside it. */

#ifndef SACCADE_MANY_ROWS_H
#define SACCADE_MANY_ROWS_H

#include "simd.h"

#define TALL 6 /* rows at once: with BROAD, as many sums as there are registers for */
#if LANES == 16
#define BROAD 4
#else
#define BROAD 2
#endif
#define BLOCK (BROAD * LANES)

INLINE int64_t blocks_of(int64_t outs) { return (outs + BLOCK - 1) / BLOCK; }

/* weight (outs, ins) to (blocks, ins, BLOCK); what is beyond the last output is 0. */
static inline float *turned_round(int threads, int64_t ins, int64_t outs, const float *weight)
{
    float *turned = zeros((size_t)(blocks_of(outs) * ins * BLOCK));
#pragma omp parallel for num_threads(threads) if (outs * ins >= 64 * ALONE_BELOW) schedule(static)
    for (int64_t first = 0; first < outs; first += BLOCK) {
        int64_t some = outs - first < BLOCK ? outs - first : BLOCK;
        const float *from = weight + first * ins;
        float *to = turned + first * ins;
        if (some == BLOCK && ins % LANES == 0)
            turn(BLOCK, ins, from, to, BLOCK);
        else
            for (int64_t out = 0; out < some; out++)
                for (int64_t at = 0; at < ins; at++) to[at * BLOCK + out] = from[out * ins + at];
    }
    return turned;
}

/* A block of outputs of so many rows, a number that the compiler knows. */
INLINE void block_of(const int rows, int64_t ins, int64_t some, const float *x, const float *turned, float *out,
                     int64_t stride)
{
    lanes sums[TALL][BROAD];
    for (int r = 0; r < rows; r++)
        for (int b = 0; b < BROAD; b++) sums[r][b] = all(0.0f);
    for (int64_t at = 0; at < ins; at++) {
        lanes own[BROAD];
        for (int b = 0; b < BROAD; b++) own[b] = load(turned + at * BLOCK + b * LANES);
        for (int r = 0; r < rows; r++)
            for (int b = 0; b < BROAD; b++) sums[r][b] += x[r * ins + at] * own[b];
    }
    for (int r = 0; r < rows; r++)
        for (int b = 0; b < BROAD; b++)
            if (b * LANES < some) store_within(out + r * stride + b * LANES, sums[r][b], within(b * LANES, some));
}

/* out (rows, outs) = x (rows, ins) · weight (outs, ins)^T, by the weight turned round. The rows of `out` are `stride`
 * apart. */
static inline void product_by_turned(int64_t rows, int64_t ins, int64_t outs, const float *x, const float *turned,
                                     float *out, int64_t stride)
{
    for (int64_t first = 0; first < outs; first += BLOCK, turned += ins * BLOCK) {
        int64_t some = outs - first < BLOCK ? outs - first : BLOCK, row = 0;
        for (; row + TALL <= rows; row += TALL)
            block_of(TALL, ins, some, x + row * ins, turned, out + row * stride + first, stride);
        const float *from = x + row * ins;
        float *to = out + row * stride + first;
        switch (rows - row) {
        case 1: block_of(1, ins, some, from, turned, to, stride); break;
        case 2: block_of(2, ins, some, from, turned, to, stride); break;
        case 3: block_of(3, ins, some, from, turned, to, stride); break;
        case 4: block_of(4, ins, some, from, turned, to, stride); break;
        case 5: block_of(5, ins, some, from, turned, to, stride); break;
        }
    }
}

#endif
