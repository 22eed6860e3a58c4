/* Random bits of dropout. */

#ifndef SACCADE_DROPOUT_RNG_H
#define SACCADE_DROPOUT_RNG_H

#include "simd.h"

/* 16 random bits per entry, a hash of the seed and of the entry's index: the backward pass draws them again instead
 * of reading a mask. One word has the bits of two entries; a block has LANES words, so other instruction-set levels
 * draw other bits. */
#define DROPOUT_BLOCK (2 * LANES)

typedef struct {
    uint32_t seed, salt;
    int32_t threshold; /* probability of 0, times 65536 */
    float scale;
} dropout_rng;

/* The generator of a seed for a threshold of 0 to 65535. */
INLINE dropout_rng dropout_rng_of(uint64_t seed, int32_t threshold)
{
    dropout_rng rng = {(uint32_t)seed, (uint32_t)(seed >> 32), threshold, 65536.0f / (65536 - threshold)};
    return rng;
}

/* The random words of a block. */
INLINE uvec random_words(const dropout_rng *rng, uint32_t block)
{
    const uvec lane = LANE_INDICES;
    uvec x = (lane + block * LANES) * 0x9e3779b9u + rng->seed;
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= (x >> 15) ^ rng->salt;
    x *= 0x846ca68bu;
    x ^= x >> 16;
    return x;
}

/* The factors of the entries of a block, 0 or the scale. */
INLINE void dropout_factors(const dropout_rng *rng, uint32_t block, vec *low, vec *high)
{
    uvec words = random_words(rng, block);
    ivec first = (ivec)(words & 0xffffu) >= rng->threshold;
    ivec second = (ivec)(words >> 16) >= rng->threshold;
    *low = (vec)((ivec)broadcast(rng->scale) & first);
    *high = (vec)((ivec)broadcast(rng->scale) & second);
}

#endif
