/* Matrix products of many rows with a block-transposed weight: lanes are outputs. Every entry is summed in the
 * order of the inputs, whatever other rows there are. */

#ifndef SACCADE_BLOCKED_GEMM_H
#define SACCADE_BLOCKED_GEMM_H

#include "allocation.h"
#include "simd.h"

#define TILE_ROWS 6 /* rows at once: with TILE_VECTORS, as many sums as there are registers */
#if LANES == 16
#define TILE_VECTORS 4
#else
#define TILE_VECTORS 2
#endif
#define BLOCK (TILE_VECTORS * LANES)

/* The number of blocks of a number of outputs. */
INLINE int64_t blocks_of(int64_t outputs) { return (outputs + BLOCK - 1) / BLOCK; }

/* weight (outputs, inputs) to (blocks, inputs, BLOCK), 0 beyond the last output; NULL if the allocation failed. */
static inline float *block_transposed(int threads, int64_t inputs, int64_t outputs, const float *weight)
{
    float *transposed = zeroed_floats(size_product(size_product(blocks_of(outputs), inputs), BLOCK));
    if (!transposed) return NULL;
#pragma omp parallel for num_threads(threads) if (outputs * inputs >= 64 * PARALLEL_THRESHOLD) schedule(static)
    for (int64_t first = 0; first < outputs; first += BLOCK) {
        int64_t n = outputs - first < BLOCK ? outputs - first : BLOCK;
        const float *from = weight + first * inputs;
        float *to = transposed + first * inputs;
        if (n == BLOCK && inputs % LANES == 0)
            transpose(BLOCK, inputs, from, to, BLOCK);
        else
            for (int64_t out = 0; out < n; out++)
                for (int64_t at = 0; at < inputs; at++) to[at * BLOCK + out] = from[out * inputs + at];
    }
    return transposed;
}

/* The first n outputs of a block for some rows; the compiler knows the number of rows. */
INLINE void block_product(const int rows, int64_t inputs, int64_t n, const float *x, const float *transposed,
                          float *out, int64_t stride)
{
    vec sums[TILE_ROWS][TILE_VECTORS];
    for (int r = 0; r < rows; r++)
        for (int b = 0; b < TILE_VECTORS; b++) sums[r][b] = broadcast(0.0f);
    for (int64_t at = 0; at < inputs; at++) {
        vec weights[TILE_VECTORS];
        for (int b = 0; b < TILE_VECTORS; b++) weights[b] = load(transposed + at * BLOCK + b * LANES);
        for (int r = 0; r < rows; r++)
            for (int b = 0; b < TILE_VECTORS; b++) sums[r][b] += x[r * inputs + at] * weights[b];
    }
    for (int r = 0; r < rows; r++)
        for (int b = 0; b < TILE_VECTORS; b++)
            if (b * LANES < n) store_n(out + r * stride + b * LANES, sums[r][b], lanes_left(b * LANES, n));
}

/* out (rows, outputs) = x (rows, inputs) · weight (outputs, inputs)^T with the block-transposed weight. `stride` is
 * the distance of the rows of `out`. */
static inline void blocked_gemm(int64_t rows, int64_t inputs, int64_t outputs, const float *x, const float *transposed,
                                float *out, int64_t stride)
{
    for (int64_t first = 0; first < outputs; first += BLOCK, transposed += inputs * BLOCK) {
        int64_t n = outputs - first < BLOCK ? outputs - first : BLOCK, row = 0;
        for (; row + TILE_ROWS <= rows; row += TILE_ROWS)
            block_product(TILE_ROWS, inputs, n, x + row * inputs, transposed, out + row * stride + first, stride);
        const float *from = x + row * inputs;
        float *to = out + row * stride + first;
        switch (rows - row) {
        case 1: block_product(1, inputs, n, from, transposed, to, stride); break;
        case 2: block_product(2, inputs, n, from, transposed, to, stride); break;
        case 3: block_product(3, inputs, n, from, transposed, to, stride); break;
        case 4: block_product(4, inputs, n, from, transposed, to, stride); break;
        case 5: block_product(5, inputs, n, from, transposed, to, stride); break;
        }
    }
}

#endif
